package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
)

func (f *fake) ChangeAccounting(_ context.Context, r *ctldpb.ChangeAccountingRequest) (*ctldpb.ChangeAccountingResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, r)
	return &ctldpb.ChangeAccountingResponse{Changed: f.changed}, nil
}

func (f *fake) ListAccounting(_ context.Context, r *ctldpb.ListAccountingRequest) (*ctldpb.ListAccountingResponse, error) {
	return &ctldpb.ListAccountingResponse{Info: &ctldpb.ReadInfo{}, Rows: f.accounting[r.Entity]}, nil
}

func (f *fake) ListShares(context.Context, *ctldpb.ListSharesRequest) (*ctldpb.ListSharesResponse, error) {
	nan := math.NaN()
	return &ctldpb.ListSharesResponse{Info: &ctldpb.ReadInfo{}, FairTree: true, Rows: []*ctldpb.ShareRow{
		{Account: "root", NormShares: 0, RawUsage: 1200, EffectiveUsage: 1, FairShare: nan, LevelFs: nan, NormUsage: 1},
		{Account: "physics", Depth: 1, RawShares: 10, NormShares: 0.25, RawUsage: 1200, NormUsage: 1, EffectiveUsage: 1, LevelFs: 0.25, FairShare: nan},
		{Account: "physics", User: "bob", IsUser: true, Depth: 2, RawShares: -1, NormShares: 0.25, RawUsage: 1200, NormUsage: 1, EffectiveUsage: 1, LevelFs: math.Inf(1), FairShare: 1},
	}}, nil
}

func (f *fake) ListPriorities(context.Context, *ctldpb.ListPrioritiesRequest) (*ctldpb.ListPrioritiesResponse, error) {
	return &ctldpb.ListPrioritiesResponse{Info: &ctldpb.ReadInfo{}, Policy: f.policy, Weights: map[string]float64{"age": 1000, "fairshare": 5000, "tres/cpu": 10}, Rows: []*ctldpb.PriorityRow{
		{JobId: "12", Partition: "main", User: "alice", Account: "lab", Qos: "normal", Priority: 3012, Age: 12, FairShare: 2990, Tres: 10, TresTerms: "cpu=10", NormAge: 0.012, NormFairShare: 0.598, Place: 2, Expansion: 1.25},
		{JobId: "13_[0-4]", Partition: "main", User: "bob", Account: "lab", Qos: "high", Priority: 5005, Age: 5, FairShare: 5000, NormAge: 0.005, NormFairShare: 1, Place: 1, Expansion: 9, Starved: true},
	}}, nil
}

func someAccounts(f *fake) {
	rows := func(list ...map[string]string) (out []*ctldpb.AccountingRow) {
		for _, m := range list {
			depth := uint32(strings.Count(m["depth"], "."))
			delete(m, "depth")
			out = append(out, &ctldpb.AccountingRow{Fields: m, Depth: depth})
		}
		return out
	}
	f.accounting = map[string][]*ctldpb.AccountingRow{
		"user": rows(map[string]string{"user": "root", "defaultaccount": "root", "adminlevel": "Administrator"},
			map[string]string{"user": "bob", "defaultaccount": "physics", "adminlevel": "None"}),
		"account": rows(map[string]string{"account": "root", "description": "default root account", "organization": "root"},
			map[string]string{"account": "physics", "description": "physics department", "organization": "science"}),
		"association": rows(map[string]string{"account": "root", "fairshare": "1", "qos": "normal"},
			map[string]string{"account": "root", "user": "root", "fairshare": "1", "qos": "normal", "depth": "."},
			map[string]string{"account": "physics", "fairshare": "10", "qos": "high,normal", "grptres": "cpu=100,gres/gpu=8", "parentname": "root", "depth": "."},
			map[string]string{"account": "physics", "user": "bob", "fairshare": "parent", "maxjobsperuser": "", "maxjobs": "5", "qos": "high,normal", "defaultqos": "high", "depth": ".."}),
		"qos":  rows(map[string]string{"name": "normal", "priority": "0", "gracetime": "00:00:00", "preemptmode": "cluster", "usagefactor": "1.000000", "id": "1"}),
		"tres": rows(map[string]string{"type": "cpu", "id": "1"}, map[string]string{"type": "gres", "name": "gpu", "id": "1001"}),
	}
}

