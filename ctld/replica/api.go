// Package replica runs one raft replica: log, transport, batching, snapshots and membership.
// It is the only importer of hashicorp/raft.
package replica

import (
	"context"
	"errors"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Errors that callers branch on.
var (
	// ErrNotLeader: nothing was done; ask the leader.
	ErrNotLeader = errors.New("this controller is not the leader")
	// ErrUnknown: leadership was lost while the command was on its way; it may have been applied.
	// Repeat it under the same key.
	ErrUnknown = errors.New("the leader changed; the outcome is not known")
	// ErrTooLarge: one command is over MaxCommand.
	ErrTooLarge = errors.New("command exceeds the limit of 1 MiB")
	// ErrBusy: MaxQueued commands wait already.
	ErrBusy = errors.New("too many commands wait (limit 65536)")
	// ErrNoLeader: no leader is known at present.
	ErrNoLeader = errors.New("no leader at present")
)

// Limits of the batcher.
const (
	MaxEntryCommands = 256
	MaxEntryBytes    = 128 << 10
	MaxCommand       = 1 << 20
	MaxInFlight      = 8
	MaxQueued        = 65536
)

// Log is what the server and the leader's loops need of a replica. *Replica implements it.
type Log interface {
	// Propose puts commands, in order, into the next entries and waits until they are durable on a
	// majority and applied here: one Result each. All go into one entry if they fit, else into several
	// one after the other; on an error the results are those of the commands before the entry that failed.
	// When ctx ends while the commands still wait here they are withdrawn and the error is ctx's alone.
	Propose(ctx context.Context, cmds ...*logpb.Command) ([]fsm.Result, error)
	// View is the newest applied state of this replica (may be stale on a follower).
	View() state.Viewer
	// Read is a linearizable View: on the leader after a quorum check, on a follower at the leader's index.
	Read(ctx context.Context) (state.Viewer, error)
	// Changed gives a channel that is closed when an entry is applied after the view of that index.
	Changed(index uint64) <-chan struct{}
	// Leader names the current leader ("" when none); self tells whether it is this one AND its
	// barrier is applied.
	Leader() (name string, self bool)
	// Leadership yields a context that is cancelled when leadership is lost, once per won term, after the barrier.
	Leadership() <-chan context.Context
	// Status is for people.
	Status() Status
}

// RoleWaiting is the Role of a replica whose folder is empty and that takes no part yet.
const RoleWaiting = "Waiting"

// Status is one replica's raft state. ContactMS is how long ago the leader was heard (0 on the
// leader); of a replica that has heard none since it started, the age of its last entry.
type Status struct {
	Name      string
	Role      string
	Leader    string
	Term      uint64
	Applied   uint64
	LastIndex uint64
	ContactMS int64
}
