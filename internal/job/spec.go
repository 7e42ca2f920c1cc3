// Package job holds what a job is: its specification, states, reasons, arrays,
// time and size syntax, and the table of its life. It does no I/O and knows no clock.
package job

// Unlimited is the duration that stands for no limit.
const Unlimited int64 = -1

// WholeNode is the memory that stands for all of a node's (--mem=0).
const WholeNode int64 = -1

// Limits of one specification; a request over any of them is refused with the limit's name.
const (
	MaxScript       = 4 << 20  // bytes
	MaxInlineScript = 8 << 10  // larger ones travel as a blob
	MaxEnv          = 1 << 20  // bytes, all variables together
	MaxString       = 4 << 10  // bytes, any one string but lists
	MaxList         = 64 << 10 // bytes, node lists and dependencies
	MaxArgs         = 64 << 10
	MaxArgBytes     = 512 << 10 // all arguments together
	MaxRare         = 64
	MaxKey          = 64 // bytes of an idempotency key
)

// Spec is what a user asks for. A Spec is immutable once it is part of the state.
// Durations are milliseconds, times Unix milliseconds UTC, memory bytes; zero means not given.
type Spec struct {
	Name       string
	Account    string
	Partition  string // comma list as given; empty = the default partition
	QOS        string
	WorkDir    string
	StdIn      string // patterns as given
	StdOut     string
	StdErr     string
	OpenMode   string // "", "append" or "truncate"
	Command    string
	SubmitLine string
	SubmitHost string
	Args       []string
	Script     []byte // inline, or:
	ScriptHash []byte // SHA-256 of the blob
	EnvHash    []byte // SHA-256 of the blob of NUL-separated NAME=value

	MinNodes       uint32
	MaxNodes       uint32
	NTasks         uint32
	NTasksPerNode  uint32
	CPUsPerTask    uint32
	MinCPUsPerNode uint32
	MemPerNode     int64 // WholeNode = all
	MemPerCPU      int64
	MinTmpDisk     int64
	Gres           string // per node: "gpu:a100:2,shard:4"
	NodeList       string
	Exclude        string
	Constraint     string
	Exclusive      bool

	TimeLimit  int64 // Unlimited = none asked for
	TimeMin    int64
	Begin      int64
	Array      string
	Hold       bool
	Requeue    int8 // 0 = configured default, 1 yes, -1 no
	Nice       int32
	Comment    string
	Signal     string // "[R|B:]SIG[@s]"
	Dependency string
	Umask      uint32
	Export     string
	GetUserEnv bool
	Rare       []Option // options that few jobs use, sorted by name

	UID    uint32
	GID    uint32
	Groups []uint32
	User   string
	Group  string
	Home   string
	Shell  string
}

// Option is one long option that has no field of its own.
type Option struct{ Name, Value string }

// RareValue gives back the value of an option that has no field of its own, "" when it was not given.
func (s *Spec) RareValue(name string) string {
	for _, o := range s.Rare {
		if o.Name == name {
			return o.Value
		}
	}
	return ""
}

// Exit is how a step or job ended: an exit code, or the signal that ended it.
type Exit struct{ Code, Signal int32 }
