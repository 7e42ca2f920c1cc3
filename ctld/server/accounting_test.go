package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// rowsText shows a list for comparison.
func (f *fixture) rowsText(uid uint32, entity string, keys ...string) string {
	f.t.Helper()
	resp, err := f.srv.ListAccounting(f.as(uid), &ctldpb.ListAccountingRequest{Entity: entity})
	if err != nil {
		f.t.Fatal(err)
	}
	var lines []string
	for _, r := range resp.Rows {
		var words []string
		for _, k := range keys {
			words = append(words, r.Fields[k])
		}
		lines = append(lines, strings.Join(words, "/"))
	}
	return strings.Join(lines, " ")
}

// TestOldClustersRefuse: what older controllers do not know is refused by its level, not half done.
func TestOldClustersRefuse(t *testing.T) {
	f := newFixture(t, "")
	_, err := f.srv.ChangeAccounting(f.as(olga), &ctldpb.ChangeAccountingRequest{Verb: "add", Entity: "account", Set: clauses("name=physics")})
	wantRefusal(t, err, "ESLURM_NOT_SUPPORTED", "feature level 3")
	_, err = f.srv.ChangeReservation(f.as(olga), &ctldpb.ChangeReservationRequest{Verb: "create", Name: "r"})
	wantRefusal(t, err, "ESLURM_NOT_SUPPORTED", "feature level 3")
	_, err = f.srv.Submit(f.as(ann), &ctldpb.SubmitRequest{Spec: script(), Het: []*ctldpb.JobSpec{script()}})
	wantRefusal(t, err, "ESLURM_NOT_SUPPORTED", "feature level 3")
	_, err = f.srv.ListPriorities(f.as(ann), &ctldpb.ListPrioritiesRequest{})
	wantRefusal(t, err, "ESLURM_NOT_SUPPORTED", "feature level 3")
}

// TestWhoChangesAccounting: operators, and coordinators at and below their account.
func TestWhoChangesAccounting(t *testing.T) {
	f := newSchedFixture(t, "")
	add := func(uid uint32, entity string, dry bool, words ...string) error {
		_, err := f.srv.ChangeAccounting(f.as(uid), &ctldpb.ChangeAccountingRequest{Verb: "add", Entity: entity, Set: clauses(words...), DryRun: dry})
		return err
	}
	wantRefusal(t, add(ann, "account", false, "name=physics"), "ESLURM_ACCESS_DENIED")
	wantRefusal(t, add(ann, "account", true, "name=physics"), "ESLURM_ACCESS_DENIED")
	if err := add(olga, "account", true, "name=physics"); err != nil {
		t.Errorf("dry run: %v", err)
	}
	if got := f.rowsText(olga, "account", "account"); strings.Contains(got, "physics") {
		t.Errorf("a dry run made %s", got)
	}
	for _, words := range [][]string{{"name=physics"}, {"name=chemistry"}} {
		if err := add(olga, "account", false, words...); err != nil {
			t.Fatal(err)
		}
	}
	f.account("add", "user", nil, clauses("name=ann", "account=physics"))
	f.account("add", "coordinator", nil, clauses("account=physics", "name=ann"))
	if err := add(ann, "user", false, "name=bob", "account=physics"); err != nil {
		t.Errorf("a coordinator adds to her account: %v", err)
	}
	wantRefusal(t, add(ann, "user", false, "name=bob", "account=chemistry"), "ESLURM_ACCESS_DENIED")
	wantRefusal(t, add(ann, "qos", false, "name=high"), "ESLURM_ACCESS_DENIED")
	wantRefusal(t, add(bob, "user", false, "name=sam", "account=physics"), "ESLURM_ACCESS_DENIED")
}

