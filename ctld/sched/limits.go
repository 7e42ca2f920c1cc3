package sched

import (
	"slices"
	"sort"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// overlay is what is used at the snapshot's moment and by this round's starts.
type overlay struct {
	base partitions.Lookup
	more map[partitions.Entity]partitions.Use
}

func newOverlay(base partitions.Lookup) *overlay {
	return &overlay{base: base, more: map[partitions.Entity]partitions.Use{}}
}

// Use gives what an entity's jobs hold, this round's starts included.
func (o *overlay) Use(e partitions.Entity) partitions.Use {
	if len(o.more) > 0 {
		if u, ok := o.more[e]; ok {
			return u
		}
	}
	if o.base == nil {
		return partitions.Use{}
	}
	return o.base.Use(e)
}

// Usage gives what an entity has used, decayed.
func (o *overlay) Usage(e partitions.Entity) accounting.Usage {
	if o.base == nil {
		return accounting.Usage{}
	}
	return o.base.Usage(e)
}

// plus counts a start.
func (o *overlay) plus(c *partitions.Chain, claim *partitions.Claim) {
	for _, e := range c.Entities() {
		o.more[e] = o.Use(e).Plus(claim)
	}
}

// minus takes a start back.
func (o *overlay) minus(c *partitions.Chain, claim *partitions.Claim) {
	for _, e := range c.Entities() {
		o.more[e] = o.Use(e).Minus(claim)
	}
}

// allowed tells whether limits let the lane's best job start now, if it got the least that it asks for.
func (r *round) allowed(l *lane, limit int64) (verdict, bool) {
	if r.s.Rules == nil {
		return verdict{}, true
	}
	if l.chain == nil {
		chain, refusal := r.chainOf(l)
		if refusal != nil {
			reason := job.ReasonInvalidAccount
			if strings.Contains(refusal.Code, "QOS") {
				reason = job.ReasonInvalidQOS
			}
			return verdict{rank: rankShut, reason: reason, detail: refusal.Why}, false
		}
		l.chain = chain
	}
	if l.ask == nil || l.ask.Limit != limit {
		part := r.s.Partitions[l.part]
		q := l.request
		if q == nil {
			q = requestOf(l.c.Spec)
			l.request = q
		}
		tres := accounting.RequestTRES(l.c.Spec, q, l.extra.Licenses, part.DefMemPerNode, part.DefMemPerCPU)
		l.ask = &partitions.Claim{TRES: r.billed(l, tres), Start: r.now, Limit: limit,
			PerNode: accounting.RequestPerNode(l.c.Spec, q, part.DefMemPerNode, part.DefMemPerCPU)}
	}
	if w := l.chain.MayStart(r.limits, l.ask, r.now); w != nil {
		return verdict{rank: rankLimit, reason: w.Reason, detail: w.Text, stops: stops(w)}, false
	}
	return verdict{}, true
}

// stops tells whether a wait is one that SchedulerParameters=assoc_limit_stop lets block the jobs behind.
func stops(w *partitions.Wait) bool { return strings.HasPrefix(string(w.Reason), "Assoc") }

// licenses is how many of each license are taken, from when to when.
type licenses struct {
	total map[string]uint64
	spans []span
}

// span is so many of a license that are taken from a time to another. Those of a reservation are only kept from jobs
// that it does not admit.
type span struct {
	name     string
	count    uint64
	from, to int64
	res      int // place of the reservation; -1 = none
}

// allLicenses works out what runs and reservations hold.
func (r *round) allLicenses() *licenses {
	x := &licenses{total: map[string]uint64{}}
	for _, l := range r.s.Licenses {
		x.total[l.Name] = l.Total
	}
	if len(x.total) == 0 {
		return x
	}
	for _, run := range r.s.Running {
		for _, l := range run.Licenses {
			res := -1
			if run.Reservation != "" {
				res = slices.IndexFunc(r.resv, func(v *reserved) bool { return v.res.Name == run.Reservation })
			}
			x.spans = append(x.spans, span{l.Name, l.Count, r.now, r.endOf(endOf(run)), -1})
			if res >= 0 { // it uses what its reservation keeps
				x.spans = append(x.spans, span{l.Name, l.Count, r.now, r.endOf(endOf(run)), -2 - res})
			}
		}
	}
	for i, v := range r.resv {
		for _, w := range v.windows {
			for _, l := range v.res.Licenses {
				x.spans = append(x.spans, span{l.Name, l.Count, w.start, w.end, i})
			}
		}
	}
	return x
}

func (r *round) useLicenses(list []job.License, from, to int64) {
	for _, l := range list {
		r.lics.spans = append(r.lics.spans, span{l.Name, l.Count, from, to, -1})
	}
}

func (r *round) keepLicenses(list []job.License, from, to int64) { r.useLicenses(list, from, to) }

func (r *round) freeLicenses(list []job.License, from, to int64) {
	for _, l := range list {
		want := span{l.Name, l.Count, from, to, -1}
		if i := slices.Index(r.lics.spans, want); i >= 0 {
			r.lics.spans = slices.Delete(r.lics.spans, i, i+1)
		}
	}
}

// taken is the most of a license that is taken at any moment from from to to, as a job of the access sees it.
func (x *licenses) taken(name string, from, to int64, a *access) uint64 {
	type change struct {
		at int64
		by int64
	}
	var list []change
	for _, s := range x.spans {
		if s.name != name || s.to <= from || s.from >= to {
			continue
		}
		by := int64(s.count)
		switch {
		case s.res >= 0 && a != nil && a.in != nil && a.in[s.res]:
			continue
		case s.res < -1: // what a job takes of a reservation is not taken twice
			if at := -2 - s.res; a != nil && a.in != nil && a.in[at] {
				continue
			}
			by = -by
		}
		list = append(list, change{max(s.from, from), by}, change{s.to, -by})
	}
	sort.SliceStable(list, func(i, j int) bool {
		if list[i].at != list[j].at {
			return list[i].at < list[j].at
		}
		return list[i].by < list[j].by
	})
	most, now := int64(0), int64(0)
	for _, c := range list {
		now += c.by
		most = max(most, now)
	}
	return uint64(most)
}

// have tells whether the licenses are free all the time from from to to.
func (x *licenses) have(list []job.License, from, to int64, a *access) bool {
	for _, l := range list {
		if x.taken(l.Name, from, to, a)+l.Count > x.total[l.Name] {
			return false
		}
	}
	return true
}

// licensed is the first time from at on at which the lane's licenses are free for the limit; false when they never are.
func (r *round) licensed(l *lane, at, limit int64) (int64, bool) {
	list := l.extra.Licenses
	if len(list) == 0 || r.lics.have(list, at, endAfter(at, limit), l.access) {
		return at, true
	}
	var times []int64
	for _, s := range r.lics.spans {
		if s.to > at && s.to < never {
			times = append(times, s.to)
		}
	}
	slices.Sort(times)
	for _, t := range slices.Compact(times) {
		if r.lics.have(list, t, endAfter(t, limit), l.access) {
			return t, true
		}
	}
	return 0, false
}

// missingLicense names a license that the lane's best job waits for; "" when none.
func (r *round) missingLicense(l *lane, limit int64) string {
	for _, x := range l.extra.Licenses {
		if !r.lics.have([]job.License{x}, r.now, endAfter(r.now, limit), l.access) {
			return x.Name
		}
	}
	return ""
}
