package server

import (
	"fmt"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// TestListOfPartitions: a job goes to those of the named partitions that admit it, no others.
func TestListOfPartitions(t *testing.T) {
	f := newFixture(t, "")
	in := func(uid uint32, names string) string {
		t.Helper()
		id := f.submit(uid, func(s *ctldpb.JobSpec) { s.Partition = names })
		return f.log.View().Job(id).Spec.Partition
	}
	if got := in(ann, "batch,staff"); got != "batch" {
		t.Errorf("ann's job is in %q", got)
	}
	if got := in(sam, "batch,staff"); got != "batch,staff" {
		t.Errorf("sam's job is in %q", got)
	}
	_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: func() *ctldpb.JobSpec { s := script(); s.Partition = "staff,short"; s.TimeLimitMs = 3600000; return s }()})
	wantRefusal(t, err, "ESLURM_USER_ID_MISSING", "staff")
}

// TestUpdateIsAdmitted: an update cannot bring a job where a submission would have been refused.
func TestUpdateIsAdmitted(t *testing.T) {
	f := newFixture(t, "PartitionName=rich Nodes=n2 DenyAccounts=poor\n")
	update := func(uid, id uint32, set map[string]string) string {
		t.Helper()
		resp, err := f.srv.UpdateJob(f.as(uid), &ctldpb.UpdateJobRequest{JobIds: []string{fmt.Sprint(id)}, Set: set})
		if err != nil || len(resp.Results) != 1 {
			t.Fatalf("%v %v", resp, err)
		}
		return resp.Results[0].Code
	}
	id := f.submit(ann, nil)
	spec := func() string {
		s := f.log.View().Job(id).Spec
		return fmt.Sprint(s.Partition, " ", s.Account, " ", s.MinNodes, " ", s.Comment)
	}
	for _, tt := range []struct {
		set  map[string]string
		code string
	}{
		{map[string]string{"Partition": "staff"}, "ESLURM_USER_ID_MISSING"},
		{map[string]string{"Partition": "batch,staff"}, "ESLURM_USER_ID_MISSING"},
		{map[string]string{"partition": "rich", "account": "poor"}, "ESLURM_INVALID_ACCOUNT"},
		{map[string]string{"NumNodes": "9"}, "ESLURM_INVALID_NODE_COUNT"},
		{map[string]string{"Features": "nosuch"}, "ESLURM_INVALID_FEATURE"},
	} {
		if code := update(ann, id, tt.set); code != tt.code || spec() != "batch  0 " {
			t.Errorf("%v: %q, want %q; now %s", tt.set, code, tt.code, spec())
		}
	}
	if code := update(ann, id, map[string]string{"NumNodes": "2", "Comment": "two"}); code != "" || spec() != "batch  2 two" {
		t.Errorf("a good update: %q; now %s", code, spec())
	}
	// What was refused already is not the update's doing.
	f.propose(setPartition("batch", "State", "DRAIN"))
	if code := update(ann, id, map[string]string{"Comment": "drained"}); code != "" {
		t.Errorf("a comment in a drained partition: %q", code)
	}
	if code := update(olga, id, map[string]string{"Partition": "staff"}); code != "" || spec() != "staff  2 drained" {
		t.Errorf("an operator: %q; now %s", code, spec())
	}
}

// TestNegativeNice: only operators may ask for one.
func TestNegativeNice(t *testing.T) {
	f := newFixture(t, "")
	spec := script()
	spec.Nice = -2000000000
	_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec})
	wantRefusal(t, err, "ESLURM_ACCESS_DENIED", "--nice=-2000000000")
	if _, err := f.srv.Submit(f.as(olga), &ctldpb.SubmitRequest{Spec: spec}); err != nil {
		t.Error(err)
	}
	f.submit(ann, func(s *ctldpb.JobSpec) { s.Nice = 100 })
}
