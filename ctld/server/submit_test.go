package server

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func TestSubmitTakesIdentityFromTheKernel(t *testing.T) {
	f := newFixture(t, "")
	id := f.submit(ann, nil)
	s := f.log.View().Job(id).Spec
	if s.UID != ann || s.GID != 100 || s.User != "ann" || s.Group != "users" || s.Home != "/home/ann" || s.Shell != "/bin/bash" {
		t.Errorf("identity %+v", s)
	}
	if s.Partition != "batch" || s.Name != "job" {
		t.Errorf("defaults: partition %q name %q", s.Partition, s.Name)
	}
	// Only root names somebody else.
	_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: script(), Uid: bob})
	wantRefusal(t, err, "ESLURM_ACCESS_DENIED", "only root")
	_, err = f.srv.Submit(f.as(olga), &ctldpb.SubmitRequest{Spec: script(), Uid: bob})
	wantRefusal(t, err, "ESLURM_ACCESS_DENIED", "only root")
	resp, err := f.srv.Submit(f.as(0), &ctldpb.SubmitRequest{Spec: script(), Uid: bob})
	if err != nil || f.log.View().Job(resp.JobId).Spec.User != "bob" {
		t.Errorf("root for bob: %v", err)
	}
	_, err = f.srv.Submit(f.as(0), &ctldpb.SubmitRequest{Spec: script()})
	wantRefusal(t, err, "ESLURM_ACCESS_DENIED", "uid 0")
	_, err = f.srv.Submit(f.as(4711), &ctldpb.SubmitRequest{Spec: script()})
	wantRefusal(t, err, "ESLURM_USER_ID_MISSING", "4711")
}

func TestSubmitRefusals(t *testing.T) {
	f := newFixture(t, "")
	tests := []struct {
		name, code string
		edit       func(*ctldpb.JobSpec)
		words      []string
	}{
		{"no script", "ESLURM_JOB_SCRIPT_MISSING", func(s *ctldpb.JobSpec) { s.Script = nil }, nil},
		{"unknown partition", "ESLURM_INVALID_PARTITION_NAME", func(s *ctldpb.JobSpec) { s.Partition = "nosuch" },
			[]string{"Invalid partition name specified", "nosuch", "batch"}},
		{"one of two partitions unknown", "ESLURM_INVALID_PARTITION_NAME", func(s *ctldpb.JobSpec) { s.Partition = "nosuch,batch" }, []string{"nosuch"}},
		{"array backwards", "ESLURM_INVALID_ARRAY", func(s *ctldpb.JobSpec) { s.Array = "5-1" }, []string{"Invalid job array specification"}},
		{"array word", "ESLURM_INVALID_ARRAY", func(s *ctldpb.JobSpec) { s.Array = "a" }, []string{"Invalid job array specification"}},
		{"array over MaxArraySize", "ESLURM_INVALID_ARRAY", func(s *ctldpb.JobSpec) { s.Array = "1-2000000" }, []string{"Invalid job array specification", "1001"}},
		{"bad nodelist", "ESLURM_INVALID_NODE_NAME", func(s *ctldpb.JobSpec) { s.NodeList = "node]1-2[" }, []string{"node]1-2["}},
		{"nodelist backwards", "ESLURM_INVALID_NODE_NAME", func(s *ctldpb.JobSpec) { s.NodeList = "node[3-1]" }, []string{"node[3-1]"}},
		{"exclude open", "ESLURM_INVALID_NODE_NAME", func(s *ctldpb.JobSpec) { s.Exclude = "node[1" }, []string{"node[1"}},
		{"nodelist huge", "ESLURM_INVALID_NODE_NAME", func(s *ctldpb.JobSpec) { s.NodeList = "node[0-2000000]" }, []string{"65536"}},
		{"node not there", "ESLURM_INVALID_NODE_NAME", func(s *ctldpb.JobSpec) { s.NodeList = "n1,n77" }, []string{"n77"}},
		{"exclude not there", "ESLURM_INVALID_NODE_NAME", func(s *ctldpb.JobSpec) { s.Exclude = "n78" }, []string{"n78"}},
		{"too long for the partition", "ESLURM_INVALID_TIME_LIMIT", func(s *ctldpb.JobSpec) { s.Partition, s.TimeLimitMs = "short", 3600000 },
			[]string{"Requested time limit is invalid", "short"}},
		{"more CPUs than any node", "ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", func(s *ctldpb.JobSpec) { s.Ntasks, s.CpusPerTask = 1, 64 },
			[]string{"Requested node configuration is not available", "64", "4"}},
		{"bad gres", "ESLURM_INVALID_GRES", func(s *ctldpb.JobSpec) { s.Gres = "gpu:a100:x" }, []string{"Invalid generic resource (gres) specification"}},
		{"bad dependency", "ESLURM_DEPENDENCY", func(s *ctldpb.JobSpec) { s.Dependency = "afterish:3" }, []string{"Job dependency problem"}},
		{"group not allowed", "", func(s *ctldpb.JobSpec) { s.Partition = "staff" }, []string{"staff"}},
		{"no folder", "INVALID", func(s *ctldpb.JobSpec) { s.WorkDir = "" }, []string{"--chdir", "absolute"}},
		{"relative folder", "INVALID", func(s *ctldpb.JobSpec) { s.WorkDir = "proj/x" }, []string{"proj/x", "absolute"}},
		{"blob not stored", "BLOB_MISSING", func(s *ctldpb.JobSpec) { s.EnvHash = make([]byte, 32) }, []string{"send blob"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := script()
			tt.edit(spec)
			_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec})
			code := tt.code
			if r := RefusalOf(err); code == "" && r != nil {
				code = r.Code
			}
			wantRefusal(t, err, code, tt.words...)
		})
	}
	if all, _, _ := f.log.View().Counts(); all != 0 {
		t.Errorf("%d jobs exist after refusals only", all)
	}
	f.submit(sam, func(s *ctldpb.JobSpec) { s.Partition = "staff" })
	f.submit(ann, func(s *ctldpb.JobSpec) { s.BeginMs = 1000 }) // long past
}

