package node

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite generated files")

func TestDisplay(t *testing.T) {
	for _, c := range []struct {
		state               State
		flags               Flags
		text, long, compact string
	}{
		{Idle, 0, "IDLE", "idle", "idle"},
		{Mixed, 0, "MIXED", "mixed", "mix"},
		{Allocated, 0, "ALLOCATED", "allocated", "alloc"},
		{Allocated, Completing, "ALLOCATED+COMPLETING", "allocated+", "alloc+"},
		{Idle, Completing, "IDLE+COMPLETING", "completing", "comp"},
		{Idle, Drain, "IDLE+DRAIN", "drained", "drain"},
		{Mixed, Drain, "MIXED+DRAIN", "draining", "drng"},
		{Idle, Drain | Completing, "IDLE+DRAIN+COMPLETING", "draining", "drng"},
		{Down, Drain, "DOWN+DRAIN", "drained", "drain"},
		{Down, 0, "DOWN", "down", "down"},
		{Down, NotResponding, "DOWN+NOT_RESPONDING", "down*", "down*"},
		{Idle, NotResponding, "IDLE+NOT_RESPONDING", "idle*", "idle*"},
		{Idle, Drain | NotResponding, "IDLE+DRAIN+NOT_RESPONDING", "drained*", "drain*"},
		{Idle, Fail, "IDLE+FAIL", "fail", "fail"},
		{Allocated, Fail, "ALLOCATED+FAIL", "failing", "failg"},
		{Idle, Maint, "IDLE+MAINTENANCE", "maint", "maint"},
		{Mixed, Maint, "MIXED+MAINTENANCE", "mixed$", "mix$"},
		{Idle, Reserved, "IDLE+RESERVED", "reserved", "resv"},
		{Idle, Planned, "IDLE+PLANNED", "planned", "plnd"},
		{Mixed, Planned, "MIXED+PLANNED", "mixed-", "mix-"},
		{Idle, InvalidReg, "IDLE+INVALID_REG", "inval", "inval"},
		{Future, 0, "FUTURE", "future", "futr"},
		{Unknown, NotResponding, "UNKNOWN+NOT_RESPONDING", "unknown*", "unk*"},
		{State(77), 0, "UNKNOWN", "unknown", "unk"},
	} {
		if got := Text(c.state, c.flags); got != c.text {
			t.Errorf("Text(%d, %b) = %q, want %q", c.state, c.flags, got, c.text)
		}
		if got := Long(c.state, c.flags); got != c.long {
			t.Errorf("Long(%s) = %q, want %q", c.text, got, c.long)
		}
		if got := Compact(c.state, c.flags); got != c.compact {
			t.Errorf("Compact(%s) = %q, want %q", c.text, got, c.compact)
		}
	}
}

func TestParseFilter(t *testing.T) {
	nodes := []struct {
		name  string
		state State
		flags Flags
	}{
		{"idle", Idle, 0}, {"busy", Allocated, 0}, {"drained", Idle, Drain}, {"draining", Mixed, Drain},
		{"lost", Down, NotResponding}, {"mixed", Mixed, Completing},
	}
	for filter, want := range map[string]string{
		"idle":            "idle",
		"IDLE,alloc":      "idle busy",
		"drain":           "drained draining",
		"drained":         "drained",
		"drng":            "draining",
		"down":            "lost",
		"mix":             "mixed",
		"mixed&comp":      "mixed",
		"idle&drain":      "",
		"no_respond,comp": "lost mixed",
		"all":             "idle busy drained draining lost mixed",
	} {
		holds, err := ParseFilter(filter)
		if err != nil {
			t.Errorf("ParseFilter(%q): %v", filter, err)
			continue
		}
		var got []string
		for _, n := range nodes {
			if holds(n.state, n.flags) {
				got = append(got, n.name)
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("ParseFilter(%q) finds %q, want %q", filter, s, want)
		}
	}
	for _, bad := range []string{"", ",", "idel", "idle,bogus", "idle&", strings.Repeat("a", MaxFilter+1)} {
		if _, err := ParseFilter(bad); err == nil {
			t.Errorf("ParseFilter(%.20q) was taken", bad)
		}
	}
}

func FuzzParseFilter(f *testing.F) {
	for _, s := range []string{"idle", "drain&down,mix", "&", ",,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if holds, err := ParseFilter(s); err == nil {
			holds(Idle, Drain)
		}
	})
}

