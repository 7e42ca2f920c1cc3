package server

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// TestPrivateData: what the configuration hides is shown to operators only.
func TestPrivateData(t *testing.T) {
	f := newFixture(t, "")
	f.srv.Auth.SetPolicy(&authn.Policy{PrivateData: []string{"Nodes", "partitions"}, Operators: []string{"olga"}})
	_, err := f.srv.ListNodes(f.as(ann), &ctldpb.ListNodesRequest{})
	wantRefusal(t, err, "ESLURM_ACCESS_DENIED", "PrivateData=nodes")
	_, err = f.srv.ListPartitions(f.as(ann), &ctldpb.ListPartitionsRequest{Names: []string{"batch"}})
	wantRefusal(t, err, "ESLURM_ACCESS_DENIED", "PrivateData=partitions")
	if resp, err := f.srv.ListNodes(f.as(olga), &ctldpb.ListNodesRequest{}); err != nil || len(resp.Nodes) != 4 {
		t.Errorf("operator: %v %v", resp, err)
	}
	f.srv.Auth.SetPolicy(&authn.Policy{PrivateData: []string{"partitions"}})
	resp, err := f.srv.ListNodes(f.as(ann), &ctldpb.ListNodesRequest{})
	if err != nil || len(resp.Nodes) != 4 || len(resp.Nodes[0].Partitions) != 0 {
		t.Errorf("partitions of nodes: %v %v", resp, err)
	}
}

// TestPartitionUpdatesByAlias: of two names for one parameter the later update counts.
func TestPartitionUpdatesByAlias(t *testing.T) {
	f := newFixture(t, "")
	for _, set := range []map[string]string{{"Shared": "EXCLUSIVE"}, {"OverSubscribe": "NO"}} {
		if _, err := f.srv.UpdatePartition(f.as(olga), &ctldpb.UpdatePartitionRequest{Name: "batch", Set: set}); err != nil {
			t.Fatal(err)
		}
	}
	if p := f.log.View().Partition("batch"); p.OverSubscribe != "NO" {
		t.Errorf("OverSubscribe is %s", p.OverSubscribe)
	}
}

// TestRelativeUpdatesAreNotRepeated: a time limit that is moved is not moved twice when an answer is lost.
func TestRelativeUpdatesAreNotRepeated(t *testing.T) {
	for value, want := range map[string]int{"+30": 1, "-10": 1, "30": 2, "-1": 2} {
		f, s, d := pair(t)
		f.submit(ann, func(s *ctldpb.JobSpec) { s.TimeLimitMs = 3600000 })
		d.after = []error{status.Error(codes.Unavailable, "connection reset")}
		_, err := call(f.as(0), s, "UpdateJob", &ctldpb.UpdateJobRequest{JobIds: []string{"1"}, Set: map[string]string{"TimeLimit": value}}, notHere)
		if d.calls != want || (err == nil) != (want == 2) {
			t.Errorf("TimeLimit=%s: %d calls, %v", value, d.calls, err)
		}
	}
}

// TestFileThatDiffers: a controller whose file is not the cluster's says in what.
func TestFileThatDiffers(t *testing.T) {
	f := newFixture(t, "")
	var out bytes.Buffer
	f.srv.Logger = slog.New(slog.NewTextHandler(&out, nil))
	f.rewrite(strings.Replace(testConf, "Operators=olga", "KillWait=11", 1) + "NodeName=n9 CPUs=1\nPartitionName=extra Nodes=g1\n")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cfg, err := conf.Load(f.conf)
	if err != nil {
		t.Fatal(err)
	}
	f.srv.cfg.Store(cfg)
	f.srv.Follow(ctx)
	for _, want := range []string{"KillWait", "NodeName=n9", "PartitionName=extra", "gctl reconfigure"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %s", want, out.String())
		}
	}
	if f.log.View().Node("n9") != nil {
		t.Error("the file went into the state")
	}
	resp, err := f.srv.Reconfigure(f.as(olga), &ctldpb.ReconfigureRequest{})
	if err != nil || !strings.Contains(strings.Join(resp.Changed, "\n"), "NodeName=n9") || f.log.View().Node("n9") == nil {
		t.Errorf("reconfigure: %v %v", resp, err)
	}
}
