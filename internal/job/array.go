package job

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrArraySpec is wrapped by errors about an array that cannot be read or is too large.
var ErrArraySpec = errors.New("invalid job array specification")

// MaxArrayIndex bounds the numbers of any array, whatever a site configures.
const MaxArrayIndex = 4_000_000

// maxListed bounds what the ranges with a step of one array may list together, repeats included,
// and so the work of merging them.
const maxListed = 2 * MaxArrayIndex

// ParseArray reads an array as --array does: 0-4, 1-9:2, lists of them, [1-3], and %N for the most tasks at
// once (0 = no limit). Numbers must be under maxSize (MaxArraySize; 0 stands for MaxArrayIndex).
func ParseArray(spec string, maxSize uint32) (set *Set, limit uint32, err error) {
	if maxSize == 0 || maxSize > MaxArrayIndex {
		maxSize = MaxArrayIndex
	}
	if len(spec) > MaxList {
		return nil, 0, fmt.Errorf("%w: %d bytes, the limit MaxList is %d", ErrArraySpec, len(spec), MaxList)
	}
	body, throttle, hasLimit := strings.Cut(spec, "%")
	if strings.HasPrefix(body, "[") {
		tail := body
		if hasLimit && !strings.HasSuffix(body, "]") {
			tail = throttle
		}
		if !strings.HasSuffix(tail, "]") {
			return nil, 0, fmt.Errorf("%w %q: '[' is not closed", ErrArraySpec, spec)
		}
		body, throttle = strings.TrimSuffix(body[1:], "]"), strings.TrimSuffix(throttle, "]")
	}
	if hasLimit {
		n, ok := digitsIn(throttle)
		if !ok || n > int64(^uint32(0)) {
			return nil, 0, fmt.Errorf("%w %q: %q after %% is not a number of tasks", ErrArraySpec, spec, throttle)
		}
		limit = uint32(n)
	}
	var runs []setRun
	listed := 0
	for _, word := range strings.Split(body, ",") {
		if word == "" {
			continue // Slurm takes 1,,2
		}
		run, err := parseRun(word, maxSize)
		if err != nil {
			return nil, 0, fmt.Errorf("%w %q: %w", ErrArraySpec, spec, err)
		}
		if run.step > 1 {
			listed += run.len()
		}
		runs = append(runs, run)
	}
	if listed > maxListed {
		return nil, 0, fmt.Errorf("%w: its ranges with a step list %d numbers, the limit is %d", ErrArraySpec, listed, maxListed)
	}
	if len(runs) == 0 {
		return nil, 0, fmt.Errorf("%w %q: no task", ErrArraySpec, spec)
	}
	return unite(runs), limit, nil
}

// parseRun reads N, N-M or N-M:S.
func parseRun(word string, maxSize uint32) (setRun, error) {
	span, stepText, hasStep := strings.Cut(word, ":")
	lowText, highText, isRange := strings.Cut(span, "-")
	low, ok := digitsIn(lowText)
	if !ok && isRange && lowText == "" {
		return setRun{}, fmt.Errorf("%q is not a task number: it may not be negative", word)
	}
	if !ok {
		return setRun{}, fmt.Errorf("%q is not a task number", lowText)
	}
	high := low
	if isRange {
		if high, ok = digitsIn(highText); !ok {
			return setRun{}, fmt.Errorf("%q is not a task number", highText)
		}
	} else if hasStep {
		return setRun{}, fmt.Errorf("%q has a step but no range", word)
	}
	step := int64(1)
	if hasStep {
		if step, ok = digitsIn(stepText); !ok || step == 0 {
			return setRun{}, fmt.Errorf("%q is not a step", stepText)
		}
	}
	if low > high {
		return setRun{}, fmt.Errorf("range %q: %d is above %d", word, low, high)
	}
	if high >= int64(maxSize) {
		return setRun{}, fmt.Errorf("task %s is too large, MaxArraySize is %d and task numbers stay below it", span[strings.IndexByte(span, '-')+1:], maxSize)
	}
	step = min(step, high-low+1)
	r := setRun{uint32(low), uint32(low + (high-low)/step*step), uint32(step)}
	if r.first == r.last {
		r.step = 1
	}
	return r, nil
}

// unite makes one set of runs in any order that may overlap.
func unite(runs []setRun) *Set {
	slices.SortFunc(runs, func(a, b setRun) int { return int(int64(a.first) - int64(b.first)) })
	var b setBuilder
	for i := 0; i < len(runs); {
		end, last, solid := i+1, runs[i].last, runs[i].step == 1
		for end < len(runs) && runs[end].first <= last {
			last = max(last, runs[end].last)
			solid = solid && runs[end].step == 1
			end++
		}
		switch {
		case end == i+1:
			b.add(runs[i])
		case solid:
			b.add(setRun{runs[i].first, last, 1})
		default:
			mergeSparse(&b, runs[i:end], last)
		}
		i = end
	}
	return b.set()
}

// mergeSparse adds overlapping runs with gaps number by number; last is the greatest of them.
func mergeSparse(b *setBuilder, runs []setRun, last uint32) {
	base := runs[0].first
	member := make([]bool, last-base+1)
	for _, r := range runs {
		for n := range (&Set{runs: []setRun{r}}).All() {
			member[n-base] = true
		}
	}
	for i, in := range member {
		if in {
			n := base + uint32(i)
			b.add(setRun{n, n, 1})
		}
	}
}

// DefaultOutput is the output pattern of a batch job that names none.
func DefaultOutput(isArray bool) string {
	if isArray {
		return "slurm-%A_%a.out"
	}
	return "slurm-%j.out"
}
