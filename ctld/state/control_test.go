package state_test

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func TestHoldAndRelease(t *testing.T) {
	w := newWorld(t)
	id := w.submit(job.Spec{UID: alice.UID})
	if r := w.control(state.OpHold, alice, id); r != nil {
		t.Fatal(r)
	}
	wantReason(w, id, job.ReasonHeldUser)
	if r := w.control(state.OpRelease, alice, id); r != nil {
		t.Fatal(r)
	}
	if p := w.job(id).Priority; p != 4294901759 {
		t.Errorf("priority %d after release", p)
	}
	if r := w.control(state.OpHold, root, id); r != nil {
		t.Fatal(r)
	}
	wantReason(w, id, job.ReasonHeldAdmin)
	wantRefusal(t, w.control(state.OpRelease, alice, id), "ESLURM_ACCESS_DENIED", "Access/permission denied")
	if r := w.control(state.OpUHold, alice, id); r != nil {
		t.Fatal(r)
	}
	wantReason(w, id, job.ReasonHeldAdmin)
	if r := w.control(state.OpRelease, root, id); r != nil {
		t.Fatal(r)
	}
	wantReason(w, id, job.ReasonNone)
}

// TestHoldWhileRunning: it keeps only a later run.
func TestHoldWhileRunning(t *testing.T) {
	w := newWorld(t)
	id := w.run(job.Spec{})
	if r := w.control(state.OpHold, root, id); r != nil {
		t.Fatal(r)
	}
	w.is(id, job.Running)
	w.control(state.OpRequeue, root, id)
	w.report(id)
	w.is(id, job.Pending)
	wantReason(w, id, job.ReasonHeldAdmin)
}

func TestRequeueRules(t *testing.T) {
	w := newWorld(t)
	pending := w.submit(job.Spec{})
	wantRefusal(t, w.control(state.OpRequeue, root, pending), "ESLURM_JOB_PENDING", "in the queue")
	never := w.run(job.Spec{Requeue: -1})
	wantRefusal(t, w.control(state.OpRequeue, root, never), "ESLURM_DISABLED", "Requested operation is presently disabled")
	wantRefusal(t, w.control(state.OpSuspend, root, never), "ESLURM_DISABLED", "suspending")
	wantRefusal(t, w.control(state.Op(77), root, never), "ESLURM_NOT_SUPPORTED", "77")
	wantRefusal(t, w.control(state.OpRequeue, alice, pending), "ESLURM_ACCESS_DENIED", "belongs")

	ended := w.run(job.Spec{})
	w.report(ended, func(r *state.Reported) { r.Exit.Code = 1 })
	if r := w.control(state.OpRequeue, root, ended); r != nil {
		t.Fatal(r)
	}
	if j := w.is(ended, job.Pending); j.Run != 1 || j.Restarts != 1 || j.End != 0 || j.Exit.Code != 0 {
		t.Errorf("%+v", j)
	}
	held := w.run(job.Spec{})
	if r := w.control(state.OpRequeueHold, root, held); r != nil {
		t.Fatal(r)
	}
	w.is(held, job.Pending, "COMPLETING", "REQUEUE_HOLD", "REQUEUED")
	w.report(held)
	w.is(held, job.Pending, "REQUEUE_HOLD")
	wantReason(w, held, job.ReasonHeldAdmin)
	if r := w.control(state.OpRelease, root, held); r != nil {
		t.Fatal(r)
	}
	w.is(held, job.Pending)
	var results []state.JobResult
	w.do(func(t *state.Tx) {
		results = t.Control(&state.Control{Op: state.OpRequeue, Jobs: []job.Ref{{ID: never}, {ID: 99}}, Caller: root, Delay: 5})
	})
	if len(results) != 2 || results[0].Refused == nil || results[1].Refused.Code != "ESLURM_INVALID_JOB_ID" {
		t.Errorf("%+v", results)
	}
}

func TestTop(t *testing.T) {
	w := newWorld(t)
	w.submit(job.Spec{UID: 1})
	id := w.submit(job.Spec{UID: 1})
	wantRefusal(t, w.control(state.OpTop, alice, id), "ESLURM_ACCESS_DENIED", "operators")
	if r := w.control(state.OpTop, root, id); r != nil {
		t.Fatal(r)
	}
	if w.job(id).Priority <= w.job(1).Priority {
		t.Errorf("priorities %d and %d", w.job(id).Priority, w.job(1).Priority)
	}
}

