package state_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// newWorld3 is a world at the level of the scheduler.
func newWorld3(t testing.TB, change ...func(*state.Config)) *world {
	w := newWorld(t)
	w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureSched) })
	w.configure(change...)
	return w
}

func cpus(name string, ids ...uint32) job.NodeAlloc {
	return job.NodeAlloc{Node: name, CPUs: uint32(len(ids)), Mem: gib, Tasks: uint32(len(ids)), CPUIDs: ids}
}

func (w *world) decide(d *sched.Decision) (taken int) {
	w.Helper()
	w.do(func(t *state.Tx) { taken = t.Plan(d) })
	return taken
}

func option(name, value string) []job.Option { return []job.Option{{Name: name, Value: value}} }

func TestSuspend(t *testing.T) {
	w := newWorld3(t)
	id := w.submit(job.Spec{UID: 1, TimeLimit: 600_000})
	w.plan(w.begin(id, -1, cpus("n1", 0, 1, 2, 3)))
	wantRefusal(t, w.control(state.OpSuspend, root, id), "ESLURM_DISABLED", "not started")
	w.launched(id, job.CauseNone, true)
	wantRefusal(t, w.control(state.OpSuspend, alice, id), "ESLURM_ACCESS_DENIED", "operators")
	end := w.job(id).End
	if r := w.control(state.OpSuspend, root, id); r != nil {
		t.Fatal(r)
	}
	w.is(id, job.Suspended)
	n := w.s.View().Node("n1")
	if n.CPUsAlloc != 0 || n.MemAlloc != gib || n.Stopped != 1 || w.job(id).End != 0 {
		t.Fatalf("%d CPUs, %d bytes, %d stopped, end %d", n.CPUsAlloc, n.MemAlloc, n.Stopped, w.job(id).End)
	}
	other := w.submit(job.Spec{UID: 1})
	if w.plan(w.begin(other, -1, cpus("n1", 2))) != 1 {
		t.Fatal("the CPUs of a suspended run are not free")
	}
	wantRefusal(t, w.control(state.OpResume, root, id), "ESLURM_NODES_BUSY", "CPUs")
	w.cancel(root, job.Ref{ID: other})
	w.report(other)
	if r := w.control(state.OpResume, root, id); r != nil {
		t.Fatal(r)
	}
	j := w.is(id, job.Running)
	if j.Stopped == 0 || j.End != end+j.Stopped || j.RunTime(w.now) != w.now-j.Start-j.Stopped {
		t.Fatalf("stopped %d, end %d after %d, ran %d", j.Stopped, j.End, end, j.RunTime(w.now))
	}
	w.report(id)
	w.is(id, job.Completed)
}

// A run that is ended while it is suspended does not take its CPUs back.
func TestCancelSuspended(t *testing.T) {
	w := newWorld3(t)
	id := w.submit(job.Spec{})
	w.plan(w.begin(id, -1, cpus("n1", 0, 1, 2, 3)))
	w.launched(id, job.CauseNone, true)
	w.control(state.OpSuspend, root, id)
	w.cancel(root, job.Ref{ID: id})
	w.is(id, job.Cancelled, "COMPLETING")
	if n := w.s.View().Node("n1"); n.CPUsAlloc != 0 || n.MemAlloc != gib {
		t.Fatalf("%d CPUs, %d bytes", n.CPUsAlloc, n.MemAlloc)
	}
	w.report(id)
	w.is(id, job.Cancelled)
}

