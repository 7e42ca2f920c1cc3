package replica

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// breaker breaks the members of a cluster at the fault points.
type breaker struct {
	mu    sync.Mutex
	rules map[[2]string]func() error // by member and point
}

func newBreaker() *breaker { return &breaker{rules: map[[2]string]func() error{}} }

// set says what happens where; nil for nothing.
func (b *breaker) set(member, point string, f func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f == nil {
		delete(b.rules, [2]string{member, point})
		return
	}
	b.rules[[2]string{member, point}] = f
}

func (b *breaker) tune(cfg *Config, _ *ledger) {
	name := cfg.Name
	cfg.point = func(point string) error {
		b.mu.Lock()
		f := b.rules[[2]string{name, point}]
		b.mu.Unlock()
		if f == nil {
			return nil
		}
		return f()
	}
}

// hang gives a rule that blocks until free is closed.
func hang() (rule func() error, free func()) {
	c := make(chan struct{})
	return func() error { <-c; return nil }, sync.OnceFunc(func() { close(c) })
}

// fatalOf waits for the error that a member ends with.
func fatalOf(t *testing.T, m *member, d time.Duration) error {
	t.Helper()
	select {
	case err := <-m.Fatal():
		return err
	case <-time.After(d):
		t.Fatalf("%s did not end within %v", m.name, d)
		return nil
	}
}

func mention(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not named in: %v", w, err)
		}
	}
}

// TestHungLeader: a leader whose disk does not answer loses leadership within seconds and ends after ten.
// Without the watchdog it would lead for ever: its heartbeats go on.
func TestHungLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker()
		c := newCluster(t, 3, b.tune)
		defer c.close()
		old := c.leader()
		term := <-old.Leadership()
		rule, free := hang()
		defer free()
		b.set(old.name, "replica.before-store", rule)
		begin := time.Now()
		go func() { _, _ = old.Propose(t.Context(), submit("stuck")) }()
		next := c.leader(old.name)
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("another leads after %v", d)
		}
		<-term.Done()
		if _, err := next.Propose(t.Context(), submit("after")); err != nil {
			t.Fatal(err)
		}
		err := fatalOf(t, old, 12*time.Second)
		if !errors.Is(err, ErrDiskHangs) {
			t.Errorf("ended with %v", err)
		}
		mention(t, err, "write entries", logFile, "10s")
		free()
	})
}

// TestStall: a leader whose disk comes back in time takes its part again, as leader or follower.
func TestStall(t *testing.T) {
	for _, members := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker()
				c := newCluster(t, members, b.tune)
				defer c.close()
				old := c.leader()
				rule, free := hang()
				b.set(old.name, "replica.before-store", rule)
				go func() { _, _ = old.Propose(t.Context(), submit("slow")) }()
				time.Sleep(5 * time.Second)
				if members == 1 && old.lead.Load() != nil {
					t.Error("a leader whose disk has hung for 5 s still acts as one")
				}
				b.set(old.name, "replica.before-store", nil)
				free()
				time.Sleep(3 * time.Second)
				if _, err := c.leader().Propose(t.Context(), submit("after")); err != nil {
					t.Fatal(err)
				}
				if got := c.agree(); !slices.Contains(got, "after") {
					t.Errorf("applied %v", got)
				}
				select {
				case err := <-old.Fatal():
					t.Errorf("ended: %v", err)
				default:
				}
			})
		})
	}
}

// TestSlowDisk: a disk that takes a second for each write is slow, not broken.
func TestSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker()
		c := newCluster(t, 3, b.tune)
		defer c.close()
		lead := c.leader()
		for _, n := range c.names {
			b.set(n, "replica.before-store", func() error { time.Sleep(time.Second); return nil })
		}
		for i := range 30 {
			if _, err := lead.Propose(t.Context(), submit(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range c.names {
			b.set(n, "replica.before-store", nil)
		}
		if got := c.agree(); len(got) != 30 || c.leader() != lead {
			t.Errorf("%d applied, %s leads", len(got), c.leader().name)
		}
	})
}

