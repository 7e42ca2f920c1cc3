package leader

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// memLog is a log in memory over the real state machine, with one leader at a time.
type memLog struct {
	mu      sync.Mutex
	store   *state.Store
	fsm     *fsm.FSM
	index   uint64
	changed chan struct{}
	leader  string
	term    uint64
	gate    chan struct{} // not nil: proposals wait until it is closed
	lost    bool          // proposals are taken, and their proposers told that nothing is known
	ahead   time.Duration // what the controllers' wall clocks are ahead
	cmds    []*logpb.Command
}

func newMemLog() *memLog {
	store := state.New()
	return &memLog{store: store, fsm: fsm.New(store), changed: make(chan struct{})}
}

// now is the controllers' wall clock; it has no monotonic reading, as one that was set.
func (m *memLog) now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Round(0).Add(m.ahead)
}

// set sets the controllers' wall clocks.
func (m *memLog) set(ahead time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ahead = ahead
}

// replicaOf is one controller's side of a memLog.
type replicaOf struct {
	*memLog
	name string
	won  chan context.Context
	lose context.CancelFunc
}

func (m *memLog) replica(name string) *replicaOf {
	return &replicaOf{memLog: m, name: name, won: make(chan context.Context, 1)}
}

// win makes the replica the leader.
func (r *replicaOf) win(ctx context.Context) {
	r.mu.Lock()
	r.leader, r.term = r.name, r.term+1
	r.mu.Unlock()
	ctx, r.lose = context.WithCancel(ctx)
	r.won <- ctx
}

func (r *replicaOf) Propose(ctx context.Context, cmds ...*logpb.Command) ([]fsm.Result, error) {
	r.mu.Lock()
	gate := r.gate
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leader != r.name {
		return nil, replica.ErrNotLeader
	}
	results, err := r.apply(cmds)
	if r.lost {
		return nil, replica.ErrUnknown
	}
	return results, err
}

func (m *memLog) apply(cmds []*logpb.Command) ([]fsm.Result, error) {
	var all []fsm.Result
	m.cmds = append(m.cmds, cmds...)
	for len(cmds) > 0 {
		n := min(len(cmds), replica.MaxEntryCommands)
		data, err := proto.Marshal(&logpb.Entry{Version: fsm.Version, TimeMs: time.Now().Add(m.ahead).UnixMilli(), Commands: cmds[:n]})
		if err != nil {
			return nil, err
		}
		m.index++
		results, err := m.fsm.ApplyEntry(m.index, data)
		if err != nil {
			return nil, err
		}
		all, cmds = append(all, results...), cmds[n:]
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return all, nil
}

func (r *replicaOf) View() state.Viewer { return r.store.View() }
func (r *replicaOf) Read(ctx context.Context) (state.Viewer, error) {
	if _, self := r.Leader(); !self {
		<-ctx.Done()
		return nil, replica.ErrNoLeader
	}
	return r.store.View(), nil
}
func (r *replicaOf) Leadership() <-chan context.Context { return r.won }
func (r *replicaOf) Leader() (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader, r.leader == r.name
}
func (r *replicaOf) Status() replica.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return replica.Status{Name: r.name, Term: r.term}
}
func (r *replicaOf) Changed(index uint64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.index > index {
		done := make(chan struct{})
		close(done)
		return done
	}
	return r.changed
}

// count tells how many commands were applied that f likes.
func (m *memLog) count(f func(*logpb.Command) bool) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.cmds {
		if f(c) {
			n++
		}
	}
	return n
}

// bench is a cluster under test: a log, and leaders on it.
type bench struct {
	*testing.T
	log *memLog
	cfg *conf.Config
	ctx context.Context
	key ed25519.PrivateKey

	deps  func(*Deps) // changes what a leader is made with
	first *Leader     // the first one made
}

