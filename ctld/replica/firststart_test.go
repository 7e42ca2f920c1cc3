package replica

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestFirstStartWaitsForAll: a cluster starts only when every controller of the file has said that it has no history.
func TestFirstStartWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		defer c.close()
		c.file = []string{"c1", "c2", "c3"}
		c.names = []string{"c1"}
		c.start("c1", memoryDisk(t))
		time.Sleep(10 * time.Second)
		c.names = []string{"c1", "c2"}
		c.start("c2", memoryDisk(t))
		c.quiet(2*time.Minute, "c1", "c2")
		for _, name := range c.names {
			m := c.members[name]
			st, err := NewPeerService(m.Replica, "1").Status(t.Context(), statusBy("c3"))
			if err != nil || !st.GetBlank() || st.GetRole() != RoleWaiting || st.GetFeatureMax() == 0 || !st.GetMember() || st.GetVoter() {
				t.Errorf("%s: %v, %v", name, st, err)
			}
			if _, err := m.Propose(t.Context(), submit("x")); !errors.Is(err, ErrNotLeader) {
				t.Errorf("propose: %v", err)
			}
			if _, err := m.Read(t.Context()); !errors.Is(err, ErrNoLeader) {
				t.Errorf("read: %v", err)
			}
			if err := m.TransferTo(t.Context(), ""); !errors.Is(err, ErrNotLeader) || m.Transfer(t.Context()) != nil || m.Members() != nil {
				t.Errorf("transfer: %v; members %v", err, m.Members())
			}
			if _, err := c.net.dialer("c3")(t.Context(), name); err == nil {
				conn, _ := c.net.dialer("c3")(t.Context(), name)
				if _, err := conn.Read(make([]byte, 1)); err == nil {
					t.Error("raft's port answers")
				}
			}
		}
		c.names = c.file
		c.start("c3", memoryDisk(t))
		c.leader().put(t, "a")
		c.votes(c.names...)
		c.agree()
	})
}

// TestFirstStartOneIsLate: one of three asks when the others have begun already. It is blank and they are not, and it
// comes in.
func TestFirstStartOneIsLate(t *testing.T) {
	for _, late := range []time.Duration{time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond, time.Second, 5 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 0, nil)
				defer c.close()
				c.names = []string{"c1", "c2", "c3"}
				c.start("c1", memoryDisk(t))
				c.start("c2", memoryDisk(t))
				c.start("c3", memoryDisk(t))
				time.Sleep(10 * time.Millisecond)
				c.crash("c3") // it has said that it is blank, and perhaps begun
				time.Sleep(late)
				c.restart("c3", memoryDisk(t))
				c.leader().put(t, "a")
				c.votes(c.names...)
				c.agree()
			})
		})
	}
}

// TestLoneRestart: a single controller starts by itself, and goes on after a restart.
func TestLoneRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.close()
		c.leader().put(t, "a")
		disk := c.crash("c1")
		c.restart("c1", disk)
		c.leader().put(t, "b")
		if got := c.agree(); !slices.Equal(got, []string{"a", "b"}) {
			t.Error(got)
		}
	})
}

// TestLoneKnowsOfNoOther: the first controller's file names nobody else, two have joined at run time, and its disk is
// emptied. It must not start a second cluster.
func TestLoneKnowsOfNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.close()
		c.leader().put(t, "a")
		c.file = []string{"c1", "c2", "c3"}
		c.grow("c2", "c3")
		c.agree()
		if err := c.leader().TransferTo(t.Context(), "c2"); err != nil {
			t.Fatal(err)
		}
		c.leader("c1").put(t, "b")
		c.crash("c1")
		var logs lines
		c.file = []string{"c1"}
		c.tune = func(cfg *Config, _ *ledger) { cfg.Logger = logs.logger() }
		c.restart("c1", memoryDisk(t))
		c.quiet(time.Minute, "c1")
		if s := c.members["c1"].Status(); s.Role != RoleWaiting {
			t.Errorf("%+v", s)
		}
		if logs.count("none of the controllers of the file") == 0 {
			t.Error("it does not say why it waits")
		}
		c.leader("c1").put(t, "c")
		c.crash("c1")
		c.file = []string{"c1", "c2"}
		c.restart("c1", memoryDisk(t))
		c.votes("c1")
		c.agree()
	})
}

