package sched

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"strconv"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// probeDepth is how many jobs of a partition that rank before the one asked about get a start reckoned with, so that its
// own is no wish.
const probeDepth = 32

// Bounds of a question. One that reaches them is answered without a start: none was found.
const (
	probeStarts = 200_000     // starts before that of the job asked about
	probeWork   = 100_000_000 // nodes looked at
)

// Ask is a question about one job: a record that waits, or a request that was not submitted (Class, with Waiting for its
// times; its id may be 0).
type Ask struct {
	JobID   uint32
	Class   *Class
	Waiting Waiting
}

// Answer says when and where a job would start and what it waits for.
type Answer struct {
	Found     bool // there is such a record
	Reason    job.Reason
	Detail    string
	Needs     string   // what it takes, in words
	Lacks     []string // what is missing on how many nodes
	Blocked   []string // jobs and reservations that keep nodes from it
	Ahead     int      // jobs that rank before it in its partition
	Queue     int      // jobs that wait in its partition and could start, this one included
	Start     int64    // Unix ms; 0 = not known
	Promised  bool     // Start is a promise
	Partition string
	Nodes     []job.NodeAlloc // without CPU and device numbers
	Advice    []string
	Never     bool // no node could ever run it, down ones included
}

// asked is what a round does for a question.
type asked struct {
	class int // place of the job's class
	lane  *lane
	hold  *hold
	queue []*lane // those of the job's class that were not dealt with yet
}

// join notes a lane of the job.
func (a *asked) join(l *lane) {
	if a != nil && l.class == a.class {
		a.queue = append(a.queue, l)
	}
}

// looked notes that a lane was dealt with. A het job's components are never done before the round is.
func (a *asked) looked(l *lane) {
	if a == nil || l.class != a.class || l.head.HetSize > 1 {
		return
	}
	a.queue = slices.DeleteFunc(a.queue, func(o *lane) bool { return o == l })
}

// settled tells that nothing that a round goes on to do changes the answer.
func (a *asked) settled() bool { return a != nil && len(a.queue) == 0 }

// onward goes on to the next job of l, the best lane, whose last one was started. A question that has seen as many
// starts as a round makes looks at a class's jobs one behind the other, as far as they rank before the job asked about.
func (q *lanes) onward(l *lane) {
	a := q.r.ask
	if a == nil || len(q.r.out.Starts) < MaxStarts {
		q.advance(l)
		return
	}
	if !q.r.next(l) {
		q.close(l)
		return
	}
	for _, m := range a.queue {
		if q.less(l, m) < 0 {
			return
		}
	}
	heap.Fix(q, 0)
}

// Probe answers for one job by the same code as Plan, as far as jobs that rank before it matter. Those behind the first
// MaxStarts starts are looked at class by class, so that a deep queue costs what its classes do. It changes nothing.
func Probe(s *Snapshot, now int64, pol Policy, ask Ask) *Answer {
	c, w, ok := find(s, ask)
	if !ok {
		return &Answer{}
	}
	probe, at := with(s, c, w)
	pol.MaxStarts, pol.Work, pol.PartWork, pol.Depth, pol.UserDepth = probeStarts, probeWork, 0, 0, 0
	r := probeRound(probe, now, pol, at)
	a := r.answer(&w)
	if pol.Promises < probeDepth && (a.Start != now || w.Begin > now) {
		// It does not start at once: reckon with those before it, as far as they matter.
		deep := pol
		deep.Promises = max(pol.Promises, probeDepth)
		d := probeRound(probe, now, deep, at)
		if b := d.answer(&w); !a.Promised && b.Start > 0 {
			a.Start, a.Nodes, a.Partition = b.Start, b.Nodes, b.Partition
		}
	}
	a.Ahead, a.Queue = r.inLine(&w)
	return r.own(a, &w)
}

