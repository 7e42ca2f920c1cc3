package launch

import "github.com/tensorgrid/tensorgrid/nodeagent/cgroup"

// Plan is all that the shepherd of one step needs. The launcher derives it from a verified
// credential and its own configuration; it lies in a folder that only root can enter.
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

	// Of the job, for the epilog.
	Epilog EpilogVars `json:"epilog"`
}

// EpilogVars is what prolog and epilog are told about the job.
type EpilogVars struct {
	User      string `json:"user"`
	JobName   string `json:"name"`
	Partition string `json:"partition"`
	Account   string `json:"account"`
	NodeList  string `json:"nodes"`
	Devices   string `json:"devices,omitempty"` // indexes of the GPUs, comma separated
}

// Started is the shepherd's answer on its status pipe: one JSON object and a newline.
type Started struct {
	Start int64  `json:"start_ms"`
	Err   string `json:"err,omitempty"`
	Errno int    `json:"errno,omitempty"`
	Cause uint8  `json:"cause,omitempty"`
}

// The descriptors that a shepherd inherits beside the standard ones.
const (
	PlanFD   = 3
	StatusFD = 4
)
