package state_test

import (
	"slices"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

func TestHowRunsEnd(t *testing.T) {
	type rep = func(*state.Reported)
	for _, c := range []struct {
		name   string
		spec   job.Spec
		before func(*world, uint32)
		report rep
		state  job.State
		reason job.Reason
		exit   job.Exit
	}{
		{name: "success", report: func(*state.Reported) {}, state: job.Completed, reason: job.ReasonNone},
		{name: "code", report: func(r *state.Reported) { r.Exit.Code = 3 }, state: job.Failed, reason: job.ReasonNonZeroExit, exit: job.Exit{Code: 3}},
		{name: "signal", report: func(r *state.Reported) { r.Exit.Signal = 9 }, state: job.Failed, reason: "RaisedSignal:9(Killed)", exit: job.Exit{Signal: 9}},
		{name: "memory", report: func(r *state.Reported) { r.OOM, r.Exit.Signal = true, 9 }, state: job.OutOfMemory, reason: job.ReasonOutOfMemory, exit: job.Exit{Signal: 125}},
		{name: "output file", report: func(r *state.Reported) { r.StdoutError = "nodir: no such directory" }, state: job.Failed, reason: job.ReasonOutputFile, exit: job.Exit{Signal: 53}},
		{name: "could not start", report: func(r *state.Reported) { r.Error, r.Cause = "no shell", job.CauseUser }, state: job.Failed, reason: job.ReasonLaunchFailure, exit: job.Exit{Code: 1}},
		{name: "limit, by the node", report: func(r *state.Reported) { r.KilledFor, r.Exit.Signal = job.WhyTimeLimit, 15 }, state: job.Timeout, reason: job.ReasonTimeLimit, exit: job.Exit{Signal: 15}},
		{name: "limit, by the controller", before: func(w *world, id uint32) {
			w.timer(id, "time_limit")
			w.is(id, job.Timeout, "COMPLETING")
		}, report: func(r *state.Reported) { r.Exit.Signal = 9 }, state: job.Timeout, reason: job.ReasonTimeLimit, exit: job.Exit{Signal: 9}},
		{name: "cancelled", before: func(w *world, id uint32) {
			w.cancel(root, job.Ref{ID: id})
			j := w.is(id, job.Cancelled, "COMPLETING")
			if j.Kill != job.WhyCancel || !j.Cancelled || w.s.View().Node("n1").CPUsAlloc != 1 {
				w.Fatalf("%+v", j)
			}
		}, report: func(r *state.Reported) { r.Exit.Signal = 15 }, state: job.Cancelled, reason: job.ReasonNone, exit: job.Exit{Signal: 15}},
		{name: "lost, not to be requeued", spec: job.Spec{Requeue: -1}, report: func(r *state.Reported) { r.Lost = true }, state: job.NodeFail, reason: job.ReasonNodeDown},
		{name: "preempted, not to be requeued", spec: job.Spec{Requeue: -1}, report: func(r *state.Reported) { r.KilledFor = job.WhyPreempt }, state: job.Preempted, reason: job.ReasonNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			id := w.run(c.spec)
			if c.before != nil {
				c.before(w, id)
			}
			w.report(id, c.report)
			j := w.is(id, c.state)
			wantReason(w, id, c.reason)
			if j.Exit != c.exit || j.End < j.Start || j.UserUS != 7 || j.MaxRSS != 100 {
				t.Errorf("exit %v, want %v; end %d, start %d, user %d", j.Exit, c.exit, j.End, j.Start, j.UserUS)
			}
			if n := w.s.View().Node("n1"); n.CPUsAlloc != 0 || n.MemAlloc != 0 || len(n.Jobs) != 0 {
				t.Errorf("the node still holds %+v", n)
			}
			v := w.s.View().Version()
			w.report(id, func(r *state.Reported) { r.UserUS, r.Exit.Code = 1000, 9 })
			if again := w.job(id); again != j {
				t.Errorf("version %d: the second report changed the record", v)
			}
		})
	}
}

func TestReportsOfOtherRuns(t *testing.T) {
	w := newWorld(t)
	id := w.run(job.Spec{})
	j := w.job(id)
	for name, change := range map[string]func(*state.Reported){
		"run":  func(r *state.Reported) { r.Run = 1 },
		"node": func(r *state.Reported) { r.Node = "n2" },
		"job":  func(r *state.Reported) { r.JobID = 99 },
	} {
		if w.report(id, change); w.job(id) != j {
			t.Errorf("a report of another %s changed the record", name)
		}
	}
	w.report(id, func(r *state.Reported) { r.Step, r.Exit.Code = 0, 4 })
	w.report(id, func(r *state.Reported) { r.Step, r.Exit.Code = 1, 2 })
	if d := w.is(id, job.Running).Derived; d.Code != 4 {
		t.Errorf("derived exit %v, want the highest of the steps", d)
	}
}

