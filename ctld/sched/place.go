package sched

import (
	"cmp"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// pick is one node chosen for a job, with the tasks it gets.
type pick struct {
	node  int
	tasks uint32 // before share: how many it has room for
}

// prepare works out the lane's shape and the nodes that could run it. It is false, with the
// verdict noted, when there are none.
func (p *planner) prepare(l *lane) bool {
	c := p.s.Classes[l.class]
	if l.shape == nil {
		sh, wrong := p.newShape(c, p.s.Partitions[l.part])
		if wrong != "" {
			l.candidates = []int{}
			p.verdict(l, verdict{rank: rankNever, reason: job.ReasonBadConstraints, detail: wrong})
			return false
		}
		l.shape = sh
	}
	l.candidates = p.suitable(l, true)
	return true
}

// suitable lists the nodes of the lane's partition that could run the shape, best first: those
// where an earlier run failed come last. With up only those that take work.
func (p *planner) suitable(l *lane, up bool) []int {
	out := []int{}
	for _, n := range p.parts[l.part].nodes {
		node := p.s.Nodes[n]
		if (node.Up || !up) && !l.shape.avoided[n] && l.shape.suits(n, node) {
			out = append(out, n)
		}
	}
	for _, n := range p.parts[l.part].nodes {
		node := p.s.Nodes[n]
		if l.shape.avoided[n] && (node.Up || !up) && l.shape.suits(n, node) {
			out = append(out, n)
		}
	}
	return out
}

// choose finds nodes for one job of the lane that ends limit from now; nil when there are none.
// A limit of 0 asks whether it would fit if nothing were reserved.
func (p *planner) choose(l *lane, limit int64) []pick {
	for l.from < len(l.candidates) && len(l.shape.required) == 0 {
		n := l.candidates[l.from]
		if l.shape.fit(p.s.Nodes[n], &p.rooms[n]) > 0 {
			break
		}
		l.from++ // rooms only shrink during a plan
	}
	end := p.now + limit
	if limit == job.Unlimited {
		end = afterward
	}
	return l.shape.choose(l.candidates[l.from:], func(n int) uint32 {
		node := p.s.Nodes[n]
		tasks := l.shape.fit(node, &p.rooms[n])
		for _, h := range p.holds[n] {
			if tasks == 0 || end <= h.at {
				continue
			}
			tasks = min(tasks, l.shape.fit(node, h.spare(n)))
		}
		return tasks
	})
}

// choose picks nodes in the order given, as few as the tasks need. fit says how many tasks a node
// has room for. The picks come in configuration order, with their tasks.
func (s *shape) choose(candidates []int, fit func(node int) uint32) []pick {
	var picks []pick
	var total uint64
	for _, n := range s.required {
		if !slices.Contains(candidates, n) {
			return nil
		}
		t := fit(n)
		if t == 0 {
			return nil
		}
		picks, total = append(picks, pick{n, t}), total+uint64(t)
	}
	fixed := len(picks)
	for _, n := range candidates {
		if s.enough(len(picks), total) {
			break
		}
		if _, named := slices.BinarySearch(s.required, n); named {
			continue
		}
		if t := fit(n); t > 0 {
			picks, total = append(picks, pick{n, t}), total+uint64(t)
		}
	}
	if len(picks) > s.maxNodes {
		// The first nodes are too small: take the roomiest, the earlier of equal ones.
		slices.SortStableFunc(picks[fixed:], func(a, b pick) int { return cmp.Compare(b.tasks, a.tasks) })
		picks, total = picks[:s.maxNodes], 0
		for _, k := range picks {
			total += uint64(k.tasks)
		}
	}
	if len(picks) < s.minNodes || total < uint64(s.tasks) {
		return nil
	}
	slices.SortFunc(picks, func(a, b pick) int { return cmp.Compare(a.node, b.node) })
	s.share(picks)
	return picks
}

// enough tells whether so many nodes with so many task places do, and whether more are not wanted.
func (s *shape) enough(nodes int, total uint64) bool {
	if s.tasks > 0 {
		// Once maxNodes is passed the roomiest are chosen, which needs all of them.
		return nodes >= s.minNodes && total >= uint64(s.tasks) && nodes <= s.maxNodes
	}
	// As many nodes as the range allows.
	return nodes >= s.maxNodes
}

// share deals out the tasks: each node gets as many as it has room for, and every one at least one.
func (s *shape) share(picks []pick) {
	if s.tasks == 0 {
		return
	}
	left := s.tasks
	for i := range picks {
		behind := uint32(len(picks) - i - 1)
		picks[i].tasks = min(picks[i].tasks, left-min(left, behind))
		left -= picks[i].tasks
	}
}

// demand is what the shape takes of a node's room for so many tasks, without CPU and device numbers.
func (s *shape) demand(n *Node, r *room, tasks uint32) job.NodeAlloc {
	cpus := s.cpusFor(n, tasks)
	return job.NodeAlloc{Node: n.Name, CPUs: cpus, Mem: s.mem(n, cpus), Tasks: tasks, Gres: s.gresTake(n, r)}
}

// take allocates the picks to a job of the lane that ends limit from now.
func (p *planner) take(l *lane, picks []pick, limit int64) []job.NodeAlloc {
	end := int64(never)
	if limit != job.Unlimited {
		end = p.now + limit
	}
	out := make([]job.NodeAlloc, len(picks))
	for i, k := range picks {
		node := p.s.Nodes[k.node]
		a := l.shape.demand(node, &p.rooms[k.node], k.tasks)
		a.CPUIDs = p.takeCPUs(k.node, a.CPUs)
		for g := range a.Gres {
			a.Gres[g].Index = p.takeDevices(k.node, &a.Gres[g])
		}
		p.rooms[k.node].less(node, &a, l.shape.exclusive)
		for _, h := range p.holds[k.node] {
			if limit == job.Unlimited || end > h.at {
				h.spare(k.node).less(node, &a, l.shape.exclusive)
			}
		}
		out[i] = a
	}
	p.ends, p.sorted = append(p.ends, ending{at: end, allocs: out}), false
	return out
}

// takeCPUs marks the lowest free CPU numbers of a node as used.
func (p *planner) takeCPUs(n int, count uint32) []uint32 {
	if p.cpus[n] == nil {
		used := make([]bool, p.s.Nodes[n].CPUs)
		copy(used, p.s.Nodes[n].CPUUsed)
		p.cpus[n] = used
	}
	return lowest(p.cpus[n], uint64(count))
}

// takeDevices marks the lowest free devices of a node's resource as used; nil for a resource without devices.
func (p *planner) takeDevices(n int, a *job.GresAlloc) []uint32 {
	node := p.s.Nodes[n]
	i := gresAt(node, a)
	if node.Gres[i].Used == nil {
		return nil
	}
	if p.gres[n] == nil {
		p.gres[n] = make([][]bool, len(node.Gres))
	}
	if p.gres[n][i] == nil {
		p.gres[n][i] = slices.Clone(node.Gres[i].Used)
	}
	return lowest(p.gres[n][i], a.Count)
}

// lowest marks the first count unmarked places and gives their numbers.
func lowest(used []bool, count uint64) []uint32 {
	out := make([]uint32, 0, count)
	for i := range used {
		if uint64(len(out)) == count {
			break
		}
		if !used[i] {
			used[i] = true
			out = append(out, uint32(i))
		}
	}
	return out
}
