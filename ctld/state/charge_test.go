package state_test

import (
	"math"
	"testing"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

func (w *world) usage(account string) accounting.Usage {
	v := w.s.View()
	return v.Limits().Usage(partitions.Entity{Kind: partitions.OfAssociation, ID: v.Accounting().AccountID(account)})
}

func (w *world) tick() {
	w.Helper()
	w.do(func(t *state.Tx) {
		if r := t.UsageTick(); r != nil {
			w.Fatal(r)
		}
	})
}

// at lets the next entry come at that time.
func (w *world) at(now int64) { w.now = now - 1000 }

func cpuOf(u accounting.Usage) int64 {
	n, _ := u.TRES.Get("cpu")
	return n
}

// TestUsageIsCharged: a run is charged once, to all above it, however the ticks fall; not while it is suspended; its QOS's
// factor counts.
func TestUsageIsCharged(t *testing.T) {
	w := enforced(t)
	id := w.submit(of("bob", job.Spec{TimeLimit: 3_600_000}))
	w.plan(w.begin(id, -1, alloc("n1", 2)))
	start := w.job(id).Start
	w.launched(id, job.CauseNone, true)
	w.at(start + 100_000)
	w.tick()
	if a, b := cpuOf(w.usage("sub")), cpuOf(w.usage("lab")); a != b || a != 2*100_000 {
		t.Fatalf("usage %d and %d", a, b)
	}
	w.at(start + 200_000)
	w.control(state.OpSuspend, root, id)
	w.at(start + 500_000)
	w.tick()
	if n := cpuOf(w.usage("lab")); n != 2*200_000 {
		t.Fatalf("usage %d while it is suspended", n)
	}
	w.at(start + 600_000)
	w.control(state.OpResume, root, id)
	w.at(start + 700_000)
	w.report(id, func(r *state.Reported) { r.End = start + 700_000 })
	u := w.usage("lab")
	if cpuOf(u) != 2*300_000 || u.Wall != 300_000 || u.Raw != 2*300_000 {
		t.Fatalf("usage %+v", u)
	}
	if h := w.s.View().History(3); h != (state.RunTimes{300_000, 0}) {
		t.Fatalf("run times %v", h)
	}
	w.at(start + 800_000)
	w.tick()
	if n := cpuOf(w.usage("lab")); n != 2*300_000 {
		t.Fatalf("usage %d after it has ended", n)
	}
}

// TestUsageFactor: a QOS counts for more, or for nothing.
func TestUsageFactor(t *testing.T) {
	w := enforced(t)
	w.must("modify", "qos", []string{"name=high"}, []string{"usagefactor=2.5"})
	id := w.submit(of("alice", job.Spec{QOS: "high"}))
	w.plan(w.begin(id, -1, alloc("n1", 2)))
	w.at(w.job(id).Start + 100_000)
	w.tick()
	if n := cpuOf(w.usage("lab")); n != 500_000 {
		t.Fatalf("usage %d", n)
	}
}

// TestUsageDecays: a half after each half-life, in one step or in many.
func TestUsageDecays(t *testing.T) {
	half := func(c *state.Config) { c.Sched.HalfLife = 100_000 }
	w := enforced(t, half)
	id := w.submit(of("alice", job.Spec{}))
	w.plan(w.begin(id, -1, alloc("n1", 1)))
	w.at(w.job(id).Start + 1_000_000)
	w.report(id)
	before, at := cpuOf(w.usage("lab")), w.s.View().UsageTime()
	w.at(at + 200_000*20)
	for range 4 {
		w.at(w.now + 1000 + 50_000)
		w.tick()
	}
	after := w.s.View().UsageTime()
	want := float64(before) * math.Pow(0.5, float64(after-at)/100_000)
	if got := float64(cpuOf(w.usage("lab"))); math.Abs(got-want) > 5 {
		t.Fatalf("usage %.0f, want %.0f of %d", got, want, before)
	}
}

// TestUsageIsReset: at the end of a period, in UTC, all of it goes.
func TestUsageIsReset(t *testing.T) {
	for _, c := range []struct {
		period    string
		from, to  int64
		want      bool
		something string
	}{
		{"NONE", 0, 400 * 24 * 3_600_000, false, "never"},
		{"DAILY", 23 * 3_600_000, 24*3_600_000 - 1, false, "before midnight"},
		{"DAILY", 23 * 3_600_000, 24 * 3_600_000, true, "at midnight"},
		{"WEEKLY", 3*24*3_600_000 - 5000, 3 * 24 * 3_600_000, true, "Sunday, 4 January 1970"},
		{"WEEKLY", 3 * 24 * 3_600_000, 10*24*3_600_000 - 1, false, "to the next Saturday"},
		{"MONTHLY", 30 * 24 * 3_600_000, 31 * 24 * 3_600_000, true, "1 February"},
		{"QUARTERLY", 59 * 24 * 3_600_000, 89 * 24 * 3_600_000, false, "31 March"},
		{"QUARTERLY", 59 * 24 * 3_600_000, 90 * 24 * 3_600_000, true, "1 April"},
		{"YEARLY", 364 * 24 * 3_600_000, 365 * 24 * 3_600_000, true, "1971"},
	} {
		w := enforced(t, func(cfg *state.Config) { cfg.Sched.UsageReset = c.period })
		id := w.submit(of("alice", job.Spec{}))
		w.plan(w.begin(id, -1, alloc("n1", 1)))
		w.at(w.now + 600_000)
		w.report(id)
		w.at(max(c.from, w.now+1000))
		w.tick()
		if w.now != max(c.from, w.now) {
			t.Fatalf("%s: the clock is at %d", c.period, w.now)
		}
		before := cpuOf(w.usage("lab"))
		w.at(c.to)
		w.tick()
		if gone := cpuOf(w.usage("lab")) == 0; before > 0 && gone != c.want {
			t.Errorf("%s, %s: gone %t", c.period, c.something, gone)
		}
	}
}

// TestDeletedUsage: what a deleted account has used is forgotten.
func TestDeletedUsage(t *testing.T) {
	w := enforced(t)
	id := w.submit(of("bob", job.Spec{}))
	w.plan(w.begin(id, -1, alloc("n1", 1)))
	w.at(w.now + 600_000)
	w.report(id)
	count := func() (n int) {
		for range w.s.View().Usages() {
			n++
		}
		return n
	}
	before := count()
	w.must("delete", "user", []string{"name=bob"}, nil)
	if after := count(); after != before-1 {
		t.Errorf("usage of %d entities, before of %d", after, before)
	}
}
