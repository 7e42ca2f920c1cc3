package sched

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// Limits of one plan.
const (
	// MaxStarts is how many starts one plan holds when the policy does not say.
	MaxStarts = 1000
	// MaxReasons bounds the reasons of single records in one plan; the best-ranked ones are kept.
	MaxReasons = 1000
	// MaxSkips bounds the jobs of one class that are passed over because they would end too late for
	// a reserved start; the class is then left for the next plan.
	MaxSkips = 1000
)

// deferWake is how soon a round is followed by another when its work bounds have left something, in ms.
const deferWake = 1000

// round is the work sheet of one plan.
type round struct {
	p         *Planner
	s         *Snapshot
	now       int64
	pol       Policy
	turn      uint64
	maxStarts int
	out       Decision
	looked    int
	ofUser    map[uint32]int
	work      int
	owners    bool
	levels    map[string]int

	holds   [][]*hold // by node
	blocks  [][]block // by node
	marked  []int     // nodes that have holds or blocks
	held    map[uint32][]*hold
	started [][]held // this round's starts, by node
	fresh   []ending // the same, all
	ordered byEnd    // the same, in order
	cpus    map[int][]bool
	gres    map[int][][]bool
	resv    []*reserved
	parts   []partRound
	verdict []verdict // by class

	lics    *licenses
	limits  *overlay
	groups  map[uint32]*group
	parked  []*lane
	behind  *lanes
	resumes []*Running
	victims map[uint32]bool           // runs that this plan ends or suspends
	pushed  int                       // jobs that room was made for
	awaited map[uint32]bool           // jobs whose victims are on the way
	dealt   map[uint32]bool           // jobs with a promise that were looked at by themselves
	taken   map[string]map[uint32]int // what they have started, by class
	broken  map[uint32]*Promised      // promises that do not stand any more
	due     map[uint32]bool           // jobs whose promised start has come
	pledged []*hold                   // starts that are kept for jobs that limits hold for
	ask     *asked                    // nil: nothing is asked
}

// partRound is what a round keeps about one partition.
type partRound struct {
	blocked  uint32 // the job that waits first for resources here; 0 = none
	promises int    // given and kept
	work     int
	stopped  bool // a limit blocks all behind it
	spent    bool // its work bound is reached
}

func newRound(p *Planner, s *Snapshot, now int64, pol Policy) *round {
	r := &round{
		p: p, s: s, now: now, pol: pol, turn: p.round, maxStarts: cmp.Or(pol.MaxStarts, MaxStarts), ofUser: map[uint32]int{},
		held: map[uint32][]*hold{},
		cpus: map[int][]bool{}, gres: map[int][][]bool{}, parts: make([]partRound, len(s.Partitions)), verdict: make([]verdict, len(s.Classes)),
		groups: map[uint32]*group{}, victims: map[uint32]bool{}, awaited: map[uint32]bool{},
		dealt: map[uint32]bool{}, taken: map[string]map[uint32]int{}, broken: map[uint32]*Promised{}, due: map[uint32]bool{},
	}
	r.holds, r.blocks, r.started = p.scratch.lists(len(s.Nodes))
	r.out.Base = s.Version
	r.owners = p.owned > 0 || slices.ContainsFunc(s.Partitions, func(q *Partition) bool { return q.ExclusiveUser }) ||
		slices.ContainsFunc(s.Classes, func(c *Class) bool {
			return c.Extra != nil && c.Extra.Exclusive == "user" || c.Extra == nil && len(c.Spec.Rare) > 0
		})
	r.limits = newOverlay(s.Use, s.Rules)
	r.reservations()
	r.lics = r.allLicenses()
	r.levels = r.preemptLevels()
	r.evictions()
	return r
}

// plan is the round: rank, keep promises, place, reserve, backfill, explain.
func (r *round) plan() {
	r.keepPromises()
	r.leaders()
	q := r.rank()
	r.behind = &lanes{r: r, less: r.behindOrder}
	defer q.stop()
	defer func() { r.behind.stop() }()
	r.run(q)
	heap.Init(r.behind)
	r.run(r.behind)
	for _, l := range r.parked {
		r.note(l, verdict{rank: rankPriority, reason: job.ReasonPriority, detail: "waits for the other components of its heterogeneous job"})
		l.stop()
	}
	r.resume(nil)
	r.takeBroken()
	r.explain()
	if r.work > r.pol.Work && r.pol.Work > 0 || slices.ContainsFunc(r.parts, func(p partRound) bool { return p.spent }) {
		r.wakeAt(r.now + deferWake)
	}
}

// run looks at the lanes of a queue, best first.
func (r *round) run(q *lanes) {
	for len(r.out.Starts) < r.maxStarts && !r.ask.settled() {
		l := q.best()
		if l == nil {
			return
		}
		if v, ok := r.mayLook(l); !ok {
			r.note(l, v)
			r.ask.looked(l)
			q.close(l)
			continue
		}
		r.resume(l)
		if l.head.HetSize > 1 {
			r.gather(q, l)
			continue
		}
		r.handle(q, l)
	}
}

