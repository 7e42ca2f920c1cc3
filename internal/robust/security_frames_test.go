package robust

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/api/steppb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// entry is a port or socket under attack: how an attacker gets in, and what a good client does there.
type entry struct {
	name   string
	dial   func() (net.Conn, error)
	tls    []*tls.Config // what an attacker may show, nothing among it; none: no TLS there
	method string        // of a service there, "" = no gRPC
	good   func(ctx context.Context) error
}

// entries lists every listening port and socket.
func (g *guarded) entries() (list []entry) {
	ctl := g.leader()
	tcp := func(port int) func() (net.Conn, error) {
		d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 200, 0, 1)}}
		return func() (net.Conn, error) { return d.Dial("tcp", net.JoinHostPort(g.address(ctl), strconv.Itoa(port))) }
	}
	unix := func(uid uint32, path ...string) func() (net.Conn, error) {
		return func() (net.Conn, error) { return connectWith(context.Background(), uid, g.path(path...)) }
	}
	// once makes a connection for one call: that it comes up is what is measured.
	once := func(dial func() *grpc.ClientConn, call func(context.Context, *grpc.ClientConn) error) func(context.Context) error {
		return func(ctx context.Context) error {
			conn := dial()
			defer conn.Close()
			return call(ctx, conn)
		}
	}
	ctldID, nodeID, token := g.identity("c1"), g.identity("n1"), g.token(userUID, authn.ClassRead)
	token = append([]byte{}, token...)
	ping := func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := ctldpb.NewControllerClient(conn).Ping(ctx, &ctldpb.PingRequest{})
		return err
	}
	const submit = "/tensorgrid.ctld.Controller/Submit"
	return []entry{
		{"users' socket", unix(otherUID, "run", ctl+".sock"), nil, submit,
			once(func() *grpc.ClientConn { return g.socketAs(userUID, g.path("run", ctl+".sock")) }, ping)},
		{"Port", tcp(ctldPort), []*tls.Config{noCert(), nodeID.Client()}, "/tensorgrid.node.Node/Session",
			once(func() *grpc.ClientConn { return g.withTLS(ctl, ctldPort, ctldID.Client()) }, func(ctx context.Context, conn *grpc.ClientConn) error {
				_, err := peerpb.NewPeerClient(conn).Status(ctx, &peerpb.StatusRequest{Asker: "c1"})
				return err
			})},
		{"RaftPort", tcp(raftPort), []*tls.Config{noCert(), nodeID.Client()}, "", func(ctx context.Context) error { return g.raftAnswers(ctx, ctl, ctldID.Client()) }},
		{"UserPort", tcp(userPort), []*tls.Config{noCert()}, submit,
			once(func() *grpc.ClientConn { return g.withTLS(ctl, userPort, g.userTLS()) }, func(ctx context.Context, conn *grpc.ClientConn) error {
				return ping(metadata.AppendToOutgoingContext(ctx, "grid-token-bin", string(token)), conn)
			})},
		{"launcher's socket", unix(stepUID, "run", "n1", "launcher.sock"), nil, "", g.launcherAnswers},
		{"agent's socket", unix(stepUID, "run", "n1", "agent.sock"), nil, "", nil},
		{"login socket", unix(otherUID, "run", loginHost, "login.sock"), nil, "/tensorgrid.step.Login/Mint",
			once(func() *grpc.ClientConn { return g.socketAs(userUID, g.path("run", loginHost, "login.sock")) }, func(ctx context.Context, conn *grpc.ClientConn) error {
				_, err := steppb.NewLoginClient(conn).Mint(ctx, &steppb.MintRequest{Cluster: g.name, Class: "read"})
				return err
			})},
	}
}

// raftAnswers is another controller that connects: its certificate is taken, and its first byte is read.
func (g *guarded) raftAnswers(ctx context.Context, ctl string, cfg *tls.Config) error {
	d := tls.Dialer{Config: cfg}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(g.address(ctl), strconv.Itoa(raftPort)))
	if err != nil {
		return err
	}
	defer conn.Close()
	end, _ := ctx.Deadline()
	conn.SetDeadline(end)
	if _, err := conn.Write([]byte{0xee}); err != nil { // no such message: it hangs up
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the raft port: %w", err)
	}
	return nil
}

