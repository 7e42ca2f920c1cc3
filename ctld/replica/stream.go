package replica

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// stream is raft's view of the network: connections made and taken by what the configuration
// hands in. It knows all open ones, because raft's transport leaves those it has accepted open
// when it is closed, and a call to a silent peer would hold up the shutdown.
//
// While its gate is closed it hangs up on everyone who connects: this replica takes no part yet.
type stream struct {
	listener net.Listener
	accepted chan acceptance
	opened   chan struct{} // the gate
	knocked  chan struct{} // signalled when somebody connects before
	pumped   chan struct{} // closed when nothing is accepted any more
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
	s := &stream{
		listener: ln, addr: advertised(addr), dial: dial,
		accepted: make(chan acceptance), opened: make(chan struct{}), knocked: make(chan struct{}, 1),
		pumped: make(chan struct{}),
		ctx:    ctx, cancel: cancel, conns: map[*streamConn]struct{}{},
	}
	go s.pump()
	return s
}

// acceptance is what the listener gave.
type acceptance struct {
	conn net.Conn
	err  error
}

// open lets connections in, once.
func (s *stream) open() { close(s.opened) }

// pump takes connections until the listener is closed. An error that passes goes to raft's transport, which
// pauses before it asks again.
func (s *stream) pump() {
	defer close(s.pumped)
	for {
		conn, err := s.listener.Accept()
		if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
		select {
		case <-s.opened:
		default:
			if err == nil {
				_ = conn.Close()
				select {
				case s.knocked <- struct{}{}:
				default:
				}
			} else {
				pause(s.ctx, acceptPause)
			}
			continue
		}
		select {
		case s.accepted <- acceptance{conn, err}:
		case <-s.ctx.Done():
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
	}
}

// acceptPause is how long a listener that fails is left alone while the gate is closed.
const acceptPause = 100 * time.Millisecond

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
	select {
	case a := <-s.accepted:
		if a.err != nil {
			return nil, a.err
		}
		return s.keep(a.conn)
	case <-s.pumped:
		return nil, net.ErrClosed
	case <-s.ctx.Done():
		return nil, net.ErrClosed
	}
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