func TestSubmitOnceUnderAKey(t *testing.T) {
	f := newFixture(t, "")
	req := &ctldpb.SubmitRequest{Key: "k1", Spec: script()}
	first, err := f.srv.Submit(f.as(ann), req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.srv.Submit(f.as(ann), req)
	if err != nil || again.JobId != first.JobId || !again.Duplicate {
		t.Fatalf("again: %v %v", again, err)
	}
	other := &ctldpb.SubmitRequest{Key: "k1", Spec: script()}
	other.Spec.Name = "another"
	if _, err := f.srv.Submit(f.as(ann), other); RefusalOf(err) == nil {
		t.Errorf("another body under the same key: %v", err)
	}
	if mine, err := f.srv.Submit(f.as(bob), req); err != nil || mine.JobId == first.JobId {
		t.Errorf("a key is the user's own: %v %v", mine, err)
	}
	// The repeat is answered even when the request would be refused today.
	f.propose(setPartition("batch", "State", "DRAIN"))
	if again, err := f.srv.Submit(f.as(ann), req); err != nil || again.JobId != first.JobId {
		t.Errorf("repeat after a change: %v %v", again, err)
	}
}

func TestLargeScriptGoesAsABlob(t *testing.T) {
	f := newFixture(t, "")
	body := append([]byte("#!/bin/sh\n"), bytes.Repeat([]byte("#"), BlobChunk*2+17)...)
	id := f.submit(ann, func(s *ctldpb.JobSpec) { s.Script = body })
	if s := f.log.View().Job(id).Spec; len(s.Script) != 0 || len(s.ScriptHash) != 32 {
		t.Fatalf("script %d bytes inline, hash of %d", len(s.Script), len(s.ScriptHash))
	}
	got, err := f.srv.GetScript(f.as(ann), &ctldpb.GetScriptRequest{JobId: id})
	if err != nil || !bytes.Equal(got.Data, body) {
		t.Fatalf("GetScript: %d bytes, %v", len(got.GetData()), err)
	}
	_, err = f.srv.GetScript(f.as(bob), &ctldpb.GetScriptRequest{JobId: id})
	wantRefusal(t, err, "ESLURM_ACCESS_DENIED")
	if got, err := f.srv.GetScript(f.as(olga), &ctldpb.GetScriptRequest{JobId: id}); err != nil || len(got.Data) != len(body) {
		t.Errorf("operator: %v", err)
	}
	env := []byte("A=1\x00B=2\x00")
	put, err := f.srv.PutBlob(f.as(ann), &ctldpb.PutBlobRequest{Data: env})
	if err != nil {
		t.Fatal(err)
	}
	id = f.submit(ann, func(s *ctldpb.JobSpec) { s.EnvHash = put.Hash })
	if got, err := f.srv.GetScript(f.as(ann), &ctldpb.GetScriptRequest{JobId: id, Env: true}); err != nil || !bytes.Equal(got.Data, env) {
		t.Errorf("environment: %v", err)
	}
}

func TestSubmitBatchOneByOne(t *testing.T) {
	f := newFixture(t, "")
	req := &ctldpb.SubmitBatchRequest{}
	for i := range 5 {
		spec := script()
		if i == 2 {
			spec.Partition = "nosuch"
		}
		req.Requests = append(req.Requests, &ctldpb.SubmitRequest{Spec: spec, Key: fmt.Sprint("b", i)})
	}
	resp, err := f.srv.SubmitBatch(f.as(ann), req)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range resp.Results {
		if (i == 2) != (r.Refusal != nil) || (i == 2) == (r.Ok != nil) {
			t.Errorf("result %d: %v", i, r)
		}
	}
	if all, _, _ := f.log.View().Counts(); all != 4 {
		t.Errorf("%d jobs, want 4", all)
	}
}

func TestLimitsPlusOne(t *testing.T) {
	f := newFixture(t, "")
	ctx := f.as(ann)
	many := func(n int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprint(i + 1)
		}
		return out
	}
	set := map[string]string{}
	for i := range MaxSet + 1 {
		set[fmt.Sprint("Key", i)] = "1"
	}
	list := func(f *fixture, req *ctldpb.ListJobsRequest) error {
		return f.srv.ListJobs(req, &jobStream{ctx: ctx})
	}
	tests := []struct {
		name, limit string
		call        func() error
	}{
		{"batch", "MaxBatch (256)", func() error {
			_, err := f.srv.SubmitBatch(ctx, &ctldpb.SubmitBatchRequest{Requests: make([]*ctldpb.SubmitRequest, MaxBatch+1)})
			return err
		}},
		{"key", "MaxKey (64)", func() error {
			_, err := f.srv.Submit(ctx, &ctldpb.SubmitRequest{Key: strings.Repeat("k", job.MaxKey+1), Spec: script()})
			return err
		}},
		{"script", "MaxScript", func() error {
			spec := script()
			spec.Script = append([]byte("#!/bin/sh\n"), make([]byte, job.MaxScript)...)
			_, err := f.srv.Submit(ctx, &ctldpb.SubmitRequest{Spec: spec})
			return err
		}},
		{"blob", "MaxBlob (4194304)", func() error {
			_, err := f.srv.PutBlob(ctx, &ctldpb.PutBlobRequest{Data: make([]byte, MaxBlob+1)})
			return err
		}},
		{"listed ids", "MaxIDs (4096)", func() error { return list(f, &ctldpb.ListJobsRequest{JobIds: many(MaxIDs + 1)}) }},
		{"listed names", "MaxFilterNames (4096)", func() error { return list(f, &ctldpb.ListJobsRequest{Names: many(MaxFilterNames + 1)}) }},
		{"filter word", "MaxFilterWord (65536)", func() error {
			return list(f, &ctldpb.ListJobsRequest{Users: []string{strings.Repeat("u", MaxFilterWord+1)}})
		}},
		{"cancelled ids", "MaxIDs (4096)", func() error {
			_, err := f.srv.Cancel(ctx, &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: many(MaxIDs + 1)}})
			return err
		}},
		{"held ids", "MaxIDs (4096)", func() error {
			_, err := f.srv.Control(ctx, &ctldpb.ControlRequest{Op: ctldpb.ControlRequest_HOLD, JobIds: many(MaxIDs + 1)})
			return err
		}},
		{"job keys", "MaxSet (64)", func() error {
			_, err := f.srv.UpdateJob(ctx, &ctldpb.UpdateJobRequest{JobIds: []string{"1"}, Set: set})
			return err
		}},
		{"node keys", "MaxSet (64)", func() error {
			_, err := f.srv.UpdateNode(f.as(olga), &ctldpb.UpdateNodeRequest{Names: "n1", Set: set})
			return err
		}},
		{"partition keys", "MaxSet (64)", func() error {
			_, err := f.srv.UpdatePartition(f.as(olga), &ctldpb.UpdatePartitionRequest{Name: "batch", Set: set})
			return err
		}},
		{"node names", "MaxFilterNames (4096)", func() error {
			_, err := f.srv.ListNodes(ctx, &ctldpb.ListNodesRequest{Names: many(MaxFilterNames + 1)})
			return err
		}},
		{"partition names", "MaxFilterNames (4096)", func() error {
			_, err := f.srv.ListPartitions(ctx, &ctldpb.ListPartitionsRequest{Names: many(MaxFilterNames + 1)})
			return err
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.call()
			r := RefusalOf(err)
			if r == nil || !strings.Contains(r.Why, tt.limit) {
				t.Fatalf("want a refusal that names %s, got %v", tt.limit, err)
			}
		})
	}
}

