package launch

import "github.com/tensorgrid/tensorgrid/nodeagent/cgroup"

// Plan is all that the shepherd of one step needs. The launcher derives it from a verified
// credential and its own configuration; it is passed over sockets of root's only.
// Times and durations are milliseconds.
type Plan struct {
	Key    Key
	Node   string
	UID    uint32
	GID    uint32
	Groups []uint32
	Umask  uint32

	Script  string // absolute path of the staged script
	Args    []string
	Env     [][]byte
	WorkDir string
	StdIn   string // "" = /dev/null
	StdOut  string
	StdErr  string // "" = where standard output goes
	Append  bool
	// Spooled: StdOut and StdErr are files of the launcher's own spool, made before the ids are dropped.
	Spooled bool

	TimeLimit    int64 // from start; job.Unlimited = none
	KillWait     int64
	Lease        int64 // 0 = none
	Renewed      int64 // CLOCK_BOOTTIME from which the lease counts; 0 = from the start
	WarnSignal   int
	WarnBefore   int64
	WarnBatch    bool
	Rootless     bool // everything runs under one ordinary uid
	StepUID      int
	StepGID      int
	AgentGID     int
	StepDir      string
	AgentSocket  string
	LaunchSocket string
	Group        *cgroup.Group
}

// LeaseOver tells whether the step's lease has run out at that CLOCK_BOOTTIME (ms).
func (p *Plan) LeaseOver(boottime int64) bool {
	return p.Lease > 0 && p.Renewed > 0 && boottime-p.Renewed > p.Lease
}

// Started answers a plan.
type Started struct {
	Start int64
	Err   string
	Errno int
	Cause uint8
	// Untouched: nothing was done for the plan, another pair may be asked.
	Untouched bool
}

// What gstepd is started as: its first argument. After Single and Warm come the shepherds' uid and
// gid, and the agent's gid.
const (
	// Single takes one plan, starts its step itself, minds it and ends. A step whose shepherd parses
	// what users send (PMI, framed streams) is to have one of these.
	Single = "single"
	// Warm starts a forker beside it, gives up root, and minds one step after the other.
	Warm = "warm"
	// Forker keeps root, makes the first process of each step for the shepherd that is its parent, and
	// looks at nothing but the launcher's plans.
	Forker = "forker"
)

// The descriptors that gstepd inherits beside the standard ones. A plan comes with two more: the
// step's folder and its lock, which is held already: it belongs to whoever holds the descriptor.
const (
	// OrderFD is where plans come from and are answered: the launcher's.
	OrderFD = 3
	// IdleFD (Warm) is where a byte says that a step is over and the next may come.
	IdleFD = 4
	// HandFD (Forker) leads to the shepherd.
	HandFD = 4
)

// LockPIDs is the length of the first line of a lock file, see LockLine. What follows is the launcher's.
const LockPIDs = 128

// RecordRoom is how many bytes of the disk a step's record has from the claim on.
const RecordRoom = 512
