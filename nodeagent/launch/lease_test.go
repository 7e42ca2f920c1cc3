package launch_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

func boottime(t testing.TB) int64 {
	var ts unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts))
	return ts.Nano() / 1e6
}

// TestStaleOrderIsNotStarted: an order that lay about for longer than the run's lease starts nothing, and
// takes nothing: the run may be ordered again.
func TestStaleOrderIsNotStarted(t *testing.T) {
	n := newNode(t)
	o := n.order("#!/bin/bash\necho ran >> ran", func(l *cred.Launch) { l.Lease = 5000 })
	stale := n.sign(o)
	stale.Renewed = boottime(t) - 5001
	r := n.ask(launch.Request{Start: stale})
	if !strings.Contains(r.Err, "lease ran out before it was started") || job.Cause(r.Cause) != job.CauseCredential {
		t.Errorf("a stale order: %+v", r)
	}
	if keys := n.ask(launch.Request{List: true}).Keys; len(keys) != 0 {
		t.Errorf("left %v", keys)
	}
	fresh := n.sign(o)
	fresh.Renewed = boottime(t) - 1000
	if r := n.ask(launch.Request{Start: fresh}); r.Err != "" {
		t.Errorf("a fresh one: %+v", r)
	}
	n.wait(o.key())
	if got := n.read("ran"); got != "ran\n" {
		t.Errorf("ran %q", got)
	}
	n.release(o.key())
}

// TestLeaseRunsOutDuringProlog: a prolog takes longer than the lease. Renewed meanwhile, the run starts;
// else it does not, and nothing of it is left.
func TestLeaseRunsOutDuringProlog(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	must(t, os.WriteFile(dir+"/prolog", []byte("#!/bin/bash\nsleep 1.2\n"), 0o755))
	n := newNode(t, "prolog="+dir+"/prolog")
	for _, renewed := range []bool{false, true} {
		t.Run(fmt.Sprint("renewed ", renewed), func(t *testing.T) {
			o := n.order("#!/bin/bash\ntrue", func(l *cred.Launch) { l.Lease = 600 })
			start := n.sign(o)
			start.Renewed = boottime(t)
			answer, err := n.send(launch.Request{Start: start})
			must(t, err)
			for range 6 {
				time.Sleep(200 * time.Millisecond)
				if renewed {
					n.ask(launch.Request{Renew: &launch.Renew{Key: o.key(), Boottime: boottime(t)}})
				}
			}
			r := <-answer
			if renewed {
				if r.Err != "" {
					t.Fatalf("%+v", r)
				}
				n.wait(o.key())
				n.release(o.key())
				return
			}
			// A renewal after its end does not help.
			if !strings.Contains(r.Err, "lease ran out") || job.Cause(r.Cause) != job.CauseCredential {
				t.Errorf("%+v", r)
			}
			if keys := n.ask(launch.Request{List: true}).Keys; len(keys) != 0 {
				t.Errorf("left %v", keys)
			}
		})
	}
}

// TestShepherdCountsFromTheRenewal: a lease that was nearly over when the step began ends it soon.
func TestShepherdCountsFromTheRenewal(t *testing.T) {
	n := newNode(t)
	o := n.order("#!/bin/bash\nsleep 100", func(l *cred.Launch) { l.Lease = 3000 })
	start := n.sign(o)
	start.Renewed = boottime(t) - 2000
	begin := time.Now()
	if r := n.ask(launch.Request{Start: start}); r.Err != "" {
		t.Fatalf("%+v", r)
	}
	r := n.wait(o.key())
	if took := time.Since(begin); job.Why(r.Why) != job.WhyStale || took > 2500*time.Millisecond {
		t.Errorf("ended after %v: %+v", took, r)
	}
	n.release(o.key())
}

// TestLeaseNeedsNobody: agent and launcher are gone; the shepherd alone ends its step.
func TestLeaseNeedsNobody(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/bash\necho $$ > pid; exec sleep 100", func(l *cred.Launch) { l.Lease = 1000 }))
	var pid int
	for deadline := time.Now().Add(10 * time.Second); pid == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		data, _ := os.ReadFile(n.dir + "/home/pid")
		fmt.Sscan(string(data), &pid)
	}
	if pid == 0 {
		t.Fatal("the script did not come to its pid")
	}
	begin := time.Now()
	must(t, n.cmd.Process.Kill())
	n.cmd.Wait()
	n.listener.Close()
	for unix.Kill(pid, 0) == nil {
		if time.Since(begin) > 5*time.Second {
			t.Fatal("alive 5 s after a lease of 1 s")
		}
		time.Sleep(10 * time.Millisecond)
	}
	n.startLauncher()
	n.ask(launch.Request{Kill: &k})
	n.release(k)
}
