// Package daemon makes a controller out of its parts: configuration, identity, replica, server,
// leader's loops and listeners; runs them, and takes them down in order.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/leader"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/server"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/fault"
)

// How long the parts of a shutdown may take.
const (
	transferTimeout = 3 * time.Second
	drainTimeout    = 5 * time.Second
)

// maxStreams bounds the calls of one connection.
const maxStreams = 4096

// vanished is when an agent or controller that says nothing is asked whether it is there, and how
// long it may take to answer: a node that lost its power or cable closes no connection.
var vanished = keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 20 * time.Second}

// Options is what a controller is started with.
type Options struct {
	Config  *conf.Config
	Name    string // which of Config.Controllers
	Version string
	Logger  *slog.Logger
	// Join: with an empty folder it waits until a leader takes it in. Bootstrap: with an empty folder it
	// starts a cluster without asking the others whether there is one.
	Join, Bootstrap bool
	// Ready is called once the listeners take calls; it may be nil.
	Ready func()
}

// controller is one running controller.
type controller struct {
	Options
	self   *conf.Controller
	id     *authn.Identity
	auth   *authn.Authenticator
	peers  *peers
	store  *state.Store
	rep    *replica.Replica
	status *replica.PeerService
	audit  *server.AuditLog
	lead   *leader.Leader
	server *server.Server
	local  *grpc.Server // users, by peer credentials
	remote *grpc.Server // agents and controllers, by certificate
	users  *grpc.Server // commands on other hosts, by token or wallet; nil when their port is closed
	gate   *gate
	locker io.Closer
}

// Run is a controller from start to end. It comes back when ctx ends (nil), or when the replica can
// go on no longer.
func Run(ctx context.Context, o Options) error {
	c, err := open(ctx, o)
	if errors.Is(err, replica.ErrRemoved) {
		o.Logger.Info("this controller does not run", "name", o.Name, "why", err)
		return nil
	}
	if err != nil {
		return err
	}
	return c.run(ctx)
}

// open makes the objects; nothing is served yet.
func open(ctx context.Context, o Options) (_ *controller, err error) {
	c := &controller{Options: o, self: o.Config.Controller(o.Name), store: state.New()}
	if c.self == nil {
		return nil, fmt.Errorf("%s has no ControllerName=%s", o.Config.Source, o.Name)
	}
	dir := expand(c.self.StateDir, o.Name)
	if c.locker, err = openStateDir(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.locker.Close()
		}
	}()
	if c.id, err = authn.OpenIdentity(o.Config.TLSDir, o.Name, fault.Now); err != nil {
		return nil, err
	}
	if c.id.Role() != authn.RoleCtld || c.id.Name() != o.Name || c.id.Cluster() != o.Config.ClusterName {
		return nil, fmt.Errorf("certificate in %s is of %s %q in cluster %q, want ctld %q in %q",
			o.Config.TLSDir, c.id.Role(), c.id.Name(), c.id.Cluster(), o.Name, o.Config.ClusterName)
	}
	c.peers = newPeers(o.Config, c.id, func() state.Viewer { return c.store.View() })
	if err = c.openReplica(ctx, dir); err != nil {
		c.peers.close()
		return nil, err
	}
	log := expand(o.Config.AuditLog, o.Name)
	if log == "" {
		log = filepath.Join(dir, "audit.log")
	}
	c.audit = server.OpenAuditLog(log, o.Logger)
	c.openServers()
	return c, nil
}

// votersOf are the controllers of a file as raft knows them.
func votersOf(cfg *conf.Config) []replica.Voter {
	var out []replica.Voter
	for _, k := range cfg.Controllers {
		out = append(out, replica.Voter{Name: k.Name, Addr: hostPort(k.Address, k.RaftPort)})
	}
	return out
}

func expand(path, name string) string { return strings.ReplaceAll(path, "%c", name) }

// listenAddr listens on the configured address when it is one of this host's loopback, else on all:
// the address that others use may be that of a gateway.
func listenAddr(host string, port uint32) string {
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		if !strings.EqualFold(host, "localhost") {
			host = ""
		}
	}
	return net.JoinHostPort(host, fmt.Sprint(port))
}

func (c *controller) openReplica(ctx context.Context, dir string) error {
	ln, err := net.Listen("tcp", listenAddr(c.self.Address, c.self.RaftPort))
	if err != nil {
		return fmt.Errorf("raft port: %w", err)
	}
	level := slog.LevelWarn
	if c.Config.LogLevel == "debug" {
		level = slog.LevelInfo
	}
	c.rep, err = replica.Open(ctx, replica.Config{
		Name: c.Name, Voters: votersOf(c.Config), Address: c.peers.raftAddress, Dir: dir,
		Join: c.Join, Bootstrap: c.Bootstrap, Cluster: c.Config.ClusterName,
		Listener: newTLSListener(ln, c.id.Server(authn.RoleCtld)),
		Dial:     tlsDialer(c.id.Client(authn.RoleCtld)),
		Peers:    c.peers.Peer,
		Now:      fault.Now, Logger: c.Logger, RaftLevel: level,
		HeartbeatTimeout: c.Config.HeartbeatTimeout, SnapshotBytes: c.Config.SnapshotBytes, Reserve: c.Config.StateReserve,
	}, fsm.New(c.store))
	if err != nil {
		ln.Close() // it may be closed already
		return err
	}
	return nil
}