func TestEvict(t *testing.T) {
	w := newWorld3(t)
	evict := func(id uint32, how string, grace int64) {
		w.decide(&sched.Decision{Evicts: []sched.Evict{{JobID: id, Run: w.job(id).Run, How: how, By: 99, Grace: grace}}})
	}
	t.Run("cancel", func(t *testing.T) {
		id := w.run(job.Spec{})
		evict(id, sched.EvictCancel, 0)
		j := w.is(id, job.Preempted, "COMPLETING")
		if j.Kill != job.WhyPreempt || j.PreemptBy != 99 || j.PreemptAt != w.now {
			t.Fatalf("%+v", j)
		}
		w.report(id)
		w.is(id, job.Preempted)
	})
	t.Run("requeue", func(t *testing.T) {
		id := w.run(job.Spec{TimeLimit: 3600_000})
		evict(id, sched.EvictRequeue, 0)
		w.is(id, job.Pending, "COMPLETING", "REQUEUED")
		v := w.s.View()
		if runs := v.Sched().Running; len(runs) != 1 || !runs[0].Evicting || runs[0].End != w.now+v.Config().KillWait {
			t.Fatalf("the planner is told that it will be gone at %d, it is %d", runs[0].End, w.now)
		}
		w.report(id)
		if j := w.is(id, job.Pending); j.Run != 1 || j.PreemptAt != 0 || j.Restarts != 1 {
			t.Fatalf("%+v", j)
		}
		w.cancel(root, job.Ref{ID: id})
	})
	t.Run("requeue of one that may not", func(t *testing.T) {
		id := w.run(job.Spec{Requeue: -1})
		evict(id, sched.EvictRequeue, 0)
		w.is(id, job.Preempted, "COMPLETING")
		w.report(id)
	})
	t.Run("grace", func(t *testing.T) {
		id := w.run(job.Spec{})
		evict(id, sched.EvictCancel, 10_000)
		j := w.is(id, job.Running)
		if len(j.Signals) != 2 || j.Signals[0].Number != 18 || j.Signals[1].Number != 15 || j.GraceEnd != w.now+10_000 {
			t.Fatalf("%+v until %d", j.Signals, j.GraceEnd)
		}
		if v := w.s.View(); v.NextTimer() != j.GraceEnd || len(v.Timers(w.now)) != 0 || len(v.Timers(j.GraceEnd)) != 1 {
			t.Fatal("the end of its grace is not known")
		}
		w.timer(id, "grace_over")
		w.is(id, job.Running)
		w.now += 10_000
		w.timer(id, "grace_over")
		w.is(id, job.Preempted, "COMPLETING")
		w.report(id)
	})
	t.Run("ends within its grace", func(t *testing.T) {
		for _, c := range []struct {
			how  string
			exit job.Exit
			want job.State
		}{
			{sched.EvictCancel, job.Exit{}, job.Completed},
			{sched.EvictCancel, job.Exit{Signal: 15}, job.Preempted},
			{sched.EvictRequeue, job.Exit{}, job.Pending},
		} {
			id := w.run(job.Spec{})
			evict(id, c.how, 10_000)
			w.report(id, func(r *state.Reported) { r.Exit = c.exit })
			w.is(id, c.want)
			w.cancel(root, job.Ref{ID: id})
		}
	})
	t.Run("suspend and resume", func(t *testing.T) {
		id := w.run(job.Spec{})
		evict(id, sched.EvictSuspend, 0)
		if j := w.is(id, job.Suspended); !j.SuspendedByPlan || j.PreemptBy != 99 {
			t.Fatalf("%+v", j)
		}
		evict(id, sched.EvictResume, 0)
		w.is(id, job.Running)
		w.control(state.OpSuspend, root, id)
		evict(id, sched.EvictResume, 0)
		w.is(id, job.Suspended) // an operator's stays
		w.cancel(root, job.Ref{ID: id})
		w.report(id)
	})
	t.Run("of another run", func(t *testing.T) {
		id := w.run(job.Spec{})
		w.decide(&sched.Decision{Evicts: []sched.Evict{{JobID: id, Run: 7, How: sched.EvictCancel}}})
		w.is(id, job.Running)
		w.report(id)
	})
}

func TestPromise(t *testing.T) {
	w := newWorld3(t)
	id := w.submit(job.Spec{UID: 1})
	give := func(start int64, revision uint64, node string) {
		w.decide(&sched.Decision{Base: w.s.View().Version(), Promises: []sched.PromiseChange{{JobID: id, Revision: revision,
			Promise: &sched.Promise{Start: start, Partition: "p", Nodes: []job.NodeAlloc{alloc(node, 1)}, Limit: 60_000}}}})
	}
	has := func(want int64) {
		t.Helper()
		v := w.s.View()
		j := v.Job(id)
		if v.Promised(j) != (want > 0) || want > 0 && v.ExpectedStart(j) != want || len(v.Sched().Promised) != map[bool]int{true: 1}[want > 0] {
			t.Fatalf("%v %d", v.Promised(j), v.ExpectedStart(j))
		}
	}
	give(5000, 1, "n9")
	has(0)
	give(5000, 7, "n1")
	has(0)
	give(5000, 1, "n1")
	has(5000)
	w.update(root, id, "JobName", "other")
	has(0)
	give(5000, 2, "n1")
	w.control(state.OpHold, root, id)
	has(0)
	w.control(state.OpRelease, root, id)
	give(6000, 2, "n1")
	has(6000)
	w.decide(&sched.Decision{Base: 1, Promises: []sched.PromiseChange{{JobID: id, Revision: 2, // of an earlier leader's plan
		Promise: &sched.Promise{Start: 7000, Partition: "p", Nodes: []job.NodeAlloc{alloc("n1", 1)}}}}})
	has(6000)
	w.decide(&sched.Decision{Base: w.s.View().Version(), Promises: []sched.PromiseChange{{JobID: id, Revision: 2}}})
	has(0)
	give(6000, 2, "n1")
	w.plan(w.begin(id, -1, alloc("n1", 1)))
	has(0)
}

