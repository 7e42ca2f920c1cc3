// Package login is gnoded --login: on a login host it vouches to the controllers for the uid that the kernel gives
// of whoever asks on its local socket, with a token of a few minutes for one class of methods. It has no rights on
// the host and keeps nothing.
package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/steppb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Bounds of the socket. A user who holds all of his connections keeps nobody else out.
const (
	MaxConns     = 256
	MaxUserConns = 16
	maxRequest   = 4 << 10 // bytes
	maxStreams   = 4       // calls at once on a connection
	maxIdle      = 30 * time.Second
	maxAge       = 5 * time.Minute
	handshake    = 5 * time.Second
	tellEvery    = 10 * time.Second // between lines in the log about refused connections
)

// Server mints tokens. All fields are needed.
type Server struct {
	steppb.UnimplementedLoginServer
	Identity *authn.Identity // certificate of role login
	Users    func(uid uint32) (name string, err error)
	Now      func() time.Time // wall clock: tokens are held against it
	Rand     io.Reader
	Log      *slog.Logger
}

// Mint gives a token for whoever is at the other end of the socket.
func (s *Server) Mint(ctx context.Context, req *steppb.MintRequest) (*steppb.MintResponse, error) {
	who, ok := callerOf(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "the connection does not say who is calling")
	}
	if who.UID == 0 {
		return nil, status.Error(codes.PermissionDenied, "root gets no token: root of a login host is not root of the cluster; "+
			"call as yourself, or on a controller's own host")
	}
	if own := s.Identity.Cluster(); req.Cluster != own {
		return nil, status.Errorf(codes.FailedPrecondition, "this login host is of cluster %s, the command of cluster %.64q; which grid.conf does it read?", own, req.Cluster)
	}
	class := authn.Class(req.Class)
	switch class {
	case authn.ClassRead, authn.ClassJobs, authn.ClassAdmin:
	default:
		return nil, status.Errorf(codes.InvalidArgument, "class %.64q: read, jobs or admin was expected", req.Class)
	}
	user, err := s.Users(who.UID)
	if err != nil {
		return nil, status.Errorf(codes.PermissionDenied, "uid %d has no name on this host: %v", who.UID, err)
	}
	token, until, err := authn.MintToken(s.Identity, who.UID, who.GID, user, class, req.Cluster, s.Now(), s.Rand)
	if err != nil {
		s.Log.Error("minting a token", "uid", who.UID, "err", err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	s.Log.Debug("token", "uid", who.UID, "class", class, "until", until)
	return &steppb.MintResponse{Token: token, ExpiresMs: until.UnixMilli()}, nil
}

func callerOf(ctx context.Context) (authn.PeerInfo, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return authn.PeerInfo{}, false
	}
	info, ok := p.AuthInfo.(authn.PeerInfo)
	return info, ok
}

// Serve answers on l until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(grpc.Creds(authn.PeerCred()), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshake), grpc.MaxHeaderListSize(maxRequest),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, MaxConnectionAge: maxAge, MaxConnectionAgeGrace: handshake}))
	steppb.RegisterLoginServer(g, s)
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	err := g.Serve(&bounded{Listener: l, log: s.Log, users: map[uint32]int{}})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// bounded closes connections over the bounds at once.
type bounded struct {
	net.Listener
	log *slog.Logger

	mu    sync.Mutex
	all   int
	users map[uint32]int

	// Of the accepting goroutine.
	told    time.Time
	refused int // since then
}

// Accept gives the next connection that is within the bounds.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who, err := authn.PeerOf(c)
		if err == nil {
			err = b.enter(who.UID)
		}
		if err != nil {
			b.tell(err)
			c.Close()
			continue
		}
		return &counted{UnixConn: c.(*net.UnixConn), leave: sync.OnceFunc(func() { b.leave(who.UID) })}, nil
	}
}

// tell logs that a connection was refused. Whoever is refused may try as often as he likes: that fills no log.
func (b *bounded) tell(err error) {
	b.refused++
	if now := time.Now(); b.told.IsZero() || now.Sub(b.told) >= tellEvery {
		b.log.Warn("connections are refused", "count", b.refused, "last", err)
		b.told, b.refused = now, 0
	}
}

var errBusy = errors.New("too many connections")

func (b *bounded) enter(uid uint32) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.users[uid] >= MaxUserConns:
		return fmt.Errorf("%w of uid %d, the limit is %d", errBusy, uid, MaxUserConns)
	case b.all >= MaxConns:
		return fmt.Errorf("%w, the limit is %d", errBusy, MaxConns)
	}
	b.users[uid]++
	b.all++
	return nil
}

func (b *bounded) leave(uid uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.users[uid]--; b.users[uid] <= 0 {
		delete(b.users, uid)
	}
}

// counted gives its place back when it is closed.
type counted struct {
	*net.UnixConn
	leave func()
}

func (c *counted) Close() error {
	c.leave()
	return c.UnixConn.Close()
}
