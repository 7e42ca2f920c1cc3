package accounting

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestDecay holds the fixed point against the real value.
func TestDecay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, math.MaxInt64).Draw(t, "n")
		half := rapid.Int64Range(1, 400*86_400_000).Draw(t, "half life")
		elapsed := rapid.Int64Range(1, 30*half).Draw(t, "elapsed")
		got := Usage{Raw: n, Wall: n, TRES: TRES{{"cpu", n}}}.Decay(elapsed, half)
		real := float64(n) * math.Exp2(-float64(elapsed)/float64(half))
		if off := math.Abs(float64(got.Raw) - real); off > 1 && off > 1e-9*real {
			t.Fatalf("%d after %d of %d is %d, not %.3f", n, elapsed, half, got.Raw, real)
		}
		if cpus, _ := got.TRES.Get("cpu"); cpus != got.Raw || got.Wall != got.Raw {
			t.Fatalf("%+v", got)
		}
	})
}

func TestDecayEdges(t *testing.T) {
	const week = 7 * 86_400_000
	for name, c := range map[string]struct{ n, elapsed, half, want int64 }{
		"one half life":     {1 << 40, week, week, 1 << 39},
		"three":             {1 << 40, 3 * week, week, 1 << 37},
		"no time":           {1000, 0, week, 1000},
		"no decay":          {1000, week, 0, 1000},
		"all gone":          {math.MaxInt64, 64 * week, week, 0},
		"small ones die":    {1000, 300_000, week, 999},
		"large are rounded": {1_000_000, 300_000, week, 999_656},
		"nothing":           {0, week, week, 0},
		"the largest":       {math.MaxInt64, week, week, 1 << 62},
	} {
		if got := (Usage{Raw: c.n}).Decay(c.elapsed, c.half).Raw; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	u := Usage{Raw: 5_000_000, TRES: TRES{{"cpu", 3}}}
	for range 40_000 {
		u = u.Decay(300_000, week)
	}
	if u.Raw != 0 || u.TRES != nil {
		t.Errorf("usage never ends: %+v", u)
	}
}

// TestRoots: the table is that of 2^-(1/2^k), to the last bit.
func TestRoots(t *testing.T) {
	x := new(big.Float).SetPrec(400).SetFloat64(.5)
	for i, got := range roots {
		x.Sqrt(x)
		want, _ := new(big.Float).SetMantExp(x, 64).Int(nil)
		if diff := new(big.Int).Sub(want, new(big.Int).SetUint64(got)); diff.Int64() < 0 || diff.Int64() > 1 {
			t.Errorf("root %d is off by %v", i, diff)
		}
	}
}

func TestCharge(t *testing.T) {
	u := Usage{}.Charge(TRES{{"cpu", 4}, {"mem", 1024}}, 4, 60_000, 1_000_000)
	if u.Raw != 240_000 || u.Wall != 60_000 || u.Minutes("cpu") != 4 || u.Minutes("mem") != 1024 || u.Minutes("gres/gpu") != 0 {
		t.Errorf("%+v", u)
	}
	if half := u.Charge(TRES{{"cpu", 4}}, 4, 60_000, 500_000); half.Raw != 360_000 || half.Minutes("cpu") != 6 || half.Wall != 90_000 {
		t.Errorf("%+v", half)
	}
	if free := u.Charge(TRES{{"cpu", 4}}, 4, 60_000, 0); free.Raw != u.Raw {
		t.Errorf("%+v", free)
	}
	if most := u.Charge(TRES{{"cpu", math.MaxInt64}}, math.MaxInt64, 1000, 1_000_000); most.Raw != math.MaxInt64 {
		t.Errorf("%+v", most)
	}
}
