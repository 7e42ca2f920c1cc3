package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// crash ends a replica as a power failure does for the others: nothing of it is heard any more.
func (c *cluster) crash(name string) *stores {
	c.t.Helper()
	m := c.members[name]
	c.net.isolate(name, true)
	c.net.mu.Lock()
	delete(c.net.services, name)
	c.net.mu.Unlock()
	if err := m.Close(); err != nil {
		c.t.Fatal(err)
	}
	return m.disk
}

// restart starts a replica again, on the disk that it had or another.
func (c *cluster) restart(name string, disk *stores) *member {
	c.t.Helper()
	m := c.start(name, disk)
	c.net.isolate(name, false)
	return m
}

// put proposes keys at a replica that must lead.
func (m *member) put(t *testing.T, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, err := m.Propose(t.Context(), submit(k)); err != nil {
			t.Fatalf("propose %s at %s: %v", k, m.name, err)
		}
	}
}

// quiet expects no leader among the members for a time.
func (c *cluster) quiet(d time.Duration, names ...string) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, name := range names {
			if _, self := c.members[name].Leader(); self {
				c.t.Fatalf("%s leads", name)
			}
		}
	}
}

// votes waits until replicas are voters by the leader's word and their own, for a minute at most.
func (c *cluster) votes(names ...string) {
	c.t.Helper()
	var have []Member
	for range 600 {
		have = c.leader().Members()
		n := 0
		for _, m := range have {
			if m.Voter && slices.Contains(names, m.Name) {
				if _, knows := suffrage(c.members[m.Name].latest(), m.Name); knows {
					n++
				}
			}
		}
		if n == len(names) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, name := range names {
		m := c.members[name]
		c.t.Logf("%+v knows %+v, returning %v", m.Status(), m.Members(), marked(m.disk.stable, keyReturning))
	}
	c.t.Fatalf("%v are not voters after a minute: %+v", names, have)
}

// loseVoter acknowledges an entry by two of three, empties the disk of one of the two and crashes the other. It
// gives the cluster with the emptied one started again as safe says, the third back on the network, and the
// crashed one's name and disk.
func loseVoter(t *testing.T, safe bool) (c *cluster, lead string, disk *stores, emptied string) {
	c = newCluster(t, 3, nil)
	first := c.leader()
	lead = first.name
	followers := c.followers()
	emptied, far := followers[0].name, followers[1].name
	first.put(t, "before")
	c.agree()
	c.net.isolate(far, true)
	first.put(t, "acknowledged")
	disk = c.crash(lead)
	c.crash(emptied)
	c.tune = func(cfg *Config, _ *ledger) { cfg.Bootstrap = !safe && cfg.Name == emptied }
	c.restart(emptied, memoryDisk(t))
	c.net.isolate(far, false)
	c.net.isolate(lead, true)
	return c, lead, disk, emptied
}

// TestEmptiedVoterDoesNotVote: of three, one has an acknowledged entry and is down, one had it and lost its disk, one
// never had it. The last two must not go on without the first.
func TestEmptiedVoterDoesNotVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, lead, disk, emptied := loseVoter(t, true)
		defer c.close()
		left := slices.DeleteFunc(slices.Clone(c.names), func(n string) bool { return n == lead })
		c.quiet(2*time.Minute, left...)
		if s := c.members[emptied].Status(); s.Role != RoleWaiting || s.LastIndex != 0 {
			t.Errorf("the emptied one takes part: %+v", s)
		}
		c.restart(lead, disk)
		c.leader()
		c.votes(c.names...)
		if order := c.agree(); !slices.Equal(order, []string{"before", "acknowledged"}) {
			t.Errorf("%v", order)
		}
		c.leader().put(t, "after")
	})
}

// TestEmptiedVoterThatVotesLoses is the same with a controller that starts anew by force: it shows that the case
// above is one in which an acknowledged entry can be lost.
func TestEmptiedVoterThatVotesLoses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, lead, disk, _ := loseVoter(t, false)
		defer c.close()
		c.leader(lead).put(t, "after")
		c.restart(lead, disk)
		if order := c.agree(); slices.Contains(order, "acknowledged") {
			t.Errorf("nothing is lost: %v; the test of the safe way shows nothing", order)
		}
	})
}