func testConfig() *conf.Config {
	c := &conf.Config{
		ClusterName: "tg", FirstJobId: 1, MaxJobCount: 10000, MaxArraySize: 1001, MinJobAge: 24 * time.Hour, MaxEndedJobs: 10000,
		KillWait: 30 * time.Second, JobRequeue: true, MaxBatchRequeue: 5, RequeueDelay: 2 * time.Minute,
		SlurmdTimeout: 5 * time.Minute, HeartbeatInterval: time.Second, LaunchTimeout: 10 * time.Second, ReturnToService: 1,
		PrologEpilogTimeout: 5 * time.Minute, Source: "/etc/tensorgrid/grid.conf",
	}
	var names []string
	for i := range 2 {
		name := fmt.Sprint("n", i+1)
		names = append(names, name)
		c.Nodes = append(c.Nodes, conf.Node{Name: name, Hostname: name + ".example.org", CPUs: 4, Sockets: 1, CoresPerSocket: 4,
			ThreadsPerCore: 1, Boards: 1, RealMemory: 4 << 30, Gres: "gpu:a100:2", Weight: 1})
	}
	c.Partitions = []conf.Partition{{Name: "main", Default: true, Nodes: names, State: "UP", MaxTime: -1, PriorityTier: 1,
		PriorityJobFactor: 1, SharedFS: true, OverSubscribe: "NO"}}
	return c
}

// inBench runs f in a bubble of virtual time; whatever runs on the bench's context ends with it.
func inBench(t *testing.T, f func(*bench)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, key, _ := ed25519.GenerateKey(zeros{})
		f(&bench{T: t, log: newMemLog(), cfg: testConfig(), ctx: ctx, key: key})
		cancel()
		synctest.Wait()
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// leader starts a controller; it does not lead yet.
func (b *bench) leader(name string) (*Leader, *replicaOf) {
	r := b.log.replica(name)
	d := Deps{Log: r, Name: name, Config: func() *conf.Config { return b.cfg }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Signer:  func() (ed25519.PrivateKey, []byte) { return b.key, []byte("certificate of " + name) },
		Address: func(c string) string { return c + ":6817" }, Now: b.log.now}
	if b.deps != nil {
		b.deps(&d)
	}
	l := New(d)
	if b.first == nil {
		b.first = l
	}
	go l.Run(b.ctx)
	return l, r
}

// lead starts a controller that leads.
func (b *bench) lead(name string) (*Leader, *replicaOf) {
	l, r := b.leader(name)
	r.win(b.ctx)
	synctest.Wait()
	return l, r
}

// submit applies submissions and gives the ids.
func (b *bench) submit(specs ...*job.Spec) (ids []uint32) {
	b.Helper()
	for _, s := range specs {
		if s.Script == nil && s.ScriptHash == nil {
			s.Script = []byte("#!/bin/sh\n")
		}
		s.UID, s.GID, s.User, s.WorkDir = 1000, 1000, "ada", "/home/ada"
		digest := sha256.Sum256(s.Script)
		b.log.mu.Lock()
		results, err := b.log.apply([]*logpb.Command{{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Spec: fsm.SpecToLog(s), Digest: digest[:]}}}})
		b.log.mu.Unlock()
		if err != nil || results[0].Refused != nil {
			b.Fatalf("submit: %v %+v", err, results)
		}
		ids = append(ids, results[0].JobID)
	}
	return ids
}

// blob puts a blob into the state.
func (b *bench) blob(data []byte) []byte {
	b.log.mu.Lock()
	defer b.log.mu.Unlock()
	return b.blobLocked(data)
}

func (b *bench) blobLocked(data []byte) []byte {
	hash := sha256.Sum256(data)
	for at := 0; at < len(data); at += state.MaxChunk {
		_, err := b.log.apply([]*logpb.Command{{Of: &logpb.Command_PutBlob{PutBlob: &logpb.PutBlob{Hash: hash[:], Total: uint64(len(data)),
			Offset: uint64(at), Data: data[at:min(at+state.MaxChunk, len(data))]}}}})
		if err != nil {
			panic(err)
		}
	}
	return hash[:]
}

func (b *bench) apply(c *logpb.Command) {
	b.Helper()
	b.log.mu.Lock()
	defer b.log.mu.Unlock()
	if _, err := b.log.apply([]*logpb.Command{c}); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) job(id uint32) *state.Job { return b.log.store.View().Job(id) }

// want checks a job's state.
func (b *bench) want(id uint32, s job.State, flags job.Flags) {
	b.Helper()
	synctest.Wait()
	j := b.job(id)
	if j.State != s || j.Flags != flags {
		b.Errorf("job %d is %v %v (%s %s), want %v %v", id, j.State, j.Flags.Names(), j.Reason, j.Detail, s, flags.Names())
	}
}

