package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// TestRareOptions: options that cannot be meant are refused by name and word, before the log.
func TestRareOptions(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	past := fmt.Sprint(f.now.Add(-time.Hour).UnixMilli())
	soon := fmt.Sprint(f.now.Add(10 * time.Minute).UnixMilli())
	for _, tt := range []struct {
		name, value, code string
		words             []string
	}{
		{job.OptHet, "0/2", "INVALID", []string{"--het-component"}},
		{job.OptContiguous, "perhaps", "INVALID", []string{"--contiguous=perhaps"}},
		{job.OptExclusive, "everybody", "INVALID", []string{"--exclusive", "everybody"}},
		{job.OptSockets, "two", "INVALID", []string{"--sockets-per-node", "two"}},
		{job.OptSwitches, "x@5", "INVALID", []string{"--switches", "x"}},
		{job.OptBid, "-5", "INVALID", []string{"--bid", "-5"}},
		{job.OptBid, "5", "INVALID", []string{"--bid", "PriorityWeightBid"}},
		{job.OptPrefer, "fast&", "ESLURM_INVALID_FEATURE", []string{"--prefer"}},
		{job.OptDeadline, past, "ESLURM_INVALID_TIME_VALUE", []string{"--deadline", "passed"}},
		{job.OptDeadline, soon, "ESLURM_INVALID_TIME_LIMIT", []string{"--deadline", "01:00:00"}},
		{job.OptLicenses, "a:0", "ESLURM_INVALID_LICENSES", []string{"--licenses", "a:0"}},
	} {
		t.Run(tt.name+"="+tt.value, func(t *testing.T) {
			spec := script()
			spec.TimeLimitMs = 3600_000
			rare(tt.name, tt.value)(spec)
			_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec})
			wantRefusal(t, err, tt.code, tt.words...)
			_, err = f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec, TestOnly: true})
			wantRefusal(t, err, tt.code, tt.words...)
		})
	}
	if all, _, _ := f.log.View().Counts(); all != 0 {
		t.Errorf("%d jobs exist after refusals only", all)
	}
	f.submit(ann, rare(job.OptPrefer, "fast"))
	f.submit(ann, rare(job.OptContiguous, "yes"))
}

// TestDeadlineIsAContract: a deadline is accepted if the present plan meets it, and refused with the earliest end if not.
func TestDeadlineIsAContract(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	for range 4 {
		f.submit(bob, func(s *ctldpb.JobSpec) { s.Exclusive, s.TimeLimitMs = true, time.Hour.Milliseconds() })
	}
	if got := f.plan(); len(got) != 4 {
		t.Fatalf("started %v", got)
	}
	ask := func(in time.Duration, test bool) (*ctldpb.SubmitResponse, error) {
		spec := script()
		spec.TimeLimitMs = (5 * time.Minute).Milliseconds()
		rare(job.OptDeadline, fmt.Sprint(f.now.Add(in).UnixMilli()))(spec)
		return f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec, TestOnly: test})
	}
	for _, test := range []bool{false, true} {
		_, err := ask(30*time.Minute, test)
		wantRefusal(t, err, "ESLURM_INVALID_TIME_LIMIT", "--deadline", clock(f.now.Add(65*time.Minute).UnixMilli()))
	}
	resp, err := ask(2*time.Hour, false)
	if err != nil {
		t.Fatal(err)
	}
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(resp.JobId)}})
	if jobs[0].DeadlineMs != f.now.Add(2*time.Hour).UnixMilli() {
		t.Errorf("shows deadline %d", jobs[0].DeadlineMs)
	}
}

// TestTestOnly: Slurm's line, by the planner, for what runs and what waits.
func TestTestOnlyByThePlanner(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	spec := script()
	spec.MinNodes, spec.NodeList = 1, "n1"
	resp, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec, TestOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("Job 1 to start at %s using 1 processors on nodes n1 in partition batch", clock(f.now.UnixMilli()))
	if resp.TestResult != want || resp.Explanation.GetStartMs() != f.now.UnixMilli() {
		t.Errorf("%q, want %q (%v)", resp.TestResult, want, resp.Explanation)
	}
	if all, _, _ := f.log.View().Counts(); all != 0 {
		t.Errorf("%d jobs exist after a test", all)
	}
	f.submit(bob, func(s *ctldpb.JobSpec) { s.Exclusive, s.NodeList, s.TimeLimitMs = true, "n1", time.Hour.Milliseconds() })
	f.plan()
	resp, err = f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec, TestOnly: true})
	if err != nil || !strings.Contains(resp.TestResult, clock(f.now.Add(time.Hour).UnixMilli())) {
		t.Errorf("behind a run of an hour: %v %v", resp, err)
	}
}

// TestExplain: why a job waits is the same answer as the queue's, with what it lacks and its place.
func TestExplain(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	for range 4 {
		f.submit(bob, func(s *ctldpb.JobSpec) { s.Exclusive, s.TimeLimitMs = true, time.Hour.Milliseconds() })
	}
	a := f.submit(ann, func(s *ctldpb.JobSpec) { s.Ntasks, s.MinNodes = 4, 1; s.MaxNodes = 1 })
	b := f.submit(ann, func(s *ctldpb.JobSpec) { s.Ntasks, s.MinNodes = 8, 2; s.MaxNodes = 2 })
	f.plan()
	explain := func(id uint32) *ctldpb.JobExplanation {
		t.Helper()
		resp, err := f.srv.ExplainJob(f.as(ann), &ctldpb.ExplainJobRequest{JobId: fmt.Sprint(id)})
		if err != nil || len(resp.Jobs) != 1 {
			t.Fatalf("%v %v", resp, err)
		}
		return resp.Jobs[0]
	}
	first, second := explain(a), explain(b)
	if first.Reason != "Resources" || first.Needs == "" || len(first.Lacks) == 0 || first.Ahead != 0 || first.Queue != 2 {
		t.Errorf("first: %v", first)
	}
	if first.StartMs != f.now.Add(time.Hour).UnixMilli() {
		t.Errorf("first starts at %s", clock(first.StartMs))
	}
	if second.Ahead != 1 || second.StartMs < first.StartMs {
		t.Errorf("second: %v", second)
	}
	_, err := f.srv.ExplainJob(f.as(ann), &ctldpb.ExplainJobRequest{JobId: "4711"})
	wantRefusal(t, err, "ESLURM_INVALID_JOB_ID")
	_, err = f.srv.ExplainJob(f.as(ann), &ctldpb.ExplainJobRequest{JobId: "x"})
	wantRefusal(t, err, "ESLURM_INVALID_JOB_ID", "x")
}

// TestHopelessShapes: what single nodes say nothing of is refused at submit where it can never be.
func TestHopelessShapes(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	for name, edit := range map[string]func(*ctldpb.JobSpec){
		"counts":     func(s *ctldpb.JobSpec) { s.MinNodes, s.Constraint = 3, "[fast*3]" },
		"contiguous": func(s *ctldpb.JobSpec) { s.MinNodes, s.Exclude = 3, "n2"; rare(job.OptContiguous, "yes")(s) },
	} {
		spec := script()
		edit(spec)
		_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec})
		if r := RefusalOf(err); r == nil || r.Why == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.submit(ann, func(s *ctldpb.JobSpec) { s.MinNodes, s.Constraint = 2, "[fast*2]" })
	f.submit(ann, func(s *ctldpb.JobSpec) { s.MinNodes = 4; rare(job.OptContiguous, "yes")(s) })
}
