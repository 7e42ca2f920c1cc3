package daemon

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/leader"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/server"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Size and targets of the measurement of users' calls.
var (
	callsPending = flag.Int("bench-pending", 100_000, "jobs that wait while users' calls are measured")
	callsNodes   = flag.Int("bench-nodes", 10_000, "nodes, all of them full, while users' calls are measured")
)

const (
	callsShapes  = 1_000
	callsWidest  = 8         // nodes of one job
	callsOwn     = 100       // jobs of the user whose queue is asked for
	callsEach    = 300       // calls of each kind
	callsTarget  = 100.0     // ms, the 99th percentile
	squeueMillis = 167       // published for Slurm's squeue with 10,000 jobs
	callsUser    = benchUser // whose the queue is
	callsOther   = benchUser + 1
)

// callsBench is a whole controller with its users' socket and a long queue.
type callsBench struct {
	*simCluster
	t    *testing.T
	dir  string
	conn ctldpb.ControllerClient
}

// newCallsBench brings up the controller; its nodes are full, of runs that do not end.
func newCallsBench(t *testing.T) *callsBench {
	dir, err := os.MkdirTemp("", "tgb") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	sock := filepath.Join(dir, "s")
	c := newSimCluster(t, simSetup{nodes: *callsNodes, socket: sock, lines: []string{
		fmt.Sprintf("NodeName=s[1-%d] CPUs=%d RealMemory=8000", *callsNodes, simCPUs), "PriorityType=priority/multifactor", "PriorityWeightAge=1000"}})
	forever := func(uint32) time.Duration { return -1 }
	c.lasts.Store(&forever)
	b := &callsBench{simCluster: c, t: t, dir: dir}
	for name, text := range map[string]string{"group": "users:x:100:\n", "passwd": fmt.Sprintf(
		"root:x:0:0::/root:/bin/sh\nbench:x:%d:100::/tmp:/bin/sh\nown:x:%d:100::/tmp:/bin/sh\n", callsUser, callsOther)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.listen(sock)
	b.queue(*callsNodes, callsUser, "bench", 1)
	c.open(true)
	c.until("full nodes", func(v state.Viewer) bool { _, _, running := v.Counts(); return running == *callsNodes })
	return b
}

// listen opens the users' socket as the product does.
func (b *callsBench) listen(sock string) {
	auth := authn.NewAuthenticator(authn.NewAccounts(filepath.Join(b.dir, "passwd"), filepath.Join(b.dir, "group"), time.Now), nil)
	srv := server.New(server.Deps{Log: b.log, Auth: auth, Config: b.cfg, Load: loadConf, Encode: leader.SetConfig, Name: "c1", Now: time.Now, Logger: quiet()})
	l, err := listenUnix(sock)
	if err != nil {
		b.t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(authn.PeerCred()), grpc.InTapHandle(newGate(localBounds()).enter),
		grpc.MaxRecvMsgSize(server.MaxMessage), grpc.MaxHeaderListSize(remoteHeaders), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ChainUnaryInterceptor(arrivedUnary, auth.Unary(), srv.Forwarding()),
		grpc.ChainStreamInterceptor(arrivedStream, auth.Stream(), srv.AuditStream()))
	ctldpb.RegisterControllerServer(g, srv)
	go g.Serve(newUserListener(l, userConns()))
	conn, err := grpc.NewClient("unix:"+sock, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(server.MaxMessage)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.conn = ctldpb.NewControllerClient(conn)
	b.t.Cleanup(func() { conn.Close(); g.Stop() })
}

// queue submits jobs of one user: of many shapes, on up to so many nodes, and with limits from a minute to a day.
func (b *callsBench) queue(jobs int, uid uint32, user string, widest int) {
	b.t.Helper()
	const once = 4096
	var cmds []*logpb.Command
	for i := range jobs {
		spec := fsm.SpecToLog(&job.Spec{Name: "train", Script: []byte("#!/bin/sh\n"), UID: uid, GID: 100, User: user, WorkDir: "/tmp", Partition: "batch",
			MinNodes: uint32(1 + i%widest), NTasks: uint32(1 + i%widest), CPUsPerTask: simCPUs, MemPerNode: int64(1+i%callsShapes) << 20,
			TimeLimit: int64(1+i%callsShapes*1440/callsShapes) * time.Minute.Milliseconds()})
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Spec: spec}}})
		if len(cmds) == once || i == jobs-1 {
			b.propose(cmds...)
			cmds = cmds[:0]
		}
	}
}