func TestUpdateJob(t *testing.T) {
	const text = ""
	for _, c := range []struct {
		name       string
		caller     state.Caller
		running    bool
		set        []string
		code, word string
		check      func(*state.Job) bool
	}{
		{name: "lower limit", caller: alice, set: []string{"TimeLimit", "5"}, check: func(j *state.Job) bool { return j.TimeLimit == 300_000 && j.Spec.TimeLimit == 300_000 }},
		{name: "raise limit", caller: alice, set: []string{"timelimit", "120"}, code: "ESLURM_ACCESS_DENIED", word: "raise"},
		{name: "no limit", caller: alice, set: []string{"timelimit", "UNLIMITED"}, code: "ESLURM_ACCESS_DENIED", word: "raise"},
		{name: "raise limit, operator", caller: root, set: []string{"TIMELIMIT", "+10"}, check: func(j *state.Job) bool { return j.TimeLimit == 1_200_000 }},
		{name: "less", caller: alice, set: []string{"TimeLimit", "-4"}, check: func(j *state.Job) bool { return j.TimeLimit == 360_000 }},
		{name: "less than nothing", caller: root, set: []string{"TimeLimit", "-10"}, code: "ESLURM_INVALID_TIME_LIMIT", word: "Requested time limit is invalid"},
		{name: "bad limit", caller: root, set: []string{"TimeLimit", "soon"}, code: "ESLURM_INVALID_TIME_LIMIT", word: "soon"},
		{name: "limit of a running job", caller: root, running: true, set: []string{"TimeLimit", "20"}, check: func(j *state.Job) bool { return j.End == j.Start+1_200_000 }},
		{name: "priority", caller: root, set: []string{"Priority", "7"}, check: func(j *state.Job) bool { return j.Priority == 7 }},
		{name: "priority 0 holds", caller: alice, set: []string{"Priority", "0"}, check: func(j *state.Job) bool { return j.Priority == 0 && j.HeldBy == state.HoldUser }},
		{name: "raise priority", caller: alice, set: []string{"Priority", "4294967295"}, code: "ESLURM_ACCESS_DENIED", word: "priority"},
		{name: "nicer", caller: alice, set: []string{"Nice", "100"}, check: func(j *state.Job) bool { return j.Spec.Nice == 100 && j.Priority == 4294901759-100 }},
		{name: "less nice", caller: alice, set: []string{"Nice", "-1"}, code: "ESLURM_ACCESS_DENIED", word: "nice"},
		{name: "name", caller: alice, running: true, set: []string{"JobName", "new", "Comment", "why"}, check: func(j *state.Job) bool { return j.Spec.Name == "new" && j.Spec.Comment == "why" }},
		{name: "name too long", caller: alice, set: []string{"JobName", string(make([]byte, job.MaxString+1))}, code: "ESLURM_INVALID_VALUE", word: "job-name"},
		{name: "admin comment", caller: root, set: []string{"AdminComment", "x"}, check: func(j *state.Job) bool { return j.Comment == "x" }},
		{name: "admin comment of a user", caller: alice, set: []string{"AdminComment", "x"}, code: "ESLURM_ACCESS_DENIED", word: "operators"},
		{name: "partition", caller: alice, set: []string{"Partition", "q"}, check: func(j *state.Job) bool { return j.Partition == "q" && j.Spec.Partition == "q" }},
		{name: "no such partition", caller: alice, set: []string{"Partition", "z"}, code: "ESLURM_INVALID_PARTITION_NAME", word: `"z"`},
		{name: "partition of a running job", caller: alice, running: true, set: []string{"Partition", "q"}, code: "ESLURM_JOB_NOT_PENDING", word: "Partition"},
		{name: "begin, relative", caller: alice, set: []string{"StartTime", "now+60"}, check: func(j *state.Job) bool { return j.Begin == j.Submit/1000*1000+61_000 }},
		{name: "begin, Unix ms", caller: alice, set: []string{"EligibleTime", "1900000000000"}, check: func(j *state.Job) bool { return j.Begin == 1900000000000 }},
		{name: "size", caller: alice, set: []string{"NumNodes", "1-2", "NumTasks", "4", "CpusPerTask", "2", "MinMemoryCPU", "1G"},
			check: func(j *state.Job) bool {
				s := j.Spec
				return s.MinNodes == 1 && s.MaxNodes == 2 && s.NTasks == 4 && s.CPUsPerTask == 2 && s.MemPerCPU == gib && s.MemPerNode == 0
			}},
		{name: "memory of a node", caller: alice, set: []string{"MinMemoryNode", "0"}, check: func(j *state.Job) bool { return j.Spec.MemPerNode == job.WholeNode }},
		{name: "cpus", caller: alice, set: []string{"NumCPUs", "3"}, check: func(j *state.Job) bool { return j.Spec.NTasks == 3 }},
		{name: "gres", caller: alice, set: []string{"TresPerNode", "gres:gpu:2,gres/shard:1"}, check: func(j *state.Job) bool { return j.Spec.Gres == "gpu:2,shard:1" }},
		{name: "bad gres", caller: alice, set: []string{"Gres", "gpu:x:y:z"}, code: "ESLURM_INVALID_VALUE", word: "Gres"},
		{name: "requeue", caller: alice, set: []string{"Requeue", "0"}, check: func(j *state.Job) bool { return j.Spec.Requeue == -1 }},
		{name: "dependency on itself", caller: alice, set: []string{"Dependency", "afterok:1"}, code: "ESLURM_DEPENDENCY", word: "job 1"},
		{name: "throttle of no array", caller: alice, set: []string{"ArrayTaskThrottle", "1"}, code: "ESLURM_NOT_ARRAY", word: "tasks"},
		{name: "unknown", caller: root, set: []string{"Colour", "red"}, code: "ESLURM_NOT_SUPPORTED", word: "Colour"},
		{name: "all or none", caller: root, set: []string{"JobName", "new", "Zzz", text}, code: "ESLURM_NOT_SUPPORTED", word: "Zzz"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			spec := job.Spec{UID: alice.UID, Name: "old", TimeLimit: 600_000}
			var id uint32
			if c.running {
				id = w.run(spec)
			} else {
				id = w.submit(spec)
			}
			before := w.job(id)
			r := w.update(c.caller, id, c.set...)
			if c.code != "" {
				wantRefusal(t, r, c.code, c.word)
				if w.job(id) != before {
					t.Error("a refused update did something")
				}
				return
			}
			if r != nil {
				t.Fatal(r)
			}
			if j := w.job(id); !c.check(j) {
				t.Errorf("record %+v\nspec %+v", j, j.Spec)
			}
			if before.Spec.Name != "old" {
				t.Error("the update changed a record that a view may hold")
			}
		})
	}
}

