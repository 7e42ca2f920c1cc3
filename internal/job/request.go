package job

import "github.com/tensorgrid/tensorgrid/gres"

// Request is what a Spec asks for in numbers, as Slurm works them out. Memory in bytes.
type Request struct {
	MinNodes       uint32 // at least 1
	MaxNodes       uint32 // at least MinNodes
	Tasks          uint32 // at least 1
	TasksGiven     bool   // -n or --ntasks-per-node: SLURM_NTASKS is set
	TasksPerNode   uint32 // most on one node; 0 = no limit
	CPUsPerTask    uint32 // at least 1
	MinCPUsPerNode uint32
	CPUs           uint32 // least CPUs of the whole job
	MemPerNode     int64  // WholeNode = all; 0 = not given
	MemPerCPU      int64  // 0 = not given
	MinTmpDisk     int64
	Gres           []gres.Item // per node
	Exclusive      bool
}

// MaxNodesPerJob and MaxTasks bound one job.
const (
	MaxNodesPerJob = 65536
	MaxTasks       = 1 << 24
	MaxCPUsPerTask = 1 << 16
)

// Request works out the numbers of a Spec that Validate has passed.
//
// Without -n there is one task a node, or --ntasks-per-node of them. With -n, --ntasks-per-node is a maximum. -N n is
// exactly n nodes, -N min-max up to max; without -N as many as the tasks need and no more than there are tasks.
// Nodes without a task are never asked for.
func (s *Spec) Request() Request {
	r := Request{
		MinNodes:       max(s.MinNodes, 1),
		MaxNodes:       s.MaxNodes,
		TasksGiven:     s.NTasks > 0 || s.NTasksPerNode > 0,
		TasksPerNode:   s.NTasksPerNode,
		CPUsPerTask:    max(s.CPUsPerTask, 1),
		MinCPUsPerNode: s.MinCPUsPerNode,
		MemPerNode:     s.MemPerNode,
		MemPerCPU:      s.MemPerCPU,
		MinTmpDisk:     s.MinTmpDisk,
		Exclusive:      s.Exclusive,
	}
	r.Gres, _ = gres.Parse(s.Gres) // Validate has read it
	if s.NTasks > 0 {
		r.Tasks = s.NTasks
		if s.NTasksPerNode > 0 {
			r.MinNodes = max(r.MinNodes, (s.NTasks-1)/s.NTasksPerNode+1)
		}
		r.MinNodes = min(r.MinNodes, r.Tasks)
	} else {
		r.Tasks = saturate(uint64(r.MinNodes) * uint64(max(s.NTasksPerNode, 1)))
	}
	switch {
	case r.MaxNodes > 0 && s.NTasks > 0:
		r.MaxNodes = min(r.MaxNodes, r.Tasks)
	case r.MaxNodes > 0:
	case s.MinNodes > 0 || s.NTasks == 0:
		r.MaxNodes = r.MinNodes
	default:
		r.MaxNodes = r.Tasks
	}
	r.MaxNodes = max(r.MaxNodes, r.MinNodes)
	r.CPUs = saturate(max(uint64(r.Tasks)*uint64(r.CPUsPerTask), uint64(r.MinNodes)*uint64(r.MinCPUsPerNode)))
	return r
}

func saturate(n uint64) uint32 { return uint32(min(n, 1<<32-1)) }

// TasksFor is how many tasks the job has on that many nodes: without -n they grow with the nodes.
func (r *Request) TasksFor(s *Spec, nodes uint32) uint32 {
	if s.NTasks > 0 {
		return s.NTasks
	}
	return saturate(uint64(nodes) * uint64(max(s.NTasksPerNode, 1)))
}

// CPUsFor is how many CPUs a node with that many of the tasks must give.
func (r *Request) CPUsFor(tasks uint32) uint32 {
	return max(saturate(uint64(tasks)*uint64(r.CPUsPerTask)), r.MinCPUsPerNode)
}

// MemFor is the memory that a node with that many CPUs must give; WholeNode for all of it, 0 when nothing was asked.
func (r *Request) MemFor(cpus uint32) int64 {
	if r.MemPerNode != 0 {
		return r.MemPerNode
	}
	const most = int64(1) << 62
	if cpus > 0 && r.MemPerCPU > most/int64(cpus) {
		return most
	}
	return r.MemPerCPU * int64(cpus)
}
