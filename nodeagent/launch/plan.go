package launch

import "github.com/tensorgrid/tensorgrid/nodeagent/cgroup"

// Plan is all that the shepherd of one step needs. The launcher derives it from a verified
// credential and its own configuration; it is passed over sockets of root's only.
// Times and durations are milliseconds.
type Plan struct {
	Key     Key      `json:"key"`
	Cluster string   `json:"cluster"`
	Node    string   `json:"node"`
	UID     uint32   `json:"uid"`
	GID     uint32   `json:"gid"`
	Groups  []uint32 `json:"groups,omitempty"`
	Umask   uint32   `json:"umask"`

	Script  string   `json:"script"` // absolute path of the staged script
	Args    []string `json:"args,omitempty"`
	Env     [][]byte `json:"env,omitempty"`
	WorkDir string   `json:"work_dir"`
	StdIn   string   `json:"stdin,omitempty"` // "" = /dev/null
	StdOut  string   `json:"stdout,omitempty"`
	StdErr  string   `json:"stderr,omitempty"` // "" = where standard output goes
	Append  bool     `json:"append,omitempty"`
	// Spooled: StdOut and StdErr are files of the launcher's own spool, made before the ids are dropped.
	Spooled bool `json:"spooled,omitempty"`

	TimeLimit    int64 `json:"limit_ms"` // from start; job.Unlimited = none
	KillWait     int64 `json:"kill_wait_ms"`
	Lease        int64 `json:"lease_ms,omitempty"` // 0 = none
	WarnSignal   int   `json:"warn_signal,omitempty"`
	WarnBefore   int64 `json:"warn_before_ms,omitempty"`
	WarnBatch    bool  `json:"warn_batch,omitempty"`
	Rootless     bool  `json:"rootless,omitempty"` // everything runs under one ordinary uid
	StepUID      int   `json:"step_uid"`
	StepGID      int   `json:"step_gid"`
	AgentGID     int   `json:"agent_gid"`
	StepDir      string
	AgentSocket  string
	LaunchSocket string
	Group        *cgroup.Group `json:"group"`
}

// Started answers a plan.
type Started struct {
	Start int64  `json:"start_ms"`
	Err   string `json:"err,omitempty"`
	Errno int    `json:"errno,omitempty"`
	Cause uint8  `json:"cause,omitempty"`
	// Untouched: nothing was done for the plan, another pair may be asked.
	Untouched bool `json:"untouched,omitempty"`
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

// LockPIDs is the length of the first line of a lock file: shepherd and session, and room. What
// follows is the launcher's, and nobody else can write it.
const LockPIDs = 24
