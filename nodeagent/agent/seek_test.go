package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// TestLeaderIsFoundSoon: however long there was none, and whatever the others do meanwhile, an agent is
// with the leader within a second of its coming.
func TestLeaderIsFoundSoon(t *testing.T) {
	for name, before := range map[string]func(c *controller){
		"nobody leads":  func(c *controller) { c.vacant = true },
		"it is shut":    func(c *controller) { c.shut = true },
		"stale word":    func(c *controller) { c.leader = "c1" },
		"it is a mute":  func(c *controller) { c.mute = true },
		"another stale": func(c *controller) { c.leader = "c9" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(h *host, c1 *controller) {
				c2, c3 := h.controller("c2"), h.controller("c3")
				for _, c := range []*controller{c2, c3} {
					c.set(func() { before(c) })
				}
				defer h.agent()()
				wait(h, c1.session().beats, "a heartbeat")
				c1.stop() // killed
				time.Sleep(15 * time.Second)
				if name == "it is a mute" { // its silence is taken for an answer after welcomeTimeout only
					c3.set(func() { c3.mute = true })
				}
				begin := time.Now()
				c2.set(func() { c2.vacant, c2.shut, c2.leader, c2.mute = false, false, "", false })
				c2.session()
				most := time.Second
				if name == "it is a mute" {
					most = welcomeTimeout + time.Second
				}
				if took := time.Since(begin); took > most {
					t.Errorf("found after %v", took)
				}
			})
		})
	}
}

// TestBlackHoleIsPassedBy: a controller that takes the connection and says nothing, asked first, does not
// keep the agent from the leader.
func TestBlackHoleIsPassedBy(t *testing.T) {
	inBubble(t, func(h *host, c1 *controller) {
		c2 := h.controller("c2")
		c1.set(func() { c1.mute = true })
		begin := time.Now()
		defer h.agent()()
		c2.session()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("found after %v", took)
		}
	})
}

// TestControllersAreLearned: what a leader names is asked too, by the next agent as well; the
// configuration's word on a name is stronger.
func TestControllersAreLearned(t *testing.T) {
	inBubble(t, func(h *host, c1 *controller) {
		if err := os.Mkdir(filepath.Join(h.spool, StateFolder), 0o700); err != nil {
			t.Fatal(err)
		}
		c1.set(func() {
			c1.names = []*nodepb.ControllerAddress{{Name: "c1", Address: "elsewhere:1"}, {Name: "c4", Address: "c4:6817"},
				{Name: "", Address: "c5:1"}, {Name: "c6", Address: strings.Repeat("x", maxControllerPlace+1)}}
		})
		stop := h.agent()
		c1.session()
		time.Sleep(time.Second)
		stop()
		c1.stop()
		c4 := h.controller("c4") // it joined later: no file names it
		defer h.agent()()
		c4.session()
		list, err := readControllers(filepath.Join(h.spool, StateFolder))
		if err != nil || len(list) != 2 || list[1] != (Controller{"c4", "c4:6817"}) {
			t.Errorf("kept %v %v", list, err)
		}
	})
}

// TestNewestControllersAreKept: leaders that follow each other fast name other controllers; the last word stays.
func TestNewestControllersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Agent{cfg: Config{State: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
		a.keeping.Lock() // the disk is slow
		for i := range 64 {
			a.learn([]*nodepb.ControllerAddress{{Name: "c1", Address: fmt.Sprintf("c1:%d", i)}})
		}
		a.keeping.Unlock()
		synctest.Wait()
		if list, err := readControllers(a.cfg.State); err != nil || len(list) != 1 || list[0].Address != "c1:63" {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// TestBadControllersFile: nothing that may be in the file stops an agent.
func TestBadControllersFile(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "no list": `{"a":1}`, "half": `[{"Name":"c4","Addr`, "long": strings.Repeat(" ", maxControllersFile+1)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(h *host, c *controller) {
				dir := filepath.Join(h.spool, StateFolder)
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, controllersFile), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				defer h.agent()()
				c.session()
			})
		})
	}
	many := make([]*nodepb.ControllerAddress, 2*maxControllers)
	for i := range many {
		many[i] = &nodepb.ControllerAddress{Name: string(rune('a' + i)), Address: "h:1"}
	}
	inBubble(t, func(h *host, c *controller) {
		c.set(func() { c.names = many })
		defer h.agent()()
		c.session() // its folder is missing: it is not kept, and that is all
		synctest.Wait()
	})
}

// TestSpoolThatTakesNothing: what the launcher cannot start for that is told without blame, beside the
// problem with its errno; the node is well again by itself. The same errno with a spool that takes what
// is written is the node's fault for good.
func TestSpoolThatTakesNothing(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		wait(h, s.beats, "a heartbeat")
		h.mu.Lock()
		h.probe = func() error { return &os.PathError{Op: "open", Path: "/spool/agent/probe", Err: unix.EROFS} }
		h.mu.Unlock()
		h.launcher.set(func() {
			h.launcher.refuse = &launch.Reply{Err: "start 7.batch: mkdir: read-only file system", Errno: int(unix.EROFS), Cause: uint8(job.CauseNode)}
		})
		for len(s.beats) > 0 {
			<-s.beats
		}
		s.launch(batch(7))
		if r := s.result(); r.Ok || r.Cause != nodepb.LaunchResult_CREDENTIAL || !strings.Contains(r.Error, "read-only file system") {
			t.Errorf("result %v", r)
		}
		if b := wait(h, s.beats, "a heartbeat"); !strings.Contains(b.Problem, "read-only file system") {
			t.Errorf("the first heartbeat after it says %q", b.Problem)
		}
		h.mu.Lock()
		h.probe = func() error { return nil }
		h.mu.Unlock()
		time.Sleep(probeEvery + 2*time.Second)
		for len(s.beats) > 0 {
			<-s.beats
		}
		if b := wait(h, s.beats, "a heartbeat"); b.Problem != "" {
			t.Errorf("still %q", b.Problem)
		}
		s.launch(batch(8))
		if r := s.result(); r.Ok || r.Cause != nodepb.LaunchResult_NODE {
			t.Errorf("with a spool that is well: %v", r)
		}
	})
}

