// Package sched is the pure core of the scheduler: Plan(snapshot, now, policy) ranks, places,
// reserves, backfills, preempts and explains. The same snapshot, time and policy give the same
// plan, byte for byte.
package sched

import (
	"iter"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// Node and Gres are the placing package's: a node's capacity and what is free now.
type (
	Node = place.Node
	Gres = place.Gres
)

// Snapshot is what Plan works on. It is immutable; what did not change between two snapshots is the same pointer.
// Times are Unix ms, durations ms, memory bytes.
type Snapshot struct {
	Version      uint64
	Capacity     uint64                    // grows whenever anything that could let a waiting job start has changed
	Layout       uint64                    // changes with the set or order of Nodes and Partitions, topology and configuration: caches by index are void
	Nodes        []*place.Node             // configuration order
	Partitions   []*Partition              // configuration order
	Classes      []*Class                  // waiting jobs by class, sorted by key
	Promised     []Promised                // waiting jobs that hold a promise, ascending by job id
	Running      []*Running                // ascending by job id
	Reservations []*partitions.Reservation // by name
	Licenses     []License                 // by name
	Topology     *place.Topology           // nil = flat
	Rules        *partitions.Rules         // nil: nothing is enforced
	Use          partitions.Lookup         // use and usage at the moment of the snapshot; nil with nil Rules
	Priority     *priority.Params          // nil: Waiting.Priority ranks, as states below the scheduler's level have it
	Cluster      priority.Cluster
	Shares       func(assoc uint32) float64 // fair-share factor of an association; nil = all 1
	KillWait     int64                      // how long after its end or its grace a run is gone at the latest
	MaxTRES      bool                       // PriorityFlags=MAX_TRES: of what a node has the dearest is billed, not the sum
	MaxTRESGres  bool                       // PriorityFlags=MAX_TRES_GRES: the dearest of CPUs, memory and node, and all generic resources
}

// Partition is what Plan needs to know of a partition. Nodes are indexes into Snapshot.Nodes, ascending.
type Partition struct {
	Name           string
	Nodes          []int
	Up             bool // starts jobs (UP or DRAIN)
	Inactive       bool
	Default        bool // where jobs without a partition go
	WholeNodes     bool // OverSubscribe=EXCLUSIVE: every run gets whole nodes
	ExclusiveUser  bool
	LLN            bool // least loaded nodes first
	ReqResv        bool // only jobs with a reservation
	Tier           uint32
	PriorityJob    uint32 // PriorityJobFactor
	MaxTime        int64
	DefaultTime    int64
	MinNodes       uint32
	MaxNodes       uint32
	MaxCPUsPerNode uint32
	DefMemPerNode  int64
	DefMemPerCPU   int64
	MaxMemPerNode  int64
	MaxMemPerCPU   int64
	QOS            string // partition QOS, "" = none
	PreemptMode    string // "" = the cluster's; OFF: its runs are no victims
	Grace          int64
	Billing        *accounting.Weights // nil: CPUs
}

// License is a license of the cluster. What reservations keep of it is the planner's to work out.
type License struct {
	Name  string
	Total uint64
}

// Class is the waiting jobs that are equal in all that decides where, when and in which order they start, but how long
// they wait. Waiting yields them best first: eligible time, submission, id; those not eligible last. In a Mixed class,
// which states below the scheduler's level make, they are equal in shape only, and come by priority, submission, id.
type Class struct {
	Key         string
	Version     uint64 // changes whenever its waiting jobs do; 0 = not known
	Shape       string // key of what decides where they fit; several classes share one; "" = Key
	Mixed       bool
	Spec        *job.Spec  // of one member: only what the key is made of may be read
	Extra       *job.Extra // nil = worked out from Spec
	Avoid       []string
	UID         uint32
	User        string
	Account     string
	QOS         string
	Assoc       uint32 // id of the association, resolved at submit; 0 = none
	Time        int64  // asked limit; 0 = partition's default
	TimeMin     int64
	Fixed       int64 // priority that an administrator set; 0 = none
	Estimate    int64 // by the user's history; 0 = none
	Waiting     iter.Seq[Waiting]
	Count       int
	QOSPriority uint32
	AssocPrio   uint32
	Site        int64
}

// Waiting is one record that waits. Tasks is set for an array's waiting record: the tasks still
// to start, Limit how many more may start now (-1 = no limit).
type Waiting struct {
	JobID     uint32
	Run       uint32
	Revision  uint64 // of the record: counts the updates of what it asks for
	SubmitSeq uint64
	Held      bool
	Priority  int64 // Mixed classes only: rank; 0 = held
	Submit    int64
	Accrue    int64 // since when it gains age; 0 = not yet
	Begin     int64 // not before; 0 = any time
	Time      int64 // Mixed classes only: asked limit, 0 = partition's default
	TimeMin   int64 // Mixed classes only
	Tasks     *job.Set
	Limit     int
	Blocked   job.Reason // not "" when something other than resources keeps it: dependency, hold
	Promise   *Promise   // what it was promised; nil = nothing
	Het       uint32     // id of its het job's first component; 0 = none. Components start together
	HetSize   uint32
}

// Promised is a waiting record that holds a promise, and the key of its class.
type Promised struct {
	Class string
	Waiting
}

// Promise is a start that a job was promised. Nodes hold no CPU and device numbers.
type Promise struct {
	Start     int64
	Partition string
	Nodes     []job.NodeAlloc
	Limit     int64
}

// Running is one run that holds resources; End is when its limit ends it (0 = no limit).
type Running struct {
	JobID       uint32
	Run         uint32
	Partition   string
	Start       int64
	End         int64
	Allocs      []job.NodeAlloc // what it still holds
	Exclusive   bool
	UID         uint32
	User        string
	Account     string
	QOS         string
	Licenses    []job.License
	Reservation string
	Suspended   bool
	BySched     bool   // it was suspended to make room
	Evicting    bool   // it is being ended or queued again; End says when it will be gone at the latest
	By          uint32 // Evicting or BySched: the job that it makes room for
	Requeue     bool
	Checkpoint  int64 // when it last said that its work is saved; 0 = never
	Het         uint32
	Priority    int64
	Tier        uint32
}

// Decision is what should happen now.
type Decision struct {
	Base     uint64
	Starts   []Start
	Evicts   []Evict
	Promises []PromiseChange
	Reasons  []Reason      // of single records, where not the class's
	Classes  []ClassReason // why the first job of a class waits
	Wake     int64         // earliest time at which planning again could start something; 0 = only on change
}

// Start is one record, or one task of an array, with its allocation.
type Start struct {
	JobID      uint32
	Task       int64 // -1 when not an array task
	Run        uint32
	Revision   uint64 // of the record that was planned; 0 = not told
	Partition  string
	Nodes      []job.NodeAlloc
	TimeLimit  int64
	Lease      int64  // ms that the run outlives the last word of a leader; 0 = it is never ended by that. Not the planner's
	Group      uint32 // starts of one group, not 0, are taken all or none
	Backfilled bool   // a job that ranks before it waits on
}

// How an Evict makes room, or gives it back.
const (
	EvictCancel  = "CANCEL"
	EvictRequeue = "REQUEUE"
	EvictSuspend = "SUSPEND"
	EvictResume  = "RESUME"
)

// Evict ends, queues again, suspends or resumes a run. By is the job that it makes room for, Grace how long the run has
// from its warning to its end.
type Evict struct {
	JobID, Run uint32
	How        string
	By         uint32
	Grace      int64
}

// PromiseChange gives a job a promise, or takes it back (nil).
type PromiseChange struct {
	JobID    uint32
	Revision uint64
	Promise  *Promise
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
	Class    string
	Reason   job.Reason
	Detail   string
	Start    int64 // earliest start that is known, 0 = unknown
	Promised bool  // Start is a promise, not an estimate
}