func TestLifecycle(t *testing.T) {
	type at struct {
		s State
		f Flags
	}
	for _, c := range []struct {
		name   string
		start  at
		events []Event
		want   at
	}{
		{"registers", at{Unknown, NotResponding}, []Event{EventRegister}, at{Idle, 0}},
		{"drain survives a restart of the agent", at{Idle, Drain}, []Event{EventSilent, EventRegister}, at{Idle, Drain}},
		{"drain survives a loss", at{Idle, Drain}, []Event{EventLost, EventRegister}, at{Idle, Drain}},
		{"lost, returns", at{Idle, 0}, []Event{EventSilent, EventLost, EventRegister}, at{Idle, 0}},
		{"lost, must wait for an admin", at{Idle, 0}, []Event{EventLost, EventRegisterAgain}, at{Down, 0}},
		{"resumed", at{Down, Drain}, []Event{EventResume}, at{Idle, 0}},
		{"undrain leaves it down", at{Down, Drain}, []Event{EventUndrain}, at{Down, 0}},
		{"never there, down and resumed", at{Unknown, 0}, []Event{EventDown, EventResume}, at{Idle, NotResponding}},
		{"registers with less", at{Idle, 0}, []Event{EventRegisterInvalid}, at{Idle, InvalidReg | Drain}},
		{"registers with all again", at{Idle, InvalidReg | Drain}, []Event{EventRegister}, at{Idle, Drain}},
		{"future registers", at{Future, 0}, []Event{EventRegister}, at{Idle, 0}},
		{"mixed counts as idle", at{Mixed, 0}, []Event{EventDrain}, at{Idle, Drain}},
	} {
		s, f := c.start.s, c.start.f
		for _, e := range c.events {
			var ok bool
			if s, f, ok = Next(s, f, e); !ok {
				t.Errorf("%s: %s refused", c.name, e)
			}
		}
		if got := (at{s, f}); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, Text(got.s, got.f), Text(c.want.s, c.want.f))
		}
	}
	if s, f, ok := Next(Future, Drain, EventSilent); ok || s != Future || f != Drain {
		t.Error("a future node fell silent")
	}
	if _, _, ok := Next(Idle, 0, eventCount); ok {
		t.Error("an unknown event was taken")
	}
}

// No event but Undrain and Resume may lift a drain, whatever the state.
func TestDrainSurvives(t *testing.T) {
	for s := range stateCount {
		for e := range eventCount {
			if _, f, ok := Next(s, Drain, e); ok && f&Drain == 0 && e != EventUndrain && e != EventResume {
				t.Errorf("%s lifts the drain of a node that is %s", e, s)
			}
		}
	}
}

func TestUsable(t *testing.T) {
	for _, f := range []Flags{Drain, Fail, NotResponding, InvalidReg, Maint} {
		if Usable(Idle, f) {
			t.Errorf("a node that is %s is usable", Text(Idle, f))
		}
	}
	if !Usable(Idle, 0) || !Usable(Mixed, Completing) || Usable(Down, 0) || Usable(Unknown, 0) || Usable(Future, 0) {
		t.Error("usable by base state is wrong")
	}
}

func TestRegisterEvent(t *testing.T) {
	for _, c := range []struct {
		rts      uint32
		silenced bool
		want     Event
	}{{0, true, EventRegisterAgain}, {1, true, EventRegister}, {1, false, EventRegisterAgain}, {2, false, EventRegister}} {
		if got := RegisterEvent(c.rts, c.silenced); got != c.want {
			t.Errorf("RegisterEvent(%d, %v) = %s, want %s", c.rts, c.silenced, got, c.want)
		}
	}
}

func TestLifecycleDocument(t *testing.T) {
	const file = "LIFECYCLE.md"
	want := "# A node's life\n\nGenerated from lifecycle.go by `go test ./internal/node -run LifecycleDocument -update`. " +
		"A cell is the state after the event (\"=\": the same), flags set with + and cleared with -; an empty cell is refused.\n\n" + LifecycleTable()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current; run the command it names", file)
	}
}
