package state_test

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// runOn2 brings a job to RUNNING on n1 and n2.
func (w *world) runOn2(s job.Spec) uint32 {
	w.Helper()
	s.MinNodes, s.MaxNodes = 2, 2
	id := w.submit(s)
	if w.plan(w.begin(id, -1, alloc("n1", 1), alloc("n2", 1))) != 1 {
		w.Fatal("start not taken")
	}
	w.launched(id, job.CauseNone, true)
	return id
}

func (w *world) fence(names ...string) *state.Refusal {
	w.Helper()
	var r *state.Refusal
	w.do(func(t *state.Tx) {
		r = t.UpdateNode(&state.NodeUpdate{Nodes: names, Set: map[string]string{"Fenced": "yes"}, Caller: root})
	})
	return r
}

func TestFencingSeveralNodes(t *testing.T) {
	for _, tt := range []struct {
		name    string
		requeue int8
		nodes   []string
		removed bool
	}{
		{"one twice", 1, []string{"n1", "n1"}, false},
		{"both of a run that is queued again", 1, []string{"n1", "n2"}, false},
		{"the second first", 1, []string{"n2", "n1"}, false},
		{"both of a run that is not", -1, []string{"n1", "n2"}, false},
		{"the second is not configured any more", 1, []string{"n1", "n2"}, true},
		{"the first is not configured any more", -1, []string{"n2", "n1"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			id := w.runOn2(job.Spec{Requeue: tt.requeue})
			one := w.run(job.Spec{Requeue: -1})
			if tt.removed {
				cfg := *w.s.View().Config()
				w.reload(cfg, nodesOf("n1"), partsOf("n1"))
			}
			if r := w.fence(tt.nodes...); r != nil {
				t.Fatal(r)
			}
			if tt.requeue > 0 {
				w.is(id, job.Pending)
			} else {
				w.is(id, job.NodeFail)
			}
			w.is(one, job.NodeFail)
			n1, n2 := w.s.View().Node("n1"), w.s.View().Node("n2")
			if n1 == nil || n1.CPUsAlloc != 0 || len(n1.Jobs) != 0 {
				t.Errorf("n1: %+v", n1)
			}
			if tt.removed != (n2 == nil) {
				t.Errorf("n2: %+v", n2)
			}
		})
	}
}

func TestUpdateOfSeveralNodesIsAllOrNothing(t *testing.T) {
	w := newWorld(t)
	w.do(func(t *state.Tx) {
		r := t.UpdateNode(&state.NodeUpdate{Nodes: []string{"n1", "n1", "nowhere"}, State: "DRAIN", Reason: "x", Caller: root})
		wantRefusal(w, r, "ESLURM_INVALID_NODE_NAME", "nowhere")
	})
	if n := w.s.View().Node("n1"); n.Flags != 0 || n.Reason != "" {
		t.Errorf("n1 was changed: %v %q", n.Flags.Names(), n.Reason)
	}
}

// TestDevicesOfReload: a device that a run holds is not given again under another name.
func TestDevicesOfReload(t *testing.T) {
	gpu := func(typ string, index ...uint32) job.NodeAlloc {
		a := alloc("n1", 1)
		a.Gres = []job.GresAlloc{{Name: "gpu", Type: typ, Count: uint64(len(index)), Index: index}}
		return a
	}
	for _, tt := range []struct {
		name, list string
		try        job.NodeAlloc
		now, later int
		after      job.NodeAlloc
	}{
		{"the type is not told any more", "gpu:2", gpu("", 0), 0, 1, gpu("", 0)},
		{"nor for another device", "gpu:2", gpu("", 1), 0, 1, gpu("", 1)},
		{"another type comes before", "gpu:h100:1,gpu:a100:2", gpu("h100", 0), 0, 1, gpu("a100", 0)},
		{"more of them", "gpu:a100:4", gpu("a100", 3), 1, 1, gpu("a100", 0)},
		{"another type behind", "gpu:a100:2,gpu:h100:1", gpu("h100", 0), 1, 1, gpu("a100", 0)},
		{"fewer of them", "gpu:a100:1", gpu("a100", 0), 0, 1, gpu("a100", 0)},
		{"none", "", gpu("a100", 0), 0, 0, gpu("a100", 0)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			holds := w.submit(job.Spec{})
			first := gpu("a100", 0)
			if tt.name == "fewer of them" {
				first = gpu("a100", 1)
			}
			if w.plan(w.begin(holds, -1, first)) != 1 {
				t.Fatal("the first job does not start")
			}
			nodes := nodesOf("n1", "n2")
			nodes[0].Inventory.Gres = tt.list
			w.reload(*w.s.View().Config(), nodes, partsOf("n1", "n2"))
			r := w.registration("n1", "boot")
			r.Inventory.Gres, r.Held = tt.list, []state.RunKey{{JobID: holds}}
			w.do(func(tx *state.Tx) {
				tx.RegisterNode(r)
				tx.UpdateNode(&state.NodeUpdate{Nodes: []string{"n1"}, State: "RESUME", Caller: root})
			})
			if n := w.s.View().Node("n1"); !n.Usable() {
				t.Fatalf("n1: %v %s", n.Flags.Names(), n.Reason)
			}
			next := w.submit(job.Spec{})
			if got := w.plan(w.begin(next, -1, tt.try)); got != tt.now {
				t.Errorf("%d starts taken while the device is in use, want %d", got, tt.now)
			}
			for _, n := range w.s.View().Sched().Nodes[:1] {
				for _, g := range n.Gres {
					if free := g.Total - g.Taken; tt.now == 0 && g.Used != nil && free != 0 {
						t.Errorf("the planner sees %d free of %s:%s", free, g.Name, g.Type)
					}
				}
			}
			w.report(holds)
			if tt.now == 1 {
				w.report(next)
			}
			if got := w.s.View().Node("n1").Config.Gres; got != tt.list {
				t.Errorf("the node has %q, want %q", got, tt.list)
			}
			if got := w.plan(w.begin(w.submit(job.Spec{}), -1, tt.after)); got != tt.later {
				t.Errorf("%d starts taken afterwards, want %d", got, tt.later)
			}
		})
	}
}
