package state

import (
	"fmt"
	"strconv"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// What a JobTimer says has come, beside the time limit and the end of a lease.
const (
	timerDeadline = "deadline"
	timerGrace    = "grace_over"
)

// deadlineOf is until when a job must have ended, Unix ms; 0 = none was asked for, or it cannot be read.
func deadlineOf(s *job.Spec) int64 {
	text := s.RareValue(job.OptDeadline)
	if text == "" {
		return 0
	}
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return max(0, at)
}

// dueAt is when the controller has to do something about a record whatever else happens: 0 = never.
func dueAt(j *Job) int64 {
	if j.State.Ended() || j.HetOffset > 0 {
		return 0
	}
	due := deadlineOf(j.Spec)
	if g := j.GraceEnd; g > 0 && isRunning(j) && j.Kill == job.WhyNone && (due == 0 || g < due) {
		due = g
	}
	return due
}

// indexDue keeps which records have a moment to come.
func (t *Tx) indexDue(old, j *Job) {
	var was, is int64
	if t.feature >= FeatureSched {
		if old != nil {
			was = dueAt(old)
		}
		if j != nil {
			is = dueAt(j)
		}
	}
	if was == is {
		return
	}
	if was > 0 {
		t.due.Delete(endKey{was, old.ID})
	}
	if is > 0 {
		t.due.Set(endKey{is, j.ID})
	}
}

// maxTimersDue bounds what Timers gives at once.
const maxTimersDue = 1000

// Timers lists the moments of jobs' lives that have come at time now (Unix ms) and are to be put into the log as
// JobTimer: deadlines, and ends of the grace of runs that make room. Earliest first, at most 1,000.
func (t *tables) Timers(now int64) []JobTimer {
	var list []JobTimer
	t.due.Scan(func(k endKey) bool {
		if k.end > now || len(list) == maxTimersDue {
			return false
		}
		j := t.Job(k.id)
		what := timerDeadline
		if j.GraceEnd == k.end && isRunning(j) {
			what = timerGrace
		}
		list = append(list, JobTimer{JobID: j.ID, Run: j.Run, What: what})
		return true
	})
	return list
}

// NextTimer is when the next of such moments comes, Unix ms; 0 = none is known.
func (t *tables) NextTimer() int64 {
	if k, ok := t.due.Min(); ok {
		return k.end
	}
	return 0
}

// deadlineTimer ends a record whose deadline has passed.
func (t *Tx) deadlineTimer(old *Job) {
	at := deadlineOf(old.Spec)
	if t.feature < FeatureSched || at == 0 || at > t.now || old.HetOffset > 0 {
		return
	}
	j := edit(old)
	if !j.happen(job.EventDeadline) {
		return
	}
	j.Reason, j.Detail, j.End = job.ReasonDeadLine, "", t.now
	if j.Flags&job.Completing != 0 && j.Kill == job.WhyNone {
		j.Kill, j.KillAt = job.WhyTimeLimit, t.now
	}
	t.settle(old, j)
}

// mayMeetDeadline refuses a request that cannot have ended by its deadline, if it began as soon as it may.
func (t *tables) mayMeetDeadline(s *job.Spec, now int64) *Refusal {
	at := deadlineOf(s)
	if at == 0 || t.feature < FeatureSched {
		return nil
	}
	limit := t.effectiveLimit(s.TimeLimit, s.Partition)
	if s.TimeMin > 0 && (limit < 0 || s.TimeMin < limit) {
		limit = s.TimeMin
	}
	begin := max(now, s.Begin)
	if at > begin && limit < at-begin { // no limit: it is ended then
		return nil
	}
	clock := func(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05") + " UTC" }
	if at <= begin {
		return refuse("ESLURM_INVALID_TIME_VALUE", "Invalid time specified",
			fmt.Sprintf("--deadline=%s is not after the earliest start, %s", clock(at), clock(begin)))
	}
	return refuse("ESLURM_INVALID_TIME_LIMIT", "Requested time limit is invalid (missing or exceeds some limit)",
		fmt.Sprintf("a time limit of %s does not fit before --deadline=%s: from the earliest start, %s, there are %s; ask for less with --time or --time-min",
			job.FormatDuration(limit), clock(at), clock(begin), job.FormatDuration(at-begin)))
}
