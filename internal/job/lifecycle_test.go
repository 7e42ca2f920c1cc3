package job

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func stateText(s State, f Flags) string {
	return strings.Join(append([]string{s.String()}, f.Names()...), "+")
}

func TestLives(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []Event
		want   string
	}{
		{"success", []Event{EventStart, EventLaunched, EventCompleted, EventNodesDone}, "COMPLETED"},
		{"still cleaning up", []Event{EventStart, EventLaunched, EventFailed}, "FAILED+COMPLETING"},
		{"starting", []Event{EventStart}, "RUNNING+CONFIGURING"},
		{"ended before the start was confirmed", []Event{EventStart, EventCompleted, EventLaunched, EventNodesDone}, "COMPLETED"},
		{"cancelled while waiting", []Event{EventCancel}, "CANCELLED"},
		{"cancelled while running, exit comes later", []Event{EventStart, EventLaunched, EventCancel, EventFailed}, "CANCELLED+COMPLETING"},
		{"time limit, exit comes later", []Event{EventStart, EventLaunched, EventTimeLimit, EventCompleted, EventNodesDone}, "TIMEOUT"},
		{"out of memory", []Event{EventStart, EventLaunched, EventOutOfMemory, EventNodesDone}, "OUT_OF_MEMORY"},
		{"user's launch failure", []Event{EventStart, EventLaunchFailedUser, EventNodesDone}, "FAILED+LAUNCH_FAILED"},
		{"node's launch failure", []Event{EventStart, EventLaunchFailedNode}, "PENDING+COMPLETING+REQUEUED"},
		{"node's launch failure, cleaned", []Event{EventStart, EventLaunchFailedNode, EventNodesDone}, "PENDING"},
		{"prolog failure", []Event{EventStart, EventLaunchFailedHold, EventNodesDone}, "PENDING+REQUEUE_HOLD"},
		{"prolog failure, released", []Event{EventStart, EventLaunchFailedHold, EventNodesDone, EventRelease, EventStart}, "RUNNING+CONFIGURING"},
		{"requeued", []Event{EventStart, EventLaunched, EventRequeue, EventFailed}, "PENDING+COMPLETING+REQUEUED"},
		{"requeued and run again", []Event{EventStart, EventLaunched, EventRequeue, EventNodesDone, EventStart, EventLaunched}, "RUNNING"},
		{"requeued, cancelled while cleaning", []Event{EventStart, EventLaunched, EventRequeue, EventCancel}, "CANCELLED+COMPLETING"},
		{"requeued after its end", []Event{EventStart, EventLaunched, EventFailed, EventNodesDone, EventRequeue}, "PENDING"},
		{"requeued after a cancelled wait", []Event{EventCancel, EventRequeue}, "PENDING"},
		{"requeued and held", []Event{EventStart, EventLaunched, EventRequeueHold, EventNodesDone}, "PENDING+REQUEUE_HOLD"},
		{"special exit", []Event{EventStart, EventLaunched, EventFailed, EventSpecialExit, EventNodesDone}, "PENDING+SPECIAL_EXIT"},
		{"node lost", []Event{EventStart, EventLaunched, EventNodeFail, EventNodesDone}, "NODE_FAIL"},
		{"preempted", []Event{EventStart, EventLaunched, EventPreempt, EventNodesDone}, "PREEMPTED"},
		{"suspended and cancelled", []Event{EventStart, EventLaunched, EventSuspend, EventCancel, EventNodesDone}, "CANCELLED"},
		{"suspended and resumed", []Event{EventStart, EventLaunched, EventSuspend, EventResume}, "RUNNING"},
		{"deadline while waiting", []Event{EventDeadline}, "DEADLINE"},
		{"boot failure", []Event{EventStart, EventBootFail, EventNodesDone}, "BOOT_FAIL"},
	} {
		s, f := Pending, Flags(0)
		for _, e := range c.events {
			var ok bool
			if s, f, ok = Next(s, f, e); !ok {
				t.Errorf("%s: %s is refused in %s", c.name, e, stateText(s, f))
			}
		}
		if got := stateText(s, f); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		s State
		f Flags
		e Event
	}{
		{Pending, Completing | Requeued, EventStart}, {Pending, RequeueHold, EventStart}, {Running, 0, EventStart}, {Completed, 0, EventStart},
		{Pending, 0, EventCompleted}, {Pending, 0, EventRequeue}, {Completed, 0, EventCancel}, {Completed, Completing, EventCancel},
		{Timeout, Completing, EventCancel}, {Running, Configuring, EventSuspend}, {Running, 0, EventResume}, {Running, 0, EventNodesDone},
		{Completed, 0, EventNodesDone}, {Cancelled, 0, EventLaunched}, {Completed, 0, EventFailed}, {Pending, 0, eventCount}, {stateCount, 0, EventStart},
	} {
		if s, f, ok := Next(c.s, c.f, c.e); ok || s != c.s || f != c.f {
			t.Errorf("%s in %s gives %s, %v", c.e, stateText(c.s, c.f), stateText(s, f), ok)
		}
	}
}

