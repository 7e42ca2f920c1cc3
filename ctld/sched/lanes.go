package sched

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// lane is one class in one of the partitions it may run in. All lanes of a class share what has
// started of it.
type lane struct {
	class   int
	c       *Class
	part    int
	extra   *job.Extra
	first   bool // it may run in a reservation that it names
	level   int  // of its QOS among those that preempt each other
	head    Waiting
	key     priority.Key
	rank    *priority.Part // nil: heads rank by Waiting.Priority
	read    int            // records that were read
	pull    func() (Waiting, bool)
	halt    func()
	taken   map[uint32]int // how much of each record has started; nil for a class with one lane and no array
	looked  bool
	late    bool // it is looked at behind a job that waits
	skips   int
	slot    int64 // end of what was kept for its best job, whose time has come; 0 = none
	kept    []int // the nodes of that
	strict  bool  // only those will do
	tooLong int64 // a limit that would delay a reserved start; 0 = none seen
	open    []*access
	access  *access
	fit     *fitted
	chain   *partitions.Chain
	request *job.Request
	ask     *partitions.Claim // the least it would claim
}

// tenant is for whom the lane's jobs take nodes.
func (l *lane) tenant() place.Tenant {
	t := l.fit.shape.Tenant()
	t.UID = l.c.UID
	return t
}

// lanes is a heap of lanes, the one with the best job on top.
type lanes struct {
	r     *round
	queue []*lane
	less  func(a, b *lane) int
}

func (q *lanes) Len() int           { return len(q.queue) }
func (q *lanes) Swap(i, j int)      { q.queue[i], q.queue[j] = q.queue[j], q.queue[i] }
func (q *lanes) Push(x any)         { q.queue = append(q.queue, x.(*lane)) }
func (q *lanes) Less(i, j int) bool { return q.less(q.queue[i], q.queue[j]) < 0 }
func (q *lanes) Pop() any {
	last := len(q.queue) - 1
	l := q.queue[last]
	q.queue = q.queue[:last]
	return l
}

// order is that of the queue: who may use a reservation, partition tier, whose QOS preempts, priority, submission, id,
// and the partition's place.
func (r *round) order(a, b *lane) int {
	if a.first != b.first {
		return cmp.Compare(boolInt(b.first), boolInt(a.first))
	}
	if a.part != b.part {
		if c := cmp.Compare(r.s.Partitions[b.part].Tier, r.s.Partitions[a.part].Tier); c != 0 {
			return c
		}
	}
	if a.level != b.level {
		return cmp.Compare(b.level, a.level)
	}
	if c := r.sticky(a, b); c != 0 {
		return c
	}
	if c := priority.Compare(a.key, b.key); c != 0 {
		return c
	}
	if a.head.Submit != b.head.Submit {
		return cmp.Compare(a.head.Submit, b.head.Submit)
	}
	if a.head.JobID != b.head.JobID {
		return cmp.Compare(a.head.JobID, b.head.JobID)
	}
	return cmp.Compare(a.part, b.part)
}

// sticky puts jobs first that keep what was reserved for them, where the policy says so.
func (r *round) sticky(a, b *lane) int {
	if !r.pol.StickyHead {
		return 0
	}
	return cmp.Compare(boolInt(a.head.Promise == nil), boolInt(b.head.Promise == nil))
}

// behindOrder is the order in which jobs behind one that waits are looked at.
func (r *round) behindOrder(a, b *lane) int {
	if r.pol.Backfill == BackfillSubmission {
		return cmp.Or(cmp.Compare(r.s.Partitions[b.part].Tier, r.s.Partitions[a.part].Tier), cmp.Compare(a.head.Submit, b.head.Submit),
			cmp.Compare(a.head.JobID, b.head.JobID), cmp.Compare(a.part, b.part))
	}
	if r.pol.Backfill == BackfillShortest {
		if c := cmp.Or(cmp.Compare(r.s.Partitions[b.part].Tier, r.s.Partitions[a.part].Tier),
			cmp.Compare(r.length(a), r.length(b))); c != 0 {
			return c
		}
	}
	if c := cmp.Compare(r.turnOf(a), r.turnOf(b)); c != 0 {
		return c
	}
	return r.order(a, b)
}

