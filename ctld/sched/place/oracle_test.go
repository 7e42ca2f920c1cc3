package place

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// instance is a small problem for the oracle: nodes with room for so many tasks.
type instance struct {
	spec  job.Spec
	extra job.Extra
	lim   Limits
	nodes []*Node
	order []int
	room  []uint32
	leaf  []int
	block bool
	sizes []uint32
	any   bool
}

// alone is the leaf of the first node if no line names it.
const alone = 100

// demand is a constraint with what it means, written a second time for the oracle.
type demand struct {
	text   string
	each   func(f string) bool
	choice []string // all nodes have one of them
	counts []wanted
}

type wanted struct {
	of string // one of these letters
	n  int
}

var demands = []demand{
	{text: ""},
	{text: "a", each: func(f string) bool { return strings.Contains(f, "a") }},
	{text: "a|b&c", each: func(f string) bool { return strings.ContainsAny(f, "ab") && strings.Contains(f, "c") }},
	{text: "[a|b]", choice: []string{"a", "b"}},
	{text: "c&[a|b|d]", each: func(f string) bool { return strings.Contains(f, "c") }, choice: []string{"a", "b", "d"}},
	{text: "a*2", counts: []wanted{{"a", 2}}},
	{text: "[a*1&b*1]", counts: []wanted{{"a", 1}, {"b", 1}}},
	{text: "[a*2&b*1]", counts: []wanted{{"a", 2}, {"b", 1}}},
	{text: "[a*1&b*1&c*1]", counts: []wanted{{"a", 1}, {"b", 1}, {"c", 1}}},
	{text: "[(a|b)*1&(b|c)*1&(a|c)*1]", counts: []wanted{{"ab", 1}, {"bc", 1}, {"ac", 1}}},
	{text: "d|c&[a*2&(a|b)*1]", each: func(f string) bool { return strings.ContainsAny(f, "cd") }, counts: []wanted{{"a", 2}, {"ab", 1}}},
}

func drawInstance(t *rapid.T) (instance, demand) {
	n := rapid.IntRange(1, 6).Draw(t, "nodes")
	in := instance{}
	for i := range n {
		f := rapid.StringMatching("[a-d]{0,3}").Draw(t, "features")
		in.nodes = append(in.nodes, &Node{Name: fmt.Sprintf("n%d", i), CPUs: 8, Mem: 8 << 30, FreeCPUs: 8,
			Features: strings.Split(f, ""), Weight: uint32(rapid.IntRange(0, 1).Draw(t, "weight"))})
		in.room = append(in.room, uint32(rapid.IntRange(0, 3).Draw(t, "room")))
		in.leaf = append(in.leaf, rapid.IntRange(0, 3).Draw(t, "leaf"))
		if in.leaf[i] == 3 {
			in.leaf[i] = alone + i
		}
	}
	s := &in.spec
	if rapid.Bool().Draw(t, "n") {
		s.NTasks = uint32(rapid.IntRange(1, 8).Draw(t, "tasks"))
	}
	if rapid.Bool().Draw(t, "N") {
		s.MinNodes = uint32(rapid.IntRange(1, 4).Draw(t, "min"))
		s.MaxNodes = s.MinNodes + uint32(rapid.IntRange(0, 2).Draw(t, "range"))
	}
	var names []string
	for i := range n {
		if rapid.IntRange(0, 5).Draw(t, "named") == 0 {
			names = append(names, in.nodes[i].Name)
		}
	}
	s.NodeList = strings.Join(names, ",")
	d := demands[rapid.IntRange(0, len(demands)-1).Draw(t, "constraint")]
	s.Constraint = d.text
	switch rapid.IntRange(0, 5).Draw(t, "layout") {
	case 0:
		in.extra.Contiguous = true
	case 1:
		in.extra.Spread = true
	case 2:
		in.extra.FewNodes = true
	case 3:
		in.lim.LLN = true
	}
	in.extra.Switches = uint32(rapid.IntRange(0, 2).Draw(t, "switches"))
	if rapid.IntRange(0, 3).Draw(t, "blocks") == 0 {
		in.block = true
		in.sizes = []uint32{2, 4}
		in.extra.Segment = uint32(rapid.IntRange(0, 3).Draw(t, "segment"))
	}
	in.any = rapid.IntRange(0, 3).Draw(t, "wait over") == 0
	if rapid.IntRange(0, 2).Draw(t, "prefer") == 0 {
		in.extra.Prefer = rapid.SampledFrom([]string{"a", "[b|c]", "a&d"}).Draw(t, "preferred")
	}
	return in, d
}

