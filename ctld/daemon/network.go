package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	handshakeTimeout = 5 * time.Second
	maxHandshakes    = 64 // under way at a time; more connections wait in the kernel
	maxHandshakesOf  = 16 // of these from one address; more are closed: one stranger must not keep the others out
	maxStrangers     = 2048
	maxStrangersOf   = 256 // of one address, on the port for agents and controllers
	maxSocketPath    = 107
	firstAcceptWait  = 5 * time.Millisecond // after a connection that could not be accepted
	lastAcceptWait   = time.Second
)

// tlsListener gives out connections only after the other side has proved who it is, so that a
// stranger on the raft port holds nothing but its own handshake.
type tlsListener struct {
	net.Listener
	cfg   *tls.Config
	ready chan net.Conn
	slots chan struct{}
	from  *tally // addresses of those in slots
	done  chan struct{}
	once  sync.Once
	err   error
	ended chan struct{}
}

func newTLSListener(l net.Listener, cfg *tls.Config) net.Listener {
	t := &tlsListener{
		Listener: l, cfg: cfg, ready: make(chan net.Conn), slots: make(chan struct{}, maxHandshakes),
		from: newTally(maxHandshakes, maxHandshakesOf), done: make(chan struct{}), ended: make(chan struct{}),
	}
	go t.accept()
	return t
}

func (t *tlsListener) accept() {
	defer close(t.ended)
	var wait time.Duration
	for {
		select {
		case t.slots <- struct{}{}:
		case <-t.done:
			t.err = net.ErrClosed
			return
		}
		c, err := t.Listener.Accept()
		switch {
		case err == nil:
			wait = 0
			release := t.from.take(originOf(c.RemoteAddr()))
			if release == nil {
				c.Close()
				<-t.slots
				continue
			}
			go t.handshake(c, release)
		case errors.Is(err, net.ErrClosed):
			t.err = err
			return
		default: // out of files, or the other side was gone already: this passes
			<-t.slots
			wait = min(max(2*wait, firstAcceptWait), lastAcceptWait)
			select {
			case <-time.After(wait):
			case <-t.done:
			}
		}
	}
}

func (t *tlsListener) handshake(raw net.Conn, release func()) {
	defer func() { release(); <-t.slots }()
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	c := tls.Server(raw, t.cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return
	}
	known := endsWith(c, c.ConnectionState(), t.cfg.Time)
	select {
	case t.ready <- known:
	case <-t.done:
		known.Close()
	}
}

// endingConn is a connection that is closed when the certificate at its other end is over.
type endingConn struct {
	net.Conn
	end *time.Timer
}

// endsWith lets no connection outlive the certificate that opened it: whoever has renewed it connects anew,
// whoever has lost it does not. now is the clock that the certificate was held against; nil = time.Now.
func endsWith(c net.Conn, state tls.ConnectionState, now func() time.Time) net.Conn {
	if len(state.PeerCertificates) == 0 {
		return c
	}
	if now == nil {
		now = time.Now
	}
	left := state.PeerCertificates[0].NotAfter.Sub(now())
	return &endingConn{c, time.AfterFunc(left, func() { c.Close() })}
}

// Close implements net.Conn.
func (c *endingConn) Close() error {
	c.end.Stop()
	return c.Conn.Close()
}

// Accept gives the next authenticated connection.
func (t *tlsListener) Accept() (net.Conn, error) {
	select {
	case c := <-t.ready:
		return c, nil
	case <-t.done:
		return nil, net.ErrClosed
	case <-t.ended:
		return nil, t.err
	}
}

// Close ends Accept and refuses handshakes under way.
func (t *tlsListener) Close() error {
	t.once.Do(func() { close(t.done) })
	return t.Listener.Close()
}

// strangerListener bounds the connections that have not proved yet who they are: one that is over the bounds
// is closed at once. Whoever is known by known's handshake counts no more.
func strangerListener(l net.Listener) net.Listener {
	return gateListener{l, &gate{conns: newTally(fileShare(maxStrangers), maxStrangersOf)}}
}

// known tells a strangerListener who is none any more, and ends connections with their certificates.
type known struct {
	credentials.TransportCredentials
	now func() time.Time // nil = time.Now
}

// byCertificate are the credentials of the port for agents and controllers.
func byCertificate(cfg *tls.Config) credentials.TransportCredentials {
	return known{credentials.NewTLS(cfg), cfg.Time}
}

// ServerHandshake implements credentials.TransportCredentials.
func (k known) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := k.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, info, err
	}
	if c, ok := raw.(*gateConn); ok {
		c.release()
	}
	if t, ok := info.(credentials.TLSInfo); ok {
		conn = endsWith(conn, t.State, k.now)
	}
	return conn, info, nil
}

// Clone implements credentials.TransportCredentials.
func (k known) Clone() credentials.TransportCredentials {
	return known{k.TransportCredentials.Clone(), k.now}
}

// tlsDialer connects to another controller's raft port.
func tlsDialer(cfg *tls.Config) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: handshakeTimeout}, Config: cfg}
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		if t, ok := c.(*tls.Conn); ok {
			return endsWith(c, t.ConnectionState(), cfg.Time), nil
		}
		return c, nil
	}
}

// listenUnix makes the users' socket. Anybody may connect, so the folder must not let others put a
// socket of their own in its place.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s has %d bytes, the kernel's limit is %d", path, len(path), maxSocketPath)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("socket folder: %w", err)
	}
	if err := checkOwned(dir, 0o022); err != nil {
		return nil, fmt.Errorf("socket folder: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is there and is no socket", path)
		}
		// The state directory's lock is held: what listened here is dead.
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("old socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket for users: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// checkOwned refuses a folder that is not root's or ours, or whose mode has one of the bits of loose.
// The sticky bit makes group or world writing harmless for sockets.
func checkOwned(dir string, loose fs.FileMode) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, want root or uid %d", dir, st.Uid, os.Geteuid())
	}
	if bits := info.Mode().Perm() & loose; bits != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("%s has mode %04o: others could replace what is in it", dir, info.Mode().Perm())
	}
	return nil
}

// openStateDir makes the folder of log and snapshots (0700), refuses one that others can read, and
// locks it so that no second controller starts on it. The lock lives as long as the closer is open.
func openStateDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("state directory %s has mode %04o, want 0700: it holds users' scripts and environments", dir, info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("state directory %s belongs to uid %d, want uid %d", dir, st.Uid, os.Geteuid())
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("state directory %s is in use by another controller", dir), f.Close())
	}
	return f, nil
}