func TestUsageIsOfOneRun(t *testing.T) {
	w := newWorld(t)
	id := w.run(job.Spec{})
	if r := w.control(state.OpRequeue, root, id); r != nil {
		t.Fatal(r)
	}
	j := w.is(id, job.Pending, "COMPLETING", "REQUEUED")
	if j.Kill != job.WhyRequeue || j.Run != 0 || w.s.View().Node("n1").CPUsAlloc != 1 {
		t.Fatalf("while the run ends: %+v", j)
	}
	if w.plan(w.begin(id, -1, alloc("n2", 1))) != 0 {
		t.Fatal("a second run started while the first was alive")
	}
	w.report(id)
	j = w.is(id, job.Pending)
	if j.Run != 1 || j.Restarts != 1 || j.UserUS != 0 || j.Allocs != nil || j.Begin < w.now+100_000 {
		t.Fatalf("requeued: %+v", j)
	}
	wantReason(w, id, job.ReasonBeginTime)
	w.now += 120_000
	if w.plan(w.begin(id, -1, alloc("n2", 1))) != 1 {
		t.Fatal("the second run was not taken")
	}
}

func TestLaunchFailures(t *testing.T) {
	for _, c := range []struct {
		name    string
		cause   job.Cause
		requeue int8
		state   job.State
		flags   []string
		reason  job.Reason
		drained string
		avoid   []string
	}{
		{name: "prolog", cause: job.CauseProlog, state: job.Pending, flags: []string{"REQUEUE_HOLD"}, reason: job.ReasonHeldAdmin, drained: "Prolog error"},
		{name: "node", cause: job.CauseNode, state: job.Pending, reason: job.ReasonNone, drained: "launch failed: why", avoid: []string{"n1"}},
		{name: "user", cause: job.CauseUser, state: job.Failed, flags: []string{"LAUNCH_FAILED"}, reason: job.ReasonLaunchFailure},
		{name: "credential", cause: job.CauseCredential, state: job.Pending, reason: job.ReasonNone, avoid: []string{"n1"}},
		{name: "prolog, no requeue", cause: job.CauseProlog, requeue: -1, state: job.Failed, flags: []string{"LAUNCH_FAILED"}, reason: job.ReasonProlog, drained: "Prolog error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			id := w.submit(job.Spec{Requeue: c.requeue})
			w.plan(w.begin(id, -1, alloc("n1", 1)))
			w.is(id, job.Running, "CONFIGURING")
			w.launched(id, c.cause, false)
			j := w.is(id, c.state, c.flags...)
			wantReason(w, id, c.reason)
			if !slices.Equal(j.Avoid, c.avoid) || c.state == job.Pending && j.Run != 1 {
				t.Errorf("avoids %v, run %d", j.Avoid, j.Run)
			}
			n := w.s.View().Node("n1")
			if drained := n.Flags&node.Drain != 0; drained != (c.drained != "") || n.Reason != c.drained {
				t.Errorf("node: %v %q, want %q", n.Flags, n.Reason, c.drained)
			}
		})
	}
}

// TestDuplicateLaunch: a launcher that knows the run already did start it, so it must not be run again.
func TestDuplicateLaunch(t *testing.T) {
	w := newWorld(t)
	id := w.submit(job.Spec{})
	w.plan(w.begin(id, -1, alloc("n1", 1)))
	w.launched(id, job.CauseDuplicate, false)
	j := w.is(id, job.Running)
	w.launched(id, job.CauseNode, false)
	if w.job(id) != j {
		t.Error("an answer after the first changed the record")
	}
}

func TestRequeueLimitAndAvoid(t *testing.T) {
	w := newWorld(t, func(c *state.Config) { c.MaxBatchRequeue = 2 })
	id := w.submit(job.Spec{})
	for range 2 {
		w.plan(w.begin(id, -1, alloc("n1", 1)))
		w.launched(id, job.CauseCredential, false)
		w.is(id, job.Pending)
	}
	w.plan(w.begin(id, -1, alloc("n1", 1)))
	w.launched(id, job.CauseCredential, false)
	w.is(id, job.Pending, "REQUEUE_HOLD")
	wantReason(w, id, job.ReasonMaxRequeue)

	w = newWorld(t, func(c *state.Config) { c.MaxBatchRequeue = 0 })
	id = w.submit(job.Spec{})
	for range state.MaxAvoid + 1 {
		w.plan(w.begin(id, -1, alloc("n1", 1)))
		w.launched(id, job.CauseCredential, false)
	}
	if n := len(w.job(id).Avoid); n != state.MaxAvoid {
		t.Errorf("%d avoided nodes, the limit is %d", n, state.MaxAvoid)
	}
}

