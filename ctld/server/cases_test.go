package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// dueNow puts the moments that have come into the log, as the leader does.
func (f *fixture) dueNow() {
	f.t.Helper()
	view := f.log.View().(interface {
		NextTimer() int64
	})
	if next := view.NextTimer(); next == 0 || next > f.now.UnixMilli() {
		f.t.Fatalf("the next moment is %d, it is %d", next, f.now.UnixMilli())
	}
}

// TestDeadlineThatPasses is case 8 of users: a job whose deadline has come ends in state DEADLINE with reason DeadLine,
// whether it waits or runs; one whose time limit cannot fit is refused at submit.
func TestDeadlineThatPasses(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	with := func(limit, deadline time.Duration) func(*ctldpb.JobSpec) {
		return func(s *ctldpb.JobSpec) {
			s.Exclusive, s.TimeLimitMs = true, limit.Milliseconds()
			rare(job.OptDeadline, fmt.Sprint(f.now.Add(deadline).UnixMilli()))(s)
		}
	}
	var runs []uint32
	for range 4 {
		runs = append(runs, f.submit(bob, with(time.Hour, 90*time.Minute)))
	}
	if got := f.plan(); len(got) != 4 {
		t.Fatalf("started %v", got)
	}
	spec := script()
	with(5*time.Minute, 10*time.Second)(spec)
	_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec})
	wantRefusal(t, err, "ESLURM_INVALID_TIME_LIMIT", "--deadline")
	waits := f.submit(ann, with(5*time.Minute, 2*time.Hour))
	f.pass(2 * time.Hour) // the runs have not ended as they should
	f.dueNow()
	for _, id := range append(runs[:1:1], waits) {
		f.propose(&logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: id, What: "deadline"}}})
		jobs, _, _ := f.list(olga, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(id)}, States: []string{"all"}})
		if len(jobs) != 1 {
			t.Fatalf("job %d is not listed", id)
		}
		if j := jobs[0]; j.State != "DEADLINE" || j.Reason != string(job.ReasonDeadLine) {
			t.Errorf("job %d is %s, reason %s", id, j.State, j.Reason)
		}
	}
}

// TestPartitionAndQOSOfARequest is case 12 of users: partition and QOS that a request names, wherever its command had them
// from, are the job's.
func TestPartitionAndQOSOfARequest(t *testing.T) {
	f := newSchedFixture(t, "AccountingStorageEnforce=qos\n")
	f.account("add", "account", nil, clauses("name=physics"))
	f.account("add", "qos", nil, clauses("name=q"))
	f.account("add", "user", nil, clauses("name=ann", "account=physics", "qos=normal,q"))
	id := f.submit(ann, func(s *ctldpb.JobSpec) { s.Partition, s.Qos = "short", "q" })
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(id)}})
	if j := jobs[0]; j.Partition != "short" || j.Spec.Qos != "q" || j.Spec.Account != "physics" {
		t.Errorf("partition %s, QOS %s, account %s", j.Partition, j.Spec.Qos, j.Spec.Account)
	}
	spec := script()
	spec.Qos = "none"
	_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec})
	wantRefusal(t, err, "ESLURM_INVALID_QOS", "none")
}

// TestPriorityOfUsers: a user cannot set what stands above all priorities that are worked out.
func TestPriorityOfUsers(t *testing.T) {
	f := newSchedFixture(t, "PriorityWeightAge=1000\n")
	id := f.submit(ann, nil)
	set := func(uid uint32, value string) *ctldpb.JobResult {
		resp, err := f.srv.UpdateJob(f.as(uid), &ctldpb.UpdateJobRequest{JobIds: []string{fmt.Sprint(id)}, Set: map[string]string{"Priority": value}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Results[0]
	}
	if r := set(ann, "100000"); r.Code != "ESLURM_ACCESS_DENIED" {
		t.Errorf("%v", r)
	}
	if r := set(olga, "100000"); r.Code != "" {
		t.Errorf("%v", r)
	}
}