// TestChangeAccountingBounds: words that cannot be meant are refused by name.
func TestChangeAccountingBounds(t *testing.T) {
	f := newSchedFixture(t, "")
	call := func(req *ctldpb.ChangeAccountingRequest) error {
		_, err := f.srv.ChangeAccounting(f.as(olga), req)
		return err
	}
	wantRefusal(t, call(&ctldpb.ChangeAccountingRequest{Verb: "burn", Entity: "account"}), "INVALID", "burn")
	wantRefusal(t, call(&ctldpb.ChangeAccountingRequest{Verb: "add", Entity: "account", Set: []*ctldpb.Clause{{Name: "name", Op: "~", Value: "x"}}}), "INVALID", "~")
	var many []*ctldpb.Clause
	for i := range MaxClauses + 1 {
		many = append(many, &ctldpb.Clause{Name: fmt.Sprint("k", i), Op: "=", Value: "v"})
	}
	wantRefusal(t, call(&ctldpb.ChangeAccountingRequest{Verb: "modify", Entity: "account", Set: many}), "LIMIT", "MaxClauses")
	long := strings.Repeat("x", MaxClauseWord+1)
	wantRefusal(t, call(&ctldpb.ChangeAccountingRequest{Verb: "modify", Entity: "account", Set: []*ctldpb.Clause{{Name: "comment", Op: "=", Value: long}}}), "LIMIT", "MaxClauseWord")
	resp := f.account("add", "account", nil, clauses("name=physics"))
	if len(resp.Changed) == 0 {
		t.Error("nothing is said to have changed")
	}
	resp = f.account("add", "user", nil, clauses("name=nobodyhere", "account=physics"))
	if !strings.Contains(strings.Join(resp.Warnings, "\n"), "nobodyhere") {
		t.Errorf("no warning of a user that is not there: %v", resp.Warnings)
	}
}

// TestDefaultQOS is half of case 15: a default QOS shows, and the next job gets it; one that the user may not use is refused.
func TestDefaultQOS(t *testing.T) {
	f := newSchedFixture(t, "AccountingStorageEnforce=associations,limits,qos\n")
	f.account("add", "account", nil, clauses("name=physics"))
	f.account("add", "qos", nil, clauses("name=q"))
	f.account("add", "user", nil, clauses("name=ann", "account=physics"))
	_, err := f.srv.ChangeAccounting(f.as(olga), &ctldpb.ChangeAccountingRequest{Verb: "modify", Entity: "user", Where: clauses("name=ann"), Set: clauses("defaultqos=q")})
	if err == nil && !strings.Contains(f.rowsText(olga, "association", "user", "defaultqos"), "ann/q") {
		t.Error("DefaultQOS was accepted and ignored")
	}
	f.account("modify", "user", clauses("name=ann"), clauses("qos+=q"))
	f.account("modify", "user", clauses("name=ann"), clauses("defaultqos=q"))
	resp, err := f.srv.ListAccounting(f.as(ann), &ctldpb.ListAccountingRequest{Entity: "association", Where: clauses("user=ann")})
	if err != nil || len(resp.Rows) != 1 {
		t.Fatalf("%v %v", resp, err)
	}
	if fields := resp.Rows[0].Fields; fields["defaultqos"] != "q" && fields["defqos"] != "q" && fields["def qos"] != "q" {
		t.Errorf("the default QOS does not show: %v", fields)
	}
	id := f.submit(ann, nil)
	if jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(id)}}); jobs[0].Spec.Qos != "q" || jobs[0].Spec.Account != "physics" {
		t.Errorf("the next job has QOS %q and account %q", jobs[0].Spec.Qos, jobs[0].Spec.Account)
	}
}

// TestGrpWall is the other half of case 15: GrpWall is enforced, with its own reason.
func TestGrpWall(t *testing.T) {
	f := newSchedFixture(t, "AccountingStorageEnforce=associations,limits,qos\n")
	f.register("n1", "n2")
	f.account("add", "account", nil, clauses("name=physics"))
	f.account("add", "qos", nil, clauses("name=q", "grpwall=1"))
	f.account("add", "user", nil, clauses("name=ann", "account=physics", "qos=q", "defaultqos=q"))
	first := f.submit(ann, func(s *ctldpb.JobSpec) { s.TimeLimitMs = 60_000 })
	if got := f.plan(); len(got) != 1 || got[0] != first {
		t.Fatalf("started %v", got)
	}
	f.pass(2 * time.Minute)
	f.end(first, f.log.View().Job(first).Run, f.log.View().Job(first).Allocs[0].Node, 0)
	next := f.submit(ann, nil)
	if got := f.plan(); len(got) != 0 {
		t.Fatalf("started %v over GrpWall", got)
	}
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(next)}})
	if jobs[0].Reason != "QOSGrpWallLimit" {
		t.Errorf("waits for %q (%s)", jobs[0].Reason, jobs[0].ReasonDetail)
	}
}

