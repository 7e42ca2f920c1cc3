package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// keepPromises puts the promises that were given back into the picture, those for sooner first. A promise holds whatever
// has come since, however it ranks. It is broken only when what it stands on is gone: a node was lost, drained or
// reserved, or runs there got more time. Its job is promised another start when its turn comes. Those that are due come
// last: that one job starts late makes those promised for later late as well, and breaks nothing.
func (r *round) keepPromises() {
	list := make([]*Promised, 0, len(r.s.Promised))
	for i := range r.s.Promised {
		w := &r.s.Promised[i]
		switch {
		case w.Promise == nil:
		case w.Held, w.Blocked != "": // others are promised starts there, with which it would be at odds when it is free again
			r.broken[w.JobID] = w
		default:
			list = append(list, w)
		}
	}
	slices.SortStableFunc(list, func(a, b *Promised) int {
		if x, y := a.Promise.Start <= r.now, b.Promise.Start <= r.now; x != y {
			return boolInt(x) - boolInt(y)
		}
		if c := compare64(a.Promise.Start, b.Promise.Start); c != 0 {
			return c
		}
		return compare64(int64(a.JobID), int64(b.JobID))
	})
	for _, w := range list {
		c := r.classOf(w.Class)
		h := r.recall(c, w)
		if h == nil {
			r.broken[w.JobID] = w
			continue
		}
		r.due[w.JobID] = h.due
		r.keep(h)
		if !h.wide {
			r.parts[h.part].promises++
		}
		r.wakeAt(h.at)
	}
}

