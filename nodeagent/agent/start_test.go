package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

func batch(n uint32) launch.Key { return launch.Key{Job: n, Step: job.BatchStep} }

func TestLaunch(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		s.launch(batch(7))
		r := s.result()
		if !r.Ok || r.StartMs == 0 || keyFromPB(r.Key) != batch(7) || r.Error != "" {
			t.Errorf("result %v", r)
		}
		wait(h, s.beats, "a heartbeat")
		if b := wait(h, s.beats, "a heartbeat"); b.Steps != 1 {
			t.Errorf("heartbeat counts %d steps", b.Steps)
		}
	})
}

// TestLaunchOnce: whatever is sent again, and whenever, one key is started once.
func TestLaunchOnce(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		c.set(func() { c.acking = false })
		stop := h.agent()
		s := c.session()
		k := batch(7)
		s.launch(k, k)
		if r := s.result(); !r.Ok {
			t.Errorf("first: %v", r)
		}
		for {
			s.launch(k)
			m := wait(h, s.msgs, "an answer")
			if r := m.GetLaunched().GetResults()[0]; !r.Ok || r.Cause != nodepb.LaunchResult_NONE {
				t.Errorf("while it lives: %v", r)
			}
			if len(s.msgs) == 0 {
				break
			}
		}
		h.step(k).end(shepherd.Record{ExitCode: 3})
		s.report()
		s.launch(k)
		if r := s.result(); !r.Ok || r.Cause != nodepb.LaunchResult_DUPLICATE {
			t.Errorf("with its report waiting: %v", r)
		}
		stop()
		defer h.agent()() // one that has only the disk
		s = c.session()
		rep := s.report()
		s.launch(k)
		if r := s.result(); !r.Ok {
			t.Errorf("after a restart: %v", r)
		}
		s.ack(rep)
		time.Sleep(time.Second)
		s.launch(k)
		if r := s.result(); r.Ok || r.Cause != nodepb.LaunchResult_DUPLICATE {
			t.Errorf("after its report was taken: %v", r)
		}
		if n := h.launcher.starts[k]; n != 1 {
			t.Errorf("started %d times", n)
		}
	})
}

func TestLaunchRefused(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.set(func() { h.launcher.refuse = &launch.Reply{Err: "prolog: exit status 1", Cause: uint8(job.CauseProlog)} })
		defer h.agent()()
		s := c.session()
		s.launch(batch(7))
		if r := s.result(); r.Ok || r.Cause != nodepb.LaunchResult_PROLOG || r.Error != "prolog: exit status 1" {
			t.Errorf("result %v", r)
		}
		// The refusal may be on its way into the log, where it gives the job another run: this one must not
		// start any more, however well the node is by now, and in whatever session it comes.
		h.launcher.set(func() { h.launcher.refuse = nil })
		s.launch(batch(7))
		if r := s.result(); r.Ok || r.Cause != nodepb.LaunchResult_PROLOG || r.Error != "prolog: exit status 1" {
			t.Errorf("second try %v", r)
		}
		close(s.hangup)
		s = c.session()
		s.launch(batch(7), launch.Key{Job: 7, Run: 1, Step: job.BatchStep})
		for range 2 {
			if r := s.result(); r.Ok != (r.Key.Run == 1) {
				t.Errorf("in another session %v", r)
			}
		}
		if n := h.launcher.starts[batch(7)]; n != 0 {
			t.Errorf("started %d times", n)
		}
	})
}

// TestRefusalWaits: a refusal that no session has taken yet goes out in the next one, which brings the
// launch again at the same moment.
func TestRefusalWaits(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.set(func() {
			h.launcher.hung, h.launcher.refuse = make(chan struct{}), &launch.Reply{Err: "no room", Cause: uint8(job.CauseNode)}
		})
		defer h.agent()()
		s := c.session()
		s.launch(batch(7))
		time.Sleep(time.Second)
		c.set(func() { c.shut = true })
		close(s.hangup)
		time.Sleep(time.Second)
		h.launcher.set(func() { close(h.launcher.hung); h.launcher.hung = nil })
		time.Sleep(time.Second)
		h.launcher.set(func() { h.launcher.refuse = nil })
		c.set(func() { c.shut = false })
		s = c.session()
		s.launch(batch(7))
		time.Sleep(time.Minute)
		answers := 0
		for len(s.msgs) > 0 {
			for _, r := range (<-s.msgs).GetLaunched().GetResults() {
				// The session that was turned away has told that the run is here: then it is one that has ended.
				if answers++; r.Ok && r.Cause != nodepb.LaunchResult_DUPLICATE {
					t.Errorf("result %v", r)
				}
			}
		}
		if n := h.launcher.starts[batch(7)]; n != 0 || answers == 0 {
			t.Errorf("started %d times, %d answers", n, answers)
		}
	})
}

