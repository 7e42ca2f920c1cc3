package job

// State is a job's base state, as Slurm's. The zero value is Pending.
type State uint8

// The base states, in Slurm's order.
const (
	Pending State = iota
	Running
	Suspended
	Completed
	Cancelled
	Failed
	Timeout
	NodeFail
	Preempted
	BootFail
	Deadline
	OutOfMemory
	stateCount
)

// Flags qualify a state; more than one may be set.
type Flags uint32

// The flags that are shown in place of, or beside, the base state.
const (
	Configuring Flags = 1 << iota // allocated, the first node has not confirmed the start
	Completing                    // ended, a node still cleans up
	Requeued                      // ended so that it can be queued again
	RequeueHold                   // queued again, held
	SpecialExit                   // held after a special exit code
	Stopped
	Signaling
	Resizing
	Revoked
	StageOut
	LaunchFailed
)

// ResvDelHold: held because the reservation that it waited for is gone.
const ResvDelHold Flags = 1 << 28

// Slurm's flags that no job here ever has: a question for them finds no job, and is not refused.
const (
	requeueFed Flags = 1 << (27 + iota)
	_
	powerUpNode
	reconfigFail
	expediting
)

var stateNames = [stateCount]struct{ long, short string }{
	{"PENDING", "PD"}, {"RUNNING", "R"}, {"SUSPENDED", "S"}, {"COMPLETED", "CD"},
	{"CANCELLED", "CA"}, {"FAILED", "F"}, {"TIMEOUT", "TO"}, {"NODE_FAIL", "NF"},
	{"PREEMPTED", "PR"}, {"BOOT_FAIL", "BF"}, {"DEADLINE", "DL"}, {"OUT_OF_MEMORY", "OOM"},
}

var flagNames = []struct {
	flag        Flags
	long, short string
}{
	{Completing, "COMPLETING", "CG"}, {Configuring, "CONFIGURING", "CF"}, {Stopped, "STOPPED", "ST"},
	{RequeueHold, "REQUEUE_HOLD", "RH"}, {SpecialExit, "SPECIAL_EXIT", "SE"}, {Requeued, "REQUEUED", "RQ"},
	{Resizing, "RESIZING", "RS"}, {Revoked, "REVOKED", "RV"}, {StageOut, "STAGE_OUT", "SO"},
	{Signaling, "SIGNALING", "SI"}, {LaunchFailed, "LAUNCH_FAILED", "LF"},
	{requeueFed, "REQUEUE_FED", "RF"}, {ResvDelHold, "RESV_DEL_HOLD", "RD"}, {powerUpNode, "POWER_UP_NODE", "POWER_UP_NODE"},
	{reconfigFail, "RECONFIG_FAIL", "RECONFIG_FAIL"}, {expediting, "EXPEDITING", "EXPEDITING"},
}

// String is the long name, e.g. "RUNNING".
func (s State) String() string {
	if s < stateCount {
		return stateNames[s].long
	}
	return "UNKNOWN"
}

// Short is the compact name, e.g. "R".
func (s State) Short() string {
	if s < stateCount {
		return stateNames[s].short
	}
	return "?"
}

// Ended tells whether the base state is final.
func (s State) Ended() bool { return s >= Completed }

// Names lists the long names of the set flags, in a fixed order.
func (f Flags) Names() []string {
	var names []string
	for _, n := range flagNames {
		if f&n.flag != 0 {
			names = append(names, n.long)
		}
	}
	return names
}

// Shown is the name, long and compact, that squeue shows for a state with its flags: a flag's where one of those that
// stand in place of the state is set, COMPLETING before all others.
func Shown(s State, f Flags) (long, compact string) {
	for _, n := range flagNames {
		if f&n.flag != 0 && n.flag != LaunchFailed {
			return n.long, n.short
		}
	}
	return s.String(), s.Short()
}

// ParseState takes a long or compact name, any case; flags are taken too and given back as such.
func ParseState(name string) (State, Flags, bool) {
	for s, n := range stateNames {
		if equalFold(name, n.long) || equalFold(name, n.short) {
			return State(s), 0, true
		}
	}
	for _, n := range flagNames {
		if equalFold(name, n.long) || equalFold(name, n.short) {
			return 0, n.flag, true
		}
	}
	return 0, 0, false
}

func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		x, y := a[i], b[i]
		if 'a' <= x && x <= 'z' {
			x -= 'a' - 'A'
		}
		if 'a' <= y && y <= 'z' {
			y -= 'a' - 'A'
		}
		if x != y {
			return false
		}
	}
	return true
}
