package sched

import (
	"cmp"
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/backfill"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// Ends that are not times. A run without a limit ends after every reserved start, also after one that
// itself waits for a run without a limit.
const (
	never     = backfill.Never
	afterward = backfill.Afterward
)

// hold is a start that is kept free: nodes that a job wants from at on. A job behind it may use one of them only if it
// ends by then or fits into what is spare there all the time.
type hold struct {
	job      uint32
	part     int
	at       int64 // never = when the runs there end is not known
	end      int64
	since    int64 // what it was promised or found for: at may have gone on from there; 0 = of runs that make room
	nodes    []int // ascending
	allocs   []job.NodeAlloc
	licenses []job.License
	by       place.Tenant
	promised bool
	due      bool // its time has come: its job may start although it will end later than was kept for it
	tight    bool // what it takes is not all there: something runs longer than it should
	wide     bool // of a deadline: it does not count among the promises of its partition

	chain *partitions.Chain // nil: nothing limits its job
	claim *partitions.Claim
}

// endAfter is when a run with this limit ends that starts at a time.
func endAfter(at, limit int64) int64 {
	if limit == job.Unlimited || at >= never {
		return afterward
	}
	return at + limit
}

// keep makes a hold count.
func (r *round) keep(h *hold) {
	r.held[h.job] = append(r.held[h.job], h)
	for i, n := range h.nodes {
		if len(r.holds[n]) == 0 {
			r.marked = append(r.marked, n)
		}
		r.holds[n] = append(r.holds[n], h)
		if t := r.drawn(n); t != nil {
			t.Take(&h.allocs[i], h.by, h.at, h.end)
		}
	}
	r.keepLicenses(h.licenses, h.at, h.end)
	if h.claim != nil {
		r.pledged = append(r.pledged, h)
	}
}

// release makes a hold count no more.
func (r *round) release(h *hold) {
	r.held[h.job] = slices.DeleteFunc(r.held[h.job], func(o *hold) bool { return o == h })
	for i, n := range h.nodes {
		r.holds[n] = slices.DeleteFunc(r.holds[n], func(o *hold) bool { return o == h })
		if t := r.drawn(n); t != nil {
			if h.by.Exclusive || h.by.User || h.tight || slices.ContainsFunc(r.holds[n], func(o *hold) bool { return o.tight }) {
				r.p.scratch.drawn[n] = 0 // what such a run shuts, or was not all there, is not given back step by step
				continue
			}
			t.Give(&h.allocs[i], h.at, h.end)
		}
	}
	r.freeLicenses(h.licenses, h.at, h.end)
	if h.claim != nil {
		r.pledged = slices.DeleteFunc(r.pledged, func(o *hold) bool { return o == h })
	}
}

// drawn is the timeline of a node if it was drawn in this round.
func (r *round) drawn(n int) *backfill.Timeline {
	if r.p.scratch.drawn[n] != r.turn {
		return nil
	}
	return &r.p.scratch.lines[n]
}

// line is the timeline of a node: what is free now, what comes back, what is kept.
func (r *round) line(n int) *backfill.Timeline {
	t := &r.p.scratch.lines[n]
	if r.p.scratch.drawn[n] == r.turn {
		return t
	}
	r.p.scratch.drawn[n] = r.turn
	t.Reset(r.s.Nodes[n], r.now, &r.p.rooms[n])
	give := func(h held) {
		if at := r.endOf(h.end); h.alloc != nil {
			t.Give(h.alloc, at, afterward)
		}
	}
	for _, h := range r.p.runs[n] {
		give(h)
	}
	for _, h := range r.started[n] {
		give(h)
	}
	for _, h := range r.holds[n] {
		i, _ := slices.BinarySearch(h.nodes, n)
		t.Take(&h.allocs[i], h.by, h.at, h.end)
	}
	return t
}

// endOf turns a run's end into one to reckon with: an overdue run ends at any moment.
func (r *round) endOf(end int64) int64 { return max(end, r.now+1) }

// special tells whether more than the ends of runs changes what a node has for a lane.
func (r *round) special(l *lane, n int) bool {
	return len(r.holds[n]) > 0 || len(r.blocks[n]) > 0 || l.access.mine != nil || r.capOf(l) > 0
}

// avail is how many tasks of the lane's shape node n has room for now, all the time until to.
func (r *round) avail(l *lane, n int, to int64) uint32 {
	t := l.fit.fits[n]
	if t == 0 || !r.special(l, n) {
		return t
	}
	if !r.open(l.access, n, r.now, to) {
		return 0
	}
	if len(r.holds[n]) == 0 {
		return min(t, r.capped(l, n, to))
	}
	if l.slot > 0 {
		to = min(to, l.slot)
	}
	if r.pol.StrictEnd && to < never {
		to++
	}
	if r.pol.NoSpare {
		for _, h := range r.holds[n] {
			if h.at < to {
				return 0
			}
		}
		return min(t, r.capped(l, n, to))
	}
	room := &r.p.scratch.least
	r.line(n).Over(r.now, to, room)
	r.capRoom(l, n, r.now, to, room)
	return min(t, r.p.fit(l.fit, n, room))
}

// event is a moment at which what a node has for a job may change.
type event struct {
	at   int64
	node int32
}

// earliest finds the first time from from on, but before until, at which the lane's shape fits for limit, and the nodes
// it gets. ok is false when there is none.
func (r *round) earliest(l *lane, from, limit, until int64) (at int64, picks []place.Pick, ok bool) {
	r.charge(l, len(l.fit.order)+len(r.p.ends)/4)
	if l.fit.single && r.capOf(l) == 0 {
		return r.earliestOne(l, from, limit, until)
	}
	w := r.sweep(l, from, limit)
	failed := 0
	for w.next() {
		if w.at >= until {
			return 0, nil, false
		}
		if w.at < from || w.count < l.fit.least || w.sum < l.fit.tasks {
			continue
		}
		if when, fine := r.licensed(l, w.at, limit); !fine || when > w.at {
			if !fine {
				return 0, nil, false
			}
			w.also(when)
			continue
		}
		if failed > 16 && failed&(failed-1) != 0 && w.more() { // does not fit for other reasons than room: look again, but not at each end
			failed++
			continue
		}
		if picks = r.chooseAt(l, w); picks != nil {
			return w.at, picks, true
		}
		failed++
	}
	return 0, nil, false
}

// sweep walks through the moments at which the nodes of a lane change.
type sweep struct {
	r      *round
	l      *lane
	limit  int64
	at     int64
	cur    []uint32 // tasks by node at the moment
	count  int
	sum    uint64
	ends   []ending
	fresh  []ending // of this round's starts
	events []event
	first  bool
	from   int64
}

// sweep begins a walk at the time given.
func (r *round) sweep(l *lane, from, limit int64) *sweep {
	sc := &r.p.scratch
	sc.turn++
	w := &sweep{r: r, l: l, limit: limit, cur: sc.cur, ends: r.p.ends, first: true, from: from, at: from}
	for _, n := range l.fit.order {
		if !r.special(l, n) {
			w.cur[n] = l.fit.fits[n]
		} else {
			w.cur[n] = w.look(n, from)
			w.eventsOf(n)
		}
		if w.cur[n] > 0 {
			w.count, w.sum = w.count+1, w.sum+uint64(w.cur[n])
		}
	}
	if x := l.extra; x.Switches > 0 && x.SwitchWait > 0 && len(l.fit.order) > 0 {
		w.events = append(w.events, event{max(from, l.head.Submit+x.SwitchWait, l.head.Accrue+x.SwitchWait, l.head.Begin+x.SwitchWait), int32(l.fit.order[0])})
	}
	slices.SortFunc(w.events, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.node, b.node)) })
	w.events = slices.Compact(w.events)
	w.fresh = r.freshByEnd()
	return w
}