// TestDiskError: a write that fails ends the replica at once, naming file and errno; nothing is written
// after it, and the others go on.
func TestDiskError(t *testing.T) {
	for _, tt := range []struct {
		point string
		errno syscall.Errno
		name  string
		lead  bool
	}{
		{"replica.before-store", syscall.ENOSPC, "ENOSPC", true},
		{"replica.after-store", syscall.EIO, "EIO", true},
		{"replica.before-store", syscall.EROFS, "EROFS", false},
	} {
		t.Run(tt.point+" "+tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBreaker()
				c := newCluster(t, 3, b.tune)
				defer c.close()
				bad := c.leader()
				if !tt.lead {
					bad = c.followers()[0]
				}
				var writes atomic.Int32
				b.set(bad.name, tt.point, func() error { writes.Add(1); return tt.errno })
				_, err := c.leader().Propose(t.Context(), submit("a"))
				if tt.lead && !errors.Is(err, ErrUnknown) {
					t.Errorf("propose: %v, want ErrUnknown", err)
				}
				fatal := fatalOf(t, bad, time.Second)
				if !errors.Is(fatal, tt.errno) {
					t.Errorf("ended with %v", fatal)
				}
				mention(t, fatal, "write entries", logFile, tt.name, fmt.Sprint("errno ", int(tt.errno)))
				next := c.leader(bad.name)
				if _, err := next.Propose(t.Context(), submit("after")); err != nil {
					t.Error(err)
				}
				if n := writes.Load(); n != 1 {
					t.Errorf("%d writes after the first failure", n-1)
				}
			})
		})
	}
}

// TestVoteError: a term or vote that cannot be written ends the replica with words. The library would
// panic.
func TestVoteError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker()
		c := newCluster(t, 3, b.tune)
		defer c.close()
		old, bad := c.leader(), c.followers()[0]
		b.set(bad.name, "replica.before-vote", func() error { return syscall.EIO })
		if err := old.Transfer(t.Context()); err != nil {
			t.Log(err)
		}
		err := fatalOf(t, bad, 30*time.Second)
		mention(t, err, "term or vote", logFile, "EIO")
		c.leader(bad.name)
	})
}

// space is the free space of the members' disks.
type space struct {
	mu   sync.Mutex
	free map[string]int64
}

func (s *space) set(name string, n int64) { s.mu.Lock(); s.free[name] = n; s.mu.Unlock() }

func (s *space) tune(cfg *Config, _ *ledger) {
	name := cfg.Name
	cfg.Reserve = 64 << 20
	cfg.room = func() (int64, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n, ok := s.free[name]; ok {
			return n, nil
		}
		return 1 << 40, nil
	}
}

// TestNoSpace: with too little free space a leader hands over, is not elected, and ends if it stays so.
func TestNoSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &space{free: map[string]int64{}}
		c := newCluster(t, 3, s.tune)
		defer c.close()
		old := c.leader()
		s.set(old.name, 10<<20)
		time.Sleep(3 * time.Second)
		if next := c.leader(); next == old {
			t.Fatal("it still leads")
		}
		time.Sleep(2 * time.Second)
		c.net.isolate(c.leader().name, true) // only the two others are left, and one of them must not be elected
		time.Sleep(3 * time.Second)
		if old.raft.State() != raft.Follower {
			t.Errorf("without space it is %v", old.raft.State())
		}
		s.set(old.name, 1<<30)
		time.Sleep(2 * time.Second)
		for _, n := range c.names {
			c.net.isolate(n, false)
		}
		c.leader()
		s.set(old.name, 20<<20)
		err := fatalOf(t, old, 15*time.Second)
		if !errors.Is(err, ErrNoSpace) {
			t.Errorf("ended with %v", err)
		}
		mention(t, err, "20 MiB", "StateReserve is 64 MiB")
		if _, err := c.leader(old.name).Propose(t.Context(), submit("after")); err != nil {
			t.Error(err)
		}
	})
}

// TestNoSpaceAtStart: a replica does not begin with less than its reserve.
func TestNoSpaceAtStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	_, _, err := lone(t, dir, func(c *Config, _ *ledger) { c.Reserve = 1 << 60 })
	if !errors.Is(err, ErrNoSpace) {
		t.Fatalf("opened: %v", err)
	}
	mention(t, err, dir, "StateReserve")
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made all the same")
	}
}

