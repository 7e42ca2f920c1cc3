package daemon

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/leader"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

var benchSched = flag.Bool("bench-sched", false, "measure the whole controller (make bench-sched)")

// Size and targets of the measurement of the whole controller.
const (
	simNodes     = 5_000
	simCPUs      = 2
	startsTarget = 3_750.0 // starts a second
)

// simAgent is one node's agent behind the leader's agent interface: it starts each run at once and reports its end.
type simAgent struct {
	grpc.ServerStream
	ctx   context.Context
	in    chan *nodepb.AgentMessage
	lasts *atomic.Pointer[func(jobID uint32) time.Duration] // as the cluster's
}

// simBacklog bounds what an agent has said and the leader has not read.
const simBacklog = 1024

func (a *simAgent) Context() context.Context { return a.ctx }

func (a *simAgent) Recv() (*nodepb.AgentMessage, error) {
	select {
	case m := <-a.in:
		return m, nil
	case <-a.ctx.Done():
		return nil, io.EOF
	}
}

func (a *simAgent) say(m *nodepb.AgentMessage) {
	select {
	case a.in <- m:
	case <-a.ctx.Done():
	}
}

func (a *simAgent) Send(m *nodepb.ControllerMessage) error {
	list := m.GetLaunch().GetLaunches()
	if len(list) == 0 {
		return nil
	}
	now := time.Now().UnixMilli()
	started, ended := &nodepb.LaunchResults{}, &nodepb.Reports{}
	for _, x := range list {
		started.Results = append(started.Results, &nodepb.LaunchResult{Key: x.Key, Ok: true, StartMs: now})
		ended.Reports = append(ended.Reports, &nodepb.Report{Key: x.Key, StartMs: now, EndMs: now})
	}
	a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: started}})
	if a.lasts.Load() != nil {
		a.ends(ended.Reports)
		return nil
	}
	a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Reports{Reports: ended}})
	return nil
}

// simSetup is what a simulated cluster is made of.
type simSetup struct {
	nodes    int
	replicas int         // 1 when 0
	door     *socketDoor // where agents come by sockets; nil: by calls, and launches are not signed
	socket   string      // of users; "" = none
	lines    []string    // of grid.conf before the partition's; nil: usual nodes
}

// simCluster is a whole controller, its replicas with a log each on the disk, and its agents.
type simCluster struct {
	testing.TB
	cfg   *conf.Config
	log   *replica.Replica // the leader's
	ctx   context.Context
	lasts atomic.Pointer[func(jobID uint32) time.Duration] // how long agents' runs last, below 0 for ever; nil: no time
}

// config is a cluster whose only partition starts nothing yet.
func (s simSetup) config(tb testing.TB) *conf.Config {
	path := filepath.Join(tb.TempDir(), "grid.conf")
	lines := s.lines
	if lines == nil {
		lines = []string{fmt.Sprintf("NodeName=s[1-%d] CPUs=%d RealMemory=8000", s.nodes, simCPUs)}
	}
	text := "ClusterName=bench\nMaxJobCount=4000000\nMaxArraySize=1000001\nSlurmdTimeout=0\n"
	for i := range max(s.replicas, 1) {
		text += fmt.Sprintf("ControllerName=c%d Address=127.0.0.1 Port=%d RaftPort=%d", i+1, 7000+2*i, 7001+2*i)
		if s.socket != "" {
			text += " Socket=" + s.socket
		}
		text += "\n"
	}
	text += strings.Join(lines, "\n") + "\nPartitionName=batch Nodes=ALL Default=YES State=DOWN\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		tb.Fatal(err)
	}
	cfg, err := conf.Load(path)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.HeartbeatInterval = time.Hour // agents of this kind have none
	return cfg
}

