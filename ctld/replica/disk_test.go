package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// site is three replicas over TCP and bolt, each in its own folder.
type site struct {
	t       *testing.T
	voters  []Voter
	dirs    []string
	members []*member
}

// localPeer calls a replica of the same process.
type localPeer struct {
	peerpb.PeerClient
	s *PeerService
}

func (p localPeer) ReadIndex(ctx context.Context, in *peerpb.ReadIndexRequest, _ ...grpc.CallOption) (*peerpb.ReadIndexResponse, error) {
	return p.s.ReadIndex(ctx, in)
}

func (p localPeer) Status(ctx context.Context, in *peerpb.StatusRequest, _ ...grpc.CallOption) (*peerpb.StatusResponse, error) {
	return p.s.Status(ctx, in)
}

func (p localPeer) Rejoin(ctx context.Context, in *peerpb.RejoinRequest, _ ...grpc.CallOption) (*peerpb.RejoinResponse, error) {
	return p.s.Rejoin(ctx, in)
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// open starts all replicas, on fresh ports: the addresses are the configuration's, not the log's.
func (s *site) open() {
	s.t.Helper()
	lns := make([]net.Listener, len(s.dirs))
	s.voters = nil
	for i := range s.dirs {
		lns[i] = listen(s.t, "127.0.0.1:0")
		s.voters = append(s.voters, Voter{Name: fmt.Sprintf("c%d", i+1), Addr: lns[i].Addr().String()})
	}
	s.members = make([]*member, len(s.dirs))
	var mu sync.Mutex
	for i, dir := range s.dirs {
		m := &member{name: s.voters[i].Name, ledger: newLedger()}
		cfg := s.config(i, lns[i])
		cfg.Dir = dir
		cfg.Peers = func(name string) (peerpb.PeerClient, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range s.members {
				if m != nil && m.name == name {
					return localPeer{s: NewPeerService(m.Replica, "")}, nil
				}
			}
			return nil, errCut
		}
		r, err := OpenMachine(s.t.Context(), cfg, m.ledger)
		if err != nil {
			s.t.Fatal(err)
		}
		m.Replica = r
		mu.Lock()
		s.members[i] = m
		mu.Unlock()
	}
}

func (s *site) config(i int, ln net.Listener) Config {
	return Config{
		Name: s.voters[i].Name, Voters: s.voters, Listener: ln, Dial: dialTCP,
		Peers: func(string) (peerpb.PeerClient, error) { return nil, errCut },
		Now:   time.Now, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		HeartbeatTimeout: 200 * time.Millisecond,
	}
}

func (s *site) close() {
	for _, m := range s.members {
		if err := m.Close(); err != nil {
			s.t.Errorf("close: %v", err)
		}
	}
}

// lead waits for a leader among the open replicas.
func (s *site) lead() *member {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, m := range s.members {
			if _, self := m.Leader(); self {
				return m
			}
		}
	}
	s.t.Fatal("no leader in 20 s")
	return nil
}

// TestRestart stops and starts three replicas on disk: what was acknowledged is there, at other
// addresses too.
func TestRestart(t *testing.T) {
	s := &site{t: t, dirs: []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b"), filepath.Join(t.TempDir(), "c")}}
	var want []string
	for round := range 3 {
		s.open()
		lead := s.lead()
		if got := lead.ledger.state().Order; !slices.Equal(got, want) {
			t.Fatalf("round %d starts with %d commands, %d were acknowledged", round, len(got), len(want))
		}
		for i := range 50 {
			key := fmt.Sprintf("%d/%d", round, i)
			if _, err := lead.Propose(t.Context(), submit(key)); err != nil {
				t.Fatal(err)
			}
			want = append(want, key)
		}
		for _, m := range s.members {
			v, err := m.Read(t.Context())
			if err != nil || !slices.Equal(v.(*ledgerState).Order, want) {
				t.Fatalf("%s: %v", m.name, err)
			}
		}
		s.close()
	}
	for _, d := range s.dirs {
		if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, st.Mode(), err)
		}
	}
}

// lone opens one replica on dir.
func lone(t *testing.T, dir string, tune func(*Config, *ledger)) (*Replica, *ledger, error) {
	ln := listen(t, "127.0.0.1:0")
	s := &site{t: t, voters: []Voter{{Name: "c1", Addr: ln.Addr().String()}}}
	cfg := s.config(0, ln)
	cfg.Dir, cfg.HeartbeatTimeout = dir, 20*time.Millisecond
	l := newLedger()
	if tune != nil {
		tune(&cfg, l)
	}
	r, err := OpenMachine(t.Context(), cfg, l)
	if err != nil {
		_ = ln.Close()
	}
	return r, l, err
}

