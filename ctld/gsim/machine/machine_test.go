package machine

import (
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func TestTwice(t *testing.T) {
	m := New([]*place.Node{{Name: "n0", CPUs: 4, FreeCPUs: 4, Mem: 100, FreeMem: 100, CPUUsed: make([]bool, 4),
		Gres: []place.Gres{{Name: "gpu", Total: 2, Used: make([]bool, 2)}}}})
	before := m.Nodes[0]
	a := &job.NodeAlloc{Node: "n0", CPUs: 2, Mem: 60, CPUIDs: []uint32{0, 1}, Gres: []job.GresAlloc{{Name: "gpu", Count: 1, Index: []uint32{1}}}}
	if err := m.Take(a); err != nil {
		t.Fatal(err)
	}
	if before.FreeCPUs != 4 || m.Nodes[0].FreeCPUs != 2 || m.CPUs != 2 || m.GPUs != 1 || !m.Nodes[0].Busy {
		t.Errorf("%+v, then %+v", before, m.Nodes[0])
	}
	for _, c := range []struct {
		a    job.NodeAlloc
		want string
	}{
		{job.NodeAlloc{Node: "n1"}, "no node n1"},
		{job.NodeAlloc{Node: "n0", CPUs: 3}, "3 CPUs"},
		{job.NodeAlloc{Node: "n0", CPUs: 1, Mem: 41}, "41 bytes"},
		{job.NodeAlloc{Node: "n0", CPUs: 1, CPUIDs: []uint32{1}}, "CPU 1 of n0"},
		{job.NodeAlloc{Node: "n0", Gres: []job.GresAlloc{{Name: "gpu", Count: 1, Index: []uint32{1}}}}, "gpu 1 of n0"},
		{job.NodeAlloc{Node: "n0", Gres: []job.GresAlloc{{Name: "gpu", Count: 2}}}, "2 gpu of n0"},
		{job.NodeAlloc{Node: "n0", Gres: []job.GresAlloc{{Name: "nic", Count: 2}}}, "no nic"},
	} {
		if err := m.Take(&c.a); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.a, err, c.want)
		}
	}
	if err := m.Give(a); err != nil || m.Nodes[0].FreeCPUs != 4 || m.Nodes[0].FreeMem != 100 || m.CPUs != 0 || m.GPUs != 0 || m.Nodes[0].Busy {
		t.Errorf("%v %+v", err, m.Nodes[0])
	}
}
