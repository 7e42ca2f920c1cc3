package place

import (
	"fmt"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

func BenchmarkFit(b *testing.B) {
	for _, bb := range []struct {
		name string
		spec job.Spec
	}{
		{"plain", job.Spec{}},
		{"memory", job.Spec{NTasks: 8, MemPerCPU: gib}},
		{"gpus", job.Spec{NTasks: 8, Gres: "gpu:h100:2"}},
		{"any gpus", job.Spec{NTasks: 8, Gres: "gpu:3"}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			n := host()
			r := WholeRoom(n)
			s := compile(b, bb.spec, job.Extra{}, Limits{})
			b.ReportAllocs()
			for b.Loop() {
				if s.Fit(n, &r) == 0 {
					b.Fatal("it does not fit")
				}
			}
		})
	}
}

// BenchmarkChoose picks from 10,000 nodes, of which every third is free.
func BenchmarkChoose(b *testing.B) {
	nodes := func(n uint32) job.Spec { return job.Spec{MinNodes: n, MaxNodes: n} }
	for _, bb := range []struct {
		name  string
		spec  job.Spec
		extra job.Extra
		tree  bool
		full  bool
	}{
		{name: "first node", spec: job.Spec{NTasks: 4, MinNodes: 1, MaxNodes: 1}},
		{name: "no node", spec: job.Spec{NTasks: 4, MinNodes: 1, MaxNodes: 1}, full: true},
		{name: "64 nodes", spec: nodes(64)},
		{name: "1000 tasks", spec: job.Spec{NTasks: 1000}},
		{name: "64 nodes of a tree", spec: nodes(64), tree: true},
		{name: "8 nodes at one switch", spec: nodes(8), extra: job.Extra{Switches: 1}, tree: true},
		{name: "1000 tasks of a tree", spec: job.Spec{NTasks: 1000}, tree: true},
		{name: "counts", spec: job.Spec{MinNodes: 64, MaxNodes: 64, Constraint: "[a*16&b*16]"}},
		{name: "no row", spec: nodes(64), extra: job.Extra{Contiguous: true}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			c := &Candidates{}
			var rooms []Room
			var lines []Switch
			top := Switch{Name: "top", Switches: "s[0-299]"}
			for i := range 10000 {
				n := host()
				n.Name, n.Features = fmt.Sprintf("n%d", i), []string{string(rune('a' + i%3))}
				r := WholeRoom(n)
				if bb.full || i%3 > 0 {
					r.CPUs = 0
				}
				c.Nodes, c.List, rooms = append(c.Nodes, n), append(c.List, i), append(rooms, r)
			}
			for i := range 300 {
				lines = append(lines, Switch{Name: fmt.Sprintf("s%d", i), Nodes: fmt.Sprintf("n[%d-%d]", i*33, i*33+32)})
			}
			if bb.spec.Constraint != "" {
				for i := range rooms {
					rooms[i] = WholeRoom(c.Nodes[i])
				}
			}
			at := func(name string) (n int, ok bool) {
				_, err := fmt.Sscanf(name, "n%d", &n)
				return n, err == nil
			}
			if bb.tree {
				c.Topology = NewTopology("tree", append(lines, top), nil, at)
			}
			s, wrong := Compile(&bb.spec, &bb.extra, Limits{}, nil, at)
			if wrong != "" {
				b.Fatal(wrong)
			}
			c.Fit = func(n int) uint32 { return s.Fit(c.Nodes[n], &rooms[n]) }
			none := bb.full || bb.extra.Contiguous
			b.ReportAllocs()
			for b.Loop() {
				if (s.Choose(c) == nil) != none {
					b.Fatal("not as expected")
				}
			}
		})
	}
}
