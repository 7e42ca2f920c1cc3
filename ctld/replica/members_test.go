package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
)

// patient repeats a change until it is made, at whoever leads; what is repeated may have been made.
func (c *cluster) patient(what string, made error, f func(*member) error) {
	c.t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = f(c.leader()); err == nil || made != nil && errors.Is(err, made) {
			return
		}
	}
	c.t.Fatalf("%s: %v", what, err)
}

// promote makes a learner a voter as soon as it has caught up.
func (c *cluster) promote(name string) {
	c.t.Helper()
	c.patient("promote "+name, ErrIsMember, func(m *member) error { return m.Promote(c.t.Context(), name) })
}

// grow takes new controllers in and makes them voters.
func (c *cluster) grow(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.start(name, memoryDisk(c.t))
		c.patient("add "+name, ErrIsMember, func(m *member) error { return m.AddLearner(c.t.Context(), name, name) })
		c.names = append(c.names, name)
		c.promote(name)
	}
}

// shrink takes controllers out, which must end by themselves.
func (c *cluster) shrink(names ...string) {
	c.t.Helper()
	for _, name := range names {
		gone := c.members[name]
		c.patient("remove "+name, ErrNoMember, func(m *member) error { return m.Remove(c.t.Context(), name, false) })
		if err := gone.ended(c.t); !errors.Is(err, ErrRemoved) {
			c.t.Errorf("%s ended with %v", name, err)
		}
		c.names = without(c.names, name)
		c.crash(name)
	}
}

// TestGrowAndShrink: 1 -> 3 -> 5 -> 3 while commands are proposed; the leader is among those that go.
func TestGrowAndShrink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.close()
		c.file = []string{"c1", "c2", "c3", "c4", "c5"}
		load := c.load()
		c.grow("c2", "c3")
		c.grow("c4", "c5")
		for _, name := range []string{"c5", "c2", "c1"} {
			c.patient("transfer to "+name, nil, func(m *member) error { return m.TransferTo(t.Context(), name) })
		}
		if lead := c.leader().name; lead != "c1" {
			t.Errorf("%s leads", lead)
		}
		before := load.count()
		c.shrink("c1", "c4")
		time.Sleep(time.Second)
		if load.count() == before {
			t.Error("nothing was acknowledged meanwhile")
		}
		load.check()
		var names []string
		for _, m := range c.leader().Members() {
			if names = append(names, m.Name); !m.Voter || m.Leader != (m.Name == c.leader().name) || m.Addr != m.Name {
				t.Errorf("%+v", m)
			}
		}
		if !slices.Equal(names, []string{"c2", "c3", "c5"}) {
			t.Error(names)
		}
	})
}

// TestPartitionDuringEachStep cuts one controller off before each step of a growth and heals it in the middle.
func TestPartitionDuringEachStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		c.file = []string{"c1", "c2", "c3", "c4", "c5"}
		load := c.load()
		cut := func(name string, step func()) {
			c.net.isolate(name, true)
			heal := time.AfterFunc(3*time.Second, func() { c.net.isolate(name, false) })
			defer heal.Stop()
			step()
			time.Sleep(4 * time.Second)
		}
		for i, name := range []string{"c4", "c5"} {
			c.start(name, memoryDisk(t))
			cut(c.names[i], func() {
				c.patient("add", ErrIsMember, func(m *member) error { return m.AddLearner(t.Context(), name, name) })
			})
			c.names = append(c.names, name)
			cut(name, func() { c.promote(name) })
		}
		cut("c2", func() { c.patient("transfer", nil, func(m *member) error { return m.TransferTo(t.Context(), "") }) })
		for _, name := range []string{"c1", "c3"} {
			gone := c.members[name]
			cut(name, func() {
				c.patient("remove", ErrNoMember, func(m *member) error { return m.Remove(t.Context(), name, false) })
			})
			c.names = without(c.names, name)
			if err := gone.ended(t); !errors.Is(err, ErrRemoved) {
				t.Errorf("%s: %v", name, err)
			}
			c.crash(name)
		}
		load.check()
	})
}

