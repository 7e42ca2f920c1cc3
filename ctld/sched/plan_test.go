package sched

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// cluster makes n empty nodes n1.. with so many CPUs, 1 GiB of memory a CPU and gpus devices, and
// one partition "p" over all of them.
func cluster(n int, cpus uint32, gpus int) *Snapshot {
	s := &Snapshot{Version: 7}
	part := &Partition{Name: "p", Up: true, Default: true, MaxTime: job.Unlimited}
	for i := range n {
		node := &Node{Name: fmt.Sprintf("n%d", i+1), Weight: 1, Up: true, CPUs: cpus, Mem: int64(cpus) << 30,
			FreeCPUs: cpus, FreeMem: int64(cpus) << 30, CPUUsed: make([]bool, cpus), TmpDisk: 1 << 30}
		if gpus > 0 {
			node.Gres = []Gres{{Name: "gpu", Type: "a100", Total: uint64(gpus), Used: make([]bool, gpus)}}
		}
		s.Nodes = append(s.Nodes, node)
		part.Nodes = append(part.Nodes, i)
	}
	s.Partitions = []*Partition{part}
	return s
}

// run lets a job hold CPUs, memory and devices of a node until end.
func (s *Snapshot) run(id uint32, n int, cpus uint32, gpus int, end int64) {
	node := s.Nodes[n]
	a := job.NodeAlloc{Node: node.Name, CPUs: cpus, Mem: int64(cpus) << 30}
	a.CPUIDs = lowest(node.CPUUsed, uint64(cpus))
	node.FreeCPUs -= cpus
	node.FreeMem -= a.Mem
	node.Busy = true
	if gpus > 0 {
		g := &node.Gres[0]
		a.Gres = []job.GresAlloc{{Name: g.Name, Type: g.Type, Count: uint64(gpus), Index: lowest(g.Used, uint64(gpus))}}
		g.Taken += uint64(gpus)
	}
	s.Running = append(s.Running, &Running{JobID: id, Partition: "p", End: end, Allocs: []job.NodeAlloc{a}})
}

// wait adds a class of one shape with these waiting records.
func (s *Snapshot) wait(key string, spec job.Spec, w ...Waiting) {
	s.Classes = append(s.Classes, &Class{Key: key, Mixed: true, Spec: &spec, Waiting: slices.Values(w), Count: len(w)})
}

func one(id uint32) Waiting {
	return Waiting{JobID: id, Priority: 1000000 - int64(id), Submit: int64(id)}
}

func (w Waiting) limit(minutes int64) Waiting { w.Time = minutes * 60000; return w }