// passes plans all of the queue anew, again and again, until stop is called, which gives how many it were.
func (b *callsBench) passes() (stop func() int) {
	var ends atomic.Bool
	var count int
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; !ends.Load(); count++ {
			view := b.log.View()
			sched.Plan(view.Sched(), time.Now().UnixMilli(), view.Policy())
		}
	}()
	return func() int { ends.Store(true); <-done; return count }
}

// slowest gives the 99th percentile of how long a call takes, ms.
func (b *callsBench) slowest(call func(ctx context.Context, i int) error) float64 {
	b.t.Helper()
	took := make([]time.Duration, callsEach)
	for i := range took {
		ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
		begin := time.Now()
		err := call(ctx, i)
		took[i] = time.Since(begin)
		cancel()
		if err != nil {
			b.t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) // they meet each part of a pass
	}
	slices.Sort(took)
	return float64(took[len(took)*99/100]) / float64(time.Millisecond)
}

// rows reads a listing as gqueue does.
func (b *callsBench) rows(ctx context.Context, req *ctldpb.ListJobsRequest, want int) error {
	stream, err := b.conn.StreamJobs(ctx, req)
	for rows := 0; err == nil; {
		var page *ctldpb.ListJobsResponse
		if page, err = stream.Recv(); errors.Is(err, io.EOF) && rows == want {
			return nil
		}
		rows += len(page.GetJobs())
	}
	return fmt.Errorf("not the %d rows that were to come: %w", want, err)
}

// submission is that of one job; root submits for somebody.
func submission(key string) *ctldpb.SubmitRequest {
	req := &ctldpb.SubmitRequest{Key: key, Spec: &ctldpb.JobSpec{Name: "train", WorkDir: "/tmp", Script: []byte("#!/bin/sh\n"), Partition: "batch", TimeLimitMs: 3600_000}}
	if os.Getuid() == 0 {
		req.Uid = callsUser
	}
	return req
}

// TestBenchCalls: what users ask for one by one stays quick beside full passes of the planner with 100,000 waiting
// jobs. The calls go through the users' socket, whose server, log and leader are the product's.
func TestBenchCalls(t *testing.T) {
	if !*benchSched {
		t.Skip("only with -bench-sched (make bench-sched)")
	}
	if os.Getuid() != 0 {
		t.Skip("asks for others' jobs: root only")
	}
	b := newCallsBench(t)
	gqueue := b.gqueue()
	b.listing(gqueue, "listing_first") // as many jobs as nodes
	b.queue(callsOwn, callsOther, "own", callsWidest)
	_, queued, _ := b.log.View().Counts()
	b.queue(max(*callsPending-queued, callsEach), callsUser, "bench", callsWidest)
	last := b.log.View().NextID() - callsEach
	stop, begin := b.passes(), time.Now()
	schedFigure(t, "calls_queue_job_p99", b.slowest(func(ctx context.Context, i int) error {
		return b.rows(ctx, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(last + uint32(i))}}, 1)
	}), "ms", "<=", callsTarget)
	schedFigure(t, "calls_queue_user_p99", b.slowest(func(ctx context.Context, _ int) error {
		return b.rows(ctx, &ctldpb.ListJobsRequest{Users: []string{"own"}}, callsOwn)
	}), "ms", "<=", callsTarget)
	schedFigure(t, "calls_submit_p99", b.slowest(func(ctx context.Context, i int) error {
		_, err := b.conn.Submit(ctx, submission(fmt.Sprint("one", i)))
		return err
	}), "ms", "<=", callsTarget)
	schedFigure(t, "calls_cancel_p99", b.slowest(func(ctx context.Context, i int) error {
		res, err := b.conn.Cancel(ctx, &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(last + uint32(i))}}})
		if err == nil && (len(res.Results) != 1 || res.Results[0].Code != "") {
			err = fmt.Errorf("%v", res)
		}
		return err
	}), "ms", "<=", callsTarget)
	took := time.Since(begin)
	passes := stop()
	_, queued, _ = b.log.View().Counts()
	fmt.Printf("figure calls_queued %d jobs\nfigure calls_passes %d full passes meanwhile, %d ms each\n", queued, passes, took.Milliseconds()/int64(max(passes, 1)))
	b.thought(last - callsEach)
	b.listing(gqueue, "listing_all")
}

