package agent

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// On a node without an epilog the report does not wait for the launcher, and one release ends it all.
func TestNoEpilogReportsAtOnce(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.plain = true
		defer h.agent()()
		s := c.session()
		k := batch(7)
		s.launch(k)
		s.result()
		from := time.Now()
		h.step(k).end(fullRecord)
		r := s.report()
		checkFull(t, r, k)
		if got := h.launcher.releases(); len(got) != 0 || time.Since(from) != 0 {
			t.Errorf("report after %v and releases %+v", time.Since(from), got)
		}
		if s.quiet(resend / 2); !h.folder(k) {
			t.Fatal("the record went before the acknowledgement")
		}
		s.ack(r)
		time.Sleep(time.Second)
		if got := h.launcher.releases(); h.folder(k) || len(got) != 1 || got[0].KeepRecord || !got[0].KeepOutput {
			t.Errorf("folder %v, releases %+v", h.folder(k), got)
		}
	})
}

// What says that something of the step may be left goes the long way: the launcher sees to it first.
func TestNoEpilogLongWay(t *testing.T) {
	for name, end := range map[string]func(*step){
		"processes that do not die": func(s *step) { s.end(shepherd.Record{Cause: uint8(job.CauseNode), Err: "processes are left"}) },
		"lost":                      func(s *step) { s.die() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(h *host, c *controller) {
				h.launcher.plain = true
				defer h.agent()()
				s := c.session()
				k := batch(7)
				s.launch(k)
				s.result()
				end(h.step(k))
				s.report()
				if got := h.launcher.releases(); len(got) != 1 || !got[0].KeepRecord {
					t.Errorf("releases before the report: %+v", got)
				}
			})
		})
	}
}

// A launcher that was started anew may have an epilog: what the old one said is forgotten.
func TestNoEpilogIsAskedAgain(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.plain = true
		defer h.agent()()
		s := c.session()
		k, l := batch(7), batch(8)
		s.launch(k)
		s.result()
		h.launcher.set(func() { h.launcher.plain = false })
		h.launcher.cut()
		synctest.Wait()
		h.step(k).end(shepherd.Record{})
		s.report()
		if got := h.launcher.releases(); len(got) != 1 || !got[0].KeepRecord {
			t.Errorf("releases before the report: %+v", got)
		}
		s.launch(l)
		s.result()
		h.step(l).end(shepherd.Record{})
		s.report()
		if got := h.launcher.releases(); len(got) != 1 || !got[0].KeepRecord {
			t.Errorf("releases before the second report: %+v", got)
		}
	})
}

// What lives when the folder is to go is killed.
func TestLeaveKillsWhatLives(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.plain = true
		defer h.agent()()
		s := c.session()
		k := batch(7)
		s.launch(k)
		s.result()
		h.step(k).end(shepherd.Record{})
		r := s.report()
		h.launcher.set(func() { h.launcher.busy = 2; h.launcher.requests = nil })
		s.ack(r)
		time.Sleep(time.Minute)
		if kills := len(h.launcher.asked(isKill)); kills != 2 || h.folder(k) {
			t.Errorf("%d kills, folder %v", kills, h.folder(k))
		}
	})
}

// The word that a run has started goes with its end when that comes soon, before it, and by itself
// when it does not. A refusal does not wait.
func TestConfirmationWaitsForCompany(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.plain = true
		defer h.agent()()
		s := c.session()
		k, slow := batch(7), batch(8)
		from := time.Now()
		s.launch(k)
		synctest.Wait()
		h.step(k).end(shepherd.Record{})
		if r := s.result(); !r.Ok || r.Key.JobId != 7 {
			t.Errorf("result %v", r)
		}
		if r := s.report(); r.Key.JobId != 7 || time.Since(from) != 0 {
			t.Errorf("report %v after %v", r, time.Since(from))
		}
		s.launch(slow)
		if r := s.result(); !r.Ok || time.Since(from) != confirmDelay {
			t.Errorf("result %v after %v", r, time.Since(from))
		}
		h.launcher.set(func() { h.launcher.refuse = nodeFault() })
		from = time.Now()
		s.launch(batch(9))
		if r := s.result(); r.Ok || r.Cause != nodepb.LaunchResult_NODE || time.Since(from) != 0 {
			t.Errorf("result %v after %v", r, time.Since(from))
		}
	})
}

// Words that cannot be a record's are not believed: the disk is asked.
func TestBadWordOnTheEnd(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		k := batch(7)
		s.launch(k)
		s.result()
		st := h.step(k)
		st.endRaw(recordOf(t, shepherd.Record{Key: k, ExitCode: 4, Start: 1, End: 2}))
		say(st.conn, shepherd.Up{Ended: &shepherd.Record{Key: batch(8), ExitCode: 9}})
		if r := s.report(); r.ExitCode != 4 {
			t.Errorf("report %v", r)
		}
	})
}

func nodeFault() *launch.Reply { return &launch.Reply{Err: "no room", Cause: uint8(job.CauseNode)} }

func recordOf(t *testing.T, rec shepherd.Record) []byte {
	t.Helper()
	data, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
