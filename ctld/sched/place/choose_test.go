package place

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// rack makes nodes n0.. of 4 CPUs and 4 GiB; free gives the free CPUs of each, as digits.
func rack(free string) ([]*Node, []Room) {
	var nodes []*Node
	var rooms []Room
	for i, c := range free {
		n := &Node{Name: fmt.Sprintf("n%d", i), CPUs: 4, Mem: 4 * gib, Up: true, FreeCPUs: uint32(c - '0')}
		n.FreeMem = int64(n.FreeCPUs) * gib
		n.Busy = n.FreeCPUs < 4
		nodes, rooms = append(nodes, n), append(rooms, FreeRoom(n))
	}
	return nodes, rooms
}

// try is one choice: what is free, the request, and what changes.
type try struct {
	free   string
	spec   job.Spec
	extra  job.Extra
	lim    Limits
	avoid  []string
	change func([]*Node, *Candidates)
	topo   func(at func(string) (int, bool)) *Topology
}

// choose gives the picks as "0:2 3:1".
func (r try) choose(t testing.TB) string {
	t.Helper()
	nodes, rooms := rack(r.free)
	at := func(name string) (int, bool) {
		i := slices.IndexFunc(nodes, func(n *Node) bool { return n.Name == name })
		return i, i >= 0
	}
	c := &Candidates{Nodes: nodes}
	if r.change != nil {
		r.change(nodes, c)
	}
	s, wrong := Compile(&r.spec, &r.extra, r.lim, r.avoid, at)
	if wrong != "" {
		return wrong
	}
	if r.topo != nil {
		c.Topology = r.topo(at)
	}
	c.List = s.Order(nodes, all(len(nodes)))
	c.Fit = func(n int) uint32 { return s.Fit(nodes[n], &rooms[n]) }
	var out []string
	for _, p := range s.Choose(c) {
		out = append(out, fmt.Sprintf("%d:%d", p.Node, p.Tasks))
	}
	return strings.Join(out, " ")
}

func features(list ...string) func([]*Node, *Candidates) {
	return func(nodes []*Node, _ *Candidates) {
		for i := range list {
			nodes[i].Features = strings.Split(list[i], "")
		}
	}
}