// length is how long the best job of a lane is expected to run, for the order of backfill only.
func (r *round) length(l *lane) int64 {
	limit, _ := r.limit(l)
	if limit == job.Unlimited {
		limit = never
	}
	if r.s.Priority != nil && r.s.Priority.Estimates == priority.CorrectedEstimates && l.c.Estimate > 0 {
		return min(limit, l.c.Estimate)
	}
	return limit
}

// turnOf lets the lanes of a partition that has more work than its bound come first in turn: by where the class stands
// behind a point that moves with time.
func (r *round) turnOf(l *lane) int {
	if r.pol.PartWork == 0 && r.pol.Work == 0 || len(r.s.Classes) == 0 {
		return 0
	}
	n := len(r.s.Classes)
	return (l.class + n - int(uint64(r.now/1000)%uint64(n))) % n
}

// rank makes a lane of each class in each partition that starts jobs.
func (r *round) rank() *lanes {
	q := &lanes{r: r, less: r.order}
	for i, c := range r.s.Classes {
		where := r.partitionsOf(c.Spec)
		taken := r.taken[c.Key] // what those with promises have started
		if len(where) > 1 && taken == nil {
			taken = map[uint32]int{}
		}
		if len(where) == 0 {
			r.better(i, verdict{rank: rankNever, reason: job.ReasonPartitionConfig,
				detail: "partition " + quoted(c.Spec.Partition) + " does not exist"})
		}
		for _, part := range where {
			if v, ok := r.shut(part, c.Spec); !ok {
				r.better(i, v)
				continue
			}
			l := r.p.scratch.lane()
			l.class, l.c, l.part, l.taken, l.extra = i, c, part, taken, c.Extra
			if r.ready(l) && r.next(l) {
				q.queue = append(q.queue, l)
				r.ask.join(l)
			}
		}
	}
	heap.Init(q)
	return q
}

// ready works out what ranks and admits the jobs of a new lane. It is false when none may run there.
func (r *round) ready(l *lane) bool {
	c := l.c
	if l.extra == nil {
		x, err := c.Spec.Extra()
		if err != nil {
			r.better(l.class, verdict{rank: rankNever, reason: job.ReasonBadConstraints, detail: err.Error()})
			return false
		}
		l.extra = &x
	}
	if r.s.Priority != nil && !c.Mixed {
		part := r.s.Priority.Part(&r.s.Cluster, r.ranked(l))
		l.rank = &part
	}
	l.level = r.levels[c.QOS]
	var why string
	if l.open, why = r.accesses(c, l.extra, c.QOS); len(l.open) == 0 {
		r.better(l.class, verdict{rank: rankShut, reason: job.ReasonReservation, detail: why})
		return false
	}
	if r.s.Partitions[l.part].ReqResv && l.open[0].mine == nil {
		r.better(l.class, verdict{rank: rankNever, reason: job.ReasonReservation,
			detail: "partition " + r.s.Partitions[l.part].Name + " runs only jobs with a reservation"})
		return false
	}
	l.first = l.open[0].mine != nil
	l.access = l.open[0]
	return true
}

// ranked is the class of a lane as the ranking sees it.
func (r *round) ranked(l *lane) *priority.Job {
	l.request = requestOf(l.c.Spec)
	return r.s.ranked(l.c, l.extra, l.request, r.s.Partitions[l.part])
}

func requestOf(spec *job.Spec) *job.Request {
	q := spec.Request()
	return &q
}

// partitionsOf gives the partitions that a class names, in its order; names that do not exist are left out.
func (r *round) partitionsOf(spec *job.Spec) []int {
	var found []int
	if spec.Partition == "" {
		for i := range r.s.Partitions {
			if r.s.Partitions[i].Default {
				return []int{i}
			}
		}
		return nil
	}
	for name := range strings.SplitSeq(spec.Partition, ",") {
		for i := range r.s.Partitions {
			if r.s.Partitions[i].Name == name && !slices.Contains(found, i) {
				found = append(found, i)
			}
		}
	}
	return found
}

