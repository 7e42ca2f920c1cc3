package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// running brings a step to life and gives session and step.
func running(h *host, c *controller, k launch.Key) (*ctlSession, *step) {
	h.t.Helper()
	s := c.session()
	s.launch(k)
	s.result()
	time.Sleep(10 * time.Millisecond)
	return s, h.step(k)
}

func (s *ctlSession) killed() *nodepb.KillResult {
	s.c.h.t.Helper()
	list := wait(s.c.h, s.msgs, "a kill result").GetKilled().GetResults()
	if len(list) != 1 {
		s.c.h.t.Fatalf("want one kill result, got %v", list)
	}
	return list[0]
}

// asked lists what the launcher was asked for of one kind.
func (l *fakeLauncher) asked(pick func(launch.Request) bool) []launch.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []launch.Request
	for _, r := range l.requests {
		if pick(r) {
			list = append(list, r)
		}
	}
	return list
}

func isKill(r launch.Request) bool   { return r.Kill != nil }
func isSignal(r launch.Request) bool { return r.Signal != nil }

func TestTerminate(t *testing.T) {
	for _, tc := range []struct {
		name string
		kill *nodepb.Kill
		want shepherd.Terminate
	}{
		{"with its own wait", &nodepb.Kill{How: nodepb.Kill_TERMINATE, Why: nodepb.Kill_CANCEL, KillWaitMs: 5000, Note: "*** CANCELLED ***"},
			shepherd.Terminate{Why: uint8(job.WhyCancel), KillWait: 5000, Note: "*** CANCELLED ***"}},
		{"with the cluster's wait", &nodepb.Kill{How: nodepb.Kill_TERMINATE, Why: nodepb.Kill_TIME_LIMIT},
			shepherd.Terminate{Why: uint8(job.WhyTimeLimit), KillWait: 30000}},
		{"at once", &nodepb.Kill{How: nodepb.Kill_KILL, Why: nodepb.Kill_PREEMPT, KillWaitMs: 5000},
			shepherd.Terminate{Why: uint8(job.WhyPreempt), Now: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(h *host, c *controller) {
				defer h.agent()()
				s, st := running(h, c, batch(7))
				tc.kill.Key = keyToPB(batch(7))
				s.kill(tc.kill)
				if r := s.killed(); !r.Found || r.Error != "" {
					t.Errorf("result %v", r)
				}
				if d := st.down(); d.Terminate == nil || *d.Terminate != tc.want {
					t.Errorf("shepherd was told %+v", d.Terminate)
				}
			})
		})
	}
}

func TestSignal(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s, _ := running(h, c, batch(7))
		s.kill(&nodepb.Kill{Key: keyToPB(batch(7)), How: nodepb.Kill_SIGNAL, Signal: 10, BatchOnly: true})
		if r := s.killed(); !r.Found || r.Error != "" {
			t.Errorf("result %v", r)
		}
		got := h.launcher.asked(isSignal)
		want := launch.Signal{Key: batch(7), Number: 10, Batch: true}
		if len(got) != 1 || *got[0].Signal != want {
			t.Errorf("launcher was asked %+v", got)
		}
		for _, sig := range []int32{0, 65, -1} {
			s.kill(&nodepb.Kill{Key: keyToPB(batch(7)), Signal: sig})
			if r := s.killed(); !strings.Contains(r.Error, "1 to 64") {
				t.Errorf("signal %d: %v", sig, r)
			}
		}
		s.kill(&nodepb.Kill{Key: keyToPB(batch(7)), Signal: 10, StepsOnly: true})
		if r := s.killed(); !r.Found || r.Error != "" || len(h.launcher.asked(isSignal)) != 1 {
			t.Errorf("a signal for steps reached the batch step: %v, %v", r, h.launcher.asked(isSignal))
		}
		s.kill(&nodepb.Kill{Key: keyToPB(batch(9)), Signal: 10})
		if r := s.killed(); r.Found {
			t.Errorf("unknown run: %v", r)
		}
	})
}

func TestSignalLimit(t *testing.T) {
	a := &Agent{out: newOutbox(), runs: map[launch.Key]*run{batch(1): {key: batch(1), phase: live}}, signals: maxKills}
	a.onKill(t.Context(), &nodepb.Kill{Key: keyToPB(batch(1)), Signal: 10})
	if r := a.out.takeKilled(); len(r) != 1 || !strings.Contains(r[0].Error, "4096 signals wait") {
		t.Errorf("results %v", r)
	}
}

