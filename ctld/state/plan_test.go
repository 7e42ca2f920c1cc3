package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func TestStartsThatNoLongerHold(t *testing.T) {
	gpu := func(index ...uint32) job.NodeAlloc {
		a := alloc("n1", 1)
		a.Gres = []job.GresAlloc{{Name: "gpu", Type: "a100", Count: uint64(len(index)), Index: index}}
		return a
	}
	shard := func(n uint64) job.NodeAlloc {
		a := alloc("n1", 1)
		a.Gres = []job.GresAlloc{{Name: "shard", Count: n}}
		return a
	}
	cpus := func(ids ...uint32) job.NodeAlloc {
		a := alloc("n1", uint32(len(ids)))
		a.CPUIDs = ids
		return a
	}
	mem := func(n int64) job.NodeAlloc { return job.NodeAlloc{Node: "n1", CPUs: 1, Mem: n} }
	setNode := func(s string) func(*world) {
		return func(w *world) {
			w.do(func(t *state.Tx) {
				t.UpdateNode(&state.NodeUpdate{Nodes: []string{"n1"}, State: s, Reason: "r", Caller: root})
			})
		}
	}
	setPartition := func(s string) func(*world) {
		return func(w *world) {
			w.do(func(t *state.Tx) { t.UpdatePartition("p", map[string]string{"State": s}, root) })
		}
	}
	for _, c := range []struct {
		name   string
		first  []job.NodeAlloc // what another job holds
		spec   job.Spec
		before func(*world)
		allocs []job.NodeAlloc
		change func(*sched.Start)
		taken  int
	}{
		{name: "free", allocs: []job.NodeAlloc{alloc("n1", 4)}, taken: 1},
		{name: "no node", taken: 0},
		{name: "no cpu", allocs: []job.NodeAlloc{alloc("n1", 0)}},
		{name: "more cpus than there are", allocs: []job.NodeAlloc{alloc("n1", 5)}},
		{name: "cpus are taken", first: []job.NodeAlloc{alloc("n1", 1)}, allocs: []job.NodeAlloc{alloc("n1", 4)}},
		{name: "the rest of the cpus", first: []job.NodeAlloc{alloc("n1", 1)}, allocs: []job.NodeAlloc{alloc("n1", 3)}, taken: 1},
		{name: "cpu is taken", first: []job.NodeAlloc{cpus(0, 2)}, allocs: []job.NodeAlloc{cpus(2)}},
		{name: "another cpu", first: []job.NodeAlloc{cpus(0, 2)}, allocs: []job.NodeAlloc{cpus(1, 3)}, taken: 1},
		{name: "cpu twice", allocs: []job.NodeAlloc{cpus(1, 1)}},
		{name: "cpu number too high", allocs: []job.NodeAlloc{cpus(4)}},
		{name: "memory is taken", first: []job.NodeAlloc{mem(5 * gib)}, allocs: []job.NodeAlloc{mem(4 * gib)}},
		{name: "the rest of the memory", first: []job.NodeAlloc{mem(5 * gib)}, allocs: []job.NodeAlloc{mem(3 * gib)}, taken: 1},
		{name: "negative memory", allocs: []job.NodeAlloc{mem(-1)}},
		{name: "gpu is taken", first: []job.NodeAlloc{gpu(0)}, allocs: []job.NodeAlloc{gpu(0)}},
		{name: "another gpu", first: []job.NodeAlloc{gpu(0)}, allocs: []job.NodeAlloc{gpu(1)}, taken: 1},
		{name: "gpu twice", allocs: []job.NodeAlloc{gpu(1, 1)}},
		{name: "gpu number too high", allocs: []job.NodeAlloc{gpu(2)}},
		{name: "shards are taken", first: []job.NodeAlloc{shard(5)}, allocs: []job.NodeAlloc{shard(4)}},
		{name: "the rest of the shards", first: []job.NodeAlloc{shard(5)}, allocs: []job.NodeAlloc{shard(3)}, taken: 1},
		{name: "unknown resource", allocs: []job.NodeAlloc{{Node: "n1", CPUs: 1, Gres: []job.GresAlloc{{Name: "fpga", Count: 1}}}}},
		{name: "exclusive beside another", first: []job.NodeAlloc{alloc("n1", 1)}, spec: job.Spec{Exclusive: true}, allocs: []job.NodeAlloc{alloc("n1", 3)}},
		{name: "node twice", allocs: []job.NodeAlloc{alloc("n1", 1), alloc("n1", 1)}},
		{name: "unknown node", allocs: []job.NodeAlloc{alloc("n9", 1)}},
		{name: "node down", before: setNode("DOWN"), allocs: []job.NodeAlloc{alloc("n1", 1)}},
		{name: "node drained", before: setNode("DRAIN"), allocs: []job.NodeAlloc{alloc("n1", 1)}},
		{name: "partition down", before: setPartition("DOWN"), allocs: []job.NodeAlloc{alloc("n1", 1)}},
		{name: "partition inactive", before: setPartition("INACTIVE"), allocs: []job.NodeAlloc{alloc("n1", 1)}},
		{name: "partition draining", before: setPartition("DRAIN"), allocs: []job.NodeAlloc{alloc("n1", 1)}, taken: 1},
		{name: "held", spec: job.Spec{Hold: true}, allocs: []job.NodeAlloc{alloc("n1", 1)}},
		{name: "begin time", spec: job.Spec{Begin: 1 << 50}, allocs: []job.NodeAlloc{alloc("n1", 1)}},
		{name: "another run", allocs: []job.NodeAlloc{alloc("n1", 1)}, change: func(s *sched.Start) { s.Run = 1 }},
		{name: "a task of no array", allocs: []job.NodeAlloc{alloc("n1", 1)}, change: func(s *sched.Start) { s.Task = 3 }},
		{name: "partition not asked for", allocs: []job.NodeAlloc{alloc("n1", 1)}, change: func(s *sched.Start) { s.Partition = "q" }},
		{name: "unknown job", allocs: []job.NodeAlloc{alloc("n1", 1)}, change: func(s *sched.Start) { s.JobID = 99 }},
		{name: "another revision", allocs: []job.NodeAlloc{alloc("n1", 1)}, change: func(s *sched.Start) { s.Revision = 2 }},
		{name: "the present revision", allocs: []job.NodeAlloc{alloc("n1", 1)}, change: func(s *sched.Start) { s.Revision = 1 }, taken: 1},
		{name: "longer than the partition allows", spec: job.Spec{Partition: "q", TimeLimit: 120_000}, allocs: []job.NodeAlloc{alloc("n1", 1)},
			change: func(s *sched.Start) { s.Partition = "q" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			if c.first != nil && w.plan(w.begin(w.submit(job.Spec{}), -1, c.first...)) != 1 {
				t.Fatal("the first job does not start")
			}
			id := w.submit(c.spec)
			if c.before != nil {
				c.before(w)
			}
			s := w.begin(id, -1, c.allocs...)
			if c.change != nil {
				c.change(&s)
			}
			if got := w.plan(s); got != c.taken {
				t.Fatalf("%d starts taken, want %d", got, c.taken)
			}
			if started := w.job(id).State == job.Running; started != (c.taken == 1) {
				t.Errorf("job %d is %s", id, w.job(id).State)
			}
		})
	}
}