// launcherAnswers is the agent that asks its launcher.
func (g *guarded) launcherAnswers(ctx context.Context) error {
	conn, err := connectWith(ctx, agentUID, g.path("run", "n1", "launcher.sock"))
	if err != nil {
		return err
	}
	defer conn.Close()
	end, _ := ctx.Deadline()
	conn.SetDeadline(end)
	if err := launch.WriteRequest(conn, &launch.Request{ID: 1, List: true}); err != nil {
		return err
	}
	var r launch.Reply
	return launch.ReadFrame(conn, &r)
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// attack is one connection's worth of bad bytes.
func (e entry) attack(rng *rand.Rand) {
	conn, err := e.dial()
	if err != nil {
		return
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(4 * time.Second))
	if len(e.tls) > 0 && rng.IntN(3) > 0 { // else the bytes are no TLS at all
		inside := tls.Client(conn, e.tls[rng.IntN(len(e.tls))])
		if inside.Handshake() != nil {
			return
		}
		conn = inside
	}
	go io.Copy(io.Discard, conn)
	switch rng.IntN(8) {
	case 0: // noise
		conn.Write(noise(rng, 1+rng.IntN(64<<10)))
	case 1: // a good beginning
		conn.Write(append([]byte(preface), noise(rng, 1+rng.IntN(64<<10))...))
	case 2: // frames of HTTP/2 whose bodies are noise
		conn.Write([]byte(preface))
		for range 64 {
			h := []byte{0, byte(rng.IntN(64)), byte(rng.Uint32()), byte(rng.IntN(12)), byte(rng.Uint32()), 0, 0, 0, byte(rng.IntN(8))}
			conn.Write(append(h, noise(rng, int(h[1])<<8|int(h[2]))...))
		}
	case 3: // a frame of 16 MiB that does not come
		conn.Write(append([]byte(preface), 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1))
		conn.Write(noise(rng, 1<<20))
	case 4:
		e.hugeHeader(conn)
	case 5:
		e.hugeMessage(conn, rng)
	case 6: // lengths of the launcher's and the shepherds' frames
		conn.Write(binary.BigEndian.AppendUint32(nil, rng.Uint32()|1<<uint(rng.IntN(32))))
		conn.Write(noise(rng, 1<<20))
	case 7: // a line without an end
		conn.Write([]byte(`{"hello":{"key":{"job":`))
		for range 64 {
			conn.Write([]byte(strings.Repeat("1", 16<<10)))
		}
	}
	if rng.IntN(2) == 0 {
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
	}
}

func noise(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// hugeHeader sends 4 MiB of header in one call.
func (e entry) hugeHeader(conn net.Conn) {
	conn.Write([]byte(preface))
	f := http2.NewFramer(conn, conn)
	f.WriteSettings()
	var b strings.Builder
	h := hpack.NewEncoder(&b)
	for i := range 64 {
		h.WriteField(hpack.HeaderField{Name: "x" + strconv.Itoa(i), Value: strings.Repeat("a", 64<<10)})
	}
	block := []byte(b.String())
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]})
	for rest := block[16<<10:]; len(rest) > 0; {
		n := min(len(rest), 16<<10)
		if f.WriteContinuation(1, n == len(rest), rest[:n]) != nil {
			return
		}
		rest = rest[n:]
	}
}

// hugeMessage begins calls whose messages are said to be of 4 GiB, and of as much as is allowed.
func (e entry) hugeMessage(conn net.Conn, rng *rand.Rand) {
	conn.Write([]byte(preface))
	f := http2.NewFramer(conn, conn)
	f.WriteSettings()
	var b strings.Builder
	h := hpack.NewEncoder(&b)
	for _, kv := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", e.method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		h.WriteField(hpack.HeaderField{Name: kv[0], Value: kv[1]})
	}
	size := []uint32{1<<32 - 1, 1 << 31, 64 << 20, 4 << 20, 1 << 20}[rng.IntN(5)]
	for id := uint32(1); id < 64; id += 2 {
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(b.String()), EndHeaders: true}) != nil {
			return
		}
		body := append([]byte{byte(rng.IntN(2))}, binary.BigEndian.AppendUint32(nil, size)...)
		if f.WriteData(id, false, append(body, noise(rng, 1<<10)...)) != nil {
			return
		}
	}
	for range 60 { // as much as the windows let through
		if f.WriteData(uint32(1+2*rng.IntN(8)), false, noise(rng, 16<<10)) != nil {
			return
		}
	}
}

// slowly sends a byte now and then, until quit.
func (e entry) slowly(quit <-chan struct{}) {
	text := preface
	if len(e.tls) > 0 {
		text = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("x", 500)
	}
	for {
		conn, err := e.dial()
		for i := 0; err == nil && i < len(text); i++ {
			if _, err = conn.Write([]byte{text[i]}); err == nil {
				select {
				case <-quit:
					err = io.EOF
				case <-time.After(300 * time.Millisecond):
				}
			}
		}
		if conn != nil {
			conn.Close()
		}
		select {
		case <-quit:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// halfOpen makes n connections that say nothing, holds them, and gives how many came up.
func (e entry) halfOpen(n int, hold time.Duration, quit <-chan struct{}) int {
	conns := make(chan net.Conn, n)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range n / 8 {
				select {
				case <-quit:
					return
				default:
				}
				if c, err := e.dial(); err == nil {
					conns <- c
				}
			}
		})
	}
	wg.Wait()
	close(conns)
	select {
	case <-quit:
	case <-time.After(hold):
	}
	up := 0
	for c := range conns {
		up++
		c.Close()
	}
	return up
}