// newSimCluster brings up the controller and opens all agents' sessions.
func newSimCluster(tb testing.TB, s simSetup) *simCluster {
	cfg := s.config(tb)
	ctx, cancel := context.WithCancel(tb.Context())
	c := &simCluster{TB: tb, cfg: cfg, ctx: ctx}
	tb.Cleanup(cancel)
	if *benchSched { // memory as the product's
		go tuneGC(ctx)
	}
	all := s.open(c)
	leads := make([]*leader.Leader, len(all))
	for i, r := range all {
		leads[i] = leader.New(leader.Deps{Log: r, Name: r.Status().Name, Config: func() *conf.Config { return cfg }, Logger: quiet(),
			Signer: s.door.signer, Address: func(string) string { return "" }})
		done := make(chan struct{})
		go func() { defer close(done); leads[i].Run(ctx) }()
		tb.Cleanup(func() { cancel(); <-done; r.Close() })
	}
	l := leads[c.elect(all)]
	s.door.serve(c, l)
	c.until("configuration", func(v state.Viewer) bool { return v.Config() != nil && v.Config().Digest != "" })
	c.propose(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: state.FeatureSched}}})
	c.propose(&logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: leader.SetConfig(cfg)}}) // what the level before could not take
	for i := range cfg.Nodes {
		c.agent(l, s.door, &cfg.Nodes[i])
	}
	c.until("nodes registered", func(v state.Viewer) bool {
		for n := range v.Nodes() {
			if n.BootID == "" {
				return false
			}
		}
		return true
	})
	return c
}

// open opens the replicas.
func (s simSetup) open(c *simCluster) (all []*replica.Replica) {
	var voters []replica.Voter
	var listeners []net.Listener
	for i := range c.cfg.Controllers {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			c.Fatal(err)
		}
		listeners = append(listeners, listener)
		voters = append(voters, replica.Voter{Name: c.cfg.Controllers[i].Name, Addr: listener.Addr().String()})
	}
	ids := s.door
	if ids == nil && len(voters) > 1 {
		ids = newSocketDoor(c)
	}
	for i, v := range voters {
		rc := replica.Config{
			Name: v.Name, Voters: voters, Dir: filepath.Join(c.TempDir(), "state"), Listener: listeners[i],
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			},
			Peers: func(string) (peerpb.PeerClient, error) { return nil, replica.ErrNoLeader },
			Now:   time.Now, Logger: quiet(), Bootstrap: true,
		}
		if len(voters) > 1 {
			id := ids.identity(c, authn.RoleCtld, v.Name)
			rc.HeartbeatTimeout = 3 * time.Second // they share processors and disk; elections are not what is measured
			rc.Listener, rc.Dial = newTLSListener(listeners[i], id.Server(authn.RoleCtld)), tlsDialer(id.Client(authn.RoleCtld))
		}
		r, err := replica.Open(c.ctx, rc, fsm.New(state.New()))
		if err != nil {
			c.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// elect waits for a leader, takes its log for the cluster's, and gives its place.
func (c *simCluster) elect(all []*replica.Replica) int {
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		for i, r := range all {
			if _, self := r.Leader(); self {
				c.log = r
				return i
			}
		}
	}
	c.Fatal("no replica has been elected within a minute")
	return 0
}

// agent opens one node's session.
func (c *simCluster) agent(l *leader.Leader, door *socketDoor, n *conf.Node) {
	name := n.Name
	a := &simAgent{lasts: &c.lasts, ctx: authn.NewContext(c.ctx, authn.Caller{Role: authn.RoleNode, Name: name}), in: make(chan *nodepb.AgentMessage, simBacklog)}
	a.in <- &nodepb.AgentMessage{Of: &nodepb.AgentMessage_Hello{Hello: &nodepb.Hello{
		Node: name, Cluster: "bench", Version: "1", BootId: "boot", AgentStartMs: 1,
		Inventory: &nodepb.Inventory{Cpus: n.CPUs, Boards: n.Boards, Sockets: n.Sockets, CoresPerSocket: n.CoresPerSocket,
			ThreadsPerCore: n.ThreadsPerCore, Mem: n.RealMemory},
	}}}
	session := func() error { return l.Session(a) }
	if door != nil {
		session = door.session(c, a, name)
	}
	go func() {
		if err := session(); err != nil && c.ctx.Err() == nil {
			c.Errorf("session of %s: %v", name, err)
		}
	}()
}

func (c *simCluster) propose(cmds ...*logpb.Command) {
	c.Helper()
	results, err := c.log.Propose(c.ctx, cmds...)
	if err != nil {
		c.Fatal(err)
	}
	for _, r := range results {
		if r.Refused != nil {
			c.Fatalf("refused: %s: %s", r.Refused.Code, r.Refused.Why)
		}
	}
}