// TestShepherdAway: TERM, KillWait and KILL come from the launcher then, and the reason is kept.
func TestShepherdAway(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		k := batch(7)
		st := h.place(k) // holds its lock, never connects
		defer h.agent()()
		s := c.session()
		s.kill(&nodepb.Kill{Key: keyToPB(k), How: nodepb.Kill_TERMINATE, Why: nodepb.Kill_CANCEL, KillWaitMs: 20000})
		s.killed()
		time.Sleep(10 * time.Second)
		if got := h.launcher.asked(isSignal); len(got) != 1 || got[0].Signal.Number != 15 {
			t.Errorf("launcher was asked %+v", got)
		}
		if len(h.launcher.asked(isKill)) != 0 || !st.alive() {
			t.Error("killed before KillWait was over")
		}
		r := s.report()
		if r.Signal != 9 || r.KilledFor != nodepb.Kill_CANCEL {
			t.Errorf("report %v", r)
		}
	})
}

// TestStubbornStep: a shepherd that is told and does nothing is helped.
func TestStubbornStep(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s, _ := running(h, c, batch(7))
		begin := time.Now()
		s.kill(&nodepb.Kill{Key: keyToPB(batch(7)), How: nodepb.Kill_TERMINATE, Why: nodepb.Kill_CANCEL, KillWaitMs: 1000})
		s.killed()
		r := s.report()
		if r.KilledFor != nodepb.Kill_CANCEL {
			t.Errorf("report %v", r)
		}
		if d := time.Since(begin); d < stubborn || d > stubborn+5*time.Second {
			t.Errorf("killed after %v", d)
		}
	})
}

// TestToldOnReturn: a shepherd that was away learns what it has missed, the newest of each.
func TestToldOnReturn(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		k := batch(7)
		st := h.place(k)
		defer h.agent()()
		s := c.session()
		for _, ms := range []int64{1000, 2000} {
			s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Limits{Limits: &nodepb.Limits{
				Limits: []*nodepb.StepLimit{{Key: keyToPB(k), TimeLimitMs: ms}, {Key: keyToPB(batch(9)), TimeLimitMs: 1}}}}})
		}
		s.kill(&nodepb.Kill{Key: keyToPB(k), How: nodepb.Kill_KILL, Why: nodepb.Kill_REQUEUE})
		s.killed()
		s.kill(&nodepb.Kill{Key: keyToPB(k), How: nodepb.Kill_TERMINATE, Why: nodepb.Kill_CANCEL})
		s.killed()
		go st.speak()
		if d := st.down(); d.Limit == nil || *d.Limit != 2000 {
			t.Errorf("limit %+v", d)
		}
		if d := st.down(); d.Terminate == nil || !d.Terminate.Now {
			t.Errorf("a kill was softened: %+v", d.Terminate)
		}
	})
}

// TestSuspends: what was said last of a run counts, also for a shepherd that was away, and comes behind the limit.
func TestSuspends(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		k := batch(7)
		st := h.place(k)
		defer h.agent()()
		s := c.session()
		for _, on := range []bool{false, true} {
			s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Suspend{Suspend: &nodepb.Suspends{
				Suspends: []*nodepb.Suspend{{Key: keyToPB(k), On: on}, {Key: keyToPB(batch(9)), On: true}}}}})
		}
		s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Limits{Limits: &nodepb.Limits{
			Limits: []*nodepb.StepLimit{{Key: keyToPB(k), TimeLimitMs: 1000}}}}})
		time.Sleep(time.Second)
		go st.speak()
		if d := st.down(); d.Limit == nil {
			t.Errorf("first %+v", d)
		}
		if d := st.down(); d.Suspend == nil || !*d.Suspend {
			t.Errorf("then %+v", d)
		}
		s.kill(&nodepb.Kill{Key: keyToPB(k), How: nodepb.Kill_KILL, Why: nodepb.Kill_CANCEL})
		s.killed()
		if d := st.down(); d.Terminate == nil || !d.Terminate.Now {
			t.Errorf("at last %+v", d)
		}
	})
}

