package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// fakeNow is the clock of all command tests.
var fakeNow = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// fake is a controller that keeps jobs, nodes and partitions, and remembers keys, as a real one does.
type fake struct {
	ctldpb.UnimplementedControllerServer

	mu     sync.Mutex
	jobs   []*ctldpb.Job
	nodes  []*ctldpb.Node
	parts  []*ctldpb.Partition
	blobs  map[string][]byte
	byKey  map[string]uint32
	last   map[string]any // method -> last request
	refuse map[string]*ctldpb.Refusal
	down   int // calls still answered with Unavailable
	lost   int // submissions and changes that are taken but whose answer is lost
	ctls   []*ctldpb.ControllerInfo
	// catchUp: how often the last controller is asked after until it has caught up.
	catchUp int
	cut     string // what is wrong with a backup: once, end, bytes

	accounting map[string][]*ctldpb.AccountingRow // entity -> what a list of it gives
	changes    []*ctldpb.ChangeAccountingRequest
	changed    []string // what a change says
	policy     string   // of priorities
	explained  *ctldpb.JobExplanation
	resv       []*ctldpb.Reservation
	licenses   []*ctldpb.License
	stream     int // rows that StreamJobs gives; 0 = it is not known
	breaks     int // streams that break off
}

func newFake() *fake {
	return &fake{blobs: map[string][]byte{}, byKey: map[string]uint32{}, last: map[string]any{}, refuse: map[string]*ctldpb.Refusal{}}
}

// serve starts the fake on a socket and gives its path.
func (f *fake) serve(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c1.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(8<<20), grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if err := f.enter(info.FullMethod, req); err != nil {
			return nil, err
		}
		return h(ctx, req)
	}))
	ctldpb.RegisterControllerServer(s, f)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return path
}

// enter notes the request and gives the failures that a test asked for.
func (f *fake) enter(method string, req any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := method[strings.LastIndexByte(method, '/')+1:]
	if f.down > 0 {
		f.down--
		return status.Error(codes.Unavailable, "no controller leads at present")
	}
	f.last[name] = req
	if r := f.refuse[name]; r != nil {
		st, err := status.New(codes.InvalidArgument, r.Text).WithDetails(r)
		if err != nil {
			return err
		}
		return st.Err()
	}
	return nil
}

func (f *fake) PutBlob(_ context.Context, r *ctldpb.PutBlobRequest) (*ctldpb.PutBlobResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := sha256.Sum256(r.Data)
	f.blobs[string(h[:])] = r.Data
	return &ctldpb.PutBlobResponse{Hash: h[:]}, nil
}

func (f *fake) Submit(_ context.Context, r *ctldpb.SubmitRequest) (*ctldpb.SubmitResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.TestOnly {
		return &ctldpb.SubmitResponse{TestResult: "Job 1 to start at 2026-11-30T12:00:00 using 1 processors on nodes n1 in partition main", Explanation: f.explained}, nil
	}
	id, known := f.byKey[r.Key]
	if !known {
		id = uint32(len(f.jobs) + 1)
		f.byKey[r.Key] = id
		f.jobs = append(f.jobs, &ctldpb.Job{JobId: id, ArrayTaskId: -1, Spec: r.Spec, State: "PENDING", Partition: "main", User: "alice", Uid: 1000, SubmitMs: fakeNow.UnixMilli()})
	}
	if f.lost > 0 {
		f.lost--
		return nil, status.Error(codes.Unavailable, "the leader changed; the outcome is not known")
	}
	return &ctldpb.SubmitResponse{JobId: id, Duplicate: known}, nil
}

func (f *fake) ListJobs(r *ctldpb.ListJobsRequest, out grpc.ServerStreamingServer[ctldpb.ListJobsResponse]) error {
	if err := f.enter("ListJobs", r); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	res := &ctldpb.ListJobsResponse{Info: &ctldpb.ReadInfo{Controller: "c1"}}
	for _, id := range r.JobIds {
		if !slices.ContainsFunc(f.jobs, func(j *ctldpb.Job) bool { return named(j, id) }) {
			res.UnknownIds = append(res.UnknownIds, id)
		}
	}
	for _, j := range f.jobs {
		if f.takes(r, j) {
			res.Jobs = append(res.Jobs, j)
		}
	}
	return out.Send(res)
}