// memory is a figure of a process's memory in MiB: RssAnon is without the pages of its files, the log among
// them. files is the number of its descriptors.
func memory(pid int, key string) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key+":" {
			n, _ := strconv.ParseFloat(f[1], 64)
			return n / 1024
		}
	}
	return 0
}

func files(pid int) int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries)
}

// goodClients call at every entry until quit, and give the slowest call.
type goodClients struct {
	wg      sync.WaitGroup
	slowest atomic.Int64 // ns
	calls   atomic.Int64
	failed  atomic.Int64
}

const goodWithin = 5 * time.Second // the target is 2 s

func (c *goodClients) run(t testing.TB, e entry, quit <-chan struct{}) {
	c.wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			case <-time.After(100 * time.Millisecond):
			}
			ctx, cancel := context.WithTimeout(context.Background(), goodWithin)
			at := time.Now()
			err := e.good(ctx)
			took := time.Since(at)
			cancel()
			c.calls.Add(1)
			if err != nil {
				c.failed.Add(1)
				t.Errorf("%s: a good client after %v: %v", e.name, took, err)
			}
			for old := c.slowest.Load(); int64(took) > old && !c.slowest.CompareAndSwap(old, int64(took)); old = c.slowest.Load() {
			}
			if took > time.Second {
				t.Logf("%s: a good call took %v", e.name, took)
			}
		}
	})
}

// plainGC gives the daemons the runtime's own collector. Controllers let up to 512 MiB of garbage lie; what is
// looked for here is what is kept.
func (g *guarded) plainGC() {
	for _, p := range g.proc {
		made := p.make
		p.make = func() *exec.Cmd {
			cmd := made()
			cmd.Env = append(cmd.Env, "GOGC=100")
			return cmd
		}
	}
}

// TestSecurityFrames: noise, broken and oversized frames, half-open and slow connections at each port and
// socket for 60 s. Every process lives, its memory stays bounded, and good clients are served all the while.
func TestSecurityFrames(t *testing.T) {
	long(t)
	g := guard(t, layout{controllers: 3, nodes: 1})
	g.plainGC()
	g.up()
	const how = 60 * time.Second
	entries := g.entries()
	before, open := map[string]float64{}, map[string]int{}
	for n, p := range g.proc {
		before[n], open[n] = memory(p.cmd.Process.Pid, "RssAnon"), files(p.cmd.Process.Pid)
	}
	quit := make(chan struct{})
	var good goodClients
	var bad sync.WaitGroup
	var attacks, half atomic.Int64
	for i, e := range entries {
		if e.good != nil {
			good.run(t, e, quit)
		}
		bad.Go(func() {
			for rng := rand.New(rand.NewPCG(1, uint64(i))); ; attacks.Add(1) {
				select {
				case <-quit:
					return
				default:
					e.attack(rng)
				}
			}
		})
		for range 4 {
			bad.Go(func() { e.slowly(quit) })
		}
	}
	bad.Go(func() {
		for _, e := range entries {
			if len(e.tls) > 0 {
				half.Add(int64(e.halfOpen(10_000, 6*time.Second, quit)))
			}
		}
	})
	begin, jobs := time.Now(), 0
	for ; time.Since(begin) < how; jobs++ { // few enough that their records are no matter: jobs go through launcher, agent and shepherd all the while
		name := fmt.Sprintf("j%d", jobs)
		id := g.submit(g.spec(name, ":"))
		within(t, 20*time.Second, name, func() error {
			if s := g.jobByID(id).State; s != "COMPLETED" {
				return errors.New(s)
			}
			return nil
		})
		time.Sleep(time.Second)
	}
	close(quit)
	good.wg.Wait()
	bad.Wait()
	time.Sleep(6 * time.Second)
	worst, died, kept := 0.0, 0, 0
	for n, p := range g.proc {
		if !p.alive() {
			died++
			t.Errorf("%s is dead\n%s", n, p.tail())
			continue
		}
		pid := p.cmd.Process.Pid
		grown := memory(pid, "RssAnon") - before[n]
		worst, kept = max(worst, grown), max(kept, files(pid)-open[n])
		t.Logf("%s: %.0f MiB before, %+.0f after, %+d files", n, before[n], grown, files(pid)-open[n])
	}
	figure(t, "security_frames_attacks", float64(attacks.Load()), "connections", 500)
	figure(t, "security_frames_half_open", float64(half.Load()), "connections", 20_000)
	figure(t, "security_frames_good_calls", float64(good.calls.Load()), "calls", 500)
	figure(t, "security_frames_jobs", float64(jobs), "jobs", 10)
	most(t, "security_frames_good_failed", float64(good.failed.Load()), "calls", 0)
	most(t, "security_frames_slowest_good", float64(good.slowest.Load())/1e6, "ms", 2000)
	most(t, "security_frames_died", float64(died), "processes", 0)
	most(t, "security_frames_rss_growth", worst, "MiB", 64)
	most(t, "security_frames_files_kept", float64(kept), "files", 40)
}