func compare64(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (r *round) classOf(key string) *Class {
	i, found := slices.BinarySearchFunc(r.s.Classes, key, func(c *Class, key string) int {
		switch {
		case c.Key < key:
			return -1
		case c.Key > key:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return r.s.Classes[i]
}

// recall makes the hold of a promise, if it still stands.
func (r *round) recall(c *Class, w *Promised) *hold {
	part := slices.IndexFunc(r.s.Partitions, func(p *Partition) bool { return p.Name == w.Promise.Partition })
	if c == nil || part < 0 || !r.s.Partitions[part].Up || !slices.Contains(r.partitionsOf(c.Spec), part) {
		return nil
	}
	l := &lane{c: c, part: part, extra: r.extraOf(c), head: w.Waiting}
	if l.extra == nil {
		return nil
	}
	l.fit = r.p.fitted(c, l.extra, part, r.owners)
	l.open, _ = r.accesses(c, l.extra, c.QOS)
	if l.fit.wrong != "" || len(l.open) == 0 {
		return nil
	}
	h := &hold{job: w.JobID, part: part, at: max(w.Promise.Start, r.now), end: endAfter(w.Promise.Start, w.Promise.Limit), since: w.Promise.Start,
		by: l.tenant(), due: w.Promise.Start <= r.now, promised: r.pol.Promises > 0 || l.extra.Deadline > 0, wide: l.extra.Deadline > 0, licenses: l.extra.Licenses}
	if h.end <= h.at {
		h.end = endAfter(h.at, w.Promise.Limit)
	}
	for i := range w.Promise.Nodes {
		n, ok := r.p.names[w.Promise.Nodes[i].Node]
		if !ok || l.fit.places[n] < 0 {
			return nil
		}
		h.nodes, h.allocs = append(h.nodes, n), append(h.allocs, w.Promise.Nodes[i])
	}
	if !slices.IsSorted(h.nodes) || len(h.nodes) == 0 {
		return nil
	}
	if _, ok := r.knownChain(l); !ok {
		return nil
	}
	r.counted(l, h, w.Promise.Limit)
	for _, a := range l.open {
		if r.stands(h, a) {
			return h
		}
	}
	return nil
}

// extraOf reads the rare options of a class; nil when they cannot be read.
func (r *round) extraOf(c *Class) *job.Extra {
	if c.Extra != nil {
		return c.Extra
	}
	x, err := c.Spec.Extra()
	if err != nil {
		return nil
	}
	return &x
}

// maxLate is how much longer than it should something may run on a promise's nodes before the promise counts as broken.
const maxLate = 5 * 60_000

// stands tells whether the nodes of a hold are there, and have what it takes. What runs a little longer than it should
// makes a start late, it does not break the promise. Those for sooner are kept already and no others: from h.at on nodes
// and licenses only get freer.
func (r *round) stands(h *hold, a *access) bool {
	from := max(h.at+maxLate, r.now+1)
	for i, n := range h.nodes {
		node := r.s.Nodes[n]
		if !node.Up || !r.open(a, n, h.at, h.end) {
			return false
		}
		if !holds(node, r.roomAt(n, max(h.at, r.now+1), h.end), &h.allocs[i], h.by) {
			h.tight = true
			if !holds(node, r.roomAt(n, from, h.end), &h.allocs[i], h.by) {
				if room := place.WholeRoom(node); !h.due || !holds(node, &room, &h.allocs[i], h.by) {
					return false
				}
			}
		}
	}
	for _, l := range h.licenses {
		if l.Count > r.lics.total[l.Name] {
			return false
		}
	}
	return r.lics.have(h.licenses, from, max(h.end, from+1), a) || h.due
}

// holds tells whether a room has what an allocation takes.
func holds(n *place.Node, room *place.Room, a *job.NodeAlloc, by place.Tenant) bool {
	uid := int64(by.UID) + 1
	switch {
	case room.Shut, room.CPUs < a.CPUs, room.Mem < a.Mem, by.Exclusive && room.Runs > 0,
		room.Owner > 0 && room.Owner != uid, by.User && room.User != 0 && room.User != uid:
		return false
	}
	for g := range a.Gres {
		if i := place.GresAt(n, &a.Gres[g]); i < 0 || room.Gres[i] < a.Gres[g].Count {
			return false
		}
	}
	return true
}

// wait gives the best job of l its verdict and, if it is among the first that wait for resources in its partition, a
// start that is kept free for it. Whatever ranks behind it may use those nodes only if that does not delay it.
func (r *round) wait(q *lanes, l *lane) {
	v, ok := r.impossible(l)
	if !ok {
		v, ok = r.outlasts(l)
	}
	if ok {
		r.note(l, v)
		q.close(l)
		return
	}
	if len(r.held[l.head.JobID]) > 0 { // by its lane in another partition
		r.keepsWaiting(l)
		r.goOn(q, l)
		return
	}
	if r.makeRoom(l, afterward) {
		r.goOn(q, l)
		return
	}
	if !r.mayReserve(l) {
		if part := &r.parts[l.part]; part.blocked == 0 {
			part.blocked = l.head.JobID
		}
		r.note(l, verdict{rank: rankPriority, reason: job.ReasonPriority, detail: r.behindWhom(l)})
		q.close(l)
		return
	}
	part := &r.parts[l.part]
	v = r.lacks(l)
	if h := r.book(l, afterward); h != nil {
		if full, ok := r.mayKeep(l, h); !ok { // a limit will be full then: it blocks nobody
			r.note(l, full)
			if l.c.Mixed {
				r.skip(q, l)
			} else {
				q.close(l)
			}
			return
		}
		if !h.wide {
			part.promises++
		}
		r.keep(h)
		r.promise(l, h)
		r.told(&v, h)
	}
	if part.blocked == 0 {
		part.blocked = l.head.JobID
	}
	r.note(l, v)
	r.goOn(q, l)
}

// mayKeep tells whether limits have room for a start beside all others that are kept until it ends.
func (r *round) mayKeep(l *lane, h *hold) (verdict, bool) {
	if h.claim == nil {
		return verdict{}, true
	}
	return r.underLimits(l, h.claim, h.end)
}

// goOn looks at the next job of a lane whose best job waits with a start kept for it, as long as there are starts to be
// promised; else the lane is closed: what does not fit for the first fits no better for those behind it.
func (r *round) goOn(q *lanes, l *lane) {
	switch {
	case l.c.Mixed && r.pol.Promises == 0, l.head.Tasks != nil && l.head.Tasks.Len() > 1, !r.mayReserve(l):
		q.close(l)
	default:
		q.advance(l)
	}
}

// told puts what is known of a start into a verdict.
func (r *round) told(v *verdict, h *hold) {
	if h.at < never {
		v.start, v.promised = h.at, h.promised
		return
	}
	v.detail += "; the jobs it waits for have no time limit"
}

// book finds the earliest start of the lane's best job before a time, in the way in which it is the soonest.
func (r *round) book(l *lane, until int64) *hold {
	limit, _ := r.limit(l)
	var best *hold
	for _, a := range l.open {
		l.access = a
		at, picks, ok := r.earliest(l, r.soonest(l), limit, until)
		if !ok || r.pol.Window > 0 && at < never && at > r.now+r.pol.Window {
			continue
		}
		until = at
		best = r.reserve(l, at, limit, picks)
	}
	l.access = l.open[0]
	if best != nil {
		best.promised = (r.pol.Promises > 0 || l.extra.Deadline > 0) && best.at < never
	}
	return best
}

// soonest is the first moment for which a start is looked for.
func (r *round) soonest(l *lane) int64 { return max(r.now, l.head.Begin) }

// promise tells the state of a start that is promised, or kept as the policy's head.
func (r *round) promise(l *lane, h *hold) {
	if !h.promised && !(r.pol.StickyHead && h.at < never) {
		return
	}
	r.tell(l, h)
}

// tell puts the start that is kept for the lane's best job into the plan.
func (r *round) tell(l *lane, h *hold) {
	limit, _ := r.limit(l)
	r.wakeAt(h.at)
	delete(r.broken, l.head.JobID)
	r.out.Promises = append(r.out.Promises, PromiseChange{JobID: l.head.JobID, Revision: l.head.Revision,
		Promise: &Promise{Start: h.at, Partition: r.s.Partitions[h.part].Name, Nodes: h.allocs, Limit: limit}})
}

// leaders looks at the jobs that hold a promise before all others. In each partition the best-ranked of them that cannot
// start is moved to an earlier time where things have ended early; it is never moved to a later one. The others keep
// theirs where it is, and are only asked, in the order of backfill, whether they can start now.
func (r *round) leaders() {
	var list []*lane
	for i := range r.s.Promised {
		w := &r.s.Promised[i]
		if len(r.held[w.JobID]) == 0 || w.HetSize > 1 || w.Tasks != nil && w.Limit == 0 {
			continue
		}
		list = append(list, r.lanesOf(w)...)
	}
	slices.SortStableFunc(list, r.order)
	led := make([]bool, len(r.parts))
	var rest []*lane
	for _, l := range list {
		r.resume(l)
		switch {
		case l.begun() || r.parts[l.part].stopped:
		case led[l.part]:
			rest = append(rest, l)
		case !r.beginPromised(l):
			led[l.part] = r.lead(l)
		}
	}
	slices.SortStableFunc(rest, r.behindOrder)
	for _, l := range rest {
		if !l.begun() && !r.beginPromised(l) {
			r.keepsWaiting(l)
		}
	}
}

// lanesOf makes a lane for a job that holds a promise in each partition that it may run in.
func (r *round) lanesOf(w *Promised) (list []*lane) {
	c := r.classOf(w.Class)
	if c == nil {
		return nil
	}
	at := slices.Index(r.s.Classes, c)
	if r.taken[c.Key] == nil {
		r.taken[c.Key] = map[uint32]int{}
	}
	for _, part := range r.partitionsOf(c.Spec) {
		l := &lane{class: at, c: c, part: part, extra: c.Extra, taken: r.taken[c.Key], late: true, looked: true, read: 1}
		if _, ok := r.shut(part, c.Spec); ok && r.ready(l) {
			r.head(l, w.Waiting)
			list = append(list, l)
		}
	}
	if len(list) > 0 {
		r.dealt[w.JobID] = true
	}
	return list
}

// beginPromised starts a job that holds a promise, if it fits around all other promises. Of an array it is one task; the
// others are looked at in the queue.
func (r *round) beginPromised(l *lane) bool {
	limit, ok := r.limit(l)
	if !ok || len(r.out.Starts) >= r.maxStarts {
		return false
	}
	if got := r.prepare(l, limit); got != started {
		if got == limited {
			r.abandon(l.head.JobID)
		}
		return false
	}
	task := int64(-1)
	if l.head.Tasks != nil {
		task = int64(l.head.Tasks.Min())
	}
	if r.startOne(l, task, limit) != started {
		return false
	}
	if task >= 0 {
		delete(r.dealt, l.head.JobID)
	}
	return true
}

// yielding are the holds for other jobs that were promised a later start than the first of own, which is due, on its nodes
// or of its licenses: it goes before them. Else the starts of jobs that are late would keep each other waiting.
func (r *round) yielding(own []*hold) (list []*hold) {
	if len(own) == 0 || !own[0].due {
		return nil
	}
	after := func(h *hold) bool {
		return h.since > own[0].since || h.since == own[0].since && h.job > own[0].job
	}
	mine := func(h *hold) bool {
		return slices.ContainsFunc(own, func(o *hold) bool { return o == h || o.job == h.job })
	}
	add := func(h *hold) {
		if after(h) && !mine(h) && !slices.Contains(list, h) {
			list = append(list, h)
		}
	}
	for _, o := range own {
		for _, n := range o.nodes {
			for _, h := range r.holds[n] {
				add(h)
			}
		}
	}
	for i := range r.s.Promised {
		for _, h := range r.held[r.s.Promised[i].JobID] {
			if slices.ContainsFunc(own, func(o *hold) bool { return shareLicense(o.licenses, h.licenses) }) {
				add(h)
			}
		}
	}
	return list
}

// placePromised starts a job of the lane with what was kept for it, neither more nor elsewhere: those that yield to it have
// counted on that.
func (r *round) placePromised(l *lane, own []*hold, task, limit int64) outcome {
	i := slices.IndexFunc(own, func(h *hold) bool { return h.job == l.head.JobID && h.part == l.part })
	if i < 0 || l.head.Begin > r.now {
		return lacksResources
	}
	to := endAfter(r.now, limit)
	for _, a := range l.open {
		l.access = a
		var picks []place.Pick
		for k, n := range own[i].nodes {
			tasks := own[i].allocs[k].Tasks
			if tasks == 0 || l.fit.places[n] < 0 || r.avail(l, n, to) < tasks {
				break
			}
			picks = append(picks, place.Pick{Node: n, Tasks: tasks})
		}
		if len(picks) == len(own[i].nodes) && r.lics.have(l.extra.Licenses, r.now, to, a) {
			return r.take(l, picks, task, limit)
		}
	}
	l.access = l.open[0]
	return lacksResources
}

func shareLicense(a, b []job.License) bool {
	return slices.ContainsFunc(a, func(x job.License) bool {
		return slices.ContainsFunc(b, func(y job.License) bool { return x.Name == y.Name })
	})
}

// abandon gives up the start of a job whose time has come and that a limit does not let start: nodes do not stay idle for
// it, however long the limit is in the way.
func (r *round) abandon(id uint32) {
	for _, h := range slices.Clone(r.held[id]) {
		if !h.due {
			continue
		}
		r.release(h)
		if !h.wide {
			r.parts[h.part].promises--
		}
		for i := range r.s.Promised {
			if w := &r.s.Promised[i]; w.JobID == id {
				r.broken[id] = w
			}
		}
	}
}

// lead deals with the best-ranked job of a partition that holds a promise and cannot start. It is false when the promise
// is of another partition.
func (r *round) lead(l *lane) bool {
	mine := r.held[l.head.JobID]
	if len(mine) == 0 || mine[0].part != l.part || l.fit == nil || l.fit.wrong != "" {
		return false
	}
	h := mine[0]
	if limit, ok := r.limit(l); !ok || r.refusedByLimit(l, limit) { // it keeps its promise and blocks nobody else
		return false
	}
	part := &r.parts[l.part]
	if part.blocked == 0 {
		part.blocked = l.head.JobID
	}
	if r.awaited[l.head.JobID] {
		v := verdict{rank: rankResources, reason: job.ReasonResources, detail: "waits for the jobs that make room for it to be gone"}
		r.told(&v, h)
		r.note(l, v)
		r.watch(l)
		return true
	}
	r.release(h)
	if !h.due { // its own room comes, late as it may be
		if !h.wide {
			part.promises--
		}
		if r.makeRoom(l, h.at) {
			r.watch(l)
			return true
		}
		if !h.wide {
			part.promises++
		}
	}
	if !r.pol.StickyHead && !h.due {
		if sooner := r.book(l, h.at); sooner != nil && sooner.at < h.at {
			if _, ok := r.mayKeep(l, sooner); ok {
				h = sooner
				r.promise(l, h)
			}
		}
	}
	r.keep(h)
	v := r.lacks(l)
	r.told(&v, h)
	r.note(l, v)
	r.watch(l)
	return true
}

// keepsWaiting is the verdict on a job that holds a promise and does not start.
func (r *round) keepsWaiting(l *lane) {
	mine := r.held[l.head.JobID]
	if len(mine) == 0 || l.fit == nil || l.fit.wrong != "" {
		return
	}
	v := verdict{rank: rankResources, reason: job.ReasonResources, detail: "needs " + l.fit.shape.Needs()}
	r.told(&v, mine[0])
	r.note(l, v)
	r.watch(l)
}

// takeBroken takes promises back that do not stand and were not given anew.
func (r *round) takeBroken() {
	if len(r.broken) == 0 {
		return
	}
	begun := map[uint32]bool{}
	for i := range r.out.Starts {
		begun[r.out.Starts[i].JobID] = true
	}
	for i := range r.s.Promised {
		w := &r.s.Promised[i]
		if r.broken[w.JobID] != nil && !begun[w.JobID] {
			r.out.Promises = append(r.out.Promises, PromiseChange{JobID: w.JobID, Revision: w.Revision})
		}
	}
}
