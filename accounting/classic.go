package accounting

import "math"

// ClassicShare is the formula of before the fair tree (PriorityFlags=NO_FAIR_TREE): an association's share is the product
// of shares by siblings' shares from the top; its effective usage is its part of all usage, moved towards that of its account by
// its part of the siblings' shares; its factor is 2^-(usage/share/dampening). A dampening of 0 counts as 1.
func (d *DB) ClassicShare(usage func(id uint32) int64, dampening uint32) map[uint32]Share {
	t := newShareTree(d, usage)
	if root := d.AccountAssociation(Root); root != nil {
		t.classic(root, 1, max(dampening, 1), true)
	}
	return t.shares
}

// classic fills in what is below account a, whose share of the cluster is share.
func (t *shareTree) classic(a *Association, share float64, dampening uint32, top bool) {
	children := t.db.children(a.ID)
	sum := sumOfShares(children)
	above := t.shares[a.ID]
	for _, c := range children {
		used := ratio(t.usage(c.ID), t.total)
		s := Share{ID: c.ID, NormUsage: used}
		switch {
		case c.Shares == ParentShare:
			s.NormShares, s.EffectiveUsage = share, above.EffectiveUsage
			if top {
				s.EffectiveUsage = used
			}
		default:
			part := ratio(c.Shares, sum)
			s.NormShares = float64(share * part)
			if s.EffectiveUsage = used; !top {
				s.EffectiveUsage = used + float64(float64(above.EffectiveUsage-used)*part)
			}
		}
		switch {
		case s.NormShares == 0:
			s.FairShare = 0
		case s.EffectiveUsage <= 0:
			s.FairShare, s.LevelFS = 1, math.Inf(1)
		default:
			s.LevelFS = float64(s.NormShares / s.EffectiveUsage)
			s.FairShare = halved(float64(float64(s.EffectiveUsage/s.NormShares) / float64(dampening)))
		}
		t.shares[c.ID] = s
		if c.User == "" {
			t.classic(c, s.NormShares, dampening, false)
		}
	}
}

// halved is 2^-x for x >= 0, by the table of roots: the same bits on every machine.
func halved(x float64) float64 {
	if x >= 1024 {
		return 0
	}
	whole := int(x)
	exponent := uint64(float64(x-float64(whole)) * (1 << 63) * 2)
	factor, one := factorOf(exponent)
	f := 1.0
	if !one {
		f = float64(factor) / (1 << 63) / 2
	}
	for range whole {
		f *= 0.5
	}
	return f
}