func TestGroupStartsTogether(t *testing.T) {
	w := newWorld3(t)
	a, b := w.submit(job.Spec{}), w.submit(job.Spec{})
	first, second := w.begin(a, -1, alloc("n1", 3)), w.begin(b, -1, alloc("n1", 3))
	first.Group, second.Group = 1, 1
	if w.plan(first, second) != 0 {
		t.Fatal("a part of a group was started")
	}
	w.is(a, job.Pending)
	w.is(b, job.Pending)
	second.Nodes = []job.NodeAlloc{alloc("n2", 3)}
	if w.plan(first, second) != 2 {
		t.Fatal("a group that fits was not started")
	}
}

func (w *world) het(key string, specs ...*job.Spec) uint32 {
	w.Helper()
	var id uint32
	var r *state.Refusal
	w.do(func(t *state.Tx) { id, _, r = t.SubmitHet(key, make([]byte, 32), specs) })
	if r != nil {
		w.Fatalf("%+v", r)
	}
	return id
}

func (w *world) startHet(id uint32, nodes ...string) int {
	w.Helper()
	var list []sched.Start
	for i, name := range nodes {
		s := w.begin(id+uint32(i), -1, alloc(name, 1))
		s.Group = 1
		list = append(list, s)
	}
	return w.plan(list...)
}

func TestHet(t *testing.T) {
	w := newWorld3(t)
	id := w.het("k", &job.Spec{Name: "x"}, &job.Spec{Name: "x"}, &job.Spec{Name: "x"})
	if again := w.het("k", &job.Spec{Name: "x"}, &job.Spec{Name: "x"}, &job.Spec{Name: "x"}); again != id {
		t.Fatalf("the key gave job %d, not %d", again, id)
	}
	if name := w.job(id + 2).Name(); name != fmt.Sprintf("%d+2", id) {
		t.Fatal(name)
	}
	all := func(s job.State, flags ...string) {
		t.Helper()
		for i := range uint32(3) {
			w.is(id+i, s, flags...)
		}
	}
	if w.plan(w.begin(id, -1, alloc("n1", 1))) != 0 || w.startHet(id, "n1", "n2") != 0 {
		t.Fatal("a part of it was started")
	}
	w.control(state.OpHold, root, id)
	wantReason(w, id+2, job.ReasonHeldAdmin)
	if w.startHet(id, "n1", "n2", "n2") != 0 {
		t.Fatal("a held one was started")
	}
	w.control(state.OpRelease, root, id+1)
	if n := w.startHet(id, "n1", "n2", "n2"); n != 3 {
		t.Fatalf("%d started", n)
	}
	all(job.Running, "CONFIGURING")
	w.launched(id, job.CauseNone, true)
	all(job.Running)
	w.report(id)
	all(job.Completed)
	if n := w.s.View().Node("n2"); len(n.Jobs) != 0 {
		t.Fatalf("n2 still has %v", n.Jobs)
	}
	if r := w.control(state.OpRequeue, root, id); r != nil {
		t.Fatal(r)
	}
	w.now += 200_000
	if w.startHet(id, "n1", "n2", "n2") != 3 {
		t.Fatal("it does not run again")
	}
	w.launched(id, job.CauseNone, true)
	w.register("n2", "other boot") // a component's node has lost it
	all(job.Pending, "COMPLETING", "REQUEUED")
	w.report(id)
	all(job.Pending)
	w.cancel(root, job.Ref{ID: id + 1}, job.Ref{ID: id})
	all(job.Cancelled)
}

func TestHetRefused(t *testing.T) {
	w := newWorld3(t)
	before := w.s.View().Header().NextID
	var r *state.Refusal
	w.do(func(t *state.Tx) {
		_, _, r = t.SubmitHet("", nil, []*job.Spec{{}, {Partition: "nowhere"}})
	})
	wantRefusal(t, r, "ESLURM_INVALID_PARTITION_NAME", "component 1")
	if all, _, _ := w.s.View().Counts(); all != 0 || w.s.View().Header().NextID != before {
		t.Fatal("a part of it entered")
	}
	w.do(func(t *state.Tx) { _, _, r = t.SubmitHet("", nil, []*job.Spec{{}, {Array: "1-3"}}) })
	wantRefusal(t, r, "ESLURM_INVALID_ARRAY", "component 1")
	w.do(func(t *state.Tx) {
		_, _, r = t.SubmitHet("", nil, make([]*job.Spec, state.MaxHetComponents+1))
	})
	wantRefusal(t, r, "ESLURM_INVALID_VALUE", "MaxHetComponents")
}