func (in *instance) at(name string) (int, bool) {
	for i, n := range in.nodes {
		if n.Name == name {
			return i, true
		}
	}
	return 0, false
}

func (in *instance) topology(t *rapid.T) *Topology {
	kind := rapid.SampledFrom([]string{"flat", "tree"}).Draw(t, "kind")
	if in.block {
		kind = "block"
	}
	var lines []Switch
	for l := range 3 {
		var names []string
		for i, at := range in.leaf {
			if at == l {
				names = append(names, in.nodes[i].Name)
			}
		}
		if len(names) > 0 || in.block {
			lines = append(lines, Switch{Name: fmt.Sprintf("s%d", l), Nodes: strings.Join(append(names, "none"), ",")})
		}
	}
	if !in.block {
		lines = append(lines, Switch{Name: "up", Switches: "s[0-1]"}, Switch{Name: "top", Switches: "up,s2"})
	}
	return NewTopology(kind, lines, in.sizes, in.at)
}

// may tells whether a set of nodes is an answer.
func (in *instance) may(s *Shape, d demand, topo *Topology, set []int) bool {
	if len(set) < s.minNodes || len(set) > s.maxNodes || len(set) == 0 {
		return false
	}
	total := uint32(0)
	for _, n := range set {
		total += in.room[n]
		if in.room[n] == 0 || d.each != nil && !d.each(strings.Join(in.nodes[n].Features, "")) {
			return false
		}
		if s.within != nil && !slices.Contains(s.within, n) {
			return false
		}
	}
	if total < s.tasks {
		return false
	}
	for _, n := range s.required {
		if !slices.Contains(set, n) {
			return false
		}
	}
	return in.alike(d, set) && in.counted(d.counts, set, 0) && in.lies(s, topo, set)
}

func (in *instance) alike(d demand, set []int) bool {
	for _, want := range d.choice {
		all := true
		for _, n := range set {
			all = all && slices.Contains(in.nodes[n].Features, want)
		}
		if all {
			return true
		}
	}
	return len(d.choice) == 0
}

// counted tries every way to let different nodes stand for the counts.
func (in *instance) counted(counts []wanted, set []int, used int) bool {
	if len(counts) == 0 {
		return true
	}
	if counts[0].n == 0 {
		return in.counted(counts[1:], set, used)
	}
	rest := slices.Clone(counts)
	rest[0].n--
	for i, n := range set {
		if used>>i&1 == 0 && strings.ContainsAny(strings.Join(in.nodes[n].Features, ""), counts[0].of) && in.counted(rest, set, used|1<<i) {
			return true
		}
	}
	return false
}

func (in *instance) lies(s *Shape, topo *Topology, set []int) bool {
	if in.extra.Contiguous {
		for i := 1; i < len(set); i++ {
			if set[i] != set[i-1]+1 {
				return false
			}
		}
	}
	if topo == nil || len(set) == 1 && s.Single() {
		return true
	}
	if in.extra.Switches > 0 && !in.any && leavesOf(in, set) > int(in.extra.Switches) {
		return false
	}
	if in.block && in.extra.Segment > 1 {
		return in.segments(topo, set)
	}
	return true
}

// segments tells whether the set can be divided into segments that each lie in one block.
func (in *instance) segments(topo *Topology, set []int) bool {
	seg := int(in.extra.Segment)
	per := map[int]int{}
	for _, n := range set {
		l := in.leaf[n]
		if l >= alone {
			return false
		}
		if seg > topo.first {
			l /= 2 // joined blocks of two
		}
		per[l]++
	}
	for _, k := range per {
		if k%seg != 0 {
			return false
		}
	}
	return true
}