// until waits for a state.
func (c *simCluster) until(what string, ok func(state.Viewer) bool) {
	c.Helper()
	late := time.After(5 * time.Minute)
	for {
		view := c.log.View()
		changed := c.log.Changed(view.Index())
		if ok(view) {
			return
		}
		select {
		case <-changed:
		case <-late:
			all, pending, running := view.Counts()
			c.Fatalf("waiting for %s: %d jobs, %d pending, %d running", what, all, pending, running)
		}
	}
}

// submit queues jobs of so many shapes.
func (c *simCluster) submit(jobs, shapes int) {
	c.Helper()
	const once = 4096
	cmds := make([]*logpb.Command, 0, once)
	for i := range jobs {
		spec := fsm.SpecToLog(&job.Spec{Script: []byte("#!/bin/sh\n"), UID: 1000, GID: 1000, User: "ada", WorkDir: "/home/ada",
			Partition: "batch", MinNodes: 1, NTasks: 1, TimeLimit: int64(i%shapes+1) * time.Minute.Milliseconds()})
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Spec: spec}}})
		if len(cmds) == once || i == jobs-1 {
			c.propose(cmds...)
			cmds = cmds[:0]
		}
	}
}

// open lets the partition start jobs, or stops it.
func (c *simCluster) open(yes bool) {
	c.Helper()
	word := map[bool]string{true: "UP", false: "DOWN"}[yes]
	c.propose(&logpb.Command{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{
		Name: "batch", Set: map[string]string{"State": word}, Caller: &logpb.Caller{User: "root", Operator: true}}}})
}

// rate opens the partition and gives how many jobs a second end, from the opening until so many have.
func (c *simCluster) rate(jobs int) float64 {
	c.Helper()
	ended := func(v state.Viewer) int {
		all, pending, running := v.Counts()
		return all - pending - running
	}
	before := ended(c.log.View())
	from := time.Now()
	c.open(true)
	c.until("ends", func(v state.Viewer) bool { return ended(v)-before >= jobs })
	took := time.Since(from)
	c.open(false)
	c.until("the rest to end", func(v state.Viewer) bool { _, _, running := v.Counts(); return running == 0 })
	return float64(jobs) / took.Seconds()
}

// heap is what the process holds, MiB.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// schedFigure prints one measured line and fails when it is short.
func schedFigure(t *testing.T, name string, value float64, unit, relation string, target float64) {
	t.Helper()
	ok := value >= target
	if relation == "<=" {
		ok = value <= target
	}
	word := "ok"
	if !ok {
		word = "short"
		t.Errorf("%s is %.1f %s, the target is %s %.1f", name, value, unit, relation, target)
	}
	fmt.Printf("figure %s %.1f %s (target %s %.1f) %s\n", name, value, unit, relation, target, word)
}

// TestBenchController measures jobs that do nothing from pending to completed: planned, put into a log that is synced
// to the disk, launched, confirmed and reported, on 5,000 simulated nodes.
func TestBenchController(t *testing.T) {
	if !*benchSched {
		t.Skip("only with -bench-sched (make bench-sched)")
	}
	c := newSimCluster(t, simSetup{nodes: simNodes})
	jobs := int(startsTarget) * *benchSeconds
	c.submit(jobs, 100)
	fmt.Printf("figure controller_nodes %d nodes\n", simNodes)
	schedFigure(t, "controller_starts", c.rate(jobs), "1/s", ">=", startsTarget)
	fmt.Printf("figure controller_memory %.0f MiB\n", heap())
}

// TestSimCluster holds the measurement's own cluster to it that every job runs once.
func TestSimCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("syncs a log to the disk; not with -short")
	}
	c := newSimCluster(t, simSetup{nodes: 20})
	c.submit(500, 3)
	c.rate(500)
	var bad []string
	for j := range c.log.View().Jobs() {
		if j.State != job.Completed || j.Run != 0 {
			bad = append(bad, fmt.Sprintf("job %d: %v, run %d", j.ID, j.State, j.Run))
		}
	}
	if len(bad) > 0 {
		t.Error(strings.Join(bad, "\n"))
	}
}