func TestAccountsShow(t *testing.T) {
	r := newRunner(t)
	someAccounts(r.fake)
	for _, c := range []struct{ name, args, want string }{
		{"users", "show user", "      User   Def Acct     Admin \n---------- ---------- --------- \n      root       root Administ+ \n       bob    physics      None \n"},
		{"accounts", "-n list account", "      root default root account                 root \n   physics   physics department              science \n"},
		{"parsable", "-P show assoc format=account,user,share%10,grptres,qos", "Account|User|Share|GrpTRES|QOS\nroot||1||normal\n" +
			"root|root|1||normal\nphysics||10|cpu=100,gres/gpu=8|high,normal\nphysics|bob|parent||high,normal\n"},
		{"trailing", "-np show qos format=name,priority,usagefactor", "normal|0|1.000000|\n"},
		{"tree", "-n show assoc tree format=account,user%6", "root                        \n root                  root \n physics                    \n  physics               bob \n"},
		{"widths", "-n show assoc format=user%-6,qos%5,maxj", "       norm+         \nroot   norm+         \n       high+         \nbob    high+       5 \n"},
		{"joined", "-nP show user bob withassoc format=user,account,fairshare,defaultqos,admin", "root|root|1||Administrator\nbob|physics|parent|high|None\n"},
		{"joined by a field", "-nP show user format=user,qos", "root|normal\nbob|high,normal\n"},
		{"tres", "-nP show tres", "cpu||1\ngres|gpu|1001\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := *r
			x.t = t
			x.want(x.call("sacctmgr", strings.Fields(c.args)...), 0, c.want, "")
		})
	}
	if a := r.call("sacctmgr", "show", "qos"); !strings.HasPrefix(a.out, "      Name   Priority  GraceTime    Preempt   PreemptExemptTime PreemptMode                                    Flags UsageThres UsageFactor       GrpTRES ") {
		t.Errorf("header of qos:\n%s", a.out)
	}
	if a := r.call("sacctmgr", "show", "assoc"); !strings.HasPrefix(a.out, "   Cluster    Account       User  Partition     Share   Priority GrpJobs       GrpTRES GrpSubmit     GrpWall   GrpTRESMins MaxJobs       MaxTRES MaxTRESPerNode MaxSubmit     MaxWall   MaxTRESMins                  QOS   Def QOS GrpTRESRunMin \n") {
		t.Errorf("header of associations:\n%s", a.out)
	}
	if a := r.call("sacctmgr", "show", "assoc", "--json"); !json.Valid([]byte(a.out)) || !strings.Contains(a.out, `"associations"`) {
		t.Errorf("%+v", a)
	}
}

// clauses writes a list as it was typed.
func clauses(list []*ctldpb.Clause) string {
	var words []string
	for _, c := range list {
		words = append(words, c.Name+c.Op+c.Value)
	}
	return strings.Join(words, " ")
}

