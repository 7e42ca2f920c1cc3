package server

import (
	"slices"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// TestPlannedNodes: what stands idle, whole or in part, because a waiting job's start is promised there shows as
// planned, and no more when the job has gone.
func TestPlannedNodes(t *testing.T) {
	f := newSchedFixture(t, "")
	f.register("n1", "n2", "g1", "g2")
	on := func(list string, exclusive bool) func(*ctldpb.JobSpec) {
		return func(s *ctldpb.JobSpec) {
			s.NodeList, s.Exclusive, s.TimeLimitMs = list, exclusive, 3600_000
			s.MinNodes, s.MaxNodes = uint32(len(list)/2), uint32(len(list)/2) // "n1" or "n1,n2"
			if !exclusive {
				s.MemPerCpu = 1 << 20
			}
		}
	}
	f.submit(bob, on("n1", true))
	f.submit(bob, on("g1", false))
	if got := f.plan(); len(got) != 2 {
		t.Fatalf("started %v", got)
	}
	both, part := f.submit(ann, on("n1,n2", true)), f.submit(ann, on("g1", true))
	f.plan()
	shown := func() (marked []string) {
		resp, err := f.srv.ListNodes(f.as(ann), &ctldpb.ListNodesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range resp.Nodes {
			if slices.Contains(n.Flags, node.Planned.Names()[0]) {
				marked = append(marked, n.Name+" "+n.State)
			}
		}
		return marked
	}
	if got := shown(); !slices.Equal(got, []string{"n2 IDLE", "g1 MIXED"}) {
		t.Fatalf("planned: %v (jobs %d, %d)", got, both, part)
	}
	if _, err := f.srv.Cancel(f.as(ann), &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{Users: []string{"ann"}}}); err != nil {
		t.Fatal(err)
	}
	if got := shown(); len(got) != 0 {
		t.Fatalf("planned after both have gone: %v", got)
	}
}
