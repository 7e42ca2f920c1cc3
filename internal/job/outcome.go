package job

import "fmt"

// ExitOutputFile is the exit of a run whose output file could not be opened, as Slurm's 0:53. The node's report
// gives it together with CauseUser.
var ExitOutputFile = Exit{Signal: 53}

// ExitOutOfMemory is the exit of a run that ran out of memory, as Slurm's 0:125.
var ExitOutOfMemory = Exit{Signal: 125}

// OK tells whether the exit is a success.
func (e Exit) OK() bool { return e == Exit{} }

// String is "code:signal", as ExitCode is shown.
func (e Exit) String() string { return fmt.Sprintf("%d:%d", e.Code, e.Signal) }

// reasonFor says how a row of outcomes finds the reason.
type reasonFor func(Exit) Reason

func always(r Reason) reasonFor { return func(Exit) Reason { return r } }

// byExit is the reason of a run that nobody ended from outside.
func byExit(e Exit) Reason {
	switch {
	case e.Signal != 0:
		return Reason(fmt.Sprintf("RaisedSignal:%d(%s)", e.Signal, SignalText(int(e.Signal))))
	case e.Code != 0:
		return ReasonNonZeroExit
	}
	return ReasonNone
}

// outcome is one row: the first whose test holds decides.
type outcome struct {
	name   string
	holds  func(why Why, exit Exit, oom bool, cause Cause) bool
	state  State
	reason reasonFor
	exit   func(Exit) Exit // nil = as it ended
}

func ended(because ...Why) func(Why, Exit, bool, Cause) bool {
	return func(why Why, _ Exit, _ bool, _ Cause) bool {
		for _, w := range because {
			if why == w {
				return true
			}
		}
		return false
	}
}

func caused(c Cause) func(Why, Exit, bool, Cause) bool {
	return func(_ Why, _ Exit, _ bool, cause Cause) bool { return cause == c }
}

func fixed(e Exit) func(Exit) Exit { return func(Exit) Exit { return e } }

// outcomes says what becomes of a run, best known cause first: why it was ended from outside, then what went wrong
// when it was launched, then memory, then its own exit. Pending means that it is queued again.
var outcomes = []outcome{
	{"cancelled", ended(WhyCancel), Cancelled, always(ReasonNone), nil},
	{"time limit", ended(WhyTimeLimit), Timeout, always(ReasonTimeLimit), nil},
	{"preempted", ended(WhyPreempt), Preempted, always(ReasonNone), nil},
	{"queued again", ended(WhyRequeue), Pending, always(ReasonNone), nil},
	{"node lost", ended(WhyNodeFail, WhyStale), NodeFail, always(ReasonNodeDown), nil},
	{"output file", func(_ Why, e Exit, _ bool, c Cause) bool { return c == CauseUser && e == ExitOutputFile },
		Failed, always(ReasonOutputFile), nil},
	{"launch, user's fault", caused(CauseUser), Failed, always(ReasonLaunchFailure), func(e Exit) Exit {
		if e.OK() {
			return Exit{Code: 1} // a run that failed must not show success
		}
		return e
	}},
	{"launch, prolog", caused(CauseProlog), Pending, always(ReasonProlog), fixed(Exit{})},
	{"launch, node's fault", caused(CauseNode), Pending, always(ReasonLaunchFailure), fixed(Exit{})},
	{"launch, credential", caused(CauseCredential), Pending, always(ReasonLaunchFailure), fixed(Exit{})},
	{"out of memory", func(_ Why, _ Exit, oom bool, _ Cause) bool { return oom },
		OutOfMemory, always(ReasonOutOfMemory), fixed(ExitOutOfMemory)},
	{"success", func(_ Why, e Exit, _ bool, _ Cause) bool { return e.OK() }, Completed, always(ReasonNone), nil},
	{"failure", func(Why, Exit, bool, Cause) bool { return true }, Failed, byExit, nil},
}

// Outcome is what becomes of a run: its state, the reason shown and the exit recorded. why is why it was ended from
// outside, if it was; exit, oom and cause are what the node reports. Pending means that it is to be queued again.
func Outcome(why Why, exit Exit, oom bool, cause Cause) (State, Reason, Exit) {
	for _, o := range outcomes {
		if !o.holds(why, exit, oom, cause) {
			continue
		}
		reason := o.reason(exit)
		if o.exit != nil {
			exit = o.exit(exit)
		}
		return o.state, reason, exit
	}
	return Failed, byExit(exit), exit // not reached: the last row always holds
}

// EventFor is the event that brings a run to the state that Outcome gave. cause tells launch failures apart.
func EventFor(s State, cause Cause) Event {
	switch s {
	case Completed:
		return EventCompleted
	case Cancelled:
		return EventCancel
	case Timeout:
		return EventTimeLimit
	case NodeFail:
		return EventNodeFail
	case Preempted:
		return EventPreempt
	case BootFail:
		return EventBootFail
	case Deadline:
		return EventDeadline
	case OutOfMemory:
		return EventOutOfMemory
	case Pending:
		switch cause {
		case CauseProlog:
			return EventLaunchFailedHold
		case CauseNode, CauseCredential:
			return EventLaunchFailedNode
		}
		return EventRequeue
	}
	if cause == CauseUser {
		return EventLaunchFailedUser
	}
	return EventFailed
}