// TestUpdateArrayShares: what one update makes of a shared specification is shared again.
func TestUpdateArrayShares(t *testing.T) {
	w := newWorld(t)
	base := w.submit(job.Spec{Array: "0-9"})
	w.plan(w.begin(base, 0, alloc("n1", 1)), w.begin(base, 1, alloc("n1", 1)))
	if r := w.update(root, base, "Comment", "x"); r != nil {
		t.Fatal(r)
	}
	first := w.job(base).Spec
	for _, j := range w.s.View().ArrayTasks(base) {
		if j.Spec != first || j.Spec.Comment != "x" {
			t.Errorf("%s: %q", j.Name(), j.Spec.Comment)
		}
	}
}

func TestPartitionUpdates(t *testing.T) {
	w := newWorld(t)
	try := func(name string, c state.Caller, set map[string]string) (r *state.Refusal) {
		w.do(func(t *state.Tx) { r = t.UpdatePartition(name, set, c) })
		return r
	}
	wantRefusal(t, try("p", alice, map[string]string{"State": "UP"}), "ESLURM_ACCESS_DENIED", "operators")
	wantRefusal(t, try("z", root, map[string]string{"State": "UP"}), "ESLURM_INVALID_PARTITION_NAME", `"z"`)
	wantRefusal(t, try("p", root, map[string]string{"State": "OPEN"}), "ESLURM_INVALID_VALUE", "OPEN")
	wantRefusal(t, try("p", root, map[string]string{"MaxTime": "5", "Zzz": "1"}), "ESLURM_NOT_SUPPORTED", "Zzz")
	if p := w.s.View().Partition("p"); p.MaxTime != job.Unlimited {
		t.Fatal("a refused update did something")
	}
	if r := try("p", root, map[string]string{"State": "drain", "MaxTime": "5", "MaxNodes": "UNLIMITED", "PriorityTier": "3", "Hidden": "YES"}); r != nil {
		t.Fatal(r)
	}
	if r := try("q", root, map[string]string{"Default": "YES"}); r != nil {
		t.Fatal(r)
	}
	check := func() {
		t.Helper()
		v := w.s.View()
		if p := v.Partition("p"); p.State != "DRAIN" || p.MaxTime != 300_000 || p.PriorityTier != 3 || !p.Hidden || p.Default || v.DefaultPartition().Name != "q" {
			t.Fatalf("%+v, default %s", p, v.DefaultPartition().Name)
		}
	}
	check()
	_, _, r := w.trySubmit("", job.Spec{Partition: "p"})
	wantRefusal(t, r, "ESLURM_PARTITION_NOT_AVAIL", "inactive or drain")
	w.configure()
	check()
	parts := partsOf("n1", "n2")
	parts[0].MinNodes = 1
	w.reload(state.Config{}, nodesOf("n1", "n2"), parts)
	if p := w.s.View().Partition("p"); p.State != "UP" || p.MaxTime != job.Unlimited {
		t.Errorf("the file changed the partition, the updates stayed: %+v", p)
	}
}

