package leader

import (
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// Intervals and margins of the timers.
const (
	timerInterval = 5 * time.Second
	purgeInterval = time.Minute
	maxPurge      = 10000 // records that one Purge takes
	// limitMargin is how long after limit and KillWait the controller acts itself: the node's
	// shepherd keeps the time, this is for one that does not.
	limitMargin = 30 * time.Second
	// leaseSkew is what clocks may differ by over one lease, and more.
	leaseSkew = 10 * time.Second
	// maxTimers bounds the timers of one proposal.
	maxTimers = 256
)

// timerKey is a timer that has been proposed in this term.
type timerKey struct {
	job, run uint32
	what     string
}

// timerLoop proposes the moments of jobs' lives that nobody else tells, and purges.
func (l *Leader) timerLoop(t *term) {
	tick := time.NewTicker(timerInterval)
	defer tick.Stop()
	proposed := map[timerKey]bool{}
	purged := t.began
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		view := l.Log.View()
		due := l.dueTimers(t, view)
		seen := make(map[timerKey]bool, len(due))
		var cmds []*logpb.Command
		for _, k := range due {
			seen[k] = proposed[k]
			if !proposed[k] && len(cmds) < maxTimers {
				seen[k] = true
				cmds = append(cmds, &logpb.Command{Of: &logpb.Command_JobTimer{
					JobTimer: &logpb.JobTimer{JobId: k.job, Run: k.run, What: k.what}}})
			}
		}
		proposed = seen
		if now := l.Now(); now.Sub(purged) >= purgeInterval {
			purged = now
			if cmd := l.purge(view); cmd != nil {
				cmds = append(cmds, cmd)
			}
		}
		if len(cmds) > 0 {
			if _, err := l.propose(t.ctx, cmds...); err != nil {
				proposed = map[timerKey]bool{}
			}
		}
	}
}

// dueTimers lists the timers whose moment has come.
func (l *Leader) dueTimers(t *term, view state.Viewer) []timerKey {
	now := l.Now()
	cfg := view.Config()
	var due []timerKey
	for j := range view.Active() {
		if j.State == job.Running && j.Kill == job.WhyNone && j.TimeLimit > 0 && j.Start > 0 {
			end := j.Start + j.TimeLimit + cfg.OverTimeLimit + cfg.KillWait + limitMargin.Milliseconds()
			if now.UnixMilli() >= end {
				due = append(due, timerKey{j.ID, j.Run, "time_limit"})
			}
		}
		if lease := l.lease(view, j); lease > 0 && l.leaseOver(t, view, j, now, lease) {
			due = append(due, timerKey{j.ID, j.Run, "lease_over"})
		}
	}
	return due
}

// leaseOver tells whether the run's shepherd must have ended it by now: its node is silent, and no
// renewal that a leader gave can have kept it for longer. Earlier leaders' renewals were given
// before this term began.
func (l *Leader) leaseOver(t *term, view state.Viewer, j *state.Job, now time.Time, lease time.Duration) bool {
	silent := false
	var last time.Time
	for i := range j.Allocs {
		if i < len(j.Done) && j.Done[i] {
			continue
		}
		n := view.Node(j.Allocs[i].Node)
		if n == nil || n.State != node.Down && n.Flags&node.NotResponding == 0 {
			continue
		}
		silent = true
		h := t.health(n.Name)
		h.mu.Lock()
		if h.renewed.After(last) {
			last = h.renewed
		}
		h.mu.Unlock()
	}
	if last.Before(t.began) {
		last = t.began
	}
	return silent && now.Sub(last) >= lease+leaseSkew
}

// lease is how long a run outlives the last word of a leader; 0 = it is never ended by that.
func (l *Leader) lease(view state.Viewer, j *state.Job) time.Duration {
	if j.Spec.Requeue < 0 || j.Spec.Requeue == 0 && !view.Config().JobRequeue {
		return 0
	}
	return l.Config().JobLease
}

// purge gives the command that lets old ended records go, nil when there are none.
func (l *Leader) purge(view state.Viewer) *logpb.Command {
	cfg := l.Config()
	before := l.Now().Add(-cfg.MinJobAge).UnixMilli()
	all, pending, running := view.Counts()
	if all-pending-running <= int(cfg.MaxEndedJobs) && !anyEndedBefore(view, before) {
		return nil
	}
	return &logpb.Command{Of: &logpb.Command_Purge{Purge: &logpb.Purge{EndedBeforeMs: before, Keep: cfg.MaxEndedJobs, Max: maxPurge}}}
}

func anyEndedBefore(view state.Viewer, before int64) bool {
	for j := range view.Jobs() {
		if j.State.Ended() && j.Flags&job.Completing == 0 && j.End > 0 && j.End < before {
			return true
		}
	}
	return false
}
