package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	hclog "github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// network joins replicas by pipes in memory. A cut between two names closes what is open and
// refuses what is dialled.
type network struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
	cut       map[[2]string]bool
	noRaft    map[[2]string]bool // cut for raft alone
	open      map[[2]string][]net.Conn
	services  map[string]*PeerService
	rejoined  func() error // after a rejoin: what the caller gets instead of the answer
}

func newNetwork() *network {
	return &network{
		listeners: map[string]*pipeListener{}, cut: map[[2]string]bool{}, noRaft: map[[2]string]bool{},
		open: map[[2]string][]net.Conn{}, services: map[string]*PeerService{},
	}
}

var errCut = errors.New("network is cut")

func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

func (n *network) isolate(name string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for other := range n.listeners {
		if other == name {
			continue
		}
		p := pair(name, other)
		n.cut[p] = cut
		for _, c := range n.open[p] {
			_ = c.Close()
		}
		n.open[p] = nil
	}
}

// split cuts, or joins again, everyone of one side and everyone of the other.
func (n *network) split(one, other []string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range one {
		for _, b := range other {
			p := pair(a, b)
			n.cut[p] = cut
			for _, c := range n.open[p] {
				_ = c.Close()
			}
			n.open[p] = nil
		}
	}
}

// cutRaft cuts raft's connections of two replicas; they still hear each other's answers.
func (n *network) cutRaft(a, b string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := pair(a, b)
	n.noRaft[p] = cut
	for _, c := range n.open[p] {
		_ = c.Close()
	}
	n.open[p] = nil
}

