package leader

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func TestTextsAreClipped(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	c := reportedToLog("n1", &nodepb.Report{Error: long, StdoutError: long, EpilogError: long}).GetReported()
	if len(c.Error) != maxText || len(c.StdoutError) != maxText || len(c.EpilogError) != maxText {
		t.Error("an agent's words are not clipped")
	}
	if len(clip(long[:maxText])) != maxText {
		t.Error("clipped at the limit")
	}
}

func TestCoolDownIsBounded(t *testing.T) {
	h, now := &health{}, time.Unix(1000, 0)
	var drained int
	for range 40 {
		if h.strike(now, 10*time.Second) {
			drained++
		}
	}
	if got := h.cooling(now).Sub(now); got != maxCoolDown {
		t.Errorf("cooled down for %s, limit %s", got, maxCoolDown)
	}
	if drained != 1 {
		t.Errorf("drained %d times", drained)
	}
	h.answered()
	if !h.cooling(now).IsZero() {
		t.Error("still cooling after an answer")
	}
}

func TestReadLength(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.take()
		for _, tt := range []struct{ asked, sent int64 }{{maxReadLen, maxReadLen}, {maxReadLen + 1, maxReadLen}, {-1, maxReadLen}, {7, 7}} {
			go l.ReadOutput(b.ctx, "n1", 1, 0, false, 0, tt.asked)
			if m := a.take(); len(m) != 1 || m[0].GetReadOutput().GetMax() != tt.sent {
				t.Errorf("asked for %d bytes: sent %v", tt.asked, m)
			}
		}
	})
}

// An agent that says more than the log takes is not listened to until the log has caught up;
// nothing is lost.
func TestInboxIsBounded(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		gate := make(chan struct{})
		b.log.mu.Lock()
		b.log.gate = gate
		b.log.mu.Unlock()
		const more = maxInbox + 2*maxProposal
		said := 0
		go func() {
			for range more {
				a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Reports{Reports: &nodepb.Reports{Reports: []*nodepb.Report{{Key: batch(99, 0)}}}}})
				said++
			}
		}()
		synctest.Wait()
		if said > maxInbox+maxProposal+2 {
			t.Errorf("%d reports were taken in, limit %d and one proposal", said, maxInbox)
		}
		b.log.mu.Lock()
		b.log.gate = nil
		b.log.mu.Unlock()
		close(gate)
		time.Sleep(time.Second) // in virtual time: acknowledgements wait shortly for a launch to go with
		acks := 0
		for _, m := range a.take() {
			if n := len(m.GetAcks().GetKeys()); n > maxBatch {
				t.Errorf("%d acknowledgements in one message, limit %d", n, maxBatch)
			}
			acks += len(m.GetAcks().GetKeys())
		}
		if acks != more {
			t.Errorf("%d of %d reports acknowledged", acks, more)
		}
	})
}

// What lies over maxTimers comes with the next round.
func TestTimersAreBounded(t *testing.T) {
	inBench(t, func(b *bench) {
		const jobs = maxTimers + 1
		b.cfg.Nodes[0].CPUs, b.cfg.Nodes[0].CoresPerSocket, b.cfg.Nodes[0].RealMemory = jobs, jobs, jobs<<20
		l, _ := b.lead("c1")
		h := hello("n1")
		h.Inventory.Cpus, h.Inventory.Mem = jobs, jobs<<20
		a := b.dial(l, "n1", h)
		a.read()
		a.beat()
		b.submit(&job.Spec{Array: "0-256", TimeLimit: 60000, NodeList: "n1", MemPerCPU: 1 << 20})
		for list := a.launches(); len(list) > 0; list = a.launches() {
			a.started(list)
		}
		timers := func() int {
			return b.log.count(func(c *logpb.Command) bool { return c.GetJobTimer() != nil })
		}
		for timers() == 0 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if n := timers(); n != maxTimers {
			t.Errorf("%d timers at once, limit %d", n, maxTimers)
		}
		time.Sleep(timerInterval)
		synctest.Wait()
		if n := timers(); n != jobs {
			t.Errorf("%d timers in all, want %d", n, jobs)
		}
	})
}