func leavesOf(in *instance, set []int) int {
	seen := map[int]bool{}
	for _, n := range set {
		seen[in.leaf[n]] = true
	}
	return len(seen)
}

// answers lists every set of nodes that is an answer.
func (in *instance) answers(s *Shape, d demand, topo *Topology) [][]int {
	var out [][]int
	for mask := 1; mask < 1<<len(in.nodes); mask++ {
		var set []int
		for i := range in.nodes {
			if mask>>i&1 == 1 {
				set = append(set, i)
			}
		}
		if in.may(s, d, topo, set) {
			out = append(out, set)
		}
	}
	return out
}

// TestChooseOracle compares with every possible answer.
func TestChooseOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in, d := drawInstance(t)
		s, wrong := Compile(&in.spec, &in.extra, in.lim, nil, in.at)
		if wrong != "" {
			return
		}
		topo := in.topology(t)
		if s.tasks == 0 {
			for i := range in.room {
				in.room[i] = min(in.room[i], 1)
			}
		}
		in.order = s.Order(in.nodes, all(len(in.nodes)))
		fit := func(n int) uint32 { return in.room[n] }
		c := &Candidates{List: in.order, Nodes: in.nodes, Topology: topo, AnySwitches: in.any, Fit: fit,
			BestFit: rapid.Bool().Draw(t, "best fit")}
		got := s.Choose(c)
		again := s.Choose(c)
		if !slices.Equal(got, again) {
			t.Fatalf("%v, then %v", got, again)
		}
		in.check(t, s, d, topo, got)
		for k := range len(in.order) + 1 { // what the first nodes are enough for does not depend on the others
			c.List = in.order[:k]
			if first := s.First(c); first != nil && !slices.Equal(first, got) {
				t.Fatalf("the first %d of %v give %v, all give %v", k, in.order, first, got)
			}
		}
	})
}

func all(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// check compares one answer with all possible ones.
func (in *instance) check(t *rapid.T, s *Shape, d demand, topo *Topology, got []Pick) {
	answers := in.answers(s, d, topo)
	if (got != nil) != (len(answers) > 0) {
		t.Fatalf("%v; the answers are %v", got, answers)
	}
	if got == nil {
		return
	}
	var set []int
	total := uint32(0)
	for _, k := range got {
		set, total = append(set, k.Node), total+k.Tasks
		if k.Tasks > in.room[k.Node] || k.Tasks == 0 && int(s.tasks) >= len(got) {
			t.Fatalf("%v: %d tasks where %d fit", got, k.Tasks, in.room[k.Node])
		}
	}
	if !slices.ContainsFunc(answers, func(a []int) bool { return slices.Equal(a, set) }) {
		t.Fatalf("%v is not among %v", set, answers)
	}
	if s.tasks > 0 && total != s.tasks {
		t.Fatalf("%v: %d of %d tasks", got, total, s.tasks)
	}
	leaves, most, least := 9, 0, 9
	for _, a := range answers {
		leaves, most, least = min(leaves, leavesOf(in, a)), max(most, len(a)), min(least, len(a))
	}
	free := topo == nil || s.Single()
	switch {
	case s.extraOrder():
	case s.fewNodes && len(set) != least && s.segment <= 1:
		t.Fatalf("%v: %d nodes would do", set, least)
	case s.tasks == 0 && !s.fewNodes && free && len(set) != most:
		t.Fatalf("%v: %d nodes are possible", set, most)
	case s.tasks > 0 && !s.fewNodes && !s.spread && !s.contiguous && !free && s.segment <= 1 && leavesOf(in, set) != leaves:
		t.Fatalf("%v: %d leaves would do", set, leaves)
	case s.tasks == 0 && !s.spread && !s.contiguous && !s.fewNodes && !free && s.segment <= 1 && s.minNodes == s.maxNodes && leavesOf(in, set) != leaves:
		t.Fatalf("%v: %d leaves would do", set, leaves)
	}
}

// extraOrder tells that alternatives or a preference come before the fewest of anything.
func (s *Shape) extraOrder() bool {
	return s.prefer != nil || s.features != nil && s.features.Choices() > 0
}