// handle does with the best lane what can be done.
func (r *round) handle(q *lanes, l *lane) {
	defer r.watch(l)
	got := r.start(l)
	if got != deferred {
		r.ask.looked(l)
	}
	switch got {
	case started, refused:
		q.onward(l)
	case limited:
		// All jobs of the class meet the same limit, unless each has its own size in time.
		if l.c.Mixed {
			r.skip(q, l)
		} else {
			q.close(l)
		}
	case lacksResources:
		r.wait(q, l)
	case wouldDelay:
		// A shorter job of a mixed class may still end in time.
		r.note(l, verdict{rank: rankPriority, reason: job.ReasonPriority, detail: r.behindWhom(l)})
		switch {
		case r.mayReserve(l):
			r.wait(q, l)
		case l.c.Mixed:
			r.skip(q, l)
		default:
			q.close(l)
		}
	case deferred:
		r.later(q, l)
	}
}

// later moves a lane of a partition in which a job waits behind all that rank by themselves.
func (r *round) later(q *lanes, l *lane) {
	heap.Pop(q)
	if r.pol.Backfill == BackfillOff {
		r.note(l, verdict{rank: rankPriority, reason: job.ReasonPriority, detail: r.behindWhom(l)})
		l.stop()
		return
	}
	l.late = true
	r.behind.queue = append(r.behind.queue, l)
}

// mayLook tells whether a lane may be looked at, and counts it.
func (r *round) mayLook(l *lane) (verdict, bool) {
	part := &r.parts[l.part]
	switch {
	case part.stopped:
		return verdict{rank: rankPriority, reason: job.ReasonPriority, detail: "a job before it waits for a limit"}, false
	case r.pol.Work > 0 && r.work >= r.pol.Work, part.spent:
		return verdict{rank: rankPriority, reason: job.ReasonSchedDefer, detail: "the round's work bound was reached before it"}, false
	case l.looked:
		return verdict{}, true
	}
	l.looked = true
	r.looked++
	r.ofUser[l.c.UID]++
	ok := (r.pol.Depth == 0 || r.looked <= r.pol.Depth) && (r.pol.UserDepth == 0 || r.ofUser[l.c.UID] <= r.pol.UserDepth)
	return verdict{}, ok
}

// charge counts nodes that are looked at for a lane. It does not depend on what is remembered.
func (r *round) charge(l *lane, nodes int) {
	r.work += nodes
	part := &r.parts[l.part]
	part.work += nodes
	part.spent = part.spent || r.pol.PartWork > 0 && part.work >= r.pol.PartWork
}

// outcome is what came of looking at one job.
type outcome uint8

const (
	started        outcome = iota // it, or what its array may start now
	lacksResources                // its shape does not fit now
	wouldDelay                    // it fits, but a job before it would start later
	refused                       // the partition's rules keep this one job from starting
	limited                       // a limit or licenses keep it
	deferred                      // it is to be looked at behind those that come before it
)

// start places the best job of l; of an array's record as many tasks as fit and may start.
func (r *round) start(l *lane) outcome {
	if !l.late && r.closedFor(l) {
		return deferred
	}
	w := &l.head
	limit, ok := r.limit(l)
	if !ok {
		r.tooLong(l, limit)
		return refused
	}
	if got := r.prepare(l, limit); got != started {
		return got
	}
	if l.tooLong > 0 && limitAfter(limit, l.tooLong) && r.timeMin(l) == 0 && len(r.held[w.JobID]) == 0 {
		return wouldDelay
	}
	if w.Tasks == nil {
		return r.startOne(l, -1, limit)
	}
	return r.startTasks(l, limit)
}

// closedFor tells whether jobs of a lane are backfill now: one before them waits and all that are promised a start are.
func (r *round) closedFor(l *lane) bool {
	return r.parts[l.part].blocked != 0 && !r.mayReserve(l) && len(r.held[l.head.JobID]) == 0
}

// mayReserve tells whether the lane's best job gets a start of its own reserved when it cannot start.
func (r *round) mayReserve(l *lane) bool {
	part := &r.parts[l.part]
	if l.extra.Deadline > 0 || r.ask != nil && r.ask.class == l.class {
		return true
	}
	if l.chain != nil && l.chain.NoReserve() {
		return false
	}
	return part.promises < max(r.pol.Promises, 1)
}

// prepare works out the lane's shape and whether anything but room keeps its best job.
func (r *round) prepare(l *lane, limit int64) outcome {
	first := l.fit == nil
	l.fit = r.p.fitted(l.c, l.extra, l.part, r.owners)
	if first {
		r.charge(l, 1+len(l.fit.order))
	}
	if l.fit.wrong != "" {
		r.note(l, verdict{rank: rankNever, reason: job.ReasonBadConstraints, detail: l.fit.wrong})
		return limited
	}
	if v, ok := r.allowed(l, limit); !ok {
		r.note(l, v)
		if r.pol.LimitStop && v.stops {
			r.parts[l.part].stopped = true
		}
		return limited
	}
	return started
}

