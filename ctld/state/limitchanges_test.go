package state_test

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func taken(t testing.TB, r *state.Refusal) {
	t.Helper()
	if r != nil {
		t.Fatalf("refused: %+v", r)
	}
}

// TestRunsCountWhateverChanges: a run that may not use its QOS or account any more still takes what it takes, and is
// charged for it: else others would start in its place.
func TestRunsCountWhateverChanges(t *testing.T) {
	w := enforced(t)
	w.must("modify", "account", []string{"name=lab"}, []string{"grptres=cpu=4"})
	a, b := w.submit(of("alice", job.Spec{QOS: "high"})), w.submit(of("alice", job.Spec{}))
	w.plan(w.begin(a, -1, alloc("n1", 3)))
	start := w.job(a).Start
	w.must("modify", "user", []string{"name=alice"}, []string{"qos=normal"})
	if u := w.use("lab"); u.Jobs != 1 || u.Submit != 2 {
		t.Fatalf("use %+v after the QOS was taken away", u)
	}
	if n := w.plan(w.begin(b, -1, alloc("n2", 2))); n != 0 {
		t.Fatal("5 CPUs of 4")
	}
	w.at(start + 100_000)
	w.tick()
	if n := cpuOf(w.usage("lab")); n < 3*99_000 {
		t.Fatalf("usage %d", n)
	}
	waits := w.submit(of("bob", job.Spec{}))
	w.must("modify", "account", []string{"name=sub"}, []string{"qos=high"})
	if n := w.plan(w.begin(waits, -1, alloc("n2", 1))); n != 0 {
		t.Fatal("a job with a QOS that its account may not use any more was started")
	}
	if u := w.use("sub"); u.Submit != 1 {
		t.Fatalf("use %+v", u)
	}
}

// TestQOSInUseStays: a QOS that jobs or partitions have is not deleted.
func TestQOSInUseStays(t *testing.T) {
	w := enforced(t)
	w.must("add", "qos", nil, []string{"name=part"})
	id := w.submit(of("alice", job.Spec{QOS: "high"}))
	_, r := w.account(root, "delete", "qos", []string{"name=high"}, nil)
	wantRefusal(t, r, "ESLURM_JOBS_RUNNING_ON_ASSOC", "job")
	w.do(func(tx *state.Tx) {
		if r := tx.UpdatePartition("p", map[string]string{"QOS": "part"}, root); r != nil {
			t.Fatal(r)
		}
	})
	_, r = w.account(root, "delete", "qos", []string{"name=part"}, nil)
	wantRefusal(t, r, "ESLURM_INVALID_QOS", "partition p")
	w.cancel(root, job.Ref{ID: id})
	w.must("delete", "qos", []string{"name=high"}, nil)
}

// TestUpdateKeepsSubmitLimits: a job that is moved to another account or QOS counts there before it may come.
func TestUpdateKeepsSubmitLimits(t *testing.T) {
	w := enforced(t)
	w.must("add", "user", nil, []string{"name=alice", "account=sub"})
	w.must("modify", "account", []string{"name=sub"}, []string{"grpsubmitjobs=2"})
	first := w.submit(of("alice", job.Spec{Array: "1-2"}))
	single := w.submit(of("alice", job.Spec{}))
	taken(t, w.update(root, single, "Account", "sub", "Nice", "3"))
	wantRefusal(t, w.update(root, first, "Account", "sub"), "ESLURM_ACCOUNTING_POLICY", "GrpSubmitJobs")
	w.must("modify", "account", []string{"name=sub"}, []string{"grpsubmitjobs=1"})
	taken(t, w.update(root, single, "Nice", "5"))
	if u := w.use("sub"); u.Submit != 1 {
		t.Fatalf("use %+v", u)
	}
}

