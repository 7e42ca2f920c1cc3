package replay

import (
	"container/heap"
	"errors"
	"fmt"
	"math"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/trace"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
)

// Planner is what decides. The controller's is sched.NewPlanner.
type Planner interface {
	Plan(s *sched.Snapshot, now int64, pol sched.Policy) *sched.Decision
}

// Controller is the planner of the controller.
func Controller() Planner { return sched.NewPlanner() }

// MaxPasses bounds the plans at one moment that start something without an event between them.
const MaxPasses = 100

// ending is a run's end to come.
type ending struct {
	at  int64
	seq int // in the order of starts
	job int
}

type endings []ending

func (e endings) Len() int      { return len(e) }
func (e endings) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e endings) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e *endings) Push(x any) { *e = append(*e, x.(ending)) }
func (e *endings) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// engine is one replay.
type engine struct {
	w       *world
	pol     *Policy
	planner Planner
	ends    endings
	next    int // first job that is not submitted
	now     int64
	wake    int64
	starts  int
	plans   int
	samples []Sample
}

// Run replays a trace under a policy. An error means that the planner broke its word (gave something twice, or left
// jobs waiting on an empty machine), never that the policy is a poor one.
func Run(t *trace.Trace, pol *Policy, p Planner) (*Result, error) {
	if len(t.Jobs) == 0 {
		return nil, errors.New("the trace holds no jobs")
	}
	if pol.Perfect {
		t = t.Perfect()
	}
	e := &engine{w: newWorld(t, pol.Priority), pol: pol, planner: p}
	for e.next < len(t.Jobs) || len(e.ends) > 0 || e.w.queued > 0 {
		if !e.advance() {
			return nil, fmt.Errorf("%d jobs wait at %d s and nothing will ever happen again: the first is of class %s", e.w.queued, e.now/1000, e.w.classes[0].Key)
		}
		if err := e.pass(); err != nil {
			return nil, fmt.Errorf("at %d s: %w", e.now/1000, err)
		}
	}
	return e.result(), nil
}

// advance goes on to the next event: a submission, the end of a run, or a time at which the planner wants to be asked.
// Of one moment the submissions come first; all events of a moment are one if the policy does not want single ones.
func (e *engine) advance() bool {
	submit, end := int64(math.MaxInt64), int64(math.MaxInt64)
	if e.next < len(e.w.jobs) {
		submit = e.w.trace.Jobs[e.next].Submit
	}
	if len(e.ends) > 0 {
		end = e.ends[0].at
	}
	at := min(submit, end)
	if e.wake > e.now && e.wake < at {
		e.now = e.wake
		return true
	}
	if at == math.MaxInt64 {
		return false
	}
	if at > e.now {
		e.now = at
		if e.pol.Expired {
			e.expire()
		}
	}
	if e.pol.Single {
		if submit == at {
			e.w.submit(e.next)
			e.next++
		} else {
			e.end()
		}
		return true
	}
	for e.next < len(e.w.jobs) && e.w.trace.Jobs[e.next].Submit == at {
		e.w.submit(e.next)
		e.next++
	}
	for len(e.ends) > 0 && e.ends[0].at == at {
		e.end()
	}
	return true
}

// expire gives back what runs hold whose limit ends now, before the word of their end has come.
func (e *engine) expire() {
	for _, r := range e.w.running {
		if r.End <= e.now {
			e.w.release(int(r.JobID - 1))
		}
	}
}

func (e *engine) end() {
	x := heap.Pop(&e.ends).(ending)
	e.w.release(x.job)
	e.w.ended(x.job)
}

// pass asks the planner and does what it says, again as long as it stopped at the most starts of one plan.
func (e *engine) pass() error {
	for range MaxPasses {
		d := e.planner.Plan(e.w.snapshot(), e.now, e.pol.Sched)
		e.plans++
		if len(d.Evicts) > 0 {
			return fmt.Errorf("the planner wants to evict job %d, and nothing here may be preempted", d.Evicts[0].JobID)
		}
		for i := range d.Promises {
			if err := e.w.promise(&d.Promises[i]); err != nil {
				return err
			}
		}
		for i := range d.Starts {
			s := &d.Starts[i]
			if err := e.w.start(s, e.now); err != nil {
				return err
			}
			heap.Push(&e.ends, ending{at: e.w.jobs[s.JobID-1].end, seq: e.starts, job: int(s.JobID - 1)})
			e.starts++
		}
		e.wake = 0
		if e.pol.Sched.Promises > 0 {
			e.wake = d.Wake
		}
		if e.pol.Sched.MaxStarts == 0 || len(d.Starts) < e.pol.Sched.MaxStarts {
			e.sample()
			return nil
		}
	}
	return fmt.Errorf("%d plans at one moment, and still more to start", MaxPasses)
}

// sample notes queue and use at this moment.
func (e *engine) sample() {
	s := Sample{At: e.now, Queued: e.w.queued, Running: len(e.w.running), CPUs: e.w.machine.CPUs, GPUs: e.w.machine.GPUs}
	if k := len(e.samples); k > 0 && e.samples[k-1].At == e.now {
		e.samples[k-1] = s
		return
	}
	e.samples = append(e.samples, s)
}