// startTasks places as many tasks of an array's record as fit and may start, lowest first.
func (r *round) startTasks(l *lane, limit int64) outcome {
	w := &l.head
	done := l.taken[w.JobID]
	got, skip, left := started, done, w.Limit
	if left > 0 {
		left -= done
	}
	any := false
	w.Tasks.Each(func(task uint32) bool {
		if skip > 0 {
			skip--
			return true
		}
		if left == 0 || len(r.out.Starts) >= r.maxStarts {
			return false
		}
		if any {
			if got = r.again(l, limit); got != started {
				return false
			}
		}
		left--
		got = r.startOne(l, int64(task), limit)
		any = true
		return got == started
	})
	if got == started && left == 0 && w.Tasks.Len() > w.Limit {
		r.reason(w.JobID, job.ReasonArrayLimit, "", 0)
	}
	return got
}

// again looks at limits and room after a start of the same record.
func (r *round) again(l *lane, limit int64) outcome {
	l.fit = r.p.fitted(l.c, l.extra, l.part, r.owners)
	if v, ok := r.allowed(l, limit); !ok {
		r.note(l, v)
		return limited
	}
	return started
}

// startOne places one job or task and adds its start to the plan.
func (r *round) startOne(l *lane, task, limit int64) outcome {
	w := &l.head
	own := slices.Clone(r.held[w.JobID])
	for _, h := range own { // what is kept for it does not stand in its way
		r.release(h)
	}
	l.slot, l.kept = 0, nil
	if len(own) > 0 && own[0].due {
		l.slot, l.kept = own[0].end, own[0].nodes
	}
	got := r.place(l, task, limit)
	if l.kept != nil && got != started { // what was kept for it will do
		got = r.placeKept(l, task, limit, got)
	}
	l.slot, l.kept = 0, nil
	if behind := r.yielding(own); len(behind) > 0 && (got == lacksResources || got == wouldDelay) {
		for _, h := range behind {
			r.release(h)
		}
		got = r.placePromised(l, own, task, limit)
		for _, h := range behind {
			h.tight = h.tight || got == started
			r.keep(h)
		}
	}
	if got != started {
		for _, h := range own {
			r.keep(h)
		}
		return got
	}
	delete(r.due, w.JobID)
	if len(own) > 0 { // what was promised in this round is used up; a further task is promised a start of its own
		r.out.Promises = slices.DeleteFunc(r.out.Promises, func(c PromiseChange) bool { return c.JobID == w.JobID })
	}
	for _, h := range own {
		if !h.wide {
			r.parts[h.part].promises--
		}
	}
	return started
}

// skip passes over a job; after MaxSkips of them the class is left.
func (r *round) skip(q *lanes, l *lane) {
	if l.skips++; l.skips >= MaxSkips {
		q.close(l)
		return
	}
	q.advance(l)
}

// limitAfter tells whether limit a is at least b, Unlimited being the longest.
func limitAfter(a, b int64) bool {
	if a == job.Unlimited {
		return true
	}
	return b != job.Unlimited && a >= b
}

// limit gives the time limit that the lane's best job gets in its partition. It is false, with what the job asks for,
// when the partition, or an association or QOS, does not run jobs that long.
func (r *round) limit(l *lane) (int64, bool) {
	part := r.s.Partitions[l.part]
	asked := l.c.Time
	if l.c.Mixed {
		asked = l.head.Time
	}
	return TimeLimit(asked, r.timeMin(l), part.DefaultTime, part.MaxTime)
}

func (r *round) timeMin(l *lane) int64 {
	if l.c.Mixed {
		return l.head.TimeMin
	}
	return l.c.TimeMin
}

func (r *round) tooLong(l *lane, limit int64) {
	part := r.s.Partitions[l.part]
	r.reason(l.head.JobID, job.ReasonPartitionTimeLimit, "asks for "+minutes(limit)+"; partition "+
		part.Name+" allows "+minutes(part.MaxTime), 0)
}

// TimeLimit is the limit of a job that asks for so much (0 = whatever is usual), and for least at
// least (0 = no less than it asks for), in a partition with these limits. It is false, with what the
// job asks for, when the partition does not run jobs that long.
func TimeLimit(asked, least, usual, most int64) (int64, bool) {
	limit := asked
	if limit == 0 {
		limit = usual
	}
	switch {
	case most <= 0 && limit <= 0:
		return job.Unlimited, true
	case most <= 0:
		return limit, true
	case limit <= 0, limit > most && least > 0 && least <= most:
		return most, true
	}
	return limit, limit <= most
}

// reason notes why one record waits.
func (r *round) reason(id uint32, why job.Reason, detail string, start int64) {
	if len(r.out.Reasons) < MaxReasons {
		r.out.Reasons = append(r.out.Reasons, Reason{JobID: id, Reason: why, Detail: detail, Start: start})
	}
}

// chainOf resolves what a lane's jobs are counted for.
func (r *round) chainOf(l *lane) (*partitions.Chain, *partitions.Refusal) {
	c := l.c
	return r.s.Rules.Chain(partitions.Job{UID: c.UID, User: c.User, Account: c.Account, Partition: r.s.Partitions[l.part].Name, QOS: c.QOS,
		PartQOS: r.s.Partitions[l.part].QOS})
}