// TestSharedNodesCountOnce is case 13: two jobs on the same two nodes are within a limit of two nodes.
func TestSharedNodesCountOnce(t *testing.T) {
	f := newSchedFixture(t, "AccountingStorageEnforce=associations,limits,qos\n")
	f.register("n1", "n2", "g1", "g2")
	f.account("add", "account", nil, clauses("name=physics"))
	f.account("add", "qos", nil, clauses("name=q", "grptres=node=2"))
	f.account("add", "user", nil, clauses("name=ann", "account=physics", "qos=q", "defaultqos=q"))
	two := func(s *ctldpb.JobSpec) { s.MinNodes, s.MaxNodes, s.Gres = 2, 2, "gpu:1" }
	a, b := f.submit(ann, two), f.submit(ann, two)
	third := f.submit(ann, func(s *ctldpb.JobSpec) { s.NodeList = "n1" })
	started := append(f.plan(), f.plan()...)
	if fmt.Sprint(started) != fmt.Sprint([]uint32{a, b}) {
		t.Errorf("started %v, want %d and %d", started, a, b)
	}
	jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(third)}})
	if jobs[0].Reason != "QOSGrpNodeLimit" {
		t.Errorf("a job on a third node waits for %q (%s)", jobs[0].Reason, jobs[0].ReasonDetail)
	}
}

