package place

import (
	"cmp"
	"slices"
)

// sideBySide picks cells that are next to each other in the order of the configuration: where more
// nodes are better the longest row that is of use, otherwise the shortest that will do; of equal ones
// the one in the smallest gap, then the first. Nodes to avoid are taken only when nothing else does.
func (s *Shape) sideBySide(c *Candidates, cells []cell, g goal) []cell {
	c.near = append(c.near[:0], cells...)
	slices.SortFunc(c.near, func(a, b cell) int { return cmp.Compare(a.node, b.node) })
	if slices.ContainsFunc(c.near, func(k cell) bool { return k.avoid }) {
		sure := slices.DeleteFunc(slices.Clone(c.near), func(k cell) bool { return k.avoid })
		if got := s.row(c, sure, g); got != nil {
			return got
		}
	}
	return s.row(c, c.near, g)
}

// row finds the best row among cells in configuration order.
func (s *Shape) row(c *Candidates, cells []cell, g goal) []cell {
	var best []cell
	gap := 0
	ideal := max(g.least, 1)
	if s.wide() {
		ideal = s.widest(g)
	}
	for from := 0; from < len(cells); {
		end := from + 1
		for end < len(cells) && cells[end].node == cells[end-1].node+1 {
			end++
		}
		for first := from; first < end; first++ {
			got := s.rowAt(c, cells[first:end], g)
			better := best == nil || end-from < gap && len(got) == len(best)
			if best != nil && len(got) != len(best) {
				better = s.wide() == (len(got) > len(best))
			}
			if got != nil && better {
				best, gap = got, end-from
			}
			if len(got) == ideal {
				break // none in this gap is better
			}
		}
		from = end
	}
	return best
}

// rowAt is the row that begins with the first of the cells, which lie side by side; nil when none does.
func (s *Shape) rowAt(c *Candidates, cells []cell, g goal) []cell {
	c.chosen, c.match = c.chosen[:0], c.match[:0]
	need := s.counted()
	if need > 0 {
		c.filled = append(c.filled[:0], make([]uint32, len(s.features.Counts()))...)
	}
	most := g.most
	if s.wide() {
		most = s.widest(g)
	}
	if most = min(most, len(cells)); most < g.least {
		return nil
	}
	if g.tasks == 0 && need == 0 && len(s.required) == 0 && s.bound(c) == 0 && s.wide() {
		return cells[:most]
	}
	rank, total, named := 0, uint64(0), len(s.required)
	bound, leaves := s.bound(c), []int32(nil)
	long := 0
	for i := range cells[:most] {
		k := &cells[i]
		if bound > 0 && (k.leaf < 0 || !slices.Contains(leaves, k.leaf)) {
			if leaves = append(leaves, k.leaf); len(leaves) > bound {
				break
			}
		}
		if need > 0 {
			if s.stand(c, k) {
				rank++
			} else {
				c.match = append(c.match, -1)
			}
			c.chosen = append(c.chosen, *k)
		}
		if total += uint64(k.tasks); k.named {
			named--
		}
		if named == 0 && rank == need && i+1 >= g.least && total >= uint64(g.tasks) {
			if long = i + 1; !s.wide() {
				break
			}
		}
	}
	if long == 0 {
		return nil
	}
	return cells[:long]
}