// leasedOrder is an order with a lease of 5 s.
func leasedOrder(k launch.Key) *nodepb.Launch {
	c := cred.Launch{Cluster: "test", Node: "n1", JobID: k.Job, Run: k.Run, Step: k.Step, UID: 1000, GID: 1000,
		User: "u", NotBefore: 1, Expires: 2, NumNodes: 1, WorkDir: "/", TimeLimit: job.Unlimited, Lease: 5000,
		Alloc: job.NodeAlloc{Node: "n1", CPUs: 1}, NodeList: "n1"}
	return &nodepb.Launch{Key: keyToPB(k), Credential: c.Marshal(), Script: []byte("#!/bin/sh\n")}
}

// realClock makes CLOCK_BOOTTIME go with the bubble's time.
func (h *host) realClock() {
	start := time.Now()
	h.boot = func() int64 { return 1_000_000 + time.Since(start).Milliseconds() }
}

// TestLeaseOfAStart: it counts from the last heartbeat that a leader answered, not from when the launch
// came, and is renewed at the launcher while the start takes long; not after it has run out.
func TestLeaseOfAStart(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.realClock()
		defer h.agent()()
		s := c.session()
		b := wait(h, s.beats, "a heartbeat")
		c.set(func() { c.deaf = true })
		time.Sleep(700 * time.Millisecond)
		stall := make(chan struct{})
		h.launcher.set(func() { h.launcher.stall = stall })
		send := func(k launch.Key) {
			s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Launch{Launch: &nodepb.LaunchBatch{Launches: []*nodepb.Launch{leasedOrder(k)}}}})
			synctest.Wait()
		}
		send(batch(7))
		starts := h.launcher.asked(func(r launch.Request) bool { return r.Start != nil })
		if len(starts) != 1 || starts[0].Start.Renewed != b.SentBoottimeMs {
			t.Fatalf("the start's lease counts from %+v, the last heartbeat was asked at %d", starts, b.SentBoottimeMs)
		}
		renewals := func() []launch.Request {
			return h.launcher.asked(func(r launch.Request) bool { return r.Renew != nil })
		}
		c.set(func() { c.deaf = false })
		time.Sleep(2 * time.Second)
		first := renewals()
		if len(first) == 0 || first[len(first)-1].Renew.Key != batch(7) || first[len(first)-1].Renew.Boottime <= b.SentBoottimeMs {
			t.Fatalf("renewals %+v", first)
		}
		// Cut off for longer than the lease, then back: it is not renewed any more.
		c.set(func() { c.deaf = true })
		s.hangup <- struct{}{}
		c.set(func() { c.shut = true })
		time.Sleep(6 * time.Second)
		c.set(func() { c.deaf, c.shut = false, false })
		s = c.session()
		wait(h, s.beats, "a heartbeat")
		time.Sleep(3 * time.Second)
		if late := renewals(); len(late) != len(first) {
			t.Errorf("renewed after its end: %+v", late[len(first):])
		}
		close(stall)
		h.launcher.set(func() { h.launcher.stall = nil })
	})
}

// TestRenewalOnReturn: a shepherd that comes back is told the newest renewal at once.
func TestRenewalOnReturn(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.realClock()
		defer h.agent()()
		s, st := running(h, c, batch(7))
		wait(h, s.beats, "a heartbeat")
		time.Sleep(3500 * time.Millisecond)
		c.set(func() { c.deaf = true })
		synctest.Wait()
		for len(st.downs) > 0 {
			<-st.downs
		}
		st.mu.Lock()
		st.conn.Close()
		st.mu.Unlock()
		time.Sleep(1100 * time.Millisecond)
		if len(st.downs) == 0 {
			t.Fatal("nothing was told")
		}
		if d := <-st.downs; d.Renew == nil || h.clock()-*d.Renew > 3000 {
			t.Errorf("told %+v", d)
		}
	})
}

// TestWallClockIsSet: neither session nor shepherds notice that the node's clock was set.
func TestWallClockIsSet(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s, st := running(h, c, batch(7))
		for _, ahead := range []time.Duration{3 * time.Hour, -3 * time.Hour, 0} {
			h.mu.Lock()
			h.ahead = ahead
			h.mu.Unlock()
			for len(s.beats) > 0 {
				<-s.beats
			}
			time.Sleep(10 * time.Second)
			if n := len(s.beats); n < 9 || n > 11 {
				t.Errorf("%v: %d heartbeats in 10 s", ahead, n)
			}
			if b := <-s.beats; time.Until(time.UnixMilli(b.SentMs)).Round(time.Hour) != ahead {
				t.Errorf("the heartbeat says %v", time.UnixMilli(b.SentMs))
			}
			st.mu.Lock()
			st.conn.Close()
			st.mu.Unlock()
			time.Sleep(2 * time.Second) // it is adopted again: its hello came in time
			st.mu.Lock()
			alive := !st.ended
			st.mu.Unlock()
			if !alive || len(c.sessions) != 0 {
				t.Errorf("%v: step alive %v, %d new sessions", ahead, alive, len(c.sessions))
			}
		}
		s.kill(&nodepb.Kill{Key: keyToPB(batch(7)), How: nodepb.Kill_TERMINATE, KillWaitMs: 5000})
		if d := st.down(); d.Terminate == nil {
			t.Errorf("told %+v", d)
		}
	})
}