// openServers wires leader, server and the gRPC servers.
func (c *controller) openServers() {
	c.status = replica.NewPeerService(c.rep, c.Version)
	inForce := func() *conf.Config { return c.server.Config() }
	c.lead = leader.New(leader.Deps{
		Log: c.rep, Name: c.Name, Logger: c.Logger, Signer: c.id.Signer, Address: c.peers.address,
		Config: inForce, Now: fault.Now, Fence: fence(inForce), Hashes: c.rep, Controllers: c.peers.controllers,
		Peers: features{rep: c.rep, status: c.status.Status, peers: c.peers, self: c.Name},
	})
	c.auth = authn.NewAuthenticator(authn.NewAccounts("/etc/passwd", "/etc/group", fault.Now), nil)
	c.server = server.New(server.Deps{
		Log: c.rep, Auth: c.auth, Config: c.Config, Load: loadConf, Encode: leader.SetConfig, Name: c.Name, Version: c.Version,
		Telemetry: telemetry{c.lead}, Output: output{c.lead}, Peers: c.peers, Now: fault.Now, Logger: c.Logger,
		Members: c.rep, Status: c.status.Status, Probe: c.peers.probe, Backup: c.rep, Issuer: newIssuer(c.Config, fault.Now), Audit: c.audit,
	})
	c.local = grpc.NewServer(grpc.Creds(authn.PeerCred()), grpc.InTapHandle(newGate(localBounds()).enter),
		grpc.MaxRecvMsgSize(server.MaxMessage), grpc.MaxHeaderListSize(remoteHeaders), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ChainUnaryInterceptor(arrivedUnary, c.auth.Unary(), c.server.Forwarding()),
		grpc.ChainStreamInterceptor(arrivedStream, c.auth.Stream(), c.server.AuditStream()))
	ctldpb.RegisterControllerServer(c.local, c.server)
	c.remote = grpc.NewServer(grpc.Creds(byCertificate(c.id.Server(authn.RoleCtld, authn.RoleNode, authn.RoleLogin))),
		grpc.ConnectionTimeout(handshakeTimeout), grpc.MaxHeaderListSize(remoteHeaders),
		grpc.MaxRecvMsgSize(server.MaxMessage*2), grpc.MaxConcurrentStreams(maxStreams), grpc.KeepaliveParams(vanished),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(c.auth.Unary()), grpc.ChainStreamInterceptor(c.auth.Stream()))
	nodepb.RegisterNodeServer(c.remote, c.lead)
	nodepb.RegisterEnrollServer(c.remote, c.server.Enroll())
	peerpb.RegisterPeerServer(c.remote, peerService{c.status, c.server, c.peers.address})
	if c.self.UserPort != 0 {
		c.gate = newGate(remoteBounds())
		c.users = userServer(c.id, c.auth, authn.NewVerifier(c.id, fault.Now), c.server, c.gate)
	}
}

// peerService is what controllers ask of each other: the replica's half and the server's.
type peerService struct {
	*replica.PeerService
	server  *server.Server
	address func(controller string) string
}

// Status implements peerpb.PeerServer. One that is to join may not know where the leader is: its file need not
// name those that joined at run time.
func (p peerService) Status(ctx context.Context, req *peerpb.StatusRequest) (*peerpb.StatusResponse, error) {
	resp, err := p.PeerService.Status(ctx, req)
	if err == nil && resp.Leader != "" {
		resp.LeaderAddress = p.address(resp.Leader)
	}
	return resp, err
}

// Forward implements peerpb.PeerServer.
func (p peerService) Forward(ctx context.Context, req *peerpb.ForwardRequest) (*peerpb.ForwardResponse, error) {
	return p.server.Forward(ctx, req)
}

// Rejoin implements peerpb.PeerServer.
func (p peerService) Rejoin(ctx context.Context, req *peerpb.RejoinRequest) (*peerpb.RejoinResponse, error) {
	return p.server.Rejoin(ctx, req, p.PeerService.Rejoin)
}

// telemetry gives the server what the leader hears of nodes.
type telemetry struct{ lead *leader.Leader }

// NodeLoad implements server.Telemetry.
func (t telemetry) NodeLoad(node string) (load float64, freeMem, lastSeen int64, ok bool) {
	info, ok := t.lead.NodeInfo(node)
	if !ok || info.LastSeen.IsZero() {
		return 0, 0, 0, false
	}
	return info.Load, info.FreeMem, info.LastSeen.UnixMilli(), true
}

// output gives the server the leader's sessions.
type output struct{ lead *leader.Leader }

// ReadOutput implements server.OutputReader.
func (o output) ReadOutput(ctx context.Context, node string, jobID, run uint32, stderr bool, offset, max int64) ([]byte, bool, bool, error) {
	chunk, err := o.lead.ReadOutput(ctx, node, jobID, run, stderr, offset, max)
	return chunk.Data, chunk.EOF, chunk.Running, err
}

