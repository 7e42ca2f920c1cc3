package whatif

import (
	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// use is what associations and QOS hold as the forecast goes on: the snapshot's, with starts added and ends taken away.
// Decayed usage stays as it was.
type use struct {
	base   partitions.Lookup
	now    map[partitions.Entity]partitions.Use
	claims map[*sched.Running]*partitions.Claim
}

func newUse(s *sched.Snapshot) *use {
	return &use{base: s.Use, now: map[partitions.Entity]partitions.Use{}, claims: map[*sched.Running]*partitions.Claim{}}
}

// Use implements partitions.Lookup.
func (u *use) Use(e partitions.Entity) partitions.Use {
	if x, ok := u.now[e]; ok {
		return x
	}
	return u.base.Use(e)
}

// Usage implements partitions.Lookup.
func (u *use) Usage(e partitions.Entity) accounting.Usage { return u.base.Usage(e) }

// chain is who is counted for a run; nil where nothing is enforced or the run is of nobody known.
func chain(s *sched.Snapshot, r *sched.Running) *partitions.Chain {
	if s.Rules == nil || s.Use == nil {
		return nil
	}
	j := partitions.Job{UID: r.UID, User: r.User, Account: r.Account, Partition: r.Partition, QOS: r.QOS}
	for _, p := range s.Partitions {
		if p.Name == r.Partition {
			j.PartQOS = p.QOS
		}
	}
	c, refusal := s.Rules.Chain(j)
	if refusal != nil {
		return nil
	}
	return c
}

// claim is what a run holds, with what it is billed for.
func claim(s *sched.Snapshot, r *sched.Running) *partitions.Claim {
	t := accounting.AllocTRES(r.Allocs, r.Licenses)
	for _, p := range s.Partitions {
		if p.Name == r.Partition && s.Rules != nil {
			t = t.With("billing", p.Billing.Billing(t, false, false))
		}
	}
	c := &partitions.Claim{TRES: t, PerNode: accounting.PerNode(r.Allocs), Start: r.Start, Limit: job.Unlimited}
	if r.End > 0 {
		c.Limit = r.End - r.Start
	}
	for i := range r.Allocs {
		c.Nodes = append(c.Nodes, r.Allocs[i].Node)
	}
	return c
}

func (u *use) start(s *sched.Snapshot, r *sched.Running) {
	c := chain(s, r)
	if c == nil {
		return
	}
	x := claim(s, r)
	u.claims[r] = x
	for _, e := range c.Entities() {
		u.now[e] = u.Use(e).Plus(x)
	}
}

func (u *use) end(s *sched.Snapshot, r *sched.Running) {
	c := chain(s, r)
	if c == nil {
		return
	}
	x := u.claims[r]
	if x == nil {
		x = claim(s, r)
	}
	delete(u.claims, r)
	for _, e := range c.Entities() {
		u.now[e] = u.Use(e).Minus(x)
	}
}