// TestFileNamesTheEmptied: the files of two controllers name each other only, three have joined at run time, and the
// two lose their disks at once. That neither of them has a history says nothing.
func TestFileNamesTheEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		defer c.close()
		c.leader().put(t, "a")
		c.file = []string{"c1", "c2", "c3", "c4", "c5"}
		c.grow("c3", "c4", "c5")
		c.crash("c1")
		c.crash("c2")
		c.leader("c1", "c2").put(t, "b")
		c.file = []string{"c1", "c2"}
		c.restart("c1", memoryDisk(t))
		c.restart("c2", memoryDisk(t))
		c.quiet(time.Minute, "c1", "c2")
		c.leader("c1", "c2").put(t, "c")
		for _, name := range c.file {
			if s := c.members[name].Status(); s.Role != RoleWaiting {
				t.Errorf("%+v", s)
			}
		}
		c.crash("c1")
		c.file = []string{"c1", "c2", "c3"}
		c.restart("c1", memoryDisk(t))
		c.votes("c1", "c2") // the second finds the way by the first
		c.agree()
	})
}

// TestJoin: a controller started with --join waits, however often it is restarted, until it is taken in, also when
// nobody belongs to a cluster yet.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		defer c.close()
		c.file = []string{"c1", "c2"}
		c.tune = func(cfg *Config, _ *ledger) { cfg.Join = cfg.Name == "c2" }
		c.start("c2", memoryDisk(t))
		c.names = []string{"c1"}
		time.Sleep(5 * time.Second)
		c.file = []string{"c1"}
		c.start("c1", memoryDisk(t))
		c.leader().put(t, "a")
		time.Sleep(10 * time.Second)
		if s := c.members["c2"].Status(); s.Role != RoleWaiting {
			t.Errorf("not taken in and %+v", s)
		}
		if err := c.leader().AddLearner(t.Context(), "c2", "c2"); err != nil {
			t.Fatal(err)
		}
		c.promote("c2")
		c.names = []string{"c1", "c2"}
		c.agree()
		c.file = nil
		disk := c.crash("c2")
		c.restart("c2", disk) // --join again, with a history: as without
		c.leader().put(t, "b")
		c.agree()
	})
}

func TestJoinConfig(t *testing.T) {
	for want, cfg := range map[string]Config{
		"exclude each other": {Join: true, Bootstrap: true},
		"ControllerName":     {Name: "x", Join: true, Voters: []Voter{{Name: "x"}}},
	} {
		if _, err := cfg.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// TestCloseWhileWaiting ends a replica that has not begun.
func TestCloseWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		c.file = []string{"c1", "c2"}
		c.names = []string{"c1"}
		m := c.start("c1", memoryDisk(t))
		time.Sleep(3 * time.Second)
		ch := m.Changed(0)
		c.close()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		<-ch
		if _, err := m.Read(t.Context()); err == nil {
			t.Error("a closed replica answers reads")
		}
	})
}

// TestStartAfterACutReturn: two controllers were told from which entry on they may vote, and crashed before they
// noted the term; now all are empty and begin anew. In the new cluster there is no such entry for a long time.
func TestStartAfterACutReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		defer c.close()
		c.names = []string{"c1", "c2"}
		for _, name := range c.names {
			disk := memoryDisk(t)
			if err := disk.stable.SetUint64(keySilent, 1000); err != nil {
				t.Fatal(err)
			}
			c.start(name, disk)
		}
		c.leader().put(t, "a")
	})
}
