package partitions

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/tensorgrid/tensorgrid/accounting"
	"pgregory.net/rapid"
)

func drawClaim(t *rapid.T) *Claim {
	c := &Claim{Start: rapid.Int64Range(0, 1<<41).Draw(t, "start"), Limit: rapid.Int64Range(-1, 1<<33).Draw(t, "limit")}
	for _, name := range []string{"billing", "cpu", "gres/gpu", "mem", "node"} {
		if rapid.Bool().Draw(t, name) {
			c.TRES = append(c.TRES, accounting.Amount{Name: name, N: rapid.Int64Range(1, 1<<30).Draw(t, name+" n")})
		}
	}
	for n := range rapid.IntRange(0, 4).Draw(t, "nodes") {
		c.Nodes = append(c.Nodes, fmt.Sprintf("n%d", n+rapid.IntRange(0, 5).Draw(t, "first")*4))
	}
	return c
}

// TestUseIsTheSum: after any starts and ends the use is that of the jobs which run, counted anew, and no value was changed.
func TestUseIsTheSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		use := Use{Nodes: NewNodeCount()}
		var running []*Claim
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before, copied := use, fmt.Sprintf("%+v %+v", use, use.Nodes)
			if i := rapid.IntRange(-4, len(running)-1).Draw(t, "ends"); i >= 0 {
				use = use.Minus(running[i]).PlusSubmit(-1)
				running = append(running[:i], running[i+1:]...)
			} else {
				c := drawClaim(t)
				use = use.PlusSubmit(1).Plus(c)
				running = append(running, c)
			}
			if fmt.Sprintf("%+v %+v", before, before.Nodes) != copied {
				t.Fatal("a value was changed in place")
			}
		}
		again := Use{Nodes: NewNodeCount()}
		distinct := map[string]bool{}
		for _, c := range running {
			again = again.PlusSubmit(1).Plus(c)
			for _, n := range c.Nodes {
				distinct[n] = true
			}
		}
		if len(again.Nodes.on) == 0 && len(use.Nodes.on) == 0 {
			again.Nodes, use.Nodes = nil, nil
		}
		if !reflect.DeepEqual(use, again) || use.Nodes.Len() != int64(len(distinct)) || use.Jobs != int64(len(running)) {
			t.Fatalf("%+v, counted anew %+v", use, again)
		}
	})
}

// TestRunMinutes: what running jobs still use is their time to their limits.
func TestRunMinutes(t *testing.T) {
	c := &Claim{TRES: accounting.TRES{{Name: "cpu", N: 3}}, Start: 600 * minute, Limit: 20 * minute}
	u := Use{}.Plus(c).Plus(&Claim{TRES: accounting.TRES{{Name: "cpu", N: 1}}, Start: 605 * minute, Limit: 5 * minute})
	for now, want := range map[int64][2]int64{600: {3*20 + 10, 30}, 605: {3*15 + 5, 20}, 610: {30, 10}} {
		n, endless := u.RunMinutes("cpu", now*minute)
		wall, _ := u.RunWall(now * minute)
		if n != want[0] || wall != want[1] || endless {
			t.Errorf("at %d: %d and %d, want %v", now, n, wall, want)
		}
	}
	if n, endless := u.Plus(&Claim{TRES: accounting.TRES{{Name: "cpu", N: 1}}, Limit: -1}).RunMinutes("cpu", 600*minute); n != 70 || !endless {
		t.Errorf("%d %v", n, endless)
	}
}

// TestNoAllocation: a chain without limits, and one whose limits let the job start, cost no memory.
func TestNoAllocation(t *testing.T) {
	cl := &Claim{TRES: accounting.TRES{{Name: "cpu", N: 1}}, Limit: minute}
	var b Lookup = newBooks()
	free := chain(t, Enforce(office(t), all), alice)
	if len(free.Entities()) != 7 {
		t.Errorf("%d entities", len(free.Entities()))
	}
	limited := chain(t, Enforce(office(t, "modify qos where name=normal set maxtresperuser=cpu=9 grptres=cpu=99", "modify account where name=physics set grptres=cpu=100 maxjobs=9"), all), alice)
	for name, c := range map[string]*Chain{"free": free, "limited": limited} {
		if n := testing.AllocsPerRun(100, func() {
			if c.MayStart(b, cl, 0) != nil {
				t.Error("may not start")
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkMayStart(b *testing.B) {
	cl := &Claim{TRES: accounting.TRES{{Name: "cpu", N: 1}}, Limit: minute}
	var l Lookup = newBooks()
	for name, set := range map[string][]string{"free": nil, "five": {"modify qos where name=normal set maxtresperuser=cpu=9 grptres=cpu=99 grpjobs=5", "modify account where name=physics set grptres=cpu=100 maxjobs=9"}} {
		c := chain(b, Enforce(office(b, set...), all), alice)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c.MayStart(l, cl, 0)
			}
		})
	}
}

func BenchmarkChain(b *testing.B) {
	r := Enforce(office(b, "modify qos where name=normal set maxtresperuser=cpu=9 grptres=cpu=99 grpjobs=5", "modify account where name=physics set grptres=cpu=100 maxjobs=9"), all)
	for b.Loop() {
		if _, refusal := r.Chain(alice); refusal != nil {
			b.Fatal(refusal)
		}
	}
}
