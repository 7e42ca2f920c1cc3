// Package accounting holds who uses the cluster on whose account: TRES vectors, accounts, users, associations and QOS with
// their limits, decayed usage, and fair share. It is pure; all of it is integers or stated fixed point, so that replicas agree.
package accounting

import (
	"math"
	"math/bits"
	"strings"
)

// Amount is so much of one trackable resource. Mem is in MiB; shares of time are in seconds of it.
type Amount struct {
	Name string // cpu, mem, node, billing, energy, gres/gpu, gres/gpu:a100, license/matlab
	N    int64
}

// TRES is a vector of trackable resources, sorted by name, each once. It is a value: nothing changes one in place.
type TRES []Amount

// Get is how much there is of one resource; false when the vector does not name it.
func (t TRES) Get(name string) (int64, bool) {
	for i := range t {
		if t[i].Name == name {
			return t[i].N, true
		}
	}
	return 0, false
}

// Plus adds two vectors; sums stop at the largest int64.
func (t TRES) Plus(o TRES) TRES { return merge(t, o, addSaturating) }

// Minus takes o away from t; nothing gets below 0, and what is 0 then is left out.
func (t TRES) Minus(o TRES) TRES {
	out := merge(t, o, func(a, b int64) int64 { return max(a-b, 0) })
	kept := out[:0]
	for _, a := range out {
		if a.N != 0 {
			kept = append(kept, a)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// Times multiplies each amount by n >= 0; products stop at the largest int64.
func (t TRES) Times(n int64) TRES {
	if len(t) == 0 || n == 0 {
		return nil
	}
	out := make(TRES, len(t))
	for i, a := range t {
		out[i] = Amount{a.Name, multiplySaturating(a.N, n)}
	}
	return out
}

// merge joins two sorted vectors; do gets 0 for what one of them does not name.
func merge(a, b TRES, do func(a, b int64) int64) TRES {
	if len(b) == 0 && len(a) == 0 {
		return nil
	}
	out := make(TRES, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = strings.Compare(a[0].Name, b[0].Name)
		}
		switch {
		case order < 0:
			out, a = append(out, Amount{a[0].Name, do(a[0].N, 0)}), a[1:]
		case order > 0:
			out, b = append(out, Amount{b[0].Name, do(0, b[0].N)}), b[1:]
		default:
			out, a, b = append(out, Amount{a[0].Name, do(a[0].N, b[0].N)}), a[1:], b[1:]
		}
	}
	return out
}

// with is t with one amount set.
func (t TRES) with(name string, n int64) TRES {
	out := make(TRES, 0, len(t)+1)
	done := false
	for _, a := range t {
		if !done && a.Name >= name {
			out, done = append(out, Amount{name, n}), true
		}
		if a.Name != name {
			out = append(out, a)
		}
	}
	if !done {
		out = append(out, Amount{name, n})
	}
	return out
}

// With is t with one amount set, as for billing that is worked out from the rest.
func (t TRES) With(name string, n int64) TRES { return t.with(name, n) }

// without is t with one resource left out.
func (t TRES) without(name string) TRES {
	var out TRES
	for _, a := range t {
		if a.Name != name {
			out = append(out, a)
		}
	}
	return out
}

func addSaturating(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// multiplySaturating multiplies numbers that are not negative.
func multiplySaturating(a, b int64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// multiplyDivide is a*b/c for numbers that are not negative, c > 0, without overflow on the way; it rounds down.
func multiplyDivide(a, b, c int64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	if q > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(q)
}

// Add is a+b of numbers that are not negative; it stops at the largest int64.
func Add(a, b int64) int64 { return addSaturating(a, b) }

// Multiply is a*b, likewise.
func Multiply(a, b int64) int64 { return multiplySaturating(a, b) }

// Scale is n times a factor in 10^-6, rounded down, likewise.
func Scale(n, factor int64) int64 { return multiplyDivide(n, factor, billingUnit) }