func (n *network) listen(name string) *pipeListener {
	l := &pipeListener{name: name, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	n.listeners[name] = l
	n.mu.Unlock()
	return l
}

func (n *network) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		n.mu.Lock()
		p := pair(from, to)
		l := n.listeners[to]
		if n.cut[p] || n.noRaft[p] || l == nil {
			n.mu.Unlock()
			return nil, errCut
		}
		here, there := net.Pipe()
		n.open[p] = append(n.open[p], here, there)
		here, there = slowConn{here}, slowConn{there}
		n.mu.Unlock()
		select {
		case l.conns <- there:
			return here, nil
		case <-l.closed:
			return nil, errCut
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// slowConn takes a moment for each write. Without it a cluster in a synctest bubble does any
// amount of work in no time at all, and a test that waits for a moment in the middle never sees it.
type slowConn struct{ net.Conn }

func (c slowConn) Write(b []byte) (int, error) {
	time.Sleep(100 * time.Microsecond)
	return c.Conn.Write(b)
}

// peers gives the clients of one replica: direct calls that respect the cuts.
func (n *network) peers(from string) func(string) (peerpb.PeerClient, error) {
	return func(to string) (peerpb.PeerClient, error) { return &directPeer{n: n, from: from, to: to}, nil }
}

type directPeer struct {
	peerpb.PeerClient
	n        *network
	from, to string
}

func (d *directPeer) service() (*PeerService, error) {
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	s := d.n.services[d.to]
	if s == nil || d.n.cut[pair(d.from, d.to)] {
		return nil, errCut
	}
	return s, nil
}

func (d *directPeer) ReadIndex(ctx context.Context, in *peerpb.ReadIndexRequest, _ ...grpc.CallOption) (*peerpb.ReadIndexResponse, error) {
	s, err := d.service()
	if err != nil {
		return nil, err
	}
	return s.ReadIndex(ctx, in)
}

func (d *directPeer) Status(ctx context.Context, in *peerpb.StatusRequest, _ ...grpc.CallOption) (*peerpb.StatusResponse, error) {
	s, err := d.service()
	if err != nil {
		return nil, err
	}
	return s.Status(ctx, in)
}

func (d *directPeer) Rejoin(ctx context.Context, in *peerpb.RejoinRequest, _ ...grpc.CallOption) (*peerpb.RejoinResponse, error) {
	s, err := d.service()
	if err != nil {
		return nil, err
	}
	resp, err := s.Rejoin(ctx, in)
	if f := d.n.rejoined; f != nil && err == nil {
		if err := f(); err != nil {
			return nil, err
		}
	}
	return resp, err
}

type pipeListener struct {
	name   string
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return advertised(l.name) }

// member is one replica with its machine and the disk that outlives it.
type member struct {
	name string
	*Replica
	ledger *ledger
	disk   *stores
}

type cluster struct {
	t       *testing.T
	net     *network
	names   []string
	members map[string]*member
	tune    func(*Config, *ledger)
	file    []string // the names in everyone's file; nil for names
	atEnd   []func()
}

// memoryDisk keeps log and votes in memory. Snapshots are files: raft's in-memory store shows a
// snapshot before it is whole.
func memoryDisk(t *testing.T) *stores {
	t.Helper()
	log := raft.NewInmemStore()
	snaps, err := raft.NewFileSnapshotStoreWithLogger(t.TempDir(), snapshotsKept, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return &stores{log: log, stable: log, snaps: snaps, close: func() error { return nil }}
}

// newCluster starts n replicas in memory; the test ends them.
func newCluster(t *testing.T, n int, tune func(*Config, *ledger)) *cluster {
	c := &cluster{t: t, net: newNetwork(), members: map[string]*member{}, tune: tune}
	for i := range n {
		c.names = append(c.names, fmt.Sprintf("c%d", i+1))
	}
	for _, name := range c.names {
		c.start(name, memoryDisk(c.t))
	}
	return c
}

func (c *cluster) start(name string, disk *stores) *member {
	c.t.Helper()
	m, err := c.open(name, disk)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// open is start for a replica that may refuse.
func (c *cluster) open(name string, disk *stores) (*member, error) {
	m := &member{name: name, ledger: newLedger(), disk: disk}
	cfg := Config{
		Name: name, Listener: c.net.listen(name), Dial: c.net.dialer(name), Peers: c.net.peers(name),
		Now: time.Now, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		stores: func() (*stores, error) { return disk, nil },
	}
	file := c.file
	if file == nil {
		file = c.names
	}
	for _, n := range file {
		cfg.Voters = append(cfg.Voters, Voter{Name: n, Addr: n})
	}
	if c.tune != nil {
		c.tune(&cfg, m.ledger)
	}
	var err error
	if m.Replica, err = OpenMachine(c.t.Context(), cfg, m.ledger); err != nil {
		_ = cfg.Listener.Close()
		return nil, err
	}
	c.members[name] = m
	c.net.mu.Lock()
	c.net.services[name] = NewPeerService(m.Replica, "test")
	c.net.mu.Unlock()
	return m, nil
}

func (c *cluster) close() {
	for _, f := range c.atEnd {
		f()
	}
	for _, m := range c.members {
		if err := m.Close(); err != nil {
			c.t.Errorf("close %s: %v", m.name, err)
		}
	}
	time.Sleep(time.Second) // raft's connection handlers end by themselves, in virtual time
}

// leader waits until one of the members, not among those named, leads.
func (c *cluster) leader(except ...string) *member {
	c.t.Helper()
	for range 6000 {
		for _, name := range c.names {
			if slices.Contains(except, name) {
				continue
			}
			if _, self := c.members[name].Leader(); self {
				return c.members[name]
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, name := range c.names {
		c.t.Logf("%+v knows %+v", c.members[name].Status(), c.members[name].Members())
	}
	c.t.Fatal("no leader in a minute")
	return nil
}

func (c *cluster) followers() []*member {
	lead := c.leader()
	var out []*member
	for _, name := range c.names {
		if name != lead.name {
			out = append(out, c.members[name])
		}
	}
	return out
}

// agree waits until all members have applied the same, and compares it.
func (c *cluster) agree() []string {
	c.t.Helper()
	lead := c.leader()
	if _, err := lead.Read(c.t.Context()); err != nil {
		c.t.Fatalf("read on the leader: %v", err)
	}
	index := lead.ledger.state().Raft
	want := lead.ledger.state().Order
	for _, name := range c.names {
		m := c.members[name]
		for m.ledger.state().Raft < index {
			<-m.Changed(m.View().Index())
		}
		if got := m.ledger.state().Order; !slices.Equal(got, want) {
			c.t.Fatalf("%s applied %d commands, the leader %d, or in another order", name, len(got), len(want))
		}
	}
	return want
}