// eventsOf notes the moments at which a special node changes.
func (w *sweep) eventsOf(n int) {
	add := func(at int64) {
		if at > w.from {
			w.events = append(w.events, event{at, int32(n)})
		}
	}
	both := func(at int64) {
		add(at)
		if w.limit != job.Unlimited && at < never {
			add(at - w.limit + 1)
		}
	}
	for _, s := range w.r.line(n).Steps() {
		both(s.At)
	}
	for _, b := range w.r.blocks[n] {
		both(b.start)
		both(b.end)
	}
	if m := w.l.access.mine; m != nil {
		for _, x := range m.windows {
			both(x.start)
			both(x.end)
		}
	}
}

// look is what a special node has from a time on, for the limit.
func (w *sweep) look(n int, at int64) uint32 {
	to := endAfter(at, w.limit)
	if !w.r.open(w.l.access, n, at, to) {
		return 0
	}
	room := &w.r.p.scratch.least
	w.r.line(n).Over(at, to, room)
	w.r.capRoom(w.l, n, at, to, room)
	return w.r.p.fit(w.l.fit, n, room)
}

// set changes what a node has.
func (w *sweep) set(n int, t uint32) {
	w.count += boolInt(t > 0) - boolInt(w.cur[n] > 0)
	w.sum += uint64(t) - uint64(w.cur[n])
	w.cur[n] = t
}

