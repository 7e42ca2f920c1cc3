package server

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
)

var benchSched = flag.Bool("bench-sched", false, "measure calls beside a planner that is always in a full pass, with 100,000 waiting jobs")

// Size of the bench.
const (
	benchPending = 100_000
	benchNodes   = 10_000
	benchShapes  = 1_000
	benchOwn     = 100 // jobs of the user whose queue is asked for
	benchCalls   = 300 // of each kind
)

// figureAtMost prints one measured line and tells whether it is within its target.
func figureAtMost(t *testing.T, name string, value float64, unit string, target float64) {
	verdict := "ok"
	if value > target {
		verdict = "short"
		t.Errorf("%s is %.2f %s, the target is %.2f", name, value, unit, target)
	}
	fmt.Printf("figure %s %.2f %s (target <= %.2f) %s\n", name, value, unit, target, verdict)
}

// deepQueue is a cluster with a long queue of many shapes, of which one user has a few.
func deepQueue(t *testing.T) *fixture {
	t.Helper()
	f := newSchedFixture(t, fmt.Sprintf("NodeName=x[1-%d] CPUs=4 RealMemory=4000\nPartitionName=big Nodes=x[1-%d] MaxTime=1-0\nMaxJobCount=1000000\nPriorityWeightAge=1000\n", benchNodes, benchNodes))
	var cmds []*logpb.Command
	for i := range benchNodes {
		n := f.log.View().Node(fmt.Sprintf("x%d", i+1))
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_RegisterNode{RegisterNode: &logpb.RegisterNode{
			Node: n.Name, BootId: "b1", Version: "test", Cpus: n.Config.CPUs, Boards: n.Config.Boards, Sockets: n.Config.Sockets,
			CoresPerSocket: n.Config.CoresPerSocket, ThreadsPerCore: n.Config.ThreadsPerCore, Mem: n.Config.Mem,
		}}})
	}
	f.propose(cmds...)
	for at := 0; at < benchPending; {
		req := &ctldpb.SubmitBatchRequest{}
		for ; len(req.Requests) < MaxBatch && at < benchPending; at++ {
			spec := script()
			spec.Partition, spec.TimeLimitMs = "big", 3600_000
			spec.MinNodes, spec.MaxNodes, spec.MemPerNode = 1, 1, int64(1+at%benchShapes)<<20
			req.Requests = append(req.Requests, &ctldpb.SubmitRequest{Spec: spec, Key: fmt.Sprint("k", at)})
		}
		if resp, err := f.srv.SubmitBatch(f.as(ann), req); err != nil || resp.Results[0].Refusal != nil {
			t.Fatal(resp, err)
		}
	}
	for range benchOwn {
		f.submit(sam, nil)
	}
	return f
}

// discard counts rows and keeps none.
type discard struct {
	grpc.ServerStream
	ctx  context.Context
	rows int
}

func (d *discard) Context() context.Context { return d.ctx }

func (d *discard) Send(p *ctldpb.ListJobsResponse) error {
	d.rows += len(p.Jobs)
	return nil
}

// timed gives the 99th percentile of how long a call takes, in ms.
func timed(t *testing.T, call func(i int) error) float64 {
	t.Helper()
	took := make([]time.Duration, benchCalls)
	for i := range took {
		begin := time.Now()
		if err := call(i); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(begin)
		time.Sleep(time.Millisecond)
	}
	slices.Sort(took)
	return float64(took[len(took)*99/100]) / float64(time.Millisecond)
}

// TestBenchSchedCalls: what users ask for one by one stays quick beside full passes of the planner.
func TestBenchSchedCalls(t *testing.T) {
	if !*benchSched {
		t.Skip("not asked for: -bench-sched")
	}
	f := deepQueue(t)
	var stop atomic.Bool
	var passes atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			view := f.log.View()
			sched.Plan(view.Sched(), f.now.UnixMilli(), view.Policy())
			passes.Add(1)
		}
	}()
	list := func(req *ctldpb.ListJobsRequest, want int) error {
		d := &discard{ctx: f.as(ann)}
		if err := f.srv.ListJobs(req, d); err != nil || d.rows != want {
			return fmt.Errorf("%d rows, want %d: %w", d.rows, want, err)
		}
		return nil
	}
	first := f.log.View().NextID() - 1000
	figureAtMost(t, "queue-one-job-p99", timed(t, func(i int) error {
		return list(&ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(first + uint32(i))}}, 1)
	}), "ms", 100)
	figureAtMost(t, "queue-one-user-p99", timed(t, func(int) error {
		return list(&ctldpb.ListJobsRequest{Users: []string{"sam"}}, benchOwn)
	}), "ms", 100)
	figureAtMost(t, "submit-p99", timed(t, func(i int) error {
		spec := script()
		spec.Partition = "big"
		_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec, Key: fmt.Sprint("one", i)})
		return err
	}), "ms", 100)
	figureAtMost(t, "cancel-p99", timed(t, func(i int) error {
		_, err := f.srv.Cancel(f.as(ann), &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(1 + i)}}})
		return err
	}), "ms", 100)
	stop.Store(true)
	<-done
	fmt.Printf("the planner made %d full passes meanwhile\n", passes.Load())
	thought(t, f, first)
	fullListing(t, f)
}

// thought measures the answers that take a round of planning.
func thought(t *testing.T, f *fixture, id uint32) {
	const calls = 5
	spec := script()
	spec.Partition = "big"
	begin := time.Now()
	for range calls {
		if _, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec, TestOnly: true}); err != nil {
			t.Fatal(err)
		}
	}
	tested := time.Since(begin) / calls
	begin = time.Now()
	for i := range calls {
		if _, err := f.srv.ExplainJob(f.as(ann), &ctldpb.ExplainJobRequest{JobId: fmt.Sprint(id + uint32(i))}); err != nil {
			t.Fatal(err)
		}
	}
	explained := time.Since(begin) / calls
	begin = time.Now()
	if _, err := f.srv.ListPriorities(f.as(ann), &ctldpb.ListPrioritiesRequest{Users: []string{"sam"}}); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("--test-only takes %d ms, an explanation %d ms, the priorities of one user's jobs %d ms\n",
		tested.Milliseconds(), explained.Milliseconds(), time.Since(begin).Milliseconds())
}

// fullListing measures the whole queue as a stream, and how much memory that takes.
func fullListing(t *testing.T, f *fixture) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d := &discard{ctx: f.as(ann)}
	begin := time.Now()
	if err := f.srv.StreamJobs(&ctldpb.ListJobsRequest{}, d); err != nil || d.rows < benchPending-benchCalls {
		t.Fatalf("%d rows, %v", d.rows, err)
	}
	took := time.Since(begin)
	runtime.GC()
	runtime.ReadMemStats(&after)
	fmt.Printf("full listing: %d rows in %d ms (squeue with 10,000 jobs: 167 ms); the heap is %.1f MiB larger afterwards\n",
		d.rows, took.Milliseconds(), (float64(after.HeapAlloc)-float64(before.HeapAlloc))/(1<<20))
}