// listeners are where a controller takes calls.
type listeners struct{ socket, tcp, users net.Listener }

func (l listeners) close() error {
	var errs []error
	for _, one := range []net.Listener{l.socket, l.tcp, l.users} {
		if one != nil {
			errs = append(errs, one.Close())
		}
	}
	return errors.Join(errs...)
}

// listen opens the socket and the ports; users is nil when their port is closed.
func (c *controller) listen() (l listeners, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.socket, err = listenUnix(expand(c.self.Socket, c.Name)); err != nil {
		return l, err
	}
	if l.tcp, err = net.Listen("tcp", listenAddr(c.self.Address, c.self.Port)); err != nil {
		return l, fmt.Errorf("port for agents and controllers: %w", err)
	}
	if c.users == nil {
		return l, nil
	}
	raw, err := net.Listen("tcp", listenAddr(c.self.Address, c.self.UserPort))
	if err != nil {
		return l, fmt.Errorf("port for users: %w", err)
	}
	l.users = gateListener{raw, c.gate}
	return l, nil
}

// run serves until ctx ends or a part fails for good.
func (c *controller) run(ctx context.Context) error {
	at, err := c.listen()
	if err != nil {
		return errors.Join(err, c.close())
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var loops sync.WaitGroup
	loops.Go(func() { c.lead.Run(work) })
	loops.Go(func() { c.server.Follow(work) })
	loops.Go(func() { c.id.WatchExpiry(work, func(text string) { c.Logger.Warn("certificate", "problem", text) }) })
	loops.Go(func() { c.renewal().run(work) })
	failed := make(chan error, 3)
	serve := func(s *grpc.Server, l net.Listener) {
		loops.Go(func() {
			if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				failed <- err
			}
		})
	}
	serve(c.remote, strangerListener(at.tcp))
	serve(c.local, newUserListener(at.socket, userConns()))
	if c.users != nil {
		serve(c.users, at.users)
	}
	c.Logger.Info("controller serves", "name", c.Name, "socket", at.socket.Addr().String(), "address", at.tcp.Addr().String(),
		"user_port", c.self.UserPort, "version", c.Version)
	if c.Ready != nil {
		c.Ready()
	}
	if _, err := newIssuer(c.Config, fault.Now).CA(); err != nil && c.Config.IssuerKey != "" {
		c.Logger.Error("this controller gives no certificates, and does not renew its own", "err", err)
	}
	cause := c.wait(ctx, failed)
	stop()
	err = c.close()
	loops.Wait()
	return errors.Join(cause, err)
}

// wait comes back with the reason of the end, when calls under way have been seen to; nil for a clean one.
func (c *controller) wait(ctx context.Context, failed <-chan error) (cause error) {
	select {
	case <-ctx.Done():
	case cause = <-failed:
	case cause = <-c.rep.Fatal():
		if errors.Is(cause, replica.ErrRemoved) {
			c.Logger.Info("this controller was removed from the cluster", "name", c.Name)
			return nil
		}
		// There is nothing to hand over and nobody to wait for: the others have noticed, or will when this
		// process is gone.
		c.Logger.Error("controller stops: its replica cannot go on", "name", c.Name, "err", cause)
		return cause
	}
	c.Logger.Info("controller stops", "name", c.Name)
	c.drain()
	return cause
}

func (c *controller) renewal() renewal {
	return renewal{issuer: newIssuer(c.Config, fault.Now), id: c.id, dir: c.Config.TLSDir, log: c.Logger, now: fault.Now, every: renewLook,
		life: func() time.Duration { return c.server.Config().CertLife }}
}

// drain hands leadership over while calls under way are still answered, then takes no more calls.
func (c *controller) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), transferTimeout)
	defer cancel()
	if err := c.rep.Transfer(ctx); err != nil {
		c.Logger.Warn("leadership was not handed over", "err", err)
	}
	var users sync.WaitGroup
	for _, s := range []*grpc.Server{c.local, c.users} {
		if s != nil {
			users.Go(func() { stopServer(s) })
		}
	}
	users.Wait()
	// Agents' sessions are streams without an end: they are cut, the agents go to the new leader.
	c.remote.Stop()
}

// stopServer lets calls under way finish, but not for ever: clients may follow output or wait for jobs.
func stopServer(s *grpc.Server) {
	done := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(done)
	}()
	t := time.NewTimer(drainTimeout)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.Stop()
		<-done
	}
}

func (c *controller) close() error {
	c.local.Stop()
	c.remote.Stop()
	if c.users != nil {
		c.users.Stop()
	}
	err := c.rep.Close()
	c.peers.close()
	return errors.Join(err, c.audit.Close(), c.locker.Close())
}

// logLevel is the level of a LogLevel.
func logLevel(name string) slog.Level {
	switch strings.ToLower(name) {
	case "quiet", "fatal", "error":
		return slog.LevelError
	case "debug", "debug2", "debug3", "debug4", "debug5":
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// newLogger logs to w at the level of the configuration.
func newLogger(w *os.File, level string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: logLevel(level)}))
}
