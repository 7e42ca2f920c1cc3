package job

import (
	"fmt"
	"strings"
)

// Event is something that happens to a job. Events and the table below are the only way a state changes.
type Event uint8

// The events. "The nodes" are those of the run's allocation.
const (
	EventStart            Event = iota // the planner gave it nodes
	EventLaunched                      // the first node has confirmed the start
	EventLaunchFailedNode              // a node could not start it, for the node's fault: queued again
	EventLaunchFailedHold              // a prolog failed: queued again, held
	EventLaunchFailedUser              // it could not be started, for its own fault
	EventCompleted                     // it ended with exit code 0
	EventFailed                        // it ended with another exit code or by a signal
	EventOutOfMemory                   // it ended because its memory did
	EventCancel                        // a user or operator ends it
	EventTimeLimit                     // its time limit has come
	EventNodeFail                      // a node was lost, it may not run again
	EventPreempt                       // it made room for another, it may not run again
	EventBootFail                      // its nodes did not boot
	EventDeadline                      // its deadline has passed
	EventRequeue                       // it goes back to the queue: asked for, or after node failure or preemption
	EventRequeueHold                   // it goes back to the queue, held
	EventSpecialExit                   // it goes back to the queue, held and marked, after an exit code that asks for it
	EventSuspend                       // its processes are stopped
	EventResume                        // its processes go on
	EventRelease                       // a hold is lifted
	EventNodesDone                     // the last node has nothing of the run alive any more
	EventReservationGone               // the reservation that it waited for is gone: held
	eventCount
)

var eventNames = [eventCount]string{
	"Start", "Launched", "LaunchFailedNode", "LaunchFailedHold", "LaunchFailedUser", "Completed", "Failed", "OutOfMemory",
	"Cancel", "TimeLimit", "NodeFail", "Preempt", "BootFail", "Deadline", "Requeue", "RequeueHold", "SpecialExit",
	"Suspend", "Resume", "Release", "NodesDone", "ReservationGone",
}

// String is the event's name in LIFECYCLE.md.
func (e Event) String() string {
	if e < eventCount {
		return eventNames[e]
	}
	return "Unknown"
}

// Phase is where a job stands in its life, from its state and flags together.
type Phase uint8

// The phases.
const (
	PhaseWaiting   Phase = iota // PENDING, holds nothing
	PhaseHeld                   // PENDING with REQUEUE_HOLD, SPECIAL_EXIT or RESV_DEL_HOLD
	PhaseReturning              // PENDING, nodes still clean up after the run before
	PhaseStarting               // RUNNING with CONFIGURING
	PhaseRunning                // RUNNING
	PhaseSuspended              // SUSPENDED
	PhaseCleaning               // ended, nodes still clean up
	PhaseEnded                  // ended, holds nothing
	phaseCount
)

var phaseNames = [phaseCount]string{"Waiting", "Held", "Returning", "Starting", "Running", "Suspended", "Cleaning", "Ended"}

// String is the phase's name in LIFECYCLE.md.
func (p Phase) String() string {
	if p < phaseCount {
		return phaseNames[p]
	}
	return "Unknown"
}

// PhaseOf tells the phase of a state with its flags.
func PhaseOf(s State, f Flags) Phase {
	switch {
	case s == Pending && f&Completing != 0:
		return PhaseReturning
	case s == Pending && f&heldFlags != 0:
		return PhaseHeld
	case s == Pending:
		return PhaseWaiting
	case s == Running && f&Configuring != 0:
		return PhaseStarting
	case s == Running:
		return PhaseRunning
	case s == Suspended:
		return PhaseSuspended
	case f&Completing != 0:
		return PhaseCleaning
	}
	return PhaseEnded
}

// HoldsNodes tells whether a job in this phase has an allocation.
func (p Phase) HoldsNodes() bool {
	switch p {
	case PhaseReturning, PhaseStarting, PhaseRunning, PhaseSuspended, PhaseCleaning:
		return true
	}
	return false
}

const (
	heldFlags = RequeueHold | SpecialExit | ResvDelHold
	// runFlags belong to one run and end with it.
	runFlags = Configuring | Stopped | Signaling | Resizing | StageOut
)

// step is what an event does in one phase: the next state, and which flags are set and cleared (set wins).
type step struct {
	to         State
	keep       bool // the base state stays, to is not read
	set, clear Flags
}

// row is an event, the phases in which it can happen and what it does there.
type row struct {
	event Event
	from  []Phase
	step  step
}

var (
	live    = []Phase{PhaseStarting, PhaseRunning, PhaseSuspended}
	waiting = []Phase{PhaseWaiting, PhaseHeld}
)

