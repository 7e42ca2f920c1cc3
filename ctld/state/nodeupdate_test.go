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
