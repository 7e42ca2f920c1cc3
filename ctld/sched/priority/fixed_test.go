package priority

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestLog2(t *testing.T) {
	for _, c := range []struct {
		a, b uint64
		want uint64
	}{{1, 1, 0}, {2, 1, 1 << 32}, {16, 1, 4 << 32}, {3, 2, 2512394809}, {5, 7, 0}, {math.MaxUint64, math.MaxUint64, 0}, {math.MaxUint64, 1, 1<<38 - 1}, {1 << 63, 1 << 62, 1 << 32}} {
		if got := log2(c.a, c.b); got != c.want {
			t.Errorf("log2(%d/%d) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.Uint64Range(1, math.MaxUint64).Draw(t, "b")
		a := rapid.Uint64Range(b, math.MaxUint64).Draw(t, "a")
		got, want := float64(log2(a, b))/(1<<32), math.Log2(float64(a)/float64(b))
		if math.Abs(got-want) > 1e-8 {
			t.Fatalf("log2(%d/%d) = %v, want %v", a, b, got, want)
		}
	})
}

func TestBid(t *testing.T) {
	for _, c := range []struct {
		bid, price int64
		want       float64
	}{{0, 5, 0}, {5, 5, 0}, {4, 5, 0}, {10, 5, .25}, {20, 5, .5}, {80, 5, 1}, {1 << 60, 1, 1}, {7, 0, 0}} {
		if got := bid(c.bid, c.price); got != c.want {
			t.Errorf("bid %d at price %d = %v, want %v", c.bid, c.price, got, c.want)
		}
	}
}

func TestLog10(t *testing.T) {
	for _, c := range []struct {
		n    uint64
		want float64
	}{{1, 0}, {10, 1}, {1000, 3}, {25, math.Log10(25)}, {1e15, 15}} {
		if got := log10(c.n); math.Abs(got-c.want) > 1e-8 {
			t.Errorf("log10(%d) = %v, want %v", c.n, got, c.want)
		}
	}
}