// lifecycle is the whole life of a job. A pair of phase and event that is not here cannot happen: Next refuses it.
//
// A job that holds nodes keeps COMPLETING from the moment it is ended until NodesDone, also when it is
// PENDING again meanwhile. What a node reports of a run that has already been ended from outside (the exit after
// TERM) does not change the state any more: those rows keep it.
var lifecycle = []row{
	{EventStart, []Phase{PhaseWaiting}, step{to: Running, set: Configuring, clear: Requeued | LaunchFailed}},
	{EventLaunched, []Phase{PhaseStarting}, step{to: Running, clear: Configuring}},
	{EventLaunched, []Phase{PhaseRunning, PhaseSuspended, PhaseReturning, PhaseCleaning}, step{keep: true}},
	{EventLaunchFailedNode, live, step{to: Pending, set: Completing | Requeued, clear: runFlags}},
	{EventLaunchFailedHold, live, step{to: Pending, set: Completing | Requeued | RequeueHold, clear: runFlags}},
	{EventLaunchFailedUser, live, step{to: Failed, set: Completing | LaunchFailed, clear: runFlags}},

	{EventCompleted, live, step{to: Completed, set: Completing, clear: runFlags}},
	{EventFailed, live, step{to: Failed, set: Completing, clear: runFlags}},
	{EventOutOfMemory, live, step{to: OutOfMemory, set: Completing, clear: runFlags}},
	{EventCompleted, []Phase{PhaseReturning, PhaseCleaning}, step{keep: true}},
	{EventFailed, []Phase{PhaseReturning, PhaseCleaning}, step{keep: true}},
	{EventOutOfMemory, []Phase{PhaseReturning, PhaseCleaning}, step{keep: true}},

	{EventCancel, waiting, step{to: Cancelled, clear: heldFlags | Requeued}},
	{EventCancel, []Phase{PhaseReturning}, step{to: Cancelled, set: Completing, clear: heldFlags | Requeued}},
	{EventCancel, live, step{to: Cancelled, set: Completing, clear: runFlags}},
	{EventTimeLimit, live, step{to: Timeout, set: Completing, clear: runFlags}},
	{EventNodeFail, live, step{to: NodeFail, set: Completing, clear: runFlags}},
	{EventPreempt, live, step{to: Preempted, set: Completing, clear: runFlags}},
	{EventBootFail, []Phase{PhaseStarting}, step{to: BootFail, set: Completing, clear: runFlags}},
	{EventDeadline, waiting, step{to: Deadline, clear: heldFlags | Requeued}},
	{EventDeadline, []Phase{PhaseReturning}, step{to: Deadline, set: Completing, clear: heldFlags | Requeued}},
	{EventDeadline, live, step{to: Deadline, set: Completing, clear: runFlags}},

	{EventRequeue, []Phase{PhaseStarting, PhaseRunning, PhaseSuspended, PhaseCleaning}, step{to: Pending, set: Completing | Requeued, clear: runFlags | LaunchFailed}},
	{EventRequeue, []Phase{PhaseEnded}, step{to: Pending, clear: LaunchFailed}},
	{EventRequeueHold, []Phase{PhaseStarting, PhaseRunning, PhaseSuspended, PhaseCleaning}, step{to: Pending, set: Completing | Requeued | RequeueHold, clear: runFlags | LaunchFailed}},
	{EventRequeueHold, []Phase{PhaseReturning}, step{keep: true, set: RequeueHold}},
	{EventRequeueHold, []Phase{PhaseWaiting, PhaseHeld, PhaseEnded}, step{to: Pending, set: RequeueHold, clear: LaunchFailed}},
	{EventSpecialExit, []Phase{PhaseStarting, PhaseRunning, PhaseSuspended, PhaseCleaning}, step{to: Pending, set: Completing | Requeued | SpecialExit, clear: runFlags | LaunchFailed}},
	{EventSpecialExit, []Phase{PhaseEnded}, step{to: Pending, set: SpecialExit, clear: LaunchFailed}},

	{EventSuspend, []Phase{PhaseRunning}, step{to: Suspended}},
	{EventResume, []Phase{PhaseSuspended}, step{to: Running}},
	{EventRelease, []Phase{PhaseWaiting, PhaseHeld, PhaseReturning}, step{keep: true, clear: heldFlags}},
	{EventNodesDone, []Phase{PhaseReturning, PhaseCleaning}, step{keep: true, clear: Completing | Requeued}},
	{EventReservationGone, []Phase{PhaseWaiting, PhaseHeld, PhaseReturning}, step{keep: true, set: ResvDelHold}},
}

// transitions is lifecycle by phase and event; nil where the event cannot happen.
var transitions = func() (t [phaseCount][eventCount]*step) {
	for i := range lifecycle {
		for _, from := range lifecycle[i].from {
			t[from][lifecycle[i].event] = &lifecycle[i].step
		}
	}
	return t
}()

// Next is the state and flags after an event; false, and both as they were, when it cannot happen now.
func Next(s State, f Flags, e Event) (State, Flags, bool) {
	if e >= eventCount || s >= stateCount {
		return s, f, false
	}
	t := transitions[PhaseOf(s, f)][e]
	if t == nil {
		return s, f, false
	}
	if !t.keep {
		s = t.to
	}
	return s, f&^t.clear | t.set, true
}

// LifecycleTable is the table for people, in Markdown.
func LifecycleTable() string {
	var b strings.Builder
	b.WriteString("| event |")
	for p := range phaseCount {
		fmt.Fprintf(&b, " %s |", p)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", int(phaseCount)) + "\n")
	for e := range eventCount {
		fmt.Fprintf(&b, "| %s |", e)
		for p := range phaseCount {
			fmt.Fprintf(&b, " %s |", transitions[p][e])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// String is a cell of the table: the state, flags set with +, cleared with -; "=" is the same state.
func (t *step) String() string {
	if t == nil {
		return ""
	}
	name := "="
	if !t.keep {
		name = t.to.String()
	}
	for _, flag := range t.set.Names() {
		name += " +" + flag
	}
	cleared := t.clear &^ t.set
	if cleared&runFlags == runFlags {
		cleared &^= runFlags // said once, above the table
	}
	for _, flag := range cleared.Names() {
		name += " -" + flag
	}
	return name
}
