package server

import (
	"fmt"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// hetRequest is a job of three components.
func hetRequest(key string) *ctldpb.SubmitRequest {
	req := &ctldpb.SubmitRequest{Key: key, Spec: script()}
	for i := range 2 {
		spec := script()
		spec.Script, spec.CpusPerTask = nil, uint32(i+1)
		req.Het = append(req.Het, spec)
	}
	return req
}

// TestHet: components get consecutive ids, once under a key, all or none.
func TestHet(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	resp, err := f.srv.Submit(f.as(ann), hetRequest("k"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.srv.Submit(f.as(ann), hetRequest("k"))
	if err != nil || again.JobId != resp.JobId || !again.Duplicate {
		t.Errorf("again: %v %v", again, err)
	}
	other := hetRequest("k")
	other.Het[1].CpusPerTask = 3
	if _, err := f.srv.Submit(f.as(ann), other); RefusalOf(err) == nil {
		t.Errorf("another body under the key: %v", err)
	}
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{})
	if len(jobs) != 3 {
		t.Fatalf("%d records", len(jobs))
	}
	for i, j := range jobs {
		if j.JobId != resp.JobId+uint32(i) || j.HetJobId != resp.JobId || j.HetOffset != uint32(i) || j.HetIds != fmt.Sprintf("%d-%d", resp.JobId, resp.JobId+2) {
			t.Errorf("component %d: id %d, of %d, offset %d, ids %s", i, j.JobId, j.HetJobId, j.HetOffset, j.HetIds)
		}
	}
	if got := f.plan(); len(got) != 3 {
		t.Errorf("started together: %v", got)
	}
}

// TestHetRefusals: a component that cannot be takes all with it, and is named.
func TestHetRefusals(t *testing.T) {
	f := newSchedFixture(t, "")
	bad := func(edit func(*ctldpb.SubmitRequest)) error {
		req := hetRequest("")
		edit(req)
		_, err := f.srv.Submit(f.as(ann), req)
		return err
	}
	wantRefusal(t, bad(func(r *ctldpb.SubmitRequest) { r.Het[1].Partition = "nosuch" }), "ESLURM_INVALID_PARTITION_NAME", "component 2", "nosuch")
	wantRefusal(t, bad(func(r *ctldpb.SubmitRequest) { r.Het[0].Array = "1-3" }), "ESLURM_INVALID_ARRAY", "component 1")
	wantRefusal(t, bad(func(r *ctldpb.SubmitRequest) { r.Spec.Script = nil }), "ESLURM_JOB_SCRIPT_MISSING", "component 0")
	wantRefusal(t, bad(func(r *ctldpb.SubmitRequest) {
		for len(r.Het) < MaxHet {
			r.Het = append(r.Het, script())
		}
	}), "LIMIT", "MaxHet")
	if all, _, _ := f.log.View().Counts(); all != 0 {
		t.Errorf("%d records exist after refusals only", all)
	}
	batch, err := f.srv.SubmitBatch(f.as(ann), &ctldpb.SubmitBatchRequest{Requests: []*ctldpb.SubmitRequest{hetRequest("a"), {Key: "b", Spec: script()}}})
	if err != nil || batch.Results[0].GetOk() == nil || batch.Results[1].GetOk().GetJobId() != batch.Results[0].Ok.JobId+3 {
		t.Errorf("in a batch: %v %v", batch, err)
	}
}