// Each pair of phase and event has at most one row: a second one would hide the first.
func TestLifecycleRowsAreDistinct(t *testing.T) {
	seen := map[[2]int]bool{}
	for _, r := range lifecycle {
		for _, p := range r.from {
			key := [2]int{int(p), int(r.event)}
			if seen[key] {
				t.Errorf("%s in %s has two rows", r.event, p)
			}
			seen[key] = true
		}
	}
	for e := range eventCount {
		found := false
		for p := range phaseCount {
			found = found || transitions[p][e] != nil
		}
		if !found {
			t.Errorf("%s can never happen", e)
		}
	}
}

// Along any life: nodes are held from Start to NodesDone and no longer, an ended job stays ended unless it is
// queued again, and flags of a run do not outlive it.
func TestLifecycleProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, f, holds := Pending, Flags(0), false
		for range 40 {
			e := Event(rapid.IntRange(0, int(eventCount)-1).Draw(t, "event"))
			was := s
			var ok bool
			if s, f, ok = Next(s, f, e); !ok {
				continue
			}
			switch {
			case e == EventStart && holds:
				t.Fatal("a run was started while the one before is on its nodes")
			case e == EventStart:
				holds = true
			case e == EventNodesDone:
				holds = false
			}
			if PhaseOf(s, f).HoldsNodes() != holds {
				t.Fatalf("%s after %s: nodes held is %v", stateText(s, f), e, holds)
			}
			if was.Ended() && s != was && s != Pending {
				t.Fatalf("%s turned %s into %s", e, was, s)
			}
			if s != Running && s != Suspended && f&runFlags != 0 {
				t.Fatalf("%s has flags of a run", stateText(s, f))
			}
			if f&Requeued != 0 && s != Pending {
				t.Fatalf("%s", stateText(s, f))
			}
		}
	})
}

func TestOutcome(t *testing.T) {
	for _, c := range []struct {
		name   string
		why    Why
		exit   Exit
		oom    bool
		cause  Cause
		state  State
		reason Reason
		shown  string
	}{
		{"exit 0", WhyNone, Exit{}, false, CauseNone, Completed, ReasonNone, "0:0"},
		{"exit 3", WhyNone, Exit{Code: 3}, false, CauseNone, Failed, ReasonNonZeroExit, "3:0"},
		{"exit 137", WhyNone, Exit{Code: 137}, false, CauseNone, Failed, ReasonNonZeroExit, "137:0"},
		{"no such command", WhyNone, Exit{Code: 127}, false, CauseNone, Failed, ReasonNonZeroExit, "127:0"},
		{"kill -9", WhyNone, Exit{Signal: 9}, false, CauseNone, Failed, "RaisedSignal:9(Killed)", "0:9"},
		{"a real-time signal", WhyNone, Exit{Signal: 53}, false, CauseNone, Failed, "RaisedSignal:53(Real-time signal 19)", "0:53"},
		{"time limit, TERM", WhyTimeLimit, Exit{Signal: 15}, false, CauseNone, Timeout, ReasonTimeLimit, "0:15"},
		{"time limit, KILL", WhyTimeLimit, Exit{Signal: 9}, false, CauseNone, Timeout, ReasonTimeLimit, "0:9"},
		{"time limit, exits 0", WhyTimeLimit, Exit{}, false, CauseNone, Timeout, ReasonTimeLimit, "0:0"},
		{"cancelled", WhyCancel, Exit{Signal: 15}, false, CauseNone, Cancelled, ReasonNone, "0:15"},
		{"cancelled while out of memory", WhyCancel, Exit{Signal: 9}, true, CauseNone, Cancelled, ReasonNone, "0:9"},
		{"out of memory", WhyNone, Exit{Signal: 9}, true, CauseNone, OutOfMemory, ReasonOutOfMemory, "0:125"},
		{"out of memory, exit 0", WhyNone, Exit{}, true, CauseNone, OutOfMemory, ReasonOutOfMemory, "0:125"},
		{"signal of the user", WhyUserSignal, Exit{Signal: 10}, false, CauseNone, Failed, "RaisedSignal:10(User defined signal 1)", "0:10"},
		{"output file", WhyNone, ExitOutputFile, false, CauseUser, Failed, ReasonOutputFile, "0:53"},
		{"user's fault", WhyNone, Exit{}, false, CauseUser, Failed, ReasonLaunchFailure, "1:0"},
		{"user's fault, with a code", WhyNone, Exit{Code: 126}, false, CauseUser, Failed, ReasonLaunchFailure, "126:0"},
		{"prolog", WhyNone, Exit{Code: 1}, false, CauseProlog, Pending, ReasonProlog, "0:0"},
		{"node's fault", WhyNone, Exit{}, false, CauseNode, Pending, ReasonLaunchFailure, "0:0"},
		{"credential", WhyNone, Exit{}, false, CauseCredential, Pending, ReasonLaunchFailure, "0:0"},
		{"requeued", WhyRequeue, Exit{Signal: 15}, false, CauseNone, Pending, ReasonNone, "0:15"},
		{"preempted", WhyPreempt, Exit{Signal: 15}, false, CauseNone, Preempted, ReasonNone, "0:15"},
		{"node lost", WhyNodeFail, Exit{}, false, CauseNone, NodeFail, ReasonNodeDown, "0:0"},
		{"lease over", WhyStale, Exit{Signal: 9}, false, CauseNone, NodeFail, ReasonNodeDown, "0:9"},
	} {
		state, reason, exit := Outcome(c.why, c.exit, c.oom, c.cause)
		if state != c.state || reason != c.reason || exit.String() != c.shown {
			t.Errorf("%s: %s %s %s, want %s %s %s", c.name, state, reason, exit, c.state, c.reason, c.shown)
		}
		// The event brings a running job there, and one that is starting too.
		for _, from := range []Flags{0, Configuring} {
			next, _, ok := Next(Running, from, EventFor(state, c.cause))
			if !ok || next != state {
				t.Errorf("%s: %s leads to %s, %v; want %s", c.name, EventFor(state, c.cause), next, ok, state)
			}
		}
	}
	for s := Completed; s < stateCount; s++ {
		if next, _, ok := Next(Running, Configuring, EventFor(s, CauseNone)); !ok || next != s {
			t.Errorf("EventFor(%s) leads to %s", s, next)
		}
	}
}

