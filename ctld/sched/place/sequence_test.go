package place

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// TestSequence lets jobs of all kinds come and go: what is chosen is always there to be given, and
// when all have gone everything is free again.
func TestSequence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "nodes")
		c := &Candidates{}
		var rooms []Room
		for i := range n {
			h := host()
			h.Name, h.CPUs = fmt.Sprintf("n%d", i), uint32(rapid.IntRange(1, 8).Draw(t, "CPUs"))
			c.Nodes, rooms = append(c.Nodes, h), append(rooms, WholeRoom(h))
		}
		at := func(name string) (int, bool) {
			i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.Name == name })
			return i, i >= 0
		}
		c.Topology = NewTopology(rapid.SampledFrom([]string{"flat", "tree"}).Draw(t, "topology"),
			[]Switch{{Name: "a", Nodes: "n[0-2]"}, {Name: "b", Nodes: "n[3-4]"}}, nil, at)
		type held struct {
			node   int
			alloc  job.NodeAlloc
			tenant Tenant
		}
		var runs [][]held
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			if len(runs) > 0 && rapid.IntRange(0, 2).Draw(t, "end") == 0 {
				i := rapid.IntRange(0, len(runs)-1).Draw(t, "which")
				for k := range runs[i] {
					rooms[runs[i][k].node].More(c.Nodes[runs[i][k].node], &runs[i][k].alloc)
				}
				runs = slices.Delete(runs, i, i+1)
				continue
			}
			spec, x := drawRequest(t)
			s, wrong := Compile(&spec, &x, Limits{}, nil, at)
			if wrong != "" {
				continue
			}
			c.List = s.Order(c.Nodes, all(n))
			c.Fit = func(n int) uint32 { return s.Fit(c.Nodes[n], &rooms[n]) }
			var run []held
			for _, p := range s.Choose(c) {
				r := &rooms[p.Node]
				a := s.Demand(c.Nodes[p.Node], r, p.Tasks)
				if !within(c.Nodes[p.Node], r, &a) {
					t.Fatalf("%+v is not in %+v", a, *r)
				}
				for _, other := range runs {
					for _, o := range other {
						alien := o.tenant.UID != spec.UID && (o.tenant.User || s.Tenant().User)
						if o.node == p.Node && (alien || o.tenant.Exclusive || s.Tenant().Exclusive) {
							t.Fatalf("node %d is not to be shared: %+v with %+v", p.Node, o.tenant, s.Tenant())
						}
					}
				}
				r.Less(c.Nodes[p.Node], &a, s.Tenant())
				run = append(run, held{p.Node, a, s.Tenant()})
			}
			if run != nil {
				runs = append(runs, run)
			}
		}
		for _, run := range runs {
			for k := range run {
				rooms[run[k].node].More(c.Nodes[run[k].node], &run[k].alloc)
			}
		}
		for i := range rooms {
			if whole := WholeRoom(c.Nodes[i]); fmt.Sprint(rooms[i]) != fmt.Sprint(whole) {
				t.Fatalf("%+v is left of %+v", rooms[i], whole)
			}
		}
	})
}

func drawRequest(t *rapid.T) (job.Spec, job.Extra) {
	spec := job.Spec{UID: uint32(rapid.IntRange(0, 2).Draw(t, "uid")), NTasks: uint32(rapid.IntRange(0, 6).Draw(t, "n")),
		CPUsPerTask: uint32(rapid.IntRange(1, 2).Draw(t, "c")), MinNodes: uint32(rapid.IntRange(0, 3).Draw(t, "N")),
		MemPerNode: rapid.SampledFrom([]int64{0, gib, 5 * gib, job.WholeNode}).Draw(t, "mem"),
		Gres:       rapid.SampledFrom([]string{"", "", "gpu:1", "gpu:a100:1,gpu:1"}).Draw(t, "gres"),
		Exclusive:  rapid.IntRange(0, 5).Draw(t, "exclusive") == 0}
	if spec.MinNodes > 0 {
		spec.MaxNodes = spec.MinNodes + uint32(rapid.IntRange(0, 1).Draw(t, "more"))
	}
	x := job.Extra{Exclusive: rapid.SampledFrom([]string{"", "", "", "user"}).Draw(t, "for the user"),
		Spread: rapid.IntRange(0, 4).Draw(t, "spread") == 0, FewNodes: rapid.IntRange(0, 4).Draw(t, "few") == 0,
		Overcommit: rapid.IntRange(0, 5).Draw(t, "O") == 0, Switches: uint32(rapid.IntRange(0, 2).Draw(t, "switches"))}
	return spec, x
}