// TestLearner: it gets the log, takes no part in elections, and is told what it may not do.
func TestLearner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.close()
		lead := c.leader()
		lead.put(t, "a")
		if err := lead.AddLearner(t.Context(), "c2", "c2"); err != nil {
			t.Fatal(err)
		}
		if err := lead.Promote(t.Context(), "c2"); !errors.Is(err, ErrLagging) || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("a learner that is not there: %v", err)
		}
		c.file = []string{"c1", "c2"}
		far := c.start("c2", memoryDisk(t))
		c.names = append(c.names, "c2")
		time.Sleep(3 * time.Second)
		lead.put(t, "b")
		c.agree()
		time.Sleep(5 * time.Second)
		if m := far.Members(); len(m) != 2 || m[1].Voter || !m[0].Leader {
			t.Errorf("%+v", m)
		}
		st, err := NewPeerService(far.Replica, "").Status(t.Context(), statusBy("c1"))
		if err != nil || st.GetVoter() || !st.GetMember() || st.GetBlank() {
			t.Errorf("%v, %v", st, err)
		}
		for _, x := range []struct {
			what string
			err  error
			want error
		}{
			{"add twice", lead.AddLearner(t.Context(), "c2", "c2"), ErrIsMember},
			{"add the leader", lead.AddLearner(t.Context(), "c1", "c1"), ErrIsMember},
			{"transfer to a learner", lead.TransferTo(t.Context(), "c2"), ErrLearner},
			{"transfer to a stranger", lead.TransferTo(t.Context(), "c9"), ErrNoMember},
			{"transfer to nobody", lead.TransferTo(t.Context(), ""), ErrLastVoter},
			{"transfer to itself", lead.TransferTo(t.Context(), "c1"), nil},
			{"promote a stranger", lead.Promote(t.Context(), "c9"), ErrNoMember},
			{"promote a voter", lead.Promote(t.Context(), "c1"), ErrIsMember},
			{"remove a stranger", lead.Remove(t.Context(), "c9", true), ErrNoMember},
			{"remove the last voter", lead.Remove(t.Context(), "c1", true), ErrLastVoter},
			{"add at a follower", far.AddLearner(t.Context(), "c3", "c3"), ErrNotLeader},
			{"remove at a follower", far.Remove(t.Context(), "c1", false), ErrNotLeader},
		} {
			if !errors.Is(x.err, x.want) {
				t.Errorf("%s: %v, want %v", x.what, x.err, x.want)
			}
		}
		if err := lead.AddLearner(t.Context(), "c3", ""); err == nil {
			t.Error("added without an address")
		}
		if err := lead.Transfer(t.Context()); err != nil {
			t.Errorf("nobody to hand over to at the end: %v", err)
		}
		disk := c.crash("c1")
		c.quiet(time.Minute, "c2")
		c.restart("c1", disk)
		c.leader().put(t, "c")
		c.agree()
		if err := c.leader().Remove(t.Context(), "c2", false); err != nil {
			t.Fatal(err)
		}
		if err := far.ended(t); !errors.Is(err, ErrRemoved) {
			t.Error(err)
		}
	})
}