// show writes the starts as "job[.task]@node:cpus/tasks+node..." in the plan's order.
func show(d *Decision) string {
	var out []string
	for _, s := range d.Starts {
		text := fmt.Sprint(s.JobID)
		if s.Task >= 0 {
			text += fmt.Sprint(".", s.Task)
		}
		for i, a := range s.Nodes {
			text += string("@+"[min(i, 1)]) + fmt.Sprintf("%s:%d/%d", a.Node, a.CPUs, a.Tasks)
			for _, g := range a.Gres {
				text += fmt.Sprint(g.Index)
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func TestPlace(t *testing.T) {
	for _, tt := range []struct {
		name   string
		spec   job.Spec
		change func(*Snapshot)
		want   string
		reason job.Reason
	}{
		{name: "one cpu", want: "1@n1:1/1"},
		{name: "tasks fill the first nodes", spec: job.Spec{NTasks: 6}, want: "1@n1:4/4+n2:2/2"},
		{name: "two nodes three tasks", spec: job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 3}, want: "1@n1:2/2+n2:1/1"},
		{name: "tasks per node", spec: job.Spec{MinNodes: 2, MaxNodes: 2, NTasksPerNode: 2}, want: "1@n1:2/2+n2:2/2"},
		{name: "tasks bounded per node", spec: job.Spec{NTasks: 4, NTasksPerNode: 2}, want: "1@n1:2/2+n2:2/2"},
		{name: "fewer tasks than nodes, of which the partition allows one", spec: job.Spec{MinNodes: 3, NTasks: 1},
			change: func(s *Snapshot) { s.Partitions[0].MaxNodes = 1 }, want: "1@n1:1/1"},
		{name: "nodes only", spec: job.Spec{MinNodes: 3, MaxNodes: 3}, want: "1@n1:1/1+n2:1/1+n3:1/1"},
		{name: "range of nodes", spec: job.Spec{MinNodes: 1, MaxNodes: 2}, want: "1@n1:1/1+n2:1/1"},
		{name: "cpus per task", spec: job.Spec{NTasks: 2, CPUsPerTask: 3}, want: "1@n1:3/1+n2:3/1"},
		{name: "one node for all tasks", spec: job.Spec{MinNodes: 1, MaxNodes: 1, NTasks: 4},
			change: func(s *Snapshot) { s.run(9, 0, 1, 0, 0) }, want: "1@n2:4/4"},
		{name: "roomiest when few nodes must do", spec: job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 7},
			change: func(s *Snapshot) { s.run(9, 0, 2, 0, 0) }, want: "1@n2:4/4+n3:3/3"},
		{name: "more nodes than tasks", spec: job.Spec{MinNodes: 3, NTasks: 2}, want: "1@n1:1/1+n2:1/1"},
		{name: "mincpus", spec: job.Spec{MinCPUsPerNode: 3}, want: "1@n1:3/1"},
		{name: "weight first", change: func(s *Snapshot) { s.Nodes[0].Weight = 9 }, want: "1@n2:1/1"},
		{name: "exclusive", spec: job.Spec{Exclusive: true, Gres: "gpu:1"},
			change: func(s *Snapshot) { s.run(9, 0, 1, 0, 0) }, want: "1@n2:4/1[0 1]"},
		{name: "whole-node partition", change: func(s *Snapshot) { s.Partitions[0].WholeNodes = true }, want: "1@n1:4/1[0 1]"},
		{name: "gpu", spec: job.Spec{Gres: "gpu:a100:2"},
			change: func(s *Snapshot) { s.run(9, 0, 1, 1, 0) }, want: "1@n2:1/1[0 1]"},
		{name: "free gpu of a used node", spec: job.Spec{Gres: "gpu:1"},
			change: func(s *Snapshot) { s.run(9, 0, 1, 1, 0) }, want: "1@n1:1/1[1]"},
		{name: "memory on each node", spec: job.Spec{MemPerNode: 4 << 30},
			change: func(s *Snapshot) { s.run(9, 0, 1, 0, 0) }, want: "1@n2:1/1"},
		{name: "all memory", spec: job.Spec{MemPerNode: job.WholeNode},
			change: func(s *Snapshot) { s.run(9, 0, 1, 0, 0) }, want: "1@n2:1/1"},
		{name: "memory a cpu", spec: job.Spec{MemPerCPU: 2 << 30, NTasks: 3}, want: "1@n1:2/2+n2:1/1"},
		{name: "partition's memory default", change: func(s *Snapshot) {
			s.Partitions[0].DefMemPerNode = 4 << 30
			s.run(9, 0, 1, 0, 0)
		}, want: "1@n2:1/1"},
		{name: "named node", spec: job.Spec{NodeList: "n3"}, want: "1@n3:1/1"},
		{name: "named nodes are all taken", spec: job.Spec{NodeList: "n[2-3]"}, want: "1@n2:1/1+n3:1/1"},
		{name: "excluded", spec: job.Spec{Exclude: "n[1-2]"}, want: "1@n3:1/1"},
		{name: "constraint", spec: job.Spec{Constraint: "big&(fast|new)"},
			change: func(s *Snapshot) {
				s.Nodes[0].Features, s.Nodes[1].Features = []string{"big"}, []string{"big", "new"}
			}, want: "1@n2:1/1"},
		{name: "no node has the features", spec: job.Spec{Constraint: "huge"}, reason: job.ReasonBadConstraints},
		{name: "constraint not understood", spec: job.Spec{Constraint: "a&"}, reason: job.ReasonBadConstraints},
		{name: "too big for the partition", spec: job.Spec{CPUsPerTask: 5}, reason: job.ReasonPartitionConfig},
		{name: "no such partition", spec: job.Spec{Partition: "q"}, reason: job.ReasonPartitionConfig},
		{name: "too many nodes for the partition", spec: job.Spec{MinNodes: 3, MaxNodes: 3},
			change: func(s *Snapshot) { s.Partitions[0].MaxNodes = 2 }, reason: job.ReasonPartitionNodeLimit},
		{name: "partition down", change: func(s *Snapshot) { s.Partitions[0].Up = false }, reason: job.ReasonPartitionDown},
		{name: "partition inactive", change: func(s *Snapshot) { s.Partitions[0].Inactive = true }, reason: job.ReasonPartitionInactive},
		{name: "named node is down", spec: job.Spec{NodeList: "n2"},
			change: func(s *Snapshot) { s.Nodes[1].Up = false }, reason: job.ReasonReqNodeNotAvail},
		{name: "nodes are down", spec: job.Spec{MinNodes: 3, MaxNodes: 3},
			change: func(s *Snapshot) { s.Nodes[1].Up = false }, reason: job.ReasonNodesDown},
		{name: "taken", spec: job.Spec{MinNodes: 3, MaxNodes: 3, CPUsPerTask: 4},
			change: func(s *Snapshot) { s.run(9, 0, 1, 0, 0) }, reason: job.ReasonResources},
		{name: "tmp disk", spec: job.Spec{MinTmpDisk: 2 << 30},
			change: func(s *Snapshot) { s.Nodes[2].TmpDisk = 4 << 30 }, want: "1@n3:1/1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := cluster(3, 4, 0)
			if tt.spec.Gres != "" || strings.Contains(tt.want, "[") {
				s = cluster(3, 4, 2)
			}
			if tt.change != nil {
				tt.change(s)
			}
			s.wait("c", tt.spec, one(1))
			d := Plan(s, 1000, Policy{})
			if got := show(d); got != tt.want {
				t.Errorf("starts %q, want %q", got, tt.want)
			}
			var got job.Reason
			for _, c := range d.Classes {
				got = c.Reason
			}
			if got != tt.reason {
				t.Errorf("reason %q, want %q (%+v)", got, tt.reason, d.Classes)
			}
		})
	}
}

func TestAvoidedNodesComeLast(t *testing.T) {
	s := cluster(2, 1, 0)
	s.wait("c", job.Spec{}, one(1), one(2))
	s.Classes[0].Avoid = []string{"n1"}
	if got := show(Plan(s, 0, Policy{})); got != "1@n2:1/1 2@n1:1/1" {
		t.Error(got)
	}
}

func TestShareOfMemory(t *testing.T) {
	s := cluster(1, 4, 0)
	s.wait("c", job.Spec{NTasks: 3}, one(1))
	if got := Plan(s, 0, Policy{}).Starts[0].Nodes[0].Mem; got != 3<<30 {
		t.Errorf("3 of 4 CPUs brought %d bytes, want 3 GiB", got)
	}
}

func TestDetailSaysWhatIsMissing(t *testing.T) {
	s := cluster(3, 4, 1)
	for n := range 3 {
		s.run(uint32(90+n), n, 0, 1, 0)
	}
	s.wait("c", job.Spec{CPUsPerTask: 4, Gres: "gpu:1"}, one(1))
	want := "needs 4 CPUs and 1 gpu on one node; 3 nodes have the CPUs, none has a free gpu; the jobs it waits for have no time limit"
	if got := Plan(s, 0, Policy{}).Classes[0].Detail; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRank(t *testing.T) {
	s := cluster(1, 2, 0)
	s.Partitions = append(s.Partitions, &Partition{Name: "top", Up: true, Tier: 5, Nodes: []int{0}, MaxTime: job.Unlimited})
	s.wait("a", job.Spec{}, Waiting{JobID: 1, Priority: 9}, Waiting{JobID: 2, Priority: 5})
	s.wait("b", job.Spec{MinNodes: 1}, Waiting{JobID: 3, Priority: 7})
	s.wait("c", job.Spec{Partition: "top"}, Waiting{JobID: 4, Priority: 1})
	if got := show(Plan(s, 0, Policy{})); got != "4@n1:1/1 1@n1:1/1" {
		t.Error(got)
	}
}

func TestSeveralPartitions(t *testing.T) {
	s := cluster(2, 1, 0)
	s.Partitions[0].Nodes = []int{0}
	s.Partitions = append(s.Partitions, &Partition{Name: "q", Up: true, Nodes: []int{1}, MaxTime: job.Unlimited})
	w := one(1)
	w.Tasks, w.Limit = job.NewSet(0, 1, 2), -1
	s.wait("a", job.Spec{Partition: "p,q"}, w, one(2))
	d := Plan(s, 0, Policy{})
	if got := show(d); got != "1.0@n1:1/1 1.1@n2:1/1" {
		t.Error(got)
	}
	if d.Starts[1].Partition != "q" {
		t.Error("the second task did not start in q")
	}
}

func TestArrayLimit(t *testing.T) {
	s := cluster(1, 8, 0)
	w := one(1)
	w.Tasks, w.Limit = job.NewSet(3, 5, 7), 2
	s.wait("a", job.Spec{}, w)
	d := Plan(s, 0, Policy{})
	if got := show(d); got != "1.3@n1:1/1 1.5@n1:1/1" {
		t.Error(got)
	}
	if len(d.Reasons) != 1 || d.Reasons[0].Reason != job.ReasonArrayLimit {
		t.Errorf("reasons %+v", d.Reasons)
	}
}

func TestNotNow(t *testing.T) {
	s := cluster(1, 8, 0)
	held, later, dep, full := one(1), one(2), one(3), one(4)
	held.Priority, later.Begin, dep.Blocked = 0, 5000, job.ReasonDependency
	full.Tasks, full.Limit = job.NewSet(1), 0
	s.wait("a", job.Spec{}, held, later, dep, full, one(5))
	d := Plan(s, 4999, Policy{})
	if got := show(d); got != "5@n1:1/1" || d.Wake != 5000 {
		t.Errorf("starts %q, wake %d", got, d.Wake)
	}
	if d = Plan(s, 5000, Policy{}); show(d) != "2@n1:1/1 5@n1:1/1" || d.Wake != 0 {
		t.Errorf("at its begin time: %q, wake %d", show(d), d.Wake)
	}
}

func TestBackfill(t *testing.T) {
	const minute = 60000
	for _, tt := range []struct {
		name string
		make func(*Snapshot)
		want string
		at   int64 // start of the reserved job
	}{
		{name: "short job ends in time", at: 10 * minute, want: "2@n2:4/4", make: func(s *Snapshot) {
			s.run(9, 0, 4, 0, 10*minute)
			s.wait("a", job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 8}, one(1))
			s.wait("b", job.Spec{NTasks: 4}, one(2).limit(10))
		}},
		{name: "long job would delay", at: 10 * minute, make: func(s *Snapshot) {
			s.run(9, 0, 4, 0, 10*minute)
			s.wait("a", job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 8}, one(1))
			s.wait("b", job.Spec{NTasks: 4}, one(2).limit(11))
		}},
		{name: "shorter one of the class behind a long one", at: 10 * minute, want: "3@n2:4/4", make: func(s *Snapshot) {
			s.run(9, 0, 4, 0, 10*minute)
			s.wait("a", job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 8}, one(1))
			s.wait("b", job.Spec{NTasks: 4}, one(2).limit(11), one(3).limit(5))
		}},
		{name: "long job uses what is spare", at: 10 * minute, want: "2@n2:1/1", make: func(s *Snapshot) {
			s.run(9, 0, 4, 0, 10*minute)
			s.wait("a", job.Spec{MinNodes: 2, MaxNodes: 2, NTasksPerNode: 3, CPUsPerTask: 1}, one(1))
			s.wait("b", job.Spec{}, one(2), one(3))
		}},
		{name: "all that ends in that moment is spare", at: 10 * minute, want: "2@n1:1/1", make: func(s *Snapshot) {
			s.Nodes[1].Up = false
			s.run(8, 0, 2, 0, 10*minute)
			s.run(9, 0, 1, 0, 10*minute)
			s.wait("a", job.Spec{CPUsPerTask: 3}, one(1))
			s.wait("b", job.Spec{}, one(2))
		}},
		{name: "unlimited run: only unlimited jobs keep away", want: "2@n2:4/4", make: func(s *Snapshot) {
			s.run(9, 0, 4, 0, 0)
			s.wait("a", job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 8}, one(1))
			s.wait("b", job.Spec{NTasks: 4}, one(2).limit(600))
		}},
		{name: "nothing is kept for what can not run", want: "2@n1:1/1", make: func(s *Snapshot) {
			s.wait("a", job.Spec{CPUsPerTask: 99}, one(1))
			s.wait("b", job.Spec{}, one(2))
		}},
		{name: "shortened to the least time", at: 10 * minute, want: "2@n2:4/4", make: func(s *Snapshot) {
			s.run(9, 0, 4, 0, 10*minute)
			s.wait("a", job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 8}, one(1))
			w := one(2).limit(30)
			w.TimeMin = 5 * minute
			s.wait("b", job.Spec{NTasks: 4}, w)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := cluster(2, 4, 0)
			tt.make(s)
			d := Plan(s, 0, Policy{})
			if got := show(d); got != tt.want {
				t.Errorf("starts %q, want %q", got, tt.want)
			}
			if d.Classes[0].Start != tt.at {
				t.Errorf("reserved at %d, want %d", d.Classes[0].Start, tt.at)
			}
		})
	}
}