// TestEmptiedReturns empties each replica of three in turn, the leader too, while commands are proposed.
func TestEmptiedReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		load := c.load()
		for _, name := range c.names {
			time.Sleep(time.Second)
			c.crash(name)
			time.Sleep(2 * time.Second)
			c.restart(name, memoryDisk(t))
			c.votes(c.names...)
		}
		load.check()
	})
}

// TestTwoOfFiveEmptied: two of five come back with empty disks, one after the other as the rule says, and get no entry yet.
// The fifth has missed all of it: by its list both are voters, and the three were a majority.
func TestTwoOfFiveEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		defer c.close()
		c.leader().put(t, "before")
		c.agree()
		f := c.followers()
		old, emptied := f[0].name, []string{f[1].name, f[2].name}
		rest := []string{f[3].name, c.leader().name}
		c.net.isolate(old, true)
		c.leader(old).put(t, "acknowledged")
		time.Sleep(time.Second)
		for _, name := range emptied {
			c.crash(name)
			for _, other := range c.names {
				if other != name {
					c.net.cutRaft(name, other, true)
				}
			}
			m := c.restart(name, memoryDisk(t))
			c.net.isolate(old, true)
			for end := time.Now().Add(time.Minute); m.running() == nil && time.Now().Before(end); {
				time.Sleep(100 * time.Millisecond)
			}
			if s := m.Status(); s.Role == RoleWaiting || s.LastIndex != 0 {
				t.Fatalf("%+v", s)
			}
		}
		c.leader(old).put(t, "later")
		minority := append([]string{old}, emptied...)
		c.net.split(minority, rest, true)
		c.net.split([]string{old}, emptied, false)
		for i, a := range minority {
			for _, b := range minority[i+1:] {
				c.net.cutRaft(a, b, false)
			}
		}
		c.quiet(2*time.Minute, minority...)
		c.net.split(minority, rest, false)
		for _, name := range emptied {
			for _, other := range rest {
				c.net.cutRaft(name, other, false)
			}
		}
		c.votes(c.names...)
		if order := c.agree(); !slices.Equal(order, []string{"before", "acknowledged", "later"}) {
			t.Error(order)
		}
	})
}

// TestTwoEmptied: of three, two have lost their disks. Nobody may go on; what the third has stays.
func TestTwoEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		c.leader().put(t, "a", "b")
		c.agree()
		var logs lines
		c.tune = func(cfg *Config, _ *ledger) { cfg.Logger = logs.logger() }
		for _, m := range c.followers() {
			c.crash(m.name)
			c.restart(m.name, memoryDisk(t))
		}
		time.Sleep(5 * time.Second) // the last leader's lease
		c.quiet(5*time.Minute, c.names...)
		n := 0
		for _, name := range c.names {
			if c.members[name].Status().Role == RoleWaiting {
				n++
			} else if got := c.members[name].ledger.state().Order; !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("%s holds %v", name, got)
			}
		}
		if n != 2 {
			t.Errorf("%d wait", n)
		}
		said := logs.count("takes no part yet")
		if said < 8 || said > 14 {
			t.Errorf("two replicas that wait for five minutes say so %d times", said)
		}
	})
}

// TestEmptiedWhileOneIsDown: of five, one is down for good and one comes back with an empty disk. The three others can agree,
// so it is taken back.
func TestEmptiedWhileOneIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		defer c.close()
		c.leader().put(t, "a")
		c.agree()
		f := c.followers()
		dead := f[0].name
		c.crash(dead)
		c.names = slices.DeleteFunc(c.names, func(n string) bool { return n == dead })
		c.file = []string{"c1", "c2", "c3", "c4", "c5"}
		c.crash(f[1].name)
		c.restart(f[1].name, memoryDisk(t))
		c.net.isolate(dead, true)
		c.votes(f[1].name)
		c.agree()
	})
}

// TestEmptiedTwice empties a voter again before it has caught up: that it is to vote is not forgotten.
func TestEmptiedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		c.leader().put(t, "a")
		c.agree()
		far := c.followers()[0].name
		for _, after := range []time.Duration{0, 60 * time.Millisecond, 300 * time.Millisecond, 0} {
			c.crash(far)
			c.restart(far, memoryDisk(t))
			time.Sleep(after)
		}
		c.votes(c.names...)
		c.agree()
	})
}

