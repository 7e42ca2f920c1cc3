package sched

import (
	"cmp"
	"container/heap"
	"iter"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// lane is one class in one of the partitions it may run in. All lanes of a class share what has
// started of it.
type lane struct {
	class      int
	part       int
	head       Waiting // best job of the class that may start and has not
	pull       func() (Waiting, bool)
	halt       func()
	taken      map[uint32]int // how much of each record has started; nil for a class with one lane
	looked     bool
	skips      int
	tooLong    int64 // a limit that would delay a reservation; 0 = none seen
	shape      *shape
	candidates []int // nodes that could ever run it and are up, best first; nil before prepare
	from       int   // candidates before it have no room for the shape any more
}

// lanes is a heap of lanes, the one with the best job on top.
type lanes struct {
	p     *planner
	queue []*lane
}

func (q *lanes) Len() int           { return len(q.queue) }
func (q *lanes) Swap(i, j int)      { q.queue[i], q.queue[j] = q.queue[j], q.queue[i] }
func (q *lanes) Push(x any)         { q.queue = append(q.queue, x.(*lane)) }
func (q *lanes) Less(i, j int) bool { return q.compare(q.queue[i], q.queue[j]) < 0 }
func (q *lanes) Pop() any {
	last := len(q.queue) - 1
	l := q.queue[last]
	q.queue = q.queue[:last]
	return l
}

// compare orders by partition tier, priority, submission, id, and the partition's place.
func (q *lanes) compare(a, b *lane) int {
	parts := q.p.s.Partitions
	return cmp.Or(
		cmp.Compare(parts[b.part].Tier, parts[a.part].Tier),
		cmp.Compare(b.head.Priority, a.head.Priority),
		cmp.Compare(a.head.Submit, b.head.Submit),
		cmp.Compare(a.head.JobID, b.head.JobID),
		cmp.Compare(a.part, b.part),
	)
}

// rank makes a lane of each class in each partition that starts jobs.
func (p *planner) rank() *lanes {
	q := &lanes{p: p}
	for c := range p.s.Classes {
		class := p.s.Classes[c]
		where := p.partitionsOf(class.Spec)
		var taken map[uint32]int
		if len(where) > 1 {
			taken = map[uint32]int{}
		}
		if len(where) == 0 {
			p.verdicts[c] = verdict{rank: rankNever, reason: job.ReasonPartitionConfig,
				detail: "partition " + quoted(class.Spec.Partition) + " does not exist"}
		}
		for _, i := range where {
			if v, ok := p.shut(i, class.Spec); !ok {
				p.better(c, v)
				continue
			}
			l := &lane{class: c, part: i, taken: taken}
			l.pull, l.halt = iter.Pull(class.Waiting)
			if q.next(l) {
				q.queue = append(q.queue, l)
			} else {
				l.halt()
			}
		}
	}
	heap.Init(q)
	return q
}

// partitionsOf gives the partitions that a class names, in its order; names that do not exist are left out.
func (p *planner) partitionsOf(spec *job.Spec) []int {
	var found []int
	if spec.Partition == "" {
		for i := range p.s.Partitions {
			if p.s.Partitions[i].Default {
				return []int{i}
			}
		}
		return nil
	}
	for name := range strings.SplitSeq(spec.Partition, ",") {
		for i := range p.s.Partitions {
			if p.s.Partitions[i].Name == name {
				found = append(found, i)
			}
		}
	}
	return found
}

// shut tells why partition i starts no job of this shape, whatever is free.
func (p *planner) shut(i int, spec *job.Spec) (verdict, bool) {
	part := p.s.Partitions[i]
	nodes := spec.MinNodes
	if spec.NTasks > 0 { // nodes without a task are never asked for
		nodes = min(nodes, spec.NTasks)
	}
	nodes = max(nodes, 1)
	switch {
	case part.Inactive:
		return verdict{rank: rankShut, reason: job.ReasonPartitionInactive,
			detail: "partition " + part.Name + " is inactive"}, false
	case !part.Up:
		return verdict{rank: rankShut, reason: job.ReasonPartitionDown,
			detail: "partition " + part.Name + " starts no jobs at present"}, false
	case part.MaxNodes > 0 && nodes > part.MaxNodes:
		return verdict{rank: rankNever, reason: job.ReasonPartitionNodeLimit,
			detail: "asks for " + plural(int(nodes), "node") + "; partition " + part.Name + " allows " + number(int(part.MaxNodes))}, false
	case part.MinNodes > 0 && spec.MaxNodes > 0 && spec.MaxNodes < part.MinNodes:
		return verdict{rank: rankNever, reason: job.ReasonPartitionNodeLimit,
			detail: "asks for at most " + plural(int(spec.MaxNodes), "node") + "; partition " + part.Name + " starts at " + number(int(part.MinNodes))}, false
	}
	return verdict{}, true
}

// best is the lane whose job ranks first, nil when none is left. Jobs that another lane of their
// class has started are passed over.
func (q *lanes) best() *lane {
	for len(q.queue) > 0 {
		l := q.queue[0]
		if !l.spent() {
			return l
		}
		q.step(l)
	}
	return nil
}

// advance goes on to the next job of l, which must be the best lane: this one was dealt with.
func (q *lanes) advance(l *lane) {
	q.step(l)
}

// spent tells whether all that may start of the lane's best job has started in another lane.
func (l *lane) spent() bool {
	n := l.taken[l.head.JobID]
	switch {
	case n == 0:
		return false
	case l.head.Tasks == nil:
		return true
	}
	return n >= l.head.Tasks.Len() || l.head.Limit >= 0 && n >= l.head.Limit
}

func (q *lanes) step(l *lane) {
	if q.next(l) {
		heap.Fix(q, 0)
		return
	}
	q.close(l)
}

// close takes l, which must be the best lane, out of this round.
func (q *lanes) close(l *lane) {
	heap.Pop(q)
	l.halt()
}

// stop ends the iterators of the lanes that are left.
func (q *lanes) stop() {
	for _, l := range q.queue {
		l.halt()
	}
}

// next moves l to the next job that may start now; it is false when there is none. The times at
// which others may start are noted.
func (q *lanes) next(l *lane) bool {
	p := q.p
	for {
		w, ok := l.pull()
		if !ok {
			return false
		}
		switch {
		case w.Blocked != "" || w.Priority == 0:
			// Its own record says why.
		case w.Begin > p.now:
			if p.wake == 0 || w.Begin < p.wake {
				p.wake = w.Begin
			}
		case w.Tasks != nil && w.Limit == 0:
			p.reason(w.JobID, job.ReasonArrayLimit, "", 0)
		default:
			l.head = w
			return true
		}
	}
}
