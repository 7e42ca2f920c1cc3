package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Bounds of one change of accounting or reservations.
const (
	MaxClauses    = 256      // conditions and settings of one change
	MaxClauseWord = 64 << 10 // bytes of one name or value
)

// ChangeAccounting adds, modifies or deletes accounts, users, associations and QOS. Who may do so the state decides:
// operators, and coordinators below their account.
func (s *Server) ChangeAccounting(ctx context.Context, req *ctldpb.ChangeAccountingRequest) (*ctldpb.ChangeAccountingResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	verb, entity := strings.ToLower(req.Verb), strings.ToLower(req.Entity)
	if verb != verbAdd && verb != verbModify && verb != verbDelete {
		return nil, refuse(codeInvalid, fmt.Sprintf("%q is none of add, modify, delete", req.Verb))
	}
	if err := clauseBounds(req.Where, req.Set); err != nil {
		return nil, err
	}
	if ref := s.otherCluster(clausesFromAPI(req.Where), clausesFromAPI(req.Set)); ref != nil {
		return nil, refusalError(ref)
	}
	view := s.Log.View()
	if ref := needsSched(view, "accounts and QOS"); ref != nil {
		return nil, refusalError(ref)
	}
	change := accounting.Change{Verb: verb, Entity: entity, Where: clausesFromAPI(req.Where), Set: clausesFromAPI(req.Set)}
	if req.DryRun {
		return s.dryRun(view, c, change)
	}
	res, err := s.Log.Propose(ctx, &logpb.Command{Of: &logpb.Command_AccountingChange{AccountingChange: &logpb.AccountingChange{
		Verb: verb, Entity: entity, Where: clausesToLog(change.Where), Set: clausesToLog(change.Set), Caller: toLogCaller(c),
	}}})
	if err != nil {
		return nil, logError(err)
	}
	if r := res[0].Refused; r != nil {
		return nil, refusalError(fromFSM(r))
	}
	return &ctldpb.ChangeAccountingResponse{Changed: res[0].Changed, Warnings: append(res[0].Warnings, s.unknownUsers(&change)...)}, nil
}

// dryRun says what a change would do.
func (s *Server) dryRun(view state.Viewer, c authn.Caller, change accounting.Change) (*ctldpb.ChangeAccountingResponse, error) {
	out, r := view.TryAccounting(change, state.Caller{UID: c.UID, User: c.User, Operator: c.IsOperator()})
	if r != nil {
		return nil, refusalError(fromState(r))
	}
	return &ctldpb.ChangeAccountingResponse{Changed: out.Changed, Warnings: append(out.Warnings, s.unknownUsers(&change)...)}, nil
}

// unknownUsers warns of users that are added and that no job can be of yet: the account files of this controller do
// not have them.
func (s *Server) unknownUsers(change *accounting.Change) (warnings []string) {
	if change.Verb != verbAdd || change.Entity != "user" {
		return nil
	}
	for _, c := range change.Set {
		if c.Name != "name" && c.Name != "names" && c.Name != "user" {
			continue
		}
		for name := range strings.SplitSeq(c.Value, ",") {
			if _, err := s.Auth.Accounts().ByName(name); err != nil {
				warnings = append(warnings, fmt.Sprintf("%q is not a user of controller %s yet", name, s.Name))
			}
		}
	}
	return warnings
}

func clauseBounds(lists ...[]*ctldpb.Clause) error {
	n := 0
	for _, list := range lists {
		n += len(list)
		for _, c := range list {
			if size := max(len(c.GetName()), len(c.GetValue())); size > MaxClauseWord {
				return refuse(codeLimit, fmt.Sprintf("a word of %d bytes exceeds MaxClauseWord (%d)", size, MaxClauseWord))
			}
			if op := c.GetOp(); op != "" && op != "=" && op != "+=" && op != "-=" {
				return refuse(codeInvalid, fmt.Sprintf("%s%s%s: %q is none of =, +=, -=", c.GetName(), op, c.GetValue(), op))
			}
		}
	}
	if n > MaxClauses {
		return tooMany("conditions and settings", "MaxClauses", n, MaxClauses)
	}
	return nil
}

func clausesFromAPI(list []*ctldpb.Clause) []accounting.Clause {
	out := make([]accounting.Clause, len(list))
	for i, c := range list {
		out[i] = accounting.Clause{Name: strings.ToLower(c.GetName()), Op: c.GetOp(), Value: c.GetValue()}
	}
	return out
}

// clausesToLog writes clauses flat: name, operator, value, name, ...
func clausesToLog(list []accounting.Clause) []string {
	out := make([]string, 0, 3*len(list))
	for _, c := range list {
		out = append(out, c.Name, c.Op, c.Value)
	}
	return out
}

func fromAccounting(r *accounting.Refusal) *ctldpb.Refusal {
	return &ctldpb.Refusal{Code: r.Code, Text: r.Text, Why: r.Why}
}

