package place

import (
	"cmp"
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

	cells []cell
	work  []cell
}

// cell is a candidate that fits.
type cell struct {
	node  int
	tasks uint32
}

// Choose finds nodes for the shape; nil when there are none. The picks are the caller's, in
// configuration order, with their tasks.
func (s *Shape) Choose(c *Candidates) []Pick {
	var picks []Pick
	var total uint64
	for _, n := range s.required {
		if !slices.Contains(c.List, n) {
			return nil
		}
		t := c.Fit(n)
		if t == 0 {
			return nil
		}
		picks, total = append(picks, Pick{n, t}), total+uint64(t)
	}
	fixed := len(picks)
	for _, n := range c.List {
		if s.enough(len(picks), total) {
			break
		}
		if _, named := slices.BinarySearch(s.required, n); named {
			continue
		}
		if t := c.Fit(n); t > 0 {
			picks, total = append(picks, Pick{n, t}), total+uint64(t)
		}
	}
	if len(picks) > s.maxNodes {
		// The first nodes are too small: take the roomiest, the earlier of equal ones.
		slices.SortStableFunc(picks[fixed:], func(a, b Pick) int { return cmp.Compare(b.Tasks, a.Tasks) })
		picks, total = picks[:s.maxNodes], 0
		for _, k := range picks {
			total += uint64(k.Tasks)
		}
	}
	if len(picks) < s.minNodes || total < uint64(s.tasks) {
		return nil
	}
	slices.SortFunc(picks, func(a, b Pick) int { return cmp.Compare(a.Node, b.Node) })
	s.share(picks)
	return picks
}

// enough tells whether so many nodes with so many task places do, and whether more are not wanted.
func (s *Shape) enough(nodes int, total uint64) bool {
	if s.tasks > 0 {
		// Once maxNodes is passed the roomiest are chosen, which needs all of them.
		return nodes >= s.minNodes && total >= uint64(s.tasks) && nodes <= s.maxNodes
	}
	// As many nodes as the range allows.
	return nodes >= s.maxNodes
}

// share deals out the tasks: each node gets as many as it has room for, and every one at least one.
func (s *Shape) share(picks []Pick) {
	if s.tasks == 0 {
		return
	}
	left := s.tasks
	for i := range picks {
		behind := uint32(len(picks) - i - 1)
		picks[i].Tasks = min(picks[i].Tasks, left-min(left, behind))
		left -= picks[i].Tasks
	}
}

// FitsEmpty tells whether the shape would fit on the candidates if nothing ran there, however it
// must be spread over switches.
func (s *Shape) FitsEmpty(c *Candidates) bool {
	empty := Candidates{List: c.List, Nodes: c.Nodes, Topology: c.Topology, AnySwitches: c.AnySwitches}
	empty.Fit = func(n int) uint32 {
		whole := WholeRoom(c.Nodes[n])
		return s.Fit(c.Nodes[n], &whole)
	}
	empty.Free = func(n int) uint32 { return c.Nodes[n].CPUs }
	return s.Choose(&empty) != nil
}
