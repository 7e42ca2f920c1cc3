package shepherd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// hostClock is a CLOCK_BOOTTIME: it goes with the bubble's time, and on while the host sleeps.
type hostClock struct {
	start time.Time
	slept time.Duration
}

func (c *hostClock) boot() time.Duration { return time.Minute + time.Since(c.start) + c.slept }

// leased is a minder of a step with a lease of 5 s; over tells when it has been ended for it.
func leased(t *testing.T, renewedBefore time.Duration, f func(c *hostClock, renew func(ago time.Duration), over func(within time.Duration) (time.Duration, bool))) {
	synctest.Test(t, func(t *testing.T) {
		c := &hostClock{start: time.Now()}
		s := &step{plan: &launch.Plan{Key: launch.Key{Job: 1, Step: job.BatchStep}, Lease: 5000, Rootless: true, KillWait: 1000,
			Renewed: (c.boot() - renewedBefore).Milliseconds()}, start: time.Now()}
		m := newMinder(s, newLink("", Hello{}), time.Now, c.boot)
		defer m.notes.close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m.renewed = ms(m.plan.Renewed)
		m.keepLease(ctx)
		renew := func(ago time.Duration) {
			at := (c.boot() - ago).Milliseconds()
			m.order(ctx, Down{Renew: &at})
		}
		over := func(within time.Duration) (time.Duration, bool) {
			begin := time.Now()
			for !m.ending {
				select {
				case <-m.lease.C:
					m.keepLease(ctx)
				case <-time.After(within - time.Since(begin)):
					return within, false
				}
			}
			if m.why != job.WhyStale || !m.killed {
				t.Errorf("ended for %v, killed %v", m.why, m.killed)
			}
			return time.Since(begin), true
		}
		f(c, renew, over)
	})
}

// TestLeaseRunsFromWhenItWasAsked: neither from the start of the step nor from when the renewal came.
func TestLeaseRunsFromWhenItWasAsked(t *testing.T) {
	leased(t, 3*time.Second, func(_ *hostClock, _ func(time.Duration), over func(time.Duration) (time.Duration, bool)) {
		if took, ok := over(time.Hour); !ok || took < 2*time.Second || took > 2010*time.Millisecond {
			t.Errorf("a lease that was 3 s old at the start ends after %v (%v), want 2s", took, ok)
		}
	})
	leased(t, 0, func(_ *hostClock, renew func(time.Duration), over func(time.Duration) (time.Duration, bool)) {
		for range 20 {
			if _, ok := over(4 * time.Second); ok {
				t.Fatal("ended although it was renewed in time")
			}
			renew(time.Second) // the answer took a second
		}
		if took, ok := over(time.Hour); !ok || took < 4*time.Second || took > 4010*time.Millisecond {
			t.Errorf("ends %v after the renewal (%v), want 4s: it was asked for a second before", took, ok)
		}
	})
}

// TestLeaseIsOverForGood: a renewal that comes too late, even one that was asked for in time, brings
// nothing back: the leader may have given the job out.
func TestLeaseIsOverForGood(t *testing.T) {
	leased(t, 0, func(c *hostClock, renew func(time.Duration), over func(time.Duration) (time.Duration, bool)) {
		if _, ok := over(4 * time.Second); ok {
			t.Fatal("ended early")
		}
		c.slept += 2 * time.Second // the timer has not rung yet
		renew(0)
		if took, ok := over(0); !ok || took != 0 {
			t.Errorf("renewed after its end (%v %v)", took, ok)
		}
	})
}

// TestLeaseWhileTheHostSleeps: the time counts, and is noticed within a second of waking.
func TestLeaseWhileTheHostSleeps(t *testing.T) {
	leased(t, 0, func(c *hostClock, _ func(time.Duration), over func(time.Duration) (time.Duration, bool)) {
		if _, ok := over(500 * time.Millisecond); ok {
			t.Fatal("ended early")
		}
		c.slept += time.Hour
		if took, ok := over(time.Hour); !ok || took > lookAtLease {
			t.Errorf("ended %v after waking (%v)", took, ok)
		}
	})
}
