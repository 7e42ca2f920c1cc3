package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/server"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// featureTimeout bounds the question which feature level a member's program knows.
const featureTimeout = time.Second

// peers holds one connection to each other controller, made when first used. Where they are is said by the
// configuration file, and for those that joined at run time by the state.
type peers struct {
	id    *authn.Identity
	file  map[string]*conf.Controller
	state func() state.Viewer

	mu     sync.Mutex
	conns  map[string]peerConn
	closed bool
	told   map[string]string // where others say that a leader is: used when neither file nor state knows
}

// peerConn is a connection and where it goes.
type peerConn struct {
	*grpc.ClientConn
	addr string
}

func newPeers(cfg *conf.Config, id *authn.Identity, view func() state.Viewer) *peers {
	p := &peers{id: id, file: map[string]*conf.Controller{}, state: view, conns: map[string]peerConn{}, told: map[string]string{}}
	for i := range cfg.Controllers {
		p.file[cfg.Controllers[i].Name] = &cfg.Controllers[i]
	}
	return p
}

func hostPort(host string, port uint32) string { return net.JoinHostPort(host, fmt.Sprint(port)) }

// joined finds a controller that joined at run time.
func (p *peers) joined(name string) (state.Controller, bool) {
	for c := range p.state().Controllers() {
		if c.Name == name {
			return c, true
		}
	}
	return state.Controller{}, false
}

// address is where agents and controllers reach a controller; "" when there is none of that name.
func (p *peers) address(name string) string {
	if c := p.file[name]; c != nil {
		return hostPort(c.Address, c.Port)
	}
	if c, ok := p.joined(name); ok {
		return hostPort(c.Address, c.Port)
	}
	return ""
}

// raftAddress is the raft port of a controller that joined at run time; "" when there is none of that name.
func (p *peers) raftAddress(name string) string {
	if c, ok := p.joined(name); ok {
		return hostPort(c.Address, c.RaftPort)
	}
	return ""
}

// controllers lists where agents reach every controller.
func (p *peers) controllers() []*nodepb.ControllerAddress {
	var out []*nodepb.ControllerAddress
	for _, name := range slices.Sorted(maps.Keys(p.file)) {
		out = append(out, &nodepb.ControllerAddress{Name: name, Address: p.address(name)})
	}
	for c := range p.state().Controllers() {
		if p.file[c.Name] == nil {
			out = append(out, &nodepb.ControllerAddress{Name: c.Name, Address: hostPort(c.Address, c.Port)})
		}
	}
	return out
}

// Peer implements server.Peers.
func (p *peers) Peer(name string) (peerpb.PeerClient, error) {
	addr := p.address(name)
	if addr == "" {
		p.mu.Lock()
		addr = p.told[name]
		p.mu.Unlock()
	}
	if addr == "" {
		return nil, fmt.Errorf("no controller %q is configured, and none of that name has joined", name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, net.ErrClosed
	}
	conn := p.conns[name]
	if conn.ClientConn != nil && conn.addr != addr { // it was taken out and came back elsewhere
		conn.Close()
		conn.ClientConn = nil
	}
	if conn.ClientConn == nil {
		c, err := p.connect(name, addr)
		if err != nil {
			return nil, err
		}
		conn = peerConn{c, addr}
		p.conns[name] = conn
	}
	return peerpb.NewPeerClient(conn), nil
}

// connect makes a connection that is used only if the other end is the controller of that name.
func (p *peers) connect(name, addr string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(credentials.NewTLS(named(p.id.Client(authn.RoleCtld), name))),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: handshakeTimeout,
		}),
		grpc.WithChainUnaryInterceptor(p.listen),
		// A link that takes everything and answers nothing must not hold calls for ever.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8*server.MaxMessage), grpc.MaxCallSendMsgSize(2*server.MaxMessage)))
	if err != nil {
		return nil, fmt.Errorf("controller %s: %w", name, err)
	}
	return conn, nil
}

// maxTold bounds what is remembered of what others say.
const maxTold = 64

// listen notes where another controller says that the leader is. It may say what it likes: the certificate at
// the other end must be that of the one who was meant.
func (p *peers) listen(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := next(ctx, method, req, reply, cc, opts...)
	if st, ok := reply.(*peerpb.StatusResponse); ok && err == nil && st.Leader != "" && st.LeaderAddress != "" {
		p.mu.Lock()
		if len(p.told) >= maxTold {
			clear(p.told)
		}
		p.told[st.Leader] = st.LeaderAddress
		p.mu.Unlock()
	}
	return err
}

// named makes a client's configuration demand the certificate of one daemon: an address that leads to another
// controller must not pass for the one that was meant.
func named(cfg *tls.Config, name string) *tls.Config {
	verify := cfg.VerifyConnection
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		if err := verify(cs); err != nil {
			return err
		}
		_, _, have, err := authn.IdentityOf(cs.PeerCertificates[0])
		if err == nil && have != name {
			err = fmt.Errorf("%w: %s answers where %s was expected", authn.ErrPeer, have, name)
		}
		return err
	}
	return cfg
}

// probe asks a controller that is no member yet, over a connection of its own.
func (p *peers) probe(ctx context.Context, name, addr string) (*peerpb.StatusResponse, error) {
	conn, err := p.connect(name, addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return peerpb.NewPeerClient(conn).Status(ctx, &peerpb.StatusRequest{Asker: p.id.Name()})
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// features tells the leader what the members' programs know.
type features struct {
	rep    *replica.Replica
	status func(context.Context, *peerpb.StatusRequest) (*peerpb.StatusResponse, error)
	peers  *peers
	self   string
}

// FeatureMax implements leader.Peers.
func (f features) FeatureMax(ctx context.Context) (map[string]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, featureTimeout)
	defer cancel()
	members := f.rep.Members()
	if len(members) == 0 {
		return nil, replica.ErrNoMember
	}
	levels := make([]uint32, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { levels[i] = f.ask(ctx, m.Name) })
	}
	wg.Wait()
	out := map[string]uint32{}
	for i, m := range members {
		out[m.Name] = levels[i]
	}
	return out, nil
}

// ask gives the newest level that a member's program knows; 0 when it does not answer.
func (f features) ask(ctx context.Context, name string) uint32 {
	req := &peerpb.StatusRequest{Asker: f.self}
	var st *peerpb.StatusResponse
	var err error
	if name == f.self {
		st, err = f.status(ctx, req)
	} else {
		var peer peerpb.PeerClient
		if peer, err = f.peers.Peer(name); err == nil {
			st, err = peer.Status(ctx, req)
		}
	}
	if err != nil {
		return 0
	}
	return max(st.FeatureMax, 1) // the first release does not tell
}
