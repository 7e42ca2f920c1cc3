package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func setPartition(name, key, value string) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{
		Name: name, Set: map[string]string{key: value}, Caller: &logpb.Caller{User: "root", Operator: true},
	}}}
}

func TestListJobsFilters(t *testing.T) {
	f := newFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	one := f.submit(ann, func(s *ctldpb.JobSpec) { s.Name, s.Account = "alpha", "phys" })
	two := f.submit(bob, func(s *ctldpb.JobSpec) { s.Name, s.Partition, s.Qos = "beta", "short", "high" })
	arr := f.submit(ann, func(s *ctldpb.JobSpec) { s.Name, s.Array = "gamma", "0-4%2" })
	f.start(one, -1, "g1")
	f.start(arr, 0, "n1")
	f.start(arr, 1, "n2")
	done := f.submit(bob, nil)
	f.start(done, -1, "g2")
	f.end(done, 0, "g2", 3)
	task0, task1 := fmt.Sprintf("%d_0", arr), fmt.Sprintf("%d_1", arr)
	rest := fmt.Sprintf("%d_[2-4%%2]", arr)
	live := fmt.Sprintf("%d %d %s %s %s", one, two, rest, task0, task1)
	tests := []struct {
		name string
		req  *ctldpb.ListJobsRequest
		want string
	}{
		{"not finished", &ctldpb.ListJobsRequest{}, live},
		{"all", &ctldpb.ListJobsRequest{States: []string{"all"}}, live + fmt.Sprint(" ", done)},
		{"user by name", &ctldpb.ListJobsRequest{Users: []string{"bob"}}, fmt.Sprint(two)},
		{"user by uid", &ctldpb.ListJobsRequest{Users: []string{"1002"}}, fmt.Sprint(two)},
		{"unknown user", &ctldpb.ListJobsRequest{Users: []string{"zoe"}}, ""},
		{"partition", &ctldpb.ListJobsRequest{Partitions: []string{"short"}}, fmt.Sprint(two)},
		{"state short", &ctldpb.ListJobsRequest{States: []string{"pd"}}, fmt.Sprintf("%d %s", two, rest)},
		{"state long", &ctldpb.ListJobsRequest{States: []string{"FAILED"}}, fmt.Sprint(done)},
		{"name", &ctldpb.ListJobsRequest{Names: []string{"gamma"}}, fmt.Sprintf("%s %s %s", rest, task0, task1)},
		{"account", &ctldpb.ListJobsRequest{Accounts: []string{"phys"}}, fmt.Sprint(one)},
		{"qos", &ctldpb.ListJobsRequest{Qos: []string{"high"}}, fmt.Sprint(two)},
		{"nodes", &ctldpb.ListJobsRequest{Nodes: []string{"n[1-2]"}}, task0 + " " + task1},
		{"id", &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(one)}}, fmt.Sprint(one)},
		{"ended id, no state", &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(done)}}, ""},
		{"array id", &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(arr)}}, fmt.Sprintf("%s %s %s", rest, task0, task1)},
		{"started task", &ctldpb.ListJobsRequest{JobIds: []string{task1}}, task1},
		{"waiting task", &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprintf("%d_3", arr)}}, fmt.Sprintf("%d_3", arr)},
		{"some tasks", &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprintf("%d_[1-3]", arr)}}, fmt.Sprintf("%d_[2-3%%2] %s", arr, task1)},
		{"one row a task", &ctldpb.ListJobsRequest{Names: []string{"gamma"}, States: []string{"PENDING"}, ArrayTasks: true},
			fmt.Sprintf("%d_2 %d_3 %d_4", arr, arr, arr)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			jobs, unknown, _ := f.list(ann, tt.req)
			if got := ids(jobs); got != tt.want || len(unknown) != 0 {
				t.Errorf("got %q (unknown %v), want %q", got, unknown, tt.want)
			}
		})
	}
	_, unknown, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{"999999", fmt.Sprint(one), fmt.Sprintf("%d_77", arr)}})
	if strings.Join(unknown, " ") != fmt.Sprintf("999999 %d_77", arr) {
		t.Errorf("unknown: %v", unknown)
	}
}

