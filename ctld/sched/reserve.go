package sched

import (
	"cmp"
	"slices"
	"sort"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// hold is the reservation of the job that waits first in a partition: from at on it wants its
// nodes. A job behind it may use one of them only if it ends by then or fits into what is spare.
type hold struct {
	job   uint32
	at    int64 // never = when the runs there end is not known
	nodes []int // ascending
	rooms []room
}

// spare is what the reservation leaves of a node from its start on.
func (h *hold) spare(node int) *room {
	i, _ := slices.BinarySearch(h.nodes, node)
	return &h.rooms[i]
}

// reserve gives the best job of l its verdict and, if it is the first that waits for resources in
// its partition, a reservation of the earliest nodes.
func (p *planner) reserve(l *lane) {
	if l.shape == nil {
		return // not understood; the verdict is there
	}
	if v, ok := p.impossible(l); ok {
		p.verdict(l, v)
		return
	}
	part := &p.parts[l.part]
	if part.blocked != 0 {
		p.verdict(l, verdict{rank: rankPriority, reason: job.ReasonPriority, detail: p.behind(l)})
		return
	}
	part.blocked = l.head.JobID
	v := verdict{rank: rankResources, reason: job.ReasonResources, detail: p.shortage(l)}
	if h := p.shadow(l); h != nil {
		for _, n := range h.nodes {
			p.holds[n] = append(p.holds[n], h)
		}
		if h.at < never {
			v.start = h.at
		} else {
			v.detail += "; the jobs it waits for have no time limit"
		}
	}
	p.verdict(l, v)
}

// shadow finds the earliest time at which the best job of l fits, as runs end, and the nodes it gets
// then; nil when it would not fit even after all of them.
func (p *planner) shadow(l *lane) *hold {
	if !p.sorted {
		slices.SortStableFunc(p.ends, func(a, b ending) int { return cmp.Compare(a.at, b.at) })
		p.sorted = true
	}
	// Resources only come back as time goes on, so whether the job fits is monotone in the number
	// of runs that have ended.
	at := func(ended int) ([]pick, []room) {
		rooms := p.after(ended)
		return l.shape.choose(l.candidates, func(n int) uint32 {
			return l.shape.fit(p.s.Nodes[n], &rooms[n])
		}), rooms
	}
	first := sort.Search(len(p.ends), func(i int) bool {
		picks, _ := at(i + 1)
		return picks != nil
	})
	if first == len(p.ends) {
		return nil
	}
	// All runs that end in that same moment have ended.
	when, ended := p.ends[first].at, first+1
	for ended < len(p.ends) && p.ends[ended].at == when {
		ended++
	}
	picks, rooms := at(ended)
	h := &hold{job: l.head.JobID, at: when}
	for _, k := range picks {
		node := p.s.Nodes[k.node]
		a := l.shape.demand(node, &rooms[k.node], k.tasks)
		rooms[k.node].less(node, &a, l.shape.exclusive)
		h.nodes, h.rooms = append(h.nodes, k.node), append(h.rooms, rooms[k.node])
	}
	return h
}

// after gives what is free once the first so many runs have ended.
func (p *planner) after(ended int) []room {
	rooms := make([]room, len(p.rooms))
	for i := range p.rooms {
		rooms[i] = p.rooms[i].clone()
	}
	for _, e := range p.ends[:ended] {
		for a := range e.allocs {
			if n, ok := p.byName[e.allocs[a].Node]; ok {
				rooms[n].more(p.s.Nodes[n], &e.allocs[a])
			}
		}
	}
	return rooms
}

// gap is how long a job of the lane may run on its candidates before the first reservation there;
// job.Unlimited when there is none.
func (p *planner) gap(l *lane) int64 {
	first := int64(never)
	for _, n := range l.candidates[l.from:] {
		for _, h := range p.holds[n] {
			first = min(first, h.at)
		}
	}
	if first == never {
		return job.Unlimited
	}
	return first - p.now
}