// shut tells why partition i starts no job of this shape, whatever is free.
func (r *round) shut(i int, spec *job.Spec) (verdict, bool) {
	part := r.s.Partitions[i]
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
		q.advance(l)
	}
	return nil
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

// begun tells whether something of the lane's best job has started in this round: what was promised to it is used up.
func (l *lane) begun() bool { return l.taken[l.head.JobID] > 0 }

// advance goes on to the next job of l, which must be the best lane: this one was dealt with.
func (q *lanes) advance(l *lane) {
	if q.r.next(l) {
		heap.Fix(q, 0)
		return
	}
	q.close(l)
}

// close takes l, which must be the best lane, out of this round.
func (q *lanes) close(l *lane) {
	heap.Pop(q)
	l.stop()
}

// stop ends the iterators of the lanes that are left.
func (q *lanes) stop() {
	for _, l := range q.queue {
		l.stop()
	}
}

func (l *lane) stop() {
	if l.halt != nil {
		l.halt()
	}
}

// next moves l to the next job that may start now; it is false when there is none. The times at
// which others may start are noted.
func (r *round) next(l *lane) bool {
	if l.read == 0 {
		return r.firstOf(l)
	}
	if l.pull == nil {
		l.pull, l.halt = iter.Pull(l.c.Waiting)
		for range l.read {
			l.pull()
		}
	}
	for {
		w, ok := l.pull()
		if !ok {
			return false
		}
		if r.eligible(l, &w) {
			r.head(l, w)
			return true
		}
	}
}

// firstOf finds the first job of a lane that may start. Where none may it is remembered, as long as the class stays as
// it is.
func (r *round) firstOf(l *lane) bool {
	c := l.c
	if known, ok := r.p.idle[c.Key]; ok && c.Version != 0 && known.version == c.Version && (known.until == 0 || r.now < known.until) {
		r.wakeAt(known.until)
		return false
	}
	found, until := false, int64(0)
	for w := range c.Waiting {
		l.read++
		if r.eligible(l, &w) {
			r.head(l, w)
			found = true
			break
		}
		if w.Begin > r.now && (until == 0 || w.Begin < until) && w.Blocked == "" && !w.Held && (!c.Mixed || w.Priority > 0) {
			until = w.Begin
		}
		if w.Promise != nil || w.Tasks != nil && w.Limit == 0 { // it may be looked at elsewhere, or its reason is told in each round
			until = r.now
		}
	}
	if !found && c.Version != 0 && until != r.now {
		r.p.idle[c.Key] = idle{c.Version, until}
	}
	return found
}

// eligible tells whether a record may start now as far as it is up to itself.
func (r *round) eligible(l *lane, w *Waiting) bool {
	switch {
	case w.Blocked != "" || w.Held || l.c.Mixed && w.Priority == 0:
		// Its own record says why.
	case w.Begin > r.now:
		r.wakeAt(w.Begin)
		return r.ask != nil && l.class == r.ask.class
	case w.Tasks != nil && w.Limit == 0:
		r.reason(w.JobID, job.ReasonArrayLimit, "", 0)
	case w.Promise != nil && r.dealt[w.JobID]:
		// It was looked at with those that hold a promise.
	default:
		return true
	}
	return false
}

// head makes w the job of the lane that is looked at.
func (r *round) head(l *lane, w Waiting) {
	l.head = w
	switch {
	case l.rank != nil:
		l.key = l.rank.Key(w.Submit, w.Accrue, r.now)
	default:
		l.key = priority.Key{Score: float64(w.Priority), Latest: priority.Never}
	}
}

// wakeAt makes sure that a plan is made at a time.
func (r *round) wakeAt(at int64) {
	if at > r.now && at < never && (r.out.Wake == 0 || at < r.out.Wake) {
		r.out.Wake = at
	}
}