func TestExclusiveKeepsOthersOut(t *testing.T) {
	w := newWorld(t)
	id := w.submit(job.Spec{Exclusive: true})
	w.plan(w.begin(id, -1, alloc("n1", 1)))
	if n := w.plan(w.begin(w.submit(job.Spec{}), -1, alloc("n1", 1))); n != 0 {
		t.Fatal("another job shares the node")
	}
	whole := w.submit(job.Spec{Partition: "q"})
	s := w.begin(whole, -1, alloc("n2", 1))
	s.Partition = "q"
	if w.plan(s) != 1 || !w.job(whole).Alone {
		t.Fatal("a job of an exclusive partition does not have its node alone")
	}
	if n := w.plan(w.begin(w.submit(job.Spec{}), -1, alloc("n2", 1))); n != 0 {
		t.Fatal("another job shares the node")
	}
	w.report(id)
	if n := w.s.View().Node("n1"); n.Exclusive {
		t.Fatal("the node stays exclusive")
	}
}

func TestTimeLimits(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ asked, least, planned, limit, length int64 }{
		{0, 0, 0, 3_600_000, 3_600_000}, {60_000, 0, 0, 60_000, 60_000}, {60_000, 0, 30_000, 60_000, 60_000},
		{0, 0, job.Unlimited, 3_600_000, 3_600_000}, {job.Unlimited, 0, 60_000, job.Unlimited, 0},
		{60_000, 20_000, 30_000, 30_000, 30_000}, {60_000, 40_000, 30_000, 60_000, 60_000}, {60_000, 40_000, 90_000, 60_000, 60_000},
		{job.Unlimited, 40_000, 90_000, 90_000, 90_000},
	} {
		id := w.submit(job.Spec{TimeLimit: c.asked, TimeMin: c.least})
		s := w.begin(id, -1, alloc("n1", 1))
		s.TimeLimit = c.planned
		w.plan(s)
		j := w.job(id)
		want := int64(0)
		if c.length > 0 {
			want = j.Start + c.length
		}
		if j.TimeLimit != c.limit || j.End != want {
			t.Errorf("asked %d, at least %d, planned %d: limit %d, end %d", c.asked, c.least, c.planned, j.TimeLimit, j.End)
		}
		w.cancel(root, job.Ref{ID: id})
		w.report(id)
	}
}