func TestAccountsGrammar(t *testing.T) {
	r := newRunner(t)
	r.fake.changed = []string{"physics"}
	for _, c := range []struct{ args, want string }{
		{"-i add account physics parent=root fairshare=10 GrpTRES=cpu=100", "add account [] [name=physics parent=root fairshare=10 grptres=cpu=100]"},
		{"-i create acct a b Desc=x org=y", "add account [] [name=a,b description=x organization=y]"},
		{"-i add user bob,amy account=physics DefaultA=physics", "add user [] [name=bob,amy account=physics defaultaccount=physics]"},
		{"-i modify user bob where account=x set MaxJobs=5 qos+=high", "modify user [name=bob account=x] [maxjobs=5 qos+=high]"},
		{"-i modify user where name=bob set MaxJobs=-1 qos-=low", "modify user [name=bob] [maxjobs=-1 qos-=low]"},
		{"-i mod qos high set MaxTRESPU=cpu=8 GrpW=1 flags=DenyOnLimit maxwall=60", "modify qos [name=high] [maxtresperuser=cpu=8 grpwall=1 flags=DenyOnLimit maxwalldurationperjob=60]"},
		{"-i add qos q MaxJobs=3 MaxSubmit=9", "add qos [] [name=q maxjobsperuser=3 maxsubmitjobsperuser=9]"},
		{"-i modify account physics set GrpCPUs=10 GrpSubmit=4", "modify account [name=physics] [grptres=cpu=10 grpsubmitjobs=4]"},
		{"-i delete user where user=bob cluster=lab", "delete user [name=bob] []"},
		{"-i modify account where account=physics set GrpSubmit=4", "modify account [name=physics] [grpsubmitjobs=4]"},
		{"-i remove user name=bob account=x", "delete user [name=bob account=x] []"},
		{"-i add qos q set grpwall=1", "add qos [] [name=q grpwall=1]"},
		{"-i delete qos high", "delete qos [name=high] []"},
		{"-i add coordinator account=x names=bob", "add coordinator [] [account=x name=bob]"},
	} {
		r.fake.changes = nil
		a := r.call("sacctmgr", strings.Fields(c.args)...)
		if len(r.fake.changes) != 1 || a.code != 0 {
			t.Errorf("%s: %d requests, %+v", c.args, len(r.fake.changes), a)
			continue
		}
		q := r.fake.changes[0]
		got := q.Verb + " " + q.Entity + " [" + clauses(q.Where) + "] [" + clauses(q.Set) + "]"
		if got != c.want || q.Key == "" || q.DryRun {
			t.Errorf("%s: got %s, want %s", c.args, got, c.want)
		}
	}
}

func TestAccountsRefusals(t *testing.T) {
	r := newRunner(t)
	for _, c := range []struct{ args, want string }{
		{"frobnicate", "invalid keyword: frobnicate"},
		{"add", "No valid entity in add command"},
		{"-i add planet earth", `No valid entity in command: "planet"`},
		{"-i add account", "Need name of account to add."},
		{"-i add account a colour=red", "Unknown option: colour"},
		{"-i add account a where", "Unknown option: where"},
		{"-i modify user bob", "You didn't give me anything to set"},
		{"-i modify user bob set max=1", "it may be maxjobs or maxjobsaccrue"},
		{"-i delete user", "No conditions given to remove, not executing."},
		{"-i delete user name=", "names nothing"},
		{"-i delete assoc user=bob", "name the user or account that it is of"},
		{"-i add coordinator bob", "Need an account"},
		{"-r -i add account a", "readonly mode"},
		{"-i add account a cluster=moon", "No cluster 'moon' known by database."},
		{"show user format=colour", "Unknown field 'colour'"},
		{"show user format=user%0", "Invalid width"},
		{"show wckey", "not kept here"},
		{"show user --yaml", "use --json"},
	} {
		r.fake.changes = nil
		if a := r.call("sacctmgr", strings.Fields(c.args)...); a.code != 1 || !strings.Contains(a.errout, c.want) || len(r.fake.changes) > 0 {
			t.Errorf("%s: %+v", c.args, a)
		}
	}
	r.fake.refuse["ChangeAccounting"] = &ctldpb.Refusal{Code: "ESLURM_INVALID_QOS", Text: "Invalid qos specification", Why: "no QOS hihg; did you mean high?"}
	r.want(r.call("sacctmgr", "-i", "modify", "user", "bob", "set", "qos=hihg"), 1, "", " Error with request: Invalid qos specification\n no QOS hihg; did you mean high?\n")
}

