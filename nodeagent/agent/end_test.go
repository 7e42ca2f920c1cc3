package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// fullRecord has every field set.
var fullRecord = shepherd.Record{
	ExitCode: 3, Signal: 15, OOM: true, Why: uint8(job.WhyTimeLimit), Err: "text", Cause: uint8(job.CauseUser),
	StdoutError: "cannot open", UserUS: 11, SysUS: 12, MaxRSS: 13,
}

func checkFull(t *testing.T, r *nodepb.Report, k launch.Key) {
	t.Helper()
	want := &nodepb.Report{
		Key: keyToPB(k), Node: "n1", ExitCode: 3, Signal: 15, Oom: true, KilledFor: nodepb.Kill_TIME_LIMIT, Error: "text",
		Cause: nodepb.LaunchResult_USER, StdoutError: "cannot open", UserUs: 11, SysUs: 12, MaxRss: 13,
		StartMs: r.StartMs, EndMs: r.EndMs,
	}
	if !proto.Equal(r, want) || r.StartMs == 0 || r.EndMs < r.StartMs {
		t.Errorf("report %v\nwant %v", r, want)
	}
}

func TestReportAndAck(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		k := batch(7)
		s.launch(k)
		s.result()
		h.step(k).end(fullRecord)
		r := s.report()
		checkFull(t, r, k)
		if h.launcher.epilogs[k] != 1 {
			t.Errorf("epilog ran %d times before the report", h.launcher.epilogs[k])
		}
		s.quiet(resend - time.Second)
		if !h.folder(k) {
			t.Fatal("the record went before the acknowledgement")
		}
		checkFull(t, s.report(), k) // nobody answers: it goes again
		s.ack(r)
		time.Sleep(time.Second)
		if h.folder(k) {
			t.Error("the folder is still there after the acknowledgement")
		}
		s.quiet(2 * resend)
	})
}

// TestReportSurvivesKill stops the agent at each point between a step's end and the removal of its
// folder, and lets a new one go on with the disk alone.
func TestReportSurvivesKill(t *testing.T) {
	k := batch(7)
	for _, tc := range []struct {
		name string
		// until brings the run up to the point at which the first agent is killed.
		until func(h *host, c *controller, s *ctlSession)
		gone  bool // nothing is left to report
	}{
		{"while the step runs", func(h *host, c *controller, s *ctlSession) {
			h.mu.Lock()
			h.shepherds.Close() // the end is written while nobody listens
			h.mu.Unlock()
			h.step(k).end(fullRecord)
		}, false},
		{"before the epilog", func(h *host, c *controller, s *ctlSession) {
			h.launcher.set(func() { h.launcher.down = true })
			h.launcher.cut()
			h.step(k).end(fullRecord)
			time.Sleep(time.Millisecond)
		}, false},
		{"in the epilog", func(h *host, c *controller, s *ctlSession) {
			h.launcher.set(func() { h.launcher.hung = make(chan struct{}) })
			h.step(k).end(fullRecord)
			time.Sleep(time.Millisecond)
		}, false},
		{"after the epilog, no session", func(h *host, c *controller, s *ctlSession) {
			c.set(func() { c.shut = true })
			close(s.hangup)
			<-s.ended
			h.step(k).end(fullRecord)
			time.Sleep(time.Second)
		}, false},
		{"report sent, not acknowledged", func(h *host, c *controller, s *ctlSession) {
			h.step(k).end(fullRecord)
			s.report()
		}, false},
		{"acknowledged, folder not removed", func(h *host, c *controller, s *ctlSession) {
			h.step(k).end(fullRecord)
			r := s.report()
			h.launcher.set(func() { h.launcher.down = true })
			h.launcher.cut()
			s.ack(r)
			time.Sleep(time.Millisecond)
		}, false},
		{"folder removed", func(h *host, c *controller, s *ctlSession) {
			h.step(k).end(fullRecord)
			s.ack(s.report())
			time.Sleep(time.Second)
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(h *host, c *controller) {
				stop := h.agent()
				s := c.session()
				s.launch(k)
				s.result()
				tc.until(h, c, s)
				stop()
				h.launcher.set(func() {
					if h.launcher.hung != nil {
						close(h.launcher.hung)
					}
					h.launcher.down, h.launcher.hung = false, nil
				})
				c.set(func() { c.shut = false })
				for len(c.sessions) > 0 {
					<-c.sessions
				}
				defer h.agent()()
				s = c.session()
				if tc.gone {
					if len(s.hello.Held) != 0 {
						t.Errorf("held %v", s.hello.Held)
					}
					s.quiet(2 * resend)
					return
				}
				if len(s.hello.Held) != 1 {
					t.Errorf("held %v", s.hello.Held)
				}
				r := s.report()
				checkFull(t, r, k)
				s.ack(r)
				time.Sleep(time.Second)
				if h.folder(k) {
					t.Error("folder stays")
				}
				if h.launcher.starts[k] != 1 {
					t.Errorf("started %d times", h.launcher.starts[k])
				}
			})
		})
	}
}