func TestConfigLimits(t *testing.T) {
	w := newWorld(t)
	many := make([]state.NodeConfig, state.MaxNodes+1)
	parts := make([]state.Partition, state.MaxPartitions+1)
	for _, c := range []struct {
		name  string
		nodes []state.NodeConfig
		parts []state.Partition
		word  string
	}{
		{"nodes", many, nil, "MaxNodes=65536"}, {"partitions", nil, parts, "MaxPartitions=4096"},
		{"node twice", nodesOf("a", "a"), nil, `"a"`}, {"partition without a name", nil, parts[:1], "empty"},
	} {
		w.do(func(tx *state.Tx) {
			wantRefusal(t, tx.SetConfig(state.Config{}, c.nodes, c.parts), "ESLURM_INVALID_CONFIG", c.word)
		})
		if w.s.View().Node("n1") == nil {
			t.Fatalf("%s: a refused configuration did something", c.name)
		}
	}
}

func TestNodesLeaveWhenFree(t *testing.T) {
	w := newWorld(t)
	id := w.run(job.Spec{})
	w.reload(state.Config{}, nodesOf("n2"), partsOf("n2"))
	n := w.s.View().Node("n1")
	if n == nil || !n.Removed || n.Usable() || w.s.View().Sched().Nodes[0].Name != "n2" {
		t.Fatalf("a busy node that left: %+v", n)
	}
	if w.plan(w.begin(w.submit(job.Spec{}), -1, alloc("n1", 1))) != 0 {
		t.Fatal("a start on a node that left")
	}
	w.report(id)
	w.is(id, job.Completed)
	if w.s.View().Node("n1") != nil {
		t.Fatal("the node stays although nothing runs there")
	}
	w.configure()
	if n := w.s.View().Node("n1"); n == nil || n.Usable() {
		t.Fatalf("back and not registered: %+v", n)
	}
}

// TestRequeueIsNoWayRound: a job that ended comes back to the queue under the rules for a new one.
func TestRequeueIsNoWayRound(t *testing.T) {
	w := newWorld(t, func(c *state.Config) { c.MaxSubmitPerUser = 1 })
	first := w.run(job.Spec{})
	w.report(first)
	second := w.submit(job.Spec{})
	wantRefusal(t, w.control(state.OpRequeue, root, first), "ESLURM_ACCOUNTING_POLICY", "MaxSubmitPerUser=1")
	w.is(first, job.Completed)
	w.cancel(root, job.Ref{ID: second})
	if r := w.control(state.OpRequeue, root, first); r != nil {
		t.Fatal(r)
	}
	w.is(first, job.Pending)
}

// TestAdminsHoldSurvivesCancel: a user does not shed an administrator's hold by cancel and requeue.
func TestAdminsHoldSurvivesCancel(t *testing.T) {
	w := newWorld(t)
	id := w.submit(job.Spec{UID: 1})
	w.control(state.OpHold, root, id)
	w.cancel(alice, job.Ref{ID: id})
	w.is(id, job.Cancelled)
	if r := w.control(state.OpRequeue, alice, id); r != nil {
		t.Fatal(r)
	}
	if j := w.job(id); j.HeldBy != state.HoldAdmin || j.Priority != 0 {
		t.Errorf("held by %d, priority %d", j.HeldBy, j.Priority)
	}
	wantReason(w, id, job.ReasonHeldAdmin)
	wantRefusal(t, w.control(state.OpRelease, alice, id), "ESLURM_ACCESS_DENIED", "administrator")
	own := w.submit(job.Spec{UID: 1})
	w.control(state.OpHold, alice, own)
	w.cancel(alice, job.Ref{ID: own})
	w.control(state.OpRequeue, alice, own)
	if j := w.job(own); j.HeldBy != state.HoldNone {
		t.Errorf("own hold: %d", j.HeldBy)
	}
}
