package place

import (
	"cmp"
	"math/bits"
	"slices"
)

// Pick is one node chosen for a job, with the tasks it gets.
type Pick struct {
	Node  int
	Tasks uint32
}

// Candidates is what Choose picks from. It keeps scratch memory: use one for many calls, one at a
// time, changing the exported fields between them.
type Candidates struct {
	List        []int                 // positions of nodes that suit, in the order in which they are to be tried
	Fit         func(node int) uint32 // how many tasks the node has room for now; 0 = none
	Nodes       []*Node
	Topology    *Topology             // nil = flat
	Free        func(node int) uint32 // free CPUs, for the least loaded and the best fit; nil = Node.FreeCPUs
	AnySwitches bool                  // the wait for --switches is over
	BestFit     bool                  // of nodes of one weight the fullest that will do; otherwise the first

	cells  []cell // all that fit
	sub    []cell // those of one alternative
	near   []cell // those of some leaves
	sorted []cell // roomiest first
	chosen []cell
	match  []int8 // by chosen: for which count it stands; -1 = none
	filled []uint32
	leaves []leaf
	leafAt []int32 // by leaf of the topology: its place in leaves; -1 = none
}

// cell is a candidate that fits.
type cell struct {
	node   int
	tasks  uint32
	leaf   int32
	named  bool
	avoid  bool
	likes  bool   // it has all of --prefer that is not an alternative
	wish   uint64 // alternatives of --prefer
	choice uint64 // alternatives of --constraint
	counts uint64 // counts of --constraint
}

// goal is how many nodes and tasks are to be found.
type goal struct {
	least, most int
	tasks       uint32 // 0 = as many as the nodes bring
}

// Choose finds nodes for the shape; nil when there are none. The picks are the caller's, in
// configuration order, with their tasks. A shape of one node takes the first that fits and looks at
// no further ones, unless the least loaded, the best fit or a preference are asked for.
func (s *Shape) Choose(c *Candidates) []Pick {
	if s.minNodes > s.maxNodes {
		return nil
	}
	g := goal{s.minNodes, s.maxNodes, s.tasks}
	if s.plainly(c) {
		got, all := s.firstFit(c, g)
		if got != nil {
			return s.picks(got)
		}
		if !all || len(c.cells) < g.least {
			return nil
		}
		// The first nodes are too small: the roomiest will do or none.
		return s.picks(s.greedy(c, c.roomiest(c.cells), g, g.most))
	}
	if !s.gather(c) {
		return nil
	}
	return s.picks(s.alternatives(c, g))
}

// First is Choose where the first of the candidates will do, whatever stands behind those listed; nil when that is not
// known, and Choose is to be asked with all of them.
func (s *Shape) First(c *Candidates) []Pick {
	if s.minNodes > s.maxNodes || !s.plainly(c) {
		return nil
	}
	got, _ := s.firstFit(c, goal{s.minNodes, s.maxNodes, s.tasks})
	if s.tasks == 0 && len(got) < s.maxNodes { // more nodes would be taken
		return nil
	}
	return s.picks(got)
}

// plainly tells that only the order decides which nodes are taken.
func (s *Shape) plainly(c *Candidates) bool {
	return s.features.Plain() && s.prefer == nil && len(s.required) == 0 && !s.contiguous && !s.fewNodes && !s.spread &&
		!s.lln && !c.BestFit && (c.Topology == nil || s.Single())
}

// firstFit takes nodes in order until they do. all tells that every candidate was looked at in vain
// and all that fit are in c.cells, and that other ones of these may do.
func (s *Shape) firstFit(c *Candidates, g goal) (got []cell, all bool) {
	c.cells = c.cells[:0]
	var total uint64
	for _, n := range c.List {
		t := c.Fit(n)
		if t == 0 || g.tasks > 0 && g.most == 1 && t < g.tasks {
			continue
		}
		c.cells, total = append(c.cells, cell{node: n, tasks: t}), total+uint64(t)
		if k := len(c.cells); g.tasks == 0 && k == g.most || g.tasks > 0 && k <= g.most && k >= g.least && total >= uint64(g.tasks) {
			return c.cells, false
		}
	}
	if g.tasks == 0 && len(c.cells) >= g.least {
		return c.cells, false
	}
	return nil, len(c.cells) > g.most && total >= uint64(g.tasks)
}

// gather notes all candidates that fit, with what the choice needs to know of them. It is false when a
// named node is missing or there are too few.
func (s *Shape) gather(c *Candidates) bool {
	c.cells = c.cells[:0]
	named := 0
	for _, n := range c.List {
		t := c.Fit(n)
		if t == 0 {
			continue
		}
		k := cell{node: n, tasks: t, leaf: int32(c.Topology.Leaf(n)), avoid: s.avoided[n]}
		if len(s.required) > 0 {
			if _, k.named = slices.BinarySearch(s.required, n); k.named {
				named++
			}
		}
		has := c.Nodes[n].Features
		if s.features != nil {
			k.choice, k.counts = s.features.Mask(has), s.features.CountMask(has)
		}
		if s.prefer != nil {
			k.likes, k.wish = s.prefer.Match(has), s.prefer.Mask(has)
		}
		c.cells = append(c.cells, k)
	}
	if named < len(s.required) || len(c.cells) < s.minNodes {
		return false
	}
	s.arrange(c)
	return true
}

