// Package partitions holds the queues: who may use which nodes, and what a job must keep to there.
// It is pure: a refusal is a value that names the clause, its limit and what was asked.
package partitions

// Partition is a named set of nodes with its rules. Durations are milliseconds, memory bytes.
type Partition struct {
	Name          string
	Default       bool
	Nodes         []string
	State         string // UP, DOWN, DRAIN, INACTIVE
	MaxTime       int64  // job.Unlimited = none
	DefaultTime   int64  // 0 = MaxTime applies
	MinNodes      uint32
	MaxNodes      uint32 // 0 = no limit
	PriorityTier  uint32
	PriorityJob   uint32
	DefMemPerNode int64
	DefMemPerCPU  int64
	MaxMemPerNode int64
	MaxMemPerCPU  int64
	AllowGroups   []string
	AllowAccounts []string
	DenyAccounts  []string
	AllowQOS      []string
	OverSubscribe string
	Hidden        bool
	RootOnly      bool
	SharedFS      bool
	NoRoot        bool  // DisableRootJobs
	JobLease      int64 // of the jobs here that may be requeued; 0 = the cluster's rule, -1 = never by lease

	QOS            string // whose limits hold for every job here; "" = none
	DenyQOS        []string
	PreemptMode    string // "" = the cluster's
	Grace          int64
	BillingWeights []string // TRESBillingWeights; none: CPUs are counted
	ExclusiveUser  bool     // jobs of one user at a time on each node
	LLN            bool     // the nodes with the fewest CPUs in use come first
	MaxCPUsPerNode uint32   // 0 = no limit
	ReqResv        bool     // jobs need a reservation
}

// Refusal is a refusal by rule. Code is Slurm's error name (ESLURM_...), Text its line, Why the
// second line for people: which limit, its value, what was asked, what would fit.
type Refusal struct{ Code, Text, Why string }
