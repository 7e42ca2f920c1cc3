package step

import (
	"fmt"
	"strconv"
	"strings"
)

// FormatCounts writes one number a node as SLURM_TASKS_PER_NODE and SLURM_JOB_CPUS_PER_NODE do: 2(x3),1.
func FormatCounts(counts []uint32) string {
	var b []byte
	for i := 0; i < len(counts); {
		end := i + 1
		for end < len(counts) && counts[end] == counts[i] {
			end++
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(counts[i]), 10)
		if end-i > 1 {
			b = append(b, "(x"...)
			b = strconv.AppendInt(b, int64(end-i), 10)
			b = append(b, ')')
		}
		i = end
	}
	return string(b)
}

// ParseCounts reads what FormatCounts writes, for at most MaxNodes nodes.
func ParseCounts(s string) ([]uint32, error) {
	if s == "" {
		return nil, nil
	}
	var counts []uint32
	for rest, more := s, true; more; {
		var word string
		word, rest, more = strings.Cut(rest, ",")
		number, tail, hasTimes := strings.Cut(word, "(x")
		times := uint64(1)
		n, err := strconv.ParseUint(number, 10, 32)
		if err == nil && hasTimes {
			body, ok := strings.CutSuffix(tail, ")")
			times, err = strconv.ParseUint(body, 10, 32)
			if !ok || times == 0 {
				return nil, fmt.Errorf("%w: %q in %q is not (xN)", ErrLayout, short(word), short(s))
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %q in %q is not a number", ErrLayout, short(word), short(s))
		}
		if times > uint64(MaxNodes-len(counts)) {
			return nil, fmt.Errorf("%w: more than MaxNodes, %d", ErrLayout, MaxNodes)
		}
		for range times {
			counts = append(counts, uint32(n))
		}
	}
	return counts, nil
}

// short cuts a text for an error.
func short(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