// TestRenew: leases are renewed by a leader's answer only, from the time of the question.
func TestRenew(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s, st := running(h, c, batch(7))
		b := wait(h, s.beats, "a heartbeat")
		var last int64
		for range 3 {
			d := wait(h, st.downs, "a renewal")
			if d.Renew == nil || *d.Renew <= last || *d.Renew < b.SentBoottimeMs {
				t.Errorf("renewal %+v after %d", d.Renew, last)
			}
			last = *d.Renew
		}
		c.set(func() { c.deaf = true })
		time.Sleep(time.Second)
		for len(st.downs) > 0 {
			<-st.downs
		}
		time.Sleep(time.Minute)
		if len(st.downs) != 0 {
			t.Error("renewed without a leader's word")
		}
	})
}

// TestAckOfAnotherHeartbeat: an answer to what was not asked proves nothing.
func TestAckOfAnotherHeartbeat(t *testing.T) {
	a := &Agent{runs: map[launch.Key]*run{}, d: Deps{Now: time.Now, Boottime: func() int64 { return 1 }}}
	s := &session{a: a, seq: 100}
	for seq, want := range map[uint64]bool{100: true, 85: true, 84: false, 101: false, 0: false} {
		s.lastAck = time.Time{}
		s.onAck(t.Context(), seq)
		if got := !s.lastAck.IsZero(); got != want {
			t.Errorf("answer to heartbeat %d with 100 sent: counted %v", seq, got)
		}
	}
}

// TestStartThatHangsIsEnded: a run whose start does not come back is ended through the launcher, after
// the time that a start usually takes and not before.
func TestStartThatHangsIsEnded(t *testing.T) {
	for _, wait := range []bool{true, false} {
		inBubble(t, func(h *host, c *controller) {
			defer h.agent()()
			stall := make(chan struct{})
			h.launcher.set(func() { h.launcher.stall = stall })
			s := c.session()
			k := batch(7)
			s.launch(k)
			time.Sleep(time.Minute)
			s.kill(&nodepb.Kill{Key: keyToPB(k), How: nodepb.Kill_TERMINATE, Why: nodepb.Kill_CANCEL, KillWaitMs: 60_000})
			if r := s.killed(); !r.Found || r.Error != "" {
				t.Errorf("result %v", r)
			}
			if !wait { // it comes to its script in time: it is told in peace
				h.launcher.set(func() { h.launcher.stall = nil })
				close(stall)
				s.result()
				if d := h.step(k).down(); d.Terminate == nil || d.Terminate.Now {
					t.Errorf("told %+v", d)
				}
				if got := h.launcher.asked(isKill); len(got) != 0 {
					t.Errorf("launcher was asked %+v", got)
				}
				return
			}
			if r := s.result(); !r.Ok {
				t.Errorf("result %v", r)
			}
			if got := h.launcher.asked(isKill); len(got) == 0 || *got[0].Kill != k {
				t.Errorf("launcher was asked %+v", got)
			}
			h.step(k).killed()
			if r := s.report(); r.GetSignal() != 9 || r.GetKilledFor() != nodepb.Kill_CANCEL {
				t.Errorf("report %v", r)
			}
		})
	}
}

// TestOrdersForAnEarlierRun: orders that come late, for a run that is over, do nothing to the next one.
func TestOrdersForAnEarlierRun(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		now := batch(7)
		now.Run = 1
		old := keyToPB(batch(7))
		s, st := running(h, c, now)
		for _, how := range []nodepb.Kill_How{nodepb.Kill_TERMINATE, nodepb.Kill_KILL, nodepb.Kill_SIGNAL} {
			s.kill(&nodepb.Kill{Key: old, How: how, Signal: 9, KillWaitMs: 1})
			if r := s.killed(); r.Found || r.Error != "" {
				t.Errorf("%v: %v", how, r)
			}
		}
		s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Forget{Forget: &nodepb.Forget{Keys: []*nodepb.StepKey{old}}}})
		s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Limits{Limits: &nodepb.Limits{Limits: []*nodepb.StepLimit{{Key: old, TimeLimitMs: 1}}}}})
		s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Acks{Acks: &nodepb.ReportAcks{Keys: []*nodepb.StepKey{old}}}})
		time.Sleep(time.Minute)
		for len(st.downs) > 0 {
			if d := <-st.downs; d.Renew == nil {
				t.Errorf("the shepherd was told %+v", d)
			}
		}
		if asked := h.launcher.asked(func(r launch.Request) bool { return r.Kill != nil || r.Signal != nil || r.Release != nil }); !st.alive() || len(asked) != 0 {
			t.Errorf("alive %v, the launcher was asked %+v", st.alive(), asked)
		}
	})
}
