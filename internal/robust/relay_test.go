package robust

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// mode is what a link does with what goes over it.
type mode int

const (
	passing   mode = iota
	blackHole      // takes connections and bytes, passes nothing on
	cut            // refuses connections and ends those that are there
	halfOpen       // passes what the one who connected says, swallows the answers
)

func (m mode) String() string { return [...]string{"passing", "black hole", "cut", "half open"}[m] }

// link is one direction of dialing, from one process to one port of another: a relay of ours stands in
// between. Everything about it may change while connections go over it.
type link struct {
	from, to string
	listen   string // host:port
	target   string

	mu      sync.Mutex
	changed chan struct{} // closed and made anew at each change
	mode    mode
	delay   time.Duration // one way
	jitter  time.Duration
	ln      net.Listener
	conns   map[net.Conn]bool
	over    bool
}

func newLink(from, to, listen, target string) (*link, error) {
	l := &link{from: from, to: to, listen: listen, target: target, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	return l, l.open()
}

// open listens. The caller holds mu, or the link is new.
func (l *link) open() error {
	ln, err := net.Listen("tcp", l.listen)
	if err != nil {
		return fmt.Errorf("relay %s to %s: %w", l.from, l.to, err)
	}
	l.ln = ln
	go l.accept(ln)
	return nil
}

func (l *link) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go l.carry(c)
	}
}

// set changes what the link does. Connections that were swallowed go on when it passes again, as after a
// short trouble of the network; a cut ends them.
func (l *link) set(m mode) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.mode == m {
		return nil
	}
	l.mode = m
	close(l.changed)
	l.changed = make(chan struct{})
	if m == cut {
		l.ln.Close()
		l.ln = nil
		for c := range l.conns {
			reset(c)
		}
		return nil
	}
	if l.ln == nil {
		return l.open()
	}
	return nil
}

// slow sets the delay of each chunk, one way.
func (l *link) slow(delay, jitter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay, l.jitter = delay, jitter
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.over = true
	close(l.changed)
	if l.ln != nil {
		l.ln.Close()
	}
	for c := range l.conns {
		c.Close()
	}
}

// reset ends a connection with RST.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}

func (l *link) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.mode == cut {
		reset(c)
		return false
	}
	l.conns[c] = true
	return true
}

func (l *link) drop(c net.Conn) {
	c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// gate waits until the link passes in this direction; false: the link is cut or over.
func (l *link) gate(back bool) bool {
	for {
		l.mu.Lock()
		m, over, changed := l.mode, l.over, l.changed
		l.mu.Unlock()
		switch {
		case over || m == cut:
			return false
		case m == passing, m == halfOpen && !back:
			return true
		}
		<-changed
	}
}

func (l *link) pause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jitter <= 0 {
		return l.delay
	}
	return l.delay + rand.N(l.jitter)
}

// carry is one connection.
func (l *link) carry(in net.Conn) {
	if !l.add(in) {
		return
	}
	defer l.drop(in)
	if !l.gate(false) {
		return
	}
	out, err := net.DialTimeout("tcp", l.target, 5*time.Second)
	if err != nil {
		reset(in)
		return
	}
	if !l.add(out) {
		return
	}
	defer l.drop(out)
	done := make(chan struct{}, 2)
	go func() { l.pump(out, in, false); done <- struct{}{} }()
	go func() { l.pump(in, out, true); done <- struct{}{} }()
	<-done
	// One side is gone; what is under way to the other gets a moment, as in a network.
	time.Sleep(l.pause() + 20*time.Millisecond)
}

// chunk is some bytes and when they are due.
type chunk struct {
	data []byte
	due  time.Time
}

// pump carries one direction.
func (l *link) pump(to io.Writer, from io.Reader, back bool) {
	queue := make(chan chunk, 256)
	quit := make(chan struct{})
	defer close(quit)
	go func() {
		defer close(queue)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				select {
				case queue <- chunk{buf[:n], time.Now().Add(l.pause())}:
				case <-quit:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range queue {
		time.Sleep(time.Until(c.due))
		if !l.gate(back) {
			return
		}
		if _, err := to.Write(c.data); err != nil {
			return
		}
	}
}

// TestRelay: what each mode does to a connection that is there and to one that comes.
func TestRelay(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	l, err := newLink("a", "b", free.Addr().String(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.listen)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	echo := func(c net.Conn, most time.Duration) error {
		c.SetDeadline(time.Now().Add(most))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
	c := dial()
	defer c.Close()
	if err := echo(c, time.Second); err != nil {
		t.Fatal("passing:", err)
	}
	l.slow(30*time.Millisecond, 0)
	at := time.Now()
	if err := echo(c, time.Second); err != nil || time.Since(at) < 60*time.Millisecond {
		t.Errorf("delayed: %v after %v", err, time.Since(at))
	}
	l.slow(0, 0)
	for _, m := range []mode{blackHole, halfOpen} {
		l.set(m)
		if err := echo(c, 100*time.Millisecond); err == nil {
			t.Errorf("%v: an answer came", m)
		}
		late := dial()
		if err := echo(late, 100*time.Millisecond); err == nil {
			t.Errorf("%v: a new connection got an answer", m)
		}
		late.Close()
		l.set(passing)
		c.SetDeadline(time.Now().Add(time.Second))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Errorf("%v: what was swallowed does not come after it: %v", m, err)
		}
	}
	l.set(cut)
	if err := echo(c, time.Second); err == nil {
		t.Error("cut: the connection lives on")
	}
	if late, err := net.Dial("tcp", l.listen); err == nil {
		late.Close()
		t.Error("cut: a new connection is taken")
	}
	l.set(passing)
	c2 := dial()
	defer c2.Close()
	if err := echo(c2, time.Second); err != nil {
		t.Error("healed:", err)
	}
}
