package gsub

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxNodeParts bounds the parts of a list of node counts.
const maxNodeParts = 1000

// setNodes reads MIN, MIN-MAX, and lists of counts with steps, as 1,2,3 or 20-100:20; each number may end in k or m.
// The planner takes any number from MIN to MAX, so a list with gaps cannot be kept.
func setNodes(r *request, v string) error {
	var spans []span
	for part := range strings.SplitSeq(v, ",") {
		s, ok := parseSpan(part)
		if !ok || len(spans) == maxNodeParts {
			return fmt.Errorf("Invalid node count specification: %q\nuse --nodes=MIN or --nodes=MIN-MAX", v)
		}
		spans = append(spans, s)
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	lo, hi := spans[0].lo, spans[0].hi
	gaps := false
	for _, s := range spans {
		gaps = gaps || s.step > 1 || s.lo > hi+1
		hi = max(hi, s.hi)
	}
	if gaps {
		return &refusal{text: "Node count specification invalid", why: fmt.Sprintf(
			"--nodes=%s leaves numbers out, and a job gets any number of a range here; use --nodes=%d-%d, or one job for each number", v, lo, hi)}
	}
	r.spec.MinNodes, r.spec.MaxNodes = lo, hi
	return nil
}

// span is lo, lo+step, ... up to hi.
type span struct{ lo, hi, step uint32 }

func parseSpan(s string) (span, bool) {
	numbers, step, stepped := strings.Cut(s, ":")
	low, high, ranged := strings.Cut(numbers, "-")
	lo, ok := count(low)
	if !ok || lo == 0 || stepped && !ranged {
		return span{}, false
	}
	out := span{lo, lo, 1}
	if ranged {
		if out.hi, ok = count(high); !ok || out.hi < lo {
			return span{}, false
		}
	}
	if stepped {
		if out.step, ok = count(step); !ok || out.step == 0 {
			return span{}, false
		}
		out.hi -= (out.hi - lo) % out.step
		if out.hi == lo {
			out.step = 1
		}
	}
	return out, true
}

func count(s string) (uint32, bool) {
	unit := uint64(1)
	switch {
	case strings.HasSuffix(s, "k") || strings.HasSuffix(s, "K"):
		unit, s = 1024, s[:len(s)-1]
	case strings.HasSuffix(s, "m") || strings.HasSuffix(s, "M"):
		unit, s = 1024*1024, s[:len(s)-1]
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n*unit > 1<<31 {
		return 0, false
	}
	return uint32(n * unit), true
}
