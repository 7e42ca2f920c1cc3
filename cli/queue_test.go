package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// StreamJobs gives f.stream rows in pieces; f.breaks of the calls break off in the middle.
func (f *fake) StreamJobs(r *ctldpb.ListJobsRequest, out grpc.ServerStreamingServer[ctldpb.ListJobsResponse]) error {
	if err := f.enter("StreamJobs", r); err != nil {
		return err
	}
	f.mu.Lock()
	total := f.stream
	f.mu.Unlock()
	if total == 0 {
		return status.Error(codes.Unimplemented, "unknown method StreamJobs")
	}
	const piece = 500
	for from := 0; from < total; from += piece {
		res := &ctldpb.ListJobsResponse{}
		for i := from; i < min(total, from+piece); i++ {
			id := uint32(total - i)
			res.Jobs = append(res.Jobs, &ctldpb.Job{JobId: id, ArrayTaskId: -1, User: "alice", Uid: 1000, State: "PENDING", Reason: "Priority", Partition: "main",
				Priority: int64(id % 7), TimeLimitMs: 60000, Spec: &ctldpb.JobSpec{Name: fmt.Sprintf("job%d", id), Comment: strings.Repeat("c", 500)}})
		}
		if err := out.Send(res); err != nil {
			return err
		}
		f.mu.Lock()
		broken := f.breaks > 0 && from >= piece
		if broken {
			f.breaks--
		}
		f.mu.Unlock()
		if broken {
			return status.Error(codes.Unavailable, "the controller goes down")
		}
	}
	return nil
}

func (f *fake) ExplainJob(_ context.Context, r *ctldpb.ExplainJobRequest) (*ctldpb.ExplainJobResponse, error) {
	if f.explained == nil {
		return nil, status.Error(codes.Unimplemented, "unknown method ExplainJob")
	}
	return &ctldpb.ExplainJobResponse{Jobs: []*ctldpb.JobExplanation{f.explained}}, nil
}

// TestQueueStreams: rows of many pieces are sorted; a controller that breaks off is asked again; unsorted rows that are
// out are never shown twice.
func TestQueueStreams(t *testing.T) {
	r := newRunner(t)
	r.fake.stream = 2000
	a := r.call("squeue", "-h", "-o", "%i", "-S", "i")
	lines := strings.Fields(a.out)
	if a.code != 0 || len(lines) != 2000 || lines[0] != "1" || lines[1999] != "2000" {
		t.Fatalf("%d lines, %s", len(lines), a.errout)
	}
	if a := r.call("squeue", "-h", "-o", "%i %Q"); !strings.HasPrefix(a.out, "6 6\n13 6\n") {
		t.Errorf("by priority, then id: %.40q", a.out)
	}
	if a := r.call("squeue", "-o", "%#j|"); !strings.HasPrefix(a.out, "NAME   |\njob6   |\n") {
		t.Errorf("as wide as the widest: %.40q", a.out)
	}
	r.fake.breaks = 1
	if a := r.call("squeue", "-h", "-o", "%i", "-S", "i"); a.code != 0 || a.out != strings.Join(lines, "\n")+"\n" {
		t.Errorf("after a break: %d lines, %s", strings.Count(a.out, "\n"), a.errout)
	}
	if a := r.call("squeue", "-h", "-o", "%i", "-S", "none"); a.code != 0 || !strings.HasPrefix(a.out, "2000\n1999\n") || strings.Count(a.out, "\n") != 2000 {
		t.Errorf("as they come: %.40q", a.out)
	}
	r.fake.breaks = 1
	if a := r.call("squeue", "-h", "-o", "%i", "-S", "none"); a.code != 1 || strings.Count(a.out, "\n") != 1000 || !strings.Contains(a.errout, "the list broke off") {
		t.Errorf("broken off: code %d, %d lines, %s", a.code, strings.Count(a.out, "\n"), a.errout)
	}
}

// TestQueueMemory: what is kept of a row is its line, and with --sort=none nothing.
func TestQueueMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("100,000 rows; not with -short")
	}
	r := newRunner(t)
	r.fake.stream, r.out = 100_000, io.Discard
	for _, c := range []struct {
		sort  string
		bound uint64 // bytes of live heap at the end of the list
	}{{"none", 8 << 20}, {"P,t,-p", 40 << 20}} {
		before := liveHeap()
		held := &peak{}
		r.out = held
		if a := r.call("squeue", "-S", c.sort); a.code != 0 {
			t.Fatal(a.errout)
		}
		got := int64(held.most) - int64(before)
		t.Logf("--sort=%s: %d KiB live while 100,000 rows went out", c.sort, got>>10)
		if got > int64(c.bound) {
			t.Errorf("--sort=%s: %d bytes live, the bound is %d", c.sort, got, c.bound)
		}
	}
}

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// peak measures the live heap now and then while it is written to.
type peak struct {
	n    int
	most uint64
}

func (p *peak) Write(b []byte) (int, error) {
	if p.n%(1<<21) < len(b) {
		p.most = max(p.most, liveHeap())
	}
	p.n += len(b)
	return len(b), nil
}

