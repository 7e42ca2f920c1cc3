package leader

import (
	"context"
	"slices"
	"sync"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// intake is what agents have said on its way to the plan loop, which puts it into the log together
// with the plan that it makes possible: a slot that becomes free and the job that takes it are one
// entry. While plans take long it is shut, and sessions propose by themselves.
type intake struct {
	wake chan struct{} // 1 when something was added

	mu      sync.Mutex
	waiting []*offer
	shut    bool
	passed  bool // a session has put something into the log by itself
}

// offer is what one session wants in the log, in its order.
type offer struct {
	cmds []*logpb.Command
	done chan error // one answer; nil: applied
}

func newIntake() *intake { return &intake{wake: make(chan struct{}, 1)} }

// open says whether the plan loop takes offers.
func (q *intake) open(yes bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shut = !yes
}

// add queues an offer; false: the session has to propose by itself.
func (q *intake) add(o *offer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shut {
		return false
	}
	q.waiting = append(q.waiting, o)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// pass notes that a session has put something into the log by itself.
func (q *intake) pass() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.passed = true
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take gives what waits, up to one entry's worth of commands; what is left wakes the loop again.
// passed tells whether sessions have put something into the log by themselves.
func (q *intake) take() (said []*offer, passed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	passed, q.passed = q.passed, false
	n, cmds := 0, 0
	for n < len(q.waiting) && (n == 0 || cmds+len(q.waiting[n].cmds) < replica.MaxEntryCommands) {
		cmds += len(q.waiting[n].cmds)
		n++
	}
	head := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil
	} else {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	return head, passed
}

// withdraw takes an offer back; false: it has been taken.
func (q *intake) withdraw(o *offer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, o)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return true
}

// settle answers the offers of one proposal.
func settle(said []*offer, err error) {
	for _, o := range said {
		o.done <- err
	}
}

func commandsOf(said []*offer) (cmds []*logpb.Command) {
	for _, o := range said {
		cmds = append(cmds, o.cmds...)
	}
	return cmds
}

// offer puts commands into the log, through the plan loop where that takes them. When it returns nothing of
// them waits here any more: they are in the log, on their way into it, or dropped.
func (l *Leader) offer(ctx context.Context, t *term, cmds []*logpb.Command) error {
	o := &offer{cmds: cmds, done: make(chan error, 1)}
	if !t.intake.add(o) {
		_, err := l.propose(ctx, cmds...)
		t.intake.pass()
		return err
	}
	select {
	case err := <-o.done:
		return err
	case <-t.ctx.Done():
	case <-ctx.Done():
		if t.intake.withdraw(o) {
			return ctx.Err()
		}
		select { // it is in a round of the plan loop's
		case err := <-o.done:
			return err
		case <-t.ctx.Done():
		}
	}
	select {
	case err := <-o.done:
		return err
	default:
		return replica.ErrUnknown
	}
}

// foreseer is a view that can tell what reports and plans would make of it; see state.View.
type foreseer interface {
	Capacity() uint64
	ForeseePlan(now int64, reports []*state.Reported, plans []*sched.Decision) *state.View
}

// reportsOf gives what agents said of ends.
func reportsOf(said []*offer) (reports []*state.Reported) {
	for _, o := range said {
		for _, c := range o.cmds {
			if r := c.GetReported(); r != nil {
				reports = append(reports, reportedFromLog(r))
			}
		}
	}
	return reports
}

// capacityOf is the view's version of what could let a waiting job start.
func capacityOf(view state.Viewer) uint64 {
	if f, ok := view.(foreseer); ok {
		return f.Capacity()
	}
	return view.Sched().Capacity
}

// reportedFromLog gives of a report what decides who may start after it.
func reportedFromLog(r *logpb.Reported) *state.Reported {
	return &state.Reported{
		JobID: r.JobId, Run: r.Run, Step: r.Step, Node: r.Node, Exit: job.Exit{Code: r.ExitCode, Signal: r.Signal}, OOM: r.Oom,
		Start: r.StartMs, End: r.EndMs, KilledFor: job.Why(r.KilledFor), Error: r.Error, Cause: job.Cause(r.Cause),
		StdoutError: r.StdoutError, EpilogError: r.EpilogError, Lost: r.Lost,
	}
}
