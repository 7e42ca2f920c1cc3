package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// Errors of a call. errNotSent: the launcher has not seen the request, it may be made again freely.
// errNoAnswer: the launcher may have acted on it.
var (
	errNotSent  = errors.New("launcher is away")
	errNoAnswer = errors.New("launcher went away without an answer")
)

// launcherPatience is how long the launcher may be away, or leave a request unread, before the
// request is given up; nothing was done for it then.
const launcherPatience = 30 * time.Second

// launcher is a pipelining client of the launcher's socket. It connects when it is needed.
type launcher struct {
	dial     func(ctx context.Context) (net.Conn, error)
	patience time.Duration // how long a request may wait to be written

	mu     sync.Mutex
	cur    *link
	closed bool
	lastID uint64
}

func newLauncher(dial func(context.Context) (net.Conn, error)) *launcher {
	return &launcher{dial: dial, patience: launcherPatience}
}

// call sends req and waits for its reply. A reply with Err set is no error of call.
func (l *launcher) call(ctx context.Context, req *launch.Request) (*launch.Reply, error) {
	lk, id, err := l.link(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	req.ID = id
	frame, err := launch.AppendRequest(nil, req)
	if err != nil {
		return nil, err
	}
	return lk.roundTrip(ctx, id, frame, l.patience)
}

func (l *launcher) link(ctx context.Context) (*link, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, 0, net.ErrClosed
	}
	l.lastID++
	if l.cur != nil && !l.cur.broken() {
		return l.cur, l.lastID, nil
	}
	conn, err := l.dial(ctx)
	if err != nil {
		return nil, 0, err
	}
	l.cur = newLink(conn)
	return l.cur, l.lastID, nil
}

// plain tells whether the launcher has said that this node runs no epilog. It is asked on each
// connection: a launcher that was started anew may have another file.
func (l *launcher) plain() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cur != nil && !l.cur.broken() && l.cur.plain.Load()
}

func (l *launcher) close() {
	l.mu.Lock()
	l.closed = true
	cur := l.cur
	l.mu.Unlock()
	if cur != nil {
		cur.fail()
		cur.wg.Wait()
	}
}

// frame is one request on its way. Its state goes from waiting to either written or withdrawn, so
// that it is always known whether the launcher can have seen it.
type frame struct {
	body  []byte
	state atomic.Uint32
}

const (
	frameWaiting uint32 = iota
	frameWritten
	frameWithdrawn
)

// link is one connection.
type link struct {
	conn net.Conn
	send chan *frame
	gone chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	plain atomic.Bool // no epilog is run here

	mu      sync.Mutex
	pending map[uint64]chan *launch.Reply
}

func newLink(conn net.Conn) *link {
	l := &link{
		conn: conn, send: make(chan *frame, MaxCalls), gone: make(chan struct{}),
		pending: make(map[uint64]chan *launch.Reply),
	}
	l.wg.Go(l.write)
	l.wg.Go(l.read)
	return l
}

func (l *link) broken() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

func (l *link) fail() {
	l.once.Do(func() {
		close(l.gone)
		l.conn.Close()
	})
}

func (l *link) roundTrip(ctx context.Context, id uint64, body []byte, patience time.Duration) (*launch.Reply, error) {
	f := &frame{body: body}
	answer := make(chan *launch.Reply, 1)
	l.mu.Lock()
	l.pending[id] = answer
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.pending, id)
		l.mu.Unlock()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case l.send <- f:
	case <-l.gone:
		return nil, errNotSent
	case <-timer.C:
		return nil, fmt.Errorf("%w: it does not read", errNotSent)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errNotSent, ctx.Err())
	}
	for {
		var cause error
		select {
		case reply := <-answer:
			return reply, nil
		case <-timer.C:
			if f.state.CompareAndSwap(frameWaiting, frameWithdrawn) {
				return nil, fmt.Errorf("%w: it does not read", errNotSent)
			}
			continue // it is on its way: from now on only the answer tells
		case <-l.gone:
			cause = io.ErrUnexpectedEOF
		case <-ctx.Done():
			cause = ctx.Err()
		}
		// The reply may have come in the same instant.
		select {
		case reply := <-answer:
			return reply, nil
		default:
		}
		if f.state.CompareAndSwap(frameWaiting, frameWithdrawn) {
			return nil, fmt.Errorf("%w: %w", errNotSent, cause)
		}
		return nil, fmt.Errorf("%w: %w", errNoAnswer, cause)
	}
}

// write sends what waits and flushes when nothing more does.
func (l *link) write() {
	defer l.fail()
	w := bufio.NewWriterSize(l.conn, 64<<10)
	if launch.WriteRequest(w, &launch.Request{List: true}) != nil || w.Flush() != nil { // its ID is 0, see read
		return
	}
	for {
		select {
		case <-l.gone:
			return
		case f := <-l.send:
			if !f.state.CompareAndSwap(frameWaiting, frameWritten) {
				continue
			}
			w.Write(f.body) // a bufio.Writer keeps its first error until Flush
			if len(l.send) == 0 {
				runtime.Gosched() // who is about to send comes along
			}
			if len(l.send) == 0 && w.Flush() != nil {
				return
			}
		}
	}
}

func (l *link) read() {
	defer l.fail()
	r := bufio.NewReaderSize(l.conn, 64<<10)
	for {
		reply := &launch.Reply{}
		if launch.ReadFrame(r, reply) != nil {
			return
		}
		if reply.ID == 0 {
			l.plain.Store(reply.Err == "" && reply.NoEpilog)
			continue
		}
		l.mu.Lock()
		answer := l.pending[reply.ID]
		delete(l.pending, reply.ID)
		l.mu.Unlock()
		if answer != nil {
			answer <- reply
		}
	}
}
