package leader

import (
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Intervals and margins of the timers.
const (
	timerInterval = 5 * time.Second
	purgeInterval = time.Minute
	maxPurge      = 10000 // records that one Purge takes
	// limitMargin is how long after limit and KillWait the controller acts itself: the node's
	// shepherd keeps the time, this is for one that does not.
	limitMargin = 30 * time.Second
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
		t.leased.Store(leased(view))
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
		if l.leaseOver(t, view, j, now) {
			due = append(due, timerKey{j.ID, j.Run, "lease_over"})
		}
	}
	return due
}

// purge gives the command that lets old ended records go, nil when there are none.
func (l *Leader) purge(view state.Viewer) *logpb.Command {
	cfg := l.Config()
	before := l.Now().Add(-cfg.MinJobAge).UnixMilli()
	all, pending, running := view.Counts()
	if all-pending-running <= int(cfg.MaxEndedJobs) && !anyEndedBefore(view, before) && !staleBlobs(view, l.Now()) {
		return nil
	}
	return &logpb.Command{Of: &logpb.Command_Purge{Purge: &logpb.Purge{EndedBeforeMs: before, Keep: cfg.MaxEndedJobs, Max: maxPurge}}}
}

// staleBlobs tells whether there are blobs that no job has referred to for so long that a purge
// takes them.
func staleBlobs(view state.Viewer, now time.Time) bool {
	v, ok := view.(interface{ StaleBlobs(now int64) bool })
	return ok && v.StaleBlobs(now.UnixMilli())
}

func anyEndedBefore(view state.Viewer, before int64) bool {
	for j := range view.Jobs() {
		if j.State.Ended() && j.Flags&job.Completing == 0 && j.End > 0 && j.End < before {
			return true
		}
	}
	return false
}
