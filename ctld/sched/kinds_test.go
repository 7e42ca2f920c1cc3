package sched

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// A job that any device will do for gets one that nobody was promised, though another kind comes first on the node.
func TestAnyDeviceLeavesThePromisedOne(t *testing.T) {
	s := cluster(1, 4, 0)
	s.Nodes[0].Gres = []place.Gres{
		{Name: "gpu", Type: "a100", Total: 1, Used: make([]bool, 1)},
		{Name: "gpu", Type: "h100", Total: 1, Used: make([]bool, 1)},
	}
	s.run(9, 0, 3, 0, 60000)
	s.class("a", job.Spec{NTasks: 3, Gres: "gpu:a100:1"}, job.Extra{}, 10, 1)
	s.class("b", job.Spec{NTasks: 1, Gres: "gpu:1"}, job.Extra{}, 10, 2)
	d := Plan(s, 1000, Policy{Promises: 10})
	if len(d.Starts) != 1 || d.Starts[0].JobID != 2 || len(d.Promises) != 1 || d.Promises[0].Promise.Start != 60000 {
		t.Fatalf("%s, %+v", show(d), d.Promises)
	}
	if got := d.Starts[0].Nodes[0].Gres; len(got) != 1 || got[0].Type != "h100" {
		t.Errorf("job 2 gets %+v; the a100 is promised to job 1 from 60 s on", got)
	}
}