// TestStepRunsOn: an agent's restart is nothing to a running step.
func TestStepRunsOn(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		stop := h.agent()
		s := c.session()
		k := batch(7)
		s.launch(k)
		s.result()
		stop()
		time.Sleep(time.Minute)
		defer h.agent()()
		s = c.session()
		s.quiet(10 * time.Minute)
		h.step(k).end(shepherd.Record{ExitCode: 1})
		if r := s.report(); r.ExitCode != 1 || r.Lost {
			t.Errorf("report %v", r)
		}
	})
}

func TestLostShepherd(t *testing.T) {
	k := batch(7)
	for _, tc := range []struct {
		name    string
		restart bool
	}{{"under a living agent", false}, {"while the agent is away", true}} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(h *host, c *controller) {
				stop := h.agent()
				s := c.session()
				s.launch(k)
				start := s.result().StartMs
				if tc.restart {
					stop()
					h.step(k).die()
					stop = h.agent()
					s = c.session()
					start = 0
				} else {
					h.step(k).die()
				}
				r := s.report()
				if !r.Lost || r.ExitCode != 0 || r.Error == "" || r.StartMs != start || r.EndMs == 0 || r.Cause != nodepb.LaunchResult_NONE {
					t.Errorf("report %v", r)
				}
				if h.step(k).alive() {
					t.Error("reported as over while its processes live")
				}
				s.ack(r)
				time.Sleep(time.Second)
				if h.folder(k) {
					t.Error("folder stays")
				}
				stop()
			})
		})
	}
}

// TestLostOnlyWhenKilled: while the launcher cannot kill what the shepherd left, nothing is reported.
func TestLostOnlyWhenKilled(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		k := batch(7)
		s.launch(k)
		s.result()
		h.launcher.set(func() { h.launcher.down = true })
		h.launcher.cut()
		h.step(k).die()
		s.quiet(10 * time.Minute)
		h.launcher.set(func() { h.launcher.down = false })
		if r := s.report(); !r.Lost {
			t.Errorf("report %v", r)
		}
	})
}

// TestNotLost: a shepherd that is silent, but holds its lock, is alive; so may be one whose folder has
// no lock yet.
func TestNotLost(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		k, young := batch(7), batch(8)
		st := h.place(k)
		if err := os.Mkdir(launch.StepFolder(h.spool, young), 0o755); err != nil {
			t.Fatal(err)
		}
		defer h.agent()()
		s := c.session()
		s.quiet(noLockGrace + 58*time.Second) // the prolog may take a minute
		if r := s.report(); keyFromPB(r.Key) != young || !r.Lost {
			t.Errorf("report %v", r)
		}
		s.quiet(20 * time.Second)
		st.end(shepherd.Record{ExitCode: 5}) // with nobody to tell: found on the disk
		if r := s.report(); keyFromPB(r.Key) != k || r.ExitCode != 5 || r.Lost {
			t.Errorf("report %v", r)
		}
	})
}

