package leader

import (
	"maps"
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
	running := map[timerKey]time.Time{}
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		view := l.Log.View()
		due := l.dueTimers(view, running)
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
		if now := l.instant(); now.Sub(purged) >= purgeInterval {
			purged = now
			if cmd := l.purge(t, view); cmd != nil {
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

// dueTimers lists the timers whose moment has come. running holds since which instant this term has
// known each run that has a limit: a limit is elapsed time, and neither a start that an earlier leader
// wrote down nor a wall clock that was set since says how much has elapsed. The node's shepherd keeps
// the limit exactly; what is done here is for one that does not, and comes late after a failover.
func (l *Leader) dueTimers(view state.Viewer, running map[timerKey]time.Time) []timerKey {
	now := l.instant()
	cfg := view.Config()
	var due []timerKey
	known := make(map[timerKey]time.Time, len(running))
	for j := range view.Active() {
		if j.State != job.Running || j.Kill != job.WhyNone || j.TimeLimit <= 0 || j.Start <= 0 {
			continue
		}
		k := timerKey{j.ID, j.Run, "time_limit"}
		since, ok := running[k]
		if !ok {
			since = now
		}
		known[k] = since
		limit := time.Duration(j.TimeLimit+cfg.OverTimeLimit+cfg.KillWait) * time.Millisecond
		if now.Sub(since) >= limit+limitMargin {
			due = append(due, k)
		}
	}
	clear(running)
	maps.Copy(running, known)
	return due
}

// purge gives the command that lets old ended records go, nil when there are none.
func (l *Leader) purge(t *term, view state.Viewer) *logpb.Command {
	cfg := l.Config()
	now := l.steady(t)
	before := now.Add(-cfg.MinJobAge).UnixMilli()
	all, pending, running := view.Counts()
	if all-pending-running <= int(cfg.MaxEndedJobs) && !anyEndedBefore(view, before) && !staleBlobs(view, now) {
		return nil
	}
	return &logpb.Command{Of: &logpb.Command_Purge{Purge: &logpb.Purge{EndedBeforeMs: before, Keep: cfg.MaxEndedJobs, Max: maxPurge}}}
}

// steady is a wall clock that does not jump: what the state's clock showed when the term began, and
// what has elapsed since. A wall clock that is set forward lets no record go before its time; that the
// time in which nothing was put into the log before the term is left out only keeps records longer.
func (l *Leader) steady(t *term) time.Time {
	return time.UnixMilli(min(t.since, l.Now().UnixMilli())).Add(l.instant().Sub(t.began))
}

// staleBlobs tells whether there are blobs that no job has referred to, or join tokens that ended, for
// so long that a purge takes them.
func staleBlobs(view state.Viewer, now time.Time) bool {
	v, ok := view.(interface {
		StaleBlobs(now int64) bool
		StaleTokens(now int64) bool
	})
	return ok && (v.StaleBlobs(now.UnixMilli()) || v.StaleTokens(now.UnixMilli()))
}

func anyEndedBefore(view state.Viewer, before int64) bool {
	for j := range view.Jobs() {
		if j.State.Ended() && j.Flags&job.Completing == 0 && j.End > 0 && j.End < before {
			return true
		}
	}
	return false
}
