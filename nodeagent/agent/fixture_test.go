package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// host is one simulated host: its spool, launcher, steps and controllers outlive the agents that a
// test starts and stops on it.
type host struct {
	t        *testing.T
	spool    string
	launcher *fakeLauncher
	ctls     map[string]*controller

	mu        sync.Mutex
	shepherds *bufconn.Listener
	peer      uint32
	probe     func() error
	boottime  int64
	boot      func() int64  // nil: each look at the clock is a ms
	ahead     time.Duration // of the wall clock
	steps     map[launch.Key]*step
	logs      strings.Builder
}

// inBubble runs f with a host and one leading controller under virtual time.
func inBubble(t *testing.T, f func(h *host, c *controller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &host{
			t: t, spool: t.TempDir(), ctls: map[string]*controller{}, peer: 500,
			probe: func() error { return nil }, steps: map[launch.Key]*step{},
		}
		for _, dir := range []string{launch.StepsDir, launch.OutputDir} {
			if err := os.Mkdir(filepath.Join(h.spool, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		h.launcher = &fakeLauncher{h: h, epilogs: map[launch.Key]int{}, starts: map[launch.Key]int{}, over: map[launch.Key]bool{}}
		c := h.controller("c1")
		defer h.clear()
		f(h, c)
	})
}

// clear ends what the test has left, also when it has failed.
func (h *host) clear() {
	h.launcher.cut()
	h.mu.Lock()
	for _, s := range h.steps {
		s.die()
	}
	h.mu.Unlock()
	for _, c := range h.ctls {
		c.stop()
	}
	synctest.Wait()
	if h.t.Failed() {
		h.t.Log(h.logs.String())
	}
}

// Write takes the agent's log.
func (h *host) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.logs.Write(p)
}

// agent starts an agent on the host. The returned function stops it, as a SIGKILL would: nothing of
// what it knew is left but the disk.
func (h *host) agent() (stop func()) {
	h.t.Helper()
	l := bufconn.Listen(64 << 10)
	h.mu.Lock()
	h.shepherds = l
	h.mu.Unlock()
	cfg := Config{
		Node: "n1", Cluster: "test", Version: "1", BootID: "boot-1", BootMS: 5, Spool: h.spool,
		Inventory: node.Inventory{CPUs: 4, Mem: 8 << 30, Gres: "gpu:a100:8"}, StepUIDs: []uint32{500},
	}
	for _, name := range []string{"c1", "c2", "c3"} {
		if h.ctls[name] != nil {
			cfg.Controllers = append(cfg.Controllers, Controller{Name: name, Address: name + ":6817"})
		}
	}
	a, err := New(cfg, Deps{
		Log: slog.New(slog.NewTextHandler(h, nil)), Now: h.now, Jitter: func() float64 { return 0 },
		Boottime: h.clock,
		Dial:     h.dial, DialLauncher: h.launcher.dial,
		Shepherds: l,
		PeerUID:   func(net.Conn) (uint32, error) { h.mu.Lock(); defer h.mu.Unlock(); return h.peer, nil },
		Sample:    func() (float64, int64) { return 0.5, 1 << 30 },
		Probe:     func() error { h.mu.Lock(); p := h.probe; h.mu.Unlock(); return p() },
	})
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return func() {
		h.t.Helper()
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			h.t.Errorf("agent: %v", err)
		}
	}
}

// now is the host's wall clock; it has no monotonic reading, as one that was set.
func (h *host) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Round(0).Add(h.ahead)
}

func (h *host) clock() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boot != nil {
		return h.boot()
	}
	h.boottime++
	return h.boottime
}

func (h *host) dial(address string) (Conn, error) {
	name, _, _ := strings.Cut(address, ":")
	c := h.ctls[name]
	if c == nil {
		return nil, fmt.Errorf("no controller at %s", address)
	}
	return grpc.NewClient("passthrough:///"+name,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.listener.DialContext(ctx) }))
}

