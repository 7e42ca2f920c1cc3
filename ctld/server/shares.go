package server

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// ListShares shows the tree of associations with shares, usage and fair share: all accounts, and of users the caller's
// own unless others are asked for.
func (s *Server) ListShares(ctx context.Context, req *ctldpb.ListSharesRequest) (*ctldpb.ListSharesResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	for name, list := range map[string][]string{"accounts": req.Accounts, "users": req.Users} {
		if n := len(list); n > MaxFilterNames {
			return nil, tooMany(name, "MaxFilterNames", n, MaxFilterNames)
		}
	}
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return nil, err
	}
	if ref := needsSched(view, "accounts and shares"); ref != nil {
		return nil, refusalError(ref)
	}
	t := s.shareTree(view, c, req)
	t.walk(t.root, 0)
	return &ctldpb.ListSharesResponse{Info: info, Rows: t.rows, FairTree: t.fairTree}, nil
}

// shareTree walks the associations in the order of the tree.
type shareTree struct {
	view     state.Viewer
	db       *accounting.DB
	look     partitions.Lookup
	now      int64
	fairTree bool
	shares   map[uint32]accounting.Share
	children map[uint32][]*accounting.Association
	root     *accounting.Association
	see      ledgerFilter
	accounts map[string]bool // nil = all
	users    map[string]bool // nil = all
	rows     []*ctldpb.ShareRow
}

func (s *Server) shareTree(view state.Viewer, c authn.Caller, req *ctldpb.ListSharesRequest) *shareTree {
	t := &shareTree{view: view, db: view.Accounting(), look: view.Limits(), now: s.Now().UnixMilli(), fairTree: true,
		children: map[uint32][]*accounting.Association{}, see: s.ledgerFilter(view, c), accounts: set(req.Accounts), users: set(req.Users)}
	if t.users == nil && !req.All && len(req.Accounts) == 0 {
		t.users = map[string]bool{c.User: true}
	}
	cfg := &view.Config().Sched
	for _, flag := range cfg.PriorityFlags {
		if strings.EqualFold(flag, "NO_FAIR_TREE") {
			t.fairTree = false
		}
	}
	t.shares = view.Shares()
	for a := range t.db.Associations() {
		if a.Parent == 0 && a.User == "" {
			t.root = a
			continue
		}
		t.children[a.Parent] = append(t.children[a.Parent], a)
	}
	for _, list := range t.children {
		slices.SortFunc(list, func(a, b *accounting.Association) int {
			// An account's users stand before the accounts below it.
			return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Account, b.Account), strings.Compare(a.User, b.User), strings.Compare(a.Partition, b.Partition))
		})
	}
	return t
}

func rank(a *accounting.Association) int {
	if a.User != "" {
		return 0
	}
	return 1
}

// raw is what an association has used, with what it has not forgotten: billing seconds in 10^-3.
func (t *shareTree) raw(id uint32) int64 {
	return t.look.Usage(partitions.Entity{Kind: partitions.OfAssociation, ID: id}).Raw
}

// walk adds one account with all below it.
func (t *shareTree) walk(a *accounting.Association, depth uint32) {
	if a == nil {
		return
	}
	if t.shows(a) {
		t.rows = append(t.rows, t.row(a, depth))
	}
	for _, child := range t.children[a.ID] {
		if child.User == "" {
			t.walk(child, depth+1)
		} else if t.shows(child) {
			t.rows = append(t.rows, t.row(child, depth+1))
		}
	}
}

func (t *shareTree) shows(a *accounting.Association) bool {
	switch {
	case t.accounts != nil && !t.accounts[a.Account]:
		return false
	case a.User != "" && t.users != nil && !t.users[a.User]:
		return false
	}
	return t.see.account(a.Account) && t.see.person(a.User, a.Account) && t.see.usage(a.User, a.Account)
}

func (t *shareTree) row(a *accounting.Association, depth uint32) *ctldpb.ShareRow {
	share, known := t.shares[a.ID]
	use := t.look.Use(partitions.Entity{Kind: partitions.OfAssociation, ID: a.ID})
	row := &ctldpb.ShareRow{
		Account: a.Account, User: a.User, Partition: a.Partition, Depth: depth, IsUser: a.User != "", RawShares: a.Shares,
		NormShares: share.NormShares, RawUsage: t.raw(a.ID) / 1000, NormUsage: share.NormUsage, EffectiveUsage: share.EffectiveUsage,
		LevelFs: share.LevelFS, FairShare: share.FairShare, GrpTresMins: a.Limits.GrpTRESMins.String(), TresRunMins: t.runMinutes(use),
	}
	if !known { // root has no level, and nothing is above it
		row.NormShares, row.LevelFs, row.FairShare = math.NaN(), math.NaN(), math.NaN()
	} else if a.User == "" && t.fairTree {
		row.FairShare = math.NaN()
	}
	return row
}

// runMinutes is what the running jobs of an entity will use until their limits: TRES times minutes.
func (t *shareTree) runMinutes(u partitions.Use) string {
	var out accounting.TRES
	for _, a := range u.TRES {
		if n, _ := u.RunMinutes(a.Name, t.now); n > 0 {
			out = append(out, accounting.Amount{Name: a.Name, N: n})
		}
	}
	return out.String()
}
