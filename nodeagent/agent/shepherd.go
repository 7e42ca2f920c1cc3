package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

const (
	maxLine      = 128 << 10        // bytes of one line from a shepherd
	maxShepherds = 2 * MaxRuns      // connections, new ones beside those they replace
	helloTimeout = 10 * time.Second // for the first line
	writeTimeout = 10 * time.Second // for a line to a shepherd that does not read
)

// shepherdConn is one shepherd's connection. What it is to be told is kept in one slot a subject,
// the newest wins: a shepherd that does not read costs nothing more.
type shepherdConn struct {
	conn net.Conn
	wake chan struct{}
	gone chan struct{}
	once sync.Once

	writer sync.WaitGroup // runs once there is something to say: most steps end without a word from us

	mu    sync.Mutex
	busy  bool // writer has been started
	over  bool // none is started any more
	limit *int64
	still *bool
	term  *shepherd.Terminate
	renew *int64
}

func newShepherdConn(conn net.Conn) *shepherdConn {
	return &shepherdConn{conn: conn, wake: make(chan struct{}, 1), gone: make(chan struct{})}
}

func (c *shepherdConn) close() {
	c.once.Do(func() {
		close(c.gone)
		c.conn.Close()
	})
}

func (c *shepherdConn) post(set func()) {
	c.mu.Lock()
	set()
	if !c.busy && !c.over {
		c.busy = true
		c.writer.Go(c.write)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *shepherdConn) terminate(t *shepherd.Terminate) { c.post(func() { c.term = t }) }
func (c *shepherdConn) setLimit(ms int64)               { c.post(func() { c.limit = &ms }) }
func (c *shepherdConn) suspend(on bool)                 { c.post(func() { c.still = &on }) }
func (c *shepherdConn) renewLease(ms int64)             { c.post(func() { c.renew = &ms }) }

func (c *shepherdConn) take() []shepherd.Down {
	c.mu.Lock()
	defer c.mu.Unlock()
	var down []shepherd.Down
	if c.renew != nil {
		down = append(down, shepherd.Down{Renew: c.renew})
	}
	if c.limit != nil {
		down = append(down, shepherd.Down{Limit: c.limit})
	}
	if c.still != nil { // behind the limit, which counts from when the step goes on
		down = append(down, shepherd.Down{Suspend: c.still})
	}
	if c.term != nil {
		down = append(down, shepherd.Down{Terminate: c.term})
	}
	c.renew, c.limit, c.still, c.term = nil, nil, nil, nil
	return down
}

// finish closes the connection and waits for the writer.
func (c *shepherdConn) finish() {
	c.close()
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.writer.Wait()
}

// write sends what the slots hold until the connection is gone.
func (c *shepherdConn) write() {
	defer c.close()
	for {
		select {
		case <-c.gone:
			return
		case <-c.wake:
		}
		for _, d := range c.take() {
			line, err := json.Marshal(d)
			if err != nil {
				return
			}
			if err := c.conn.SetWriteDeadline(instant().Add(writeTimeout)); err != nil {
				return
			}
			if _, err := c.conn.Write(append(line, '\n')); err != nil {
				return
			}
		}
	}
}

// accept takes the shepherds' connections until the listener is closed.
func (a *Agent) accept(ctx context.Context) {
	back := newBackoff(a.d.Jitter)
	for {
		conn, err := a.d.Shepherds.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			a.log.Error("accepting a shepherd", "err", err) // out of descriptors, most likely
			if !back.wait(ctx) {
				return
			}
			continue
		}
		back.reset()
		c := newShepherdConn(conn)
		if !a.keep(c) {
			c.close()
			a.refusals.warn(a.log, instant(), "too many shepherds", fmt.Errorf("limit %d", maxShepherds))
			continue
		}
		a.goFunc(func() {
			defer a.forgetConn(c)
			if err := a.serve(ctx, c); err != nil {
				a.refusals.warn(a.log, instant(), "shepherd connection refused", err)
			}
		})
	}
}

// rareLog lets one line through in refusalEvery: strangers must not fill the log.
type rareLog struct {
	mu   sync.Mutex
	next time.Time
	kept int // lines that were left out
}

const refusalEvery = 10 * time.Second

func (r *rareLog) warn(log *slog.Logger, now time.Time, text string, err error) {
	r.mu.Lock()
	kept, rare := r.kept, now.Before(r.next)
	if rare {
		r.kept++
	} else {
		r.kept, r.next = 0, now.Add(refusalEvery)
	}
	r.mu.Unlock()
	if !rare {
		log.Warn(text, "err", err, "left_out", kept)
	}
}

