package agent

import (
	"bufio"
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// refusedConn tells whether the agent closes the connection after what is said on it.
func refusedConn(h *host, words string) bool {
	conn, err := h.shepherds.Dial()
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	go conn.Write([]byte(words))
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
		}
	}()
	select {
	case <-closed:
		return true
	case <-time.After(2 * helloTimeout):
		return false
	}
}

func TestShepherdsRefused(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		k := batch(7)
		h.place(k)
		defer h.agent()()
		c.session()
		hello := `{"hello":{"key":{"job":7,"run":0,"step":4294967291},"pid":1,"start_ms":1}}` + "\n"
		for name, words := range map[string]string{
			"says nothing":      "",
			"no hello":          `{"ended":{}}` + "\n",
			"no json":           "hello\n",
			"a run that is not": strings.Replace(hello, `"job":7`, `"job":8`, 1),
			"line too long":     strings.Repeat("x", maxLine+1),
		} {
			if !refusedConn(h, words) {
				t.Errorf("%s: taken", name)
			}
		}
		if refusedConn(h, hello) {
			t.Error("a proper shepherd was refused")
		}
		h.mu.Lock()
		h.peer = 1000 // a job's user, who can connect to the socket
		h.mu.Unlock()
		if !refusedConn(h, hello) {
			t.Error("a stranger was taken for a shepherd")
		}
	})
}

// TestAdoptsStranger: a step that the launcher started after the agent's look at the spool is taken.
func TestAdoptsStranger(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		defer h.agent()()
		s := c.session()
		st := h.place(batch(7))
		go st.speak()
		time.Sleep(time.Second)
		st.end(shepherd.Record{ExitCode: 4})
		if r := s.report(); r.ExitCode != 4 {
			t.Errorf("report %v", r)
		}
	})
}

// TestSlotsHoldTheNewest: a shepherd that does not read costs one slot a subject.
func TestSlotsHoldTheNewest(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	c := newShepherdConn(ours)
	c.busy = true // nobody writes
	defer c.close()
	for n := range int64(10000) {
		c.renewLease(n)
		c.setLimit(n)
	}
	c.terminate(staleTerminate())
	down := c.take()
	if len(down) != 3 || *down[0].Renew != 9999 || *down[1].Limit != 9999 || !down[2].Terminate.Now {
		t.Errorf("slots %+v", down)
	}
	if len(c.take()) != 0 {
		t.Error("told twice")
	}
}

func TestConnectionLimit(t *testing.T) {
	a := &Agent{conns: map[*shepherdConn]bool{}}
	for range maxShepherds {
		if !a.keep(&shepherdConn{}) {
			t.Fatal("refused below the limit")
		}
	}
	if a.keep(&shepherdConn{}) {
		t.Error("taken at limit + 1")
	}
}

func FuzzUp(f *testing.F) {
	for _, s := range []string{
		`{"hello":{"key":{"job":7,"run":0,"step":4294967291},"pid":1,"start_ms":1}}`,
		`{"ended":{"key":{"job":7},"code":3}}`, `{}`, `null`, `[]`, `{"hello":{"key":{"job":4294967296}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if up, err := decodeUp(line); err == nil && up == nil {
			t.Error("neither line nor error")
		}
	})
}

// TestStrangersDoNotFillTheLog: of many refusals one line is written, and how many were left out.
func TestStrangersDoNotFillTheLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var r rareLog
	now := time.Now()
	for range 2000 {
		r.warn(log, now, "refused", errors.New("x"))
	}
	r.warn(log, now.Add(refusalEvery), "refused", errors.New("x"))
	if n := strings.Count(out.String(), "\n"); n != 2 || !strings.Contains(out.String(), "left_out=1999") {
		t.Errorf("%d lines: %s", n, out.String())
	}
}