func TestDeadline(t *testing.T) {
	w := newWorld3(t)
	at := func(ms int64) []job.Option { return option(job.OptDeadline, fmt.Sprint(w.now+ms)) }
	_, _, r := w.trySubmit("", job.Spec{TimeLimit: 300_000, Rare: at(200_000)})
	wantRefusal(t, r, "ESLURM_INVALID_TIME_LIMIT", "does not fit")
	_, _, r = w.trySubmit("", job.Spec{Rare: at(200_000)}) // the partition's limit of an hour
	wantRefusal(t, r, "ESLURM_INVALID_TIME_LIMIT", "01:00:00")
	_, _, r = w.trySubmit("", job.Spec{TimeLimit: 60_000, Rare: at(-5)})
	wantRefusal(t, r, "ESLURM_INVALID_TIME_VALUE", "earliest start")
	waits := w.submit(job.Spec{TimeLimit: 300_000, TimeMin: 60_000, Rare: at(200_000)})
	runs := w.submit(job.Spec{TimeLimit: 60_000, Rare: at(100_000)})
	w.plan(w.begin(runs, -1, alloc("n1", 1)))
	w.launched(runs, job.CauseNone, true)
	w.timer(runs, "deadline")
	w.is(runs, job.Running)
	if due := w.s.View().Timers(w.now + 300_000); len(due) != 2 || due[0].JobID != runs || due[0].What != "deadline" {
		t.Fatalf("%+v", due)
	}
	w.now += 300_000
	w.timer(runs, "deadline")
	if j := w.is(runs, job.Deadline, "COMPLETING"); j.Reason != job.ReasonDeadLine || j.Kill == job.WhyNone {
		t.Fatalf("%+v", j)
	}
	w.report(runs)
	w.timer(waits, "deadline")
	w.is(waits, job.Deadline)
	wantReason(w, waits, job.ReasonDeadLine)
	if w.s.View().NextTimer() != 0 {
		t.Fatal("timers are left")
	}
}

func TestDependenciesOfLevel3(t *testing.T) {
	w := newWorld3(t)
	for _, dep := range []string{"afterok:9999", "afternotok:9999", "after:9999+5", "afterany:9999_3", "aftercorr:9999"} {
		if j := w.job(w.submit(job.Spec{Dependency: dep})); j.Dep != state.DepMet {
			t.Errorf("%s: %d", dep, j.Dep)
		}
	}
	failed := w.run(job.Spec{})
	w.report(failed, func(r *state.Reported) { r.Exit.Code = 1 })
	stays := w.submit(job.Spec{Dependency: fmt.Sprint("afterok:", failed)})
	wantReason(w, stays, job.ReasonDependencyNever)
	goes := w.submit(job.Spec{Dependency: fmt.Sprint("afterok:", failed), Rare: option(job.OptInvalidDep, "yes")})
	w.is(goes, job.Cancelled)
	keeps := w.submit(job.Spec{Dependency: fmt.Sprint("afterok:", failed), Rare: option(job.OptInvalidDep, "no")})
	w.configure(func(c *state.Config) { c.Sched.Dependencies = []string{"kill_invalid_depend"} })
	w.is(stays, job.Cancelled)
	w.is(keeps, job.Pending)
	w.is(w.submit(job.Spec{Dependency: fmt.Sprint("afterok:", failed)}), job.Cancelled)
}

func classOf(w *world, id uint32) *sched.Class {
	w.Helper()
	key := w.job(id).Class
	for _, c := range w.s.View().Sched().Classes {
		if c.Key == key {
			return c
		}
	}
	w.Fatalf("job %d has no class", id)
	return nil
}

