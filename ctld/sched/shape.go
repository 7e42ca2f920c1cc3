package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

const mib = 1 << 20

// shape is what a class needs in one partition, worked out once a plan.
type shape struct {
	minNodes  int
	maxNodes  int
	tasks     uint32 // 0 = perNode on each node
	perNode   uint32 // most tasks on one node; 0 = no limit
	cpus      uint32 // of a task
	minCPUs   uint32 // on each node
	memNode   int64  // on each node; job.WholeNode = all
	memCPU    int64  // for each CPU
	exclusive bool
	gres      []gres.Item // on each node
	tmp       int64
	features  *partitions.Feature // nil = none asked
	required  []int               // nodes that must be among those chosen, ascending
	excluded  map[int]bool
	avoided   map[int]bool
}

// newShape works out what a class needs. The text says what is wrong with a request that can not be understood.
func (p *planner) newShape(c *Class, part *Partition) (*shape, string) {
	spec := c.Spec
	r := spec.Request()
	s := &shape{
		minNodes: int(max(r.MinNodes, part.MinNodes)), maxNodes: int(r.MaxNodes),
		tasks: spec.NTasks, perNode: r.TasksPerNode, cpus: r.CPUsPerTask,
		minCPUs: r.MinCPUsPerNode, tmp: r.MinTmpDisk,
		exclusive: r.Exclusive || part.WholeNodes,
		memNode:   r.MemPerNode, memCPU: r.MemPerCPU,
	}
	s.maxNodes = max(s.maxNodes, s.minNodes)
	if part.MaxNodes > 0 {
		s.maxNodes = min(s.maxNodes, int(part.MaxNodes))
	}
	if s.memNode == 0 && s.memCPU == 0 {
		s.memNode, s.memCPU = part.DefMemPerNode, part.DefMemPerCPU
		if s.memNode != 0 {
			s.memCPU = 0
		}
	}
	if s.memCPU < 0 {
		s.memNode, s.memCPU = job.WholeNode, 0
	}
	var err error
	if spec.Gres != "" {
		if s.gres, err = gres.Parse(spec.Gres); err != nil {
			return nil, err.Error()
		}
		// The exact types first: an untyped request takes what they leave.
		slices.SortStableFunc(s.gres, func(a, b gres.Item) int {
			return boolOrder(a.Type == "", b.Type == "")
		})
	}
	if spec.Constraint != "" {
		if s.features, err = partitions.ParseFeatures(spec.Constraint); err != nil {
			return nil, err.Error()
		}
	}
	return s, p.nameNodes(s, c)
}

// nameNodes turns the node lists of a class into positions. A required node that does not exist is told.
func (p *planner) nameNodes(s *shape, c *Class) string {
	if c.Spec.NodeList != "" {
		names, err := hostlist.Expand(c.Spec.NodeList)
		if err != nil {
			return err.Error()
		}
		for _, name := range names {
			n, ok := p.byName[name]
			if !ok {
				return "node " + quoted(name) + " does not exist"
			}
			s.required = append(s.required, n)
		}
		slices.Sort(s.required)
		s.required = slices.Compact(s.required)
		s.minNodes = max(s.minNodes, len(s.required))
		if c.Spec.MaxNodes == 0 && c.Spec.MinNodes == 0 && c.Spec.NTasks == 0 {
			s.maxNodes = max(s.maxNodes, len(s.required))
		}
		if s.maxNodes < len(s.required) {
			return "names " + plural(len(s.required), "node") + " but takes at most " + number(s.maxNodes)
		}
	}
	if c.Spec.Exclude != "" {
		names, err := hostlist.Expand(c.Spec.Exclude)
		if err != nil {
			return err.Error()
		}
		s.excluded = p.positions(names)
	}
	s.avoided = p.positions(c.Avoid)
	return ""
}

func (p *planner) positions(names []string) map[int]bool {
	var set map[int]bool
	for _, name := range names {
		if n, ok := p.byName[name]; ok {
			if set == nil {
				set = make(map[int]bool, len(names))
			}
			set[n] = true
		}
	}
	return set
}

// suits tells whether a node could ever run the shape, were it up and empty.
func (s *shape) suits(i int, n *Node) bool {
	if s.excluded[i] || s.tmp > n.TmpDisk || s.features != nil && !s.features.Match(n.Features) {
		return false
	}
	whole := wholeRoom(n)
	return s.fit(n, &whole) > 0
}

// fit gives how many tasks of the shape room has on node n; 0 = the shape does not fit at all.
// Without a task count it is the tasks that each node gets, or 0.
func (s *shape) fit(n *Node, r *room) uint32 {
	if s.exclusive && r.runs > 0 || r.shut || r.cpus == 0 || r.cpus < s.minCPUs {
		return 0
	}
	if len(s.gres) > 0 && !s.gresFit(n, r) {
		return 0
	}
	tasks := min(r.cpus, s.cpusWithin(n, r)) / s.cpus
	if s.minCPUs > 0 && s.mem(n, s.minCPUs) > r.mem || s.exclusive && s.mem(n, n.CPUs) > r.mem {
		return 0
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

// cpusWithin is how many CPUs the free memory carries.
func (s *shape) cpusWithin(n *Node, r *room) uint32 {
	switch {
	case s.memNode != 0:
		if s.mem(n, 1) > r.mem {
			return 0
		}
		return n.CPUs
	case s.memCPU > 0:
		return uint32(min(r.mem/s.memCPU, int64(n.CPUs)))
	case n.Mem == 0:
		return n.CPUs
	}
	return uint32(min(int64(n.CPUs), r.mem/max(s.mem(n, 1), 1)))
}

// mem is the memory that so many CPUs of node n bring with them. A request that names none, where
// the partition has no default either, gets the share of the node's memory that its CPUs are of
// the node's CPUs: never the whole node for one CPU.
func (s *shape) mem(n *Node, cpus uint32) int64 {
	switch {
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
func (s *shape) cpusFor(n *Node, tasks uint32) uint32 {
	if s.exclusive {
		return n.CPUs
	}
	return max(tasks*s.cpus, s.minCPUs)
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
