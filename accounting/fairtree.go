package accounting

import (
	"cmp"
	"math"
	"slices"
)

// FairTree ranks all user associations by the fair tree and gives each its factor, rank/m of m associations: the best one
// has 1. usage gives the raw usage of an association; that of an account includes what is below it.
//
// Each child of an account has a share S, its shares by the sum of its siblings', a usage U, its usage by the account's, and
// a level fair share S/U: 0 without shares, infinite without usage. Children are visited in falling order of it; a user takes
// the next rank, an account passes on to its children. Shares=parent puts a user first in its account (infinite), and puts
// the children of such an account beside the account itself, in the sums too.
//
// Ties, on purpose: (1) users with equal level fair shares share a rank; (2) a user that is equal to an account shares
// the rank of the best user in it; (3) the children of equal accounts are sorted as one list. Slurm's documentation says
// the same; its code does not do (3), as far as published cases show. Ranks that were shared are used up: after two users
// at 7 of 7 the next one is at 5.
//
// Equal means equal as IEEE doubles of (shares/sum)/(usage/parent's), evaluated in this order. Only divisions of whole
// numbers decide, so that each machine has the same order; and it is the order that Slurm's published case has, in which
// 40/20 and 50/25 below one account differ by a last bit.
func (d *DB) FairTree(usage func(id uint32) int64) map[uint32]Share {
	t := newShareTree(d, usage)
	for _, a := range d.assocs {
		if a.User != "" {
			t.users++
		}
	}
	t.next = t.users
	if root := d.AccountAssociation(Root); root != nil {
		t.visit(t.below(nil, root), false)
	}
	return t.shares
}

// shareTree is one evaluation.
type shareTree struct {
	db     *DB
	usage  func(id uint32) int64
	total  int64 // usage of root
	shares map[uint32]Share
	users  int // user associations
	next   int // rank of the next user that is not tied
	rank   int // rank of the last user
}

func newShareTree(d *DB, usage func(id uint32) int64) *shareTree {
	t := &shareTree{db: d, usage: usage, shares: make(map[uint32]Share, len(d.assocs))}
	if root := d.AccountAssociation(Root); root != nil {
		t.total = usage(root.ID)
		t.shares[root.ID] = Share{ID: root.ID, NormUsage: ratio(t.total, t.total), EffectiveUsage: ratio(t.total, t.total)}
	}
	return t
}

// member is an association among its siblings.
type member struct {
	*Association
	level float64
}

// ratio is a/b in doubles, 0 when b is.
func ratio(a, b int64) float64 {
	if b <= 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// siblings are the children of a, where those of accounts with Shares=parent stand in the place of their account.
func (t *shareTree) siblings(list []*Association, a *Association) []*Association {
	for _, c := range t.db.children(a.ID) {
		if c.User == "" && c.Shares == ParentShare {
			used := t.usage(c.ID)
			t.shares[c.ID] = Share{ID: c.ID, NormUsage: ratio(used, t.total), EffectiveUsage: ratio(used, t.usage(a.ID)), LevelFS: math.Inf(1)}
			list = t.siblings(list, c)
			continue
		}
		list = append(list, c)
	}
	return list
}

// below appends the fair-share children of account a, with their level fair share.
func (t *shareTree) below(list []member, a *Association) []member {
	children := t.siblings(nil, a)
	sum := sumOfShares(children)
	parent := t.usage(a.ID)
	for _, c := range children {
		used := t.usage(c.ID)
		s := Share{ID: c.ID, NormUsage: ratio(used, t.total), EffectiveUsage: ratio(used, parent)}
		switch {
		case c.Shares == ParentShare:
			s.LevelFS = math.Inf(1)
		case c.Shares > 0:
			s.NormShares = ratio(c.Shares, sum)
			if s.LevelFS = math.Inf(1); s.EffectiveUsage > 0 {
				s.LevelFS = float64(s.NormShares / s.EffectiveUsage)
			}
		}
		t.shares[c.ID] = s
		list = append(list, member{c, s.LevelFS})
	}
	return list
}

func sumOfShares(list []*Association) (sum int64) {
	for _, c := range list {
		sum = addSaturating(sum, max(c.Shares, 0))
	}
	return sum
}

// visit gives out ranks in the list; tied: its first entries share the last rank that was given.
func (t *shareTree) visit(list []member, tied bool) {
	slices.SortFunc(list, func(a, b member) int { return cmp.Or(cmp.Compare(b.level, a.level), cmp.Compare(a.ID, b.ID)) })
	for len(list) > 0 {
		end := 1
		for end < len(list) && list[end].level == list[0].level {
			end++
		}
		var merged []member
		accounts := false
		for _, m := range list[:end] {
			if m.User == "" {
				accounts, merged = true, t.below(merged, m.Association)
				continue
			}
			if !tied {
				t.rank, tied = t.next, true
			}
			s := t.shares[m.ID]
			s.FairShare = ratio(int64(t.rank), int64(t.users))
			t.shares[m.ID] = s
			t.next--
		}
		if accounts {
			t.visit(merged, tied)
		}
		list, tied = list[end:], false
	}
}