func TestEpilogErrorDrains(t *testing.T) {
	w := newWorld(t)
	id := w.run(job.Spec{})
	w.report(id, func(r *state.Reported) { r.EpilogError = "exit 1" })
	w.is(id, job.Completed)
	if n := w.s.View().Node("n1"); n.Flags&node.Drain == 0 || n.Reason != "Epilog error" || n.Usable() {
		t.Errorf("%+v", n)
	}
}

func TestSignals(t *testing.T) {
	w := newWorld(t)
	id := w.run(job.Spec{})
	send := func() (r *state.Refusal) {
		w.do(func(t *state.Tx) {
			r = t.Cancel(&state.Cancel{Jobs: []job.Ref{{ID: id}}, Signal: 10, Full: true, Caller: root})[0].Refused
		})
		return r
	}
	for range state.MaxSignals {
		if r := send(); r != nil {
			t.Fatal(r)
		}
	}
	if s := w.job(id).Signals[0]; s != (state.Signal{Seq: 1, Number: 10, Full: true}) {
		t.Fatalf("the first: %+v", s)
	}
	wantRefusal(t, send(), "EAGAIN", "MaxSignals=16")
	w.do(func(t *state.Tx) { t.JobTimer(&state.JobTimer{JobID: id, What: "signals_sent", Seq: 15}) })
	if s := w.job(id).Signals; len(s) != 1 || s[0].Seq != 16 {
		t.Fatalf("left: %+v", s)
	}
	pending := w.submit(job.Spec{})
	var r *state.Refusal
	w.do(func(t *state.Tx) {
		r = t.Cancel(&state.Cancel{Jobs: []job.Ref{{ID: pending}}, Signal: 10, Caller: root})[0].Refused
	})
	wantRefusal(t, r, "ESLURM_TRANSITION_STATE_NO_UPDATE", "no processes")
}

func TestCancelRules(t *testing.T) {
	w := newWorld(t)
	id := w.submit(job.Spec{UID: 7, User: "bob"})
	wantRefusal(t, w.cancel(alice, job.Ref{ID: id})[0].Refused, "ESLURM_ACCESS_DENIED", "bob")
	wantRefusal(t, w.cancel(root, job.Ref{ID: 99})[0].Refused, "ESLURM_INVALID_JOB_ID", "99")
	if r := w.cancel(state.Caller{UID: 7}, job.Ref{ID: id})[0].Refused; r != nil {
		t.Fatal(r)
	}
	j := w.is(id, job.Cancelled)
	if !j.Cancelled || j.CancelUID != 7 || j.End != w.now {
		t.Errorf("%+v", j)
	}
	wantRefusal(t, w.cancel(root, job.Ref{ID: id})[0].Refused, "ESLURM_ALREADY_DONE", "CANCELLED")
}

// TestCancelInStates: a job that has moved on since it was chosen by its state is left alone.
func TestCancelInStates(t *testing.T) {
	w := newWorld(t)
	runs, waits := w.run(job.Spec{}), w.submit(job.Spec{})
	array := w.submit(job.Spec{Array: "0-2"})
	w.plan(w.begin(array, 1, alloc("n2", 1)))
	w.do(func(tx *state.Tx) {
		for _, r := range tx.Cancel(&state.Cancel{
			Jobs: []job.Ref{{ID: runs}, {ID: waits}, {ID: array}}, States: []job.State{job.Pending}, Caller: root}) {
			if r.Refused != nil {
				t.Errorf("%s: %+v", r.Job, r.Refused)
			}
		}
	})
	w.is(runs, job.Running)
	w.is(waits, job.Cancelled)
	w.is(array, job.Cancelled)
	w.is(w.s.View().ArrayTask(array, 1).ID, job.Running, "CONFIGURING")
	w.do(func(tx *state.Tx) {
		tx.Cancel(&state.Cancel{Jobs: []job.Ref{{ID: runs}}, Signal: 10, States: []job.State{job.Pending}, Caller: root})
	})
	if n := len(w.job(runs).Signals); n != 0 {
		t.Errorf("%d signals", n)
	}
}
