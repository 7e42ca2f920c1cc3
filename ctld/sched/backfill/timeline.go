// Package backfill keeps what a node will have free, moment by moment: runs give back what they hold
// when their limits end them, promises take it for a while. It is pure and knows no queue.
package backfill

import (
	"math"
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Ends that are not times. A run without a limit ends Never; what waits for one begins Never, and ends Afterward.
const (
	Never     = math.MaxInt64 - 1
	Afterward = math.MaxInt64
)

// Step is what is free from At (Unix ms) until the next step.
type Step struct {
	At   int64
	Room place.Room
}

// Timeline is what one node has free from a first moment on. The last step goes on for ever.
type Timeline struct {
	node  *place.Node
	steps []Step
}

// Reset makes the timeline of node n, of which r is free from now on.
func (t *Timeline) Reset(n *place.Node, now int64, r *place.Room) {
	t.node = n
	if cap(t.steps) == 0 {
		t.steps = make([]Step, 1, 8)
	}
	t.steps = t.steps[:1]
	t.steps[0].At = now
	t.steps[0].Room.Copy(r)
}

// Steps are the steps, ascending. They are the timeline's own.
func (t *Timeline) Steps() []Step { return t.steps }

// cut makes sure that a step begins at the time given, and gives its place. Times before the first step are its.
func (t *Timeline) cut(at int64) int {
	i, found := slices.BinarySearchFunc(t.steps, at, func(s Step, at int64) int {
		switch {
		case s.At < at:
			return -1
		case s.At > at:
			return 1
		}
		return 0
	})
	if found || i == 0 {
		return i
	}
	t.steps = append(t.steps, Step{})
	spare := t.steps[len(t.steps)-1].Room // its memory is used again
	copy(t.steps[i+1:], t.steps[i:])
	t.steps[i] = Step{At: at, Room: place.Room{Gres: spare.Gres[:0:0]}}
	t.steps[i].Room.Copy(&t.steps[i-1].Room)
	return i
}

// end is the place behind the last step that begins before to.
func (t *Timeline) end(to int64) int {
	if to == Afterward {
		return len(t.steps)
	}
	return t.cut(to)
}

// Take takes what a run of by holds out of the time from to to.
func (t *Timeline) Take(a *job.NodeAlloc, by place.Tenant, from, to int64) {
	if to <= from {
		return
	}
	t.cut(from)
	last := t.end(to)
	for i := t.cut(from); i < last; i++ {
		t.steps[i].Room.Less(t.node, a, by)
	}
}

// Give gives back what was taken from from to to.
func (t *Timeline) Give(a *job.NodeAlloc, from, to int64) {
	if to <= from {
		return
	}
	t.cut(from)
	last := t.end(to)
	for i := t.cut(from); i < last; i++ {
		t.steps[i].Room.More(t.node, a)
	}
}

// at is the place of the step that holds at the time given.
func (t *Timeline) at(when int64) int {
	lo, hi := 0, len(t.steps)
	for lo+1 < hi {
		mid := int(uint(lo+hi) >> 1)
		if t.steps[mid].At <= when {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// Over puts into r what is free all the time from from to to: the least of each resource.
func (t *Timeline) Over(from, to int64, r *place.Room) {
	i := t.at(from)
	r.Copy(&t.steps[i].Room)
	for i++; i < len(t.steps) && t.steps[i].At < to; i++ {
		least(r, &t.steps[i].Room)
	}
}

// least leaves in r what both rooms have.
func least(r, o *place.Room) {
	r.CPUs, r.Mem, r.Runs, r.Shut = min(r.CPUs, o.CPUs), min(r.Mem, o.Mem), max(r.Runs, o.Runs), r.Shut || o.Shut
	for i := range r.Gres {
		r.Gres[i] = min(r.Gres[i], o.Gres[i])
	}
	if o.Owner > 0 {
		switch r.Owner {
		case 0, o.Owner:
			r.Owner = o.Owner
		default:
			r.Owner = math.MaxInt64 // one user's now, another's later: nobody can stay all the time
		}
	}
	switch {
	case o.User == 0:
	case r.User == 0:
		r.User = o.User
	case r.User != o.User:
		r.User = -1
	}
}

// Earliest is the first moment from from on at which fits holds for what is free, and goes on to hold for length (Never:
// for ever). ok is false when there is none.
func (t *Timeline) Earliest(from, length int64, fits func(*place.Room) bool) (when int64, ok bool) {
	begin, open := from, false
	for i := t.at(from); i < len(t.steps); i++ {
		if !fits(&t.steps[i].Room) {
			open = false
			continue
		}
		if !open {
			begin, open = max(from, t.steps[i].At), true
		}
		if i+1 == len(t.steps) || length < Never && t.steps[i+1].At >= begin+length {
			return begin, true
		}
	}
	return 0, false
}
