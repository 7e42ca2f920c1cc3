package state

import (
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Job is one record: a job, one started array task, or the waiting rest of an array.
// A Job that a View hands out never changes; the store replaces records, it does not edit them.
// Times are Unix milliseconds UTC.
type Job struct {
	ID         uint32
	Spec       *job.Spec
	ArrayID    uint32   // base id of the array; 0 when not part of one
	ArrayTask  int64    // task number; -1 when none (also for the waiting record)
	Waiting    *job.Set // tasks that have not started; nil unless this is an array's waiting record
	ArrayLimit uint32   // most tasks at once; 0 = no limit
	State      job.State
	Flags      job.Flags
	Reason     job.Reason // of its own (held, begin time, how it ended); else see View.Reason
	Detail     string
	Priority   int64 // 0 = held
	HeldBy     Hold
	Run        uint32
	Restarts   uint32
	Submit     int64
	Eligible   int64
	Begin      int64
	Start      int64
	End        int64  // expected while running, real when ended; 0 = not known
	TimeLimit  int64  // effective ms; job.Unlimited = none
	Partition  string // where it runs or ran; before that the partitions asked for
	Allocs     []job.NodeAlloc
	Launched   uint32 // how many nodes of Allocs have confirmed the start
	Done       []bool // node i of Allocs has nothing of this run alive any more
	Exit       job.Exit
	Derived    job.Exit
	OOM        bool
	Kill       job.Why // why it is being ended; WhyNone while nobody asked
	KillAt     int64
	KillSignal int32
	Signals    []Signal // user signals that agents have not been told of
	CancelUID  uint32
	Cancelled  bool // CancelUID is meaningful
	UserUS     int64
	SysUS      int64
	MaxRSS     int64
	FailedNode string
	Avoid      []string // nodes where an earlier run failed for the node's fault
	Comment    string   // admin comment
	Key        string   // idempotency key it was submitted under
	Class      string   // shape class while it waits

	Dep        DepState // what Spec.Dependency says at present
	Confirmed  []bool   // node i of Allocs has confirmed the start; Launched counts them
	SignalSeq  uint32   // last Seq given to a signal of this run
	Alone      bool     // the run has its nodes to itself; settled when it starts
	SubmitSeq  uint64   // order of submission, from which Priority is counted
	Revision   uint64   // counts the updates of what it asks for, from 1
	Lease      int64    // ms that the run outlives the last word of a leader; 0 = it is never ended by that
	EligibleAt int64    // earliest time by a dependency's delay (after:id+minutes); 0 = none

	// From FeatureSched on.
	Fixed           bool           // Priority was set by an administrator and is not worked out
	Promise         *sched.Promise // the start that it was promised; nil = none
	PromiseBase     uint64         // state version that the plan which gave it was made on
	Het             uint32         // job id of the first component; 0 = no heterogeneous job
	HetOffset       uint32         // which component it is, from 0
	SuspendedAt     int64          // since when it is suspended; 0 = it is not
	Stopped         int64          // ms that the run was suspended, past stretches together
	SuspendedByPlan bool           // it was suspended to make room
	PreemptAt       int64          // when the run was chosen to make room; 0 = it was not
	PreemptHow      string         // CANCEL, REQUEUE, SUSPEND
	PreemptBy       uint32         // the job that it makes room for
	GraceEnd        int64          // until when it may go on after it was told
	Checkpoint      int64          // last checkpoint that it reported
	Charged         int64          // its run is charged from then on when that is later than its start and the last tick
	Reservation     string         // the reservation that its run is in
}

// DepState is how a waiting record stands with its dependencies.
type DepState uint8

// How a record stands with its dependencies.
const (
	DepMet   DepState = iota // satisfied, or it has none
	DepWaits                 // not yet
	DepNever                 // can never be satisfied
)

// Hold says who holds a job.
type Hold uint8

// Who holds a job.
const (
	HoldNone Hold = iota
	HoldUser
	HoldAdmin
)

// Signal is one user signal on its way to a running job. Seq grows within a run.
type Signal struct {
	Seq       uint32
	Number    int32
	BatchOnly bool
	Full      bool
}
