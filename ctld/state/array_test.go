package state_test

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func TestArrayTasksGetRecords(t *testing.T) {
	w := newWorld(t)
	base := w.submit(job.Spec{Array: "0-2"})
	other := w.submit(job.Spec{})
	if j := w.job(base); j.ArrayID != base || j.ArrayTask != -1 || j.Waiting.String() != "0-2" || j.Name() != "1_[0-2]" {
		t.Fatalf("%+v", j)
	}
	if n := w.plan(w.begin(base, 1, alloc("n1", 1)), w.begin(base, 1, alloc("n1", 1)), w.begin(base, 7, alloc("n1", 1))); n != 1 {
		t.Fatalf("%d starts taken, want one of task 1", n)
	}
	one := w.s.View().ArrayTask(base, 1)
	if one == nil || one.ID != other+1 || one.ArrayID != base || one.State != job.Running || one.Spec != w.job(base).Spec {
		t.Fatalf("task 1: %+v", one)
	}
	if w.job(base).Waiting.String() != "0,2" {
		t.Fatalf("waiting: %s", w.job(base).Waiting)
	}
	w.plan(w.begin(base, 0, alloc("n1", 1)), w.begin(base, 2, alloc("n1", 1)))
	last := w.s.View().ArrayTask(base, 2)
	if last == nil || last.ID != base || last.Waiting != nil || last.Name() != "1_2" {
		t.Fatalf("the last task keeps the base id: %+v", last)
	}
	var ids []uint32
	for _, j := range w.s.View().ArrayTasks(base) {
		ids = append(ids, j.ID)
	}
	if len(ids) != 3 || ids[0] != base || ids[1] != 3 || ids[2] != 4 {
		t.Errorf("records %v", ids)
	}
	if results := w.cancel(root, job.Ref{ID: base}); len(results) != 1 || results[0].Refused != nil {
		t.Fatalf("%+v", results)
	}
	for _, id := range ids {
		w.is(id, job.Cancelled, "COMPLETING")
	}
}

func TestArrayLimit(t *testing.T) {
	w := newWorld(t)
	base := w.submit(job.Spec{Array: "1-5%2"})
	var starts = w.begin(base, 1, alloc("n1", 1))
	second, third := starts, starts
	second.Task, third.Task = 2, 3
	if n := w.plan(starts, second, third); n != 2 {
		t.Fatalf("%d tasks started at once, the limit is 2", n)
	}
	wantReason(w, base, job.ReasonArrayLimit)
	for _, c := range w.s.View().Sched().Classes {
		for x := range c.Waiting {
			if x.Limit != 0 || x.Blocked != job.ReasonArrayLimit {
				t.Errorf("%+v", x)
			}
		}
	}
	if r := w.update(alice, base, "ArrayTaskThrottle", "3"); r == nil {
		t.Fatal("alice changed root's job")
	}
	if r := w.update(root, base, "ArrayTaskThrottle", "3"); r != nil {
		t.Fatal(r)
	}
	if n := w.plan(third); n != 1 {
		t.Fatal("the raised limit has no effect")
	}
	w.report(w.s.View().ArrayTask(base, 1).ID)
	fourth := starts
	fourth.Task = 4
	if n := w.plan(fourth); n != 1 {
		t.Fatal("a freed place has no effect")
	}
}

func TestArrayParts(t *testing.T) {
	w := newWorld(t)
	base := w.submit(job.Spec{Array: "0-9"})
	part := func(tasks ...uint32) job.Ref { return job.Ref{ID: base, Tasks: job.NewSet(tasks...)} }
	w.plan(w.begin(base, 0, alloc("n1", 1)))
	if r := w.cancel(root, part(0, 1, 2)); r[0].Refused != nil || r[0].Job != "1_[0-2]" {
		t.Fatalf("%+v", r)
	}
	v := w.s.View()
	if j := v.ArrayTask(base, 0); j.State != job.Cancelled || j.Flags&job.Completing == 0 {
		t.Errorf("task 0: %s", j.State)
	}
	cut := v.ArrayTask(base, 2)
	if cut == nil || cut.State != job.Cancelled || cut.Waiting.String() != "1-2" || cut.ID == base {
		t.Fatalf("tasks 1-2: %+v", cut)
	}
	if w.job(base).Waiting.String() != "3-9" {
		t.Fatalf("waiting: %s", w.job(base).Waiting)
	}
	wantRefusal(t, w.cancel(root, part(1))[0].Refused, "ESLURM_ALREADY_DONE", "1_[1-2]")
	wantRefusal(t, w.cancel(root, part(77))[0].Refused, "ESLURM_INVALID_JOB_ID", "1_77")

	if r := w.control(state.OpHold, root, base, 3, 4); r != nil {
		t.Fatal(r)
	}
	held := w.s.View().ArrayTask(base, 3)
	if held == nil || held.Priority != 0 || held.Waiting.String() != "3-4" || w.job(base).Priority == 0 {
		t.Fatalf("held: %+v", held)
	}
	wantReason(w, held.ID, job.ReasonHeldAdmin)
	if r := w.control(state.OpRelease, root, base, 3); r != nil {
		t.Fatal(r)
	}
	if j := w.s.View().ArrayTask(base, 3); j.Priority == 0 || j.ID == held.ID || j.Waiting.String() != "3" {
		t.Fatalf("released: %+v", j)
	}
	free := w.s.View().ArrayTask(base, 3).ID
	if w.plan(w.begin(free, 3, alloc("n1", 1))) != 1 {
		t.Fatal("a part of an array does not start")
	}
	if j := w.s.View().ArrayTask(base, 3); j.ID != free || j.State != job.Running {
		t.Errorf("%+v", j)
	}
	if r := w.cancel(root, job.Ref{ID: base}); r[0].Refused != nil {
		t.Fatal(r[0].Refused)
	}
	for j := range w.s.View().Live() {
		if j.Flags&job.Completing == 0 {
			t.Errorf("%s is live after all was cancelled", j.Name())
		}
	}
}

