package state_test

import (
	"fmt"
	"strings"
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

// TestSingletonOfRenamed: a singleton waits for a name, whoever stops having it.
func TestSingletonOfRenamed(t *testing.T) {
	w := newWorld(t)
	a := w.run(job.Spec{Name: "x"})
	b := w.submit(job.Spec{Name: "x", Dependency: "singleton"})
	c := w.submit(job.Spec{Name: "x", Dependency: "singleton"})
	if r := w.update(root, a, "JobName", "y"); r != nil {
		t.Fatal(r)
	}
	wantReason(w, b, job.ReasonNone)
	wantReason(w, c, job.ReasonDependency)
	if r := w.update(root, b, "JobName", "y"); r != nil {
		t.Fatal(r)
	}
	wantReason(w, c, job.ReasonNone)
}

func TestCircularDependencies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		second job.Spec // after job 1
		third  job.Spec
		of     job.Ref
		dep    string
		circle bool
	}{
		{"of two", job.Spec{Dependency: "afterok:1"}, job.Spec{}, job.Ref{ID: 1}, "afterany:2", true},
		{"of three", job.Spec{Dependency: "afterok:1"}, job.Spec{Dependency: "after:2"}, job.Ref{ID: 1}, "afterok:3", true},
		{"by a name", job.Spec{Name: "x", Dependency: "singleton"}, job.Spec{Dependency: "afterok:2"}, job.Ref{ID: 1}, "afterany:3", true},
		{"a chain", job.Spec{Dependency: "afterok:1"}, job.Spec{}, job.Ref{ID: 3}, "afterok:2", false},
		{"once more", job.Spec{Dependency: "afterok:1"}, job.Spec{}, job.Ref{ID: 2}, "afterany:1", false},
		{"of an array", job.Spec{Array: "0-3"}, job.Spec{Dependency: "afterok:2"}, job.Ref{ID: 2}, "afterok:3", true},
		{"of a task", job.Spec{Array: "0-3"}, job.Spec{Dependency: "afterok:2_1"}, job.Ref{ID: 2}, "afterok:3", true},
		{"of the other tasks", job.Spec{Array: "0-3"}, job.Spec{Dependency: "afterok:2_1"}, job.Ref{ID: 2, Tasks: job.NewSet(2, 3)}, "afterok:3", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.submit(job.Spec{Name: "x"})
			w.submit(tt.second)
			w.submit(tt.third)
			var r *state.Refusal
			w.do(func(tx *state.Tx) {
				r = tx.UpdateJob(&state.JobUpdate{Job: tt.of, Set: map[string]string{"Dependency": tt.dep}, Caller: root})[0].Refused
			})
			if !tt.circle {
				if r != nil {
					t.Errorf("refused: %+v", r)
				}
				return
			}
			wantRefusal(t, r, "ESLURM_CIRCULAR_DEPENDENCY", "waits for job")
		})
	}
}