// TestReasons: only the first of a class that could start shows the planner's verdict.
func TestReasons(t *testing.T) {
	w := newWorld(t)
	held := w.submit(job.Spec{Hold: true, Nice: -100})
	later := w.submit(job.Spec{Begin: 1 << 50, Nice: -100})
	head, behind := w.submit(job.Spec{}), w.submit(job.Spec{})
	other := w.submit(job.Spec{NTasks: 2})
	wantReason(w, head, job.ReasonNone)
	class := w.job(head).Class
	w.do(func(t *state.Tx) {
		t.Plan(&sched.Decision{
			Classes: []sched.ClassReason{{Class: class, Reason: job.ReasonResources, Detail: "n1 is busy", Start: 77}, {Class: "gone", Reason: "x"}},
			Reasons: []sched.Reason{{JobID: other, Reason: job.ReasonPartitionTimeLimit, Detail: strings.Repeat("é", state.MaxDetail)}, {JobID: held, Reason: job.ReasonPriority}},
		})
	})
	wantReason(w, held, job.ReasonHeldUser)
	wantReason(w, later, job.ReasonBeginTime)
	wantReason(w, head, job.ReasonResources)
	wantReason(w, behind, job.ReasonPriority)
	wantReason(w, other, job.ReasonPartitionTimeLimit)
	v := w.s.View()
	if v.ExpectedStart(v.Job(head)) != 77 || v.ExpectedStart(v.Job(behind)) != 0 {
		t.Error("only the first has an expected start")
	}
	if d := w.job(other).Detail; len(d) > state.MaxDetail || !strings.HasPrefix(d, "é") || strings.ContainsRune(d, '\uFFFD') {
		t.Errorf("a detail of %d bytes", len(d))
	}
	w.cancel(root, job.Ref{ID: head})
	wantReason(w, behind, job.ReasonResources)
}

func TestViewsDoNotChange(t *testing.T) {
	w := newWorld(t)
	id := w.submit(job.Spec{})
	before := w.s.View()
	if before != w.s.View() {
		t.Error("the same version gives two views")
	}
	snap, free := before.Sched(), before.Sched().Nodes[0].FreeCPUs
	w.plan(w.begin(id, -1, alloc("n1", 1)))
	after := w.s.View()
	if before.Job(id).State != job.Pending || after.Job(id).State != job.Running {
		t.Error("an old view shows the new state")
	}
	if all, pending, running := before.Counts(); all != 1 || pending != 1 || running != 0 {
		t.Errorf("counts %d %d %d", all, pending, running)
	}
	if before.Sched() != snap || snap.Nodes[0].FreeCPUs != free || after.Sched().Nodes[0].FreeCPUs != free-1 {
		t.Error("an old snapshot changed")
	}
	if len(after.Sched().Running) != 1 || len(after.Sched().Classes) != 0 || len(snap.Classes) != 1 {
		t.Error("the snapshots do not show the start")
	}
	capacity := after.Sched().Capacity
	w.report(id)
	if got := w.s.View().Sched(); got.Capacity == capacity || &got.Nodes[0] == &after.Sched().Nodes[0] {
		t.Error("freed resources are not seen as such")
	}
	idle := w.s.View().Sched()
	w.do(func(*state.Tx) {})
	if got := w.s.View().Sched(); &got.Nodes[0] != &idle.Nodes[0] || got.Capacity != idle.Capacity {
		t.Error("nothing changed, and the nodes were made anew")
	}
}

// TestStalePlans: what the planner decided on a record before an update is not taken after it.
func TestStalePlans(t *testing.T) {
	for _, set := range [][]string{{"TimeLimit", "1"}, {"NumTasks", "4"}, {"ReqNodeList", "n2"}, {"Partition", "p,q"}} {
		t.Run(set[0], func(t *testing.T) {
			w := newWorld(t)
			id := w.submit(job.Spec{})
			planned := sched.Plan(w.s.View().Sched(), w.now, sched.Policy{})
			if len(planned.Starts) != 1 {
				t.Fatalf("plan: %+v", planned)
			}
			if r := w.update(root, id, set...); r != nil {
				t.Fatal(r)
			}
			if n := w.plan(planned.Starts...); n != 0 {
				t.Error("a start of what the job asked for before was taken")
			}
			planned = sched.Plan(w.s.View().Sched(), w.now, sched.Policy{})
			if n := w.plan(planned.Starts...); n != 1 {
				t.Errorf("the new plan %+v was not taken", planned.Starts)
			}
		})
	}
}