// controller is one fake controller. Each session that an agent opens comes out of its channel.
type controller struct {
	nodepb.UnimplementedNodeServer
	h        *host
	name     string
	listener *bufconn.Listener
	server   *grpc.Server
	sessions chan *ctlSession

	mu     sync.Mutex
	leader string // whom to name instead of serving; "" = serve
	vacant bool   // nobody leads, as far as it knows
	mute   bool   // it takes what comes and says nothing
	names  []*nodepb.ControllerAddress
	deaf   bool // heartbeats are not answered
	acking bool // reports are acknowledged by themselves
	shut   bool // sessions are refused
}

func (h *host) controller(name string) *controller {
	c := &controller{
		h: h, name: name, listener: bufconn.Listen(1 << 20), server: grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessage)),
		sessions: make(chan *ctlSession, 64),
	}
	nodepb.RegisterNodeServer(c.server, c)
	go c.server.Serve(c.listener)
	h.ctls[name] = c
	return c
}

func (c *controller) stop() { c.server.Stop() }

func (c *controller) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// ctlSession is one session at a controller.
type ctlSession struct {
	c      *controller
	stream grpc.BidiStreamingServer[nodepb.AgentMessage, nodepb.ControllerMessage]
	hello  *nodepb.Hello
	beats  chan *nodepb.Heartbeat
	msgs   chan *nodepb.AgentMessage // all but heartbeats
	ended  chan struct{}
	hangup chan struct{}
	sendMu sync.Mutex
}

func (c *controller) Session(stream grpc.BidiStreamingServer[nodepb.AgentMessage, nodepb.ControllerMessage]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	c.mu.Lock()
	leader, shut, vacant, mute, names := c.leader, c.shut, c.vacant, c.mute, c.names
	c.mu.Unlock()
	if mute {
		<-stream.Context().Done()
		return nil
	}
	if vacant {
		return stream.Send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_NotLeader{NotLeader: &nodepb.NotLeader{}}})
	}
	if shut {
		return errors.New("shut")
	}
	if leader != "" {
		return stream.Send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_NotLeader{
			NotLeader: &nodepb.NotLeader{Leader: leader, Address: "wrong:1"}}})
	}
	s := &ctlSession{
		c: c, stream: stream, hello: first.GetHello(), beats: make(chan *nodepb.Heartbeat, 4096),
		msgs: make(chan *nodepb.AgentMessage, 4096), ended: make(chan struct{}), hangup: make(chan struct{}),
	}
	defer close(s.ended)
	s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Welcome{Welcome: &nodepb.Welcome{
		Leader: c.name, HeartbeatMs: 1000, KillWaitMs: 30000, Term: 1, PrologTimeoutMs: 60000, Controllers: names}}})
	c.sessions <- s
	go s.receive()
	select {
	case <-stream.Context().Done():
	case <-s.hangup:
	}
	return errors.New("session over")
}

func (s *ctlSession) receive() {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return
		}
		s.c.mu.Lock()
		deaf, acking := s.c.deaf, s.c.acking
		s.c.mu.Unlock()
		if b := m.GetHeartbeat(); b != nil {
			if !deaf {
				s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_HeartbeatAck{
					HeartbeatAck: &nodepb.HeartbeatAck{Seq: b.GetSeq(), Term: 1}}})
			}
			select {
			case s.beats <- b:
			default:
			}
			continue
		}
		if acking && m.GetReports() != nil {
			s.ack(m.GetReports().GetReports()...)
		}
		s.msgs <- m
	}
}

func (s *ctlSession) send(m *nodepb.ControllerMessage) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	s.stream.Send(m) // a dead stream is noticed by the reader
}

func (s *ctlSession) ack(reports ...*nodepb.Report) {
	acks := &nodepb.ReportAcks{}
	for _, r := range reports {
		acks.Keys = append(acks.Keys, r.GetKey())
	}
	s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Acks{Acks: acks}})
}

func (s *ctlSession) launch(keys ...launch.Key) {
	b := &nodepb.LaunchBatch{}
	for _, k := range keys {
		b.Launches = append(b.Launches, order(k))
	}
	s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Launch{Launch: b}})
}

