package job

import (
	"errors"
	"fmt"
	"math"
)

// ErrMemSpec is wrapped by errors about a size that cannot be read.
var ErrMemSpec = errors.New("invalid memory specification")

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
)

// ParseMem reads a size as --mem does: digits and K, M, G or T with an optional B, in any case; MiB when
// no unit is given. The result is bytes, a multiple of 1 MiB, rounded up. 0 is 0: the caller says what it stands for.
func ParseMem(s string) (int64, error) {
	end := len(s)
	for end > 0 && (s[end-1] < '0' || s[end-1] > '9') {
		end--
	}
	n, ok := digitsIn(s[:end])
	if !ok {
		return 0, fmt.Errorf("%w %q: not a whole number with K, M, G or T", ErrMemSpec, s)
	}
	unit := mib
	switch suffix := s[end:]; {
	case suffix == "" || equalFold(suffix, "M") || equalFold(suffix, "MB"):
	case equalFold(suffix, "K") || equalFold(suffix, "KB"):
		unit = kib
	case equalFold(suffix, "G") || equalFold(suffix, "GB"):
		unit = mib << 10
	case equalFold(suffix, "T") || equalFold(suffix, "TB"):
		unit = mib << 20
	default:
		return 0, fmt.Errorf("%w %q: unknown unit %q, use K, M, G or T", ErrMemSpec, s, suffix)
	}
	if n > (math.MaxInt64-mib)/unit {
		return 0, fmt.Errorf("%w %q: too large", ErrMemSpec, s)
	}
	return (n*unit + mib - 1) / mib * mib, nil
}

// MaxMemory bounds any size that a job asks for, in bytes.
const MaxMemory = int64(1) << 60

// FormatMem writes bytes as Slurm does: in the largest of M, G, T, P that divides them, 4000M or 16G.
// Less than a MiB is rounded up to one. WholeNode, like 0, is "0".
func FormatMem(bytes int64) string {
	if bytes <= 0 {
		return "0"
	}
	n := (bytes-1)/mib + 1
	unit := 0
	for n%1024 == 0 && unit < len("MGTP")-1 {
		n /= 1024
		unit++
	}
	return fmt.Sprintf("%d%c", n, "MGTP"[unit])
}
