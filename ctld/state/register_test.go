package state_test

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

func TestReboot(t *testing.T) {
	w := newWorld(t)
	again, never := w.run(job.Spec{}), w.run(job.Spec{Requeue: -1})
	w.register("n1", "next boot")
	if j := w.is(again, job.Pending); j.Run != 1 || j.FailedNode != "n1" || j.Begin != 0 {
		t.Errorf("requeued at once: %+v", j)
	}
	w.is(never, job.NodeFail)
	wantReason(w, never, job.ReasonNodeDown)
	if n := w.s.View().Node("n1"); n.CPUsAlloc != 0 {
		t.Errorf("%d CPUs are still given", n.CPUsAlloc)
	}
}

func TestReconcile(t *testing.T) {
	w := newWorld(t)
	kept, lost := w.run(job.Spec{}), w.run(job.Spec{})
	unsure := w.submit(job.Spec{}) // its launch was not answered, and the node has it
	w.plan(w.begin(unsure, -1, alloc("n1", 1)))
	unsent := w.submit(job.Spec{}) // its launch has not reached the node
	w.plan(w.begin(unsent, -1, alloc("n1", 1)))
	w.register("n1", "boot", state.RunKey{JobID: kept}, state.RunKey{JobID: unsure}, state.RunKey{JobID: lost, Run: 4})
	w.is(kept, job.Running)
	w.is(unsure, job.Running)
	w.is(unsent, job.Running, "CONFIGURING")
	if j := w.is(lost, job.Pending); j.Run != 1 {
		t.Errorf("%+v", j)
	}
}

// TestFencing: no second run while the first may be alive.
func TestFencing(t *testing.T) {
	silence := func(w *world, down bool) {
		w.do(func(t *state.Tx) { t.NodeSilent(&state.Silence{Node: "n1", Silent: true, Down: down}) })
	}
	for _, c := range []struct {
		name  string
		prove func(*world, uint32)
		state job.State
		run   uint32
	}{
		{"lease", func(w *world, id uint32) { w.timer(id, "lease_over") }, job.Pending, 1},
		{"boot", func(w *world, _ uint32) { w.register("n1", "next") }, job.Pending, 1},
		{"operator", func(w *world, _ uint32) {
			w.do(func(t *state.Tx) {
				t.UpdateNode(&state.NodeUpdate{Nodes: []string{"n1"}, Set: map[string]string{"Fenced": "yes"}, Caller: root})
			})
		}, job.Pending, 1},
		{"it is back with the run", func(w *world, id uint32) { w.register("n1", "boot", state.RunKey{JobID: id}) }, job.Running, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			id := w.run(job.Spec{})
			silence(w, false)
			if n := w.s.View().Node("n1"); n.Flags&node.NotResponding == 0 || n.Usable() || n.State != node.Idle {
				t.Fatalf("%+v", n)
			}
			silence(w, true)
			w.is(id, job.Running)
			wantReason(w, id, job.ReasonFencing)
			if n := w.s.View().Node("n1"); n.State != node.Down || n.Reason != "Not responding" {
				t.Fatalf("%+v", n)
			}
			c.prove(w, id)
			if j := w.is(id, c.state); j.Run != c.run {
				t.Errorf("run %d, want %d", j.Run, c.run)
			}
			if j := w.job(id); j.Reason != "" {
				t.Errorf("reason %q stays", j.Reason)
			}
		})
	}
}

func TestReturnToService(t *testing.T) {
	for _, c := range []struct {
		mode  uint32
		admin bool
		want  node.State
	}{
		{0, false, node.Down}, {1, false, node.Idle}, {1, true, node.Down}, {2, false, node.Idle}, {2, true, node.Idle},
	} {
		w := newWorld(t, func(cfg *state.Config) { cfg.ReturnToService = c.mode })
		w.do(func(t *state.Tx) {
			if c.admin {
				t.UpdateNode(&state.NodeUpdate{Nodes: []string{"n1"}, State: "DOWN", Reason: "disk", Caller: root})
			} else {
				t.NodeSilent(&state.Silence{Node: "n1", Silent: true, Down: true})
			}
		})
		w.register("n1", "boot")
		if n := w.s.View().Node("n1"); n.State != c.want {
			t.Errorf("ReturnToService=%d, by an operator %t: state %d, want %d", c.mode, c.admin, n.State, c.want)
		}
	}
}

func TestDrainSurvives(t *testing.T) {
	w := newWorld(t)
	w.do(func(t *state.Tx) {
		t.UpdateNode(&state.NodeUpdate{Nodes: []string{"n1"}, State: "DRAIN", Reason: "broken fan", Caller: root})
	})
	w.register("n1", "boot")
	w.register("n1", "next boot")
	w.configure()
	if n := w.s.View().Node("n1"); n.Flags&node.Drain == 0 || n.Reason != "broken fan" || n.ReasonUser != "root" {
		t.Fatalf("%+v", n)
	}
	w.do(func(t *state.Tx) {
		t.UpdateNode(&state.NodeUpdate{Nodes: []string{"n1"}, State: "RESUME", Caller: root})
	})
	if n := w.s.View().Node("n1"); !n.Usable() || n.Reason != "" {
		t.Fatalf("%+v", n)
	}
}

