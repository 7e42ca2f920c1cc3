package preempt

import (
	"cmp"
	"slices"
)

// order is in which order units are put back: the first are kept running by preference.
func (f *find) order(a, b int) int {
	x, y := &f.units[a], &f.units[b]
	if f.in.YoungestFirst {
		return cmp.Or(cmp.Compare(x.start, y.start), cmp.Compare(y.priority, x.priority), cmp.Compare(y.cost, x.cost), cmp.Compare(a, b))
	}
	return cmp.Or(cmp.Compare(y.priority, x.priority), cmp.Compare(y.cost, x.cost), cmp.Compare(x.start, y.start), cmp.Compare(a, b))
}

// one looks for a single unit that is enough, for a job of one node: the one with the fewest runs, then
// the least cost; -1 when there is none. Nothing is out before and after.
func (f *find) one() int {
	best := -1
	if !f.in.Shape.Single() || f.in.YoungestFirst {
		return best
	}
	for u := range f.units {
		if best >= 0 && !f.cheaper(u, best) {
			continue
		}
		f.set(u, true)
		if f.alone(u) {
			best = u
		}
		f.set(u, false)
	}
	return best
}

// alone tells whether the job fits on one of the unit's nodes.
func (f *find) alone(u int) bool {
	all := f.c.List
	f.c.List = nil
	for _, n := range f.units[u].nodes {
		if f.list[n] && f.c.Fit(n) > 0 {
			f.c.List = append(f.c.List, n)
		}
	}
	ok := len(f.c.List) > 0 && f.fits()
	f.c.List = all
	return ok
}

// cheaper tells whether a unit is rather taken than another.
func (f *find) cheaper(a, b int) bool {
	x, y := &f.units[a], &f.units[b]
	return cmp.Or(cmp.Compare(len(x.victims), len(y.victims)), cmp.Compare(x.cost, y.cost), -f.order(a, b)) < 0
}

// several takes all units, places the job where the fewest have to go, and puts back what it fits
// without. It gives the units that stay out; nil when the job does not fit.
func (f *find) several() []int {
	for u := range f.units {
		f.set(u, true)
	}
	f.c.List = f.byNeed()
	picks := f.in.Shape.Choose(&f.c)
	if picks == nil {
		return nil
	}
	touched := make([]bool, len(f.units))
	for _, p := range picks {
		for _, u := range f.at[p.Node] {
			touched[u] = true
		}
	}
	var left []int
	for u := range f.units {
		if touched[u] {
			left = append(left, u)
		} else {
			f.set(u, false) // the job does not need its nodes
		}
	}
	// From here on room only gets less: nodes without any are out of the question.
	f.c.List = slices.DeleteFunc(f.c.List, func(n int) bool { return f.c.Fit(n) == 0 })
	slices.SortFunc(left, f.order)
	first := f.refill(left)
	if f.in.YoungestFirst {
		return first
	}
	for _, u := range left {
		f.set(u, true)
	}
	slices.SortStableFunc(left, func(a, b int) int { return cmp.Compare(f.size(a), f.size(b)) })
	if second := f.refill(left); f.less(second, first) {
		return second
	}
	return first
}

// refill puts back each unit without which the job still fits, in the order given, and gives those that
// stay out. More room never makes the job unplaceable, so that after one pass none of them can be put back.
func (f *find) refill(units []int) []int {
	var out []int
	for _, u := range units {
		f.set(u, false)
		if !f.fits() {
			f.set(u, true)
			out = append(out, u)
		}
	}
	return out
}

// less tells whether the units a are fewer runs than b, or as many that cost less.
func (f *find) less(a, b []int) bool {
	sum := func(units []int) (runs int, cost int64) {
		for _, u := range units {
			runs, cost = runs+len(f.units[u].victims), add(cost, f.units[u].cost)
		}
		return runs, cost
	}
	ra, ca := sum(a)
	rb, cb := sum(b)
	return cmp.Or(cmp.Compare(ra, rb), cmp.Compare(ca, cb)) < 0
}

// size is how much a unit frees, in CPUs.
func (f *find) size(u int) uint64 {
	var sum uint64
	for _, i := range f.units[u].victims {
		for a := range f.in.Victims[i].Allocs {
			sum += uint64(f.in.Victims[i].Allocs[a].CPUs)
		}
	}
	return sum
}

// need is what would have to go on one node.
type need struct {
	runs  int
	cost  int64
	start int64 // the oldest run that goes, for YoungestFirst
}

// byNeed lists the candidates by what has to go there for as many tasks as fit when all is out: none
// first, then the fewest runs, then the least cost (with YoungestFirst: the youngest), then as listed.
func (f *find) byNeed() []int {
	list := slices.Clone(f.in.Candidates.List)
	needs := make([]need, len(f.rooms))
	for _, n := range list {
		needs[n] = f.needAt(n)
	}
	slices.SortStableFunc(list, func(a, b int) int {
		x, y := needs[a], needs[b]
		if f.in.YoungestFirst {
			return cmp.Compare(y.start, x.start)
		}
		return cmp.Or(cmp.Compare(x.runs, y.runs), cmp.Compare(x.cost, y.cost))
	})
	return list
}

// needAt refills one node, with everything out before and after.
func (f *find) needAt(n int) need {
	const never = 1<<63 - 1
	w := need{start: never}
	full := f.c.Fit(n)
	if full == 0 {
		return w
	}
	order := slices.Clone(f.at[n])
	slices.SortFunc(order, f.order)
	for _, u := range order {
		f.units[u].out = false
		f.remake(n)
		if f.c.Fit(n) < full {
			f.units[u].out = true
			w.runs, w.cost = w.runs+len(f.units[u].victims), add(w.cost, f.units[u].cost)
			w.start = min(w.start, f.units[u].start)
		}
	}
	for _, u := range order {
		f.units[u].out = true
	}
	f.remake(n)
	return w
}
