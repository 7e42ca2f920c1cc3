package state_test

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// used is a world in which alice of lab and bob of sub below it have used as much.
func used(t *testing.T) *world {
	w := enforced(t)
	for _, user := range []string{"alice", "bob"} {
		id := w.submit(of(user, job.Spec{TimeLimit: 3_600_000}))
		w.plan(w.begin(id, -1, alloc(map[string]string{"alice": "n1", "bob": "n2"}[user], 2)))
	}
	w.at(w.now + 100_000)
	w.tick()
	return w
}

// TestRawUsageIsReset: what an account, a user or a QOS has used is forgotten, with what is below it; those above keep the rest.
func TestRawUsageIsReset(t *testing.T) {
	w := used(t)
	both, below := w.usage("lab"), w.usage("sub")
	if both.Raw <= below.Raw || below.Raw == 0 {
		t.Fatalf("%+v, %+v", both, below)
	}
	w.must("modify", "account", []string{"name=sub"}, []string{"rawusage=0"})
	if u := w.usage("sub"); u.Raw != 0 || u.Wall != 0 || len(u.TRES) != 0 {
		t.Fatalf("sub: %+v", u)
	}
	if u := w.usage("lab"); u.Raw == 0 || u.Raw > both.Raw-below.Raw+3000 || u.Raw != w.usage("root").Raw {
		t.Fatalf("lab: %+v of %+v, root %+v", u, both, w.usage("root"))
	}
	w.must("modify", "user", []string{"name=alice"}, []string{"rawusage=0"})
	if u := w.usage("lab"); u.Raw != w.usage("sub").Raw || u.Wall != w.usage("sub").Wall {
		t.Fatalf("lab: %+v, sub: %+v", u, w.usage("sub"))
	}
	w.tick()
	before := w.usage("lab").Raw
	if before == 0 {
		t.Fatal("runs are not charged any more")
	}
	w.must("modify", "qos", []string{"name=normal"}, []string{"rawusage=0"})
	if w.usage("lab").Raw < before {
		t.Fatal("a QOS took usage from an account")
	}
	for _, words := range [][]string{{"rawusage=5"}, {"rawusage=x"}} {
		_, r := w.account(root, "modify", "account", []string{"name=lab"}, words)
		wantRefusal(t, r, "ESLURM_INVALID_VALUE", "rawusage")
	}
	_, r := w.account(root, "add", "account", nil, []string{"name=new", "rawusage=0"})
	wantRefusal(t, r, "ESLURM_INVALID_VALUE", "rawusage")
	_, r = w.account(alice, "modify", "account", []string{"name=lab"}, []string{"rawusage=0"})
	wantRefusal(t, r, "ESLURM_ACCESS_DENIED", "")
}

// TestUsageResetNow: PriorityUsageResetPeriod=NOW forgets all usage once, when the configuration comes to say so.
func TestUsageResetNow(t *testing.T) {
	w := used(t)
	version := w.s.View().UsageVersion()
	now := func(c *state.Config) {
		c.Sched.Enforce, c.Sched.Licenses, c.Sched.UsageReset = []string{"limits", "qos"}, []string{"matlab:3"}, "NOW"
	}
	w.configure(now)
	if u := w.usage("root"); u.Raw != 0 || w.s.View().UsageVersion() == version {
		t.Fatalf("%+v", u)
	}
	w.tick()
	ran := w.usage("root").Raw
	w.configure(now)
	if u := w.usage("root"); u.Raw != ran || ran == 0 {
		t.Fatalf("%d after it came again, %d before", u.Raw, ran)
	}
}

// TestResetPeriodIsSeen: usage that a period's end has wiped out is new to fair share.
func TestResetPeriodIsSeen(t *testing.T) {
	w := enforced(t, func(c *state.Config) { c.Sched.UsageReset = "DAILY" })
	id := w.run(of("alice", job.Spec{}))
	w.now += 100_000
	w.report(id)
	w.tick()
	version := w.s.View().UsageVersion()
	w.now += 48 * 3_600_000
	w.tick()
	if u := w.usage("root"); u.Raw != 0 || w.s.View().UsageVersion() == version {
		t.Fatalf("%+v", u)
	}
}