func (s *ctlSession) kill(k *nodepb.Kill) {
	s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Kill{Kill: &nodepb.KillBatch{Kills: []*nodepb.Kill{k}}}})
}

func order(k launch.Key) *nodepb.Launch {
	c := cred.Launch{Cluster: "test", Node: "n1", JobID: k.Job, Run: k.Run, Step: k.Step, UID: 1000, GID: 1000,
		User: "u", NotBefore: 1, Expires: 2, NumNodes: 1, WorkDir: "/", TimeLimit: job.Unlimited,
		Alloc: job.NodeAlloc{Node: "n1", CPUs: 1}, NodeList: "n1"}
	return &nodepb.Launch{Key: keyToPB(k), Credential: c.Marshal(), Script: []byte("#!/bin/sh\n")}
}

// session waits for the next session at the controller.
func (c *controller) session() *ctlSession { return wait(c.h, c.sessions, "a session at "+c.name) }

// result waits for the next launch result.
func (s *ctlSession) result() *nodepb.LaunchResult {
	s.c.h.t.Helper()
	list := wait(s.c.h, s.msgs, "a launch result").GetLaunched().GetResults()
	if len(list) != 1 {
		s.c.h.t.Fatalf("want one launch result, got %v", list)
	}
	return list[0]
}

// reports waits for the next message of reports.
func (s *ctlSession) reports() []*nodepb.Report {
	s.c.h.t.Helper()
	for {
		m := wait(s.c.h, s.msgs, "reports")
		if r := m.GetReports(); r != nil {
			return r.GetReports()
		}
	}
}

func (s *ctlSession) report() *nodepb.Report {
	s.c.h.t.Helper()
	list := s.reports()
	if len(list) != 1 {
		s.c.h.t.Fatalf("want one report, got %v", list)
	}
	return list[0]
}

// quiet fails when the session gets any message but heartbeats within d.
func (s *ctlSession) quiet(d time.Duration) {
	s.c.h.t.Helper()
	select {
	case m := <-s.msgs:
		s.c.h.t.Fatalf("unexpected message %v", m)
	case <-time.After(d):
	}
}

// wait takes a value that has to come within two virtual minutes.
func wait[T any](h *host, ch <-chan T, what string) T {
	h.t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(2 * time.Minute):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.t.Fatalf("%s did not come; log:\n%s", what, h.logs.String())
	panic("not reached")
}

// fakeLauncher keeps the table and the folders that the real one keeps.
type fakeLauncher struct {
	h *host

	mu       sync.Mutex
	down     bool          // dials are refused
	conns    []net.Conn    // to cut
	hung     chan struct{} // not nil: requests are read and left lying until it is closed
	stall    chan struct{} // not nil: starts wait, until a kill closes it
	losing   bool          // a start is carried out, then the connection is cut instead of an answer
	refuse   *launch.Reply // answer of a start that is not carried out
	epilog   string        // error of the epilog
	busy     int           // so many releases are answered with EBUSY
	starts   map[launch.Key]int
	epilogs  map[launch.Key]int
	over     map[launch.Key]bool
	requests []launch.Request
	silent   bool // steps that are started have no shepherd of their own
	plain    bool // it runs no epilog, and says so
}

func (l *fakeLauncher) dial(context.Context) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, unix.ECONNREFUSED
	}
	ours, theirs := net.Pipe()
	l.conns = append(l.conns, theirs)
	go l.serve(theirs)
	return ours, nil
}

func (l *fakeLauncher) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// cut ends all connections, as the launcher's death does.
func (l *fakeLauncher) cut() {
	l.set(func() {
		for _, c := range l.conns {
			c.Close()
		}
		l.conns = nil
	})
}

