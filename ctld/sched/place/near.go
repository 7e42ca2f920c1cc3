package place

import (
	"cmp"
	"slices"
)

// leaf is what a leaf switch or base block has for the shape; a node that no line names is one by itself.
type leaf struct {
	cells []cell
	tasks uint64
	named bool
}

// Bounds of the search for the fewest leaves where nodes differ: combinations tried and cells looked at.
const (
	maxTries = 4096
	maxSeen  = 1 << 18
)

// nearby picks cells of as few leaves as possible, of those below the lowest switch (or in the smallest
// joined block), and of these the ones that are left fullest.
//
// The number of leaves is the smallest possible where all nodes take the same (no task count), where
// one leaf will do, and where up to maxTries combinations settle it; otherwise it is what the roomiest
// leaves give. A bound by --switches is never passed.
func (s *Shape) nearby(c *Candidates, cells []cell, g goal) []cell {
	c.byLeaf(cells)
	most := len(c.leaves)
	if b := s.bound(c); b > 0 {
		most = min(most, b)
	}
	if s.fewNodes {
		first := s.anywhere(c, cells, g)
		for n := len(first); first != nil && n <= g.most; n++ {
			if got := s.onLeaves(c, goal{g.least, n, g.tasks}, most); got != nil {
				return got
			}
		}
		return nil
	}
	if s.wide() {
		// First as many nodes as there may be, then any number.
		if want := min(s.widest(g), c.largest(most)); want > g.least {
			if got := s.onLeaves(c, goal{want, g.most, g.tasks}, most); got != nil {
				return got
			}
		}
	}
	return s.onLeaves(c, g, most)
}

// byLeaf sorts the cells by leaf, the leaves by their first cell.
func (c *Candidates) byLeaf(cells []cell) {
	c.leaves = c.leaves[:0]
	c.leafAt = slices.Grow(c.leafAt[:0], c.Topology.Leaves())[:c.Topology.Leaves()]
	for i := range c.leafAt {
		c.leafAt[i] = noLeaf
	}
	for i := range cells {
		id := cells[i].leaf
		l := noLeaf
		if id >= 0 {
			l = int(c.leafAt[id])
		}
		if l == noLeaf {
			if l = c.newLeaf(); id >= 0 {
				c.leafAt[id] = int32(l)
			}
		}
		into := &c.leaves[l]
		into.cells = append(into.cells, cells[i])
		into.tasks += uint64(cells[i].tasks)
		into.named = into.named || cells[i].named
	}
}

// newLeaf adds an empty leaf, in the memory of an earlier one where there is any.
func (c *Candidates) newLeaf() int {
	l := len(c.leaves)
	if l < cap(c.leaves) {
		c.leaves = c.leaves[:l+1]
		c.leaves[l] = leaf{cells: c.leaves[l].cells[:0]}
	} else {
		c.leaves = append(c.leaves, leaf{})
	}
	return l
}

// largest is how many nodes so many leaves have at most, those with named nodes among them.
func (c *Candidates) largest(most int) int {
	var free []int
	sum := 0
	for i := range c.leaves {
		if c.leaves[i].named {
			sum += len(c.leaves[i].cells)
			most--
		} else {
			free = append(free, len(c.leaves[i].cells))
		}
	}
	slices.SortFunc(free, func(a, b int) int { return cmp.Compare(b, a) })
	for i := 0; i < min(most, len(free)); i++ {
		sum += free[i]
	}
	return sum
}

// onLeaves meets the goal on as few leaves as possible.
func (s *Shape) onLeaves(c *Candidates, g goal, most int) []cell {
	all := make([]int, len(c.leaves))
	for i := range all {
		all[i] = i
	}
	for k := 1; k <= most; k++ {
		set := s.leafSet(c, all, g, k)
		if set == nil {
			continue
		}
		if k > 1 && k < len(c.leaves) {
			if near := s.inGroup(c, g, k); near != nil {
				set = near
			}
		}
		return s.onSet(c, set, g)
	}
	return nil
}

// inGroup finds k leaves of the nearest group that has as many which do; of groups of one height in
// the one with the fewest cells.
func (s *Shape) inGroup(c *Candidates, g goal, k int) []int {
	var best []int
	height, size := 0, 0
	for i := range c.Topology.groups {
		group := &c.Topology.groups[i]
		if best != nil && group.height > height {
			break
		}
		var of []int
		cells := 0
		for _, id := range group.leaves {
			if l := int(c.leafAt[id]); l != noLeaf {
				of = append(of, l)
				cells += len(c.leaves[l].cells)
			}
		}
		if len(of) < k || best != nil && cells >= size {
			continue
		}
		if set := s.leafSet(c, of, g, k); set != nil {
			best, height, size = set, group.height, cells
		}
	}
	return best
}

