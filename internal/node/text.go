package node

import "strings"

const stateCount = Future + 1

var stateNames = [stateCount]string{"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "MIXED", "FUTURE"}

var flagNames = []struct {
	flag Flags
	name string
}{
	{Drain, "DRAIN"}, {Completing, "COMPLETING"}, {NotResponding, "NOT_RESPONDING"}, {Fail, "FAIL"},
	{Maint, "MAINTENANCE"}, {Reserved, "RESERVED"}, {InvalidReg, "INVALID_REG"}, {Planned, "PLANNED"},
}

// String is the long name, "IDLE".
func (s State) String() string {
	if s < stateCount {
		return stateNames[s]
	}
	return "UNKNOWN"
}

// Names lists the long names of the set flags, in a fixed order.
func (f Flags) Names() []string {
	var names []string
	for _, n := range flagNames {
		if f&n.flag != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

// Text is the state as scontrol shows it: IDLE+DRAIN+NOT_RESPONDING.
func Text(s State, f Flags) string {
	return strings.Join(append([]string{s.String()}, f.Names()...), "+")
}

// display is one row of what sinfo shows: the first row whose state and flags fit a node is its name.
type display struct {
	states        []State // any of them; nil = all
	with          Flags   // all of them are set
	long, compact string
}

var busy = []State{Allocated, Mixed}

// displays is in the order in which one thing about a node hides another.
var displays = []display{
	{states: busy, with: Drain, long: "draining", compact: "drng"},
	{with: Drain | Completing, long: "draining", compact: "drng"},
	{with: Drain, long: "drained", compact: "drain"},
	{states: busy, with: Fail, long: "failing", compact: "failg"},
	{with: Fail | Completing, long: "failing", compact: "failg"},
	{with: Fail, long: "fail", compact: "fail"},
	{with: InvalidReg, long: "inval", compact: "inval"},
	{states: []State{Down}, long: "down", compact: "down"},
	{states: []State{Allocated}, with: Completing, long: "allocated+", compact: "alloc+"},
	{states: []State{Allocated}, long: "allocated", compact: "alloc"},
	{states: []State{Idle, Mixed, Unknown}, with: Completing, long: "completing", compact: "comp"},
	{states: []State{Mixed}, long: "mixed", compact: "mix"},
	{with: Maint, long: "maint", compact: "maint"},
	{with: Reserved, long: "reserved", compact: "resv"},
	{states: []State{Idle}, with: Planned, long: "planned", compact: "plnd"},
	{states: []State{Idle}, long: "idle", compact: "idle"},
	{states: []State{Future}, long: "future", compact: "futr"},
	{long: "unknown", compact: "unk"},
}

func (d *display) fits(s State, f Flags) bool {
	if f&d.with != d.with {
		return false
	}
	for _, state := range d.states {
		if s == state {
			return true
		}
	}
	return d.states == nil
}

func show(s State, f Flags) *display {
	for i := range displays {
		if displays[i].fits(s, f) {
			return &displays[i]
		}
	}
	return &displays[len(displays)-1]
}

// suffix is what sinfo puts behind a name: '*' when the node does not answer, '$' when it is in maintenance and
// the name does not say so, '-' when it is planned for a job and is in use.
func suffix(s State, f Flags, d *display) string {
	switch {
	case f&NotResponding != 0:
		return "*"
	case f&Maint != 0 && d.long != "maint":
		return "$"
	case f&Planned != 0 && s == Mixed:
		return "-"
	}
	return ""
}

// Long is the state as sinfo's long columns show it: "idle", "drained*".
func Long(s State, f Flags) string {
	d := show(s, f)
	return d.long + suffix(s, f, d)
}

// Compact is the state as sinfo's STATE column shows it: "alloc", "mix", "drng", "down*".
func Compact(s State, f Flags) string {
	d := show(s, f)
	return d.compact + suffix(s, f, d)
}
