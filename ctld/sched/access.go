package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// maxOccurrences bounds how many occurrences of one reservation are looked at: a year of a daily one.
const maxOccurrences = 366

// window is one occurrence of a reservation.
type window struct{ start, end int64 }

// reserved is a reservation as a round sees it.
type reserved struct {
	res     *partitions.Reservation
	index   int
	windows []window
	nodes   []int // ascending
}

// block keeps a node from jobs that its reservation does not admit.
type block struct {
	start, end int64
	index      int
}

// access is what reservations mean for a job: the one that it runs in, and those that do not keep it out.
type access struct {
	mine *reserved // nil: it runs outside of reservations
	flex bool      // mine is FLEX: its nodes and times do not bind
	in   []bool    // by reservation; nil = none admits it
}

// outside is the access of jobs that no reservation admits.
var outside = &access{}

// reservations works out the windows and what they block.
func (r *round) reservations() {
	for i, res := range r.s.Reservations {
		x := &reserved{res: res, index: i}
		for at := r.now; len(x.windows) < maxOccurrences; {
			start, end, ok := res.At(at)
			if !ok || end <= at && len(x.windows) > 0 || end <= start {
				break
			}
			x.windows = append(x.windows, window{start, end})
			at = end
		}
		for _, name := range res.Nodes {
			if n, ok := r.p.names[name]; ok {
				x.nodes = append(x.nodes, n)
			}
		}
		slices.Sort(x.nodes)
		r.resv = append(r.resv, x)
		if len(x.windows) == 0 {
			continue
		}
		r.wakeAt(x.windows[0].start)
		r.wakeAt(x.windows[0].end)
		if res.Has("LICENSE_ONLY") {
			continue
		}
		for _, n := range x.nodes {
			if len(r.holds[n])+len(r.blocks[n]) == 0 {
				r.marked = append(r.marked, n)
			}
			for _, w := range x.windows {
				r.blocks[n] = append(r.blocks[n], block{w.start, w.end, i})
			}
		}
	}
}

// accesses gives the ways in which a class may run, in the order in which they are tried: in each of the reservations
// that it names, or else outside of them and in those that draw jobs. The text says why there is none.
func (r *round) accesses(c *Class, x *job.Extra, qos string) ([]*access, string) {
	if len(r.resv) == 0 && (x == nil || len(x.Reservations) == 0) {
		return []*access{outside}, ""
	}
	admits := func(v *reserved) bool {
		return v.res.Admits(c.UID, c.User, groupsOf(c), c.Account, qos)
	}
	named := func(v *reserved) bool { // groups were looked at when the job was submitted: only the first one's name is known here
		any := *v.res
		any.Groups = nil
		return any.Admits(c.UID, c.User, nil, c.Account, qos)
	}
	if x == nil || len(x.Reservations) == 0 {
		a := &access{}
		for _, v := range r.resv {
			if v.res.Has("MAGNETIC") && admits(v) {
				if a.in == nil {
					a.in = make([]bool, len(r.resv))
				}
				a.in[v.index] = true
			}
		}
		return []*access{a}, ""
	}
	var list []*access
	why := ""
	for _, name := range x.Reservations {
		i := slices.IndexFunc(r.resv, func(v *reserved) bool { return v.res.Name == name })
		switch {
		case i < 0:
			why = "reservation " + quoted(name) + " does not exist"
		case !named(r.resv[i]):
			why = "reservation " + name + " does not admit the job"
		case len(r.resv[i].windows) == 0:
			why = "reservation " + name + " is over"
		default:
			a := &access{mine: r.resv[i], flex: r.resv[i].res.Has("FLEX"), in: make([]bool, len(r.resv))}
			a.in[i] = true
			list = append(list, a)
		}
	}
	return list, why
}

// groupsOf is the names of a class's group, as far as they are known.
func groupsOf(c *Class) []string {
	if c.Spec == nil || c.Spec.Group == "" {
		return nil
	}
	return []string{c.Spec.Group}
}

// open tells whether reservations let a job of this access have node n from from to to.
func (r *round) open(a *access, n int, from, to int64) bool {
	for _, b := range r.blocks[n] {
		if b.start < to && from < b.end && (a.in == nil || !a.in[b.index]) {
			return false
		}
	}
	if a.mine == nil {
		return true
	}
	if a.flex { // not after it, though: then it is gone
		return from < a.mine.windows[len(a.mine.windows)-1].end
	}
	if !a.mine.res.Has("LICENSE_ONLY") {
		if _, ok := slices.BinarySearch(a.mine.nodes, n); !ok {
			return false
		}
	}
	for _, w := range a.mine.windows {
		if w.start <= from && to <= w.end {
			return true
		}
	}
	return false
}

// outlasts tells that the lane's best job has a limit that is longer than what is left of each reservation that it names.
func (r *round) outlasts(l *lane) (verdict, bool) {
	limit, _ := r.limit(l)
	if least := r.timeMin(l); least > 0 {
		limit = least
	}
	detail := ""
	for _, a := range l.open {
		if a.mine == nil || a.flex {
			return verdict{}, false
		}
		most := int64(0)
		for _, w := range a.mine.windows {
			most = max(most, w.end-max(w.start, r.now))
		}
		if limit != job.Unlimited && limit <= most {
			return verdict{}, false
		}
		detail = "; reservation " + a.mine.res.Name + " has " + minutes(most) + " left"
	}
	asked := "asks for " + minutes(limit)
	if limit == job.Unlimited {
		asked = "has no time limit"
	}
	return verdict{rank: rankResources, reason: job.ReasonReservation, detail: asked + detail}, true
}

// opens is the next time after a moment at which reservations might let a job have node n.
func (r *round) opens(a *access, n int, after, limit int64) (int64, bool) {
	next := int64(afterward)
	soon := func(at int64) {
		if at > after {
			next = min(next, at)
		}
	}
	for _, b := range r.blocks[n] {
		if a.in == nil || !a.in[b.index] {
			soon(b.end)
		}
	}
	if a.mine != nil {
		for _, w := range a.mine.windows {
			soon(w.start)
		}
	}
	return next, next < never
}

// blocker names the reservation that keeps node n from a job now, or while it runs; "" when none does.
func (r *round) blocker(a *access, n int, to int64) string {
	for _, b := range r.blocks[n] {
		if b.start < to && r.now < b.end && (a.in == nil || !a.in[b.index]) {
			return r.s.Reservations[b.index].Name
		}
	}
	return ""
}