// TestPromoteChecks: how far a learner may be behind, and what its program must know.
func TestPromoteChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.close()
		lead := c.leader()
		c.file = []string{"c1", "c2"}
		if err := lead.AddLearner(t.Context(), "c2", "c2"); err != nil {
			t.Fatal(err)
		}
		far := c.start("c2", memoryDisk(t))
		c.names = append(c.names, "c2")
		time.Sleep(2 * time.Second)
		c.agree()
		c.net.cutRaft("c1", "c2", true)
		for i := range maxLagEntries + 1 {
			lead.put(t, fmt.Sprint(i))
		}
		if err := lead.Promote(t.Context(), "c2"); !errors.Is(err, ErrLagging) || !strings.Contains(err.Error(), "513 entries behind") {
			t.Errorf("%v", err)
		}
		c.net.cutRaft("c1", "c2", false)
		time.Sleep(5 * time.Second)
		c.net.cutRaft("c1", "c2", true)
		time.Sleep(maxLagTime + 2*time.Second)
		if err := lead.Promote(t.Context(), "c2"); !errors.Is(err, ErrLagging) || !strings.Contains(err.Error(), "ms ago") {
			t.Errorf("%v (%+v)", err, far.Status())
		}
		c.net.cutRaft("c1", "c2", false)
		time.Sleep(5 * time.Second)
		raise := &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: fsm.Version + 1}}}
		if _, err := lead.Propose(t.Context(), raise); err != nil {
			t.Fatal(err)
		}
		if err := lead.Promote(t.Context(), "c2"); !errors.Is(err, ErrLagging) || !strings.Contains(err.Error(), "feature level") {
			t.Errorf("%v", err)
		}
	})
}

// TestTooManyVoters: the eighth stays a learner.
func TestTooManyVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, MaxVoters, nil)
		defer c.close()
		c.file = []string{"c1", "c2", "c3", "c4", "c5", "c6", "c8"}
		c.start("c8", memoryDisk(t))
		c.patient("add", nil, func(m *member) error { return m.AddLearner(t.Context(), "c8", "c8") })
		time.Sleep(3 * time.Second)
		if err := c.leader().Promote(t.Context(), "c8"); !errors.Is(err, ErrTooManyVoters) {
			t.Errorf("%v", err)
		}
	})
}

// TestRemoveKeepsAMajority: with one of three down the second must stay, the dead one may go.
func TestRemoveKeepsAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		f := c.followers()
		c.crash(f[0].name)
		err := lead.Remove(t.Context(), f[1].name, false)
		if !errors.Is(err, ErrNoMajority) || !strings.Contains(err.Error(), f[0].name) {
			t.Errorf("%v", err)
		}
		if err := lead.Remove(t.Context(), lead.name, false); !errors.Is(err, ErrNoMajority) {
			t.Errorf("%v", err)
		}
		if err := lead.Remove(t.Context(), f[0].name, false); err != nil {
			t.Fatal(err)
		}
		c.names = without(c.names, f[0].name)
		lead.put(t, "a")
		c.agree()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		c.net.isolate(f[1].name, true)
		if err := lead.Remove(ctx, f[1].name, true); err != nil {
			t.Errorf("by force: %v", err)
		}
		lead.put(t, "b")
	})
}

// TestRemovedWhileDown: it was taken out while it was down, and says so when it is started again, and ever after.
func TestRemovedWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		far := c.followers()[0].name
		disk := c.crash(far)
		c.leader(far).put(t, "a")
		if err := c.leader(far).Remove(t.Context(), far, false); err != nil {
			t.Fatal(err)
		}
		c.names = without(c.names, far)
		c.file = []string{"c1", "c2", "c3"}
		m := c.restart(far, disk)
		if err := m.ended(t); !errors.Is(err, ErrRemoved) {
			t.Error(err)
		}
		c.crash(far)
		if _, err := c.open(far, disk); !errors.Is(err, ErrRemoved) {
			t.Errorf("started again: %v", err)
		}
		c.tune = func(cfg *Config, _ *ledger) { cfg.Join = cfg.Name == far }
		if _, err := c.open(far, disk); errors.Is(err, ErrRemoved) || err == nil || !strings.Contains(err.Error(), "move its folder") {
			t.Errorf("with --join on its old folder: %v", err)
		}
		m = c.restart(far, memoryDisk(t))
		time.Sleep(5 * time.Second)
		if s := m.Status(); s.Role != RoleWaiting {
			t.Errorf("%+v", s)
		}
		c.patient("add", nil, func(l *member) error { return l.AddLearner(t.Context(), far, far) })
		c.promote(far)
		c.names = append(c.names, far)
		c.agree()
	})
}