func (l *fakeLauncher) serve(conn net.Conn) {
	defer conn.Close()
	var sendMu sync.Mutex
	for {
		size, err := launch.ReadLength(conn, launch.MaxFrame)
		if err != nil {
			return
		}
		req, err := launch.ReadRequest(conn, size)
		if err != nil {
			return
		}
		l.mu.Lock()
		hung := l.hung
		l.requests = append(l.requests, *req)
		l.mu.Unlock()
		go func() {
			if hung != nil {
				<-hung
			}
			reply := l.do(req)
			if reply == nil {
				conn.Close()
				return
			}
			reply.ID = req.ID
			sendMu.Lock()
			defer sendMu.Unlock()
			launch.WriteFrame(conn, reply) // a connection that is gone needs no answer
		}()
	}
}

func (l *fakeLauncher) do(req *launch.Request) *launch.Reply {
	switch {
	case req.Start != nil:
		l.mu.Lock()
		stall := l.stall
		l.mu.Unlock()
		if stall != nil {
			<-stall
		}
		return l.start(req.Start)
	case req.Kill != nil:
		s := l.h.step(*req.Kill)
		if s != nil {
			s.killed()
		}
		l.mu.Lock()
		if l.stall != nil && s == nil {
			close(l.stall)
			l.stall = nil
		}
		l.mu.Unlock()
		return &launch.Reply{}
	case req.Signal != nil:
		if l.h.step(req.Signal.Key) == nil {
			return &launch.Reply{Err: "no such step"}
		}
		return &launch.Reply{}
	case req.Release != nil:
		return l.release(req.Release)
	}
	entries, err := os.ReadDir(filepath.Join(l.h.spool, launch.StepsDir))
	if err != nil {
		return &launch.Reply{Err: err.Error()}
	}
	l.mu.Lock()
	reply := &launch.Reply{Driver: "none", Missing: []string{"memory"}, NoEpilog: l.plain}
	l.mu.Unlock()
	for _, e := range entries {
		if k, err := launch.ParseKey(e.Name()); err == nil {
			reply.Keys = append(reply.Keys, k)
		}
	}
	return reply
}

func (l *fakeLauncher) start(o *launch.Start) *launch.Reply {
	c, err := cred.UnmarshalLaunch(o.Credential)
	if err != nil {
		return &launch.Reply{Err: err.Error(), Cause: uint8(job.CauseCredential)}
	}
	k := launch.Key{Job: c.JobID, Run: c.Run, Step: c.Step}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse != nil {
		r := *l.refuse
		return &r
	}
	dir := launch.StepFolder(l.h.spool, k)
	if err := os.Mkdir(dir, 0o755); err != nil || l.over[k] {
		return &launch.Reply{Err: "started before", Cause: uint8(job.CauseDuplicate)}
	}
	l.starts[k]++
	s := l.h.newStep(k)
	if !l.silent {
		go s.speak()
	}
	if l.losing {
		return nil
	}
	return &launch.Reply{Start: s.start}
}

func (l *fakeLauncher) release(r *launch.Release) *launch.Reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy > 0 {
		l.busy--
		return &launch.Reply{Err: "step lives", Errno: int(unix.EBUSY)}
	}
	if s := l.h.step(r.Key); s != nil && s.alive() {
		return &launch.Reply{Err: "step lives", Errno: int(unix.EBUSY)}
	}
	if l.epilogs[r.Key]++; l.epilogs[r.Key] == 1 && l.epilog != "" {
		return &launch.Reply{Err: l.epilog}
	}
	if r.KeepRecord {
		return &launch.Reply{}
	}
	l.over[r.Key] = true
	if !r.KeepOutput {
		os.Remove(launch.OutputFile(l.h.spool, r.Key, false))
		os.Remove(launch.OutputFile(l.h.spool, r.Key, true))
	}
	if err := os.RemoveAll(launch.StepFolder(l.h.spool, r.Key)); err != nil {
		return &launch.Reply{Err: err.Error()}
	}
	return &launch.Reply{}
}

// releases lists the releases that were asked for since the last call.
func (l *fakeLauncher) releases() (list []launch.Release) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.requests {
		if r.Release != nil {
			list = append(list, *r.Release)
		}
	}
	l.requests = nil
	return list
}