func TestClassesThatRank(t *testing.T) {
	w := newWorld3(t)
	base := w.submit(job.Spec{UID: 1, TimeLimit: 60_000})
	same := w.submit(job.Spec{UID: 1, TimeLimit: 60_000, Name: "other", Dependency: "afterany:1"})
	if c := classOf(w, base); w.job(same).Class != c.Key || c.Count != 2 || c.Mixed || c.Shape == "" {
		t.Fatalf("%+v", c)
	}
	for i, s := range []job.Spec{
		{UID: 2, TimeLimit: 60_000}, {UID: 1, TimeLimit: 70_000}, {UID: 1, TimeLimit: 60_000, Nice: 5}, {UID: 1, TimeLimit: 60_000, TimeMin: 5000},
		{UID: 1, TimeLimit: 60_000, Rare: option(job.OptDeadline, fmt.Sprint(w.now+1_000_000))},
		{UID: 1, TimeLimit: 60_000, Rare: option(job.OptBid, "5")},
	} {
		c := classOf(w, w.submit(s))
		if c.Key == w.job(base).Class || c.Shape != classOf(w, base).Shape {
			t.Errorf("%d: class %s of shape %s", i, c.Key, c.Shape)
		}
	}
	fixed := w.submit(job.Spec{UID: 1, TimeLimit: 60_000})
	w.update(root, fixed, "Priority", "77")
	if c := classOf(w, fixed); c.Fixed != 77 || c.Shape != classOf(w, base).Shape {
		t.Fatalf("%+v", c)
	}
	if w.control(state.OpTop, root, base); classOf(w, base).Fixed == 0 {
		t.Fatal("the top one has no priority of its own")
	}
}

// Within a class those come first that could start first; held ones are last.
func TestOrderWithinClass(t *testing.T) {
	w := newWorld3(t)
	held := w.submit(job.Spec{Hold: true})
	later := w.submit(job.Spec{Begin: w.now + 100_000})
	early := w.submit(job.Spec{})
	late := w.submit(job.Spec{})
	var got []uint32
	for k := range classOf(w, early).Waiting {
		got = append(got, k.JobID)
	}
	if want := []uint32{early, late, later, held}; !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	w.update(root, early, "Comment", "x")
	if w.job(early).Eligible > w.job(late).Eligible {
		t.Fatal("an update took its age")
	}
}

// What did not change is the same pointer in the next snapshot.
func TestSnapshotShares(t *testing.T) {
	w := newWorld3(t)
	runs := w.run(job.Spec{UID: 1})
	w.submit(job.Spec{UID: 2})
	w.submit(job.Spec{UID: 3})
	a := w.s.View().Sched()
	w.submit(job.Spec{UID: 3})
	b := w.s.View().Sched()
	if &a.Nodes[0] != &b.Nodes[0] || a.Running[0] != b.Running[0] || a.Partitions[0] != b.Partitions[0] || a.Layout != b.Layout {
		t.Fatal("a submission has changed nodes, runs or partitions")
	}
	changed := 0
	for i := range a.Classes {
		if a.Classes[i] != b.Classes[i] {
			changed++
			if a.Classes[i].Version == b.Classes[i].Version {
				t.Fatal("a changed class has the same version")
			}
		}
	}
	if changed != 1 {
		t.Fatalf("%d classes changed", changed)
	}
	w.report(runs)
	c := w.s.View().Sched()
	if c.Nodes[1] != b.Nodes[1] || c.Nodes[0] == b.Nodes[0] || len(c.Running) != 0 {
		t.Fatal("the end of a run on n1 changes n1 alone")
	}
	w.configure(func(c *state.Config) { c.KillWait = 5 })
	if d := w.s.View().Sched(); d.Layout == c.Layout {
		t.Fatal("the layout stays with another configuration")
	}
}

func TestUpdateOptions(t *testing.T) {
	w := newWorld3(t, func(c *state.Config) { c.Sched.Licenses = []string{"foo:2"} })
	id := w.submit(job.Spec{UID: 1, TimeLimit: 60_000})
	if r := w.update(alice, id, "Deadline", "now+500", "Licenses", "foo:2"); r != nil {
		t.Fatal(r)
	}
	if s := w.job(id).Spec; s.RareValue(job.OptDeadline) == "" || s.RareValue(job.OptLicenses) != "foo:2" {
		t.Fatalf("%+v", s.Rare)
	}
	wantRefusal(t, w.update(alice, id, "Licenses", "foo:3"), "ESLURM_INVALID_LICENSES", "foo")
	wantRefusal(t, w.update(alice, id, "TimeLimit", "0"), "ESLURM_ACCESS_DENIED", "raise")
	wantRefusal(t, w.update(root, id, "TimeLimit", "60"), "ESLURM_INVALID_TIME_LIMIT", "deadline")
	wantRefusal(t, w.update(alice, id, "Checkpoint", "now"), "ESLURM_TRANSITION_STATE_NO_UPDATE", "does not run")
	w.update(alice, id, "Deadline", "")
	w.plan(w.begin(id, -1, alloc("n1", 1)))
	w.launched(id, job.CauseNone, true)
	if r := w.update(alice, id, "Checkpoint", "now"); r != nil || w.job(id).Checkpoint != w.now {
		t.Fatal(r, w.job(id).Checkpoint)
	}
}
