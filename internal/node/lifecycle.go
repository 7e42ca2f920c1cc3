package node

import (
	"fmt"
	"strings"
)

// Event is something that happens to a node. The table below says what its own state and flags become by each; what
// is allocated on it is not part of it. The replicated state has rules of its own for what comes with an event: reasons,
// boots, and what the configuration file says.
type Event uint8

// The events.
const (
	EventRegister        Event = iota // it registered with all that is configured; it may return to service
	EventRegisterAgain                // the same, but only an administrator may bring it back
	EventRegisterInvalid              // it registered with less than is configured
	EventHeard                        // a sign of life on an open session
	EventSilent                       // no sign of life for a while
	EventLost                         // no sign of life for a full window: its runs are lost
	EventReboot                       // it came back with another boot id while it was believed up
	EventDrain                        // an administrator or a check: no new work
	EventUndrain                      // the drain is lifted, nothing else changes
	EventResume                       // an administrator brings it back
	EventDown                         // an administrator or a check: out of service
	EventFail                         // an administrator: failing, no new work
	EventFuture                       // not there yet
	eventCount
)

var eventNames = [eventCount]string{
	"Register", "RegisterAgain", "RegisterInvalid", "Heard", "Silent", "Lost", "Reboot",
	"Drain", "Undrain", "Resume", "Down", "Fail", "Future",
}

// String is the event's name in LIFECYCLE.md.
func (e Event) String() string {
	if e < eventCount {
		return eventNames[e]
	}
	return "Unknown"
}

// change is what an event does in one base state.
type change struct {
	to         State
	keep       bool // the base state stays, to is not read
	set, clear Flags
}

type row struct {
	event Event
	from  []State
	do    change
}

var (
	every = []State{Unknown, Down, Idle, Future}
	there = []State{Unknown, Down, Idle}
)

// lifecycle is the whole life of a node by its own state: Unknown, Down, Idle or Future (Allocated and Mixed follow from
// what runs there and count as Idle). A pair that is not here is refused. No registration lifts a drain. A node that
// never registered stays not responding through DOWN and RESUME, so that nothing is started on it.
var lifecycle = []row{
	{EventRegister, every, change{to: Idle, clear: NotResponding | InvalidReg}},
	{EventRegisterAgain, []State{Unknown, Idle, Future}, change{to: Idle, clear: NotResponding | InvalidReg}},
	{EventRegisterAgain, []State{Down}, change{keep: true, clear: NotResponding | InvalidReg}},
	{EventRegisterInvalid, []State{Unknown, Idle, Future}, change{to: Idle, set: InvalidReg | Drain, clear: NotResponding}},
	{EventRegisterInvalid, []State{Down}, change{keep: true, set: InvalidReg | Drain, clear: NotResponding}},
	{EventHeard, there, change{keep: true, clear: NotResponding}},
	{EventSilent, there, change{keep: true, set: NotResponding}},
	{EventLost, there, change{to: Down, set: NotResponding}},
	{EventReboot, there, change{to: Down}},
	{EventDrain, every, change{keep: true, set: Drain}},
	{EventUndrain, every, change{keep: true, clear: Drain}},
	{EventResume, []State{Unknown, Idle}, change{keep: true, clear: Drain | Fail}},
	{EventResume, []State{Down}, change{to: Idle, clear: Drain | Fail}},
	{EventResume, []State{Future}, change{to: Unknown, clear: Drain | Fail}},
	{EventDown, []State{Down, Idle}, change{to: Down}},
	{EventDown, []State{Unknown, Future}, change{to: Down, set: NotResponding}},
	{EventFail, every, change{keep: true, set: Fail}},
	{EventFuture, []State{Unknown, Down, Idle}, change{to: Future, clear: NotResponding | InvalidReg}},
}

var transitions = func() (t [stateCount][eventCount]*change) {
	for i := range lifecycle {
		for _, from := range lifecycle[i].from {
			t[from][lifecycle[i].event] = &lifecycle[i].do
		}
	}
	return t
}()

// own is the state that the table knows: what runs on a node is not part of it.
func own(s State) State {
	if s == Allocated || s == Mixed {
		return Idle
	}
	return s
}

// Next is a node's own state and flags after an event; false, and both as they were, when it cannot happen now.
func Next(s State, f Flags, e Event) (State, Flags, bool) {
	if e >= eventCount || s >= stateCount {
		return s, f, false
	}
	t := transitions[own(s)][e]
	if t == nil {
		return s, f, false
	}
	if t.keep {
		s = own(s)
	} else {
		s = t.to
	}
	return s, f&^t.clear | t.set, true
}

// Usable tells whether a node with this state may get new work.
func Usable(s State, f Flags) bool {
	return own(s) == Idle && f&(Drain|Fail|NotResponding|InvalidReg|Maint) == 0
}

// RegisterEvent is the event of a registration that is complete, by ReturnToService: 0 brings back no node that is
// down, 1 one that is down for not answering (silenced), 2 any.
func RegisterEvent(returnToService uint32, silenced bool) Event {
	if returnToService >= 2 || returnToService == 1 && silenced {
		return EventRegister
	}
	return EventRegisterAgain
}

// LifecycleTable is the table for people, in Markdown.
func LifecycleTable() string {
	var b strings.Builder
	b.WriteString("| event |")
	for _, s := range every {
		fmt.Fprintf(&b, " %s |", s)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(every)) + "\n")
	for e := range eventCount {
		fmt.Fprintf(&b, "| %s |", e)
		for _, s := range every {
			fmt.Fprintf(&b, " %s |", transitions[s][e])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// String is a cell of the table: the state, flags set with +, cleared with -; "=" is the same state.
func (t *change) String() string {
	if t == nil {
		return ""
	}
	text := "="
	if !t.keep {
		text = t.to.String()
	}
	for _, name := range t.set.Names() {
		text += " +" + name
	}
	for _, name := range t.clear.Names() {
		text += " -" + name
	}
	return text
}
