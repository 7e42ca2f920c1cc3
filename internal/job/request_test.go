package job

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/gres"
)

func TestRequest(t *testing.T) {
	for _, c := range []struct {
		name                          string
		spec                          Spec
		min, max, tasks, cpus, perNde uint32
		given                         bool
	}{
		{"nothing", Spec{}, 1, 1, 1, 1, 0, false},
		{"-n4", Spec{NTasks: 4}, 1, 4, 4, 4, 0, true},
		{"-n4 -c2", Spec{NTasks: 4, CPUsPerTask: 2}, 1, 4, 4, 8, 0, true},
		{"-N2", Spec{MinNodes: 2}, 2, 2, 2, 2, 0, false},
		{"-N2 -n3", Spec{MinNodes: 2, NTasks: 3}, 2, 2, 3, 3, 0, true},
		{"-N2 -n1 needs one node", Spec{MinNodes: 2, NTasks: 1}, 1, 1, 1, 1, 0, true},
		{"-N2 --ntasks-per-node=2", Spec{MinNodes: 2, NTasksPerNode: 2}, 2, 2, 4, 4, 2, true},
		{"--ntasks-per-node=3", Spec{NTasksPerNode: 3}, 1, 1, 3, 3, 3, true},
		{"-n7 --ntasks-per-node=3", Spec{NTasks: 7, NTasksPerNode: 3}, 3, 7, 7, 7, 3, true},
		{"-N2-4", Spec{MinNodes: 2, MaxNodes: 4}, 2, 4, 2, 2, 0, false},
		{"-N2-4 -n3", Spec{MinNodes: 2, MaxNodes: 4, NTasks: 3}, 2, 3, 3, 3, 0, true},
		{"--mincpus=8 -n2", Spec{NTasks: 2, MinCPUsPerNode: 8}, 1, 2, 2, 8, 0, true},
		{"as much as there is", Spec{MinNodes: 65536, NTasksPerNode: 256, CPUsPerTask: 65536}, 65536, 65536, 1 << 24, 1<<32 - 1, 256, true},
	} {
		r := c.spec.Request()
		if r.MinNodes != c.min || r.MaxNodes != c.max || r.Tasks != c.tasks || r.CPUs != c.cpus || r.TasksPerNode != c.perNde || r.TasksGiven != c.given {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}

func TestRequestParts(t *testing.T) {
	s := Spec{MinNodes: 2, MaxNodes: 4, NTasksPerNode: 2, CPUsPerTask: 3, MemPerCPU: 100 * mib, Gres: "gpu:a100:2"}
	r := s.Request()
	if n := r.TasksFor(&s, 3); n != 6 {
		t.Errorf("tasks on 3 nodes: %d", n)
	}
	if n := r.CPUsFor(2); n != 6 {
		t.Errorf("CPUs for 2 tasks: %d", n)
	}
	if m := r.MemFor(6); m != 600*mib {
		t.Errorf("memory for 6 CPUs: %d", m)
	}
	if text := r.TRES().String(); text != "cpu=12,mem=1200M,node=2,billing=12,gres/gpu=4,gres/gpu:a100=4" {
		t.Errorf("TRES: %s", text)
	}
	fixed := Spec{NTasks: 5, MemPerNode: WholeNode, MinCPUsPerNode: 8}
	r = fixed.Request()
	if r.TasksFor(&fixed, 3) != 5 || r.CPUsFor(1) != 8 || r.MemFor(8) != WholeNode {
		t.Errorf("%+v", r)
	}
	if text := r.TRES().String(); text != "cpu=8,node=1,billing=8" {
		t.Errorf("TRES without memory: %s", text)
	}
	huge := Spec{MemPerCPU: MaxMemory, MinNodes: MaxNodesPerJob, CPUsPerTask: MaxCPUsPerTask}
	r = huge.Request()
	if r.MemFor(1<<31) <= 0 || r.TRES().Mem <= 0 {
		t.Error("memory ran over")
	}
}

func TestTRES(t *testing.T) {
	for want, tres := range map[string]TRES{
		"": {},
		"cpu=4,mem=16G,node=1,billing=4,gres/gpu=2":               {CPUs: 4, Mem: 16 << 30, Nodes: 1, Billing: 4, Gres: []gres.Item{{Name: "gpu", Count: 2}}},
		"cpu=1,gres/gpu=3,gres/gpu:a=2,gres/gpu:b=1,gres/shard=4": {CPUs: 1, Gres: []gres.Item{{Name: "gpu", Type: "a", Count: 2}, {Name: "shard", Count: 4}, {Name: "gpu", Type: "b", Count: 1}}},
	} {
		if got := tres.String(); got != want {
			t.Errorf("%+v is %q, want %q", tres, got, want)
		}
	}
	allocs := []NodeAlloc{
		{Node: "n1", CPUs: 2, Mem: 4 << 30, Gres: []GresAlloc{{Name: "gpu", Type: "a100", Count: 1, Index: []uint32{0}}}},
		{Node: "n2", CPUs: 1, Mem: 4 << 30, Gres: []GresAlloc{{Name: "gpu", Type: "a100", Count: 1, Index: []uint32{3}}}},
	}
	if got := AllocTRES(allocs).String(); got != "cpu=3,mem=8G,node=2,billing=3,gres/gpu=2,gres/gpu:a100=2" {
		t.Errorf("AllocTRES: %s", got)
	}
}
