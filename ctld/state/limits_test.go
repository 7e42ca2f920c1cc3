package state_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// clausesOf reads "name=value" words, with "+=" and "-=" too.
func clausesOf(words ...string) (list []accounting.Clause) {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		op := "="
		if sign := name[len(name)-1:]; sign == "+" || sign == "-" {
			name, op = name[:len(name)-1], sign+"="
		}
		list = append(list, accounting.Clause{Name: name, Op: op, Value: value})
	}
	return list
}

func (w *world) account(by state.Caller, verb, entity string, where, set []string) (out accounting.Outcome, r *state.Refusal) {
	w.Helper()
	w.do(func(t *state.Tx) {
		out, r = t.ChangeAccounting(accounting.Change{Verb: verb, Entity: entity, Where: clausesOf(where...), Set: clausesOf(set...)}, by)
	})
	return out, r
}

func (w *world) must(verb, entity string, where, set []string) {
	w.Helper()
	if out, r := w.account(root, verb, entity, where, set); r != nil || len(out.Changed) == 0 {
		w.Fatalf("%s %s %v %v: %+v, %v", verb, entity, where, set, r, out)
	}
}

// enforced is a world in which limits hold: account lab with alice, bob in its sub-account sub, QOS high.
func enforced(t testing.TB, change ...func(*state.Config)) *world {
	w := newWorld3(t, append([]func(*state.Config){func(c *state.Config) {
		c.Sched.Enforce, c.Sched.Licenses = []string{"limits", "qos"}, []string{"matlab:3"}
	}}, change...)...)
	w.must("add", "account", nil, []string{"name=lab"})
	w.must("add", "account", nil, []string{"name=sub", "parent=lab"})
	w.must("add", "qos", nil, []string{"name=high"})
	w.must("modify", "account", []string{"name=lab"}, []string{"qos=normal,high"})
	w.must("add", "user", nil, []string{"name=alice", "account=lab"})
	w.must("add", "user", nil, []string{"name=bob", "account=sub"})
	return w
}

func of(user string, s job.Spec) job.Spec {
	s.User, s.UID = user, uint32(len(user))
	return s
}

func TestSubmitResolvesAccountAndQOS(t *testing.T) {
	w := enforced(t)
	id := w.submit(of("alice", job.Spec{}))
	if s := w.job(id).Spec; s.Account != "lab" || s.QOS != "normal" {
		t.Fatalf("account %q, QOS %q", s.Account, s.QOS)
	}
	for _, c := range []struct {
		spec       job.Spec
		code, word string
	}{
		{of("carol", job.Spec{}), "ESLURM_INVALID_ACCOUNT", "carol"},
		{of("alice", job.Spec{Account: "sub"}), "ESLURM_INVALID_ACCOUNT", "sub"},
		{of("alice", job.Spec{QOS: "none"}), "ESLURM_INVALID_QOS", "none"},
		{of("alice", job.Spec{Rare: option(job.OptLicenses, "matlab:4")}), "ESLURM_INVALID_LICENSES", "has 3"},
		{of("alice", job.Spec{Rare: option(job.OptLicenses, "ansys")}), "ESLURM_INVALID_LICENSES", "ansys"},
		{of("alice", job.Spec{Rare: option(job.OptReservation, "none")}), "ESLURM_RESERVATION_INVALID", "none"},
	} {
		_, _, r := w.trySubmit("", c.spec)
		wantRefusal(t, r, c.code, c.word)
	}
}

// TestSubmitLimits: each waiting array task is a job; at the limit it is taken, above it is refused with limit, value and use.
func TestSubmitLimits(t *testing.T) {
	w := enforced(t)
	w.must("modify", "account", []string{"name=lab"}, []string{"grpsubmitjobs=4"})
	id := w.submit(of("alice", job.Spec{Array: "1-3"}))
	w.submit(of("bob", job.Spec{}))
	_, _, r := w.trySubmit("", of("bob", job.Spec{}))
	wantRefusal(t, r, "ESLURM_ACCOUNTING_POLICY", "4")
	w.cancel(alice, job.Ref{ID: id, Tasks: job.NewSet(2)})
	w.control(state.OpHold, root, id, 1)
	w.cancel(root, job.Ref{ID: id, Tasks: job.NewSet(1)})
	w.submit(of("bob", job.Spec{}))
}