// ListAccounting shows accounts, users, associations, QOS and what can be limited.
func (s *Server) ListAccounting(ctx context.Context, req *ctldpb.ListAccountingRequest) (*ctldpb.ListAccountingResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := clauseBounds(req.Where); err != nil {
		return nil, err
	}
	if ref := s.otherCluster(clausesFromAPI(req.Where)); ref != nil {
		return nil, refusalError(ref)
	}
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return nil, err
	}
	entity := strings.ToLower(req.Entity)
	out := &ctldpb.ListAccountingResponse{Info: info}
	switch entity {
	case "cluster":
		out.Rows = []*ctldpb.AccountingRow{{Fields: map[string]string{"cluster": s.Config().ClusterName, "name": s.Config().ClusterName}}}
		return out, nil
	case "tres":
		out.Rows = tresRows(view)
		return out, nil
	}
	if ref := needsSched(view, "accounts and QOS"); ref != nil {
		return nil, refusalError(ref)
	}
	rows, depth, r := view.Accounting().Rows(entity, clausesFromAPI(req.Where))
	if r != nil {
		return nil, refusalError(fromAccounting(r))
	}
	see := s.ledgerFilter(view, c)
	for i, fields := range rows {
		if !see.row(entity, fields) {
			continue
		}
		if entity == "association" && fields["cluster"] == "" {
			fields["cluster"] = s.Config().ClusterName
		}
		row := &ctldpb.AccountingRow{Fields: fields}
		if i < len(depth) {
			row.Depth = uint32(depth[i])
		}
		out.Rows = append(out.Rows, row)
	}
	return out, nil
}

// tresRows lists what can be limited and weighed: what every cluster has, and the devices and licenses of this one.
func tresRows(view state.Viewer) []*ctldpb.AccountingRow {
	var rows []*ctldpb.AccountingRow
	add := func(name string) {
		kind, rest, _ := strings.Cut(name, "/")
		rows = append(rows, &ctldpb.AccountingRow{Fields: map[string]string{
			"type": kind, "name": rest, "id": strconv.Itoa(len(rows) + 1),
		}})
	}
	for _, name := range []string{"cpu", "mem", "energy", "node", "billing"} {
		add(name)
	}
	for _, name := range clusterTRES(view) {
		add(name)
	}
	return rows
}

// clusterTRES are the devices and licenses of the cluster as limits name them, sorted.
func clusterTRES(view state.Viewer) []string {
	seen := map[string]bool{}
	for n := range view.Nodes() {
		inv, err := gres.ParseInventory(n.Config.Gres)
		if err != nil {
			continue // the configuration was checked
		}
		for _, it := range gres.Items(inv) {
			if seen["gres/"+it.Name] = true; it.Type != "" {
				seen["gres/"+it.Name+":"+it.Type] = true
			}
		}
	}
	for _, l := range view.Licenses() {
		seen["license/"+l.Name] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// ledgerFilter is what of accounting somebody may see.
type ledgerFilter struct {
	all             bool
	user            string
	db              *accounting.DB
	hideUsers       bool            // PrivateData=users: of users only oneself
	hideAccounts    bool            // PrivateData=accounts: of accounts only one's own
	own             map[string]bool // accounts that the caller is in
	hideOthersUsage bool            // PrivateData=usage
}

// ledgerFilter gives what of accounting c may see. Coordinators see all of their accounts.
func (s *Server) ledgerFilter(view state.Viewer, c authn.Caller) ledgerFilter {
	p := s.Auth.Policy()
	f := ledgerFilter{all: c.IsOperator(), user: c.User, db: view.Accounting(), hideUsers: p.Private("users"),
		hideAccounts: p.Private("accounts"), hideOthersUsage: p.Private("usage")}
	if f.all || f.db == nil || !f.hideAccounts {
		return f
	}
	f.own = map[string]bool{}
	if c.User == "" {
		return f // associations without a user are accounts
	}
	for a := range f.db.OfUser(c.User) {
		f.own[a.Account] = true
	}
	return f
}

// account tells whether an account may be seen.
func (f *ledgerFilter) account(name string) bool {
	return f.all || !f.hideAccounts || name == "" || f.own[name] || f.db.MayAdmin(f.user, name)
}

// person tells whether a user's association with an account may be seen.
func (f *ledgerFilter) person(user, account string) bool {
	return f.all || !f.hideUsers || user == "" || user == f.user || account != "" && f.db.MayAdmin(f.user, account)
}

// usage tells whether what a user has used on an account may be seen.
func (f *ledgerFilter) usage(user, account string) bool {
	return f.all || !f.hideOthersUsage || user == f.user && user != "" || account != "" && f.db.MayAdmin(f.user, account)
}

// row tells whether a row of a list may be seen.
func (f *ledgerFilter) row(entity string, fields map[string]string) bool {
	switch entity {
	case "user":
		return f.person(fields["user"], fields["defaultaccount"])
	case "account", "coordinator":
		return f.account(fields["account"])
	case "association":
		return f.account(fields["account"]) && f.person(fields["user"], fields["account"])
	}
	return true
}
