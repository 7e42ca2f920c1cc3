// Package state holds the tables of the replicated state machine, their indexes and
// invariants, and hands out immutable snapshots (View) to readers. It does no I/O, knows
// no clock and no log; only package fsm changes it.
package state

import (
	"iter"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// Viewer is what readers of the state may ask. *View implements it; everything it gives back
// is immutable. (An interface so that readers can be tested on small fixtures.)
type Viewer interface {
	// Index is the raft index of the last entry in it, Version counts changes, Time is the state's clock (ms).
	Index() uint64
	Version() uint64
	Time() int64
	Config() *Config

	// Job gives one record by its own id; nil when unknown.
	Job(id uint32) *Job
	// ArrayTasks gives the started records of an array, ascending by id, without the waiting record.
	ArrayTasks(base uint32) []*Job
	// ArrayTask finds one started task; nil when it waits or is unknown.
	ArrayTask(base uint32, task int64) *Job
	// Jobs walks all records, ascending by id.
	Jobs() iter.Seq[*Job]
	// Live walks records that have not ended or are still completing, ascending by id.
	Live() iter.Seq[*Job]
	// Active walks records that hold resources (running, suspended, completing), ascending by id.
	Active() iter.Seq[*Job]
	// OfUser walks the live records of one user.
	OfUser(uid uint32) iter.Seq[*Job]
	// Reason is what a waiting or ended record shows, the class's verdict included.
	Reason(j *Job) (job.Reason, string)
	// Promised tells whether a waiting record holds a promise, which ExpectedStart then shows.
	Promised(j *Job) bool
	// Promises walks the waiting records that hold a promise, ascending by id.
	Promises() iter.Seq[*Job]
	// ExpectedStart is when the planner expects a waiting record to start; 0 when that is not known.
	ExpectedStart(j *Job) int64

	Node(name string) *Node
	Nodes() iter.Seq[*Node] // in configuration order
	Partition(name string) *Partition
	Partitions() iter.Seq[*Partition] // in configuration order
	DefaultPartition() *Partition

	Blob(hash []byte) ([]byte, bool)
	// Key finds the job that a user's idempotency key made.
	Key(uid uint32, key string) (jobID uint32, digest []byte, ok bool)
	// Feature is the level that entries and snapshots are written with.
	Feature() uint32
	// Controllers walks the controllers that joined at run time, by name.
	Controllers() iter.Seq[Controller]
	// JoinToken gives one join token, nil when unknown; JoinTokens walks them, oldest first.
	JoinToken(id string) *JoinToken
	JoinTokens() iter.Seq[*JoinToken]
	// Counts: all records, pending, running.
	Counts() (all, pending, running int)

	// Accounting is who uses the cluster on whose account; nil below FeatureSched. Limits is what their jobs take of
	// their limits, and their decayed usage.
	Accounting() *accounting.DB
	// Shares are the fair shares of all associations, by id, worked out once for each change of usage or accounts.
	Shares() map[uint32]accounting.Share
	Limits() partitions.Lookup
	Reservations() []*partitions.Reservation            // by name
	ReservationFlags(name string, now int64) node.Flags // of a node at a time, Unix ms
	Licenses() []LicenseUse                             // by name

	// MaySubmit holds a specification against all that Submit holds it against, and fills in the same defaults.
	// TryAccounting says what a change of accounting would do. Neither changes anything.
	MaySubmit(*job.Spec) *Refusal
	TryAccounting(accounting.Change, Caller) (accounting.Outcome, *Refusal)
	// NextID is the id that the next job gets.
	NextID() uint32

	// Sched is the planner's snapshot of this view, cached per capacity version; Policy what the configuration says of
	// planning. Asked gives what a job that was not submitted would be to the planner.
	Sched() *sched.Snapshot
	Policy() sched.Policy
	Asked(*job.Spec) (*sched.Class, sched.Waiting)
}