// fillUp proposes blobs until the log has shrunk to the tail kept behind a snapshot.
func fillUp(t *testing.T, r *Replica, dir string, snapshots int) {
	t.Helper()
	<-r.Leadership()
	for range 400 {
		if _, err := r.Propose(t.Context(), blob(20<<10), submit("k")); err != nil {
			t.Fatal(err)
		}
		if found, _ := filepath.Glob(filepath.Join(dir, "snapshots", "*-*-*", "state.bin")); len(found) >= snapshots {
			return
		}
	}
	t.Fatal("no snapshot was taken")
}

func TestSnapshotsByBytesOnDisk(t *testing.T) {
	dir := t.TempDir()
	small := func(c *Config, _ *ledger) { c.SnapshotBytes = 1 << 20 }
	r, l, err := lone(t, dir, small)
	if err != nil {
		t.Fatal(err)
	}
	fillUp(t, r, dir, 2)
	want := l.state()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r, l, err = lone(t, dir, small)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := l.state(); len(got.Blobs) == 0 {
		t.Error("nothing was restored from the snapshot")
	}
	<-r.Leadership()
	if got := l.state(); len(got.Blobs) != len(want.Blobs) || !slices.Equal(got.Order, want.Order) {
		t.Errorf("%d blobs after the restart, %d before", len(got.Blobs), len(want.Blobs))
	}
}