// find gives the class and record that are asked about.
func find(s *Snapshot, ask Ask) (*Class, Waiting, bool) {
	if ask.Class != nil {
		w := ask.Waiting
		if w.JobID == 0 {
			w.JobID = math.MaxUint32
		}
		return ask.Class, w, true
	}
	for _, c := range s.Classes {
		for w := range c.Waiting {
			if w.JobID == ask.JobID {
				return c, w, true
			}
		}
	}
	return nil, Waiting{}, false
}

// with is the snapshot with the job in a class of its own.
func with(s *Snapshot, c *Class, w Waiting) (*Snapshot, int) {
	own := *c
	own.Key, own.Version, own.Count = c.Key+"\x00", 0, 1
	own.Shape = cmp.Or(c.Shape, c.Key)
	free := w
	free.Held, free.Blocked = false, ""
	if c.Mixed {
		free.Priority = max(w.Priority, 1)
	}
	if w.Tasks != nil {
		one := uint32(0)
		for t := range w.Tasks.All() {
			one = t
			break
		}
		free.Tasks, free.Limit = job.NewSet(one), -1
	}
	own.Waiting = func(yield func(Waiting) bool) { yield(free) }
	out := *s
	out.Classes = make([]*Class, 0, len(s.Classes)+1)
	for _, o := range s.Classes {
		if o.Key == c.Key && o == c {
			rest, orig := *o, o
			rest.Version = 0
			rest.Waiting = func(yield func(Waiting) bool) {
				for x := range orig.Waiting {
					if x.JobID != w.JobID && !yield(x) {
						return
					}
				}
			}
			o = &rest
		}
		out.Classes = append(out.Classes, o)
	}
	out.Classes = append(out.Classes, &own)
	slices.SortStableFunc(out.Classes, func(a, b *Class) int { return cmp.Compare(a.Key, b.Key) })
	at := slices.Index(out.Classes, &own)
	out.Promised = slices.Clone(s.Promised)
	for i := range out.Promised {
		if out.Promised[i].JobID == w.JobID {
			out.Promised[i].Class = own.Key
		}
	}
	return &out, at
}

// probeRound makes a round that has an eye on one class.
func probeRound(s *Snapshot, now int64, pol Policy, class int) *round {
	p := NewPlanner()
	p.sync(s)
	r := newRound(p, s, now, pol)
	r.ask = &asked{class: class}
	r.plan()
	return r
}

// watch notes the lane and the start that is kept for the job asked about. Of several lanes the soonest counts.
func (r *round) watch(l *lane) {
	if r.ask == nil || l.class != r.ask.class {
		return
	}
	if r.ask.lane == nil {
		r.ask.lane = l
	}
	if held := r.held[l.head.JobID]; len(held) > 0 && (r.ask.hold == nil || held[0].at < r.ask.hold.at) {
		r.ask.hold, r.ask.lane = held[0], l
	}
}

// answer is what a round says of the job asked about.
func (r *round) answer(w *Waiting) *Answer {
	v := r.verdict[r.ask.class]
	a := &Answer{Found: true, Reason: v.reason, Detail: v.detail, Start: v.start, Promised: v.promised, Never: v.rank == rankNever}
	for i := range r.out.Starts {
		if st := &r.out.Starts[i]; st.JobID == w.JobID {
			a.Start, a.Partition, a.Nodes, a.Reason, a.Detail = r.now, st.Partition, st.Nodes, job.ReasonNone, ""
		}
	}
	if v.rank == rankNone && a.Partition == "" && len(r.out.Starts) >= r.maxStarts {
		a.Reason, a.Detail = job.ReasonSchedDefer, "more than "+number(r.maxStarts)+" jobs start before it"
	}
	l := r.ask.lane
	if l == nil || l.fit == nil || l.fit.wrong != "" {
		return a
	}
	a.Needs = l.fit.shape.Needs()
	if a.Partition == "" {
		a.Partition = r.s.Partitions[l.part].Name
		if h := r.ask.hold; h != nil {
			a.Nodes, a.Partition = h.allocs, r.s.Partitions[h.part].Name
			if h.at < never {
				a.Start, a.Promised = h.at, h.promised
			}
		}
	}
	if a.Reason != job.ReasonNone {
		r.lacking(l, a)
	}
	return a
}

