package launch_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch/server"
)

// rss is the launcher's memory in MiB, the most that it had.
func (n *node) rss() int {
	n.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	must(n.t, err)
	_, after, _ := strings.Cut(string(data), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	must(n.t, err)
	return kib >> 10
}

// TestMemoryOfTheLauncherIsBounded has the agent's uid and the shepherds' open many connections and send
// as much as it goes.
func TestMemoryOfTheLauncherIsBounded(t *testing.T) {
	n := newNode(t)
	// A payload of nothing but lists, which would cost many times its length when it is taken apart.
	o := n.order("#!/bin/sh")
	n.sign(o)
	lists := bytes.Repeat([]byte{0}, 7<<20)
	binary.BigEndian.PutUint64(lists[8:], uint64(len(lists)/8-3))
	o.Start.Payload = lists
	for range 8 {
		if r := n.ask(launch.Request{Start: &o.Start}); !strings.Contains(r.Err, "not those that were signed") {
			t.Fatalf("got %+v", r)
		}
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	part := append(binary.BigEndian.AppendUint32(nil, launch.MaxFrame), make([]byte, launch.MaxFrame-1)...)
	for _, uid := range []int{agentID, stepID} {
		for range 60 {
			c, err := n.dialAs(uid)
			must(t, err)
			conns = append(conns, c)
			go c.Write(part) // all but one byte
		}
	}
	time.Sleep(time.Second)
	t.Logf("launcher: %d MiB", n.rss())
	if rss := n.rss(); rss > 300 {
		t.Errorf("the launcher has %d MiB", rss)
	}
	n.release(n.startAndWait()) // it works all the while
}

func (n *node) startAndWait() launch.Key {
	n.t.Helper()
	k := n.start(n.order("#!/bin/sh"))
	n.wait(k)
	return k
}

// TestShepherdsRequestsAreSmall: one byte over the limit is refused unread, and so is a connection too
// many of the agent's.
func TestShepherdsRequestsAreSmall(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		size int
		ok   bool
	}{{launch.MaxSmallFrame, true}, {launch.MaxSmallFrame + 1, false}} {
		conn, err := n.dialAs(stepID)
		must(t, err)
		defer conn.Close()
		head := `{"id":1,"kill":{"job":1073741824}}`
		head += strings.Repeat(" ", c.size-4-len(head))
		msg := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(c.size)), uint32(len(head)))
		conn.Write(append(msg, head...)) // one that is refused may be closed by now
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		var r launch.Reply
		if err := launch.ReadFrame(conn, &r); (err == nil) != c.ok {
			t.Errorf("request of %d bytes: %+v %v", c.size, r, err)
		}
	}
	refused := 0
	for range server.MaxAgentConns { // n.conn is one already
		conn, err := n.dialAs(agentID)
		must(t, err)
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		var r launch.Reply
		if launch.WriteRequest(conn, &launch.Request{List: true}) != nil || launch.ReadFrame(conn, &r) != nil {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("%d connections of %d were refused, beside one that was there", refused, server.MaxAgentConns)
	}
}
