package replica

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/api/logpb"
)

func TestClusterAppliesInOneOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		var wg sync.WaitGroup
		for w := range 20 {
			wg.Go(func() {
				for i := range 50 {
					key := fmt.Sprintf("%d/%d", w, i)
					res, err := lead.Propose(t.Context(), submit(key))
					if err != nil || len(res) != 1 || res[0].JobID == 0 || res[0].Duplicate {
						t.Errorf("propose %s: %+v, %v", key, res, err)
						return
					}
					if got := lead.ledger.state().Order[res[0].JobID-1]; got != key {
						t.Errorf("the answer for %s is that of %s", key, got)
					}
				}
			})
		}
		wg.Wait()
		order := c.agree()
		if len(order) != 1000 {
			t.Fatalf("%d commands applied, want 1000", len(order))
		}
		last := map[string]int{}
		for _, k := range order { // one caller's commands keep their order
			var w string
			var i int
			w, rest, _ := strings.Cut(k, "/")
			fmt.Sscan(rest, &i)
			if n, ok := last[w]; ok && i != n+1 {
				t.Fatalf("caller %s: %d after %d", w, i, n)
			}
			last[w] = i
		}
		now := time.Now().UnixMilli()
		for _, ms := range lead.ledger.state().Times {
			if ms <= 0 || ms > now {
				t.Fatalf("entry stamped %d at %d", ms, now)
			}
		}
	})
}

func TestSingleVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.close()
		lead := c.leader()
		if _, err := lead.Propose(t.Context(), submit("a")); err != nil {
			t.Fatal(err)
		}
		if v, err := lead.Read(t.Context()); err != nil || !v.(*ledgerState).has("a") {
			t.Fatalf("read: %v", err)
		}
		if err := lead.Transfer(t.Context()); err != nil {
			t.Fatalf("a lone controller has nobody to hand over to and says %v", err)
		}
	})
}

func TestFollowerRefusesProposals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		for _, m := range c.followers() {
			if _, err := m.Propose(t.Context(), submit("x")); !errors.Is(err, ErrNotLeader) {
				t.Errorf("%s: %v, want ErrNotLeader", m.name, err)
			}
			if name, self := m.Leader(); self || name != c.leader().name {
				t.Errorf("%s names leader %q (self %v)", m.name, name, self)
			}
		}
		if got := c.agree(); len(got) != 0 {
			t.Errorf("refused commands were applied: %v", got)
		}
	})
}

// TestFailover cuts the leader off while many propose. Nothing acknowledged may be lost, what was
// answered with ErrNotLeader must not exist, and the old leader's term ends.
func TestFailover(t *testing.T) {
	for round := range 5 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { failover(t, round) })
		})
	}
}

func failover(t *testing.T, round int) {
	c := newCluster(t, 3, nil)
	defer c.close()
	old := c.leader()
	term := <-old.Leadership()
	var mu sync.Mutex
	var acked, refused []string
	unknown := 0
	var wg sync.WaitGroup
	for w := range 40 {
		wg.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("%d/%d", w, i)
				_, err := old.Propose(t.Context(), submit(key))
				mu.Lock()
				switch {
				case err == nil:
					acked = append(acked, key)
				case errors.Is(err, ErrNotLeader):
					refused = append(refused, key)
				case errors.Is(err, ErrUnknown):
					unknown++
				default:
					t.Errorf("%s: %v", key, err)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	time.Sleep(time.Duration(3+round*7) * time.Millisecond)
	c.net.isolate(old.name, true)
	wg.Wait()
	<-term.Done()
	if _, self := old.Leader(); self {
		t.Error("a leader without a majority still calls itself one")
	}
	if unknown == 0 {
		t.Error("no proposal was on its way when the network was cut: the test shows nothing")
	}
	now := c.leader(old.name)
	if _, err := now.Propose(t.Context(), submit("after")); err != nil {
		t.Fatal(err)
	}
	c.net.isolate(old.name, false)
	order := c.agree()
	for _, k := range acked {
		if !slices.Contains(order, k) {
			t.Errorf("acknowledged %s is lost", k)
		}
	}
	for _, k := range refused {
		if slices.Contains(order, k) {
			t.Errorf("%s was said not to be done and is there", k)
		}
	}
	if len(acked) == 0 || !slices.Contains(order, "after") {
		t.Errorf("%d acknowledged", len(acked))
	}
}

// TestLeadershipOncePerTerm moves leadership around and expects one live context at a time.
func TestLeadershipOncePerTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		for range 4 {
			lead := c.leader()
			term := <-lead.Leadership()
			if term.Err() != nil {
				t.Fatal("the context of a term that lasts is cancelled")
			}
			select {
			case <-lead.Leadership():
				t.Fatal("two contexts for one term")
			default:
			}
			if err := lead.Transfer(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-term.Done()
		}
		for _, m := range c.followers() {
			if err := m.Transfer(t.Context()); err != nil {
				t.Errorf("transfer on a follower: %v", err)
			}
		}
	})
}