// leafSet finds k of the leaves that meet the goal: the smallest that does when k is 1, otherwise the
// largest with the smallest last one that does, and where nodes differ any combination.
func (s *Shape) leafSet(c *Candidates, of []int, g goal, k int) []int {
	var must, free []int
	for _, l := range of {
		if c.leaves[l].named {
			must = append(must, l)
		} else {
			free = append(free, l)
		}
	}
	named := 0
	for i := range c.leaves {
		if c.leaves[i].named {
			named++
		}
	}
	if len(must) < named || len(must) > k {
		return nil
	}
	more := k - len(must)
	size := func(a, b int) int { return cmp.Compare(len(c.leaves[b].cells), len(c.leaves[a].cells)) }
	room := func(a, b int) int { return cmp.Compare(c.leaves[b].tasks, c.leaves[a].tasks) }
	if more > len(free) || !s.mayDo(c, must, free, g, more, size, room) {
		return nil
	}
	for _, order := range [2]func(a, b int) int{size, room} {
		slices.SortStableFunc(free, order)
		set := append(slices.Clone(must), free[:more]...)
		if !s.doesOn(c, set, g) {
			continue
		}
		if more > 0 {
			last := slices.Clone(free[more-1:])
			slices.SortStableFunc(last, func(a, b int) int { return size(b, a) })
			for _, l := range last { // the smallest first
				if set[k-1] = l; s.doesOn(c, set, g) {
					break
				}
			}
		}
		return set
	}
	if g.tasks == 0 && s.counted() == 0 {
		return nil // the largest leaves would have done
	}
	return s.combination(c, must, free, g, more)
}

// mayDo tells whether the largest leaves have as many cells, and the roomiest as many tasks, as the
// goal needs. It leaves free in the order of the last of these.
func (s *Shape) mayDo(c *Candidates, must, free []int, g goal, more int, size, room func(a, b int) int) bool {
	cells, tasks := 0, uint64(0)
	for _, l := range must {
		cells, tasks = cells+len(c.leaves[l].cells), tasks+c.leaves[l].tasks
	}
	slices.SortStableFunc(free, room)
	for _, l := range free[:more] {
		tasks += c.leaves[l].tasks
	}
	slices.SortStableFunc(free, size)
	for _, l := range free[:more] {
		cells += len(c.leaves[l].cells)
	}
	return cells >= g.least && tasks >= uint64(g.tasks)
}

// combination tries all sets of more of the free leaves beside must, within bounds.
func (s *Shape) combination(c *Candidates, must, free []int, g goal, more int) []int {
	return c.eachSet(must, free, more, func(set []int) bool { return s.doesOn(c, set, g) })
}

// eachSet gives does all sets of more of the free leaves beside must until one does, within bounds.
func (c *Candidates) eachSet(must, free []int, more int, does func(set []int) bool) []int {
	if more > len(free) {
		return nil
	}
	pick := make([]int, more)
	for i := range pick {
		pick[i] = i
	}
	set := slices.Clone(must)
	seen := 0
	for range maxTries {
		set = set[:len(must)]
		for _, p := range pick {
			set = append(set, free[p])
			seen += len(c.leaves[free[p]].cells)
		}
		if does(set) {
			return set
		}
		at := more - 1
		for at >= 0 && pick[at] == len(free)-more+at {
			at--
		}
		if at < 0 || seen > maxSeen {
			return nil
		}
		pick[at]++
		for i := at + 1; i < more; i++ {
			pick[i] = pick[i-1] + 1
		}
	}
	return nil
}

// doesOn tells whether the leaves of the set meet the goal.
func (s *Shape) doesOn(c *Candidates, set []int, g goal) bool {
	cells, tasks := 0, uint64(0)
	for _, l := range set {
		cells, tasks = cells+len(c.leaves[l].cells), tasks+c.leaves[l].tasks
	}
	if cells < g.least || tasks < uint64(g.tasks) {
		return false
	}
	if g.tasks == 0 && s.counted() == 0 {
		return true
	}
	return s.onSet(c, set, g) != nil
}

// onSet picks from the leaves of a set, one after the other.
func (s *Shape) onSet(c *Candidates, set []int, g goal) []cell {
	c.near = c.near[:0]
	for _, l := range set {
		c.near = append(c.near, c.leaves[l].cells...)
	}
	return s.anywhere(c, c.near, g)
}