// arrange puts the cells into the order in which they are to be taken: as listed, within a weight the
// least loaded or the fullest first where that is asked; those preferred before all others.
func (s *Shape) arrange(c *Candidates) {
	if s.lln || c.BestFit && s.tasks == 0 || c.BestFit && s.maxNodes == 1 {
		free := c.Free
		if free == nil {
			free = func(n int) uint32 { return c.Nodes[n].FreeCPUs }
		}
		slices.SortStableFunc(c.cells, func(a, b cell) int {
			load := cmp.Compare(free(a.node), free(b.node))
			if s.lln {
				load = -load
			}
			return cmp.Or(boolOrder(a.avoid, b.avoid), cmp.Compare(c.Nodes[a.node].Weight, c.Nodes[b.node].Weight), load)
		})
	}
	if s.prefer != nil {
		slices.SortStableFunc(c.cells, func(a, b cell) int { return boolOrder(b.likes, a.likes) })
	}
}

// alternatives tries what is preferred and then all nodes, and of each the alternatives of which all
// nodes must have the same one, in the order in which they were written.
func (s *Shape) alternatives(c *Candidates, g goal) []cell {
	if s.prefer != nil {
		for wish := range max(s.prefer.Choices(), 1) {
			if got := s.choices(c, g, s.prefer.Choices() > 0, wish, true); got != nil {
				return got
			}
		}
	}
	return s.choices(c, g, false, 0, false)
}

func (s *Shape) choices(c *Candidates, g goal, wished bool, wish int, likes bool) []cell {
	n := 0
	if s.features != nil {
		n = s.features.Choices()
	}
	if n == 0 && !likes {
		return s.layOut(c, c.cells, g)
	}
	for i := range max(n, 1) {
		c.sub = c.sub[:0]
		named := 0
		for _, k := range c.cells {
			if likes && !k.likes || wished && k.wish>>wish&1 == 0 || n > 0 && k.choice>>i&1 == 0 {
				continue
			}
			if k.named {
				named++
			}
			c.sub = append(c.sub, k)
		}
		if named < len(s.required) || len(c.sub) < g.least {
			continue
		}
		if got := s.layOut(c, c.sub, g); got != nil {
			return got
		}
	}
	return nil
}

// layOut picks from the cells by where they lie.
func (s *Shape) layOut(c *Candidates, cells []cell, g goal) []cell {
	switch {
	case s.contiguous && s.maxNodes > 1:
		return s.sideBySide(c, cells, g)
	case c.Topology != nil && !s.Single() && s.segment > 1 && c.Topology.block:
		return s.inSegments(c, cells, g)
	case c.Topology != nil && !s.Single() && (!s.spread || s.bound(c) > 0):
		return s.nearby(c, cells, g)
	}
	return s.anywhere(c, cells, g)
}

// bound is the most leaf switches now; 0 = any.
func (s *Shape) bound(c *Candidates) int {
	if c.AnySwitches || c.Topology == nil {
		return 0
	}
	return s.switches
}

// picks makes the result of the cells chosen and deals out the tasks.
func (s *Shape) picks(got []cell) []Pick {
	if len(got) == 0 {
		return nil
	}
	out := make([]Pick, len(got))
	for i, k := range got {
		out[i] = Pick{k.node, k.tasks}
	}
	slices.SortFunc(out, func(a, b Pick) int { return cmp.Compare(a.Node, b.Node) })
	switch {
	case s.tasks == 0:
	case s.spread || s.over:
		shareEvenly(out, s.tasks)
	default:
		share(out, s.tasks)
	}
	return out
}

// share deals out the tasks: each node gets as many as it has room for, and every one at least one.
func share(picks []Pick, tasks uint32) {
	left := tasks
	for i := range picks {
		behind := uint32(len(picks) - i - 1)
		picks[i].Tasks = min(picks[i].Tasks, left-min(left, behind))
		left -= picks[i].Tasks
	}
}

// shareEvenly deals out the tasks so that the fullest node gets as few as possible; of equal nodes the
// first get one more.
func shareEvenly(picks []Pick, tasks uint32) {
	slices.SortFunc(picks, func(a, b Pick) int {
		return cmp.Or(cmp.Compare(a.Tasks, b.Tasks), cmp.Compare(b.Node, a.Node))
	})
	left := tasks
	for i := range picks {
		picks[i].Tasks = min(picks[i].Tasks, left/uint32(len(picks)-i))
		left -= picks[i].Tasks
	}
	slices.SortFunc(picks, func(a, b Pick) int { return cmp.Compare(a.Node, b.Node) })
}

// FitsEmpty tells whether the shape would fit on the candidates if nothing ran there. Of c it uses the
// list, the nodes and the topology.
func (s *Shape) FitsEmpty(c *Candidates) bool {
	empty := Candidates{List: c.List, Nodes: c.Nodes, Topology: c.Topology, AnySwitches: c.AnySwitches}
	empty.Fit = func(n int) uint32 {
		whole := WholeRoom(c.Nodes[n])
		return s.Fit(c.Nodes[n], &whole)
	}
	empty.Free = func(n int) uint32 { return c.Nodes[n].CPUs }
	return s.Choose(&empty) != nil
}

// counted is the sum of the counts in the constraint.
func (s *Shape) counted() int {
	sum := 0
	if s.features != nil {
		for _, k := range s.features.Counts() {
			sum += int(k.Nodes)
		}
	}
	return sum
}

// lowestBit takes the lowest bit out of a mask and gives its number.
func lowestBit(m *uint64) int {
	i := bits.TrailingZeros64(*m)
	*m &= *m - 1
	return i
}