func TestTimeLimit(t *testing.T) {
	s := cluster(1, 8, 0)
	s.Partitions[0].MaxTime, s.Partitions[0].DefaultTime = 3600000, 60000
	s.wait("a", job.Spec{}, one(1), one(2).limit(60), one(3).limit(61))
	d := Plan(s, 0, Policy{})
	if len(d.Starts) != 2 || d.Starts[0].TimeLimit != 60000 || d.Starts[1].TimeLimit != 3600000 {
		t.Errorf("starts %+v", d.Starts)
	}
	if len(d.Reasons) != 1 || d.Reasons[0].JobID != 3 || d.Reasons[0].Reason != job.ReasonPartitionTimeLimit {
		t.Errorf("reasons %+v", d.Reasons)
	}
}

func TestLimits(t *testing.T) {
	many := func(n int) *Snapshot {
		s := cluster(1, uint32(2*n), 0)
		w := make([]Waiting, n)
		for i := range w {
			w[i] = one(uint32(i + 1))
		}
		s.wait("a", job.Spec{}, w...)
		return s
	}
	if got := len(Plan(many(MaxStarts+1), 0, Policy{}).Starts); got != MaxStarts {
		t.Errorf("%d starts of %d jobs, limit %d", got, MaxStarts+1, MaxStarts)
	}
	if got := len(Plan(many(10), 0, Policy{MaxStarts: 3}).Starts); got != 3 {
		t.Errorf("%d starts under a policy of 3", got)
	}
	s := many(MaxReasons + 1)
	s.Partitions[0].MaxTime = 1000
	w := slices.Collect(s.Classes[0].Waiting)
	for i := range w {
		w[i].Time = 2000
	}
	s.Classes[0].Waiting = slices.Values(w)
	if got := len(Plan(s, 0, Policy{}).Reasons); got != MaxReasons {
		t.Errorf("%d reasons, limit %d", got, MaxReasons)
	}
	s = cluster(2, 4, 0)
	s.run(9, 0, 4, 0, 600000)
	s.wait("a", job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 8}, one(1))
	w = make([]Waiting, MaxSkips+1)
	for i := range w {
		w[i] = one(uint32(i + 2)).limit(11)
	}
	w[MaxSkips] = w[MaxSkips].limit(5)
	s.wait("b", job.Spec{NTasks: 4}, w...)
	if got := show(Plan(s, 0, Policy{})); got != "" {
		t.Errorf("%q started behind %d that were passed over", got, MaxSkips)
	}
	s.Classes[1].Waiting = slices.Values(w[1:])
	if got := len(Plan(s, 0, Policy{}).Starts); got != 1 {
		t.Errorf("a job behind %d others did not start", MaxSkips-1)
	}
}

func TestNamesInReasonsAreBounded(t *testing.T) {
	names := strings.Split(strings.Repeat("n,", maxNames)+"n", ",")
	if got := few(names); got != strings.Repeat("n,", maxNames-1)+"n and 1 more" {
		t.Error(got)
	}
	if got := few(names[:maxNames]); strings.Contains(got, "more") {
		t.Error(got)
	}
}