// TestRefusalsAreBounded: what waits to go out is known, what is older than that may be forgotten.
func TestRefusalsAreBounded(t *testing.T) {
	var f refusals
	long := failure(batch(1), strings.Repeat("x", 5000), nodepb.LaunchResult_NODE)
	for n := range uint32(3 * maxRefused) {
		f.add(batch(n), long)
		f.add(batch(n), long)
	}
	last := f.answers[batch(3*maxRefused-1)]
	if len(f.answers) != maxRefused || len(f.ring) != maxRefused || last == nil || len(last.Error) > maxRefusal || f.answers[batch(3*maxRefused-maxAnswers)] == nil {
		t.Errorf("%d answers, a ring of %d, the last %v", len(f.answers), len(f.ring), last)
	}
}

func TestLauncherAway(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.set(func() { h.launcher.down = true })
		defer h.agent()()
		s := c.session()
		begin := time.Now()
		s.launch(batch(7))
		r := s.result()
		if r.Ok || r.Cause != nodepb.LaunchResult_NODE || !strings.Contains(r.Error, "connection refused") {
			t.Errorf("result %v", r)
		}
		if d := time.Since(begin); d < launcherPatience || d > launcherPatience+2*maxBackoff {
			t.Errorf("answered after %v", d)
		}
		// Away for less than that: nobody notices.
		s.launch(batch(8))
		time.Sleep(launcherPatience / 2)
		h.launcher.set(func() { h.launcher.down = false })
		if r := s.result(); !r.Ok {
			t.Errorf("after the launcher's return: %v", r)
		}
	})
}

// TestLostAnswer: the launcher dies between the start and its answer. The agent must not say that
// the run was not started, and must not start it again.
func TestLostAnswer(t *testing.T) {
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("shepherd silent %v", silent), func(t *testing.T) {
			inBubble(t, func(h *host, c *controller) {
				h.launcher.set(func() { h.launcher.losing, h.launcher.silent = true, silent })
				defer h.agent()()
				s := c.session()
				s.launch(batch(7))
				time.Sleep(time.Millisecond)
				h.launcher.set(func() { h.launcher.losing = false })
				if r := s.result(); !r.Ok {
					t.Errorf("result %v", r)
				}
				if n := h.launcher.starts[batch(7)]; n != 1 {
					t.Errorf("started %d times", n)
				}
			})
		})
	}
}

// TestLostAnswerThenExpired: as before, but the second order is refused because it comes too late.
func TestLostAnswerThenExpired(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.set(func() { h.launcher.losing, h.launcher.silent = true, true })
		defer h.agent()()
		s := c.session()
		s.launch(batch(7))
		time.Sleep(time.Millisecond)
		expired := &launch.Reply{Err: "credential has expired", Cause: uint8(job.CauseCredential)}
		h.launcher.set(func() { h.launcher.losing, h.launcher.refuse = false, expired })
		if r := s.result(); !r.Ok {
			t.Errorf("the run lives, and the answer is %v", r)
		}
		// One that never began is refused with the launcher's reason.
		h.launcher.set(func() { h.launcher.hung = make(chan struct{}) })
		s.launch(batch(8))
		time.Sleep(time.Second)
		h.launcher.cut()
		h.launcher.set(func() { close(h.launcher.hung); h.launcher.hung = nil })
		if r := s.result(); r.Ok || r.Error != "credential has expired" {
			t.Errorf("result %v", r)
		}
	})
}

// TestHungLauncher: nothing is answered that is not known, and heartbeats go on.
func TestHungLauncher(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		time.Sleep(time.Second)
		hung := make(chan struct{})
		h.launcher.set(func() { h.launcher.hung = hung })
		for n := range uint32(2 * MaxCalls) {
			s.launch(batch(n + 1))
		}
		for len(s.beats) > 0 {
			<-s.beats
		}
		s.quiet(10 * time.Minute)
		if n := len(s.beats); n < 590 {
			t.Errorf("%d heartbeats in ten minutes with one each second", n)
		}
		h.launcher.set(func() { h.launcher.hung = nil })
		close(hung)
		seen := 0
		for seen < 2*MaxCalls {
			for _, r := range wait(h, s.msgs, "results").GetLaunched().GetResults() {
				if !r.Ok {
					t.Fatalf("result %v", r)
				}
				seen++
			}
		}
	})
}

// TestRefusedAfterHello: a controller that was told of the run in a hello needs a report to let go.
func TestRefusedAfterHello(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		time.Sleep(time.Second)
		hung := make(chan struct{})
		h.launcher.set(func() {
			h.launcher.hung = hung
			h.launcher.refuse = &launch.Reply{Err: "prolog: exit status 1", Cause: uint8(job.CauseProlog)}
		})
		s.launch(batch(7))
		time.Sleep(time.Second)
		close(s.hangup)
		s = c.session()
		if len(s.hello.Held) != 1 {
			t.Fatalf("held %v", s.hello.Held)
		}
		h.launcher.set(func() { h.launcher.hung = nil })
		close(hung)
		if r := s.result(); r.Ok || r.Cause != nodepb.LaunchResult_PROLOG {
			t.Errorf("result %v", r)
		}
		r := s.report()
		if r.Error != "prolog: exit status 1" || r.Cause != nodepb.LaunchResult_PROLOG || r.Lost || keyFromPB(r.Key) != batch(7) {
			t.Errorf("report %v", r)
		}
		s.ack(r)
		s.quiet(2 * resend)
	})
}