// use is what an account's jobs take.
func (w *world) use(account string) partitions.Use {
	v := w.s.View()
	return v.Limits().Use(partitions.Entity{Kind: partitions.OfAssociation, ID: v.Accounting().AccountID(account)})
}

// TestRunningLimits: a start that a limit forbids is not taken, whoever proposes it.
func TestRunningLimits(t *testing.T) {
	w := enforced(t)
	w.must("modify", "account", []string{"name=lab"}, []string{"grptres=cpu=3"})
	a, b := w.submit(of("alice", job.Spec{})), w.submit(of("bob", job.Spec{}))
	if n := w.plan(w.begin(a, -1, alloc("n1", 2)), w.begin(b, -1, alloc("n2", 2))); n != 1 {
		t.Fatalf("%d starts were taken, 4 CPUs of 3", n)
	}
	if n := w.plan(w.begin(b, -1, alloc("n2", 1))); n != 1 {
		t.Fatal("3 CPUs of 3 were not taken")
	}
	if u := w.use("lab"); u.Jobs != 2 || u.Submit != 2 || u.TRES.String() == "" {
		t.Fatalf("use %+v", u)
	}
	if u := w.use("sub"); u.Jobs != 1 {
		t.Fatalf("use of the account below %+v", u)
	}
	w.launched(a, job.CauseNone, true)
	w.report(a)
	if u := w.use("lab"); u.Jobs != 1 || u.Submit != 1 {
		t.Fatalf("use after one has ended %+v", u)
	}
	c := w.submit(of("alice", job.Spec{}))
	if n := w.plan(w.begin(c, -1, alloc("n1", 3))); n != 0 {
		t.Fatal("4 CPUs of 3")
	}
	w.must("modify", "account", []string{"name=lab"}, []string{"grptres=cpu=4"})
	if n := w.plan(w.begin(c, -1, alloc("n1", 3))); n != 1 {
		t.Fatal("the limit was raised")
	}
}

// TestDistinctNodes: a limit of nodes counts a node with two jobs once.
func TestDistinctNodes(t *testing.T) {
	w := enforced(t)
	w.must("modify", "account", []string{"name=lab"}, []string{"grptres=node=1"})
	a, b, c := w.submit(of("alice", job.Spec{})), w.submit(of("alice", job.Spec{})), w.submit(of("alice", job.Spec{}))
	if n := w.plan(w.begin(a, -1, alloc("n1", 1)), w.begin(b, -1, alloc("n1", 1)), w.begin(c, -1, alloc("n2", 1))); n != 2 {
		t.Fatalf("%d starts were taken", n)
	}
}

// TestEnforcementComesLater: what runs already counts when limits begin to hold.
func TestEnforcementComesLater(t *testing.T) {
	w := enforced(t, func(c *state.Config) { c.Sched.Enforce = nil })
	a := w.submit(of("alice", job.Spec{}))
	w.plan(w.begin(a, -1, alloc("n1", 2)))
	if u := w.use("lab"); u.Jobs != 0 {
		t.Fatalf("counted though nothing asks for it: %+v", u)
	}
	w.configure(func(c *state.Config) { c.Sched.Enforce = []string{"limits"} })
	if u := w.use("lab"); u.Jobs != 1 {
		t.Fatalf("use %+v", u)
	}
}

