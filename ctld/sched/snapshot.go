// Package sched is the pure core of the scheduler: Plan(snapshot, now, policy) ranks, places,
// reserves and explains. The same snapshot, time and policy give the same plan, byte for byte.
package sched

import (
	"iter"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Snapshot is what Plan works on. It is immutable.
type Snapshot struct {
	Version    uint64
	Capacity   uint64 // grows whenever anything that could let a waiting job start has changed
	Nodes      []Node // configuration order
	Partitions []Partition
	Classes    []Class // waiting jobs by shape, sorted by key
	Running    []Running
}

// Node is one node's capacity and what is free now. Memory in bytes.
type Node struct {
	Name     string
	Weight   uint32
	Up       bool // may take new work: registered, responding, not drained or down
	CPUs     uint32
	Mem      int64
	TmpDisk  int64
	Features []string
	FreeCPUs uint32
	FreeMem  int64
	CPUUsed  []bool // by abstract CPU number
	Gres     []Gres
	Busy     bool // something runs here
	Excl     bool // an exclusive run holds it
}

// Gres is one resource of a node.
type Gres struct {
	Name  string
	Type  string
	Total uint64
	Used  []bool // by index; nil for resources without devices
	Taken uint64
}

// Partition is what Plan needs to know of a partition. Nodes are indexes into Snapshot.Nodes, ascending.
type Partition struct {
	Name          string
	Nodes         []int
	Up            bool // starts jobs (UP or DRAIN)
	Tier          uint32
	MaxTime       int64
	DefaultTime   int64
	MinNodes      uint32
	MaxNodes      uint32
	DefMemPerNode int64
	DefMemPerCPU  int64
	MaxMemPerNode int64
	MaxMemPerCPU  int64
	Inactive      bool
	Default       bool // where jobs without a partition go
	WholeNodes    bool // OverSubscribe=EXCLUSIVE: every run gets whole nodes
}

// Class is the waiting jobs of one shape: equal in all that decides where they fit.
// Waiting yields them best first: priority descending, submit time, id, all eligible-or-not.
type Class struct {
	Key     string
	Spec    *job.Spec // of one member: only the fields of the shape may be read
	Avoid   []string
	Waiting iter.Seq[Waiting]
	Count   int
}

// Waiting is one record that waits. Tasks is set for an array's waiting record: the tasks still
// to start, Limit how many more may start now (-1 = no limit).
type Waiting struct {
	JobID    uint32
	Run      uint32
	Revision uint64 // of the record: counts the updates of what it asks for
	Priority int64  // 0 = held
	Submit   int64
	Begin    int64 // not before; 0 = any time
	Time     int64 // asked limit ms: 0 = partition's default
	TimeMin  int64
	Tasks    *job.Set
	Limit    int
	Blocked  job.Reason // not "" when something other than resources keeps it: dependency, hold
}

// Running is one run that holds resources; End is when its limit ends it (0 = no limit).
type Running struct {
	JobID     uint32
	Partition string
	End       int64
	Allocs    []job.NodeAlloc
	Exclusive bool
}

// Policy is what a site chooses. The zero value is usable.
type Policy struct {
	MaxStarts int // most starts in one plan; 0 = 1,000
	Depth     int // most classes looked at; 0 = all
}

// Decision is what should happen now.
type Decision struct {
	Base    uint64
	Starts  []Start
	Reasons []Reason      // of single records, where not the class's
	Classes []ClassReason // why the first job of a class waits
	Wake    int64         // earliest time at which planning again could start something (begin times); 0 = only on change
}

// Start is one record, or one task of an array, with its allocation.
type Start struct {
	JobID     uint32
	Task      int64 // -1 when not an array task
	Run       uint32
	Revision  uint64 // of the record that was planned; 0 = not told
	Partition string
	Nodes     []job.NodeAlloc
	TimeLimit int64
	Lease     int64 // ms that the run outlives the last word of a leader; 0 = it is never ended by that. Not the planner's
}

// Reason is why one record waits.
type Reason struct {
	JobID  uint32
	Reason job.Reason
	Detail string
	Start  int64 // earliest start that is known, 0 = unknown
}

// ClassReason is why the first job of a class waits; the ones behind it wait for Priority.
type ClassReason struct {
	Class  string
	Reason job.Reason
	Detail string
	Start  int64
}
