package state_test

import (
	"reflect"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// said is the report of a run's ordinary end on n1.
func said(id uint32, change ...func(*state.Reported)) *state.Reported {
	r := &state.Reported{JobID: id, Step: job.BatchStep, Node: "n1", End: 5}
	for _, f := range change {
		f(r)
	}
	return r
}

func TestForeseeIsWhatApplyGives(t *testing.T) {
	w := newWorld(t)
	array := w.submit(job.Spec{Array: "0-5%2"})
	if w.plan(w.begin(array, 0, alloc("n1", 1)), w.begin(array, 1, alloc("n1", 1))) != 2 {
		t.Fatal("starts not taken")
	}
	first := w.s.View().ArrayTask(array, 0).ID
	alone := w.run(job.Spec{})
	view := w.s.View()
	before, sched := *view.Node("n1"), *view.Sched()
	reports := []*state.Reported{said(first), said(alone, func(r *state.Reported) { r.Exit.Code = 3 }), said(9999), said(alone)}
	guess := view.Foresee(w.now+1000, reports)
	if got := view.Node("n1"); !reflect.DeepEqual(*got, before) || view.Job(alone).State != job.Running || w.s.View() != view {
		t.Errorf("looking ahead changed the view: %+v", got)
	}
	if !reflect.DeepEqual(view.Sched().Nodes, sched.Nodes) {
		t.Error("looking ahead changed the planner's snapshot")
	}
	w.do(func(tx *state.Tx) {
		for _, r := range reports {
			tx.Reported(r)
		}
	})
	real := w.s.View()
	if guess.Capacity() != real.Capacity() || guess.Capacity() == view.Capacity() {
		t.Errorf("capacity %d foreseen, %d came, %d was", guess.Capacity(), real.Capacity(), view.Capacity())
	}
	g, r := guess.Sched(), real.Sched()
	if !reflect.DeepEqual(g.Nodes, r.Nodes) || !reflect.DeepEqual(g.Running, r.Running) || !reflect.DeepEqual(g.Partitions, r.Partitions) {
		t.Errorf("the planner sees\n%+v, foreseen\n%+v", r, g)
	}
	if len(g.Classes) != len(r.Classes) {
		t.Fatalf("%d classes foreseen, %d came", len(g.Classes), len(r.Classes))
	}
	for i := range g.Classes {
		for a := range g.Classes[i].Waiting {
			for b := range r.Classes[i].Waiting {
				if a.JobID != b.JobID || a.Limit != b.Limit || a.Tasks.Len() != b.Tasks.Len() {
					t.Errorf("waiting %+v, foreseen %+v", b, a)
				}
				break
			}
			break
		}
	}
}

// What is not ordinary is left out: the capacity tells that the guess was short.
func TestForeseeLeavesOutWhatIsNotOrdinary(t *testing.T) {
	for name, change := range map[string]func(*state.Reported){
		"lost":         func(r *state.Reported) { r.Lost = true },
		"node's fault": func(r *state.Reported) { r.Error, r.Cause = "x", job.CauseNode },
		"killed":       func(r *state.Reported) { r.KilledFor = job.WhyPreempt },
		"epilog":       func(r *state.Reported) { r.EpilogError = "x" },
		"output":       func(r *state.Reported) { r.StdoutError = "x" },
		"step":         func(r *state.Reported) { r.Step = 0 },
		"other run":    func(r *state.Reported) { r.Run = 1 },
		"other node":   func(r *state.Reported) { r.Node = "n2" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.run(job.Spec{})
			view := w.s.View()
			if guess := view.Foresee(w.now, []*state.Reported{said(id, change)}); guess.Capacity() != view.Capacity() || guess.Node("n1").CPUsAlloc != 1 {
				t.Errorf("taken as an ordinary end: %+v", guess.Node("n1"))
			}
			if err := w.s.Check(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		w := newWorld(t)
		id := w.run(job.Spec{})
		w.cancel(root, job.Ref{ID: id})
		view := w.s.View()
		if guess := view.Foresee(w.now, []*state.Reported{said(id)}); guess.Node("n1").CPUsAlloc != 1 {
			t.Errorf("taken as an ordinary end: %+v", guess.Node("n1"))
		}
	})
	t.Run("somebody waits for it", func(t *testing.T) {
		w := newWorld(t)
		id := w.run(job.Spec{})
		w.submit(job.Spec{Dependency: "afterok:1"})
		guess := w.s.View().Foresee(w.now, []*state.Reported{said(id)})
		w.do(func(tx *state.Tx) { tx.Reported(said(id)) })
		if guess.Node("n1").CPUsAlloc != 0 || guess.Capacity() == w.s.View().Capacity() {
			t.Errorf("capacity %d is that of the state, where a job was woken", guess.Capacity())
		}
	})
}
