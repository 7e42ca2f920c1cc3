package sched

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// drawSnapshot makes a small cluster in some state with some jobs waiting.
func drawSnapshot(t *rapid.T) *Snapshot {
	cpus := uint32(rapid.IntRange(1, 6).Draw(t, "cpus"))
	s := cluster(rapid.IntRange(1, 5).Draw(t, "nodes"), cpus, rapid.IntRange(0, 3).Draw(t, "gpus"))
	if rapid.Bool().Draw(t, "second partition") {
		s.Partitions = append(s.Partitions, &Partition{Name: "q", Up: true, Tier: uint32(rapid.IntRange(0, 1).Draw(t, "tier")),
			Nodes: s.Partitions[0].Nodes[:1], MaxTime: 3600000})
	}
	for i := range s.Nodes {
		n := s.Nodes[i]
		n.Weight = uint32(rapid.IntRange(0, 2).Draw(t, "weight"))
		n.Up = rapid.IntRange(0, 5).Draw(t, "up") > 0
		for n.FreeCPUs > 0 && rapid.Bool().Draw(t, "run") {
			gpus := 0
			if len(n.Gres) > 0 && n.Gres[0].Taken < n.Gres[0].Total {
				gpus = rapid.IntRange(0, 1).Draw(t, "gpu")
			}
			end := int64(rapid.IntRange(0, 20).Draw(t, "end")) * 60000
			s.run(uint32(100+len(s.Running)), i, uint32(rapid.IntRange(1, int(n.FreeCPUs)).Draw(t, "held")), gpus, end)
		}
	}
	id := uint32(0)
	for c := range rapid.IntRange(1, 6).Draw(t, "classes") {
		spec := job.Spec{
			NTasks: uint32(rapid.IntRange(0, 6).Draw(t, "tasks")), NTasksPerNode: uint32(rapid.IntRange(0, 2).Draw(t, "per node")),
			CPUsPerTask: uint32(rapid.IntRange(0, 3).Draw(t, "cpus per task")), MinNodes: uint32(rapid.IntRange(0, 3).Draw(t, "min nodes")),
			MemPerCPU: int64(rapid.IntRange(0, 2).Draw(t, "mem")) << 29, Exclusive: rapid.IntRange(0, 4).Draw(t, "exclusive") == 0,
			Partition: rapid.SampledFrom([]string{"", "p", "q", "p,q"}).Draw(t, "partition"),
			Gres:      rapid.SampledFrom([]string{"", "gpu", "gpu:2", "gpu:a100:1,gpu:1"}).Draw(t, "gres"),
		}
		var w []Waiting
		for range rapid.IntRange(1, 4).Draw(t, "jobs") {
			id++
			k := Waiting{JobID: id, Priority: int64(rapid.IntRange(0, 3).Draw(t, "priority")), Submit: int64(id),
				Begin: int64(rapid.IntRange(0, 2).Draw(t, "begin")) * 1000, Time: int64(rapid.IntRange(0, 15).Draw(t, "time")) * 60000, Limit: -1}
			if rapid.IntRange(0, 3).Draw(t, "array") == 0 {
				k.Tasks, k.Limit = job.NewSet(1, 2, 3), rapid.IntRange(-1, 3).Draw(t, "limit")
			}
			w = append(w, k)
		}
		slices.SortStableFunc(w, func(a, b Waiting) int { return int(b.Priority - a.Priority) })
		s.wait(fmt.Sprint("c", c), spec, w...)
	}
	return s
}

const propNow = 1000

// Nothing is given twice and no job starts that may not.
func TestPlanKeepsToWhatIsFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		before, _ := json.Marshal(s.Nodes)
		d := Plan(s, propNow, Policy{})
		if after, _ := json.Marshal(s.Nodes); string(after) != string(before) {
			t.Fatal("Plan changed its snapshot")
		}
		waiting := map[uint32]Waiting{}
		for _, c := range s.Classes {
			for w := range c.Waiting {
				waiting[w.JobID] = w
			}
		}
		seen, tasks := map[string]bool{}, map[uint32]int{}
		for _, st := range d.Starts {
			w := waiting[st.JobID]
			key := fmt.Sprint(st.JobID, ".", st.Task)
			if seen[key] {
				t.Fatalf("%s starts twice", key)
			}
			seen[key] = true
			tasks[st.JobID]++
			if w.Begin > propNow || w.Priority == 0 || (w.Tasks == nil) != (st.Task < 0) {
				t.Fatalf("job %d may not start: %+v", st.JobID, w)
			}
			if w.Tasks != nil && w.Limit >= 0 && tasks[st.JobID] > w.Limit {
				t.Fatalf("job %d: %d tasks start, limit %d", st.JobID, tasks[st.JobID], w.Limit)
			}
			for _, a := range st.Nodes {
				use(t, s, &a)
			}
		}
	})
}

// use takes an allocation out of the snapshot and fails when it is not there.
func use(t *rapid.T, s *Snapshot, a *job.NodeAlloc) {
	i := slices.IndexFunc(s.Nodes, func(n *Node) bool { return n.Name == a.Node })
	n := s.Nodes[i]
	if !n.Up || a.CPUs == 0 || a.CPUs > n.FreeCPUs || a.Mem > n.FreeMem || int(a.CPUs) != len(a.CPUIDs) || a.Tasks == 0 {
		t.Fatalf("%+v does not fit on %+v", a, n)
	}
	n.FreeCPUs -= a.CPUs
	n.FreeMem -= a.Mem
	for _, c := range a.CPUIDs {
		if n.CPUUsed[c] {
			t.Fatalf("CPU %d of %s is given twice", c, n.Name)
		}
		n.CPUUsed[c] = true
	}
	for _, g := range a.Gres {
		if int(g.Count) != len(g.Index) {
			t.Fatalf("%d devices counted, %d given", g.Count, len(g.Index))
		}
		for _, x := range g.Index {
			if n.Gres[0].Used[x] {
				t.Fatalf("device %d of %s is given twice", x, n.Name)
			}
			n.Gres[0].Used[x] = true
		}
	}
}

func TestPlanIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		a, _ := json.Marshal(Plan(s, propNow, Policy{}))
		b, _ := json.Marshal(Plan(s, propNow, Policy{}))
		if string(a) != string(b) {
			t.Fatalf("two plans of one snapshot:\n%s\n%s", a, b)
		}
	})
}