// TestManyDependents: what waits for many jobs is not looked at whole for each that ends, and there
// are limits to how much may wait.
func TestManyDependents(t *testing.T) {
	w := &quiet{newWorld(t)}
	const jobs, ids = 1000, 200
	var list []string
	for range ids {
		list = append(list, fmt.Sprint(w.submit(job.Spec{})))
	}
	var last uint32
	for i := range jobs { // each in an order of its own
		mine := append(append([]string(nil), list[i%ids:]...), list[:i%ids]...)
		last = w.submit(job.Spec{Dependency: "afterany:" + strings.Join(mine, ":")})
	}
	for i := range ids {
		if w.job(last).Dep != state.DepWaits {
			t.Fatalf("met after %d of %d", i, ids)
		}
		w.cancel(root, job.Ref{ID: uint32(i + 1)})
	}
	if w.job(last).Dep != state.DepMet {
		t.Fatal("not met at the end")
	}
	if err := w.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// quiet is a world that does not check after each entry.
type quiet struct{ *world }

func (w *quiet) apply(f func(*state.Tx)) {
	w.now += 1000
	w.index++
	w.s.Apply(w.index, w.now, f)
}

func (w *quiet) submit(s job.Spec) (id uint32) {
	w.apply(func(tx *state.Tx) {
		var r *state.Refusal
		if id, _, r = tx.Submit("", nil, &s); r != nil {
			w.Fatalf("%+v", r)
		}
	})
	return id
}

func (w *quiet) cancel(c state.Caller, refs ...job.Ref) {
	w.apply(func(tx *state.Tx) { tx.Cancel(&state.Cancel{Jobs: refs, Caller: c}) })
}

func TestDependencyLimits(t *testing.T) {
	w := &quiet{newWorld(t)}
	first := w.submit(job.Spec{})
	for range state.MaxDependents {
		w.submit(job.Spec{Dependency: fmt.Sprint("afterok:", first)})
	}
	try := func(s job.Spec) (r *state.Refusal) {
		w.apply(func(tx *state.Tx) { _, _, r = tx.Submit("", nil, &s) })
		return r
	}
	wantRefusal(t, try(job.Spec{Dependency: fmt.Sprint("afterok:", first)}), "ESLURM_DEPENDENCY", "MaxDependents")
	if r := w.update(root, first+1, "Dependency", fmt.Sprint("afterany:", first)); r != nil {
		t.Errorf("one that waits already: %+v", r)
	}
	second := w.submit(job.Spec{})
	many := "afterok" + strings.Repeat(fmt.Sprint(":", second), job.MaxDependencies)
	for range (state.MaxUserDependencies - state.MaxDependents) / job.MaxDependencies {
		w.submit(job.Spec{Dependency: many})
	}
	wantRefusal(t, try(job.Spec{Dependency: many}), "ESLURM_DEPENDENCY", "MaxUserDependencies")
	if r := try(job.Spec{Dependency: many, UID: 7}); r != nil {
		t.Errorf("another user: %+v", r)
	}
}

// TestTasksWaitForOneTask: tasks that all wait for one task of another array, named by its number, start
// when it has ended, whatever their own numbers are. They waited for ever: of a change of task 1 only their
// own task 1 was told. The first release goes on so until all know better, and then they are looked at again.
func TestTasksWaitForOneTask(t *testing.T) {
	for _, dep := range []string{"aftercorr:1_1", "aftercorr:2,afterany:1_1", "aftercorr:2,afterok:1_1"} {
		for _, late := range []bool{false, true} {
			w := newWorld(t)
			raise := func() { w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureMembers) }) }
			if !late {
				raise()
			}
			w.submit(job.Spec{Array: "0-1"})
			two := w.submit(job.Spec{Array: "5-7"})
			id := w.submit(job.Spec{Array: "5-7", Dependency: dep})
			for _, task := range []int64{5, 6, 7, 5, 6} { // the tasks of the second array have ended before
				if task = min(task, 7); w.s.View().ArrayTask(two, task) == nil {
					w.plan(w.begin(two, task, alloc("n1", 1)))
					w.launched(w.s.View().ArrayTask(two, task).ID, job.CauseNone, true)
					w.report(w.s.View().ArrayTask(two, task).ID)
				}
			}
			w.plan(w.begin(1, 1, alloc("n1", 1)))
			one := w.s.View().ArrayTask(1, 1).ID
			w.launched(one, job.CauseNone, true)
			w.report(one)
			if late {
				raise()
			}
			waits := 0
			for _, j := range append(w.s.View().ArrayTasks(id), w.s.View().Job(id)) {
				if j.Dep != state.DepMet {
					waits++
				}
			}
			if waits > 0 {
				t.Errorf("%s (level raised later: %t): %d records wait still", dep, late, waits)
			}
		}
	}
}

