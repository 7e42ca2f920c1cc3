package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// byEnd is the ends of a round's starts in order, kept between the searches of the round.
type byEnd struct {
	list []ending
	last *job.NodeAlloc // of the last start that is in the list
}

// freshByEnd gives the ends of this round's starts by time, node and job. They are not to be changed. Starts come and go at
// the end of r.fresh only: what stands before the last one that was seen is what stood there.
func (r *round) freshByEnd() []ending {
	b, n := &r.ordered, len(r.ordered.list)
	switch {
	case n > len(r.fresh) || n > 0 && r.fresh[n-1].alloc != b.last:
		b.list = slices.Clone(r.fresh)
		slices.SortFunc(b.list, ending.compare)
	case n < len(r.fresh):
		more := slices.Clone(r.fresh[n:])
		slices.SortFunc(more, ending.compare)
		b.list = merged(b.list, more)
	}
	if len(r.fresh) > 0 {
		b.last = r.fresh[len(r.fresh)-1].alloc
	}
	return b.list
}

// merged is two sorted lists in one.
func merged(a, b []ending) []ending {
	if len(a) == 0 {
		return b
	}
	out := make([]ending, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if b[0].compare(a[0]) < 0 {
			out, b = append(out, b[0]), b[1:]
		} else {
			out, a = append(out, a[0]), a[1:]
		}
	}
	return append(append(out, a...), b...)
}