// TestRemovedLeader: it ends, is marked, and the others go on.
func TestRemovedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		c.file = c.names
		load := c.load()
		lead := c.leader()
		time.Sleep(time.Second)
		if err := lead.Remove(t.Context(), lead.name, false); err != nil {
			t.Error(err)
		}
		if err := lead.ended(t); !errors.Is(err, ErrRemoved) {
			t.Error(err)
		}
		c.names = without(c.names, lead.name)
		disk := c.crash(lead.name)
		if _, err := c.open(lead.name, disk); !errors.Is(err, ErrRemoved) {
			t.Errorf("started again: %v", err)
		}
		c.leader().put(t, "after")
		load.check()
	})
}

// TestAddressesAtRunTime: a controller that the file does not name is reached by the state's record, or by the log.
func TestAddressesAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(cfg *Config, _ *ledger) {
			cfg.Address = func(name string) string {
				if name == "c2" {
					return "c2"
				}
				return ""
			}
		})
		defer c.close()
		lead := c.leader()
		c.file = []string{"c1", "c2", "c3"}
		for name, addr := range map[string]string{"c2": "nowhere", "c3": "c3"} {
			if err := lead.AddLearner(t.Context(), name, addr); err != nil {
				t.Fatal(err)
			}
			c.start(name, memoryDisk(t))
			c.names = append(c.names, name)
			c.promote(name)
		}
		lead.put(t, "a")
		c.agree()
		if a, err := lead.ServerAddr("c9"); err == nil {
			t.Errorf("c9 is at %q", a)
		}
	})
}

// TestHaltedIsNotRemoved: a leader whose removal nobody has agreed on, and whose disk then hangs, ends because of
// its disk. It does not write down that it was removed: the others may never have heard of that.
func TestHaltedIsNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker()
		c := newCluster(t, 3, b.tune)
		defer c.close()
		lead := c.leader()
		for _, m := range c.followers() {
			c.net.cutRaft(lead.name, m.name, true)
		}
		go func() { _ = lead.Remove(t.Context(), lead.name, false) }()
		for member := true; member; member, _ = suffrage(lead.latest(), lead.name) {
			time.Sleep(time.Millisecond)
		}
		rule, free := hang()
		defer free()
		b.set(lead.name, "replica.before-store", rule)
		go func() { _, _ = lead.Propose(t.Context(), submit("stuck")) }()
		if err := fatalOf(t, lead, 20*time.Second); !errors.Is(err, ErrDiskHangs) {
			t.Errorf("ended with %v", err)
		}
		time.Sleep(5 * time.Second)
		if marked(lead.disk.stable, keyRemoved) {
			t.Error("it has written down that it was removed")
		}
		select {
		case err := <-lead.Fatal():
			t.Errorf("ended twice: %v", err)
		default:
		}
	})
}

// TestRemovedReturnsAsLearner: who was a voter, lost its disk and was then taken out comes in again as any other does.
func TestRemovedReturnsAsLearner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		name := c.followers()[0].name
		c.crash(name)
		lead.returning.Store(name, true) // it has been told that it is a learner, and was crashed before it had caught up
		c.patient("remove", ErrNoMember, func(m *member) error { return m.Remove(t.Context(), name, false) })
		time.Sleep(time.Second) // until all know
		c.restart(name, memoryDisk(t))
		c.patient("add", ErrIsMember, func(m *member) error { return m.AddLearner(t.Context(), name, name) })
		time.Sleep(time.Minute)
		for _, m := range c.leader().Members() {
			if m.Name == name && m.Voter {
				t.Error("it votes, and nobody has said so")
			}
		}
		if c.members[name].Status().LastIndex == 0 {
			t.Error("it has not been taken in")
		}
	})
}