// TestStuckFollower: leadership moves when a voter that answers gets no further, less and less often as long as that
// does not help.
func TestStuckFollower(t *testing.T) {
	at := func(name string, last uint64) peerState {
		return peerState{server: raft.Server{ID: raft.ServerID(name)}, answers: true, last: last}
	}
	r := &Replica{transport: &transport{sent: map[raft.ServerID]time.Time{}}}
	now := time.Now()
	step := func(mine uint64, peers ...peerState) (string, *peerState) {
		now = now.Add(lagEvery)
		return r.judge(now, mine, peers)
	}
	quietly := func(what string, mine uint64, peers ...peerState) {
		t.Helper()
		for range 10 {
			if name, _ := step(mine, peers...); name != "" {
				t.Fatalf("%s: %s counts as stuck", what, name)
			}
		}
	}
	quietly("idle", 100, at("b", 100), at("c", 100))
	if name, _ := step(101, at("b", 100), at("c", 101)); name != "" {
		t.Fatal("one entry on its way after an idle time")
	}
	r.transport.sent["b"] = now.Add(time.Hour)
	quietly("a snapshot on its way", 200, at("b", 100), at("c", 200))
	delete(r.transport.sent, "b")
	quietly("no answer", 200, peerState{server: raft.Server{ID: "b"}}, at("c", 200))
	var moves []time.Duration
	watch := func(d time.Duration) {
		t.Helper()
		moves = nil
		for begin := now; now.Sub(begin) < d; {
			name, next := step(uint64(now.Unix()), at("c", uint64(now.Unix())), at("b", 100))
			if name == "" {
				continue
			}
			if name != "b" || next == nil || next.server.ID != "c" {
				t.Fatalf("%s stuck, leadership to %v", name, next)
			}
			moves = append(moves, now.Sub(begin))
		}
	}
	watch(8 * time.Minute) // after 12 s, two minutes, four
	if len(moves) != 3 || moves[0] > 2*lagAfter || moves[2]-moves[1] < 4*lagPause {
		t.Errorf("leadership moved after %v", moves)
	}
	quietly("it moves", uint64(now.Unix()), at("c", uint64(now.Unix())), at("b", uint64(now.Unix())))
	now = now.Add(lagPause)
	watch(time.Minute)
	if len(moves) != 1 || moves[0] > 2*lagAfter {
		t.Errorf("leadership moved after %v the next time", moves)
	}
	quietly("alone with it", uint64(now.Unix())+1, at("b", 499))
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// TestStoppedProcess: a process that was stopped for a minute in the middle of a write has no hung disk.
func TestStoppedProcess(t *testing.T) {
	var d dogs
	now := time.Now()
	w := pendingWrite{id: 1, since: now}
	look := func(after time.Duration) time.Duration {
		now = now.Add(after)
		return d.see(w, true, now)
	}
	look(watchEvery)
	if took := look(time.Minute); took >= stallAside {
		t.Errorf("a stopped process: %v", took)
	}
	for range 30 {
		look(watchEvery)
	}
	if took := look(watchEvery); took < stallEnd {
		t.Errorf("a disk that hangs for 15 s: %v", took)
	}
	w = pendingWrite{id: 2, since: now}
	if took := look(watchEvery); took > watchEvery {
		t.Errorf("the next write: %v", took)
	}
}

// TestLogShrinksUnderUs: a log file that somebody cuts while it is in use ends the replica with words. The
// file is mapped, and the process would die of it.
func TestLogShrinksUnderUs(t *testing.T) {
	dir := t.TempDir()
	r, _, err := lone(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-r.Leadership()
	for i := range 20 {
		if _, err := r.Propose(t.Context(), submit(fmt.Sprint(i)), blob(20<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, logFile), 8192); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := r.Propose(t.Context(), submit("after"), blob(20<<10)); err != nil {
			break
		}
	}
	select {
	case err := <-r.Fatal():
		mention(t, err, filepath.Join(dir, logFile), "move")
	case <-time.After(10 * time.Second):
		t.Error("it did not end")
	}
	_ = r.Close()
}

// TestLeaderMovesForStuckVoter: a voter answers, and the leader cannot bring its log any further; the third
// one can.
func TestLeaderMovesForStuckVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		old := c.leader()
		time.Sleep(lagPause) // it has just come into office
		stuck := c.followers()[0]
		c.net.cutRaft(old.name, stuck.name, true)
		begin := time.Now()
		for i := 0; time.Since(begin) < 30*time.Second; i++ {
			if lead := c.leader(); lead != old {
				break
			}
			_, _ = c.leader().Propose(t.Context(), submit(fmt.Sprint(i)))
			time.Sleep(100 * time.Millisecond)
		}
		next := c.leader()
		if next == old || next == stuck {
			t.Fatalf("%s leads, %s led, %s is stuck", next.name, old.name, stuck.name)
		}
		if d := time.Since(begin); d < lagAfter/2 || d > 2*lagAfter {
			t.Errorf("leadership moved after %v", d)
		}
		if _, err := next.Propose(t.Context(), submit("after")); err != nil {
			t.Fatal(err)
		}
		c.net.cutRaft(old.name, stuck.name, false)
		c.agree()
	})
}
