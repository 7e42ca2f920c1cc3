// Package launch is what agent, launcher and shepherd say to each other about starting a step, and
// where a step lies on the disk. The launcher itself, the root part of a node, is launch/server;
// shepherds link this package only, so that they come up fast.
package launch

// The agent talks to the launcher over a unix stream socket (peer credentials checked by the
// launcher; the agent's and the shepherds' uids only). Frames both ways: a big-endian uint32 length and
// so many bytes. A reply is a JSON object. A request is the length of a JSON object, again an uint32,
// the object, and behind it the payload of a start, which the launcher takes apart when it knows that it
// is genuine. Requests may be pipelined; replies carry the request's ID and may come in any order.

// MaxFrame bounds one frame: a 4 MiB script and 1 MiB of environment, with room. MaxSmallFrame bounds
// one of a shepherd's, which asks for signals only.
const (
	MaxFrame      = 8 << 20
	MaxSmallFrame = 4 << 10
)

// Request is one order to the launcher. Exactly one of the pointers is set.
type Request struct {
	ID      uint64   `json:"id"`
	Start   *Start   `json:"start,omitempty"`
	Signal  *Signal  `json:"signal,omitempty"`
	Kill    *Key     `json:"kill,omitempty"`    // SIGKILL to the whole step group (cgroup.kill); idempotent
	Release *Release `json:"release,omitempty"` // epilog, remove groups and the step's folder; only when nothing lives
	Freeze  *Freeze  `json:"freeze,omitempty"`  // stop the step's processes, or let them go on; idempotent
	Renew   *Renew   `json:"renew,omitempty"`   // of a start that has not been answered; else it does nothing
	List    bool     `json:"list,omitempty"`
}

// Key names one attempt of one step.
type Key struct {
	Job  uint32 `json:"job"`
	Run  uint32 `json:"run"`
	Step uint32 `json:"step"`
}

// Start carries a credential (canonical bytes of internal/cred.Launch), its Ed25519 signature, the
// signing controller's certificate (DER) and the payload that the credential's digest covers, as
// internal/cred.AppendPayload encodes it.
type Start struct {
	Credential  []byte `json:"cred"`
	Signature   []byte `json:"sig"`
	Certificate []byte `json:"cert"`
	Payload     []byte `json:"-"` // behind the JSON object
	// Renewed is from when the run's lease counts, CLOCK_BOOTTIME in ms; 0 = from when the order is read.
	Renewed int64 `json:"renewed_boottime_ms,omitempty"`
}

// Renew renews the lease of a run that is being started; the time counts as in Start. A lease that has
// run out cannot be renewed: the run is not started any more.
type Renew struct {
	Key
	Boottime int64 `json:"boottime_ms"`
}

// Signal sends Number to the step's processes. Batch: the batch shell only. Steps: nothing of the batch
// step, neither its shell nor what that started: the signal is for what srun starts.
type Signal struct {
	Key
	Number int  `json:"sig"`
	Batch  bool `json:"batch,omitempty"`
	Steps  bool `json:"steps,omitempty"`
}

// Freeze stops every process of a step (On) or lets them go on. Where no group can be frozen they are stopped and
// continued by signals.
type Freeze struct {
	Key
	On bool `json:"on,omitempty"`
}

// Release asks for the epilog and the removal of what the run left. KeepOutput keeps output that
// lives in the spool (SharedFS=no).
type Release struct {
	Key
	KeepOutput bool `json:"keep,omitempty"`
	// KeepRecord asks for the epilog and the removal of the groups now, but leaves the step's folder
	// with its exit record: the agent asks again without it once the controller has acknowledged the
	// report. Both are idempotent; the epilog's failure is the Reply's Err with Cause of the node.
	KeepRecord bool `json:"keep_record,omitempty"`
	// Exit is how the step ended, for the epilog; nil when nobody knows.
	Exit *Exit `json:"exit,omitempty"`
}

// Exit is the end of a process: its exit code, or the signal that ended it.
type Exit struct {
	Code   int `json:"code"`
	Signal int `json:"signal"`
}

// Reply answers one Request. Cause is internal/job.Cause; Errno 0 when the failure was none of the kernel's.
type Reply struct {
	ID    uint64 `json:"id"`
	Err   string `json:"err,omitempty"`
	Errno int    `json:"errno,omitempty"`
	Cause uint8  `json:"cause,omitempty"`
	Start int64  `json:"start_ms,omitempty"` // Start: when the process was started, Unix ms
	Keys  []Key  `json:"keys,omitempty"`     // List: every run with a folder here
	// List also says what this node is: the cgroup driver in use and what it cannot enforce, for people,
	// and whether the end of a run may be told before its Release because no epilog comes with that.
	Driver   string   `json:"driver,omitempty"`
	Missing  []string `json:"missing,omitempty"`
	NoEpilog bool     `json:"no_epilog,omitempty"`
}
