package shepherd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"
)

// MaxLine bounds one line between shepherd and agent in bytes.
const MaxLine = 64 << 10

// dialEvery is the pause between two tries to reach an agent that is gone; sendWithin bounds one
// write to it.
const (
	dialEvery  = time.Second
	sendWithin = 2 * time.Second
)

// link is the connection to the agent. It comes and goes; the step does not depend on it.
type link struct {
	path  string
	hello Up
	downs chan Down

	mu   sync.Mutex
	conn *os.File
	over bool // no new connection is made
}

func newLink(path string, h Hello) *link {
	return &link{path: path, hello: Up{Hello: &h}, downs: make(chan Down)}
}

// run keeps the link until ctx ends, and passes on what the agent says.
func (l *link) run(ctx context.Context) {
	for ctx.Err() == nil {
		if conn, err := l.dial(); err == nil {
			l.read(ctx, conn)
		}
		select {
		case <-ctx.Done():
		case <-time.After(dialEvery):
		}
	}
}

// dial connects and says hello; a connection that is there is kept.
func (l *link) dial() (*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		return l.conn, nil
	}
	if l.over {
		return nil, os.ErrClosed
	}
	conn, err := dialUnix(l.path, sendWithin, false)
	if err != nil {
		return nil, err
	}
	if err := writeLine(conn, l.hello); err != nil {
		hangUp(conn)
		return nil, err
	}
	l.conn = conn
	return conn, nil
}

// hangUp ends the link. What was told arrives.
func (l *link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.conn != nil {
		hangUp(l.conn)
		l.conn = nil
	}
}

// drop forgets a connection that has failed.
func (l *link) drop(conn *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hangUp(conn)
	if l.conn == conn {
		l.conn = nil
	}
}

func (l *link) read(ctx context.Context, conn *os.File) {
	defer l.drop(conn)
	scan := bufio.NewScanner(conn)
	scan.Buffer(nil, MaxLine)
	for scan.Scan() {
		d, err := ParseDown(scan.Bytes())
		if err != nil {
			return // not the agent that we know: begin again
		}
		select {
		case l.downs <- d:
		case <-ctx.Done():
			return
		}
	}
}

// ParseDown reads one line of the agent's. Exactly one field must be set.
func ParseDown(line []byte) (Down, error) {
	var d Down
	if err := json.Unmarshal(line, &d); err != nil {
		return Down{}, err
	}
	set := 0
	for _, is := range []bool{d.Limit != nil, d.Terminate != nil, d.Suspend != nil, d.Renew != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return Down{}, errors.New("line must hold exactly one order")
	}
	return d, nil
}

// tell sends a line over the link, or over a new one when there is none or it has just broken.
func (l *link) tell(up Up) error {
	var last error
	for range 2 {
		conn, err := l.dial()
		if err != nil {
			return errors.Join(last, err)
		}
		if last = writeLine(conn, up); last == nil {
			return nil
		}
		l.drop(conn)
	}
	return last
}

func writeLine(conn *os.File, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(data, '\n'))
	return err
}
