package leader

import (
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// dueAgain is the pause before a moment is proposed again that the state has not taken.
const dueAgain = time.Second

// usualCalcPeriod is PriorityCalcPeriod where none is known.
const usualCalcPeriod = 5 * time.Minute

// timed is a view that knows the moments that are to be put into the log; see state.View.
type timed interface {
	Timers(now int64) []state.JobTimer
	NextTimer() int64
	NextMove() int64
	UsageTime() int64
}

// dueLoop puts moments into the log when they come: deadlines and ends of grace, begins and ends of
// reservations, and every PriorityCalcPeriod the time up to which usage is counted. What came while nobody led
// comes when the term begins.
func (l *Leader) dueLoop(t *term) {
	d := &dueMoments{l: l}
	wake := time.NewTimer(0)
	defer wake.Stop()
	for t.ctx.Err() == nil {
		view := l.Log.View()
		changed := l.Log.Changed(view.Index())
		cmds, wait := d.look(view)
		if len(cmds) > 0 {
			if _, err := l.propose(t.ctx, cmds...); err != nil {
				l.pause(t.ctx, retryDelay)
			}
			continue
		}
		wake.Reset(wait)
		select {
		case <-t.ctx.Done():
		case <-changed:
		case <-wake.C:
		}
	}
}

// dueMoments is dueLoop's own.
type dueMoments struct {
	l     *Leader
	clock replica.Clock // as the entries' is
	next  time.Time     // instant before which nothing is proposed: the state may not have taken the last
}

// look gives what is to be put into the log now, or else how long nothing is unless something changes.
func (d *dueMoments) look(view state.Viewer) (cmds []*logpb.Command, wait time.Duration) {
	v, ok := view.(timed)
	if !ok || view.Feature() < state.FeatureSched || view.Config() == nil {
		return nil, time.Hour
	}
	began, now := d.l.instant(), d.clock.At(d.l.Now().UnixMilli(), view.Time(), d.l.Elapsed())
	first := v.NextTimer()
	period := view.Config().Sched.CalcPeriod
	if period <= 0 { // the level has risen just now: the configuration has yet to come again
		period = usualCalcPeriod.Milliseconds()
	}
	tick := v.UsageTime() + max(period, time.Second.Milliseconds())
	if move := v.NextMove(); move > 0 && move > view.Time() {
		tick = min(tick, move)
	}
	if first == 0 || tick < first {
		first = tick
	}
	if left := first - now; left > 0 { // by the wall clock, which may be set meanwhile
		return nil, min(lookAtClock, time.Duration(left)*time.Millisecond)
	}
	if left := d.next.Sub(began); left > 0 {
		return nil, left
	}
	for _, m := range v.Timers(now) {
		if len(cmds) == maxTimers {
			break
		}
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: m.JobID, Run: m.Run, What: m.What}}})
	}
	if len(cmds) < maxTimers {
		d.next = began.Add(dueAgain)
	}
	if tick <= now {
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_UsageTick{UsageTick: &logpb.UsageTick{}}})
	}
	return cmds, dueAgain
}
