package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// place finds nodes for one job now, in each way in which reservations let it run, and takes them.
func (r *round) place(l *lane, task, limit int64) outcome {
	if l.fit.hopeless() || l.head.Begin > r.now {
		return lacksResources
	}
	worst := lacksResources
	for _, a := range l.open {
		l.access = a
		picks, got := r.choose(l, limit)
		if picks == nil {
			if shorter := r.shorten(l, limit); shorter > 0 {
				if picks, _ = r.choose(l, shorter); picks != nil {
					limit = shorter
				}
			}
		}
		if picks == nil {
			worst = max(worst, got)
			continue
		}
		before := r.verdict[l.class]
		if got = r.take(l, picks, task, limit); got == limited && r.takeOther(l, task, limit) {
			r.verdict[l.class] = before
			return started
		}
		return got
	}
	l.access = l.open[0]
	if worst == wouldDelay {
		if l.tooLong = limit; limit == job.Unlimited {
			l.tooLong = afterward
		}
	}
	return worst
}

// choose finds nodes for one job of the lane that ends limit from now. Without any the outcome tells whether it would fit
// if nothing were reserved.
func (r *round) choose(l *lane, limit int64) ([]place.Pick, outcome) {
	to := endAfter(r.now, limit)
	c := r.candidates(l, r.p.head(l.fit), r.now)
	c.Fit = func(n int) uint32 { return r.avail(l, n, to) }
	c.Free = func(n int) uint32 { return r.p.rooms[n].CPUs }
	until := to
	if l.slot > 0 {
		until = min(to, l.slot)
	}
	if !r.lics.have(l.extra.Licenses, r.now, until, l.access) {
		return nil, lacksResources
	}
	if picks := l.fit.shape.First(c); picks != nil && !l.strict {
		return picks, started
	}
	list := r.p.list(l.fit)
	if l.strict {
		list = slices.DeleteFunc(list, func(n int) bool { _, ok := slices.BinarySearch(l.kept, n); return !ok })
	}
	c.List = list
	if len(l.fit.shape.Required()) == 0 && len(r.marked) > 0 {
		c.List = slices.DeleteFunc(list, func(n int) bool { return r.special(l, n) && r.avail(l, n, to) == 0 })
	}
	if picks := l.fit.shape.Choose(c); picks != nil {
		return picks, started
	}
	list = r.p.list(l.fit)
	c = r.candidates(l, list, r.now)
	c.Fit = func(n int) uint32 { return min(l.fit.fits[n], r.capped(l, n, r.now+1)) }
	if l.fit.shape.Choose(c) == nil {
		return nil, lacksResources
	}
	return nil, wouldDelay
}

// takeOther gives a job that a limit on distinct nodes keeps from those that come first the ones that the limit's jobs have.
func (r *round) takeOther(l *lane, task, limit int64) bool {
	to := endAfter(r.now, limit)
	if !l.chain.CountsNodes() || l.strict {
		return false
	}
	list := slices.DeleteFunc(slices.Clone(r.p.list(l.fit)), func(n int) bool {
		return r.avail(l, n, to) == 0 || !r.countedOn(l.chain, r.s.Nodes[n].Name)
	})
	c := r.candidates(l, list, r.now)
	c.Fit = func(n int) uint32 { return r.avail(l, n, to) }
	c.Free = func(n int) uint32 { return r.p.rooms[n].CPUs }
	picks := l.fit.shape.Choose(c)
	return picks != nil && r.take(l, picks, task, limit) == started
}

// placeKept starts a job, whose time has come and for which other nodes did not do, on those that were kept for it.
func (r *round) placeKept(l *lane, task, limit int64, otherwise outcome) outcome {
	before := r.verdict[l.class]
	l.strict = true
	got := r.place(l, task, limit)
	l.strict = false
	if got != started {
		return otherwise
	}
	if before.rank == rankLimit {
		r.verdict[l.class] = verdict{}
	}
	return started
}

// countedOn tells whether all that a job is counted for, and of which distinct nodes are counted, has a job on the node.
func (r *round) countedOn(c *partitions.Chain, node string) bool {
	return !slices.ContainsFunc(c.Entities(), func(e partitions.Entity) bool {
		return r.s.Rules.CountsNodes(e) && !r.limits.Use(e).Nodes.Has(node)
	})
}

// candidates is what the placing package chooses from.
func (r *round) candidates(l *lane, list []int, at int64) *place.Candidates {
	c := &r.p.scratch.cand
	c.List, c.Nodes, c.Topology, c.Free, c.BestFit = list, r.s.Nodes, r.s.Topology, nil, false
	c.AnySwitches = r.anySwitches(l, at)
	return c
}

// anySwitches tells whether the lane's best job has waited at a time as long as it wants to for few switches.
func (r *round) anySwitches(l *lane, at int64) bool {
	x := l.extra
	if x.Switches == 0 || x.SwitchWait <= 0 {
		return false
	}
	over := max(l.head.Submit, l.head.Accrue, l.head.Begin) + x.SwitchWait
	r.wakeAt(over)
	return at >= over
}

// shorten is the longest limit, not under the job's least time, with which it fits before what is reserved; 0 when there
// is none, or the job does not take less than it asks for.
func (r *round) shorten(l *lane, limit int64) int64 {
	if least := r.timeMin(l); least > 0 {
		return r.squeeze(l, limit, least)
	}
	return 0
}

// logDelay is how long before a reservation begins, or its own ends, a run ends that was made shorter for it, in ms: a run
// begins when the plan is in the log, and one that would be a little too long by then is not taken, plan after plan.
const logDelay = 1000

// squeeze is the longest limit of at least so much with which the lane's best job fits before what is reserved.
func (r *round) squeeze(l *lane, limit, least int64) int64 {
	best, tries := int64(0), 0
	var ends []int64
	for _, n := range r.p.list(l.fit) {
		for _, h := range r.holds[n] {
			ends = append(ends, h.at-r.now)
		}
		for _, b := range r.blocks[n] {
			ends = append(ends, b.start-r.now-logDelay)
		}
	}
	if m := l.access.mine; m != nil {
		for _, w := range m.windows {
			ends = append(ends, w.end-r.now-logDelay)
		}
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	for _, e := range slices.Backward(ends) {
		if e < least || e >= never-r.now || limit != job.Unlimited && e >= limit {
			continue
		}
		if tries++; tries > 16 {
			break
		}
		if r.pol.StrictEnd {
			e--
		}
		if picks, _ := r.choose(l, e); picks != nil {
			best = e
			break
		}
	}
	return best
}