// TestUnreadLeadership loses and wins terms with nobody listening: raft must not be held up, and
// a late listener gets the term that is in force.
func TestUnreadLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		first := c.leader()
		for len(first.leadership) == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := first.Transfer(t.Context()); err != nil {
			t.Fatal(err)
		}
		other := c.leader(first.name)
		id, addr := raft.ServerID(first.name), raft.ServerAddress(first.name)
		if err := other.raft.LeadershipTransferToServer(id, addr).Error(); err != nil {
			t.Fatal(err)
		}
		c.leader(other.name)
		if term := <-first.Leadership(); term.Err() != nil {
			t.Error("a late listener got a term that is over")
		}
	})
}

func TestReadsAreLinearizable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 25 {
					key := fmt.Sprintf("%d/%d", w, i)
					if _, err := lead.Propose(t.Context(), submit(key)); err != nil {
						t.Errorf("propose: %v", err)
						return
					}
					for _, name := range c.names { // acknowledged: every replica's read has it
						v, err := c.members[name].Read(t.Context())
						if err != nil {
							t.Errorf("read on %s: %v", name, err)
						} else if !v.(*ledgerState).has(key) {
							t.Errorf("read on %s lacks acknowledged %s", name, key)
						}
					}
				}
			})
		}
		wg.Wait()
	})
}

// TestReadAfterElection reads on followers when the newest entries are raft's own: the read index
// must be one that the state machine is seen to reach.
func TestReadAfterElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		for range 3 {
			if err := c.leader().Transfer(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.leader()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			for _, name := range c.names {
				for { // a follower may not have heard of the leader yet
					_, err := c.members[name].Read(ctx)
					if err == nil {
						break
					}
					if !errors.Is(err, ErrNoLeader) {
						t.Fatalf("read on %s: %v", name, err)
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			cancel()
		}
	})
}

func TestCutOffReplicasDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		c.leader()
		far := c.followers()[0]
		c.net.isolate(far.name, true)
		if _, err := far.Read(t.Context()); !errors.Is(err, ErrNoLeader) {
			t.Errorf("a follower without the leader answers a read: %v", err)
		}
		c.net.isolate(far.name, false)
		old := c.leader()
		c.net.isolate(old.name, true)
		if _, err := old.Read(t.Context()); !errors.Is(err, ErrNoLeader) {
			t.Errorf("a leader without a majority answers a read: %v", err)
		}
		if old.View() == nil {
			t.Error("a stale view is always there")
		}
	})
}

func TestReadHonoursContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		c.net.isolate(lead.name, true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := lead.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	})
}

// TestUnknownCommandHalts: the replica stops before the entry, tells why, and applies nothing after.
func TestUnknownCommandHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		if _, err := lead.Propose(t.Context(), submit("before")); err != nil {
			t.Fatal(err)
		}
		bad := &logpb.Command{Of: &logpb.Command_Purge{Purge: &logpb.Purge{Max: 666}}}
		_, err := lead.Propose(t.Context(), bad)
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("propose: %v, want ErrUnknown", err)
		}
		halted := 0
		for _, name := range c.names { // the last one alone may never learn that the entry is committed
			m := c.members[name]
			select {
			case err := <-m.Fatal():
				if !errors.Is(err, errUnknownCommand) {
					t.Errorf("%s ended with %v", name, err)
				}
			case <-time.After(10 * time.Second):
				continue
			}
			halted++
			if got := m.ledger.state().Order; !slices.Equal(got, []string{"before"}) {
				t.Errorf("%s applied %v", name, got)
			}
			if _, err := m.Propose(t.Context(), submit("after")); !errors.Is(err, ErrNotLeader) {
				t.Errorf("propose on the halted %s: %v", name, err)
			}
			if _, err := m.Read(t.Context()); err == nil {
				t.Errorf("the halted %s answers reads", name)
			}
			if _, err := m.applier.Snapshot(); !errors.Is(err, errUnknownCommand) {
				t.Errorf("the halted %s gives a snapshot", name)
			}
		}
		if halted < 2 {
			t.Errorf("%d replicas halted", halted)
		}
	})
}