// TestDamagedSnapshots: without a snapshot that can be read the replica does not start, and says so.
func TestDamagedSnapshots(t *testing.T) {
	dir := t.TempDir()
	r, _, err := lone(t, dir, func(c *Config, _ *ledger) { c.SnapshotBytes = 1 << 20 })
	if err != nil {
		t.Fatal(err)
	}
	fillUp(t, r, dir, 1)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	found, _ := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
	for _, f := range found {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := lone(t, dir, nil); err == nil || !strings.Contains(err.Error(), "snapshot") {
		t.Errorf("opened on damaged snapshots: %v", err)
	}
}

func TestFolderInUse(t *testing.T) {
	dir := t.TempDir()
	r, _, err := lone(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, _, err := lone(t, dir, nil); err == nil || !strings.Contains(err.Error(), "another process holds it") {
		t.Errorf("opened twice: %v", err)
	}
}

// TestHoleInTheLog: raft panics when the log does not reach back to the snapshot; we say what to do.
func TestHoleInTheLog(t *testing.T) {
	log := raft.NewInmemStore()
	for _, i := range []uint64{1, 2, 3} {
		if err := log.StoreLog(&raft.Log{Index: i, Term: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(log.DeleteRange(1, 1), log.SetUint64(keyTerm, 1)); err != nil {
		t.Fatal(err)
	}
	disk := &stores{log: log, stable: log, snaps: raft.NewInmemSnapshotStore(), close: func() error { return nil }}
	_, _, err := lone(t, "", func(c *Config, _ *ledger) { c.stores = func() (*stores, error) { return disk, nil } })
	if err == nil || !strings.Contains(err.Error(), "do not fit together") {
		t.Errorf("opened on a log with a hole: %v", err)
	}
}

// TestSnapshotWhileApplying: a slow snapshot of a large state holds nobody up, and holds the state
// of the moment it was begun at.
func TestSnapshotWhileApplying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{}, 10)
		c := newCluster(t, 1, func(cfg *Config, l *ledger) {
			cfg.SnapshotBytes = 4 << 20
			l.write = func() { begun <- struct{}{}; time.Sleep(30 * time.Second) }
		})
		defer c.close()
		lead := c.leader()
		for range 64 {
			if _, err := lead.Propose(t.Context(), blob(100<<10)); err != nil {
				t.Fatal(err)
			}
		}
		<-begun
		for i := range 100 {
			before := time.Now()
			if _, err := lead.Propose(t.Context(), submit(fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(before); d > time.Second {
				t.Fatalf("a proposal waited %v for the snapshot", d)
			}
		}
		time.Sleep(40 * time.Second)
		metas, err := lead.disk.snaps.List()
		if err != nil || len(metas) != 1 {
			t.Fatalf("%d snapshots, %v", len(metas), err)
		}
		_, rc, err := lead.disk.snaps.Open(metas[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		old := newLedger()
		if err := old.Restore(rc); err != nil {
			t.Fatal(err)
		}
		if s := old.state(); s.Raft > metas[0].Index || len(s.Order) != 0 || len(s.Blobs) < 40 {
			t.Errorf("snapshot of index %d holds state %d: %d blobs, %d later commands", metas[0].Index, s.Raft, len(s.Blobs), len(s.Order))
		}
	})
}

// TestLaggingFollowerGetsSnapshot: a follower that was away for longer than the log reaches back
// is brought up by a snapshot, and reads there are linearizable again.
func TestLaggingFollowerGetsSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(cfg *Config, _ *ledger) { cfg.SnapshotBytes = 256 << 10 })
		defer c.close()
		lead, far := c.leader(), c.followers()[0]
		c.net.isolate(far.name, true)
		pad := strings.Repeat("x", 1000)
		for i := range 2 * trailingLogs {
			if _, err := lead.Propose(t.Context(), submit(fmt.Sprint(i)+pad)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if first, err := lead.disk.log.FirstIndex(); err != nil || first < far.raft.LastIndex()+2 {
			t.Fatalf("the log still begins at %d (%v): the test shows nothing", first, err)
		}
		c.net.isolate(far.name, false)
		for {
			v, err := far.Read(t.Context())
			if err != nil {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			if n := len(v.(*ledgerState).Order); n != 2*trailingLogs {
				t.Fatalf("the follower reads %d commands", n)
			}
			break
		}
		c.agree()
	})
}

// TestRestartedMemberCatchesUp closes one replica and starts it again on its disk.
func TestRestartedMemberCatchesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		for round := range 3 {
			m := c.leader()
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			next := c.leader(m.name)
			for i := range 20 {
				if _, err := next.Propose(t.Context(), submit(fmt.Sprintf("%d/%d", round, i))); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(100 * time.Millisecond)
			c.start(m.name, m.disk)
			if got := c.agree(); len(got) != 20*(round+1) {
				t.Fatalf("%d commands", len(got))
			}
		}
	})
}

func TestConfigFaults(t *testing.T) {
	_, err := OpenMachine(t.Context(), Config{HeartbeatTimeout: time.Millisecond, SnapshotBytes: -1, Voters: slices.Repeat([]Voter{{Name: "x"}}, MaxVoters+1)}, newLedger())
	if err == nil {
		t.Fatal("an empty configuration opens")
	}
	for _, want := range []string{"Name", "Dir", "Listener", "Dial", "Peers", "Now", "Logger", "among the voters", "limit of 7", "heartbeat", "snapshot"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}

func TestTooLargeCommandTouchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		defer c.close()
		lead := c.leader()
		res, err := lead.Propose(t.Context(), submit("a"), blob(MaxCommand+1))
		if !errors.Is(err, ErrTooLarge) || len(res) != 0 {
			t.Errorf("%v, %v", res, err)
		}
		if _, err := lead.Propose(t.Context(), &logpb.Command{}); !errors.Is(err, errEmpty) {
			t.Errorf("a command of no kind: %v", err)
		}
		if _, err := lead.Propose(t.Context(), blob(MaxCommand-100), submit("b")); err != nil {
			t.Errorf("nearly 1 MiB: %v", err)
		}
		if got := c.agree(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("applied %v", got)
		}
	})
}

// hungLog is a log whose disk stops answering.
type hungLog struct {
	*raft.InmemStore
	hung atomic.Bool
	free chan struct{}
}

func (h *hungLog) StoreLogs(logs []*raft.Log) error {
	if h.hung.Load() {
		<-h.free
	}
	return h.InmemStore.StoreLogs(logs)
}

func (h *hungLog) StoreLog(l *raft.Log) error { return h.StoreLogs([]*raft.Log{l}) }

// TestCloseOnHungDisk: a disk that does not answer holds nobody for ever.
func TestCloseOnHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hungLog{InmemStore: raft.NewInmemStore(), free: make(chan struct{})}
		c := newCluster(t, 1, func(cfg *Config, _ *ledger) {
			disk := memoryDisk(t)
			disk.log = h
			cfg.stores = func() (*stores, error) { return disk, nil }
		})
		lead := c.leader()
		h.hung.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := lead.Propose(t.Context(), submit("a")); !errors.Is(err, ErrUnknown) {
				t.Errorf("on its way: %v", err)
			}
		})
		time.Sleep(2 * time.Second)
		began := time.Now()
		if err := lead.Close(); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("close: %v", err)
		}
		if d := time.Since(began); d > 3*closeGrace {
			t.Errorf("close took %v", d)
		}
		wg.Wait()
		close(h.free)
		time.Sleep(time.Second)
	})
}
