package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func policyPrivate() *authn.Policy { return &authn.Policy{PrivateData: []string{"jobs"}} }

func (f *fixture) cancel(uid uint32, filter *ctldpb.JobFilter) []*ctldpb.JobResult {
	f.t.Helper()
	resp, err := f.srv.Cancel(f.as(uid), &ctldpb.CancelRequest{Filter: filter})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.Results
}

func TestCancel(t *testing.T) {
	f := newFixture(t, "")
	f.register("n1", "n2", "g1")
	mine, other := f.submit(ann, nil), f.submit(bob, nil)
	done := f.submit(ann, nil)
	f.start(done, -1, "n1")
	f.end(done, 0, "n1", 0)
	state := func(id uint32) job.State { return f.log.View().Job(id).State }

	// A filter takes what is the caller's own and alive, and says nothing of the rest.
	if res := f.cancel(ann, &ctldpb.JobFilter{Users: []string{"ann", "bob"}}); len(res) != 0 {
		t.Errorf("results of a filter: %v", res)
	}
	if state(mine) != job.Cancelled || state(other) != job.Pending || state(done) != job.Completed {
		t.Errorf("states %v %v %v", state(mine), state(other), state(done))
	}
	// Named ids are answered one by one.
	res := f.cancel(ann, &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(done), "4711", fmt.Sprint(other)}})
	codes := map[string]string{}
	for _, r := range res {
		codes[r.JobId] = r.Code
	}
	want := map[string]string{fmt.Sprint(done): "ESLURM_ALREADY_DONE", "4711": "ESLURM_INVALID_JOB_ID", fmt.Sprint(other): "ESLURM_ACCESS_DENIED"}
	for id, code := range want {
		if codes[id] != code {
			t.Errorf("job %s: %q, want %q", id, codes[id], code)
		}
	}
	if state(other) != job.Pending {
		t.Fatal("a user cancelled another's job")
	}
	if res := f.cancel(olga, &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(other)}}); len(res) != 1 || res[0].Code != "" || state(other) != job.Cancelled {
		t.Errorf("operator: %v", res)
	}
	_, err := f.srv.Cancel(f.as(ann), &ctldpb.CancelRequest{})
	wantRefusal(t, err, "ESLURM_INVALID_JOB_ID", "No job identification")
	_, err = f.srv.Cancel(f.as(ann), &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{"1"}}, Signal: "NOSUCH"})
	wantRefusal(t, err, codeInvalid, "NOSUCH")
	_, err = f.srv.Cancel(f.as(ann), &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{"1x"}}})
	wantRefusal(t, err, "ESLURM_INVALID_JOB_ID", "1x")
}

func TestCancelPartsOfArrays(t *testing.T) {
	f := newFixture(t, "")
	f.register("n1")
	arr := f.submit(ann, func(s *ctldpb.JobSpec) { s.Array = "0-5" })
	f.start(arr, 0, "n1")
	waiting := func() string {
		jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{States: []string{"PENDING"}})
		return ids(jobs)
	}
	f.cancel(ann, &ctldpb.JobFilter{JobIds: []string{fmt.Sprintf("%d_[1,3]", arr)}})
	if got, want := waiting(), fmt.Sprintf("%d_[2,4-5]", arr); got != want {
		t.Errorf("waiting %q, want %q", got, want)
	}
	// By state: the waiting rest goes, the running task stays.
	f.cancel(ann, &ctldpb.JobFilter{States: []string{"PENDING"}, Names: []string{"job"}})
	if got := waiting(); got != "" {
		t.Errorf("waiting %q after a cancel of all that waits", got)
	}
	if j := f.log.View().ArrayTask(arr, 0); j == nil || j.State != job.Running {
		t.Errorf("the running task: %+v", j)
	}
	f.cancel(ann, &ctldpb.JobFilter{Users: []string{"ann"}})
	if j := f.log.View().ArrayTask(arr, 0); j.State != job.Cancelled {
		t.Errorf("the running task is %v after scancel -u", j.State)
	}
}