func TestTestOnly(t *testing.T) {
	f := newFixture(t, "")
	ask := func(edit func(*ctldpb.JobSpec)) (*ctldpb.SubmitResponse, error) {
		spec := script()
		if edit != nil {
			edit(spec)
		}
		return f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: spec, TestOnly: true})
	}
	_, err := ask(nil)
	wantRefusal(t, err, "ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", "down")
	f.register("n1")
	resp, err := ask(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("to start at %s using 1 processors on nodes n1 in partition batch", f.now.Local().Format("2006-01-02T15:04:05"))
	if !strings.Contains(resp.TestResult, want) {
		t.Errorf("%q has no %q", resp.TestResult, want)
	}
	// With the node full the answer is when the running job ends.
	id := f.submit(bob, nil)
	f.start(id, -1, "n1")
	end := f.log.View().Job(id).End
	resp, err = ask(func(s *ctldpb.JobSpec) { s.Ntasks, s.CpusPerTask = 1, 4 })
	if err != nil {
		t.Fatal(err)
	}
	if at := resp.TestResult; end == 0 || !strings.Contains(at, "T") || strings.Contains(at, f.now.Local().Format("15:04:05")) {
		t.Errorf("full node: %q", at)
	}
	if all, _, _ := f.log.View().Counts(); all != 1 {
		t.Errorf("--test-only made jobs: %d", all)
	}
}

func TestReplicaErrorsBecomeStatuses(t *testing.T) {
	f := newFixture(t, "")
	for _, tt := range []struct {
		err  error
		code string
	}{
		{replica.ErrNotLeader, codeNotLeader}, {replica.ErrUnknown, codeUnknown}, {replica.ErrNoLeader, codeNoLeader},
		{replica.ErrBusy, codeBusy}, {replica.ErrTooLarge, codeLimit},
	} {
		f.log.fail = []error{tt.err}
		_, err := f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: script()})
		wantRefusal(t, err, tt.code)
	}
}
