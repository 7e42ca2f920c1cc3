package leader

import (
	"context"
	"slices"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// maxFlights is how many proposals of the plan loop may be on their way into the log at once. The disk, or
// the majority, is waited for by the next plan but these; more of them would only make what they rest on
// older.
const maxFlights = 4

// flight is one proposal of the plan loop on its way into the log.
type flight struct {
	said    []*offer          // what agents said in it
	reports []*state.Reported // of these, what frees resources
	d       *sched.Decision   // the plan in it; nil: there is none
	before  state.Viewer      // the state as it was
	guess   state.Viewer      // what was planned on: as it will be when all that was on its way, and reports, are in it
	version uint64            // of the state when it has been applied, if nothing else comes

	results []fsm.Result
	err     error
}

// pipeline is the proposals that are on their way. They go into the log in the order in which they are sent.
// A plan is made on the state as it will be when those before are applied; that guess is made anew each time
// from the state as it is, so that a failure leaves nothing behind. As each part of a plan is checked when
// it is applied, a wrong guess costs time only.
//
// Invariant: no start is proposed while the same start is on its way. What foresee cannot have started by
// the plans on their way would be planned again, so then they are let land first (drain).
type pipeline struct {
	log     replica.Log
	ordered orderedLog // nil: the log keeps no order between proposals, so that one is on its way at a time
	flights []*flight  // in their order
	landed  chan *flight
	drain   bool // no plan is made until all have landed
}

// orderedLog is a log that takes proposals in the order in which they are begun.
type orderedLog interface {
	// Begin puts commands behind all that was begun before and gives what waits for their outcome, as
	// Propose does. It must be called once.
	Begin(ctx context.Context, cmds ...*logpb.Command) func() ([]fsm.Result, error)
}

func newPipeline(log replica.Log) pipeline {
	ordered, _ := log.(orderedLog)
	return pipeline{log: log, ordered: ordered, landed: make(chan *flight, maxFlights)}
}

// full tells whether nothing more may be sent before something has landed.
func (q *pipeline) full() bool {
	most := maxFlights
	if q.ordered == nil {
		most = 1
	}
	return len(q.flights) >= most
}

// send proposes a flight's commands. Its offers are answered, and the flight lands, when the outcome is known.
func (q *pipeline) send(ctx context.Context, f *flight, cmds []*logpb.Command) {
	f.version = f.before.Version() + 1
	if n := len(q.flights); n > 0 {
		f.version = max(f.version, q.flights[n-1].version+1)
	}
	q.flights = append(q.flights, f)
	wait := func() ([]fsm.Result, error) { return q.log.Propose(ctx, cmds...) }
	if q.ordered != nil {
		wait = q.ordered.Begin(ctx, cmds...)
	}
	go func() {
		f.results, f.err = wait()
		settle(f.said, f.err)
		q.landed <- f // there is room for all of them
	}()
}

// land takes a flight that has come down out of the list. last tells that none is left, with which drain ends.
func (q *pipeline) land(f *flight) (last bool) {
	if i := slices.Index(q.flights, f); i >= 0 {
		q.flights = slices.Delete(q.flights, i, i+1)
	}
	if last = len(q.flights) == 0; last {
		q.drain = false
	}
	return last
}

// foresee gives the view to plan on: the state as it will be when what is on its way, and these reports, are
// applied, as far as that is plain. It is nil when a plan on its way will not be taken as it was meant.
func (q *pipeline) foresee(view state.Viewer, now int64, reports []*state.Reported) state.Viewer {
	s, ok := view.(foreseer)
	var plans []*sched.Decision
	var ended []*state.Reported
	for _, f := range q.flights {
		ended = append(ended, f.reports...)
		if f.d != nil {
			plans = append(plans, f.d)
		}
	}
	ended = append(ended, reports...)
	if !ok || len(ended)+len(plans) == 0 {
		return view
	}
	guess := s.ForeseePlan(now, ended, plans)
	for _, d := range plans {
		for i := range d.Starts {
			if waits(guess, &d.Starts[i]) {
				return nil
			}
		}
	}
	return guess
}

// waits tells whether a start has not been made in a view, and still could be.
func waits(view state.Viewer, s *sched.Start) bool {
	j := view.Job(s.JobID)
	switch {
	case j == nil || j.Run != s.Run || s.Revision != 0 && j.Revision != s.Revision:
		return false
	case j.Waiting != nil:
		return s.Task >= 0 && j.Waiting.Contains(uint32(s.Task))
	}
	return s.Task < 0 && len(j.Allocs) == 0 && !j.State.Ended()
}