// TestSlowReturn: the emptied voter applies the log slowly, and its log begins with the time when it was a voter. It must
// not take that for the present.
func TestSlowReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		for i := range 300 {
			c.leader().put(t, fmt.Sprint(i))
		}
		c.agree()
		far := c.followers()[0].name
		c.crash(far)
		c.tune = func(_ *Config, l *ledger) { l.delay = func() { time.Sleep(10 * time.Millisecond) } }
		c.restart(far, memoryDisk(t))
		c.votes(c.names...)
		c.agree()
	})
}

// TestRejoinAnswerLost: the leader has made the emptied voter a learner, the answer is lost, and another leads when
// it asks again. It must vote again in the end.
func TestRejoinAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		c.leader().put(t, "a")
		c.agree()
		far := c.followers()[0].name
		c.crash(far)
		var asked atomic.Int32
		c.net.rejoined = func() error {
			if asked.Add(1) > 1 {
				return nil
			}
			if err := c.leader(far).TransferTo(t.Context(), ""); err != nil {
				t.Error(err)
			}
			return errCut
		}
		c.restart(far, memoryDisk(t))
		c.votes(c.names...)
		if asked.Load() < 2 {
			t.Error("no answer was lost")
		}
		c.agree()
	})
}

// TestEmptiedWithoutItsTermIsRefused: a folder with a log and no term has lost its votes.
func TestEmptiedWithoutItsTermIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.close()
		c.leader().put(t, "a")
		disk := c.crash("c1")
		if err := disk.stable.SetUint64(keyTerm, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := c.open("c1", disk); err == nil || !strings.Contains(err.Error(), "no votes") {
			t.Errorf("opened: %v", err)
		}
	})
}

// TestRejoinRefusals: what the leader does not do.
func TestRejoinRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		far := c.followers()[0]
		for _, x := range []struct {
			at         *member
			name, addr string
			want       error
		}{
			{lead, "c9", "c9", ErrNoMember},
			{lead, lead.name, lead.name, ErrIsMember},
			{lead, far.name, far.name, ErrIsMember}, // its folder is not empty
			{lead, far.name, "", ErrIsMember},
			{far, far.name, far.name, ErrNotLeader},
		} {
			if _, err := x.at.Rejoin(t.Context(), x.name, x.addr); !errors.Is(err, x.want) {
				t.Errorf("rejoin of %q at %s: %v, want %v", x.name, x.at.name, err, x.want)
			}
		}
		if _, voter := suffrage(lead.latest(), far.name); !voter {
			t.Error("a voter with a history was made a learner")
		}
	})
}

// TestHalfStarted: a crash between the two writes of the first start.
func TestHalfStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		defer c.close()
		c.names = []string{"c1"}
		disk := memoryDisk(t)
		if err := disk.stable.SetUint64(keyTerm, 1); err != nil {
			t.Fatal(err)
		}
		c.start("c1", disk)
		c.leader().put(t, "a")
	})
}

// TestStatusOfOldLeader: nobody is told that it was removed by a change that is not agreed on.
func TestStatusOfOldLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		far := c.followers()
		c.net.isolate(lead.name, true)
		f := lead.raft.RemoveServer(raft.ServerID(far[0].name), 0, 0)
		time.Sleep(10 * time.Millisecond)
		st, err := NewPeerService(lead.Replica, "").Status(t.Context(), statusBy(far[0].name))
		if err != nil || !st.GetMember() || f.Error() == nil {
			t.Errorf("%v, %v", st, err)
		}
		if _, voter := suffrage(lead.latest(), far[0].name); voter {
			t.Error("the change was not made: the test shows nothing")
		}
		st, err = NewPeerService(lead.Replica, "").Status(t.Context(), statusBy("c9"))
		if err != nil || st.GetMember() {
			t.Errorf("%v, %v", st, err)
		}
		c.leader(lead.name)
		c.net.isolate(lead.name, false)
		time.Sleep(10 * time.Second)
		for _, m := range c.members {
			select {
			case err := <-m.Fatal():
				t.Errorf("%s ended: %v", m.name, err)
			default:
			}
		}
	})
}
