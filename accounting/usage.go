package accounting

import (
	"math/big"
	"math/bits"
)

// Usage is the decayed usage of one entity, in fixed point: TRES in TRES-milliseconds, Raw in billing-milliseconds, Wall
// in ms of running jobs.
type Usage struct {
	TRES TRES
	Raw  int64
	Wall int64
}

// roots[i] is 2^-(2^-(i+1)) as a fraction of 2^64, rounded down: repeated square roots of a half in whole numbers, so
// that every machine has the same table.
var roots = func() (table [64]uint64) {
	x := new(big.Int).Lsh(big.NewInt(1), 191) // a half, of 2^192
	for i := range table {
		x.Sqrt(x.Lsh(x, 192))
		table[i] = new(big.Int).Rsh(x, 128).Uint64()
	}
	return table
}()

// factorOf is 2^-(exponent/2^64) as a fraction of 2^64; one says that it is 1.
func factorOf(exponent uint64) (factor uint64, one bool) {
	one = true
	for i := range roots {
		if exponent>>(63-i)&1 == 0 {
			continue
		}
		if one {
			factor, one = roots[i], false
			continue
		}
		factor, _ = bits.Mul64(factor, roots[i])
	}
	return factor, one
}

// decayFactor is 2^-(elapsed/half) as a fraction of 2^64; whole says that it is 1.
func decayFactor(elapsedMS, halfLifeMS int64) (factor uint64, whole bool) {
	halvings, rest := elapsedMS/halfLifeMS, uint64(elapsedMS%halfLifeMS)
	exponent, _ := bits.Div64(rest, 0, uint64(halfLifeMS)) // rest/half as a fraction of 2^64
	factor, one := factorOf(exponent)
	switch {
	case halvings == 0:
		return factor, one
	case halvings > 64:
		return 0, false
	case one:
		return 1 << (64 - halvings), false
	}
	return factor >> halvings, false
}

// dies is the amount from which on decay rounds to the nearest. What is smaller rounds down, so that it ends at 0.
const dies = 4096

func decayed(n int64, factor uint64) int64 {
	if n <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(n), factor)
	if lo>>63 == 1 && n >= dies {
		hi++
	}
	return int64(hi)
}

// Decay is the usage after a time: each amount times 2^-(elapsed/halfLife), both in ms, in whole numbers and within
// 10^-9 of the real value or half a unit. halfLife <= 0 or elapsed <= 0: unchanged.
func (u Usage) Decay(elapsedMS, halfLifeMS int64) Usage {
	if halfLifeMS <= 0 || elapsedMS <= 0 {
		return u
	}
	factor, whole := decayFactor(elapsedMS, halfLifeMS)
	if whole {
		return u
	}
	out := Usage{Raw: decayed(u.Raw, factor), Wall: decayed(u.Wall, factor)}
	for _, a := range u.TRES {
		if n := decayed(a.N, factor); n > 0 {
			if out.TRES == nil {
				out.TRES = make(TRES, 0, len(u.TRES))
			}
			out.TRES = append(out.TRES, Amount{a.Name, n})
		}
	}
	return out
}

// Charge adds what t and its billing used in that many ms; factor is the QOS's UsageFactor in 10^-6.
func (u Usage) Charge(t TRES, billing int64, ms int64, factor int64) Usage {
	if ms <= 0 || factor <= 0 {
		return u
	}
	time := multiplyDivide(ms, factor, billingUnit)
	out := Usage{Raw: addSaturating(u.Raw, multiplyDivide(multiplySaturating(billing, ms), factor, billingUnit)), Wall: addSaturating(u.Wall, time)}
	used := make(TRES, 0, len(t))
	for _, a := range t {
		if n := multiplyDivide(multiplySaturating(a.N, ms), factor, billingUnit); n > 0 {
			used = append(used, Amount{a.Name, n})
		}
	}
	out.TRES = u.TRES.Plus(used)
	return out
}

// Minutes is the used amount of one resource in TRES-minutes, rounded down.
func (u Usage) Minutes(name string) int64 {
	n, _ := u.TRES.Get(name)
	return n / 60_000
}