// TestRequeuedHearsOfItsDependency: what a cancelled job waited for may end before the job is queued again.
// It waited for ever then. Nor may it come to wait for a job that waits for it by now.
func TestRequeuedHearsOfItsDependency(t *testing.T) {
	w := newWorld(t)
	w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureMembers) })
	one := w.submit(job.Spec{})
	id := w.submit(job.Spec{Dependency: fmt.Sprintf("afterany:%d", one)})
	w.cancel(root, job.Ref{ID: id})
	w.cancel(root, job.Ref{ID: one})
	if r := w.control(state.OpRequeue, root, id); r != nil || w.job(id).Dep != state.DepMet {
		t.Fatalf("%+v, dependency %d", r, w.job(id).Dep)
	}

	one = w.submit(job.Spec{})
	id = w.submit(job.Spec{Dependency: fmt.Sprintf("afterok:%d", one)})
	w.cancel(root, job.Ref{ID: id})
	if r := w.update(root, one, "Dependency", fmt.Sprintf("afternotok:%d?singleton", id)); r != nil {
		t.Fatalf("%+v", r)
	}
	behind := w.submit(job.Spec{Dependency: fmt.Sprintf("afterok:%d", id)})
	if w.job(behind).Dep != state.DepNever {
		t.Fatalf("dependency %d", w.job(behind).Dep)
	}
	if r := w.update(root, one, "Dependency", fmt.Sprintf("afterok:%d", behind)); r != nil {
		t.Fatalf("%+v", r)
	}
	wantRefusal(t, w.control(state.OpRequeue, root, id), "ESLURM_CIRCULAR_DEPENDENCY", "waits for")
}

// TestPartOfArrayWaitsForItself: tasks that were cut out of their array may not wait for the whole of it.
func TestPartOfArrayWaitsForItself(t *testing.T) {
	w := newWorld(t)
	w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureMembers) })
	id := w.submit(job.Spec{Array: "0-3"})
	w.control(state.OpHold, root, id, 2)
	part := w.s.View().ArrayTask(id, 2).ID
	if part == id {
		t.Fatal("the task was not cut out")
	}
	for _, dep := range []string{"after:1", "afterany:1_2", "afterok:1_1,afterany:1"} {
		wantRefusal(t, w.update(root, part, "Dependency", dep), "ESLURM_CIRCULAR_DEPENDENCY", "wait for itself")
	}
	if r := w.update(root, part, "Dependency", "afterany:1_1"); r != nil {
		t.Errorf("another task of the same array: %+v", r)
	}
}

// TestSingletonOfPart: a task that was cut out of its array came when the array did, whatever its new id: it does not
// wait for a later job of the same name that waits for it.
func TestSingletonOfPart(t *testing.T) {
	w := newWorld(t)
	first := w.submit(job.Spec{Name: "x"})
	array := w.submit(job.Spec{Name: "x", Array: "0-3", Dependency: "singleton"})
	later := w.submit(job.Spec{Name: "x", Dependency: fmt.Sprintf("afterany:%d_2", array)})
	w.control(state.OpHold, root, array, 2)
	part := w.s.View().ArrayTask(array, 2).ID
	if part < later {
		t.Fatalf("the task has id %d, the later job %d", part, later)
	}
	w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureSched) })
	w.cancel(root, job.Ref{ID: first})
	if got := w.job(part).Dep; got != state.DepMet {
		t.Errorf("the task stands with its dependency as %d, %d is met", got, state.DepMet)
	}
	if w.job(later).Dep != state.DepWaits {
		t.Error("the later job waits no more")
	}
}

// TestHetWaitsForItself: the components of a heterogeneous job start together, so the first may not wait for another of
// them, nor for a job that waits for one.
func TestHetWaitsForItself(t *testing.T) {
	w := newWorld(t)
	w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureSched) })
	var r *state.Refusal
	w.do(func(t *state.Tx) {
		_, _, r = t.SubmitHet("", nil, []*job.Spec{{Dependency: "afterany:2"}, {}})
	})
	wantRefusal(t, r, "ESLURM_CIRCULAR_DEPENDENCY", "wait for itself")
	id := w.het("", &job.Spec{}, &job.Spec{})
	behind := w.submit(job.Spec{Dependency: fmt.Sprintf("afterany:%d", id+1)})
	wantRefusal(t, w.update(root, id, "Dependency", fmt.Sprintf("afterany:%d", behind)), "ESLURM_CIRCULAR_DEPENDENCY", "waits for")
	one := w.submit(job.Spec{})
	if r := w.update(root, id, "Dependency", fmt.Sprintf("afterany:%d", one)); r != nil {
		t.Fatalf("%+v", r)
	}
	wantRefusal(t, w.update(root, one, "Dependency", fmt.Sprintf("afterany:%d", id+1)), "ESLURM_CIRCULAR_DEPENDENCY", "waits for")
}