func (a *Agent) keep(c *shepherdConn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.conns) >= maxShepherds || a.stopped {
		return false
	}
	a.conns[c] = true
	return true
}

func (a *Agent) forgetConn(c *shepherdConn) {
	c.close()
	a.mu.Lock()
	delete(a.conns, c)
	a.mu.Unlock()
}

func (a *Agent) closeShepherds() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	for c := range a.conns {
		c.close()
	}
}

// serve speaks with one shepherd until it goes. An error says why it was sent away.
func (a *Agent) serve(ctx context.Context, c *shepherdConn) error {
	uid, err := a.d.PeerUID(c.conn)
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	if !slices.Contains(a.cfg.StepUIDs, uid) {
		return fmt.Errorf("uid %d is none that shepherds run under", uid)
	}
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(nil, maxLine)
	if err := c.conn.SetReadDeadline(instant().Add(helloTimeout)); err != nil {
		return err
	}
	up, err := readUp(lines)
	if err != nil || up == nil || up.Hello == nil {
		return fmt.Errorf("no hello: %w", errors.Join(err, errNoHello))
	}
	if err := c.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	r, err := a.adopt(ctx, up.Hello, c)
	if err != nil {
		return err
	}
	defer func() { c.finish(); a.detach(ctx, r, c) }()
	for {
		up, err := readUp(lines)
		if up == nil || err != nil {
			return err
		}
		if up.Ended != nil {
			a.onEnded(ctx, r, up.Ended)
		}
	}
}

var errNoHello = errors.New("the first line has to be a hello")

// readUp reads one line; nil without an error is the end.
func readUp(lines *bufio.Scanner) (*shepherd.Up, error) {
	if !lines.Scan() {
		err := lines.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, fmt.Errorf("line is over the limit of %d bytes", maxLine)
		}
		return nil, nil // a shepherd that dies tears its connection: that is no error here
	}
	return decodeUp(lines.Bytes())
}

func decodeUp(line []byte) (*shepherd.Up, error) {
	up := &shepherd.Up{}
	if err := json.Unmarshal(line, up); err != nil {
		return nil, fmt.Errorf("line: %w", err)
	}
	return up, nil
}

// adopt joins a shepherd with its run. A run that is not on the table is taken when it has a folder:
// it was started while an earlier agent was going away.
func (a *Agent) adopt(ctx context.Context, h *shepherd.Hello, c *shepherdConn) (*run, error) {
	a.mu.Lock()
	r := a.runs[h.Key]
	a.mu.Unlock()
	if r == nil {
		there, err := a.spool.exists(h.Key)
		if err != nil || !there {
			return nil, fmt.Errorf("step %s has no folder here (%v)", h.Key, err)
		}
		if r, err = a.enter(h.Key); err != nil {
			return nil, err
		}
	}
	a.began(ctx, r, h.Start, c)
	return r, nil
}

// enter puts a run that was found, not launched, on the table.
func (a *Agent) enter(k launch.Key) (*run, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.runs[k]; r != nil {
		return r, nil
	}
	if len(a.runs) >= MaxRuns {
		return nil, fmt.Errorf("node holds its limit of %d runs", MaxRuns)
	}
	r := &run{key: k, phase: live, alone: instant()}
	a.runs[k] = r
	return r, nil
}

// attachLocked makes c the run's connection and tells it what it has missed.
func (a *Agent) attachLocked(r *run, c *shepherdConn) {
	if r.conn != nil && r.conn != c {
		r.conn.close()
	}
	r.conn = c
	if a.renewed > 0 && !r.leaseOver {
		c.renewLease(a.renewed)
	}
	if r.limit != nil {
		c.setLimit(*r.limit)
	}
	if r.still != nil {
		c.suspend(*r.still)
	}
	if r.term != nil {
		c.terminate(r.term)
	}
}

// detach notes that the run's shepherd is away. It had its lock before it came to us, so that a free
// lock says at once that it is dead; when it went with its work done its record is there.
func (a *Agent) detach(ctx context.Context, r *run, c *shepherdConn) {
	a.mu.Lock()
	was := r.conn == c
	if was {
		r.conn = nil
		r.alone = instant()
	}
	alive := was && r.phase == live
	a.mu.Unlock()
	if alive && ctx.Err() == nil {
		a.look(ctx, r, true)
	}
}
