package place

import (
	"cmp"
	"slices"
)

// inSegments picks cells in groups of --segment nodes, each group within one base block (or within one
// joined block, when a base block is smaller than a segment).
//
// Without a task count the segments come from as few blocks as possible, with one they are the
// roomiest, so that they are found when there are any. A bound by --switches is kept by trying sets of
// as many blocks, up to maxTries of them.
func (s *Shape) inSegments(c *Candidates, cells []cell, g goal) []cell {
	bound := s.bound(c)
	if bound == 0 {
		return s.segmentsOf(c, cells, g)
	}
	c.byLeaf(cells)
	var must, free []int
	for i := range c.leaves {
		if c.leaves[i].named {
			must = append(must, i)
		} else {
			free = append(free, i)
		}
	}
	if len(must) > bound {
		return nil
	}
	var got []cell
	c.eachSet(must, free, min(bound-len(must), len(free)), func(set []int) bool {
		c.near = c.near[:0]
		for _, l := range set {
			c.near = append(c.near, c.leaves[l].cells...)
		}
		got = s.segmentsOf(c, c.near, g)
		return got != nil
	})
	return got
}

// segmentsOf picks segments from the cells.
func (s *Shape) segmentsOf(c *Candidates, cells []cell, g goal) []cell {
	blocks := s.segmentBlocks(c, cells)
	var parts []segmentPart
	must := 0
	for b := range blocks {
		first := len(parts)
		parts = s.cut(parts, blocks[b], b)
		for i := first; i < len(parts); i++ {
			if parts[i].named {
				must++
			}
		}
	}
	named := 0
	for i := range parts {
		for _, k := range parts[i].cells {
			if k.named {
				named++
			}
		}
	}
	if named < len(s.required) {
		return nil
	}
	s.sortParts(parts)
	least, most := max(g.least/s.segment, must, 1), g.most/s.segment
	if s.wide() {
		most = s.widest(g) / s.segment
		if got := s.takeParts(c, parts, g, max(least, min(most, len(parts))), most); got != nil {
			return got
		}
	}
	return s.takeParts(c, parts, g, least, most)
}

// segmentPart is the nodes of one segment.
type segmentPart struct {
	block int
	size  int // segments that the block has
	tasks uint64
	named bool
	cells []cell
}

// segmentBlocks gives the cells by the block that a segment must be in.
func (s *Shape) segmentBlocks(c *Candidates, cells []cell) [][]cell {
	t := c.Topology
	unit := func(leaf int32) int32 { return leaf }
	if t.first > 0 && s.segment > t.first {
		at := map[int32]int32{}
		height := 0
		for i := range t.groups {
			g := &t.groups[i]
			if g.nodes < s.segment || height > 0 && g.height != height {
				continue
			}
			height = g.height
			for _, l := range g.leaves {
				at[l] = int32(i)
			}
		}
		if height > 0 {
			unit = func(leaf int32) int32 { return at[leaf] }
		}
	}
	place := map[int32]int{}
	var blocks [][]cell
	for _, k := range cells {
		if k.leaf < 0 {
			continue
		}
		u := unit(k.leaf)
		b, ok := place[u]
		if !ok {
			b = len(blocks)
			place[u] = b
			blocks = append(blocks, nil)
		}
		blocks[b] = append(blocks[b], k)
	}
	return blocks
}

// cut divides the cells of a block into segments: the named ones first, then the roomiest, so that
// any number of segments from the front are the best so many.
func (s *Shape) cut(parts []segmentPart, cells []cell, block int) []segmentPart {
	slices.SortStableFunc(cells, func(a, b cell) int {
		order := boolOrder(b.named, a.named)
		if order == 0 && s.tasks > 0 {
			order = cmp.Compare(b.tasks, a.tasks)
		}
		return order
	})
	n := len(cells) / s.segment
	for i := range n {
		p := segmentPart{block: block, size: n, cells: cells[i*s.segment : (i+1)*s.segment]}
		for _, k := range p.cells {
			p.tasks += uint64(k.tasks)
			p.named = p.named || k.named
		}
		parts = append(parts, p)
	}
	return parts
}

// sortParts puts those with named nodes first, then with a task count the roomiest, otherwise those of
// the largest blocks. Segments of one block keep their order.
func (s *Shape) sortParts(parts []segmentPart) {
	slices.SortStableFunc(parts, func(a, b segmentPart) int {
		order := boolOrder(b.named, a.named)
		if order == 0 && s.tasks > 0 {
			order = cmp.Compare(b.tasks, a.tasks)
		}
		return cmp.Or(order, cmp.Compare(b.size, a.size), cmp.Compare(a.block, b.block))
	})
}

// takeParts takes from least to most segments, as few as carry the tasks.
func (s *Shape) takeParts(c *Candidates, parts []segmentPart, g goal, least, most int) []cell {
	c.chosen = c.chosen[:0]
	total := uint64(0)
	for i, taken := 0, 0; taken < min(most, len(parts)); i, taken = i+1, taken+1 {
		if s.tasks == 0 && !parts[i].named && taken < least && (i == 0 || parts[i].block != parts[i-1].block || parts[i-1].named) {
			i = tightest(parts, i, least-taken)
		}
		p := &parts[i]
		total += p.tasks
		c.chosen = append(c.chosen, p.cells...)
		if taken+1 >= least && total >= uint64(g.tasks) {
			return c.chosen
		}
	}
	return nil
}

// tightest finds the last block from i on, which is the smallest, that has all the segments still wanted;
// i when none has.
func tightest(parts []segmentPart, i, wanted int) int {
	best := i
	for from := i; from < len(parts); {
		end := from + 1
		for end < len(parts) && parts[end].block == parts[from].block {
			end++
		}
		if end-from >= wanted {
			best = from
		}
		from = end
	}
	return best
}
