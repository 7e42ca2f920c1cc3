package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// soloLog is a log of one replica without raft: the real fsm over the real state.
type soloLog struct {
	mu      sync.Mutex
	machine *fsm.FSM
	store   *state.Store
	index   uint64
	now     func() time.Time
	changed chan struct{}

	leader string // who leads; "self" is this one
	fail   []error
	hook   func() // called once, before the next proposal
}

func newSoloLog(now func() time.Time) *soloLog {
	store := state.New()
	return &soloLog{machine: fsm.New(store), store: store, now: now, changed: make(chan struct{}), leader: "self"}
}

func (l *soloLog) Propose(_ context.Context, cmds ...*logpb.Command) ([]fsm.Result, error) {
	if hook := l.hook; hook != nil {
		l.hook = nil
		hook()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fail) > 0 {
		err := l.fail[0]
		l.fail = l.fail[1:]
		return nil, err
	}
	if l.leader != "self" {
		return nil, replica.ErrNotLeader
	}
	var out []fsm.Result
	for len(cmds) > 0 {
		n := min(len(cmds), replica.MaxEntryCommands)
		data, err := proto.Marshal(&logpb.Entry{Version: l.store.View().Feature(), TimeMs: l.now().UnixMilli(), Commands: cmds[:n]})
		if err != nil {
			return nil, err
		}
		l.index++
		res, err := l.machine.ApplyEntry(l.index, data)
		if err != nil {
			return nil, err
		}
		out, cmds = append(out, res...), cmds[n:]
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return out, nil
}

func (l *soloLog) View() state.Viewer { return l.store.View() }

func (l *soloLog) Read(context.Context) (state.Viewer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leader == "" {
		return nil, replica.ErrNoLeader
	}
	return l.store.View(), nil
}

func (l *soloLog) Changed(index uint64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.index > index {
		done := make(chan struct{})
		close(done)
		return done
	}
	return l.changed
}

func (l *soloLog) Leader() (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leader == "self" {
		return "c1", true
	}
	return l.leader, false
}

func (l *soloLog) Leadership() <-chan context.Context { return nil }

func (l *soloLog) Status() replica.Status {
	return replica.Status{Name: "c1", Role: "leader", Leader: "c1", ContactMS: 42}
}

// fixture is one server over a soloLog with four nodes and some users.
type fixture struct {
	t    testing.TB
	log  *soloLog
	srv  *Server
	conf string
	now  time.Time
}

const testConf = `
ClusterName=test
ControllerName=c1 Address=127.0.0.1
Operators=olga
NodeName=DEFAULT CPUs=4 RealMemory=4000
NodeName=n[1-2] Features=fast
NodeName=g[1-2] Gres=gpu:a100:2
PartitionName=batch Nodes=n[1-2],g[1-2] Default=YES DefaultTime=60
PartitionName=short Nodes=n1 MaxTime=30 MaxNodes=1
PartitionName=staff Nodes=n2 AllowGroups=staff
`

// Users of the fixture.
const (
	ann  = 1001
	bob  = 1002
	olga = 1003 // operator
	sam  = 1004 // in group staff
)

func newFixture(t testing.TB, more string) *fixture {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	passwd := write("passwd", "root:x:0:0::/root:/bin/sh\nann:x:1001:100::/home/ann:/bin/bash\nbob:x:1002:100::/home/bob:/bin/sh\nolga:x:1003:100::/home/olga:/bin/sh\nsam:x:1004:100::/home/sam:/bin/sh\n")
	group := write("group", "root:x:0:\nusers:x:100:\nstaff:x:50:sam\n")
	f := &fixture{t: t, conf: write("grid.conf", testConf+more), now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	clock := func() time.Time { return f.now }
	f.log = newSoloLog(clock)
	cfg, err := conf.Load(f.conf)
	if err != nil {
		t.Fatal(err)
	}
	f.srv = New(Deps{
		Log: f.log, Auth: authn.NewAuthenticator(authn.NewAccounts(passwd, group, time.Now), nil), Config: cfg,
		Encode: encode, Name: "c1", Version: "test", Peers: noPeers{}, Now: clock,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	f.propose(&logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: encode(cfg)}})
	return f
}

// encode is the tests' own small version of what the leader package does.
func encode(c *conf.Config) *logpb.SetConfig {
	out := &logpb.SetConfig{Cluster: c.ClusterName, FirstJobId: c.FirstJobId, MaxJobCount: c.MaxJobCount,
		MaxArraySize: c.MaxArraySize, KillWaitMs: c.KillWait.Milliseconds(), JobRequeue: c.JobRequeue, Digest: c.Digest(), Sched: encodeSched(c)}
	for _, n := range c.Nodes {
		out.Nodes = append(out.Nodes, &logpb.ConfigNode{Name: n.Name, Cpus: n.CPUs, Boards: 1, Sockets: n.Sockets,
			CoresPerSocket: n.CoresPerSocket, ThreadsPerCore: n.ThreadsPerCore, Mem: n.RealMemory, Gres: n.Gres, Features: n.Features, Weight: n.Weight})
	}
	for _, p := range c.Partitions {
		out.Partitions = append(out.Partitions, &logpb.ConfigPartition{Name: p.Name, IsDefault: p.Default, Nodes: p.Nodes,
			State: p.State, MaxTimeMs: p.MaxTime, DefaultTimeMs: p.DefaultTime, MinNodes: p.MinNodes, MaxNodes: p.MaxNodes,
			AllowGroups: p.AllowGroups, AllowAccounts: p.AllowAccounts, DenyAccounts: p.DenyAccounts, SharedFs: p.SharedFS, OverSubscribe: p.OverSubscribe, PriorityTier: p.PriorityTier,
			Qos: p.QOS, DenyQos: p.DenyQOS, AllowQos: p.AllowQOS, TresBillingWeights: p.TRESBillingWeights, ReqResv: p.ReqResv})
	}
	return out
}

type noPeers struct{ Peers }

func (f *fixture) propose(cmds ...*logpb.Command) []fsm.Result {
	f.t.Helper()
	res, err := f.log.Propose(context.Background(), cmds...)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range res {
		if r.Refused != nil {
			f.t.Fatalf("refused: %+v", *r.Refused)
		}
	}
	return res
}

// as makes the context of a user's call.
func (f *fixture) as(uid uint32) context.Context {
	return authn.NewContext(context.Background(), f.srv.Auth.Person(uid, 100, 1))
}

func script() *ctldpb.JobSpec {
	return &ctldpb.JobSpec{Name: "job", WorkDir: "/data", Script: []byte("#!/bin/sh\ntrue\n"), SubmitLine: "sbatch job.sh", Args: []string{"secret"}}
}

// submit submits and expects an id.
func (f *fixture) submit(uid uint32, edit func(*ctldpb.JobSpec)) uint32 {
	f.t.Helper()
	spec := script()
	if edit != nil {
		edit(spec)
	}
	resp, err := f.srv.Submit(f.as(uid), &ctldpb.SubmitRequest{Spec: spec})
	if err != nil {
		f.t.Fatalf("submit: %v", err)
	}
	return resp.JobId
}

// list runs ListJobs and gives the jobs of all pages and the unknown ids.
func (f *fixture) list(uid uint32, req *ctldpb.ListJobsRequest) (jobs []*ctldpb.Job, unknown []string, pages int) {
	f.t.Helper()
	s := &jobStream{ctx: f.as(uid)}
	if err := f.srv.ListJobs(req, s); err != nil {
		f.t.Fatalf("list: %v", err)
	}
	for _, p := range s.pages {
		jobs = append(jobs, p.Jobs...)
		unknown = append(unknown, p.UnknownIds...)
	}
	return jobs, unknown, len(s.pages)
}

// jobStream collects the pages of a ListJobs.
type jobStream struct {
	grpc.ServerStream
	ctx   context.Context
	pages []*ctldpb.ListJobsResponse
}

func (s *jobStream) Context() context.Context     { return s.ctx }
func (s *jobStream) SetHeader(metadata.MD) error  { return nil }
func (s *jobStream) SendHeader(metadata.MD) error { return nil }
func (s *jobStream) Send(p *ctldpb.ListJobsResponse) error {
	s.pages = append(s.pages, p)
	return nil
}

func ids(jobs []*ctldpb.Job) string {
	var b strings.Builder
	for i, j := range jobs {
		if i > 0 {
			b.WriteByte(' ')
		}
		switch {
		case j.ArrayTaskId >= 0:
			fmt.Fprintf(&b, "%d_%d", j.ArrayJobId, j.ArrayTaskId)
		case j.ArrayPending != "":
			fmt.Fprintf(&b, "%d_%s", j.ArrayJobId, j.ArrayPending)
		default:
			fmt.Fprint(&b, j.JobId)
		}
	}
	return b.String()
}

// start runs a waiting job (or one task of an array) on a node, as a plan would.
func (f *fixture) start(id uint32, task int64, node string) {
	f.t.Helper()
	res, err := f.log.Propose(context.Background(), &logpb.Command{Of: &logpb.Command_Plan{Plan: &logpb.Plan{
		Base: f.log.View().Version(),
		Starts: []*logpb.Start{{JobId: id, ArrayTask: task, Partition: "batch", TimeLimitMs: 3600000,
			Nodes: []*logpb.NodeAlloc{{Node: node, Cpus: 1, Tasks: 1, CpuIds: []uint32{0}}}}},
	}}})
	if err != nil || res[0].Taken != 1 {
		f.t.Fatalf("start %d: %v %+v", id, err, res)
	}
}

// register brings a node up.
func (f *fixture) register(names ...string) {
	f.t.Helper()
	for _, name := range names {
		n := f.log.View().Node(name)
		f.propose(&logpb.Command{Of: &logpb.Command_RegisterNode{RegisterNode: &logpb.RegisterNode{
			Node: name, BootId: "b1", Version: "test", Cpus: n.Config.CPUs, Boards: n.Config.Boards, Sockets: n.Config.Sockets,
			CoresPerSocket: n.Config.CoresPerSocket, ThreadsPerCore: n.Config.ThreadsPerCore, Mem: n.Config.Mem, Gres: n.Config.Gres,
		}}})
	}
}

// end reports a run's exit.
func (f *fixture) end(id, run uint32, node string, code int32) {
	f.t.Helper()
	f.propose(
		&logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{JobId: id, Run: run, Node: node, Ok: true, StartMs: f.now.UnixMilli()}}},
		&logpb.Command{Of: &logpb.Command_Reported{Reported: &logpb.Reported{JobId: id, Run: run, Step: 4294967291, Node: node, ExitCode: code,
			StartMs: f.now.UnixMilli(), EndMs: f.now.UnixMilli()}}})
}

// wantRefusal checks that an error carries a refusal with that code, and that its text or reason
// holds each of the words.
func wantRefusal(t *testing.T, err error, code string, words ...string) {
	t.Helper()
	r := RefusalOf(err)
	if r == nil {
		t.Fatalf("want refusal %s, got %v", code, err)
	}
	if r.Code != code {
		t.Fatalf("code %s (%s; %s), want %s", r.Code, r.Text, r.Why, code)
	}
	for _, w := range words {
		if !strings.Contains(r.Text+"\n"+r.Why, w) {
			t.Errorf("%q is not in %q / %q", w, r.Text, r.Why)
		}
	}
}