func TestControl(t *testing.T) {
	f := newFixture(t, "")
	id := f.submit(ann, func(s *ctldpb.JobSpec) { s.Name = "held" })
	do := func(uid uint32, op ctldpb.ControlRequest_Op, ids ...string) []*ctldpb.JobResult {
		t.Helper()
		resp, err := f.srv.Control(f.as(uid), &ctldpb.ControlRequest{Op: op, JobIds: ids})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Results
	}
	if res := do(ann, ctldpb.ControlRequest_HOLD, fmt.Sprint(id)); len(res) != 1 || res[0].Code != "" || f.log.View().Job(id).Priority != 0 {
		t.Errorf("hold: %v", res)
	}
	if res := do(bob, ctldpb.ControlRequest_RELEASE, fmt.Sprint(id)); res[0].Code != "ESLURM_ACCESS_DENIED" {
		t.Errorf("another's release: %v", res)
	}
	if res := do(ann, ctldpb.ControlRequest_RELEASE, "name=held"); len(res) != 1 || res[0].Code != "" || f.log.View().Job(id).Priority == 0 {
		t.Errorf("release by name: %v", res)
	}
	if res := do(bob, ctldpb.ControlRequest_HOLD, "name=held"); len(res) != 1 || res[0].Code != "ESLURM_INVALID_JOB_ID" {
		t.Errorf("another's name: %v", res)
	}
	_, err := f.srv.Control(f.as(ann), &ctldpb.ControlRequest{Op: 99, JobIds: []string{"1"}})
	wantRefusal(t, err, codeInvalid, "99")
	_, err = f.srv.Control(f.as(ann), &ctldpb.ControlRequest{Op: ctldpb.ControlRequest_HOLD})
	wantRefusal(t, err, "ESLURM_INVALID_JOB_ID")
}

func TestUpdateNode(t *testing.T) {
	f := newFixture(t, "")
	f.register("n1", "n2")
	do := func(names string, set map[string]string) error {
		_, err := f.srv.UpdateNode(f.as(olga), &ctldpb.UpdateNodeRequest{Names: names, Set: set})
		return err
	}
	wantRefusal(t, do("n1", map[string]string{"State": "drain"}), "ESLURM_MISSING_REASON")
	wantRefusal(t, do("n1", map[string]string{"State": "down"}), "ESLURM_MISSING_REASON")
	wantRefusal(t, do("n1", map[string]string{"State": "asleep"}), "ESLURM_INVALID_NODE_STATE", "DRAIN")
	wantRefusal(t, do("n[1", map[string]string{"State": "resume"}), "ESLURM_INVALID_NODE_NAME", "n[1")
	wantRefusal(t, do("n1,nx", map[string]string{"State": "resume"}), "ESLURM_INVALID_NODE_NAME", "nx")
	if err := do("n[1-2]", map[string]string{"State": "DRAIN", "Reason": "disk"}); err != nil {
		t.Fatal(err)
	}
	resp, err := f.srv.ListNodes(f.as(ann), &ctldpb.ListNodesRequest{Names: []string{"n[1-2]", "zz"}})
	if err != nil || len(resp.Nodes) != 2 || strings.Join(resp.Unknown, "") != "zz" {
		t.Fatalf("%v %v", resp, err)
	}
	n := resp.Nodes[0]
	if n.State != "IDLE" || strings.Join(n.Flags, "") != "DRAIN" || n.Reason != "disk" || n.ReasonUser != "olga" ||
		strings.Join(n.Partitions, ",") != "batch,short" || n.Features != "fast" || n.Cpus != 4 {
		t.Errorf("node %v", n)
	}
	if err := do("all", map[string]string{"State": "resume"}); err != nil {
		t.Error(err)
	}
}

func TestPartitions(t *testing.T) {
	f := newFixture(t, "")
	resp, err := f.srv.ListPartitions(f.as(ann), &ctldpb.ListPartitionsRequest{})
	if err != nil || len(resp.Partitions) != 3 {
		t.Fatalf("%v %v", resp, err)
	}
	p := resp.Partitions[0]
	if p.Name != "batch" || !p.IsDefault || p.Nodes != "n[1-2],g[1-2]" || p.TotalCpus != 16 || p.TotalNodes != 4 ||
		p.Tres != "cpu=16,mem=16000M,node=4,billing=16,gres/gpu=4,gres/gpu:a100=4" {
		t.Errorf("partition %v", p)
	}
	one, err := f.srv.ListPartitions(f.as(ann), &ctldpb.ListPartitionsRequest{Names: []string{"short", "nosuch"}})
	if err != nil || len(one.Partitions) != 1 || len(one.Unknown) != 1 {
		t.Errorf("%v %v", one, err)
	}
	if _, err := f.srv.UpdatePartition(f.as(olga), &ctldpb.UpdatePartitionRequest{Name: "short", Set: map[string]string{"State": "DRAIN"}}); err != nil {
		t.Fatal(err)
	}
	_, err = f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: func() *ctldpb.JobSpec { s := script(); s.Partition = "short"; return s }()})
	wantRefusal(t, err, "ESLURM_PARTITION_NOT_AVAIL")
	_, err = f.srv.UpdatePartition(f.as(olga), &ctldpb.UpdatePartitionRequest{Name: "nosuch", Set: map[string]string{"State": "UP"}})
	wantRefusal(t, err, "ESLURM_INVALID_PARTITION_NAME")
}
