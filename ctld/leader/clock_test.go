package leader

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// TestWallClockJumps: a wall clock that is set, in either direction and back, takes no node down, ends
// no lease, kills no job within its limit, purges nothing fresh, and submissions go on.
func TestWallClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{3 * time.Hour, -3 * time.Hour, 25 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			inBench(t, func(b *bench) {
				b.cfg.JobLease = time.Minute
				l, _ := b.lead("c1")
				a := b.connect(l, "n1")
				a.beat()
				time.Sleep(2 * time.Second)
				ids := b.submit(&job.Spec{NodeList: "n1", Requeue: 1}, &job.Spec{NodeList: "n1", TimeLimit: time.Hour.Milliseconds()}, &job.Spec{NodeList: "n1"})
				list := a.launches()
				a.started(list)
				a.report(&nodepb.Report{Key: list[2].Key})
				b.want(ids[2], job.Completed, 0)
				time.Sleep(10 * time.Minute)

				b.log.set(jump)
				time.Sleep(20 * time.Minute)
				b.want(ids[0], job.Running, 0)
				b.want(ids[1], job.Running, 0)
				if s, f, why := b.node("n1"); s != node.Idle || f != 0 {
					t.Errorf("the node is %v %v %s", s, f, why)
				}
				if b.job(ids[2]) == nil {
					t.Error("a job that ended half an hour ago is gone")
				}
				before := b.log.store.View().Time()

				b.log.set(0)
				later := b.submit(&job.Spec{NodeList: "n1"}, &job.Spec{NodeList: "n2"})
				a.started(a.launches())
				b.want(later[0], job.Running, 0)
				if after := b.log.store.View().Time(); after < before {
					t.Errorf("the state's time ran back by %d ms", before-after)
				}
				// The limit is kept, by what has elapsed: an hour, KillWait and the margin.
				time.Sleep(28 * time.Minute)
				b.want(ids[1], job.Running, 0)
				time.Sleep(5 * time.Minute)
				b.want(ids[1], job.Timeout, job.Completing)
				b.want(ids[0], job.Running, 0)
			})
		})
	}
}

// TestNewLeaderWithWrongClock: a controller whose clock is hours off comes to lead, with the same limits
// for what it may conclude from it.
func TestNewLeaderWithWrongClock(t *testing.T) {
	inBench(t, func(b *bench) {
		l, r := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{TimeLimit: time.Hour.Milliseconds()}, &job.Spec{})
		list := a.launches()
		a.started(list)
		a.report(&nodepb.Report{Key: list[1].Key})
		time.Sleep(time.Minute)
		r.lose()
		synctest.Wait()
		b.log.set(30 * time.Hour)
		l, _ = b.lead("c2")
		a = b.connect(l, "n1", list[0].Key)
		a.beat()
		time.Sleep(30 * time.Minute)
		b.want(ids[0], job.Running, 0)
		if b.job(ids[1]) == nil {
			t.Error("an ended job is purged by a leader's wrong clock")
		}
	})
}

// TestCredentialsByTheNodesClock: a launch is valid by the clock of the node that judges it, also when
// the leader's is hours off.
func TestCredentialsByTheNodesClock(t *testing.T) {
	inBench(t, func(b *bench) {
		b.log.set(3 * time.Hour)
		l, _ := b.lead("c1")
		h := hello("n1")
		h.NowMs = time.Now().UnixMilli()
		a := b.dial(l, "n1", h)
		a.read()
		valid := func(what string) {
			t.Helper()
			list := a.launches()
			if len(list) != 1 {
				t.Fatalf("%s: %d launches", what, len(list))
			}
			c, err := cred.UnmarshalLaunch(list[0].Credential)
			now := time.Now().UnixMilli()
			if err != nil || c.NotBefore > now || c.Expires < now || c.Expires > now+2*credentialLife.Milliseconds() {
				t.Errorf("%s: valid from %d to %d, the node's clock is at %d (%v)", what, c.NotBefore, c.Expires, now, err)
			}
			a.started(list)
		}
		b.submit(&job.Spec{NodeList: "n1"})
		valid("by the hello")
		time.Sleep(time.Second)
		b.log.set(-3 * time.Hour)
		a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: &nodepb.Heartbeat{Seq: 1, SentMs: time.Now().UnixMilli()}}})
		b.submit(&job.Spec{NodeList: "n1"})
		valid("by a heartbeat")
	})
}

// TestLeaseRule: who has a lease, and how long it is.
func TestLeaseRule(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.JobLease = 10 * time.Minute
		main := b.cfg.Partitions[0]
		for name, lease := range map[string]conf.Lease{"five": 5000, "never": -1, "tiny": 1} {
			p := main
			p.Name, p.Default, p.JobLease = name, false, lease
			b.cfg.Partitions = append(b.cfg.Partitions, p)
		}
		b.apply(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 2}}})
		l, _ := b.lead("c1")
		for _, tt := range []struct {
			partition string
			requeue   int8
			lease     time.Duration
		}{
			{"main", 0, 0}, {"main", 1, 10 * time.Minute}, {"main", -1, 0},
			{"five", 0, 5 * time.Second}, {"five", 1, 5 * time.Second},
			{"never", 0, 0}, {"never", 1, 0},
			{"tiny", 0, 3 * time.Second}, // three heartbeats
		} {
			ids := b.submit(&job.Spec{Hold: true, Partition: tt.partition, Requeue: tt.requeue})
			got := l.leaseOf(l.Log.View(), &sched.Start{JobID: ids[0], Partition: tt.partition})
			if got != tt.lease {
				t.Errorf("partition %s, requeue %d: lease %v, want %v", tt.partition, tt.requeue, got, tt.lease)
			}
		}
		b.connect(l, "n1")
		// --no-requeue keeps its word in a partition with a lease too.
		ids := b.submit(&job.Spec{Partition: "five", Requeue: -1}, &job.Spec{Partition: "five"})
		synctest.Wait()
		if x, y := b.job(ids[0]).Lease, b.job(ids[1]).Lease; x != 0 || y != 5000 {
			t.Errorf("leases %d and %d", x, y)
		}
	})
}

// TestLeaderStoodStill: a controller that was stopped for a while takes no node down for what it has not
// read meanwhile; a lease that ran out meanwhile is over nevertheless.
func TestLeaderStoodStill(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.SlurmdTimeout, b.cfg.JobLease = 10*time.Second, time.Hour
		start, stood := time.Now(), atomic.Int64{}
		b.deps = func(d *Deps) {
			d.Elapsed = func() time.Duration { return time.Since(start) + time.Duration(stood.Load()) }
		}
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		a.beat()
		time.Sleep(5500 * time.Millisecond)
		stood.Store(int64(time.Minute)) // between two rounds
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		time.Sleep(3 * time.Second)
		if s, f, why := b.node("n1"); s != node.Idle || f != 0 {
			t.Errorf("the node is %v %v %s", s, f, why)
		}
		a.cancel()
		time.Sleep(15 * time.Second)
		if s, _, _ := b.node("n1"); s != node.Down {
			t.Errorf("a node that is away is %v", s)
		}
	})
}