// own puts what keeps the record itself before what its shape waits for. Such a record does not stand in line: nobody
// knows when it will, or it has a time before which it cannot start.
func (r *round) own(a *Answer, w *Waiting) *Answer {
	reason := w.Blocked
	switch {
	case reason != "":
	case w.Held:
		reason = job.ReasonHeldUser
	case w.Begin > r.now:
		reason = job.ReasonBeginTime
	default:
		return a
	}
	own := Answer{Found: a.Found, Reason: reason, Needs: a.Needs, Partition: a.Partition, Never: a.Never}
	if reason == job.ReasonBeginTime && a.Start > 0 {
		own.Start, own.Nodes = max(a.Start, w.Begin), a.Nodes
	}
	return &own
}

// lacking tells what is missing on how many nodes, who keeps them, and what would help.
func (r *round) lacking(l *lane, a *Answer) {
	limit, _ := r.limit(l)
	to := endAfter(r.now, limit)
	var counts [len(lackWords)]int
	down, reserved, jobs, endless := 0, map[string]int{}, map[uint32]int{}, map[uint32]bool{}
	for _, n := range r.p.order[l.part] {
		node := r.s.Nodes[n]
		if node.Up {
			cause := causeOf(l.fit.shape, l.fit.shape.Lacks(n, node, &r.p.rooms[n]))
			for i := range lackWords {
				counts[i] += boolInt(cause&lackWords[i].bit != 0)
			}
		}
		down += boolInt(!node.Up)
		if name := r.blocker(l.access, n, to); name != "" {
			reserved[name]++
		}
		for _, h := range r.holds[n] {
			if open := a.Start == 0 && h.end >= never; h.job != l.head.JobID && (h.at < to || open) {
				jobs[h.job]++
				endless[h.job] = endless[h.job] || open
			}
		}
	}
	for i, n := range counts {
		if n > 0 {
			a.Lacks = append(a.Lacks, r.lackText(l, i, n))
		}
	}
	if down > 0 {
		a.Lacks = append(a.Lacks, "down, drained or silent: "+plural(down, "node"))
	}
	for _, v := range r.resv {
		if n := reserved[v.res.Name]; n > 0 {
			a.Blocked = append(a.Blocked, "reservation "+v.res.Name+" on "+plural(n, "node"))
		}
	}
	for _, id := range sortedKeys(jobs) {
		if len(a.Blocked) < maxNames {
			text := "job " + strconv.FormatUint(uint64(id), 10) + " on " + plural(jobs[id], "node")
			if endless[id] {
				text += ", without a time limit"
			}
			a.Blocked = append(a.Blocked, text)
		}
	}
	if !a.Never && !l.fit.hopeless() && (a.Reason == job.ReasonResources || a.Reason == job.ReasonPriority) {
		r.advise(l, limit, a) // else something other than time is in the way
	}
}

// lackWords are the things that a node can lack, in the order in which they are told.
var lackWords = [...]struct {
	bit  place.Lack
	word string
}{{place.LackCPUs, "free CPUs"}, {place.LackMem, "free memory"}, {place.LackGres, "free generic resources"}, {place.LackEmpty, ""}, {place.LackUser, ""},
	{place.LackFeatures, "the features asked for"}, {place.LackTmp, "temporary disk"},
	{place.LackCores, "the sockets, cores or threads asked for"}, {place.LackSize, ""}}

// causeOf leaves of what a node lacks that which matters: what it can never have before what is in use, and what follows from
// something else not at all.
func causeOf(s *place.Shape, lack place.Lack) place.Lack {
	const lasting = place.LackFeatures | place.LackTmp | place.LackCores | place.LackSize
	switch {
	case lack&place.LackAllowed != 0: // the job does not want it
		return 0
	case lack&lasting&^place.LackSize != 0:
		return lack & lasting &^ place.LackSize
	case lack&place.LackSize != 0:
		return place.LackSize
	case lack&place.LackEmpty != 0:
		return place.LackEmpty
	case lack&place.LackCPUs != 0 && s.Least().Mem == 0: // memory goes with CPUs
		return lack &^ place.LackMem
	}
	return lack
}