// also adds a moment to look at.
func (w *sweep) also(at int64) {
	if len(w.l.fit.order) > 0 && at > w.at && at < never {
		e := event{at, int32(w.l.fit.order[0])}
		i, _ := slices.BinarySearchFunc(w.events, e, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.node, b.node)) })
		w.events = slices.Insert(w.events, i, e)
	}
}

// peek is the next moment.
func (w *sweep) peek() (int64, bool) {
	at, ok := int64(0), false
	soon := func(t int64) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	if len(w.ends) > 0 {
		soon(w.r.endOf(w.ends[0].at))
	}
	if len(w.fresh) > 0 {
		soon(w.fresh[0].at)
	}
	if len(w.events) > 0 {
		soon(w.events[0].at)
	}
	return at, ok
}

func (w *sweep) more() bool { _, ok := w.peek(); return ok }

// next goes to the next moment; the first is where the sweep began. It is false when nothing changes any more.
func (w *sweep) next() bool {
	if w.first {
		w.first = false
		w.advance(w.from)
		w.at = w.from
		return true
	}
	at, ok := w.peek()
	if !ok {
		return false
	}
	w.at = at
	w.advance(at)
	return true
}

// advance lets happen all that does until a moment.
func (w *sweep) advance(at int64) {
	for len(w.ends) > 0 && w.r.endOf(w.ends[0].at) <= at {
		w.back(w.ends[0])
		w.ends = w.ends[1:]
	}
	for len(w.fresh) > 0 && w.fresh[0].at <= at {
		w.back(w.fresh[0])
		w.fresh = w.fresh[1:]
	}
	for len(w.events) > 0 && w.events[0].at <= at {
		if n := int(w.events[0].node); w.r.special(w.l, n) {
			w.set(n, w.look(n, at))
		}
		w.events = w.events[1:]
	}
}

// back gives an ordinary node what a run held.
func (w *sweep) back(e ending) {
	n := int(e.node)
	if w.l.fit.places[n] < 0 || w.r.special(w.l, n) || e.alloc == nil {
		return
	}
	sc := &w.r.p.scratch
	if sc.stamp[n] != sc.turn {
		sc.stamp[n] = sc.turn
		sc.rooms[n].Copy(&w.r.p.rooms[n])
	}
	sc.rooms[n].More(w.r.s.Nodes[n], e.alloc)
	w.set(n, w.r.p.fit(w.l.fit, n, &sc.rooms[n]))
}

// chooseAt picks nodes at the sweep's moment.
func (r *round) chooseAt(l *lane, w *sweep) []place.Pick {
	list := make([]int, 0, w.count)
	for _, n := range l.fit.order {
		if w.cur[n] > 0 {
			list = append(list, n)
		}
	}
	c := r.candidates(l, list, w.at)
	c.Fit = func(n int) uint32 { return w.cur[n] }
	c.Free = func(n int) uint32 {
		if sc := &r.p.scratch; sc.stamp[n] == sc.turn {
			return sc.rooms[n].CPUs
		}
		return r.p.rooms[n].CPUs
	}
	return l.fit.shape.Choose(c)
}