func TestListJobsShowsOthersLess(t *testing.T) {
	f := newFixture(t, "")
	id := f.submit(ann, func(s *ctldpb.JobSpec) { s.Comment = "hello"; s.Export = "ALL,TOKEN=x" })
	look := func(uid uint32) *ctldpb.Job {
		jobs, _, _ := f.list(uid, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(id)}})
		if len(jobs) != 1 {
			return nil
		}
		return jobs[0]
	}
	for uid, all := range map[uint32]bool{ann: true, bob: false, olga: true, 0: true} {
		j := look(uid)
		if j == nil || j.Spec.Comment != "hello" || len(j.Spec.Script) != 0 {
			t.Fatalf("uid %d: %v", uid, j)
		}
		if got := j.Spec.SubmitLine != "" && len(j.Spec.Args) > 0 && j.Spec.Export != ""; got != all {
			t.Errorf("uid %d sees arguments: %v", uid, got)
		}
	}
	f.srv.Auth.SetPolicy(policyPrivate())
	if look(bob) != nil || look(ann) == nil || look(0) == nil {
		t.Error("PrivateData=jobs is not kept by ListJobs")
	}
	_, err := f.srv.WaitJob(f.as(bob), &ctldpb.WaitJobRequest{JobId: id, TimeoutMs: 1})
	wantRefusal(t, err, "ESLURM_INVALID_JOB_ID")
	_, err = f.srv.GetScript(f.as(bob), &ctldpb.GetScriptRequest{JobId: id})
	wantRefusal(t, err, "ESLURM_INVALID_JOB_ID")
}

func TestJobFields(t *testing.T) {
	f := newFixture(t, "")
	f.register("g1")
	id := f.submit(ann, func(s *ctldpb.JobSpec) {
		s.StdOut, s.Ntasks, s.CpusPerTask, s.Gres, s.MemPerNode = "out-%x-%j", 1, 2, "gpu:a100:1", 1<<30
	})
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{})
	j := jobs[0]
	if j.StdOut != fmt.Sprintf("/data/out-job-%d", id) || j.StdErr != j.StdOut || j.StdIn != "/dev/null" {
		t.Errorf("files %q %q %q", j.StdOut, j.StdErr, j.StdIn)
	}
	if j.Tres != "cpu=2,mem=1G,node=1,billing=2,gres/gpu=1,gres/gpu:a100=1" || j.NumCpus != 2 || j.NumNodes != 1 {
		t.Errorf("tres %q", j.Tres)
	}
	if j.State != "PENDING" || j.TimeLimitMs != 3600000 || j.ArrayTaskId != -1 || j.User != "ann" || j.SubmitMs != f.now.UnixMilli() {
		t.Errorf("job %v", j)
	}
	arr := f.submit(ann, func(s *ctldpb.JobSpec) { s.Array = "7" })
	jobs, _, _ = f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprintf("%d_7", arr)}})
	if want := fmt.Sprintf("/data/slurm-%d_7.out", arr); jobs[0].StdOut != want {
		t.Errorf("array file %q, want %q", jobs[0].StdOut, want)
	}
	f.start(id, -1, "g1")
	jobs, _, _ = f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(id)}, Detail: true})
	if j := jobs[0]; j.State != "RUNNING" || j.NodeList != "g1" || j.BatchHost != "g1" || len(j.Allocs) != 1 || len(j.Steps) != 1 {
		t.Errorf("running %v", j)
	}
}

func TestPages(t *testing.T) {
	f := newFixture(t, "")
	n := PageJobs + 1
	for i := 0; i < n; i += MaxBatch {
		req := &ctldpb.SubmitBatchRequest{}
		for range min(MaxBatch, n-i) {
			req.Requests = append(req.Requests, &ctldpb.SubmitRequest{Spec: script()})
		}
		if _, err := f.srv.SubmitBatch(f.as(ann), req); err != nil {
			t.Fatal(err)
		}
	}
	jobs, _, pages := f.list(ann, &ctldpb.ListJobsRequest{})
	if len(jobs) != n || pages != 2 {
		t.Errorf("%d jobs on %d pages, want %d on 2", len(jobs), pages, n)
	}
	big := strings.Repeat("c", 4000)
	for range PageBytes/4000 + 10 {
		f.submit(bob, func(s *ctldpb.JobSpec) { s.Comment = big })
	}
	if _, _, pages := f.list(ann, &ctldpb.ListJobsRequest{Users: []string{"bob"}}); pages < 2 {
		t.Errorf("more than PageBytes on %d page", pages)
	}
}

