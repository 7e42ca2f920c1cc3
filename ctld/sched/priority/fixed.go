package priority

import "math/bits"

// fraction is how many binary digits behind the point log2 gives.
const fraction = 32

// log2 is the base-2 logarithm of a/b >= 1 in 2^-32, cut off, in integers alone: the whole part is the difference of
// lengths, each further digit one squaring. b must be above 0.
func log2(a, b uint64) uint64 {
	if a <= b {
		return 0
	}
	// x = a/b as mantissa in [1, 2) with 63 digits behind the point, and its power of two.
	shift := bits.LeadingZeros64(b)
	b <<= shift
	up := bits.LeadingZeros64(a)
	a <<= up
	whole := shift - up
	if a < b { // the quotient of the mantissas is below 1
		whole--
	} else {
		a >>= 1 // halved so that the quotient fits
	}
	// Where a < b: 2a/b in [1,2), as a*2^64/b has 64 digits for it. Where halved: (a/2)*2^64/b is a/b in [1,2) with 63.
	x, _ := bits.Div64(a, 0, b)
	result := uint64(0)
	for range fraction {
		hi, lo := bits.Mul64(x, x) // x^2 in [1, 4) with 126 digits
		result <<= 1
		if hi>>63 != 0 { // x^2 >= 2
			result |= 1
			x = hi
		} else {
			x = hi<<1 | lo>>63
		}
	}
	return uint64(whole)<<fraction | result
}

// bid is min(log2(bid/price), 4)/4: 0 at or below the price, 1 at sixteen times it. Both are in 10^-6 token.
func bid(amount, price int64) float64 {
	if price <= 0 || amount <= price {
		return 0
	}
	const four = 4 << fraction
	return float64(min(log2(uint64(amount), uint64(price)), four)) / four
}

// log10 is the decimal logarithm of n >= 1, by integers and one division: exact to 2^-32 of a binary digit.
func log10(n uint64) float64 {
	if n <= 1 {
		return 0
	}
	const log2of10 = 14267572527 // log2(10) in 2^-32, rounded
	return float64(log2(n, 1)) / log2of10
}