// TestAccountsAsk: nothing changes before a yes.
func TestAccountsAsk(t *testing.T) {
	r := newRunner(t)
	r.fake.changed = []string{"A = physics U = bob P = main"}
	const question = "Would you like to commit changes? (You have 30 seconds to decide)\n(N/y): \n"
	const shown = " Modified user associations...\n  C = lab        A = physics              U = bob       P = main\n"
	for answer, want := range map[string]int{"y\n": 2, "yes\n": 2, "n\n": 1, "\n": 1, "": 1} {
		r.fake.changes, r.stdin = nil, answer
		a := r.call("sacctmgr", "modify", "user", "bob", "set", "maxjobs=5")
		if len(r.fake.changes) != want || !r.fake.changes[0].DryRun || want == 2 && r.fake.changes[1].DryRun {
			t.Errorf("%q: %d requests", answer, len(r.fake.changes))
		}
		if want == 2 {
			r.want(a, 0, shown+question, "")
		} else {
			r.want(a, 1, shown+question+" Changes Discarded\n", "")
		}
	}
	r.fake.changed, r.fake.changes = nil, nil
	r.want(r.call("sacctmgr", "-i", "modify", "user", "bob", "set", "maxjobs=5"), 1, " Nothing modified\n", "")
	r.want(r.call("sacctmgr", "-i", "add", "user", "bob"), 1, " Nothing new added.\n", "")
	r.want(r.call("sacctmgr", "-i", "delete", "user", "bob"), 1, " Nothing deleted\n", "")
	r.fake.changed = []string{"physics"}
	r.want(r.call("sacctmgr", "-i", "add", "account", "physics", "org=science"), 0, " Adding Account(s)\n  physics\n Settings\n  Organization   = science\n", "")
	r.want(r.call("sacctmgr", "-Q", "-i", "add", "account", "physics"), 0, "", "")
}

// silent is an input that never comes.
type silent struct{ c chan struct{} }

func (s silent) Read([]byte) (int, error) { <-s.c; return 0, os.ErrClosed }

func TestAccountsTimeout(t *testing.T) {
	r := newRunner(t)
	r.fake.changed = []string{"physics"}
	in := silent{make(chan struct{})}
	defer close(in.c)
	var out, errout strings.Builder
	fired := make(chan time.Time, 1)
	fired <- fakeNow
	env := &program.Env{Name: "gacctmgr", Args: []string{"add", "account", "physics"}, Stdin: in, Stdout: &out, Stderr: &errout, Now: func() time.Time { return fakeNow },
		After: func(d time.Duration) <-chan time.Time {
			if d != 30*time.Second {
				t.Errorf("waits %v", d)
			}
			return fired
		}, Connect: func() (*client.Client, error) { return r.c, nil }}
	if code := dispatch(env); code != 1 || !strings.HasSuffix(out.String(), "(N/y): timeout\n Changes Discarded\n") || len(r.fake.changes) != 1 {
		t.Errorf("code %d: %s%s", code, out.String(), errout.String())
	}
}

func TestAccountsSession(t *testing.T) {
	r := newRunner(t)
	someAccounts(r.fake)
	r.fake.changed = []string{"x"}
	r.stdin = "add account x desc=\"two words\"\ny\nshow user format=user\nquit\nshow qos\n"
	a := r.call("sacctmgr", "-n")
	if a.code != 0 || strings.Contains(a.out, "normal") || !strings.Contains(a.out, "       bob \n") || len(r.fake.changes) != 2 || clauses(r.fake.changes[1].Set) != "name=x description=two words" {
		t.Errorf("%+v\n%v", a, r.fake.changes)
	}
}

func TestAccountsDumpLoad(t *testing.T) {
	r := newRunner(t)
	someAccounts(r.fake)
	if a := r.call("sacctmgr", "dump", "lab", "file=all.cfg"); a.code != 0 {
		t.Fatalf("%+v", a)
	}
	b, err := os.ReadFile(filepath.Join(r.dir, "all.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"QOS - 'normal':Priority='0'", "Parent - 'root'\n", "Account - 'physics':Description='physics department':Organization='science':Fairshare='10':GrpTRES='cpu=100,gres/gpu=8':QOS='high,normal'\n",
		"Parent - 'physics'\nUser - 'bob':DefaultAccount='physics':Fairshare='parent':MaxJobs='5':QOS='high,normal':DefaultQOS='high'\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %q in\n%s", want, b)
		}
	}
	r.fake.changed = []string{"x"}
	if a := r.call("sacctmgr", "-i", "load", "all.cfg"); a.code != 0 || len(r.fake.changes) != 4 {
		t.Fatalf("%d: %+v", len(r.fake.changes), a)
	}
	if got := clauses(r.fake.changes[3].Set); got != "name=bob account=physics defaultaccount=physics fairshare=parent maxjobs=5 qos=high,normal defaultqos=high" {
		t.Error(got)
	}
	os.WriteFile(filepath.Join(r.dir, "bad.cfg"), []byte("User - 'x':Fairshare=1\nPlanet - 'y'\n"), 0o600)
	r.fake.changes = nil
	if a := r.call("sacctmgr", "-i", "load", "bad.cfg"); a.code != 1 || !strings.Contains(a.errout, `line 2: unknown kind "Planet"`) || len(r.fake.changes) > 0 {
		t.Errorf("%+v", a)
	}
}

