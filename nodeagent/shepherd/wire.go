// Package shepherd minds one step: it waits for its processes, keeps its time, tells the agent,
// and leaves a durable record when the agent is not there. It outlives agent and launcher.
//
// A shepherd that has done so may be used again for another step, since to start a process of our
// own costs as much as all the rest. It minds one step at a time and has long given up root; the
// first process of each step is made by a forker, a child of the shepherd that kept root, with
// CLONE_PARENT: it is the shepherd's child, and the forker is needed no more. The forker is told what
// to do by the launcher alone, and ends with it. Nothing of a step stays in either: descriptors are
// closed, and a shepherd that could not get rid of something ends instead. A step whose shepherd has
// to parse what users send gets a fresh one, which ends after it (launch.Single).
package shepherd

import "github.com/tensorgrid/tensorgrid/nodeagent/launch"

// A shepherd dials the agent's socket (and dials again each second while it is gone). Both ways:
// one JSON object a line.

// Up is what a shepherd says.
type Up struct {
	Hello *Hello `json:"hello,omitempty"`
	// Ended says that Record (file name RecordFile in the step's folder) is complete. It outlives us; it
	// is made durable against a power loss meanwhile.
	Ended *Record `json:"ended,omitempty"`
}

// Hello is the first line on each connection.
type Hello struct {
	Key   launch.Key `json:"key"`
	PID   int        `json:"pid"` // of the shepherd
	Start int64      `json:"start_ms"`
}

// RecordFile is the name of the exit record in the step's folder. LockFile is there and held (flock)
// from the moment that the folder has its name until its step is minded by nobody: an agent that
// finds no record and can take the lock knows that nobody starts or minds this step, and never will.
const (
	RecordFile = "exit.json"
	LockFile   = "lock"
)

// Record is how a step ended. It stays on disk until the controller has it.
type Record struct {
	Key         launch.Key `json:"key"`
	ExitCode    int        `json:"code"`
	Signal      int        `json:"signal"`
	OOM         bool       `json:"oom"`
	Start       int64      `json:"start_ms"`
	End         int64      `json:"end_ms"`
	Why         uint8      `json:"why"` // internal/job.Why when the node ended it
	Err         string     `json:"err,omitempty"`
	Cause       uint8      `json:"cause,omitempty"`
	StdoutError string     `json:"stdout_err,omitempty"` // output file could not be opened
	UserUS      int64      `json:"user_us"`
	SysUS       int64      `json:"sys_us"`
	MaxRSS      int64      `json:"max_rss"`
}

// Down is what the agent says. Exactly one field is set.
type Down struct {
	Limit     *int64     `json:"limit_ms,omitempty"` // new time limit from start; -1 none
	Terminate *Terminate `json:"terminate,omitempty"`
	Suspend   *bool      `json:"suspend,omitempty"`           // the processes stand still (true) or go on; the limit's time stands still with them
	Renew     *int64     `json:"renew_boottime_ms,omitempty"` // lease renewed, counted from this CLOCK_BOOTTIME
}

// Terminate ends the step: CONT+TERM, KillWait, KILL. Note goes to the step's standard error first.
type Terminate struct {
	Why      uint8  `json:"why"`
	KillWait int64  `json:"kill_wait_ms"`
	Now      bool   `json:"now,omitempty"` // KILL at once
	Note     string `json:"note,omitempty"`
}
