package state_test

import (
	"fmt"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// TestTasksOfArrayAreNotLost: a task that is judged again when what it failed on has been purged
// stays where it is.
func TestTasksOfArrayAreNotLost(t *testing.T) {
	w := newWorld(t)
	a := w.submit(job.Spec{Array: "1-2"})
	b := w.run(job.Spec{})
	c := w.submit(job.Spec{Array: "1-2", Dependency: fmt.Sprintf("aftercorr:%d,afterok:%d", a, b)})
	w.report(b, func(r *state.Reported) { r.Exit.Code = 1 })
	wantReason(w, c, job.ReasonDependencyNever)
	w.now += 10_000
	w.do(func(t *state.Tx) { t.Purge(w.now, 0, 0) })
	if w.s.View().Job(b) != nil {
		t.Fatal("not purged")
	}
	w.plan(w.begin(a, 1, alloc("n1", 1)))
	first := w.s.View().ArrayTask(a, 1)
	w.launched(first.ID, job.CauseNone, true)
	w.report(first.ID)
	rec := w.job(c)
	if rec.Waiting == nil || rec.Waiting.Len() != 2 || rec.Dep != state.DepNever {
		t.Errorf("array %d holds tasks %v, dependency %d", c, rec.Waiting, rec.Dep)
	}
}

// TestTaskWakesDependents: who waits for one task hears of it also when that is its first record.
func TestTaskWakesDependents(t *testing.T) {
	w := newWorld(t)
	a := w.submit(job.Spec{Array: "0-3"})
	ended := w.submit(job.Spec{Dependency: fmt.Sprintf("afterany:%d_2", a)})
	started := w.submit(job.Spec{Dependency: fmt.Sprintf("after:%d_1", a)})
	w.cancel(root, job.Ref{ID: a, Tasks: job.NewSet(2)})
	if d := w.job(ended).Dep; d != state.DepMet {
		t.Errorf("after the cancelled task: %d", d)
	}
	w.plan(w.begin(a, 1, alloc("n1", 1)))
	if d := w.job(started).Dep; d != state.DepMet {
		t.Errorf("after the started task: %d", d)
	}
}