func TestLicenses(t *testing.T) {
	w := enforced(t)
	ids := make([]uint32, 3)
	for i := range ids {
		ids[i] = w.submit(of("alice", job.Spec{Rare: option(job.OptLicenses, "matlab:2")}))
	}
	if n := w.plan(w.begin(ids[0], -1, alloc("n1", 1)), w.begin(ids[1], -1, alloc("n1", 1))); n != 1 {
		t.Fatalf("%d starts with 2 of 3 licenses each", n)
	}
	if l := w.s.View().Licenses(); len(l) != 1 || l[0] != (state.LicenseUse{Name: "matlab", Total: 3, Used: 2}) {
		t.Fatalf("%+v", l)
	}
	w.launched(ids[0], job.CauseNone, true)
	w.report(ids[0])
	if n := w.plan(w.begin(ids[1], -1, alloc("n1", 1))); n != 1 {
		t.Fatal("the licenses did not come back")
	}
}

// TestMaxWallFillsTheLimit: a job that asks for no time limit gets the one of its account, where that is the tightest.
func TestMaxWallFillsTheLimit(t *testing.T) {
	w := enforced(t)
	w.must("modify", "account", []string{"name=lab"}, []string{"maxwalldurationperjob=10"})
	if j := w.job(w.submit(of("alice", job.Spec{}))); j.TimeLimit != 600_000 {
		t.Fatalf("time limit %d", j.TimeLimit)
	}
	w.submit(of("alice", job.Spec{TimeLimit: 600_000}))
}

func TestAccountingRights(t *testing.T) {
	w := enforced(t)
	w.must("add", "coordinator", nil, []string{"name=alice", "account=lab"})
	coordinator := state.Caller{UID: 5, User: "alice"}
	for _, c := range []struct {
		name, verb, entity string
		where, set         []string
		allowed            bool
	}{
		{"a user in the account", "add", "user", nil, []string{"name=dan", "account=lab"}, true},
		{"a user below it", "add", "user", nil, []string{"name=eve", "account=sub"}, true},
		{"a limit of the account", "modify", "account", []string{"name=sub"}, []string{"grpjobs=5"}, true},
		{"a user elsewhere", "add", "user", nil, []string{"name=dan", "account=root"}, false},
		{"an account at the top", "add", "account", nil, []string{"name=mine"}, false},
		{"an account below", "add", "account", nil, []string{"name=mine", "parent=lab"}, true},
		{"a QOS", "add", "qos", nil, []string{"name=mine"}, false},
		{"a level", "modify", "user", []string{"name=alice", "account=lab"}, []string{"adminlevel=Admin"}, false},
		{"a level with a new user", "add", "user", nil, []string{"name=zoe", "account=lab", "adminlevel=Admin"}, false},
		{"a user elsewhere in another word", "add", "user", []string{"account=lab"}, []string{"name=dan", "Acct=root"}, false},
		{"an account elsewhere in another word", "modify", "account", []string{"name=lab", "accounts=root"}, []string{"grpjobs=1"}, false},
		{"all of a user", "modify", "user", []string{"name=bob"}, []string{"maxjobs=1"}, false},
		{"the own default account", "modify", "user", []string{"name=alice"}, []string{"defaultaccount=lab"}, true},
	} {
		_, r := w.account(coordinator, c.verb, c.entity, c.where, c.set)
		if c.allowed && r != nil {
			t.Errorf("%s: %+v", c.name, r)
		}
		if !c.allowed && (r == nil || r.Code != "ESLURM_ACCESS_DENIED") {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	if _, r := w.account(state.Caller{UID: 3, User: "bob"}, "modify", "account", []string{"name=sub"}, []string{"grpjobs=9"}); r == nil {
		t.Error("bob is no coordinator")
	}
}

// TestUsedAssociationsStay: what jobs wait or run under is not deleted.
func TestUsedAssociationsStay(t *testing.T) {
	w := enforced(t)
	id := w.submit(of("alice", job.Spec{}))
	_, r := w.account(root, "delete", "user", []string{"name=alice"}, nil)
	wantRefusal(t, r, "ESLURM_JOBS_RUNNING_ON_ASSOC", fmt.Sprint("job ", id))
	w.cancel(root, job.Ref{ID: id})
	w.must("delete", "user", []string{"name=alice"}, nil)
}

// TestBelowTheLevel: nothing of level 3 has an effect before all know it.
func TestBelowTheLevel(t *testing.T) {
	w := newWorld(t, func(c *state.Config) { c.Sched.Licenses = []string{"matlab:1"} })
	w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureMembers) })
	if c := w.s.View().Config().Sched; c.Given() {
		t.Errorf("configuration %+v", c)
	}
	_, r := w.account(root, "add", "account", nil, []string{"name=lab"})
	wantRefusal(t, r, "ESLURM_NOT_SUPPORTED", "feature level is 2, it needs 3")
	w.do(func(t *state.Tx) { _, r = t.ChangeReservation("create", "r", nil, root) })
	wantRefusal(t, r, "ESLURM_NOT_SUPPORTED", "level")
	w.do(func(t *state.Tx) { r = t.UsageTick() })
	wantRefusal(t, r, "ESLURM_NOT_SUPPORTED", "level")
	w.run(job.Spec{Account: "any"})
	if v := w.s.View(); v.Accounting() != nil || v.History(0) != (state.RunTimes{}) {
		t.Error("something of level 3 is there")
	}
}