// TestRequeueKeepsSubmitLimits: a job that had ended counts again when it is queued again.
func TestRequeueKeepsSubmitLimits(t *testing.T) {
	w := enforced(t)
	w.must("modify", "account", []string{"name=lab"}, []string{"grpsubmitjobs=1"})
	a := w.run(of("alice", job.Spec{Requeue: 1}))
	w.report(a)
	b := w.submit(of("alice", job.Spec{}))
	wantRefusal(t, w.control(state.OpRequeue, root, a), "ESLURM_ACCOUNTING_POLICY", "GrpSubmitJobs")
	w.cancel(root, job.Ref{ID: b})
	taken(t, w.control(state.OpRequeue, root, a))
	w.is(a, job.Pending)
}

// TestUsersSetNoPriority: priorities are worked out, and one that is set stands above all those: users may hold their
// jobs and lower what an administrator set.
func TestUsersSetNoPriority(t *testing.T) {
	w := newWorld3(t)
	w.submit(job.Spec{UID: 2})
	id := w.submit(job.Spec{UID: alice.UID})
	wantRefusal(t, w.update(alice, id, "Priority", "4000000000"), "ESLURM_ACCESS_DENIED", "worked out")
	taken(t, w.update(root, id, "Priority", "1000"))
	wantRefusal(t, w.update(alice, id, "Priority", "1001"), "ESLURM_ACCESS_DENIED", "")
	taken(t, w.update(alice, id, "Priority", "900"))
	taken(t, w.update(alice, id, "Priority", "0"))
	if j := w.job(id); j.Priority != 0 || j.HeldBy != state.HoldUser {
		t.Fatalf("%+v", j)
	}
}

// TestOneUsersNodes: nobody else's run comes onto a node that one user has, however old the plan.
func TestOneUsersNodes(t *testing.T) {
	w := newWorld3(t)
	mine := w.submit(job.Spec{UID: 1, Rare: option(job.OptExclusive, "user")})
	other, again := w.submit(job.Spec{UID: 2}), w.submit(job.Spec{UID: 1})
	if n := w.plan(w.begin(mine, -1, alloc("n1", 1)), w.begin(other, -1, alloc("n1", 1)), w.begin(again, -1, alloc("n1", 1))); n != 2 {
		t.Fatalf("%d starts", n)
	}
	if n := w.plan(w.begin(other, -1, alloc("n2", 1))); n != 1 {
		t.Fatal("an empty node")
	}
	late := w.submit(job.Spec{UID: 1, Rare: option(job.OptExclusive, "user")})
	if n := w.plan(w.begin(late, -1, alloc("n2", 1))); n != 0 {
		t.Fatal("a node that another user has a run on")
	}
}

// TestHetEndsWithTheShortest: components end together, and none runs beyond its own limit.
func TestHetEndsWithTheShortest(t *testing.T) {
	w := newWorld3(t)
	id := w.het("", &job.Spec{TimeLimit: 7_200_000}, &job.Spec{TimeLimit: 3_600_000})
	if w.startHet(id, "n1", "n2") != 2 {
		t.Fatal("it did not start")
	}
	for _, j := range []*state.Job{w.job(id), w.job(id + 1)} {
		if j.End != j.Start+3_600_000 {
			t.Fatalf("job %d ends after %d", j.ID, j.End-j.Start)
		}
	}
	if limit := w.job(id).TimeLimit; limit != 3_600_000 {
		t.Fatalf("time limit %d", limit)
	}
	wantRefusal(t, w.update(root, id+1, "TimeLimit", "30"), "ESLURM_NOT_WHOLE_HET_JOB", "")
	w.timer(id+1, "time_limit")
	w.is(id+1, job.Running, "CONFIGURING")
}