func TestDamagedRecord(t *testing.T) {
	for name, text := range map[string]string{
		"empty":          "",
		"torn":           `{"key":{"job":7,`,
		"another step's": `{"key":{"job":8,"run":0,"step":4294967291},"code":0,"signal":0,"oom":false,"start_ms":1,"end_ms":2,"why":0,"user_us":0,"sys_us":0,"max_rss":0}`,
		"over the limit": `{"err":"` + strings.Repeat("x", maxRecord) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(h *host, c *controller) {
				st := h.place(batch(7))
				st.endRaw([]byte(text))
				st.die()
				defer h.agent()()
				r := c.session().report()
				if !r.Lost || !strings.Contains(r.Error, "damaged") {
					t.Errorf("report %v", r)
				}
			})
		})
	}
}

func TestEpilogError(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.launcher.set(func() { h.launcher.epilog = "epilog: exit status 2" })
		defer h.agent()()
		s := c.session()
		s.launch(batch(7))
		s.result()
		h.step(batch(7)).end(shepherd.Record{})
		r := s.report()
		if r.EpilogError != "epilog: exit status 2" || r.ExitCode != 0 {
			t.Errorf("report %v", r)
		}
	})
}

// TestReleaseWhileBusy: processes that outlive their step are killed, then the epilog runs.
func TestReleaseWhileBusy(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		s.launch(batch(7))
		s.result()
		h.launcher.set(func() { h.launcher.busy = 2 })
		h.step(batch(7)).end(shepherd.Record{})
		if r := s.report(); r.EpilogError != "" {
			t.Errorf("report %v", r)
		}
		if len(h.launcher.asked(isKill)) == 0 {
			t.Error("nothing was killed")
		}
	})
}

// TestLauncherGoneForGood: the end of a job is not kept secret for ever.
func TestLauncherGoneForGood(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		s.launch(batch(7))
		s.result()
		h.launcher.set(func() { h.launcher.down = true })
		h.launcher.cut()
		h.step(batch(7)).end(shepherd.Record{ExitCode: 9})
		s.quiet(time.Minute)
		if r := s.report(); r.ExitCode != 9 || !strings.Contains(r.EpilogError, "launcher is away") {
			t.Errorf("report %v", r)
		}
	})
}

// TestReportsTogether: what waits goes in one message, at most MaxBatch in each.
func TestReportsTogether(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		const n = MaxBatch + 1
		for i := range uint32(n) {
			st := h.place(batch(i + 1))
			st.end(shepherd.Record{})
		}
		c.set(func() { c.shut = true })
		defer h.agent()()
		time.Sleep(time.Minute)
		c.set(func() { c.shut = false; c.acking = true })
		s := c.session()
		first, second := s.reports(), s.reports()
		if len(first) != MaxBatch || len(second) != 1 {
			t.Errorf("messages of %d and %d reports", len(first), len(second))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if left, err := os.ReadDir(filepath.Join(h.spool, launch.StepsDir)); err != nil || len(left) != 0 {
			t.Errorf("%d folders stay, %v", len(left), err)
		}
	})
}

func TestForget(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		live, waiting := batch(7), batch(8)
		ended := h.place(waiting)
		ended.end(shepherd.Record{})
		st := h.place(live)
		go st.speak()
		defer h.agent()()
		s := c.session()
		s.report()
		s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Forget{Forget: &nodepb.Forget{
			Keys: []*nodepb.StepKey{keyToPB(live), keyToPB(waiting), keyToPB(batch(9))}}}})
		if d := st.down(); d.Terminate == nil || !d.Terminate.Now || d.Terminate.Why != uint8(job.WhyStale) {
			t.Errorf("shepherd was told %+v", d)
		}
		st.end(shepherd.Record{Signal: 9})
		s.quiet(2 * resend) // nothing is reported
		if h.folder(live) || h.folder(waiting) {
			t.Error("a forgotten run has a folder")
		}
		if h.launcher.epilogs[live] == 0 {
			t.Error("the epilog of a forgotten run did not run")
		}
	})
}

// TestLostIsNotReportedBusy: what the launcher still calls alive is killed until it is not.
func TestLostIsNotReportedBusy(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		h.place(batch(7)).die()
		h.launcher.set(func() { h.launcher.busy = 5 * maxBusy })
		defer h.agent()()
		s := c.session()
		s.quiet(time.Minute)
		if r := s.report(); !r.Lost || r.EpilogError != "" {
			t.Errorf("report %v", r)
		}
	})
}
