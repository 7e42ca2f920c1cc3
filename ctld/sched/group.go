package sched

import (
	"container/heap"
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// group is the components of one heterogeneous job as they come up. They start together or not at all.
type group struct {
	size  uint32
	lanes []*lane
	done  bool
}

// groupOf is the number of the group that a record starts with; 0 = by itself.
func (r *round) groupOf(w *Waiting) uint32 {
	if w.HetSize > 1 {
		return w.Het
	}
	return 0
}

// gather takes the best lane, whose job is a component, aside until all components have come up; then they are started
// together, or a common start is kept for them.
func (r *round) gather(q *lanes, l *lane) {
	g := r.groups[l.head.Het]
	if g == nil {
		g = &group{size: l.head.HetSize}
		r.groups[l.head.Het] = g
	}
	if g.done || slices.ContainsFunc(g.lanes, func(o *lane) bool { return o.head.JobID == l.head.JobID }) {
		q.advance(l) // it came up in another partition
		return
	}
	if own := r.held[l.head.JobID]; len(own) > 0 && own[0].part != l.part {
		q.advance(l) // it starts where it was promised to
		return
	}
	heap.Pop(q)
	g.lanes = append(g.lanes, l)
	if uint32(len(g.lanes)) < g.size {
		r.parked = append(r.parked, l)
		return
	}
	g.done = true
	r.parked = slices.DeleteFunc(r.parked, func(o *lane) bool { return slices.Contains(g.lanes, o) })
	slices.SortFunc(g.lanes, func(a, b *lane) int { return compare64(int64(a.head.JobID), int64(b.head.JobID)) })
	began := r.together(g)
	if !began {
		r.waitTogether(g)
	}
	for _, o := range g.lanes {
		if began && r.next(o) {
			heap.Push(q, o)
			continue
		}
		o.stop()
	}
}

// together starts all components, or none.
func (r *round) together(g *group) bool {
	var own []*hold
	for _, l := range g.lanes {
		for _, h := range slices.Clone(r.held[l.head.JobID]) {
			r.release(h)
			own = append(own, h)
		}
	}
	got := r.placeAll(g, nil)
	if got != started && len(own) > 0 && own[0].due {
		got = r.placeKeptAll(g, own, got)
	}
	if behind := r.yielding(own); len(behind) > 0 && (got == lacksResources || got == wouldDelay) {
		for _, h := range behind {
			r.release(h)
		}
		got = r.placeAll(g, own)
		for _, h := range behind {
			h.tight = h.tight || got == started
			r.keep(h)
		}
	}
	if got == started {
		return true
	}
	for _, h := range own {
		r.keep(h)
	}
	if got == limited {
		for _, l := range g.lanes {
			r.abandon(l.head.JobID)
		}
	}
	return false
}

// placeKeptAll starts the components, whose time has come, on the nodes that were kept for them.
func (r *round) placeKeptAll(g *group, own []*hold, otherwise outcome) outcome {
	for _, l := range g.lanes {
		for _, h := range own {
			if h.job == l.head.JobID {
				l.slot, l.kept, l.strict = h.end, h.nodes, true
			}
		}
	}
	got := r.placeAll(g, nil)
	for _, l := range g.lanes {
		l.slot, l.kept, l.strict = 0, nil, false
	}
	if got == started {
		return started
	}
	return otherwise
}

// placeAll places each component, or none; where own is given, where starts were kept for them.
func (r *round) placeAll(g *group, own []*hold) outcome {
	mark, rooms := len(r.out.Starts), len(r.p.touched)
	licenses := len(r.lics.spans)
	for _, l := range g.lanes {
		limit, ok := r.limit(l)
		if !ok {
			r.tooLong(l, limit)
		}
		got := refused
		if ok {
			switch got = r.prepare(l, limit); {
			case got == started && own != nil:
				got = r.placePromised(l, own, -1, limit)
			case got == started:
				got = r.place(l, -1, limit)
			}
		}
		if got != started {
			r.undo(g, mark, rooms, licenses)
			return got
		}
	}
	return started
}

// undo takes back the starts after the first so many.
func (r *round) undo(g *group, mark, rooms, licenses int) {
	for i := len(r.out.Starts) - 1; i >= mark; i-- {
		st := &r.out.Starts[i]
		l := g.lanes[i-mark]
		if l.chain != nil {
			r.limits.minus(l.chain, r.claim(l, st.Nodes, st.TimeLimit))
		}
		if l.taken != nil {
			l.taken[st.JobID]--
		}
		for a := range st.Nodes {
			n := r.p.names[st.Nodes[a].Node]
			r.started[n] = r.started[n][:len(r.started[n])-1]
			r.unnumber(&st.Nodes[a], n)
		}
		r.fresh = r.fresh[:len(r.fresh)-len(st.Nodes)]
	}
	for _, n := range r.p.touched[rooms:] {
		r.rebuild(n)
	}
	r.out.Starts = r.out.Starts[:mark]
	r.lics.spans = r.lics.spans[:licenses]
}

// unnumber gives back the CPU and device numbers of an allocation.
func (r *round) unnumber(a *job.NodeAlloc, n int) {
	for _, c := range a.CPUIDs {
		r.cpus[n][c] = false
	}
	for g := range a.Gres {
		i := place.GresAt(r.s.Nodes[n], &a.Gres[g])
		for _, d := range a.Gres[g].Index {
			r.gres[n][i][d] = false
		}
	}
}

// rebuild works out anew what node n has: the snapshot's, less this round's starts.
func (r *round) rebuild(n int) {
	r.p.refresh(n)
	for i := range r.started[n] {
		h := &r.started[n][i]
		if h.alloc != nil {
			r.p.rooms[n].Less(r.s.Nodes[n], h.alloc, h.by)
		}
	}
	r.p.scratch.drawn[n] = 0
}

// waitTogether keeps a common start free for the components: the first time at which all of them fit beside each other.
func (r *round) waitTogether(g *group) {
	if !r.prepareAll(g) || r.promisedTogether(g) || r.makeRoomTogether(g) {
		return
	}
	for _, l := range g.lanes {
		if !r.mayReserve(l) {
			r.note(l, verdict{rank: rankPriority, reason: job.ReasonPriority, detail: r.behindWhom(l)})
			return
		}
	}
	kept := r.common(g)
	for i, l := range g.lanes {
		part := &r.parts[l.part]
		if part.blocked == 0 {
			part.blocked = l.head.JobID
		}
		v := r.lacks(l)
		if kept != nil {
			if !kept[i].wide {
				part.promises++
			}
			r.promise(l, kept[i])
			r.told(&v, kept[i])
		}
		r.note(l, v)
		r.watch(l)
	}
}

// prepareAll works out the shape of each component. It is false when one of them can not run at all, or a limit keeps it:
// then no start is kept for the others.
func (r *round) prepareAll(g *group) bool {
	for _, l := range g.lanes {
		limit, ok := r.limit(l)
		if !ok || r.prepare(l, limit) != started {
			return false
		}
		if v, ok := r.impossible(l); ok {
			r.note(l, v)
			return false
		}
	}
	return true
}

// promisedTogether tells whether a start is kept for the components already. One that is not there for all of them is given up.
func (r *round) promisedTogether(g *group) bool {
	n := 0
	for _, l := range g.lanes {
		n += boolInt(len(r.held[l.head.JobID]) > 0)
	}
	if n == 0 {
		return false
	}
	if n < len(g.lanes) {
		for _, l := range g.lanes {
			r.giveUp(l.head.JobID)
		}
		return false
	}
	for _, l := range g.lanes {
		v := verdict{rank: rankResources, reason: job.ReasonResources, detail: "waits with the other components of its heterogeneous job"}
		r.told(&v, r.held[l.head.JobID][0])
		r.note(l, v)
		r.watch(l)
	}
	return true
}

// giveUp lets a start that is kept for a job count no more. Another one is found for it, or it is taken back from the state.
func (r *round) giveUp(id uint32) {
	for _, h := range slices.Clone(r.held[id]) {
		r.release(h)
		if !h.wide {
			r.parts[h.part].promises--
		}
	}
	for i := range r.s.Promised {
		if w := &r.s.Promised[i]; w.JobID == id {
			r.broken[id] = w
		}
	}
}

// makeRoomTogether has runs end or suspended for all components, beside each other, if that lets them start.
func (r *round) makeRoomTogether(g *group) bool {
	if r.pol.Preempt.Type == "" || slices.ContainsFunc(g.lanes, func(l *lane) bool { return r.awaited[l.head.JobID] }) {
		return false
	}
	p := r.newPush(afterward)
	for _, l := range g.lanes {
		l.access = l.open[0]
		limit, _ := r.limit(l)
		if !r.mayPush(l, limit) || !p.add(l, limit) {
			return false
		}
	}
	if len(p.victims) == 0 || !p.sooner() || !p.keep() {
		return false
	}
	p.carryOut()
	return true
}

// maxRounds bounds the search for a common start.
const maxRounds = 64

// common finds and keeps a start at which all components fit; nil when none was found.
func (r *round) common(g *group) []*hold {
	from := r.now
	told := r.pol.Promises > 0 || slices.ContainsFunc(g.lanes, func(l *lane) bool { return l.extra.Deadline > 0 })
	for range maxRounds {
		var kept []*hold
		late := from
		for _, l := range g.lanes {
			l.access = l.open[0]
			limit, _ := r.limit(l)
			at, picks, ok := r.earliest(l, max(from, r.soonest(l)), limit, afterward)
			if !ok {
				late = -1
				break
			}
			if at > from {
				late = at
				break
			}
			h := r.reserve(l, at, limit, picks)
			h.promised = told && at < never
			r.keep(h)
			kept = append(kept, h)
		}
		if late == from && len(kept) == len(g.lanes) {
			if r.keepsLimits(g, kept) {
				return kept
			}
			late = -1
		}
		for _, h := range kept {
			r.release(h)
		}
		if late < 0 || late >= never {
			return nil
		}
		from = late
	}
	return nil
}

// keepsLimits tells whether limits have room for the components' kept starts beside all others.
func (r *round) keepsLimits(g *group, kept []*hold) bool {
	for i, l := range g.lanes {
		if v, ok := r.mayKeep(l, kept[i]); !ok {
			r.note(l, v)
			return false
		}
	}
	return true
}