func TestLessThanConfigured(t *testing.T) {
	for _, c := range []struct {
		name   string
		short  func(*node.Inventory)
		reason string
	}{
		{"cpus", func(i *node.Inventory) { i.CPUs = 3 }, "Low CPUs (3 < 4)"},
		{"memory", func(i *node.Inventory) { i.Mem = 7 * gib }, "Low RealMemory (reported:7168 < 100.00% of configured:8192)"},
		{"gres", func(i *node.Inventory) { i.Gres = "gpu:a100:1,shard:8" }, "gres/gpu count reported lower than configured (1 < 2)"},
		{"other type", func(i *node.Inventory) { i.Gres = "gpu:h100:2,shard:8" }, "gres/gpu count reported lower than configured (0 < 2)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			r := w.registration("n1", "boot")
			c.short(&r.Inventory)
			w.do(func(t *state.Tx) { t.RegisterNode(r) })
			if n := w.s.View().Node("n1"); n.Flags != node.InvalidReg|node.Drain || n.Reason != c.reason {
				t.Fatalf("flags %b, reason %q", n.Flags, n.Reason)
			}
			w.register("n1", "boot")
			if n := w.s.View().Node("n1"); n.Flags != node.Drain || n.Reason != c.reason {
				t.Errorf("after a good registration: flags %b, reason %q", n.Flags, n.Reason)
			}
		})
	}
	w := newWorld(t)
	w.do(func(tx *state.Tx) {
		wantRefusal(t, tx.RegisterNode(w.registration("n9", "b")), "ESLURM_INVALID_NODE_NAME", "n9")
		wantRefusal(t, tx.NodeSilent(&state.Silence{Node: "n9"}), "ESLURM_INVALID_NODE_NAME", "n9")
	})
}

func TestNodeUpdateRules(t *testing.T) {
	w := newWorld(t)
	try := func(u state.NodeUpdate) (r *state.Refusal) {
		w.do(func(t *state.Tx) { r = t.UpdateNode(&u) })
		return r
	}
	both := []string{"n1", "n2"}
	wantRefusal(t, try(state.NodeUpdate{Nodes: both, State: "DOWN", Caller: alice}), "ESLURM_ACCESS_DENIED", "operators")
	wantRefusal(t, try(state.NodeUpdate{Nodes: []string{"n1", "n9"}, State: "DOWN", Caller: root}), "ESLURM_INVALID_NODE_NAME", "n9")
	wantRefusal(t, try(state.NodeUpdate{Nodes: both, State: "DRAIN", Caller: root}), "ESLURM_INVALID_NODE_STATE", "Reason")
	wantRefusal(t, try(state.NodeUpdate{Nodes: both, State: "SLEEP", Caller: root}), "ESLURM_INVALID_NODE_STATE", "SLEEP")
	wantRefusal(t, try(state.NodeUpdate{Nodes: both, Set: map[string]string{"Weight": "x"}, Caller: root}), "ESLURM_INVALID_VALUE", "Weight=x")
	wantRefusal(t, try(state.NodeUpdate{Nodes: both, Set: map[string]string{"Colour": "x"}, Caller: root}), "ESLURM_NOT_SUPPORTED", "Colour")
	if n := w.s.View().Node("n1"); n.State != node.Idle || n.Flags != 0 {
		t.Fatalf("a refused update did something: %+v", n)
	}
	if r := try(state.NodeUpdate{Nodes: both, Set: map[string]string{"weight": "9", "Features": "a,b", "Comment": "c"}, Caller: root}); r != nil {
		t.Fatal(r)
	}
	if n := w.s.View().Node("n2"); n.Weight != 9 || len(n.Features) != 2 || n.Comment != "c" {
		t.Errorf("%+v", n)
	}
	w.configure()
	if n := w.s.View().Node("n2"); n.Weight != 9 {
		t.Errorf("a reload of the same file set the weight to %d", n.Weight)
	}
}

// TestDownByOperatorEndsRuns: they are over when the node says so.
func TestDownByOperatorEndsRuns(t *testing.T) {
	w := newWorld(t)
	id := w.run(job.Spec{})
	w.do(func(t *state.Tx) {
		t.UpdateNode(&state.NodeUpdate{Nodes: []string{"n1"}, State: "DOWN", Reason: "r", Caller: root})
	})
	if j := w.is(id, job.Pending, "COMPLETING", "REQUEUED"); j.Kill != job.WhyNodeFail || j.Run != 0 {
		t.Fatalf("%+v", j)
	}
	w.report(id, func(r *state.Reported) { r.Exit.Signal = 9 })
	if j := w.is(id, job.Pending); j.Run != 1 {
		t.Fatalf("%+v", j)
	}
}

// TestRunOverTwoNodes: the batch host ends the job; the loss of the other node ends it too.
func TestRunOverTwoNodes(t *testing.T) {
	w := newWorld(t)
	start := func() uint32 {
		id := w.submit(job.Spec{MinNodes: 2})
		if w.plan(w.begin(id, -1, alloc("n1", 1), alloc("n2", 2))) != 1 {
			t.Fatal("not taken")
		}
		w.launched(id, job.CauseNone, true)
		return id
	}
	id := start()
	w.report(id)
	w.is(id, job.Completed)
	if n := w.s.View().Node("n2"); n.CPUsAlloc != 0 {
		t.Fatalf("n2 holds %d CPUs", n.CPUsAlloc)
	}
	id = start()
	w.do(func(t *state.Tx) { t.NodeSilent(&state.Silence{Node: "n2", Silent: true, Down: true}) })
	j := w.is(id, job.Pending, "COMPLETING", "REQUEUED")
	v := w.s.View()
	if j.Kill != job.WhyNodeFail || v.Node("n1").CPUsAlloc != 1 || v.Node("n2").CPUsAlloc != 0 {
		t.Fatalf("%+v", j)
	}
	w.report(id, func(r *state.Reported) { r.Exit.Signal = 9 })
	if j := w.is(id, job.Pending); j.Run != 1 {
		t.Fatalf("%+v", j)
	}
}
