package state

import (
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// Node is one node: what the configuration says, what it registered with, its state and what is allocated.
// Times are Unix milliseconds UTC, memory bytes.
type Node struct {
	Name       string
	Hostname   string
	Addr       string
	Config     node.Inventory // from the configuration
	Registered node.Inventory // from the agent; zero before it came
	Features   []string
	Weight     uint32
	State      node.State // Unknown, Down, Idle or Future; Idle/Mixed/Allocated is derived: see BaseState
	Flags      node.Flags
	Reason     string
	ReasonTime int64
	ReasonUID  uint32
	ReasonUser string
	BootID     string
	Version    string
	Driver     string // cgroup driver
	Boot       int64
	AgentStart int64
	LastBusy   int64
	Comment    string

	// What runs hold here, kept by the store.
	CPUsAlloc uint32
	MemAlloc  int64
	CPUsUsed  []bool            // by abstract CPU number
	GresUsed  map[string][]bool // "gpu:a100" -> by index; counted resources use GresCount
	GresCount map[string]uint64 // "shard" -> used
	Jobs      []uint32          // ids of the records that hold something here, ascending
	Exclusive bool              // a --exclusive run holds the node
	Stopped   uint32            // of Jobs: suspended ones, which hold memory and devices and no CPUs

	Removed bool // no longer configured: takes nothing new and leaves when its runs are gone
	gres    []gresCap
	oldGres bool // Config.Gres is what the file said before: runs hold devices that have other numbers now
}

// gresCap is one generic resource that the node is configured with.
type gresCap struct {
	name, typ string
	total     uint64
	devices   bool // has indexes, given out one by one
}

// BaseState is the state that is shown: Idle, Mixed or Allocated for a node that is up.
func (n *Node) BaseState() node.State {
	if n.State != node.Idle {
		return n.State
	}
	switch {
	case n.Exclusive, n.CPUsAlloc >= n.Config.CPUs && n.CPUsAlloc > 0:
		return node.Allocated
	case n.CPUsAlloc > 0 || len(n.Jobs) > 0:
		return node.Mixed
	}
	return node.Idle
}

// Partition is a partition as the state holds it.
type Partition = partitions.Partition

// Config is the part of the configuration that the state depends on.
type Config struct {
	Cluster          string
	FirstJobID       uint32
	MaxJobCount      uint32
	MaxArraySize     uint32
	MaxBatchRequeue  uint32
	MaxSubmitPerUser uint32
	ReturnToService  uint32
	KillWait         int64
	RequeueDelay     int64
	OverTimeLimit    int64
	JobRequeue       bool
	JobFileAppend    bool
	Digest           string
	Sched            SchedConfig // from FeatureSched on; zero before
}