// TestPrivateAccounting: PrivateData=users, accounts and usage show one's own only, to coordinators their accounts'.
func TestPrivateAccounting(t *testing.T) {
	f := newSchedFixture(t, "")
	for _, name := range []string{"physics", "chemistry"} {
		f.account("add", "account", nil, clauses("name="+name))
	}
	f.account("add", "user", nil, clauses("name=ann", "account=physics"))
	f.account("add", "user", nil, clauses("name=bob", "account=chemistry"))
	if got := f.rowsText(ann, "user", "user"); !strings.Contains(got, "bob") {
		t.Errorf("without PrivateData ann sees %s", got)
	}
	f.srv.Auth.SetPolicy(&authn.Policy{Operators: []string{"olga"}, PrivateData: []string{"users", "accounts", "usage"}})
	if got := f.rowsText(ann, "user", "user"); strings.Contains(got, "bob") || !strings.Contains(got, "ann") {
		t.Errorf("ann sees users %s", got)
	}
	if got := f.rowsText(ann, "account", "account"); strings.Contains(got, "chemistry") || !strings.Contains(got, "physics") {
		t.Errorf("ann sees accounts %s", got)
	}
	if got := f.rowsText(ann, "association", "account", "user"); strings.Contains(got, "chemistry") || !strings.Contains(got, "physics/ann") {
		t.Errorf("ann sees associations %s", got)
	}
	shares, err := f.srv.ListShares(f.as(ann), &ctldpb.ListSharesRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range shares.Rows {
		if r.User == "bob" || r.Account == "chemistry" {
			t.Errorf("ann sees %v", r)
		}
	}
	if got := f.rowsText(olga, "association", "account", "user"); !strings.Contains(got, "chemistry/bob") {
		t.Errorf("an operator sees %s", got)
	}
}

// TestShares: the tree in its order, the caller's own users unless all are asked for.
func TestShares(t *testing.T) {
	f := newSchedFixture(t, "")
	f.account("add", "account", nil, clauses("name=physics", "fairshare=30"))
	f.account("add", "account", nil, clauses("name=optics", "parent=physics"))
	f.account("add", "user", nil, clauses("name=ann", "account=optics", "fairshare=5"))
	f.account("add", "user", nil, clauses("name=bob", "account=physics"))
	show := func(req *ctldpb.ListSharesRequest) string {
		t.Helper()
		resp, err := f.srv.ListShares(f.as(ann), req)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, r := range resp.Rows {
			fmt.Fprintf(&b, "%d:%s/%s ", r.Depth, r.Account, r.User)
		}
		return b.String()
	}
	if got := show(&ctldpb.ListSharesRequest{All: true}); got != "0:root/ 1:root/root 1:physics/ 2:physics/bob 2:optics/ 3:optics/ann " {
		t.Errorf("all: %s", got)
	}
	if got := show(&ctldpb.ListSharesRequest{}); strings.Contains(got, "bob") || !strings.Contains(got, "optics/ann") {
		t.Errorf("own: %s", got)
	}
	if got := show(&ctldpb.ListSharesRequest{Accounts: []string{"optics"}}); got != "2:optics/ 3:optics/ann " {
		t.Errorf("one account: %s", got)
	}
}

// TestAccountRefusals: what accounts and QOS do not allow is refused before the log, by Slurm's line and with why.
func TestAccountRefusals(t *testing.T) {
	f := newSchedFixture(t, "AccountingStorageEnforce=associations,limits,qos\n")
	f.account("add", "account", nil, clauses("name=physics"))
	f.account("add", "qos", nil, clauses("name=small", "maxsubmitjobsperuser=2", "maxtresperjob=cpu=2", "flags=DenyOnLimit"))
	f.account("add", "qos", nil, clauses("name=other"))
	f.account("add", "user", nil, clauses("name=ann", "account=physics", "qos=small", "defaultqos=small"))
	before := f.log.index
	for _, tt := range []struct {
		name, code string
		uid        uint32
		edit       func(*ctldpb.JobSpec)
		words      []string
	}{
		{"no association", "ESLURM_INVALID_ACCOUNT", bob, func(*ctldpb.JobSpec) {}, []string{"Invalid account or account/partition combination specified", "bob"}},
		{"account of others", "ESLURM_INVALID_ACCOUNT", ann, func(s *ctldpb.JobSpec) { s.Account = "chemistry" }, []string{"chemistry", "physics"}},
		{"unknown QOS", "ESLURM_INVALID_QOS", ann, func(s *ctldpb.JobSpec) { s.Qos = "nosuch" }, []string{"Invalid qos specification", "nosuch"}},
		{"QOS of others", "ESLURM_INVALID_QOS", ann, func(s *ctldpb.JobSpec) { s.Qos = "other" }, []string{"other", "small"}},
		{"over DenyOnLimit", "ESLURM_ACCOUNTING_POLICY", ann, func(s *ctldpb.JobSpec) { s.Ntasks = 3 },
			[]string{"Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "MaxTRES", "2", "3"}},
		{"too many of an array", "ESLURM_ACCOUNTING_POLICY", ann, func(s *ctldpb.JobSpec) { s.Array = "1-3" }, []string{"MaxSubmit", "2", "3"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := script()
			tt.edit(spec)
			_, err := f.srv.Submit(f.as(tt.uid), &ctldpb.SubmitRequest{Spec: spec})
			wantRefusal(t, err, tt.code, tt.words...)
		})
	}
	if f.log.index != before {
		t.Errorf("%d refusals went into the log", f.log.index-before)
	}
	f.submit(ann, func(s *ctldpb.JobSpec) { s.Ntasks = 2 })
	f.submit(ann, nil)
	req := &ctldpb.SubmitRequest{Spec: script()}
	_, err := f.srv.Submit(f.as(ann), req)
	wantRefusal(t, err, "ESLURM_ACCOUNTING_POLICY", "MaxSubmit", "2")
}

// TestRepeatAtTheLimit: a repeated request is answered as the first time, also where one more would be too many.
func TestRepeatAtTheLimit(t *testing.T) {
	f := newSchedFixture(t, "AccountingStorageEnforce=limits\n")
	f.account("add", "account", nil, clauses("name=physics"))
	f.account("add", "user", nil, clauses("name=ann", "account=physics", "maxsubmitjobs=1"))
	req := &ctldpb.SubmitRequest{Key: "k", Spec: script()}
	first, err := f.srv.Submit(f.as(ann), req)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.srv.Submit(f.as(ann), req)
	if err != nil || again.JobId != first.JobId || !again.Duplicate {
		t.Errorf("again: %v %v", again, err)
	}
}

// TestBillingShows: what a job counts is by its partition's weights.
func TestBillingShows(t *testing.T) {
	f := newSchedFixture(t, "PartitionName=gpu Nodes=g[1-2] TRESBillingWeights=CPU=1.0,GRES/gpu=10\n")
	f.register("g1", "g2")
	id := f.submit(ann, func(s *ctldpb.JobSpec) { s.Partition, s.Gres, s.Ntasks = "gpu", "gpu:2", 2 })
	for _, state := range []string{"PENDING", "RUNNING"} {
		jobs, _, _ := f.list(ann, &ctldpb.ListJobsRequest{JobIds: []string{fmt.Sprint(id)}})
		if j := jobs[0]; j.State != state || !strings.Contains(j.Tres, "billing=22") {
			t.Errorf("%s: %s", j.State, j.Tres)
		}
		f.plan()
	}
}