func TestDependencies(t *testing.T) {
	ok := func(*state.Reported) {}
	bad := func(r *state.Reported) { r.Exit.Code = 1 }
	for _, c := range []struct {
		name, dep string
		end       []func(*state.Reported) // of jobs 1 and 2, which run; nil = runs on
		want      job.Reason
	}{
		{"after, running", "after:1", nil, job.ReasonNone},
		{"after, delayed", "after:1+5", nil, job.ReasonBeginTime},
		{"any, running", "afterany:1", nil, job.ReasonDependency},
		{"any, failed", "afterany:1", []func(*state.Reported){bad}, job.ReasonNone},
		{"ok", "afterok:1", []func(*state.Reported){ok}, job.ReasonNone},
		{"ok, failed", "afterok:1", []func(*state.Reported){bad}, job.ReasonDependencyNever},
		{"not ok", "afternotok:1", []func(*state.Reported){bad}, job.ReasonNone},
		{"not ok, succeeded", "afternotok:1", []func(*state.Reported){ok}, job.ReasonDependencyNever},
		{"both, one", "afterok:1:2", []func(*state.Reported){ok}, job.ReasonDependency},
		{"both", "afterok:1,afterok:2", []func(*state.Reported){ok, ok}, job.ReasonNone},
		{"both, one never", "afterok:1,afterok:2", []func(*state.Reported){bad}, job.ReasonDependencyNever},
		{"either, one never", "afterok:1?afterok:2", []func(*state.Reported){bad}, job.ReasonDependency},
		{"either", "afterok:1?afterok:2", []func(*state.Reported){bad, ok}, job.ReasonNone},
		{"corr on a single job", "aftercorr:1", []func(*state.Reported){ok}, job.ReasonNone},
		{"singleton", "singleton", []func(*state.Reported){bad}, job.ReasonDependency},
		{"singleton, last", "singleton", []func(*state.Reported){bad, ok}, job.ReasonNone},
	} {
		for _, late := range []bool{false, true} {
			w := newWorld(t)
			w.run(job.Spec{Name: "a"})
			w.run(job.Spec{Name: "a"})
			var id uint32
			if !late {
				id = w.submit(job.Spec{Name: "a", Dependency: c.dep})
			}
			for i, end := range c.end {
				w.report(uint32(i+1), end)
			}
			if late {
				id = w.submit(job.Spec{Name: "a", Dependency: c.dep})
			}
			v := w.s.View()
			if got, _ := v.Reason(v.Job(id)); got != c.want {
				t.Errorf("%s, submitted late %t: %s, want %s", c.name, late, got, c.want)
			}
			if n := w.plan(w.begin(id, -1, alloc("n2", 1))); (n == 1) != (c.want == job.ReasonNone) {
				t.Errorf("%s, submitted late %t: %d starts", c.name, late, n)
			}
		}
	}
}

func TestNeverSatisfied(t *testing.T) {
	w := newWorld(t)
	first := w.run(job.Spec{})
	stays := w.submit(job.Spec{Dependency: "afterok:1"})
	kill := []job.Option{{Name: "kill-on-invalid-dep", Value: "yes"}}
	killed := w.submit(job.Spec{Dependency: "afterok:1", Rare: kill})
	chained := w.submit(job.Spec{Dependency: "afterok:3", Rare: kill})
	w.report(first, func(r *state.Reported) { r.Exit.Code = 1 })
	w.is(stays, job.Pending)
	wantReason(w, stays, job.ReasonDependencyNever)
	w.is(killed, job.Cancelled)
	w.is(chained, job.Cancelled)
	w.do(func(t *state.Tx) { t.Purge(w.now+1, 0, 0) })
	wantReason(w, stays, job.ReasonDependencyNever)
	if r := w.update(root, stays, "Dependency", ""); r != nil {
		t.Fatal(r)
	}
	wantReason(w, stays, job.ReasonNone)
}

func TestArrayDependencies(t *testing.T) {
	w := newWorld(t)
	first := w.submit(job.Spec{Array: "0-2"})
	whole := w.submit(job.Spec{Dependency: "afterok:1"})
	corr := w.submit(job.Spec{Array: "0-3", Dependency: "aftercorr:1"})
	w.plan(w.begin(first, 0, alloc("n1", 1)), w.begin(first, 1, alloc("n1", 1)))
	wantReason(w, whole, job.ReasonDependency)
	wantReason(w, corr, job.ReasonDependency)
	w.report(w.s.View().ArrayTask(first, 0).ID)
	zero := w.s.View().ArrayTask(corr, 0)
	if zero == nil || zero.Dep != state.DepMet || zero.Waiting.String() != "0" || w.job(corr).Waiting.String() != "1-2" {
		t.Fatalf("task 0 may start: %+v; the rest: %s", zero, w.job(corr).Waiting)
	}
	if three := w.s.View().ArrayTask(corr, 3); three == nil || three.Dep != state.DepNever {
		t.Fatalf("task 3 has no counterpart: %+v", three)
	}
	w.report(w.s.View().ArrayTask(first, 1).ID, func(r *state.Reported) { r.Exit.Code = 1 })
	if one := w.s.View().ArrayTask(corr, 1); one == nil || one.Dep != state.DepNever {
		t.Fatalf("task 1 can never start: %+v", one)
	}
	wantReason(w, whole, job.ReasonDependencyNever)
	if n := w.plan(w.begin(zero.ID, 0, alloc("n1", 1))); n != 1 {
		t.Error("task 0 does not start")
	}
}