// lackText says what is lacking on n nodes, a resource by its name.
func (r *round) lackText(l *lane, i, n int) string {
	switch lackWords[i].bit {
	case place.LackEmpty:
		return "an empty node: " + plural(n, "node") + verb(n, " is", " are") + " in use"
	case place.LackUser:
		return "a node without other users: " + plural(n, "node") + verb(n, " has", " have") + " jobs of theirs"
	case place.LackSize:
		return "a node that is large enough: " + plural(n, "node") + verb(n, " is", " are") + " too small even when empty"
	case place.LackGres:
		if list := l.fit.shape.Least().Gres; len(list) == 1 {
			return "a free " + list[0].Name + " on " + plural(n, "node")
		}
	}
	return lackWords[i].word + " on " + plural(n, "node")
}

func sortedKeys(m map[uint32]int) []uint32 {
	keys := make([]uint32, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// minUseful is the shortest time limit that is worth an advice.
const minUseful = 60_000

// advise says with what limit the job could start now.
func (r *round) advise(l *lane, limit int64, a *Answer) {
	if shorter := r.squeeze(l, limit, minUseful) / minUseful * minUseful; shorter > 0 { // whole minutes: it will be asked a little later
		a.Advice = append(a.Advice, "with a time limit of at most "+minutes(shorter)+" it could start now")
	}
}

// inLine counts the jobs of the partition that rank before the one asked about, and all that could start.
func (r *round) inLine(w *Waiting) (ahead, queue int) {
	l := r.ask.lane
	if l == nil {
		return 0, 0
	}
	mine := *l
	for i, c := range r.s.Classes {
		if i == r.ask.class || !slices.Contains(r.partitionsOf(c.Spec), l.part) {
			continue
		}
		o := &lane{class: i, c: c, part: l.part, extra: r.extraOf(c)}
		if o.extra == nil {
			continue
		}
		if r.s.Priority != nil && !c.Mixed {
			part := r.s.Priority.Part(&r.s.Cluster, r.ranked(o))
			o.rank = &part
		}
		o.level, o.first = r.levels[c.QOS], len(o.extra.Reservations) > 0
		for x := range c.Waiting {
			if x.Blocked != "" || x.Held || c.Mixed && x.Priority == 0 || x.Begin > r.now {
				continue
			}
			n := 1
			if x.Tasks != nil {
				n = x.Tasks.Len()
			}
			queue += n
			if r.head(o, x); r.order(o, &mine) < 0 {
				ahead += n
			}
		}
	}
	return ahead, queue + 1
}

// Never tells whether no node of any partition that a class names could ever run its jobs, were all of them up and empty,
// and why. It is cheap: nothing of the queue is looked at.
func Never(s *Snapshot, c *Class) (why string, never bool) {
	p := NewPlanner()
	p.sync(s)
	r := newRound(p, s, 0, Policy{})
	x := r.extraOf(c)
	if x == nil {
		return "its options cannot be read", true
	}
	where := r.partitionsOf(c.Spec)
	for _, part := range where {
		l := &lane{c: c, part: part, extra: x, head: Waiting{JobID: math.MaxUint32}, key: priority.Key{}, access: outside}
		v, ok := r.shut(part, c.Spec)
		if ok {
			if l.fit = p.fitted(c, x, part, true); l.fit.wrong != "" {
				v = verdict{rank: rankNever, detail: l.fit.wrong}
			} else {
				v, _ = r.impossible(l)
			}
		}
		if v.rank != rankNever {
			return "", false
		}
		why = v.detail
	}
	return why, len(where) > 0
}
