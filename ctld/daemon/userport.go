package daemon

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/server"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Bounds of the port for users. Whoever can reach it can connect, so that all that costs memory, files or
// time before somebody is known is bounded, for all strangers and for each address.
const (
	remoteConns        = 4096 // or a quarter of the files that this process may open
	remoteConnsOf      = 256  // from one address; an IPv6 network of 64 bits counts as one
	remoteHandshake    = 5 * time.Second
	remoteStreams      = 256 // calls of one connection
	remoteCalls        = 4096
	remoteCallsOf      = 1024
	remotePatience     = time.Second // for a request to come whole; after that it is a slow one
	remoteSlow         = 64          // slow ones: each may hold server.MaxMessage bytes
	remoteSlowOf       = 16
	remoteArriveWithin = 20 * time.Second
	remoteHeaders      = 16 << 10 // bytes of the header of a call; a token has about 1 KiB
	remoteWindow       = 64 << 10 // bytes that a call may send ahead of what is read
	remoteIdle         = 5 * time.Minute

	localCalls    = 65536 // of the users' socket
	localCallsOf  = 16384 // of one uid
	localPatience = 2 * time.Second
	localSlow     = 256
	localSlowOf   = 32
)

// bounds are the limits of a gate; tests have smaller ones.
type bounds struct {
	conns, connsOf, calls, callsOf, slow, slowOf int
	patience, within                             time.Duration
}

// localBounds are those of the users' socket. Its connections are bounded by userListener.
func localBounds() bounds {
	return bounds{calls: localCalls, callsOf: localCallsOf, slow: localSlow, slowOf: localSlowOf, patience: localPatience, within: remoteArriveWithin}
}

func remoteBounds() bounds {
	return bounds{fileShare(remoteConns), remoteConnsOf, remoteCalls, remoteCallsOf, remoteSlow, remoteSlowOf, remotePatience, remoteArriveWithin}
}

// tally counts things in all and by address.
type tally struct {
	most, mostOf int
	mu           sync.Mutex
	all          int
	of           map[netip.Prefix]int
}

func newTally(most, mostOf int) *tally {
	return &tally{most: most, mostOf: mostOf, of: map[netip.Prefix]int{}}
}

// take gives a place and how to give it back, once or more often; nil when there is none.
func (t *tally) take(from netip.Prefix) (release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all >= t.most || t.of[from] >= t.mostOf {
		return nil
	}
	t.all++
	t.of[from]++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.all--
		if t.of[from]--; t.of[from] == 0 {
			delete(t.of, from)
		}
	})
}

// originOf is what counts as one address: somebody with an IPv6 network has 2^64 of them.
func originOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// caller is what counts as one caller: an address, and at the users' socket a uid. root has no bounds.
func caller(ctx context.Context) (from netip.Prefix, root bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return from, false
	}
	who, local := p.AuthInfo.(authn.PeerInfo)
	if !local {
		return originOf(p.Addr), false
	}
	var uid [16]byte // no address of anybody's is of this kind: ff00::/16 goes to no one
	uid[0] = 0xff
	binary.BigEndian.PutUint32(uid[12:], who.UID)
	return netip.PrefixFrom(netip.AddrFrom16(uid), 128), who.UID == 0
}

// gate bounds the connections and calls of the port for users, and the calls of the users' socket.
type gate struct {
	bounds
	conns, calls, slow *tally
}

func newGate(b bounds) *gate {
	return &gate{b, newTally(b.conns, b.connsOf), newTally(b.calls, b.callsOf), newTally(b.slow, b.slowOf)}
}

// gateListener closes connections over the bounds at once.
type gateListener struct {
	net.Listener
	gate *gate
}

// Accept gives the next connection that has a place.
func (l gateListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		release := l.gate.conns.take(originOf(c.RemoteAddr()))
		if release == nil {
			c.Close()
			continue
		}
		return &gateConn{c, release}, nil
	}
}

// gateConn is a counted connection.
type gateConn struct {
	net.Conn
	release func()
}

