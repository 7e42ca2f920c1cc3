package place

import (
	"cmp"
	"slices"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Suits tells whether node n at position i could ever run a part of the shape, were it up and empty.
func (s *Shape) Suits(i int, n *Node) bool {
	if s.static(i, n) != 0 {
		return false
	}
	whole := WholeRoom(n)
	return s.Fit(n, &whole) > 0
}

// static is what the node lacks that no end of a run brings.
func (s *Shape) static(i int, n *Node) Lack {
	var l Lack
	if s.excluded[i] {
		l |= LackAllowed
	}
	if s.within != nil {
		if _, named := slices.BinarySearch(s.within, i); !named {
			l |= LackAllowed
		}
	}
	if s.tmp > n.TmpDisk {
		l |= LackTmp
	}
	if s.sockets > n.Sockets || s.cores > n.Cores || s.threads > n.Threads {
		l |= LackCores
	}
	if s.features != nil && !s.features.Match(n.Features) {
		l |= LackFeatures
	}
	return l
}

// Fit gives how many tasks of the shape room has on node n; 0 = the shape does not fit at all.
// Without a task count it is the tasks that each node gets, or 0. It looks at what changes with
// runs only: Suits must have said yes to the node.
func (s *Shape) Fit(n *Node, r *Room) uint32 {
	if r.Shut || r.CPUs == 0 || r.CPUs < s.minCPUs {
		return 0
	}
	if s.exclusive && (r.Runs > 0 || r.CPUs < n.CPUs) {
		return 0
	}
	if r.Owner > 0 && r.Owner != int64(s.uid)+1 || s.ownNodes && r.User != 0 && r.User != int64(s.uid)+1 {
		return 0
	}
	if len(s.gres) > 0 && !s.gresFit(n, r) {
		return 0
	}
	return s.tasksIn(n, r)
}

// tasksIn is how many tasks the CPUs and the memory of the room carry.
func (s *Shape) tasksIn(n *Node, r *Room) uint32 {
	cpus := r.CPUs
	if s.maxCPUs > 0 {
		if cpus = min(cpus, s.maxCPUs); cpus < s.minCPUs {
			return 0
		}
	}
	free := r.Mem
	if s.maxMem > 0 {
		free = min(free, s.maxMem)
	}
	if s.maxMemCPU > 0 && !s.exclusive && s.cpusFor(n, 1) > cpus {
		return 0
	}
	tasks := min(cpus, s.cpusWithin(n, free)) / s.cpus
	if tasks == 0 || s.minCPUs > 0 && s.mem(n, s.minCPUs) > free || s.exclusive && s.mem(n, n.CPUs) > free {
		return 0
	}
	if s.over {
		tasks = job.MaxTasks
		if s.tasks > 0 {
			tasks = s.tasks
		}
	}
	want := s.perNode
	if s.tasks == 0 {
		want = max(want, 1)
		if tasks < want {
			return 0
		}
	}
	if want > 0 {
		tasks = min(tasks, want)
	}
	return tasks
}

// cpusWithin is how many CPUs so much free memory carries.
func (s *Shape) cpusWithin(n *Node, free int64) uint32 {
	switch {
	case s.memNode != 0:
		if s.mem(n, 1) > free {
			return 0
		}
		return n.CPUs
	case s.memCPU > 0:
		return uint32(min(free/s.memCPU, int64(n.CPUs)))
	}
	each := n.Mem / int64(max(n.CPUs, 1)) / mib * mib
	if each <= 0 {
		return n.CPUs
	}
	return uint32(min(int64(n.CPUs), free/each))
}

// mem is the memory that so many CPUs of node n bring with them. A request that names none, where
// the partition has no default either, gets the share of the node's memory that its CPUs are of
// the node's CPUs: never the whole node for one CPU.
func (s *Shape) mem(n *Node, cpus uint32) int64 {
	switch {
	case s.memNode == job.WholeNode && s.maxMem > 0:
		return min(n.Mem, s.maxMem)
	case s.memNode == job.WholeNode:
		return n.Mem
	case s.memNode > 0:
		return s.memNode
	case s.memCPU > 0:
		return s.memCPU * int64(cpus)
	case n.CPUs == 0:
		return 0
	}
	return n.Mem / int64(n.CPUs) / mib * mib * int64(cpus)
}

// cpusFor is how many CPUs so many tasks get on node n.
func (s *Shape) cpusFor(n *Node, tasks uint32) uint32 {
	if s.exclusive {
		return n.CPUs
	}
	if s.over {
		tasks = min(tasks, 1)
	}
	cpus := max(tasks*s.cpus, s.minCPUs)
	if s.maxMemCPU > 0 {
		cpus = max(cpus, uint32(min((s.mem(n, cpus)-1)/s.maxMemCPU+1, int64(n.CPUs))))
	}
	return cpus
}

// Demand is what the shape takes of a node's room for so many tasks, without CPU and device numbers.
func (s *Shape) Demand(n *Node, r *Room, tasks uint32) job.NodeAlloc {
	cpus := s.cpusFor(n, tasks)
	return job.NodeAlloc{Node: n.Name, CPUs: cpus, Mem: s.mem(n, cpus), Tasks: tasks, Gres: s.gresTake(n, r)}
}

// Order lists those of the nodes at positions of that suit the shape, in the order in which they
// are tried: lowest weight, then configuration order; those to avoid come last.
func (s *Shape) Order(nodes []*Node, of []int) []int {
	out := make([]int, 0, len(of))
	for _, i := range of {
		if s.Suits(i, nodes[i]) {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int {
		return cmp.Or(boolOrder(s.avoided[a], s.avoided[b]), cmp.Compare(nodes[a].Weight, nodes[b].Weight), cmp.Compare(a, b))
	})
	return out
}

// Least is the least that the shape takes on each of its nodes.
type Least struct {
	CPUs uint32
	Mem  int64 // bytes; job.WholeNode = all of the node's; 0 = a share of the node's
	Gres []gres.Item
}

// Least tells the least that the shape takes on each of its nodes. Gres is not to be changed.
func (s *Shape) Least() Least {
	tasks := uint32(1)
	if s.tasks == 0 && !s.over {
		tasks = max(s.perNode, 1)
	}
	l := Least{CPUs: s.leastCPUs(tasks), Mem: s.memNode, Gres: s.gres}
	if s.memCPU > 0 {
		l.Mem = s.memCPU * int64(l.CPUs)
	}
	return l
}

// leastCPUs is how many CPUs so many tasks need on a node, whatever the node is.
func (s *Shape) leastCPUs(tasks uint32) uint32 {
	return max(uint32(min(uint64(tasks)*uint64(s.cpus), 1<<32-1)), s.minCPUs)
}