// TestUpdatesOutliveTheLevel: what was set at run time stays when the level brings the file's new keys in.
func TestUpdatesOutliveTheLevel(t *testing.T) {
	w := newWorld(t)
	parts := partsOf("n1", "n2")
	parts[0].LLN, parts[0].BillingWeights, parts[0].JobLease = true, []string{"CPU=2"}, 5000
	w.reload(state.Config{}, nodesOf("n1", "n2"), parts)
	w.do(func(t *state.Tx) { t.UpdatePartition("p", map[string]string{"State": "DRAIN"}, root) })
	w.do(func(t *state.Tx) { t.RaiseFeature(state.FeatureSched) })
	w.reload(state.Config{}, nodesOf("n1", "n2"), parts)
	if p := w.s.View().Partition("p"); p.State != "DRAIN" || !p.LLN || p.JobLease != 5000 {
		t.Errorf("%+v", p)
	}
}

// TestAccountLimits: as many accounts, users, associations and QOS as the limit says, and one more.
func TestAccountLimits(t *testing.T) {
	w := newWorld3(t)
	for i := len([]string{"normal"}); i < state.MaxQOS; i++ {
		w.index++
		w.s.Apply(w.index, w.now, func(t *state.Tx) {
			_, r := t.ChangeAccounting(accounting.Change{Verb: "add", Entity: "qos", Set: clausesOf(fmt.Sprint("name=q", i))}, root)
			if r != nil {
				w.Fatalf("%d: %+v", i, r)
			}
		})
	}
	_, r := w.account(root, "add", "qos", nil, []string{"name=more"})
	wantRefusal(t, r, "EAGAIN", fmt.Sprintf("MaxQOS=%d, this would make %d", state.MaxQOS, state.MaxQOS+1))
}

func TestReservationLimit(t *testing.T) {
	w := newWorld3(t)
	set := func(i int) []accounting.Clause {
		return clausesOf(fmt.Sprint("starttime=", w.now+int64(i+1)*60_000_000+1_000_000_000), "duration=1", "nodes=n1", "users=alice", "flags=OVERLAP,IGNORE_JOBS")
	}
	for i := range state.MaxReservations {
		w.index++
		w.s.Apply(w.index, w.now, func(t *state.Tx) {
			if _, r := t.ChangeReservation("create", fmt.Sprint("r", i), set(i), root); r != nil {
				w.Fatalf("%d: %+v", i, r)
			}
		})
	}
	var r *state.Refusal
	w.do(func(t *state.Tx) { _, r = t.ChangeReservation("create", "more", set(1), root) })
	wantRefusal(t, r, "EAGAIN", fmt.Sprintf("MaxReservations=%d", state.MaxReservations))
}