// thought measures the answers that take a round of planning.
func (b *callsBench) thought(id uint32) {
	const calls = 5
	mean := func(call func(i int) error) float64 {
		begin := time.Now()
		for i := range calls {
			if err := call(i); err != nil {
				b.t.Fatal(err)
			}
		}
		return float64(time.Since(begin).Microseconds()) / 1000 / calls
	}
	fmt.Printf("figure calls_test_only %.1f ms\nfigure calls_why %.1f ms\nfigure calls_priorities %.1f ms\n",
		mean(func(int) error {
			req := submission("")
			req.TestOnly = true
			_, err := b.conn.Submit(b.ctx, req)
			return err
		}), mean(func(i int) error {
			_, err := b.conn.ExplainJob(b.ctx, &ctldpb.ExplainJobRequest{JobId: fmt.Sprint(id + uint32(i))})
			return err
		}), mean(func(int) error {
			_, err := b.conn.ListPriorities(b.ctx, &ctldpb.ListPrioritiesRequest{Users: []string{"own"}})
			return err
		}))
}

// gqueue builds the users' program.
func (b *callsBench) gqueue() string {
	path := filepath.Join(b.dir, "gqueue")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/tensorgrid/tensorgrid/cli").CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %s", err, out)
	}
	return path
}

// listing measures the whole queue as the users' program shows it, waiting and running.
func (b *callsBench) listing(gqueue, name string) {
	b.t.Helper()
	_, pending, running := b.log.View().Counts()
	peak := b.peak()
	cmd := exec.Command(gqueue, "-h")
	cmd.Env = append(os.Environ(), "GRID_CONF="+b.cfg.Source)
	var out bytes.Buffer
	cmd.Stdout = &out
	begin := time.Now()
	err := cmd.Start()
	if err != nil {
		b.t.Fatal(err)
	}
	size := resident(cmd.Process.Pid)
	err = cmd.Wait()
	took := time.Since(begin)
	grown := peak()
	if rows := bytes.Count(out.Bytes(), []byte("\n")); err != nil || rows != pending+running {
		b.t.Fatalf("%d rows, want %d: %v", rows, pending+running, err)
	}
	fmt.Printf("figure %s_rows %d\nfigure %s_time %d ms (squeue with 10,000 jobs: %d ms)\nfigure %s_memory_gqueue %d MiB\nfigure %s_memory_controller %.1f MiB more\n",
		name, pending+running, name, took.Milliseconds(), squeueMillis, name, <-size>>10, name, grown)
}

// resident follows a process until it has ended, and then gives the most KiB that it had in memory. What wait tells of
// it counts the process that started it, too.
func resident(pid int) <-chan int {
	most := make(chan int, 1)
	go func() {
		size := 0
		for {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, line, ok := bytes.Cut(text, []byte("VmHWM:"))
			if err != nil || !ok {
				most <- size
				return
			}
			fmt.Sscan(string(line), &size)
			time.Sleep(time.Millisecond)
		}
	}()
	return most
}

// peak follows what the controller's heap holds; the function tells by how many MiB it has been larger than at first.
func (b *callsBench) peak() func() float64 {
	first := heap()
	var most atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for {
			metrics.Read(sample)
			most.Store(max(most.Load(), sample[0].Value.Uint64()))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() float64 {
		close(stop)
		<-done
		return max(0, float64(most.Load())/(1<<20)-first)
	}
}