// TestHetResumesOnOneNode: the CPUs of two components on one node are free together, or neither goes on.
func TestHetResumesOnOneNode(t *testing.T) {
	w := newWorld3(t)
	id := w.het("", &job.Spec{}, &job.Spec{})
	if w.startHet(id, "n1", "n1") != 2 {
		t.Fatal("it did not start")
	}
	w.launched(id, job.CauseNone, true)
	taken(t, w.control(state.OpSuspend, root, id))
	all := w.s.View().Node("n1").Config.CPUs
	other := w.submit(job.Spec{})
	if w.plan(w.begin(other, -1, alloc("n1", all-1))) != 1 {
		t.Fatal("the CPUs are not free")
	}
	wantRefusal(t, w.control(state.OpResume, root, id), "ESLURM_NODES_BUSY", "")
}

// TestStaleTimeLimit: a limit that ran out on paper while the run was suspended does not end it.
func TestStaleTimeLimit(t *testing.T) {
	w := newWorld3(t)
	id := w.run(job.Spec{TimeLimit: 60_000})
	w.control(state.OpSuspend, root, id)
	w.timer(id, "time_limit")
	w.is(id, job.Suspended)
}

// TestEvictedAgainAfterSuspension: what a suspension noted does not outlive it.
func TestEvictedAgainAfterSuspension(t *testing.T) {
	w := newWorld3(t)
	id := w.run(job.Spec{})
	for _, how := range []string{sched.EvictSuspend, sched.EvictResume} {
		w.decide(&sched.Decision{Evicts: []sched.Evict{{JobID: id, Run: w.job(id).Run, How: how, By: 99}}})
	}
	if j := w.is(id, job.Running); j.PreemptAt != 0 || j.PreemptBy != 0 || j.PreemptHow != "" {
		t.Fatalf("%d %q by %d", j.PreemptAt, j.PreemptHow, j.PreemptBy)
	}
}

// TestCoordinatorsGiveWhatTheyHave: a coordinator gives users and accounts no QOS that the account above has not.
func TestCoordinatorsGiveWhatTheyHave(t *testing.T) {
	w := enforced(t)
	w.must("add", "qos", nil, []string{"name=secret"})
	w.must("add", "coordinator", nil, []string{"account=lab", "name=alice"})
	boss := state.Caller{UID: 5, User: "alice"}
	for _, c := range []struct {
		entity, where, set string
		may                bool
	}{
		{"user", "account=sub", "qos+=high", true},
		{"user", "account=sub", "qos+=secret", false},
		{"user", "account=lab", "defaultqos=secret", false},
		{"account", "name=sub", "qos=normal,secret", false},
		{"account", "name=sub", "qos=normal,high", true},
		{"account", "name=lab", "qos=secret", false},
		{"account", "name=sub", "qos-=high", true},
	} {
		_, r := w.account(boss, "modify", c.entity, []string{c.where}, []string{c.set})
		if (r == nil) != c.may || r != nil && r.Code != "ESLURM_ACCESS_DENIED" {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

// TestHetWithItsReservation: a heterogeneous job is held, or ends, with the reservation of one of its components.
func TestHetWithItsReservation(t *testing.T) {
	w := reserved(t)
	spec := func() (*job.Spec, *job.Spec) {
		a, b := of("alice", job.Spec{TimeLimit: 60_000}), of("alice", job.Spec{TimeLimit: 60_000, Rare: option(job.OptReservation, "r")})
		return &a, &b
	}
	a, b := spec()
	runs := w.het("", a, b)
	a, b = spec()
	waits := w.het("", a, b)
	w.to(61)
	if w.startHet(runs, "n2", "n1") != 2 {
		t.Fatal("it did not start")
	}
	w.update(root, runs, "TimeLimit", "180")
	w.to(121)
	for _, id := range []uint32{runs, runs + 1} {
		if j := w.job(id); j.State != job.Timeout {
			t.Errorf("job %d is %s", id, j.State)
		}
	}
	for _, id := range []uint32{waits, waits + 1} {
		if j := w.job(id); j.Priority != 0 || j.HeldBy == state.HoldNone {
			t.Errorf("job %d is not held: %+v", id, j)
		}
	}
}