// Close ends the connection and gives its place to another.
func (c *gateConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

type arrivalKey struct{}

// enter is asked when the header of a call is there. The call has a place as long as it lasts. When its
// request does not come whole soon it needs one of the few places for slow ones, and has limited time.
func (g *gate) enter(ctx context.Context, _ *tap.Info) (context.Context, error) {
	from, root := caller(ctx)
	if root {
		return ctx, nil
	}
	leave := g.calls.take(from)
	if leave == nil {
		return nil, status.Error(codes.ResourceExhausted, "too many calls are under way on this port; try again soon")
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &arrival{gate: g, from: from, cancel: cancel}
	a.mu.Lock()
	a.timer = time.AfterFunc(g.patience, a.late)
	a.mu.Unlock()
	context.AfterFunc(ctx, func() {
		a.here()
		leave()
	})
	return context.WithValue(ctx, arrivalKey{}, a), nil
}

// arrival is a request on its way.
type arrival struct {
	gate   *gate
	from   netip.Prefix
	cancel context.CancelFunc

	mu    sync.Mutex
	done  bool
	timer *time.Timer
	place func() // gives the place of a slow one back; nil while it has none
}

// late is asked when a request has not come whole in time.
func (a *arrival) late() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return
	}
	if a.place == nil {
		if a.place = a.gate.slow.take(a.from); a.place != nil {
			a.timer.Reset(a.gate.within - a.gate.patience)
			return
		}
	}
	a.cancel()
}

// here ends the watch over a request: it is there, or the call is over.
func (a *arrival) here() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done = true
	a.timer.Stop()
	if a.place != nil {
		a.place()
	}
}

// here tells the gate that the request of a call is there.
func here(ctx context.Context) {
	if a, ok := ctx.Value(arrivalKey{}).(*arrival); ok {
		a.here()
	}
}

func arrivedUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	here(ctx)
	return next(ctx, req)
}

func arrivedStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, arrivingStream{ss})
}

// arrivingStream tells the gate when the first message of a stream is there.
type arrivingStream struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (s arrivingStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		here(s.Context())
	}
	return err
}

// userServer makes the gRPC server of the port for users: the Controller service, each call with a token or
// a wallet's signature, and Enroll.Join.
func userServer(id *authn.Identity, auth *authn.Authenticator, v *authn.Verifier, s *server.Server, g *gate) *grpc.Server {
	out := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(id.UserServer())),
		v.Codec(),
		grpc.InTapHandle(g.enter),
		grpc.ConnectionTimeout(remoteHandshake),
		grpc.MaxRecvMsgSize(server.MaxMessage), grpc.MaxHeaderListSize(remoteHeaders),
		grpc.MaxConcurrentStreams(remoteStreams),
		grpc.StaticStreamWindowSize(remoteWindow), grpc.StaticConnWindowSize(16*remoteWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: remoteIdle, Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		// Authentication must see a request before anybody else does; those around it do not look at it.
		grpc.ChainUnaryInterceptor(arrivedUnary, s.AuditStrangers(), auth.RemoteUnary(v), s.Forwarding()),
		grpc.ChainStreamInterceptor(arrivedStream, s.AuditStrangeStreams(), auth.RemoteStream(v), s.AuditStream()),
	)
	ctldpb.RegisterControllerServer(out, s)
	nodepb.RegisterEnrollServer(out, joinOnly{enroll: s.Enroll()})
	return out
}

// joinOnly is Enroll without Renew, which asks for a certificate and is served where one is shown.
type joinOnly struct {
	nodepb.UnimplementedEnrollServer
	enroll nodepb.EnrollServer
}

// Join implements nodepb.EnrollServer.
func (j joinOnly) Join(ctx context.Context, req *nodepb.JoinRequest) (*nodepb.JoinResponse, error) {
	return j.enroll.Join(ctx, req)
}

// Renew implements nodepb.EnrollServer.
func (j joinOnly) Renew(context.Context, *nodepb.RenewRequest) (*nodepb.JoinResponse, error) {
	return nil, status.Error(codes.Unimplemented, "certificates are renewed on the controllers' Port, by the daemon that has one")
}
