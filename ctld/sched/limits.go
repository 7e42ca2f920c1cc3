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
	base  partitions.Lookup
	rules *partitions.Rules
	more  map[partitions.Entity]partitions.Use
}

func newOverlay(base partitions.Lookup, rules *partitions.Rules) *overlay {
	return &overlay{base: base, rules: rules, more: map[partitions.Entity]partitions.Use{}}
}

// Use gives what an entity's jobs hold, this round's starts included.
func (o *overlay) Use(e partitions.Entity) partitions.Use {
	if len(o.more) > 0 {
		if u, ok := o.more[e]; ok {
			return u
		}
	}
	var u partitions.Use
	if o.base != nil {
		u = o.base.Use(e)
	}
	if u.Nodes == nil && o.rules.CountsNodes(e) { // nothing of it runs
		u.Nodes = partitions.NewNodeCount()
	}
	return u
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
	if v, ok := r.knownChain(l); !ok {
		return v, false
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
	return r.underLimits(l, l.ask, endAfter(r.now, limit))
}

// underLimits tells whether limits let the lane's best job have what it would claim until a time, beside what is in use and
// what those get until then that a start is kept for: they are not kept waiting by a limit that is full when it comes.
func (r *round) underLimits(l *lane, claim *partitions.Claim, end int64) (verdict, bool) {
	if !l.chain.Limited() {
		return verdict{}, true
	}
	w, kept := l.chain.MayStart(r.limits, claim, r.now), ""
	if w == nil && len(r.pledged) > 0 && !r.due[l.head.JobID] { // what is due was counted beside the others when it was promised
		o := newOverlay(r.limits, r.s.Rules)
		for _, h := range r.pledged {
			if h.job != l.head.JobID && h.at < end && shareLimits(h.chain, l.chain) {
				o.plus(h.chain, h.claim)
			}
		}
		if len(o.more) > 0 {
			w, kept = l.chain.MayStart(o, claim, r.now), ", with jobs that a start is kept for"
		}
	}
	if w == nil {
		return verdict{}, true
	}
	return verdict{rank: rankLimit, reason: w.Reason, detail: w.Text + kept, stops: stops(w)}, false
}

// refusedByLimit tells whether a limit keeps the lane's best job from starting now.
func (r *round) refusedByLimit(l *lane, limit int64) bool {
	_, ok := r.allowed(l, limit)
	return !ok
}

// shareLimits tells whether two jobs are counted for the same thing.
func shareLimits(a, b *partitions.Chain) bool {
	return slices.ContainsFunc(a.Entities(), func(e partitions.Entity) bool { return slices.Contains(b.Entities(), e) })
}

// counted notes on a hold what its job will claim, where that is limited.
func (r *round) counted(l *lane, h *hold, limit int64) *hold {
	if l.chain != nil && l.chain.Limited() {
		h.chain, h.claim = l.chain, r.claim(l, h.allocs, limit)
		h.claim.Start = h.at
	}
	return h
}

// knownChain is the lane's chain, resolved; the verdict says why its jobs are in no account or QOS.
func (r *round) knownChain(l *lane) (verdict, bool) {
	if l.chain != nil || r.s.Rules == nil {
		return verdict{}, true
	}
	chain, refusal := r.chainOf(l)
	if refusal != nil {
		reason := job.ReasonInvalidAccount
		if strings.Contains(refusal.Code, "QOS") {
			reason = job.ReasonInvalidQOS
		}
		return verdict{rank: rankShut, reason: reason, detail: refusal.Why}, false
	}
	l.chain = chain
	if chain.NeedsReservation() && l.open[0].mine == nil {
		return verdict{rank: rankShut, reason: job.ReasonReservation, detail: "QOS " + chain.QOS + " runs only jobs with a reservation"}, false
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
