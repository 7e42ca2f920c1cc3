package job

import (
	"errors"
	"fmt"
	"strings"
)

// ErrTimeSpec is wrapped by errors about a duration that cannot be read.
var ErrTimeSpec = errors.New("invalid time specification")

// Milliseconds of the units that durations are written in.
const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// MaxTimeLimit is the longest limit that can be asked for, in ms: as many minutes as fit Slurm's 32 bits
// below the two values that mean "none" and "not given".
const MaxTimeLimit = (1<<32 - 3) * minute

// ParseTimeLimit reads a time limit: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S, UNLIMITED, INFINITE or -1.
// It gives ms in whole minutes, rounded up, and Unlimited for a limit of 0. A limit over MaxTimeLimit is an error.
func ParseTimeLimit(s string) (int64, error) {
	ms, err := ParseDuration(s)
	if err != nil || ms == Unlimited {
		return ms, err
	}
	if ms == 0 {
		return Unlimited, nil
	}
	return (ms + minute - 1) / minute * minute, nil
}

// ParseDuration reads what ParseTimeLimit does, to the second; 0 is 0 ms.
func ParseDuration(s string) (int64, error) {
	if s == "-1" || equalFold(s, "UNLIMITED") || equalFold(s, "INFINITE") {
		return Unlimited, nil
	}
	days, clock, hasDays := strings.Cut(s, "-")
	if n, ok := digitsIn(clock); hasDays && days == "" && ok && n > 0 {
		return 0, fmt.Errorf("%w %q: it is negative; only -1 has a meaning, no limit", ErrTimeSpec, s)
	}
	if !hasDays {
		clock = s
	}
	fields := strings.Split(clock, ":")
	var units []int64
	switch {
	case len(fields) > 3:
		return 0, fmt.Errorf("%w %q: more than three fields between colons", ErrTimeSpec, s)
	case hasDays:
		units = []int64{hour, minute, second}[:len(fields)]
	case len(fields) == 1:
		units = []int64{minute}
	case len(fields) == 2:
		units = []int64{minute, second}
	default:
		units = []int64{hour, minute, second}
	}
	if hasDays {
		fields, units = append([]string{days}, fields...), append([]int64{day}, units...)
	}
	var total int64
	for i, field := range fields {
		n, ok := digitsIn(field)
		if !ok {
			return 0, fmt.Errorf("%w %q: %q is not a number", ErrTimeSpec, s, field)
		}
		if n > MaxTimeLimit/units[i] || total+n*units[i] > MaxTimeLimit {
			return 0, fmt.Errorf("%w %q: longer than the limit of %s", ErrTimeSpec, s, FormatDuration(MaxTimeLimit))
		}
		total += n * units[i]
	}
	return total, nil
}

// digitsIn reads plain digits: no sign, no blank. A number too big for 62 bits is given as the biggest.
func digitsIn(s string) (int64, bool) {
	if s == "" {
		return 0, false
	}
	const most = int64(1) << 62
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		if n < most/16 {
			n = n*10 + int64(s[i]-'0')
		} else {
			n = most
		}
	}
	return n, true
}

// FormatDuration writes ms as [D-]HH:MM:SS, cut to seconds, or UNLIMITED. A negative duration is INVALID.
func FormatDuration(ms int64) string {
	if ms == Unlimited {
		return "UNLIMITED"
	}
	if ms < 0 {
		return "INVALID"
	}
	d, h, m, s := ms/day, ms%day/hour, ms%hour/minute, ms%minute/second
	if d > 0 {
		return fmt.Sprintf("%d-%02d:%02d:%02d", d, h, m, s)
	}
	return fmt.Sprintf("%02d:%02d:%02d", h, m, s)
}

// FormatElapsed writes ms as squeue's TIME and TIME_LIMIT columns do: M:SS, H:MM:SS, D-HH:MM:SS or UNLIMITED.
func FormatElapsed(ms int64) string {
	if ms == Unlimited {
		return "UNLIMITED"
	}
	if ms < 0 {
		return "INVALID"
	}
	d, h, m, s := ms/day, ms%day/hour, ms%hour/minute, ms%minute/second
	switch {
	case d > 0:
		return fmt.Sprintf("%d-%02d:%02d:%02d", d, h, m, s)
	case h > 0:
		return fmt.Sprintf("%d:%02d:%02d", h, m, s)
	}
	return fmt.Sprintf("%d:%02d", m, s)
}