func named(j *ctldpb.Job, id string) bool {
	return id == fmt.Sprint(j.JobId) || id == fmt.Sprintf("%d_%d", j.ArrayJobId, j.ArrayTaskId) || id == fmt.Sprint(j.ArrayJobId)
}

func (f *fake) takes(r *ctldpb.ListJobsRequest, j *ctldpb.Job) bool {
	s, _, _ := job.ParseState(j.State)
	switch {
	case len(r.JobIds) > 0 && !slices.ContainsFunc(r.JobIds, func(id string) bool { return named(j, id) }),
		len(r.Users) > 0 && !slices.Contains(r.Users, j.User) && !slices.Contains(r.Users, fmt.Sprint(j.Uid)),
		len(r.Names) > 0 && !slices.Contains(r.Names, j.Spec.Name),
		len(r.Partitions) > 0 && !slices.Contains(r.Partitions, j.Partition):
		return false
	case len(r.States) == 0:
		return !s.Ended() || slices.Contains(j.Flags, "COMPLETING")
	}
	return slices.Contains(r.States, "all") || slices.Contains(r.States, j.State)
}

func (f *fake) Cancel(_ context.Context, r *ctldpb.CancelRequest) (*ctldpb.JobResults, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	res := &ctldpb.JobResults{}
	for _, id := range r.Filter.JobIds {
		i := slices.IndexFunc(f.jobs, func(j *ctldpb.Job) bool { return named(j, id) })
		one := &ctldpb.JobResult{JobId: id}
		switch {
		case i < 0:
			one.Code, one.Text = "ESLURM_INVALID_JOB_ID", "Invalid job id specified"
		case f.jobs[i].User == "root":
			one.Code, one.Text = "ESLURM_ACCESS_DENIED", "Access/permission denied"
		default:
			f.jobs[i].State = "CANCELLED"
		}
		res.Results = append(res.Results, one)
	}
	return res, nil
}

func (f *fake) Control(_ context.Context, r *ctldpb.ControlRequest) (*ctldpb.JobResults, error) {
	return results(r.JobIds), nil
}

func (f *fake) UpdateJob(_ context.Context, r *ctldpb.UpdateJobRequest) (*ctldpb.JobResults, error) {
	return results(r.JobIds), nil
}

// results are those of an operation on jobs: 99 does not exist.
func results(ids []string) *ctldpb.JobResults {
	res := &ctldpb.JobResults{}
	for _, id := range ids {
		one := &ctldpb.JobResult{JobId: id}
		if id == "99" {
			one.Code, one.Text = "ESLURM_INVALID_JOB_ID", "Invalid job id specified"
		}
		res.Results = append(res.Results, one)
	}
	return res
}

func (f *fake) UpdateNode(_ context.Context, r *ctldpb.UpdateNodeRequest) (*ctldpb.UpdateNodeResponse, error) {
	return &ctldpb.UpdateNodeResponse{}, nil
}

func (f *fake) UpdatePartition(_ context.Context, r *ctldpb.UpdatePartitionRequest) (*ctldpb.UpdatePartitionResponse, error) {
	return &ctldpb.UpdatePartitionResponse{}, nil
}

func (f *fake) WaitJob(_ context.Context, r *ctldpb.WaitJobRequest) (*ctldpb.WaitJobResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[r.JobId-1]
	var code, sig int32
	script := string(j.Spec.Script)
	if _, after, ok := strings.Cut(script, "exit "); ok {
		fmt.Sscan(after, &code)
	}
	if _, after, ok := strings.Cut(script, "kill -"); ok {
		fmt.Sscan(after, &sig)
	}
	return &ctldpb.WaitJobResponse{Done: true, State: "COMPLETED", Exit: &ctldpb.ExitStatus{Code: code, Signal: sig}}, nil
}

func (f *fake) GetScript(_ context.Context, r *ctldpb.GetScriptRequest) (*ctldpb.GetScriptResponse, error) {
	return &ctldpb.GetScriptResponse{Data: []byte("#!/bin/sh\ntrue\n")}, nil
}

func (f *fake) ListNodes(_ context.Context, r *ctldpb.ListNodesRequest) (*ctldpb.ListNodesResponse, error) {
	res := &ctldpb.ListNodesResponse{}
	for _, n := range f.nodes {
		if len(r.Names) == 0 || slices.Contains(r.Names, n.Name) {
			res.Nodes = append(res.Nodes, n)
		}
	}
	for _, name := range r.Names {
		if !slices.ContainsFunc(f.nodes, func(n *ctldpb.Node) bool { return n.Name == name }) {
			res.Unknown = append(res.Unknown, name)
		}
	}
	return res, nil
}

