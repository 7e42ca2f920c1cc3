package place

import (
	"cmp"
	"slices"
)

// anywhere picks from the cells without regard to where they lie, in their order.
func (s *Shape) anywhere(c *Candidates, cells []cell, g goal) []cell {
	switch {
	case s.wide():
		most := min(s.widest(g), len(cells))
		if most < g.least {
			return nil
		}
		all := goal{most, most, g.tasks}
		if got := s.greedy(c, cells, all, most); got != nil || g.tasks == 0 {
			return got
		}
		return s.greedy(c, c.roomiest(cells), all, most)
	case s.fewNodes:
		return s.fewest(c, cells, g)
	}
	got := s.greedy(c, cells, g, g.most)
	if got == nil {
		return s.greedy(c, c.roomiest(cells), g, g.most)
	}
	if c.BestFit {
		s.tighten(c, cells, got, g)
	}
	return got
}

// wide tells that more nodes are better, as far as the range goes.
func (s *Shape) wide() bool { return s.spread || s.tasks == 0 && !s.fewNodes }

// widest is how many nodes are of use.
func (s *Shape) widest(g goal) int {
	if g.tasks == 0 {
		return g.most
	}
	return max(g.least, min(g.most, int(g.tasks)))
}

// roomiest is the cells by the tasks they have room for, the earlier of equal ones first. It holds
// until the next call.
func (c *Candidates) roomiest(cells []cell) []cell {
	c.sorted = append(c.sorted[:0], cells...)
	slices.SortStableFunc(c.sorted, func(a, b cell) int { return cmp.Compare(b.tasks, a.tasks) })
	return c.sorted
}

// fewest picks as few nodes as will do.
func (s *Shape) fewest(c *Candidates, cells []cell, g goal) []cell {
	order := c.roomiest(cells)
	low, high := max(g.least, 1), min(g.most, len(cells))
	if s.greedy(c, order, g, high) == nil {
		return nil
	}
	for low < high { // what does with some nodes does with more
		mid := (low + high) / 2
		if s.greedy(c, order, g, mid) != nil {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return s.greedy(c, order, g, high)
}

// greedy takes cells in their order until they meet the goal with no more than most nodes; nil when
// that never happens. Sets of most nodes that meet the constraint's counts are the bases of a matroid
// (those sets which span the transversal matroid of the counts), so that taking each cell unless it
// closes the way finds a set when there is one, and with the roomiest first the roomiest set. The
// result holds until the next call.
func (s *Shape) greedy(c *Candidates, cells []cell, g goal, most int) []cell {
	c.chosen, c.match = c.chosen[:0], c.match[:0]
	need := s.counted()
	if need > most {
		return nil
	}
	if need > 0 {
		c.filled = append(c.filled[:0], make([]uint32, len(s.features.Counts()))...)
	}
	rank, total, named := 0, uint64(0), len(s.required)
	for pass := range 2 {
		if pass == 0 && named == 0 {
			continue // the named ones come first
		}
		for i := range cells {
			k := &cells[i]
			if k.named != (pass == 0) {
				continue
			}
			if len(c.chosen) == most {
				break
			}
			stands := need > 0 && s.stand(c, k)
			if !stands && len(c.chosen)-rank == most-need {
				continue // the places left are for the counts
			}
			if stands {
				rank++
			} else if need > 0 {
				c.match = append(c.match, -1)
			}
			c.chosen, total = append(c.chosen, *k), total+uint64(k.tasks)
			if k.named {
				named--
			}
			if named == 0 && rank == need && len(c.chosen) >= g.least && total >= uint64(g.tasks) {
				return c.chosen
			}
		}
	}
	return nil
}

// stand lets the cell stand for one of the counts, moving others to other counts when that makes room.
func (s *Shape) stand(c *Candidates, k *cell) bool {
	var seen uint64
	at := s.place(c, k.counts, &seen)
	if at < 0 {
		return false
	}
	c.match = append(c.match, int8(at))
	return true
}

// place finds a count of the mask that has room or can be given some; it is counted as filled. -1 when
// there is none.
func (s *Shape) place(c *Candidates, mask uint64, seen *uint64) int {
	counts := s.features.Counts()
	fresh := mask &^ *seen
	for m := fresh; m != 0; {
		at := lowestBit(&m)
		if *seen |= 1 << at; c.filled[at] < counts[at].Nodes {
			c.filled[at]++
			return at
		}
	}
	for m := fresh; m != 0; {
		at := lowestBit(&m)
		for i := range c.match {
			if int(c.match[i]) != at || c.chosen[i].counts&^*seen == 0 {
				continue
			}
			if to := s.place(c, c.chosen[i].counts, seen); to >= 0 {
				c.match[i] = int8(to)
				return at
			}
		}
	}
	return -1
}

// tighten gives the last node's place to the fullest node of its weight that still does.
func (s *Shape) tighten(c *Candidates, cells, got []cell, g goal) {
	last := &got[len(got)-1]
	if last.named || s.counted() > 0 {
		return
	}
	var before uint64
	for _, k := range got[:len(got)-1] {
		before += uint64(k.tasks)
	}
	taken := func(n int) bool {
		return slices.ContainsFunc(got, func(k cell) bool { return k.node == n })
	}
	best := *last
	for _, k := range cells {
		if k.tasks < best.tasks && k.avoid == best.avoid && before+uint64(k.tasks) >= uint64(g.tasks) &&
			c.Nodes[k.node].Weight == c.Nodes[best.node].Weight && !taken(k.node) {
			best = k
		}
	}
	*last = best
}