func TestStartKinds(t *testing.T) {
	r := newRunner(t)
	job := func(id uint32, start int64, promised bool, nodes string) *ctldpb.Job {
		return &ctldpb.Job{JobId: id, ArrayTaskId: -1, User: "alice", State: "PENDING", Reason: "Priority", Partition: "main", StartMs: start, StartPromised: promised, SchedNodes: nodes,
			Spec: &ctldpb.JobSpec{Name: "j", MinNodes: 2, Dependency: "afterok:9", Rare: map[string]string{"licenses": "lic:2", "reservation": "r1", "switches": "2@60", "bid": "1500000", "deadline": "1796047200000"}}}
	}
	at := fakeNow.UnixMilli()
	r.fake.jobs = []*ctldpb.Job{job(1, at+60000, true, "n[1-2]"), job(2, at+120000, false, ""), job(3, 0, false, "")}
	const slurm = "             JOBID PARTITION     NAME     USER ST          START_TIME  NODES SCHEDNODES           NODELIST(REASON)\n" +
		"                 3      main        j    alice PD                 N/A      2 (null)               (Priority)\n" +
		"                 1      main        j    alice PD 2026-11-30T12:01:00      2 n[1-2]               (Priority)\n" +
		"                 2      main        j    alice PD 2026-11-30T12:02:00      2 (null)               (Priority)\n"
	r.want(r.call("squeue", "--start"), 0, slurm, "")
	r.want(r.call("gqueue", "--start"), 0, "             JOBID PARTITION     NAME     USER ST          START_TIME START_KIND  NODES SCHEDNODES           NODELIST(REASON)\n"+
		"                 3      main        j    alice PD                 N/A N/A             2 (null)               (Priority)\n"+
		"                 1      main        j    alice PD 2026-11-30T12:01:00 promised        2 n[1-2]               (Priority)\n"+
		"                 2      main        j    alice PD 2026-11-30T12:02:00 estimate        2 (null)               (Priority)\n", "")
	r.want(r.call("squeue", "-h", "-j", "1", "-O", "StartKind:|,Licenses:|,Reservation:|,ReqSwitch:|,Wait4Switch:|,Deadline:|,Bid:|,Dependency:|"), 0,
		"promised|lic:2|r1|2|1:00|2026-11-30T14:00:00|1.5|afterok:9(unfulfilled)|\n", "")
	r.want(r.call("squeue", "-h", "-L", "lic", "-R", "r1", "-S", "i", "-o", "%i %v %W %Y"), 0, "1 r1 lic:2 n[1-2]\n2 r1 lic:2 (null)\n3 r1 lic:2 (null)\n", "")
	r.want(r.call("squeue", "-h", "-L", "other"), 0, "", "")
}

func TestHetQueue(t *testing.T) {
	r := newRunner(t)
	for i := range uint32(3) {
		r.fake.jobs = append(r.fake.jobs, &ctldpb.Job{JobId: 12 + i, ArrayTaskId: -1, User: "alice", State: "RUNNING", Partition: "main", HetJobId: 12, HetOffset: i, HetIds: "12-14", Spec: &ctldpb.JobSpec{Name: "h"}})
	}
	const all = "12+0 12 0 12-14\n12+1 13 1 12-14\n12+2 14 2 12-14\n"
	format := []string{"-h", "-O", "JobArrayID: ,JobID: ,HetJobOffset: ,HetJobIDSet:|"}
	shown := func(args ...string) string {
		a := r.call("squeue", append(format, args...)...)
		return strings.ReplaceAll(a.out, "|\n", "\n") + a.errout
	}
	if got := shown(); got != all {
		t.Errorf("all: %s", got)
	}
	if got := shown("-j", "12"); got != all {
		t.Errorf("by the first: %s", got)
	}
	if got := shown("-j", "12+1"); got != "12+1 13 1 12-14\n" {
		t.Errorf("one component: %s", got)
	}
}

func TestExplained(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	r.fake.explained = &ctldpb.JobExplanation{JobId: "2_[0-4%2]", State: "PENDING", Reason: "Resources", Detail: "no node has 2 free GPUs", Needs: "1 node with 2 GPUs", Lacks: []string{"3 of 4 nodes lack GPUs", "1 of 4 is down"},
		Queue: 1, StartMs: fakeNow.UnixMilli() + 60000, Advice: []string{"--gres=gpu:1 could start now"}}
	r.want(r.call("gqueue", "--why", "2"), 0, "2_[0-4%2] PENDING (Resources): no node has 2 free GPUs\n"+
		"  needs:      1 node with 2 GPUs\n"+
		"  lacks:      3 of 4 nodes lack GPUs\n"+
		"              1 of 4 is down\n"+
		"  in line:    it is the next of 1 that wait\n"+
		"  starts:     2026-11-30T12:01:00 (estimate)\n"+
		"  sooner:     --gres=gpu:1 could start now\n"+
		"2_7 COMPLETED (None)\n", "")
	for reason, starts := range map[job.Reason]string{
		job.ReasonDependencyNever: "never: what it depends on can't come any more",
		job.ReasonDependency:      "not before what it depends on has come",
		job.ReasonHeldUser:        "not before it is released",
		"AssocGrpCpuLimit":        "not known yet",
	} {
		r.fake.explained = &ctldpb.JobExplanation{JobId: "2_[0-4%2]", State: "PENDING", Reason: string(reason), Detail: "so"}
		r.want(r.call("gqueue", "--why", "2"), 0, "2_[0-4%2] PENDING ("+string(reason)+"): so\n  starts:     "+starts+"\n2_7 COMPLETED (None)\n", "")
	}
	r.fake.explained = &ctldpb.JobExplanation{JobId: "2_[0-4%2]", State: "PENDING", Reason: "BeginTime", Detail: "so", StartMs: fakeNow.UnixMilli() + 60000}
	r.want(r.call("gqueue", "--why", "2"), 0, "2_[0-4%2] PENDING (BeginTime): so\n  starts:     2026-11-30T12:01:00 (at the earliest)\n2_7 COMPLETED (None)\n", "")
}