// Whatever a node reports, there is an answer, and success is only ever shown for an exit of 0.
func TestOutcomeProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exit := Exit{rapid.Int32Range(0, 255).Draw(t, "code"), rapid.Int32Range(0, 64).Draw(t, "signal")}
		why := Why(rapid.IntRange(0, 9).Draw(t, "why"))
		oom, cause := rapid.Bool().Draw(t, "oom"), Cause(rapid.IntRange(0, 7).Draw(t, "cause"))
		state, _, shown := Outcome(why, exit, oom, cause)
		if state == Completed && (!exit.OK() || oom) || state == Failed && shown.OK() {
			t.Fatalf("%s with %s for exit %s, oom %v", state, shown, exit, oom)
		}
	})
}

func TestShown(t *testing.T) {
	for _, c := range []struct {
		s             State
		f             Flags
		long, compact string
	}{
		{Running, 0, "RUNNING", "R"}, {Running, Configuring, "CONFIGURING", "CF"}, {Cancelled, Completing, "COMPLETING", "CG"},
		{Pending, Completing | Requeued, "COMPLETING", "CG"}, {Pending, RequeueHold, "REQUEUE_HOLD", "RH"},
		{Failed, LaunchFailed, "FAILED", "F"}, {Failed, LaunchFailed | Completing, "COMPLETING", "CG"}, {stateCount, 0, "UNKNOWN", "?"},
	} {
		if long, compact := Shown(c.s, c.f); long != c.long || compact != c.compact {
			t.Errorf("%s: %s %s", stateText(c.s, c.f), long, compact)
		}
	}
	for s := range stateCount {
		for _, name := range []string{s.String(), strings.ToLower(s.Short())} {
			if got, f, ok := ParseState(name); !ok || got != s || f != 0 {
				t.Errorf("ParseState(%q) = %s, %v", name, got, ok)
			}
		}
	}
	if _, f, ok := ParseState("cg"); !ok || f != Completing {
		t.Error("ParseState of a flag")
	}
	for _, name := range strings.Fields("PD CF RF RH RQ SE RV RD RS SO SI ST CG REQUEUE_FED RESV_DEL_HOLD REVOKED RECONFIG_FAIL POWER_UP_NODE EXPEDITING LAUNCH_FAILED") {
		if _, f, ok := ParseState(name); !ok || len(f.Names()) == 0 && name != "PD" {
			t.Errorf("ParseState refuses Slurm's %s", name)
		}
	}
	if _, _, ok := ParseState("bogus"); ok {
		t.Error("ParseState took a word that is no state")
	}
}