func TestChoose(t *testing.T) {
	for _, tt := range []struct {
		name string
		try  try
		want string
	}{
		{"the first", try{free: "444"}, "0:1"},
		{"the first that fits", try{free: "024", spec: job.Spec{CPUsPerTask: 3}}, "2:1"},
		{"lowest weight", try{free: "444", change: func(n []*Node, _ *Candidates) { n[0].Weight, n[1].Weight = 2, 2 }}, "2:1"},
		{"avoided last", try{free: "44", avoid: []string{"n0"}}, "1:1"},
		{"avoided when nothing else fits", try{free: "40", avoid: []string{"n0"}}, "0:1"},
		{"avoided comes after a higher weight", try{free: "44", avoid: []string{"n0"},
			change: func(n []*Node, _ *Candidates) { n[1].Weight = 9 }}, "1:1"},
		{"tasks fill nodes", try{free: "444", spec: job.Spec{NTasks: 6}}, "0:4 1:2"},
		{"roomiest when few must do", try{free: "1144", spec: job.Spec{NTasks: 7, MinNodes: 2, MaxNodes: 2}}, "2:4 3:3"},
		{"as many nodes as the range allows", try{free: "4444", spec: job.Spec{MinNodes: 1, MaxNodes: 3}}, "0:1 1:1 2:1"},
		{"fewer when no more fit", try{free: "4040", spec: job.Spec{MinNodes: 1, MaxNodes: 3}}, "0:1 2:1"},
		{"too few", try{free: "4004", spec: job.Spec{MinNodes: 3, MaxNodes: 3}}, ""},
		{"use-min-nodes of a range", try{free: "444", spec: job.Spec{MinNodes: 1, MaxNodes: 3}, extra: job.Extra{FewNodes: true}}, "0:1"},
		{"use-min-nodes of tasks", try{free: "1142", spec: job.Spec{NTasks: 5, MinNodes: 1, MaxNodes: 4}, extra: job.Extra{FewNodes: true}}, "2:4 3:1"},
		{"spread", try{free: "4444", spec: job.Spec{NTasks: 6, MinNodes: 1, MaxNodes: 3}, extra: job.Extra{Spread: true}}, "0:2 1:2 2:2"},
		{"spread evenly", try{free: "4144", spec: job.Spec{NTasks: 8, MinNodes: 4, MaxNodes: 4}, extra: job.Extra{Spread: true}}, "0:3 1:1 2:2 3:2"},
		{"spread over no more nodes than tasks", try{free: "4444", spec: job.Spec{NTasks: 2}, extra: job.Extra{Spread: true}}, "0:1 1:1"},
		{"overcommit", try{free: "4444", spec: job.Spec{NTasks: 20, MinNodes: 2, MaxNodes: 2}, extra: job.Extra{Overcommit: true}}, "0:10 1:10"},
		{"least loaded", try{free: "243", lim: Limits{LLN: true}}, "1:1"},
		{"least loaded of the lowest weight", try{free: "243", lim: Limits{LLN: true},
			change: func(n []*Node, _ *Candidates) { n[1].Weight = 5 }}, "2:1"},
		{"fullest that fits", try{free: "4132", spec: job.Spec{CPUsPerTask: 2}, change: func(_ []*Node, c *Candidates) { c.BestFit = true }}, "3:1"},
		{"last node is the fullest that does", try{free: "4431", spec: job.Spec{NTasks: 7}, change: func(_ []*Node, c *Candidates) { c.BestFit = true }}, "0:4 2:3"},
		{"named", try{free: "444", spec: job.Spec{NodeList: "n2"}}, "2:1"},
		{"named and more", try{free: "4444", spec: job.Spec{NodeList: "n2", MinNodes: 2, MaxNodes: 2}}, "0:1 2:1"},
		{"named more than nodes", try{free: "4404", spec: job.Spec{NodeList: "n[1-3]", MinNodes: 1, MaxNodes: 1}}, "1:1"},
		{"named more than nodes, the first is full", try{free: "4044", spec: job.Spec{NodeList: "n[1-3]", MinNodes: 2, MaxNodes: 2}}, "2:1 3:1"},
		{"named is full", try{free: "4404", spec: job.Spec{NodeList: "n2"}}, ""},
		{"named are too many for the partition", try{free: "444", spec: job.Spec{NodeList: "n[0-2]"}, lim: Limits{MaxNodes: 2}},
			"--nodelist names 3 nodes, MaxNodes of the partition is 2"},
		{"excluded", try{free: "444", spec: job.Spec{Exclude: "n[0-1]"}}, "2:1"},
		{"counts", try{free: "4444", spec: job.Spec{Constraint: "[a*1&b*2]"}, change: features("a", "a", "b", "b")}, "0:1 2:1 3:1"},
		{"counts and any other", try{free: "4444", spec: job.Spec{Constraint: "b*1", MinNodes: 3, MaxNodes: 3}, change: features("a", "a", "a", "b")}, "0:1 1:1 3:1"},
		{"a node stands for the count that needs it", try{free: "444", spec: job.Spec{Constraint: "[a*1&b*1]"}, change: features("ab", "c", "a")}, "0:1 2:1"},
		{"matching alternatives", try{free: "4444", spec: job.Spec{Constraint: "[a|b]", MinNodes: 2, MaxNodes: 2}, change: features("a", "b", "c", "b")}, "1:1 3:1"},
		{"the first alternative of two", try{free: "4444", spec: job.Spec{Constraint: "[b|a]", MinNodes: 2, MaxNodes: 2}, change: features("a", "b", "a", "b")}, "1:1 3:1"},
		{"preferred", try{free: "444", extra: job.Extra{Prefer: "b"}, change: features("a", "a", "b")}, "2:1"},
		{"preferred as far as it goes", try{free: "444", spec: job.Spec{MinNodes: 2, MaxNodes: 2}, extra: job.Extra{Prefer: "b"}, change: features("a", "a", "b")}, "0:1 2:1"},
		{"preferred alternatives", try{free: "4444", spec: job.Spec{MinNodes: 2, MaxNodes: 2}, extra: job.Extra{Prefer: "[a|b]"}, change: features("a", "c", "b", "b")}, "2:1 3:1"},
		{"side by side", try{free: "40444", spec: job.Spec{MinNodes: 2, MaxNodes: 2}, extra: job.Extra{Contiguous: true}}, "2:1 3:1"},
		{"the smallest gap", try{free: "444044", spec: job.Spec{MinNodes: 2, MaxNodes: 2}, extra: job.Extra{Contiguous: true}}, "4:1 5:1"},
		{"the longest row of a range", try{free: "44044440", spec: job.Spec{MinNodes: 2, MaxNodes: 3}, extra: job.Extra{Contiguous: true}}, "3:1 4:1 5:1"},
		{"a row over a named node", try{free: "444444", spec: job.Spec{NodeList: "n3", MinNodes: 2, MaxNodes: 2}, extra: job.Extra{Contiguous: true}}, "2:1 3:1"},
		{"a row without the avoided", try{free: "44444", spec: job.Spec{MinNodes: 2, MaxNodes: 2}, avoid: []string{"n1"}, extra: job.Extra{Contiguous: true}}, "2:1 3:1"},
		{"rows in configuration order, whatever the weight", try{free: "444", spec: job.Spec{MinNodes: 2, MaxNodes: 2}, extra: job.Extra{Contiguous: true},
			change: func(n []*Node, _ *Candidates) { n[1].Weight = 5 }}, "0:1 1:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.try.choose(t); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// fat is three switches of which the first two are below one more.
func fat(lists ...string) func(at func(string) (int, bool)) *Topology {
	return func(at func(string) (int, bool)) *Topology {
		lines := []Switch{{Name: "top", Switches: "mid,s2"}, {Name: "mid", Switches: "s[0-1]"}}
		for i, l := range lists {
			lines = append(lines, Switch{Name: fmt.Sprintf("s%d", i), Nodes: l})
		}
		return NewTopology("tree", lines, nil, at)
	}
}

func blocks(sizes []uint32, lists ...string) func(at func(string) (int, bool)) *Topology {
	return func(at func(string) (int, bool)) *Topology {
		var lines []Switch
		for i, l := range lists {
			lines = append(lines, Switch{Name: fmt.Sprintf("b%d", i), Nodes: l})
		}
		return NewTopology("block", lines, sizes, at)
	}
}

func TestChooseNear(t *testing.T) {
	nodes := func(n uint32) job.Spec { return job.Spec{MinNodes: n, MaxNodes: n} }
	three := fat("n[0-1]", "n[2-3]", "n[4-7]")
	four := blocks([]uint32{2, 4}, "n[0-1]", "n[2-3]", "n[4-5]", "n[6-7]")
	for _, tt := range []struct {
		name string
		try  try
		want string
	}{
		{"one switch", try{free: "04444444", spec: nodes(2), topo: three}, "2:1 3:1"},
		{"the fullest switch that does", try{free: "40440444", spec: nodes(2), topo: three}, "2:1 3:1"},
		{"only one is large enough", try{free: "44444444", spec: nodes(3), topo: three}, "4:1 5:1 6:1"},
		{"one node needs no switch", try{free: "44444444", spec: nodes(1), topo: three}, "0:1"},
		{"two below one switch rather than across", try{free: "44440444", spec: nodes(4), topo: three}, "0:1 1:1 2:1 3:1"},
		{"few switches rather than near ones", try{free: "44404444", spec: nodes(4), topo: three}, "4:1 5:1 6:1 7:1"},
		{"across when it must be", try{free: "44440444", spec: nodes(5), topo: three}, "0:1 1:1 5:1 6:1 7:1"},
		{"bound", try{free: "44440444", spec: nodes(4), extra: job.Extra{Switches: 1}, topo: three}, ""},
		{"bound of two", try{free: "44440444", spec: nodes(5), extra: job.Extra{Switches: 2}, topo: three}, "0:1 1:1 5:1 6:1 7:1"},
		{"the wait for it is over", try{free: "44440444", spec: nodes(4), extra: job.Extra{Switches: 1}, topo: three,
			change: func(_ []*Node, c *Candidates) { c.AnySwitches = true }}, "0:1 1:1 2:1 3:1"},
		{"a range within the bound", try{free: "44440444", spec: job.Spec{MinNodes: 2, MaxNodes: 5}, extra: job.Extra{Switches: 1}, topo: three}, "5:1 6:1 7:1"},
		{"the bound means nothing on a flat network", try{free: "44", spec: nodes(2), extra: job.Extra{Switches: 1}}, "0:1 1:1"},
		{"tasks on one switch", try{free: "41224444", spec: job.Spec{NTasks: 12}, topo: three}, "4:4 5:4 6:4"},
		{"tasks of few nodes", try{free: "22220044", spec: job.Spec{NTasks: 8, MinNodes: 1, MaxNodes: 2}, topo: three}, "6:4 7:4"},
		{"named on another switch", try{free: "44444444", spec: job.Spec{NodeList: "n0", MinNodes: 3, MaxNodes: 3}, topo: three}, "0:1 1:1 2:1"},
		{"named on more switches than allowed", try{free: "44444444", spec: job.Spec{NodeList: "n0,n2,n4"}, extra: job.Extra{Switches: 2}, topo: three}, ""},
		{"a node at no switch is by itself", try{free: "444", spec: nodes(2), topo: fat("n0", "n1")}, "0:1 1:1"},
		{"a block", try{free: "40444444", spec: nodes(2), topo: four}, "2:1 3:1"},
		{"blocks that are joined", try{free: "44044444", spec: nodes(4), topo: four}, "4:1 5:1 6:1 7:1"},
		{"segments", try{free: "44044044", spec: nodes(4), extra: job.Extra{Segment: 2}, topo: four}, "0:1 1:1 6:1 7:1"},
		{"segments in one block", try{free: "44444444", spec: nodes(4), extra: job.Extra{Segment: 2}, topo: blocks([]uint32{2}, "n[0-1]", "n[2-3]", "n[4-7]")}, "4:1 5:1 6:1 7:1"},
		{"segments of joined blocks", try{free: "40444444", spec: nodes(4), extra: job.Extra{Segment: 4}, topo: four}, "4:1 5:1 6:1 7:1"},
		{"no segment is whole", try{free: "40404040", spec: nodes(2), extra: job.Extra{Segment: 2}, topo: four}, ""},
		{"segments by tasks", try{free: "22444422", spec: job.Spec{NTasks: 8, MinNodes: 2, MaxNodes: 2}, extra: job.Extra{Segment: 2}, topo: four}, "2:4 3:4"},
		{"segments mean nothing in a tree", try{free: "44044444", spec: nodes(2), extra: job.Extra{Segment: 2}, topo: three}, "0:1 1:1"},
		{"a row within a switch", try{free: "04444444", spec: nodes(3), extra: job.Extra{Contiguous: true, Switches: 1}, topo: three}, "4:1 5:1 6:1"},
		{"spread does not mind", try{free: "44444444", spec: job.Spec{NTasks: 3, MinNodes: 1, MaxNodes: 3}, extra: job.Extra{Spread: true}, topo: three}, "0:1 1:1 2:1"},
		{"fewest nodes before fewest switches", try{free: "14444111", spec: job.Spec{NTasks: 8, MinNodes: 1, MaxNodes: 4}, extra: job.Extra{FewNodes: true}, topo: three}, "2:4 3:4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.try.choose(t); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestTopology(t *testing.T) {
	at := func(name string) (int, bool) {
		var n int
		_, err := fmt.Sscanf(name, "n%d", &n)
		return n, err == nil && n < 8
	}
	topo := fat("n[0-1]", "n[1-2]", "n[6-9]")(at)
	if topo.Leaves() != 3 {
		t.Errorf("%+v", topo)
	}
	var leaves []int
	for n := range 10 {
		leaves = append(leaves, topo.Leaf(n))
	}
	if want := []int{0, 0, 1, -1, -1, -1, 2, 2, -1, -1}; !slices.Equal(leaves, want) {
		t.Errorf("%v, want %v", leaves, want)
	}
	if g := topo.groups; len(g) != 2 || g[0].height != 1 || !slices.Equal(g[0].leaves, []int32{0, 1}) || len(g[1].leaves) != 3 {
		t.Errorf("%+v", g)
	}
	var none *Topology
	if none.Leaf(0) != -1 || NewTopology("flat", []Switch{{Name: "a", Nodes: "n0"}}, nil, at) != nil || NewTopology("tree", nil, nil, at) != nil {
		t.Error("there is a topology")
	}
	if b := blocks([]uint32{2, 4, 4, 3}, "n[0-1]", "n[2-3]", "n[4-5]")(at); len(b.groups) != 4 || len(b.groups[1].leaves) != 1 || !b.block {
		t.Errorf("%+v", b.groups)
	}
	// A switch below itself is refused by the configuration; here it only must come to an end.
	loop := NewTopology("tree", []Switch{{Name: "a", Switches: "b"}, {Name: "b", Switches: "a,s"}, {Name: "s", Nodes: "n0"}}, nil, at)
	if loop.Leaves() != 1 {
		t.Errorf("%+v", loop)
	}
}

func TestFitsEmpty(t *testing.T) {
	nodes, _ := rack("0000")
	s, wrong := Compile(&job.Spec{MinNodes: 4, MaxNodes: 4, Exclusive: true}, nil, Limits{}, nil, nil)
	if wrong != "" {
		t.Fatal(wrong)
	}
	c := &Candidates{Nodes: nodes, List: all(4)}
	if !s.FitsEmpty(c) {
		t.Error("it would fit")
	}
	if c.List = all(3); s.FitsEmpty(c) {
		t.Error("it would not")
	}
}

func TestLeast(t *testing.T) {
	for _, tt := range []struct {
		spec job.Spec
		want string
	}{
		{job.Spec{}, "1 0 0"}, {job.Spec{NTasksPerNode: 3, MemPerCPU: gib}, "3 3221225472 0"},
		{job.Spec{NTasks: 30, CPUsPerTask: 2, MemPerNode: job.WholeNode}, "2 -1 0"}, {job.Spec{MinCPUsPerNode: 5, Gres: "gpu:2"}, "5 0 1"},
	} {
		l := compile(t, tt.spec, job.Extra{}, Limits{}).Least()
		if got := fmt.Sprint(l.CPUs, l.Mem, len(l.Gres)); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}