// TestLeaseOfRun: a run keeps the lease that it was started with, whatever is changed while it runs.
func TestLeaseOfRun(t *testing.T) {
	w := newWorld(t)
	for requeue, want := range map[int8]int64{1: 7000, 0: 7000, -1: 0} {
		id := w.submit(job.Spec{Requeue: requeue})
		s := w.begin(id, -1, alloc("n1", 1))
		s.Lease = 7000
		w.plan(s)
		if r := w.update(root, id, "Requeue", "1"); r != nil {
			t.Fatal(r)
		}
		if got := w.job(id).Lease; got != want {
			t.Errorf("requeue %d: lease %d, want %d", requeue, got, want)
		}
		w.report(id)
		w.control(state.OpRequeue, root, id)
		if got := w.is(id, job.Pending).Lease; got != 0 {
			t.Errorf("requeue %d: lease %d while it waits", requeue, got)
		}
	}
}

// TestPlannerHearsOfWhatGivesWay: a job that the planner keeps nodes for holds others up only while
// it waits for them.
func TestPlannerHearsOfWhatGivesWay(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(w *world, runs, top uint32)
	}{
		{"cancelled", func(w *world, _, top uint32) { w.cancel(root, job.Ref{ID: top}) }},
		{"held", func(w *world, _, top uint32) { w.control(state.OpHold, root, top) }},
		{"waits for another", func(w *world, runs, top uint32) { w.update(root, top, "Dependency", fmt.Sprint("afterany:", runs)) }},
		{"its node is down", func(w *world, _, _ uint32) {
			w.do(func(tx *state.Tx) {
				tx.UpdateNode(&state.NodeUpdate{Nodes: []string{"n2"}, State: "DOWN", Reason: "x", Caller: root})
			})
		}},
		{"the run before it takes longer", func(w *world, runs, _ uint32) { w.update(root, runs, "TimeLimit", "120") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			runs := w.run(job.Spec{TimeLimit: 600_000})
			top := w.submit(job.Spec{MinNodes: 2, MaxNodes: 2, CPUsPerTask: 4})
			fits := w.submit(job.Spec{MinNodes: 1, MaxNodes: 1, TimeLimit: 1_200_000})
			before := w.s.View()
			if d := sched.Plan(before.Sched(), w.now, sched.Policy{}); len(d.Starts) != 0 {
				t.Fatalf("starts: %+v", d.Starts)
			}
			tt.do(w, runs, top)
			after := w.s.View()
			d := sched.Plan(after.Sched(), w.now, sched.Policy{})
			if len(d.Starts) != 1 || d.Starts[0].JobID != fits {
				t.Fatalf("starts afterwards: %+v", d.Starts)
			}
			if after.Capacity() == before.Capacity() {
				t.Error("the planner is not told")
			}
		})
	}
}

// TestPlannerSeesNewEnds: the planner's list of runs is kept between versions, and has to follow when only the
// end of a run has changed. It did not for one that was cancelled: two replicas with the same state, one of
// them restored since, made different plans, and a reservation waited for a limit that did not count any more.
func TestPlannerSeesNewEnds(t *testing.T) {
	for name, end := range map[string]func(*world, uint32){
		"cancelled":  func(w *world, id uint32) { w.cancel(root, job.Ref{ID: id}) },
		"time limit": func(w *world, id uint32) { w.timer(id, "time_limit") },
		"requeued":   func(w *world, id uint32) { w.control(state.OpRequeue, root, id) },
		"longer":     func(w *world, id uint32) { w.update(root, id, "TimeLimit", "600") },
	} {
		w := newWorld(t)
		id := w.run(job.Spec{TimeLimit: 60_000})
		before := w.s.View().Sched().Running
		end(w, id)
		now := w.s.View().Sched().Running
		if len(before) != 1 || len(now) != 1 || now[0].End != w.job(id).End {
			t.Errorf("%s: the record ends at %d, the planner has %+v", name, w.job(id).End, now)
		}
	}
}

// TestUsualTimeOverMaxTime: a job that asks for no time is not kept for ever by a MaxTime that was set below
// the partition's DefaultTime. The first release keeps it, and so does a state at its level.
func TestUsualTimeOverMaxTime(t *testing.T) {
	w := newWorld(t)
	w.do(func(t *state.Tx) { t.UpdatePartition("p", map[string]string{"MaxTime": "1"}, root) })
	id := w.submit(job.Spec{})
	plan := func() *sched.Decision { return sched.Plan(w.s.View().Sched(), w.now, sched.Policy{}) }
	if d := plan(); len(d.Starts) != 0 {
		t.Fatalf("at level 1: %+v", d.Starts)
	}
	capacity := w.s.View().Capacity()
	w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureMembers) })
	if w.s.View().Capacity() == capacity {
		t.Error("nothing tells the leader to plan again")
	}
	d := plan()
	if len(d.Starts) != 1 || w.plan(d.Starts...) != 1 || w.job(id).TimeLimit != 60_000 {
		t.Fatalf("at level 2: %+v, limit %d", d, w.job(id).TimeLimit)
	}
}
