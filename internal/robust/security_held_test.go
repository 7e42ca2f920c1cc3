package robust

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// hold begins calls of n streams on one connection, sends size bytes of each request, of one byte more, and
// stops. It keeps to the windows that the other side gives, as a client that only seems slow would.
func (e entry) hold(n, size int, most time.Duration) (sent int, hangUp func()) {
	conn, err := e.dial()
	if err != nil {
		return 0, func() {}
	}
	if len(e.tls) > 0 {
		conn = tls.Client(conn, e.tls[0])
	}
	conn.SetDeadline(time.Now().Add(most))
	conn.Write([]byte(preface))
	f := http2.NewFramer(conn, conn)
	f.WriteSettings()
	var b strings.Builder
	h := hpack.NewEncoder(&b)
	for _, kv := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", e.method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		h.WriteField(hpack.HeaderField{Name: kv[0], Value: kv[1]})
	}
	const first = 65535
	whole, windows, left := first, map[uint32]int{}, map[uint32]int{}
	initial := first
	for i := range n {
		id := uint32(1 + 2*i)
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(b.String()), EndHeaders: true})
		windows[id], left[id] = 0, size
	}
	chunk := make([]byte, 16<<10)
	for {
		for id := uint32(1); id < uint32(2*n); id += 2 {
			for left[id] > 0 && whole > 0 && initial+windows[id] > 0 {
				data := chunk[:min(len(chunk), left[id], whole, initial+windows[id])]
				if left[id] == size {
					data = append([]byte{0}, binary.BigEndian.AppendUint32(nil, uint32(size))...)
				}
				if f.WriteData(id, false, data) != nil {
					return sent, func() { conn.Close() }
				}
				whole, windows[id], left[id], sent = whole-len(data), windows[id]-len(data), left[id]-len(data), sent+len(data)
			}
		}
		frame, err := f.ReadFrame()
		if err != nil {
			return sent, func() { conn.Close() }
		}
		switch fr := frame.(type) {
		case *http2.WindowUpdateFrame:
			if fr.StreamID == 0 {
				whole += int(fr.Increment)
			} else {
				windows[fr.StreamID] += int(fr.Increment)
			}
		case *http2.SettingsFrame:
			if v, ok := fr.Value(http2.SettingInitialWindowSize); ok {
				initial = int(v)
			}
			if !fr.IsAck() {
				f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			f.WritePing(true, fr.Data)
		case *http2.RSTStreamFrame:
			left[fr.StreamID] = 0
		case *http2.MetaHeadersFrame, *http2.HeadersFrame:
			left[frame.Header().StreamID] = 0
		}
	}
}

// TestSecurityHeldRequests: requests that are sent but for their last bytes, 2 GiB in all, cost the controller
// bounded memory at the users' socket and at the port for users, and hold up nobody else.
func TestSecurityHeldRequests(t *testing.T) {
	long(t)
	g := guard(t, layout{controllers: 1, nodes: 1})
	g.plainGC()
	g.up()
	for _, e := range g.entries() {
		if e.name != "users' socket" && e.name != "UserPort" {
			continue
		}
		pid := g.proc["c1"].cmd.Process.Pid
		before, sent, slowest := memory(pid, "RssAnon"), 0, time.Duration(0)
		var hang []func()
		for range 4 {
			n, hangUp := e.hold(64, 8<<20-16, 8*time.Second)
			sent, hang = sent+n, append(hang, hangUp)
			ctx, cancel := context.WithTimeout(t.Context(), goodWithin)
			at := time.Now()
			if err := e.good(ctx); err != nil {
				t.Errorf("%s: a good client: %v", e.name, err)
			}
			cancel()
			slowest = max(slowest, time.Since(at))
		}
		name := map[bool]string{true: "socket", false: "port"}[e.name == "users' socket"]
		figure(t, "security_held_sent_"+name, float64(sent>>20), "MiB", 100)
		most(t, "security_held_rss_"+name, memory(pid, "RssAnon")-before, "MiB", 1200)
		most(t, "security_held_slowest_good_"+name, float64(slowest)/1e6, "ms", 2000)
		for _, h := range hang {
			h()
		}
	}
}