func (f *fake) ListPartitions(_ context.Context, r *ctldpb.ListPartitionsRequest) (*ctldpb.ListPartitionsResponse, error) {
	res := &ctldpb.ListPartitionsResponse{}
	for _, p := range f.parts {
		if len(r.Names) == 0 || slices.Contains(r.Names, p.Name) {
			res.Partitions = append(res.Partitions, p)
		}
	}
	return res, nil
}

func (f *fake) ShowConfig(context.Context, *ctldpb.ShowConfigRequest) (*ctldpb.ShowConfigResponse, error) {
	return &ctldpb.ShowConfigResponse{Lines: []*ctldpb.ConfigLine{{Key: "ClusterName", Value: "lab"}, {Key: "MaxArraySize", Value: "1001"}}}, nil
}

func (f *fake) Reconfigure(_ context.Context, r *ctldpb.ReconfigureRequest) (*ctldpb.ReconfigureResponse, error) {
	if r.DryRun {
		return &ctldpb.ReconfigureResponse{Changed: []string{"KillWait 30 -> 10"}, NeedsRestart: []string{"ClusterName a -> b"}}, nil
	}
	return &ctldpb.ReconfigureResponse{Problems: []string{"grid.conf:3: KillWait: not a number"}}, nil
}

func (f *fake) Ping(context.Context, *ctldpb.PingRequest) (*ctldpb.PingResponse, error) {
	return &ctldpb.PingResponse{Controller: "c1", Role: "leader", Leader: "c1", Peers: []*ctldpb.PeerStatus{{Name: "c1", Up: true, LatencyUs: 1260}, {Name: "c2", Up: false, Error: "refused"}}}, nil
}

func (f *fake) JobOutput(r *ctldpb.JobOutputRequest, out grpc.ServerStreamingServer[ctldpb.JobOutputResponse]) error {
	for _, part := range []string{"hello ", "world\n"} {
		if err := out.Send(&ctldpb.JobOutputResponse{Data: []byte(part)}); err != nil {
			return err
		}
	}
	return out.Send(&ctldpb.JobOutputResponse{End: true})
}

// answer is what a call printed and gave.
type answer struct {
	code        int
	out, errout string
}

// runner calls commands against one fake.
type runner struct {
	t      *testing.T
	fake   *fake
	env    []string
	stdin  string
	dir    string
	tty    bool
	shared bool
	uid    uint32
	out    io.Writer // standard output, when it is not kept
	c      *client.Client
}

func newRunner(t *testing.T) *runner {
	f := newFake()
	path := f.serve(t)
	return &runner{t: t, fake: f, dir: t.TempDir(), uid: 1000, env: []string{"PATH=/bin", "HOME=/home/alice"},
		c: client.New("lab", []client.Target{{Name: "c1", Socket: path}})}
}

// call runs one command line.
func (r *runner) call(name string, args ...string) answer {
	var out, errout bytes.Buffer
	env := &program.Env{
		Name: name, Args: args, Stdin: strings.NewReader(r.stdin), Stdout: &out, Stderr: &errout, Environ: r.env, Dir: r.dir, UID: r.uid,
		Now: func() time.Time { return fakeNow }, Sleep: func(time.Duration) {}, StdoutTerminal: r.tty, SharedOutput: r.shared,
		Connect: func() (*client.Client, error) { return r.c, nil },
	}
	if r.out != nil {
		env.Stdout = r.out
	}
	code := dispatch(env)
	return answer{code, out.String(), errout.String()}
}

// want compares an answer.
func (r *runner) want(a answer, code int, out, errout string) {
	r.t.Helper()
	if a.code != code || a.out != out || a.errout != errout {
		r.t.Errorf("got code %d, out\n%q\nerr\n%q\nwant code %d, out\n%q\nerr\n%q", a.code, a.out, a.errout, code, out, errout)
	}
}

// request gives the last request of a method.
func request[T any](r *runner, method string) T {
	r.t.Helper()
	r.fake.mu.Lock()
	defer r.fake.mu.Unlock()
	req, ok := r.fake.last[method].(T)
	if !ok {
		r.t.Fatalf("no %s request", method)
	}
	return req
}