// TestKillBeforeStart: an order to end a run that is still being started is kept.
func TestKillBeforeStart(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		time.Sleep(time.Second)
		hung := make(chan struct{})
		h.launcher.set(func() { h.launcher.hung = hung })
		k := batch(7)
		s.launch(k)
		for range maxTodo {
			s.kill(&nodepb.Kill{Key: keyToPB(k), How: nodepb.Kill_TERMINATE, Why: nodepb.Kill_CANCEL})
			if r := wait(h, s.msgs, "a kill result").GetKilled().GetResults()[0]; !r.Found || r.Error != "" {
				t.Fatalf("kill: %v", r)
			}
		}
		s.kill(&nodepb.Kill{Key: keyToPB(k), How: nodepb.Kill_TERMINATE})
		if r := wait(h, s.msgs, "a kill result").GetKilled().GetResults()[0]; !strings.Contains(r.Error, "limit") {
			t.Errorf("over the limit: %v", r)
		}
		h.launcher.set(func() { h.launcher.hung = nil })
		close(hung)
		wait(h, s.msgs, "the launch result")
		if d := h.step(k).down(); d.Terminate == nil || d.Terminate.Why != uint8(job.WhyCancel) {
			t.Errorf("shepherd was told %+v", d)
		}
	})
}

func TestLaunchLimits(t *testing.T) {
	k := batch(1)
	for _, tc := range []struct {
		name string
		make func(l *nodepb.Launch, over int)
		want string
	}{
		{"script", func(l *nodepb.Launch, over int) { l.Script = make([]byte, job.MaxScript+over) }, "4194304"},
		{"environment", func(l *nodepb.Launch, over int) { l.Env = [][]byte{make([]byte, job.MaxEnv+over)} }, "1048576"},
		{"arguments", func(l *nodepb.Launch, over int) { l.Args = make([]string, job.MaxArgs+over) }, "65536"},
		{"arguments' bytes", func(l *nodepb.Launch, over int) { l.Args = []string{strings.Repeat("x", job.MaxEnv+over)} }, "1048576"},
		{"credential", func(l *nodepb.Launch, over int) { l.Credential = make([]byte, maxCredential+over) }, "1048576"},
		{"signature", func(l *nodepb.Launch, over int) { l.Signature = make([]byte, maxCredential+over) }, "1048576"},
		{"certificate", func(l *nodepb.Launch, over int) { l.Certificate = make([]byte, maxCredential+over) }, "1048576"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := order(k)
			tc.make(l, 0)
			if _, err := checkLaunch(l); err != nil {
				t.Errorf("at the limit: %v", err)
			}
			tc.make(l, 1)
			if _, err := checkLaunch(l); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("limit + 1: %v", err)
			}
		})
	}
}

func TestTableLimits(t *testing.T) {
	for _, tc := range []struct {
		name string
		fill func(a *Agent)
		want string
	}{
		{"runs", func(a *Agent) {
			for n := range uint32(MaxRuns) {
				a.runs[batch(n+100)] = &run{}
			}
		}, "limit of 16384 runs"},
		{"waiting launches", func(a *Agent) { a.waiting = MaxWaiting }, "4096 launches wait"},
		{"payload", func(a *Agent) { a.payload = MaxLaunchBytes }, "268435456 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := &Agent{out: newOutbox(), runs: map[launch.Key]*run{}}
			tc.fill(a)
			a.onLaunch(t.Context(), order(batch(1)))
			res := a.out.takeResults()
			if len(res) != 1 || res[0].Cause != nodepb.LaunchResult_NODE || !strings.Contains(res[0].Error, tc.want) {
				t.Errorf("results %v", res)
			}
		})
	}
}

// TestCredentialOfAnotherRun: what is accounted for must be what the launcher starts.
func TestCredentialOfAnotherRun(t *testing.T) {
	a := &Agent{out: newOutbox(), runs: map[launch.Key]*run{}}
	l := order(batch(2))
	l.Key = keyToPB(batch(1))
	a.onLaunch(t.Context(), l)
	l = order(batch(1))
	l.Credential = []byte("no credential")
	a.onLaunch(t.Context(), l)
	for _, r := range a.out.takeResults() {
		if r.Ok || r.Cause != nodepb.LaunchResult_CREDENTIAL {
			t.Errorf("result %v", r)
		}
	}
	if len(a.runs) != 0 {
		t.Error("the run is on the table")
	}
}

func TestDoneRing(t *testing.T) {
	var d doneRing
	for n := range uint32(maxDone + 1) {
		d.add(batch(n))
		d.add(batch(n))
	}
	if d.has(batch(0)) || !d.has(batch(1)) || !d.has(batch(maxDone)) || len(d.keys) != maxDone || len(d.ring) != maxDone {
		t.Errorf("keeps %d keys, %d places", len(d.keys), len(d.ring))
	}
}
