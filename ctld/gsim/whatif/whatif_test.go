package whatif

import (
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/replay"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

const minute = 60000

// cluster is two nodes of 4 CPUs; n0 is busy for 10 minutes more. Job 7 wants both, job 8 one CPU for an hour, job 9 is an
// array of three tasks of 4 CPUs and 5 minutes, job 5 is held.
func cluster(t *testing.T) *sched.Snapshot {
	t.Helper()
	p, err := priority.Parse(priority.Config{Type: "fcfs"})
	if err != nil {
		t.Fatal(err)
	}
	node := func(name string, used int) *place.Node {
		n := &place.Node{Name: name, Weight: 1, Up: true, CPUs: 4, Mem: 4 << 30, FreeCPUs: uint32(4 - used), FreeMem: int64(4-used) << 30, CPUUsed: make([]bool, 4), Busy: used > 0}
		for i := range used {
			n.CPUUsed[i] = true
		}
		if used > 0 {
			n.Runs = 1
		}
		return n
	}
	set, _, err := job.ParseArray("0-2", 100)
	if err != nil {
		t.Fatal(err)
	}
	class := func(key string, spec *job.Spec, w sched.Waiting) *sched.Class {
		spec.Partition = "all"
		w.Revision, w.Limit = 1, -1
		return &sched.Class{Key: key, Version: 1, Spec: spec, Time: spec.TimeLimit, Waiting: slices.Values([]sched.Waiting{w}), Count: 1}
	}
	return &sched.Snapshot{Version: 1, Capacity: 1, Layout: 1, Priority: p, Cluster: priority.Cluster{Nodes: 2, CPUs: 8},
		Nodes:      []*place.Node{node("n0", 4), node("n1", 0)},
		Partitions: []*sched.Partition{{Name: "all", Nodes: []int{0, 1}, Up: true, Default: true, Tier: 1, MaxTime: job.Unlimited, DefaultTime: job.Unlimited}},
		Running: []*sched.Running{{JobID: 1, Partition: "all", Start: 1, End: 1000000 + 10*minute, Tier: 1,
			Allocs: []job.NodeAlloc{{Node: "n0", CPUs: 4, Mem: 4 << 30, Tasks: 4, CPUIDs: []uint32{0, 1, 2, 3}}}}},
		Classes: []*sched.Class{
			class("a", &job.Spec{NTasks: 8, CPUsPerTask: 1, MinNodes: 2, MaxNodes: 2, TimeLimit: 20 * minute}, sched.Waiting{JobID: 7, Submit: 10, Accrue: 10}),
			class("b", &job.Spec{NTasks: 1, CPUsPerTask: 1, MinNodes: 1, TimeLimit: 60 * minute}, sched.Waiting{JobID: 8, Submit: 20, Accrue: 20}),
			class("c", &job.Spec{NTasks: 4, CPUsPerTask: 1, MinNodes: 1, MaxNodes: 1, TimeLimit: 5 * minute}, sched.Waiting{JobID: 9, Submit: 30, Accrue: 30, Tasks: set}),
			class("d", &job.Spec{NTasks: 1, CPUsPerTask: 1, MinNodes: 1, TimeLimit: minute}, sched.Waiting{JobID: 5, Submit: 5, Accrue: 5, Held: true, Blocked: "JobHeldUser"}),
		}}
}

const now = 1000000

func look(t *testing.T, s *sched.Snapshot, pol sched.Policy) map[uint32]Job {
	t.Helper()
	list, err := Forecast(s, now, pol, sched.NewPlanner())
	if err != nil {
		t.Fatal(err)
	}
	m := map[uint32]Job{}
	for _, j := range list {
		m[j.ID] = j
	}
	return m
}

func TestForecast(t *testing.T) {
	s := cluster(t)
	got := look(t, s, sched.Policy{})
	// 7 gets both nodes after 10 minutes. Two tasks of 9 go ahead of it on n1, 5 minutes each; 8 would be in its way until
	// 7 is through; the last task of 9 starts with it.
	for _, c := range []struct {
		id          uint32
		first, last int64
		starts      int
	}{{7, 10, 10, 1}, {8, 30, 30, 1}, {9, 0, 30, 3}, {5, -1, -1, 0}} {
		j := got[c.id]
		first, last := int64(-1), int64(-1)
		if j.Starts > 0 {
			first, last = (j.First-now)/minute, (j.Last-now)/minute
		}
		if first != c.first || last != c.last || j.Starts != c.starts {
			t.Errorf("job %d: %+v, which is minute %d to %d, want %d to %d and %d starts", c.id, j, first, last, c.first, c.last, c.starts)
		}
	}
	if got[5].Reason != "JobHeldUser" {
		t.Errorf("the held job: %+v", got[5])
	}
	if n := s.Nodes[1]; n.FreeCPUs != 4 || len(s.Running) != 1 || len(s.Classes) != 4 {
		t.Error("the snapshot was changed")
	}
}

func TestApply(t *testing.T) {
	s := cluster(t)
	more, err := Apply(s, &Change{Add: 2, Like: "n0"})
	if err != nil {
		t.Fatal(err)
	}
	if got := look(t, more, sched.Policy{}); got[7].First != now || got[8].First != now {
		t.Errorf("with two more nodes: %+v", got)
	}
	less, err := Apply(s, &Change{Down: []string{"n1"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := look(t, less, sched.Policy{}); got[7].First != 0 || got[9].First < now+10*minute {
		t.Errorf("without n1: %+v", got)
	}
	pol, err := replay.ReadPolicy("p", strings.NewReader("order=sjf\npromises=0\n"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := Apply(s, &Change{Policy: pol})
	if err != nil {
		t.Fatal(err)
	}
	if got := look(t, other, pol.Sched); got[7].First <= now+10*minute {
		t.Errorf("shortest first lets the array go before: %+v", got)
	}
	for _, c := range []struct {
		change Change
		want   string
	}{{Change{Down: []string{"x"}}, "no node x"}, {Change{Add: 1, Like: "y"}, "no node y"}} {
		if _, err := Apply(s, &c.change); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.change, err)
		}
	}
	s.Priority = nil
	if _, err := Apply(s, &Change{Policy: pol}); err == nil || !strings.Contains(err.Error(), "feature level") {
		t.Error(err)
	}
}
