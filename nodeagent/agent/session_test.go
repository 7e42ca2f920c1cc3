package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

func TestRegister(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.place(launch.Key{Job: 7, Run: 2, Step: 4294967291})
		defer h.agent()()
		hello := c.session().hello
		if hello.Node != "n1" || hello.Cluster != "test" || hello.BootId != "boot-1" || hello.Inventory.Cpus != 4 ||
			hello.Inventory.Gres != "gpu:a100:8" || hello.AgentStartMs == 0 {
			t.Errorf("hello %v", hello)
		}
		if len(hello.Held) != 1 || hello.Held[0].JobId != 7 || hello.Held[0].Run != 2 || hello.Held[0].Step != 4294967291 {
			t.Errorf("held %v", hello.Held)
		}
	})
}

func TestDriverIsTold(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("launcher comes late %v", late), func(t *testing.T) {
			inBubble(t, func(h *host, c *controller) {
				h.launcher.set(func() { h.launcher.down = late })
				defer h.agent()()
				s := c.session()
				if late {
					if s.hello.CgroupDriver != "" {
						t.Errorf("driver %q", s.hello.CgroupDriver)
					}
					h.launcher.set(func() { h.launcher.down = false })
					s = c.session() // opened anew with what is known now
				}
				if s.hello.CgroupDriver != "none" || !slices.Equal(s.hello.LimitsMissing, []string{"memory"}) {
					t.Errorf("driver %q, missing %v", s.hello.CgroupDriver, s.hello.LimitsMissing)
				}
				s.quiet(time.Minute)
				if len(c.sessions) != 0 {
					t.Error("opened again without need")
				}
			})
		})
	}
}

func TestHeartbeats(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		for want := uint64(1); want <= 5; want++ {
			b := wait(h, s.beats, "a heartbeat")
			if b.Seq != want || b.Load != 0.5 || b.FreeMem != 1<<30 || b.Problem != "" || b.SentBoottimeMs == 0 {
				t.Errorf("heartbeat %v", b)
			}
		}
	})
}

func TestFollowsTheLeader(t *testing.T) {
	inBubble(t, func(h *host, c1 *controller) {
		c2 := h.controller("c2")
		c1.set(func() { c1.leader = "c2" })
		defer h.agent()()
		s := c2.session()
		// The leader changes: the session is ended by the old one, and found at the new one.
		c1.set(func() { c1.leader = "" })
		c2.set(func() { c2.leader = "c1" })
		s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_NotLeader{NotLeader: &nodepb.NotLeader{Leader: "c1"}}})
		c1.session()
	})
}

func TestTriesTheOthers(t *testing.T) {
	inBubble(t, func(h *host, c1 *controller) {
		c2 := h.controller("c2")
		h.controller("c3")
		c1.stop()
		h.ctls["c3"].set(func() { h.ctls["c3"].shut = true })
		defer h.agent()()
		c2.session()
	})
}

// TestLeadersThatPointAtEachOther: the agent must not spin between them.
func TestLeadersThatPointAtEachOther(t *testing.T) {
	inBubble(t, func(h *host, c1 *controller) {
		c2 := h.controller("c2")
		c1.set(func() { c1.leader = "c2" })
		c2.set(func() { c2.leader = "c1" })
		begin := time.Now()
		defer h.agent()()
		time.Sleep(time.Minute)
		c1.set(func() { c1.leader = "" })
		c1.session()
		if d := time.Since(begin); d > 80*time.Second {
			t.Errorf("found the leader after %v", d)
		}
	})
}

func TestDeadSessionIsNoticed(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		wait(h, s.beats, "a heartbeat")
		c.set(func() { c.deaf = true })
		begin := time.Now()
		<-s.ended
		if d := time.Since(begin); d > 4*time.Second {
			t.Errorf("a session without answers lived %v with heartbeats each second", d)
		}
		c.set(func() { c.deaf = false })
		c.session()
	})
}

// TestSilentController: one that takes the connection and says nothing is left after a while.
func TestSilentController(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		silent := h.controller("c2")
		silent.stop()
		h.ctls["c2"] = silent // dialled, never served
		c.set(func() { c.shut = true })
		defer h.agent()()
		time.Sleep(30 * time.Second)
		c.set(func() { c.shut = false })
		c.session()
	})
}

func TestProblemIsTold(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.probe = func() error { return errors.New("write probe: read-only file system") }
		defer h.agent()()
		s := c.session()
		if b := wait(h, s.beats, "a heartbeat"); !strings.Contains(b.Problem, "read-only file system") {
			t.Errorf("first heartbeat says %q", b.Problem)
		}
		h.mu.Lock()
		h.probe = func() error { return nil }
		h.mu.Unlock()
		time.Sleep(2 * probeEvery)
		for len(s.beats) > 0 {
			<-s.beats
		}
		if b := wait(h, s.beats, "a heartbeat"); b.Problem != "" {
			t.Errorf("still %q", b.Problem)
		}
	})
}

func TestProbeThatHangs(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		never := make(chan struct{})
		defer close(never)
		h.probe = func() error { <-never; return nil }
		stop := h.agent()
		s := c.session() // a hung disk must not keep the node from registering
		if b := wait(h, s.beats, "a heartbeat"); !strings.Contains(b.Problem, "has not come back") {
			t.Errorf("problem %q", b.Problem)
		}
		stop()
	})
}

func TestWelcomeIsBounded(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		a := &Agent{}
		if got := a.applyWelcome(&nodepb.Welcome{HeartbeatMs: 1}); got != minHeartbeat {
			t.Errorf("heartbeat of 1 ms became %v", got)
		}
		if got := a.applyWelcome(&nodepb.Welcome{HeartbeatMs: 1 << 62, KillWaitMs: 1 << 62}); got != maxHeartbeat {
			t.Errorf("endless heartbeat became %v", got)
		}
		if a.settings.killWait != 24*time.Hour {
			t.Errorf("kill wait %v", a.settings.killWait)
		}
		synctest.Wait()
	})
}

// TestLauncherDownIsAProblem: a node whose launcher is away says so, also beside another problem.
func TestLauncherDownIsAProblem(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		newest := func() string {
			time.Sleep(launcherPatience + 2*launcherEvery)
			for len(s.beats) > 0 {
				<-s.beats
			}
			return wait(h, s.beats, "a heartbeat").Problem
		}
		h.launcher.set(func() { h.launcher.down = true })
		h.launcher.cut()
		time.Sleep(launcherPatience / 2)
		h.launcher.set(func() { h.launcher.down = false }) // it was started again
		if got := newest(); got != "" {
			t.Errorf("problem %q", got)
		}
		h.launcher.set(func() { h.launcher.down = true })
		h.launcher.cut()
		if got := newest(); !strings.Contains(got, "launcher down") {
			t.Errorf("problem %q", got)
		}
		h.mu.Lock()
		h.probe = func() error { return errors.New("no space") }
		h.mu.Unlock()
		if got := newest(); !strings.Contains(got, "launcher down") || !strings.Contains(got, "no space") {
			t.Errorf("problem %q", got)
		}
		h.launcher.set(func() { h.launcher.down = false })
		if got := newest(); strings.Contains(got, "launcher") {
			t.Errorf("problem %q", got)
		}
	})
}
