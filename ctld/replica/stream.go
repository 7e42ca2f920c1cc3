package replica

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// stream is raft's view of the network: connections made and taken by what the configuration
// hands in. It knows all open ones, because raft's transport leaves those it has accepted open
// when it is closed, and a call to a silent peer would hold up the shutdown.
type stream struct {
	listener net.Listener
	addr     advertised
	dial     func(ctx context.Context, addr string) (net.Conn, error)
	ctx      context.Context
	cancel   context.CancelFunc

	mu     sync.Mutex
	conns  map[*streamConn]struct{}
	closed bool
}

// advertised is the address that others reach this replica at; the listener's own may be 0.0.0.0.
type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

func newStream(ln net.Listener, addr string, dial func(context.Context, string) (net.Conn, error)) *stream {
	ctx, cancel := context.WithCancel(context.Background())
	return &stream{
		listener: ln, addr: advertised(addr), dial: dial,
		ctx: ctx, cancel: cancel, conns: map[*streamConn]struct{}{},
	}
}

// streamConn takes itself off the stream's list when it is closed.
type streamConn struct {
	net.Conn
	of *stream
}

func (c *streamConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (s *stream) keep(conn net.Conn) (net.Conn, error) {
	c := &streamConn{Conn: conn, of: s}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// Accept implements net.Listener.
func (s *stream) Accept() (net.Conn, error) {
	conn, err := s.listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.keep(conn)
}

// Addr implements net.Listener.
func (s *stream) Addr() net.Addr { return s.addr }

// Dial implements raft.StreamLayer.
func (s *stream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	conn, err := s.dial(ctx, string(addr))
	if err != nil {
		return nil, err
	}
	return s.keep(conn)
}

// Close closes the listener and every connection; a second call does nothing.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	open := make([]net.Conn, 0, len(s.conns))
	for c := range s.conns {
		open = append(open, c.Conn)
	}
	clear(s.conns)
	s.mu.Unlock()
	s.cancel()
	err := s.listener.Close()
	for _, c := range open {
		_ = c.Close()
	}
	return err
}
