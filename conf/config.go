// Package conf reads grid.conf (slurm.conf's syntax and key names), fills in defaults, validates,
// and tells what changed on reload. A Config is a value: nothing changes it after Load.
package conf

import "time"

// Config is grid.conf. The doc comments of the fields are the text of grid.conf(5).
type Config struct {
	// ClusterName names the cluster; letters, digits, '-' and '_', at most 40. Certificates and
	// credentials are bound to it.
	ClusterName string
	// Controllers lists the replicas, one ControllerName (or SlurmctldHost) line each: 1, 3 or 5.
	Controllers []Controller
	// Nodes lists the compute nodes, NodeName lines with hostlists unfolded, in the file's order.
	Nodes []Node
	// Partitions lists the PartitionName lines in the file's order.
	Partitions []Partition

	// AgentUser is the unprivileged account that gnoded runs under. Default: gnoded.
	AgentUser string
	// StepUser is the account that step shepherds (gstepd) run under. Default: gstepd.
	StepUser string
	// TLSDir holds ca.pem, and NAME.pem with NAME.key for each daemon. Default: /etc/tensorgrid/tls.
	TLSDir string
	// SpoolDir is a node's spool; %n is the node's name. Default: /var/spool/tensorgrid/%n.
	SpoolDir string
	// NodeRunDir holds the sockets of agent and launcher; %n is the node's name. Default: /run/tensorgrid/%n.
	NodeRunDir string

	// FirstJobId is the first job id given. Default: 1.
	FirstJobId uint32
	// MaxJobCount bounds the records in memory. Default: 1000000.
	MaxJobCount uint32
	// MaxArraySize is one more than the highest array index. Default: 1001. Bound: 4000001.
	MaxArraySize uint32
	// MaxSubmitPerUser bounds the live jobs of one user; 0 = no bound. Default: 0.
	MaxSubmitPerUser uint32
	// MinJobAge is how long ended jobs stay in memory. Default: 24 h.
	MinJobAge time.Duration
	// MaxEndedJobs bounds the ended jobs in memory; the oldest leave first. Default: 1000000.
	MaxEndedJobs uint32
	// KillWait is the time between TERM and KILL. Default: 30 s.
	KillWait time.Duration
	// OverTimeLimit is how long a job may run past its limit before it is ended. Default: 0.
	OverTimeLimit time.Duration
	// JobRequeue says whether batch jobs may be queued again by default. Default: 1.
	JobRequeue bool
	// MaxBatchRequeue bounds automatic requeues of one job; then it is held. Default: 5.
	MaxBatchRequeue uint32
	// RequeueDelay is how long a requeued job waits before it is eligible. Default: 120 s.
	RequeueDelay time.Duration
	// JobFileAppend opens output files for appending by default. Default: 0.
	JobFileAppend bool
	// SlurmdTimeout is how long an agent may be silent before its node is DOWN. Default: 300 s.
	SlurmdTimeout time.Duration
	// HeartbeatInterval is how often agents report. Default: 1 s.
	HeartbeatInterval time.Duration
	// LaunchTimeout is how long an agent may leave a launch unanswered before it is cooled down,
	// and after three such in a row drained. Default: 10 s.
	LaunchTimeout time.Duration
	// ReturnToService says when a DOWN node that registers again may be used: 0 never by itself,
	// 1 when it was DOWN for not responding, 2 always. Default: 1.
	ReturnToService uint32
	// Prolog and Epilog are programs that run as root on each node before and after a job, with a
	// fixed environment; set here for people to see, enforced from the launcher's own file.
	Prolog string
	Epilog string
	// PrologEpilogTimeout ends a prolog or epilog that hangs. Default: 300 s.
	PrologEpilogTimeout time.Duration
	// HeartbeatTimeout is raft's heartbeat and election timeout. Default: 500 ms.
	HeartbeatTimeout time.Duration
	// SnapshotBytes starts a snapshot after that much log. Default: 64 MiB.
	SnapshotBytes int64
	// Operators and Admins list users with those rights; root is an admin.
	Operators []string
	Admins    []string
	// ProctrackType: cgroup driver of the nodes: auto, hybrid, v2, v1, track (v2 group without limits) or none. Default: auto.
	CgroupPlugin string
	// PrivateData hides other users' data: jobs, users, nodes ... Default: none.
	PrivateData []string
	// LogLevel: error, info, debug. Default: info.
	LogLevel string

	// Ignored lists keys of a site's slurm.conf that have no meaning here, with where they stand.
	Ignored []Note
	// Source is the file that was read.
	Source string
}

// Controller is one replica.
type Controller struct {
	Name     string
	Address  string // host or IP
	Port     int    // agents and peers (mTLS): default 6817
	RaftPort int    // default 6816
	Socket   string // local socket for users; %c is the controller's name. Default /run/tensorgrid/%c.sock
	StateDir string // default /var/lib/tensorgrid/%c
}

// Node is one node as configured. Memory and disk in bytes (the file says MiB).
type Node struct {
	Name           string
	Hostname       string
	Address        string
	Port           int
	CPUs           uint32
	Boards         uint32
	Sockets        uint32
	CoresPerSocket uint32
	ThreadsPerCore uint32
	RealMemory     int64
	TmpDisk        int64
	Gres           string
	Features       []string
	Weight         uint32
	State          string
	Reason         string
	SimGPU         string // simulated boards: "dgx-a100", "hgx-h100", ..., or "a100:4"
	UserMap        string // identity (default), pool, userns
}

// Partition is one partition as configured. Durations: -1 ns-free, see Unlimited; memory bytes.
type Partition struct {
	Name              string
	Default           bool
	Nodes             []string
	State             string
	MaxTime           int64 // ms, -1 = none
	DefaultTime       int64 // ms, 0 = not set
	MinNodes          uint32
	MaxNodes          uint32 // 0 = no limit
	PriorityTier      uint32
	PriorityJobFactor uint32
	DefMemPerNode     int64
	DefMemPerCPU      int64
	MaxMemPerNode     int64
	MaxMemPerCPU      int64
	AllowGroups       []string
	AllowAccounts     []string
	DenyAccounts      []string
	AllowQOS          []string
	OverSubscribe     string
	Hidden            bool
	RootOnly          bool
	SharedFS          bool // default yes
	DisableRootJobs   bool
}

// Note is something to tell about one place of the file.
type Note struct {
	File string
	Line int
	Text string
}