// TestRemoved: a leader that is taken out of the cluster ends without a fault.
func TestRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		term := <-lead.Leadership()
		if err := lead.raft.RemoveServer(raft.ServerID(lead.name), 0, 0).Error(); err != nil {
			t.Fatal(err)
		}
		if err := <-lead.Fatal(); !errors.Is(err, ErrRemoved) {
			t.Errorf("ended with %v", err)
		}
		<-term.Done()
		if _, err := lead.Propose(t.Context(), submit("x")); !errors.Is(err, ErrNotLeader) {
			t.Errorf("propose: %v", err)
		}
		c.leader(lead.name)
	})
}

func TestChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		at := lead.View().Index()
		ch := lead.Changed(at)
		if ch != lead.Changed(at) {
			t.Error("waiters do not share a channel")
		}
		before := runtime.NumGoroutine()
		for range 100 {
			lead.Changed(at)
		}
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines for 100 waiters", n-before)
		}
		time.Sleep(5 * time.Second) // heartbeats and empty appends are no change
		select {
		case <-ch:
			t.Fatal("closed without a command")
		default:
		}
		if _, err := lead.Propose(t.Context(), submit("a")); err != nil {
			t.Fatal(err)
		}
		<-ch
		<-lead.Changed(at) // of the past: closed already
		if lead.View().Index() <= at {
			t.Error("woken before the view has it")
		}
	})
}

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead, far := c.leader(), c.followers()[0]
		if _, err := lead.Propose(t.Context(), submit("a")); err != nil {
			t.Fatal(err)
		}
		if s := lead.Status(); s.Role != "Leader" || s.Leader != lead.name || s.Applied == 0 || s.Applied != s.LastIndex || s.ContactMS != 0 || s.Term == 0 {
			t.Errorf("leader: %+v", s)
		}
		c.net.isolate(far.name, true)
		time.Sleep(3 * time.Second)
		if s := far.Status(); s.ContactMS < 3000 || s.ContactMS > 4000 {
			t.Errorf("cut off for 3 s: %+v", s)
		}
		resp, err := NewPeerService(lead.Replica, "1.2").Status(t.Context(), nil)
		if err != nil || resp.GetName() != lead.name || resp.GetVersion() != "1.2" || resp.GetRole() != "Leader" {
			t.Errorf("%v, %v", resp, err)
		}
	})
}

// TestAgeWithoutLeader: a replica that has heard no leader since it started does not pass its state
// off as fresh.
func TestAgeWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		if _, err := c.leader().Propose(t.Context(), submit("a")); err != nil {
			t.Fatal(err)
		}
		far := c.followers()[0]
		if err := far.Close(); err != nil {
			t.Fatal(err)
		}
		c.net.isolate(far.name, true)
		time.Sleep(time.Minute)
		far = c.start(far.name, far.disk)
		time.Sleep(time.Second)
		if s := far.Status(); s.ContactMS < time.Minute.Milliseconds() {
			t.Errorf("%+v", s)
		}
	})
}

func TestCloseAnswersEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		var wg sync.WaitGroup
		for w := range 100 {
			wg.Go(func() {
				for i := 0; ; i++ {
					_, err := lead.Propose(t.Context(), submit(fmt.Sprintf("%d/%d", w, i)))
					if err != nil {
						if !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrUnknown) {
							t.Errorf("propose: %v", err)
						}
						return
					}
				}
			})
			wg.Go(func() {
				for {
					if _, err := lead.Read(t.Context()); err != nil {
						return
					}
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		if err := lead.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if err := lead.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := lead.Read(t.Context()); err == nil {
			t.Error("a closed replica answers reads")
		}
	})
}