// agent is one node's agent: it keeps what a real one keeps, and answers when the test says so.
type agent struct {
	b      *bench
	name   string
	in     chan *nodepb.AgentMessage
	out    chan *nodepb.ControllerMessage
	ctx    context.Context
	cancel context.CancelFunc
	err    chan error
	grpc.ServerStream

	mu  sync.Mutex
	got []*nodepb.ControllerMessage
}

func (a *agent) Context() context.Context { return a.ctx }
func (a *agent) Send(m *nodepb.ControllerMessage) error {
	select {
	case a.out <- m:
		return nil
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}
func (a *agent) Recv() (*nodepb.AgentMessage, error) {
	select {
	case m := <-a.in:
		return m, nil
	case <-a.ctx.Done():
		return nil, a.ctx.Err()
	}
}

func hello(name string, held ...*nodepb.StepKey) *nodepb.Hello {
	return &nodepb.Hello{Node: name, Cluster: "tg", Version: "1", BootId: "boot1", AgentStartMs: 1, Held: held, CgroupDriver: "v2",
		Inventory: &nodepb.Inventory{Cpus: 4, Boards: 1, Sockets: 1, CoresPerSocket: 4, ThreadsPerCore: 1, Mem: 4 << 30,
			Gres: "gpu:a100:2", Os: "Linux", Arch: "x86_64", Hostname: name + ".example.org"}}
}

// nodeContext is that of a caller with a node's certificate.
func nodeContext(ctx context.Context, name string) context.Context {
	return authn.NewContext(ctx, authn.Caller{Role: authn.RoleNode, Name: name})
}

// dial opens a session of a node whose certificate says name.
func (b *bench) dial(l *Leader, name string, h *nodepb.Hello) *agent {
	a := &agent{b: b, name: name, in: make(chan *nodepb.AgentMessage), out: make(chan *nodepb.ControllerMessage), err: make(chan error, 1)}
	a.ctx, a.cancel = context.WithCancel(nodeContext(b.ctx, name))
	go func() {
		err := l.Session(a)
		a.err <- err
		a.cancel()
	}()
	a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Hello{Hello: h}})
	return a
}

// connect dials and reads all that the leader sends from then on.
func (b *bench) connect(l *Leader, name string, held ...*nodepb.StepKey) *agent {
	a := b.dial(l, name, hello(name, held...))
	a.read()
	synctest.Wait()
	return a
}

func (a *agent) read() {
	go func() {
		for {
			select {
			case m := <-a.out:
				a.mu.Lock()
				a.got = append(a.got, m)
				a.mu.Unlock()
			case <-a.ctx.Done():
				return
			}
		}
	}()
}

func (a *agent) say(m *nodepb.AgentMessage) {
	select {
	case a.in <- m:
	case <-a.ctx.Done():
	}
}

// beat sends a heartbeat each second until the session ends.
func (a *agent) beat() {
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for n := uint64(1); ; n++ {
			select {
			case <-a.ctx.Done():
				return
			case <-tick.C:
				a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: &nodepb.Heartbeat{Seq: n, Load: 0.5}}})
			}
		}
	}()
}

// take gives what has come since the last take, and forgets it.
func (a *agent) take() []*nodepb.ControllerMessage {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	got := a.got
	a.got = nil
	return got
}

// launches gives the launches that have come since the last take.
func (a *agent) launches() (list []*nodepb.Launch) {
	for _, m := range a.take() {
		list = append(list, m.GetLaunch().GetLaunches()...)
	}
	return list
}

// started answers launches with success.
func (a *agent) started(list []*nodepb.Launch) {
	var results []*nodepb.LaunchResult
	for _, l := range list {
		results = append(results, &nodepb.LaunchResult{Key: l.Key, Ok: true, StartMs: time.Now().UnixMilli()})
	}
	a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: &nodepb.LaunchResults{Results: results}}})
	time.Sleep(2 * confirmDelay)
	synctest.Wait()
}

func (a *agent) report(reports ...*nodepb.Report) {
	a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Reports{Reports: &nodepb.Reports{Reports: reports}}})
	time.Sleep(2 * ackDelay)
	synctest.Wait()
}

func (a *agent) killResult(k *nodepb.StepKey, found bool) {
	a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Killed{Killed: &nodepb.KillResults{Results: []*nodepb.KillResult{{Key: k, Found: found}}}}})
	synctest.Wait()
}

func batch(id, run uint32) *nodepb.StepKey {
	return &nodepb.StepKey{JobId: id, Run: run, Step: job.BatchStep}
}