// folder tells whether the run has a folder.
func (h *host) folder(k launch.Key) bool {
	_, err := os.Stat(launch.StepFolder(h.spool, k))
	return err == nil
}

func (h *host) step(k launch.Key) *step {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.steps[k]
}

// step is one running step with its shepherd.
type step struct {
	h     *host
	key   launch.Key
	start int64
	dir   string
	downs chan shepherd.Down

	mu    sync.Mutex
	lock  *os.File
	conn  net.Conn
	ended bool // its processes are gone
	gone  chan struct{}
}

func (h *host) newStep(k launch.Key) *step {
	s := &step{h: h, key: k, start: time.Now().UnixMilli(), dir: launch.StepFolder(h.spool, k),
		downs: make(chan shepherd.Down, 4096), gone: make(chan struct{})}
	f, err := os.Create(filepath.Join(s.dir, shepherd.LockFile))
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		h.t.Error(err)
	}
	s.lock = f
	h.mu.Lock()
	h.steps[k] = s
	h.mu.Unlock()
	return s
}

// place makes a step that an earlier agent has left.
func (h *host) place(k launch.Key) *step {
	if err := os.Mkdir(launch.StepFolder(h.spool, k), 0o755); err != nil {
		h.t.Fatal(err)
	}
	return h.newStep(k)
}

// speak dials the agent each second until the shepherd is gone.
func (s *step) speak() {
	for {
		s.h.mu.Lock()
		l := s.h.shepherds
		s.h.mu.Unlock()
		if l != nil {
			if conn, err := l.Dial(); err == nil {
				s.talk(conn)
			}
		}
		select {
		case <-s.gone:
			return
		case <-time.After(time.Second):
		}
	}
}

func (s *step) talk(conn net.Conn) {
	defer conn.Close()
	s.mu.Lock()
	s.conn = conn
	ended, dead := s.ended, s.lock == nil
	s.mu.Unlock()
	if dead {
		return
	}
	say(conn, shepherd.Up{Hello: &shepherd.Hello{Key: s.key, PID: 1, Start: s.start}})
	if ended {
		return
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		var d shepherd.Down
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			s.h.t.Errorf("line to the shepherd: %v", err)
		}
		s.downs <- d
	}
}

func say(conn net.Conn, up shepherd.Up) {
	line, _ := json.Marshal(up)
	conn.Write(append(line, '\n')) // an agent that is gone is dialled again
}

func (s *step) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended
}

// end writes the record, tells the agent and lets the shepherd go.
func (s *step) end(rec shepherd.Record) {
	rec.Key, rec.Start, rec.End = s.key, s.start, time.Now().UnixMilli()
	data, err := json.Marshal(rec)
	if err != nil {
		s.h.t.Error(err)
	}
	s.endRaw(data)
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		say(conn, shepherd.Up{Ended: &rec})
	}
	s.die()
}

func (s *step) endRaw(record []byte) {
	path := filepath.Join(s.dir, shepherd.RecordFile)
	if err := os.WriteFile(path+".new", record, 0o644); err != nil {
		s.h.t.Error(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.h.t.Error(err)
	}
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
}

// killed is what a SIGKILL to the step's group does: the shepherd, when it lives, writes the record.
func (s *step) killed() {
	s.mu.Lock()
	was, lock := s.ended, s.lock
	s.ended = true
	s.mu.Unlock()
	if !was && lock != nil {
		s.end(shepherd.Record{Signal: 9})
	}
}

// die ends the shepherd without a word.
func (s *step) die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return
	}
	s.lock.Close()
	s.lock = nil
	close(s.gone)
	if s.conn != nil {
		s.conn.Close()
	}
}

// down waits for the next word to the shepherd that is no renewal.
func (s *step) down() shepherd.Down {
	s.h.t.Helper()
	for {
		if d := wait(s.h, s.downs, "a word to the shepherd"); d.Renew == nil {
			return d
		}
	}
}

var _ io.Writer = (*host)(nil)