func TestShare(t *testing.T) {
	r := newRunner(t)
	r.want(r.call("sshare", "-a"), 0, ""+
		"Account                    User  RawShares  NormShares    RawUsage  EffectvUsage  FairShare \n"+
		"-------------------- ---------- ---------- ----------- ----------- ------------- ---------- \n"+
		"root                                          0.000000        1200      1.000000            \n"+
		" physics                                10    0.250000        1200      1.000000            \n"+
		"  physics                   bob     parent    0.250000        1200      1.000000   1.000000 \n", "")
	if q := request[*ctldpb.ListSharesRequest](r, "ListShares"); !q.All || len(q.Users) > 0 {
		t.Errorf("%v", q)
	}
	r.want(r.call("sshare", "-nPlU"), 0, "  physics|bob|parent|0.250000|1200|1.000000|1.000000|1.000000|inf||\n", "")
	if q := request[*ctldpb.ListSharesRequest](r, "ListShares"); q.All || len(q.Users) != 1 {
		t.Errorf("%v", q)
	}
	r.want(r.call("sshare", "-n", "-o", "user%-5,levelfs%8", "-A", "physics", "-u", "bob"), 0, "               \n      0.250000 \nbob        inf \n", "")
	if a := r.call("sshare", "-o", "colour"); a.code != 1 || !strings.Contains(a.errout, `Invalid field requested: "colour"`) {
		t.Errorf("%+v", a)
	}
	if a := r.call("sshare", "--json"); !json.Valid([]byte(a.out)) {
		t.Errorf("%+v", a)
	}
}

func TestPriorities(t *testing.T) {
	r := newRunner(t)
	for _, c := range []struct{ name, policy, args, want string }{
		{"default", "multifactor", "", "" +
			"          JOBID PARTITION     USER   PRIORITY       SITE        AGE  FAIRSHARE                 TRES\n" +
			"             12 main         alice       3012          0         12       2990               cpu=10\n" +
			"       13_[0-4] main           bob       5005          0          5       5000                     \n"},
		{"factors", "multifactor", "-h -n", "             12 main         alice 0.0000007013  0.0120000  0.5980000\n       13_[0-4] main           bob 0.0000011653  0.0050000  1.0000000\n"},
		{"weights", "multifactor", "-w", "" +
			"          JOBID PARTITION     USER   PRIORITY       SITE        AGE  FAIRSHARE                 TRES\n" +
			"        Weights                                        1       1000       5000               cpu=10\n"},
		{"format and order", "multifactor", "-h -S -Y -o %i|%Y|%o|%n|%L", "13_[0-4]|5005|lab|high|1\n12|3012|lab|normal|2\n"},
		{"expansion", "expansion", "", "" +
			"          JOBID PARTITION     USER  EXPANSION STARVED  PLACE\n" +
			"             12 main         alice      1.250      no      2\n" +
			"       13_[0-4] main           bob      9.000     yes      1\n"},
		{"first come", "fcfs", "-h", "             12 main         alice       3012      2\n       13_[0-4] main           bob       5005      1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := *r
			x.t, x.fake.policy = t, c.policy
			x.want(x.call("sprio", strings.Fields(c.args)...), 0, c.want, "")
		})
	}
	r.call("sprio", "-j", "12,13", "-p", "main", "-u", "0")
	if q := request[*ctldpb.ListPrioritiesRequest](r, "ListPriorities"); len(q.JobIds) != 2 || len(q.Partitions) != 1 || len(q.Users) != 1 {
		t.Errorf("%v", q)
	}
	if a := r.call("sprio", "-o", "%i %Z"); a.code != 1 || !strings.Contains(a.errout, "Invalid job format specification: Z") {
		t.Errorf("%+v", a)
	}
	if a := r.call("sprio", "--json"); !json.Valid([]byte(a.out)) {
		t.Errorf("%+v", a)
	}
}