func TestStaleRead(t *testing.T) {
	f := newFixture(t, "")
	f.log.leader = ""
	s := &jobStream{ctx: f.as(ann)}
	if err := f.srv.ListJobs(&ctldpb.ListJobsRequest{Read: &ctldpb.ReadOptions{Stale: true}}, s); err != nil {
		t.Fatal(err)
	}
	if info := s.pages[0].Info; info.AgeMs != 42 || info.Controller != "c1" || info.NowMs != f.now.UnixMilli() {
		t.Errorf("info %v", info)
	}
	ctx, cancel := context.WithTimeout(f.as(ann), 50*time.Millisecond)
	defer cancel()
	if err := f.srv.ListJobs(&ctldpb.ListJobsRequest{}, &jobStream{ctx: ctx}); err == nil {
		t.Error("a linearizable read without a leader was answered")
	}
}

func TestWaitJob(t *testing.T) {
	f := newFixture(t, "")
	f.register("n1", "n2")
	arr := f.submit(ann, func(s *ctldpb.JobSpec) { s.Array = "0-1" })
	resp, err := f.srv.WaitJob(f.as(ann), &ctldpb.WaitJobRequest{JobId: arr, TimeoutMs: 5})
	if err != nil || resp.Done {
		t.Fatalf("waiting array: %v %v", resp, err)
	}
	type answer struct {
		resp *ctldpb.WaitJobResponse
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		resp, err := f.srv.WaitJob(f.as(ann), &ctldpb.WaitJobRequest{JobId: arr})
		got <- answer{resp, err}
	}()
	f.start(arr, 0, "n1")
	f.start(arr, 1, "n2")
	for _, j := range f.log.View().ArrayTasks(arr) {
		f.end(j.ID, j.Run, j.Allocs[0].Node, int32(5+j.ArrayTask))
	}
	a := <-got
	if a.err != nil || !a.resp.Done || a.resp.Exit.Code != 6 || a.resp.State != "FAILED" {
		t.Errorf("answer %v %v", a.resp, a.err)
	}
	_, err = f.srv.WaitJob(f.as(ann), &ctldpb.WaitJobRequest{JobId: 4711})
	wantRefusal(t, err, "ESLURM_INVALID_JOB_ID")
}

// TestOutcome: what a waiter is told of jobs that ended in other ways than by themselves.
func TestOutcome(t *testing.T) {
	tests := []struct {
		name         string
		state        job.State
		flags        job.Flags
		exit         job.Exit
		done         bool
		code, signal int32
	}{
		{"completed", job.Completed, 0, job.Exit{}, true, 0, 0},
		{"cancelled before it ran", job.Cancelled, 0, job.Exit{}, true, 1, 0},
		{"cancelled while it ran, signal not known yet", job.Cancelled, job.Completing, job.Exit{}, false, 0, 0},
		{"cancelled while it ran", job.Cancelled, 0, job.Exit{Signal: 15}, true, 0, 15},
		{"completing", job.Completed, job.Completing, job.Exit{}, false, 0, 0},
		{"its node failed", job.NodeFail, 0, job.Exit{}, true, 1, 0},
		{"queued again", job.Failed, job.Requeued, job.Exit{Code: 3}, false, 0, 0},
		{"failed", job.Failed, 0, job.Exit{Code: 3}, true, 3, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := outcome([]jobRow{{j: &state.Job{State: tt.state, Flags: tt.flags, Exit: tt.exit}}})
			if got.Done != tt.done || int32(got.Exit.Code) != tt.code || int32(got.Exit.Signal) != tt.signal {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestExpectedStart: a waiting job shows when the planner expects it to start.
func TestExpectedStart(t *testing.T) {
	f := newFixture(t, "")
	id := f.submit(ann, func(*ctldpb.JobSpec) {})
	view := expecting{f.log.View(), 77}
	if got := newShower(view, 0).job(jobRow{j: view.Job(id), task: -1}, true, false); got.StartMs != 77 {
		t.Errorf("shows %d", got.StartMs)
	}
}

// expecting is a view whose planner expects every job at one time.
type expecting struct {
	state.Viewer
	at int64
}

func (e expecting) ExpectedStart(*state.Job) int64 { return e.at }
