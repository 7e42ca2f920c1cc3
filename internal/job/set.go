package job

import (
	"iter"
	"slices"
	"sort"
)

// Set is an immutable set of array task numbers. The zero value is empty, and so is nil.
// Kept as sorted, disjoint runs, so that 0-999999 costs one of them.
type Set struct{ runs []setRun }

// setRun holds first, first+step, ..., last.
//
// Invariant: first <= last, step >= 1, step divides last-first, and step is 1 when first == last.
// In a Set each run begins after the one before it has ended.
type setRun struct{ first, last, step uint32 }

func (r setRun) len() int { return int((r.last-r.first)/r.step) + 1 }

func (r setRun) contains(n uint32) bool {
	return r.first <= n && n <= r.last && (n-r.first)%r.step == 0
}

// NewSet makes a set of the numbers given, in any order.
func NewSet(numbers ...uint32) *Set {
	sorted := slices.Clone(numbers)
	slices.Sort(sorted)
	var b setBuilder
	for _, n := range slices.Compact(sorted) {
		b.add(setRun{n, n, 1})
	}
	return b.set()
}

// setBuilder takes runs in ascending order and joins neighbours that make one run.
type setBuilder struct{ runs []setRun }

func (b *setBuilder) set() *Set { return &Set{runs: b.runs} }

// add puts r, which begins after everything that was added before.
func (b *setBuilder) add(r setRun) {
	n := len(b.runs)
	if n == 0 {
		b.runs = append(b.runs, r)
		return
	}
	t := &b.runs[n-1]
	gap := r.first - t.last
	single := r.first == r.last
	switch {
	case t.first != t.last && gap == t.step && (single || r.step == t.step):
		t.last = r.last
	case t.first == t.last && gap == 1 && (single || r.step == 1):
		t.last = r.last
	case t.first == t.last && !single && gap == r.step:
		t.last, t.step = r.last, r.step
	case n > 1 && single && t.first == t.last && b.runs[n-2].last == b.runs[n-2].first && t.first-b.runs[n-2].last == gap:
		// Three single numbers at equal distances are one run with a step.
		b.runs = b.runs[:n-1]
		b.runs[n-2].last, b.runs[n-2].step = r.last, gap
	default:
		b.runs = append(b.runs, r)
	}
}

// addPart puts the numbers of r that lie between low and high, both included.
func (b *setBuilder) addPart(r setRun, low, high uint32) {
	if low > r.first {
		step := uint64(r.step)
		first := uint64(r.first) + (uint64(low-r.first)+step-1)/step*step
		if first > uint64(r.last) {
			return
		}
		r.first = uint32(first)
	}
	if high < r.first {
		return
	}
	if high < r.last {
		r.last = r.first + (high-r.first)/r.step*r.step
	}
	if r.first == r.last {
		r.step = 1
	}
	b.add(r)
}

// Len is how many numbers are in it.
func (s *Set) Len() int {
	n := 0
	for _, r := range s.all() {
		n += r.len()
	}
	return n
}

func (s *Set) all() []setRun {
	if s == nil {
		return nil
	}
	return s.runs
}

// Contains tells whether n is in it.
func (s *Set) Contains(n uint32) bool {
	runs := s.all()
	i := sort.Search(len(runs), func(i int) bool { return runs[i].last >= n })
	return i < len(runs) && runs[i].contains(n)
}

// Min is the least number, 0 when the set is empty.
func (s *Set) Min() uint32 {
	if runs := s.all(); len(runs) > 0 {
		return runs[0].first
	}
	return 0
}

// Max is the greatest number, 0 when the set is empty.
func (s *Set) Max() uint32 {
	if runs := s.all(); len(runs) > 0 {
		return runs[len(runs)-1].last
	}
	return 0
}

// Step is the distance between the numbers when all are equally far apart, else 1.
func (s *Set) Step() uint32 {
	switch runs := s.all(); {
	case len(runs) == 1:
		return runs[0].step
	case len(runs) == 2 && s.Len() == 2:
		return s.Max() - s.Min()
	}
	return 1
}

// All walks the numbers, ascending.
func (s *Set) All() iter.Seq[uint32] { return s.Each }

// Each calls f for the numbers, ascending, until it gives false.
func (s *Set) Each(f func(uint32) bool) {
	for _, r := range s.all() {
		for n := r.first; ; n += r.step {
			if !f(n) {
				return
			}
			if n == r.last {
				break
			}
		}
	}
}

// Without is the set but for n.
func (s *Set) Without(n uint32) *Set {
	if !s.Contains(n) {
		return s
	}
	return s.WithoutSet(&Set{runs: []setRun{{n, n, 1}}})
}

// WithoutSet is what is in s and not in o.
func (s *Set) WithoutSet(o *Set) *Set {
	var b setBuilder
	s.against(o, func(r setRun, hits []setRun) {
		low := r.first
		for _, h := range hits {
			if h.first > low {
				b.addPart(r, low, h.first-1)
			}
			if h.last >= r.last {
				return
			}
			low = max(low, h.last+1)
		}
		b.addPart(r, low, r.last)
	}, func(r setRun) {
		for n := range (&Set{runs: []setRun{r}}).All() {
			if !o.Contains(n) {
				b.add(setRun{n, n, 1})
			}
		}
	})
	return b.set()
}

// Intersect is what is in both.
func (s *Set) Intersect(o *Set) *Set {
	var b setBuilder
	s.against(o, func(r setRun, hits []setRun) {
		for _, h := range hits {
			b.addPart(r, max(r.first, h.first), min(r.last, h.last))
		}
	}, func(r setRun) {
		for n := range (&Set{runs: []setRun{r}}).All() {
			if o.Contains(n) {
				b.add(setRun{n, n, 1})
			}
		}
	})
	return b.set()
}

// against walks the runs of s: solid is called when the runs of o that overlap one have no gaps inside
// (one step covers the whole of it), so that it can be cut in ranges; sparse when only single numbers tell.
func (s *Set) against(o *Set, solid func(setRun, []setRun), sparse func(setRun)) {
	other := o.all()
	at := 0
	for _, r := range s.all() {
		for at < len(other) && other[at].last < r.first {
			at++
		}
		end, gaps := at, false
		for end < len(other) && other[end].first <= r.last {
			gaps = gaps || other[end].step > 1
			end++
		}
		if gaps {
			sparse(r)
		} else {
			solid(r, other[at:end])
		}
	}
}

// Equal tells whether both hold the same numbers.
func (s *Set) Equal(o *Set) bool {
	next, stop := iter.Pull(o.All())
	defer stop()
	for n := range s.All() {
		if m, ok := next(); !ok || m != n {
			return false
		}
	}
	_, more := next()
	return !more
}