// earliestOne is earliest for a shape that one node decides: each node is asked for itself.
func (r *round) earliestOne(l *lane, from, limit, until int64) (int64, []place.Pick, bool) {
	need := uint32(max(l.fit.tasks, 1))
	best, on, got := until, -1, uint32(0)
	fits := func(n int) func(*place.Room) bool {
		return func(room *place.Room) bool { return r.p.fit(l.fit, n, room) >= need }
	}
	for tries := 0; tries < 64; tries++ {
		best, on = until, -1
		for _, n := range l.fit.named() {
			if !r.s.Nodes[n].Up || l.fit.places[n] < 0 {
				continue
			}
			at, ok := int64(0), false
			switch {
			case r.special(l, n):
				at, ok = r.earliestOn(l, n, from, limit, best, fits(n))
			case l.fit.fits[n] >= need:
				at, ok = from, true
			default:
				at, ok = r.afterEnds(l, n, from, best, need)
			}
			if ok && at < best {
				if best, on = at, n; best <= from {
					break
				}
			}
		}
		if on < 0 {
			return 0, nil, false
		}
		when, fine := r.licensed(l, best, limit)
		if !fine || when >= until {
			return 0, nil, false
		}
		if when <= best {
			break
		}
		from = when
	}
	room := r.roomAt(on, best, endAfter(best, limit))
	got = r.p.fit(l.fit, on, room)
	c := r.candidates(l, []int{on}, best)
	c.Fit = func(int) uint32 { return got }
	picks := l.fit.shape.Choose(c)
	return best, picks, picks != nil
}

// earliestOn is when one special node fits.
func (r *round) earliestOn(l *lane, n int, from, limit, until int64, fits func(*place.Room) bool) (int64, bool) {
	length := limit
	if limit == job.Unlimited {
		length = never
	}
	for at := from; at < until; {
		when, ok := r.line(n).Earliest(at, length, fits)
		if !ok {
			return 0, false
		}
		if r.open(l.access, n, when, endAfter(when, limit)) {
			return when, true
		}
		if at, ok = r.opens(l.access, n, when, limit); !ok {
			return 0, false
		}
	}
	return 0, false
}

// afterEnds is when an ordinary node fits: after some of its runs have ended.
func (r *round) afterEnds(l *lane, n int, from, until int64, need uint32) (int64, bool) {
	runs := r.p.runs[n]
	if len(r.started[n]) > 0 {
		runs = append(slices.Clone(runs), r.started[n]...)
	}
	if len(runs) == 0 {
		return 0, false
	}
	order := make([]int, len(runs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(runs[a].end, runs[b].end) })
	room := &r.p.scratch.least
	room.Copy(&r.p.rooms[n])
	for i, k := range order {
		at := r.endOf(runs[k].end)
		if at >= until {
			return 0, false
		}
		room.More(r.s.Nodes[n], runs[k].alloc)
		if i+1 < len(order) && r.endOf(runs[order[i+1]].end) == at {
			continue
		}
		if r.p.fit(l.fit, n, room) >= need {
			return max(at, from), true
		}
	}
	return 0, false
}

// roomAt is what a node has from a time to another, in the planner's scratch.
func (r *round) roomAt(n int, from, to int64) *place.Room {
	room := &r.p.scratch.least
	r.line(n).Over(from, to, room)
	return room
}

// reserve makes the hold of a lane's best job at a time on the nodes picked.
func (r *round) reserve(l *lane, at, limit int64, picks []place.Pick) *hold {
	h := &hold{job: l.head.JobID, part: l.part, at: at, end: endAfter(at, limit), since: at, by: l.tenant(), wide: l.extra.Deadline > 0,
		licenses: l.extra.Licenses}
	for _, k := range picks {
		room := r.roomAt(k.Node, at, h.end)
		h.nodes = append(h.nodes, k.Node)
		h.allocs = append(h.allocs, l.fit.shape.Demand(r.s.Nodes[k.Node], room, k.Tasks))
	}
	return r.counted(l, h, limit)
}
