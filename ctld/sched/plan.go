package sched

import (
	"cmp"
	"math"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Limits of one plan.
const (
	// MaxStarts is how many starts one plan holds when the policy does not say.
	MaxStarts = 1000
	// MaxReasons bounds the reasons of single records in one plan; the best-ranked ones are kept.
	MaxReasons = 1000
	// MaxSkips bounds the jobs of one class that are passed over because they would end too late for
	// a reservation; the class is then left for the next plan.
	MaxSkips = 1000
)

// Ends that are not times. A run without a limit ends after every reservation, also after one that
// itself waits for a run without a limit.
const (
	never     = math.MaxInt64 - 1
	afterward = math.MaxInt64
)

// Plan says what should start now and why the rest waits. It changes nothing that s refers to.
func Plan(s *Snapshot, now int64, pol Policy) *Decision {
	p := newPlanner(s, now, pol)
	p.plan()
	return &p.out
}

func (p *planner) plan() {
	// 1. Rank: a queue of classes in each of their partitions, by the best job of each.
	lanes := p.rank()
	defer lanes.stop()
	for len(p.out.Starts) < p.maxStarts {
		l := lanes.best()
		if l == nil || !p.mayLook(l) {
			break
		}
		// 2. Place the best job, and as many of its array's tasks as fit.
		switch p.start(l) {
		case started:
			lanes.advance(l)
		case lacksResources:
			// 3. Reserve for the first job of a partition that cannot start; whatever ranks behind it
			// may use those nodes only if that does not delay it. A shape that does not fit now fits
			// no better for the jobs behind it: the class is closed for this round.
			p.reserve(l)
			lanes.close(l)
		case wouldDelay:
			// 4. Backfill: a shorter job of the same shape may still end in time.
			p.skip(l, lanes)
		case refused:
			lanes.advance(l)
		}
	}
	// 5. Explain.
	p.explain()
	p.out.Wake = p.wake
}

// Policy is what a site chooses. The zero value is usable.
type Policy struct {
	MaxStarts int // most starts in one plan; 0 = 1,000
	Depth     int // most classes looked at; 0 = all
}

// planner is the work sheet of one plan.
type planner struct {
	s         *Snapshot
	now       int64
	depth     int
	maxStarts int
	out       Decision
	wake      int64
	looked    int

	rooms    []room   // what is free now, by node; falls as starts are placed
	cpus     [][]bool // CPU numbers in use, by node; nil = as in the snapshot
	gres     [][][]bool
	holds    [][]*hold // reservations that want a node, by node
	parts    []part
	ends     []ending // runs that hold resources, this plan's starts included, by end
	sorted   bool
	byName   map[string]int
	verdicts []verdict // by class
}

// part is what planning keeps about one partition.
type part struct {
	nodes   []int  // lowest weight first, then configuration order
	blocked uint32 // the job that waits first for resources here; 0 = none
}

// ending is resources that come back at a time.
type ending struct {
	at     int64
	allocs []job.NodeAlloc
}

func newPlanner(s *Snapshot, now int64, pol Policy) *planner {
	p := &planner{
		s: s, now: now, depth: pol.Depth, maxStarts: cmp.Or(pol.MaxStarts, MaxStarts),
		rooms: make([]room, len(s.Nodes)), cpus: make([][]bool, len(s.Nodes)),
		gres: make([][][]bool, len(s.Nodes)), holds: make([][]*hold, len(s.Nodes)),
		parts: make([]part, len(s.Partitions)), byName: make(map[string]int, len(s.Nodes)),
		verdicts: make([]verdict, len(s.Classes)),
	}
	p.out.Base = s.Version
	for i := range s.Nodes {
		p.rooms[i] = freeRoom(s.Nodes[i])
		p.byName[s.Nodes[i].Name] = i
	}
	for i := range s.Running {
		r := s.Running[i]
		p.ends = append(p.ends, ending{at: endOf(r.End, now), allocs: r.Allocs})
		for a := range r.Allocs {
			if n, ok := p.byName[r.Allocs[a].Node]; ok {
				p.rooms[n].runs++
			}
		}
	}
	for i := range s.Nodes {
		// Something runs there that no run accounts for: the node is not known to become empty.
		if s.Nodes[i].Busy && p.rooms[i].runs == 0 {
			p.rooms[i].runs = 1
		}
	}
	for i := range s.Partitions {
		nodes := slices.Clone(s.Partitions[i].Nodes)
		slices.SortStableFunc(nodes, func(a, b int) int {
			return cmp.Compare(s.Nodes[a].Weight, s.Nodes[b].Weight)
		})
		p.parts[i].nodes = nodes
	}
	return p
}

// endOf turns a run's end into one to reckon with: an overdue run ends at any moment.
func endOf(end, now int64) int64 {
	if end == 0 {
		return never
	}
	return max(end, now+1)
}

// mayLook tells whether another class may be looked at, and counts it.
func (p *planner) mayLook(l *lane) bool {
	if l.looked {
		return true
	}
	l.looked = true
	p.looked++
	return p.depth == 0 || p.looked <= p.depth
}

// outcome is what came of looking at one job.
type outcome uint8

const (
	started        outcome = iota // it, or what its array may start now
	lacksResources                // its shape does not fit now
	wouldDelay                    // it fits, but a job before it would start later
	refused                       // the partition's rules keep this one job from starting
)

// start places the best job of l; of an array's record as many tasks as fit and may start.
func (p *planner) start(l *lane) outcome {
	w := &l.head
	limit, ok := p.limitOf(l, w)
	if !ok {
		return refused
	}
	if l.candidates == nil && !p.prepare(l) {
		return lacksResources
	}
	if l.tooLong > 0 && limitAfter(limit, l.tooLong) && w.TimeMin == 0 {
		return wouldDelay
	}
	if w.Tasks == nil {
		return p.startOne(l, w, -1, limit)
	}
	return p.startTasks(l, w, limit)
}

// startTasks places as many tasks of an array's record as fit and may start, lowest first.
func (p *planner) startTasks(l *lane, w *Waiting, limit int64) outcome {
	done := l.taken[w.JobID]
	got, skip, left := started, done, w.Limit
	if left > 0 {
		left -= done
	}
	w.Tasks.Each(func(task uint32) bool {
		if skip > 0 {
			skip--
			return true
		}
		if left == 0 || len(p.out.Starts) >= p.maxStarts {
			return false
		}
		left--
		got = p.startOne(l, w, int64(task), limit)
		return got == started
	})
	if got == started && left == 0 && w.Tasks.Len() > w.Limit {
		p.reason(w.JobID, job.ReasonArrayLimit, "", 0)
	}
	return got
}

// startOne places one job or task and adds its start to the plan.
func (p *planner) startOne(l *lane, w *Waiting, task, limit int64) outcome {
	picks := p.choose(l, limit)
	if picks == nil && w.TimeMin > 0 {
		if shorter := p.gap(l); shorter >= w.TimeMin && limitAfter(limit, shorter) {
			if picks = p.choose(l, shorter); picks != nil {
				limit = shorter
			}
		}
	}
	if picks == nil {
		if p.choose(l, 0) == nil {
			return lacksResources
		}
		l.tooLong = limit
		if limit == job.Unlimited {
			l.tooLong = afterward
		}
		return wouldDelay
	}
	p.out.Starts = append(p.out.Starts, Start{
		JobID: w.JobID, Task: task, Run: w.Run, Revision: w.Revision, Partition: p.s.Partitions[l.part].Name,
		Nodes: p.take(l, picks, limit), TimeLimit: limit,
	})
	if l.taken != nil {
		l.taken[w.JobID]++
	}
	return started
}

// limitAfter tells whether limit a is at least b, Unlimited being the longest.
func limitAfter(a, b int64) bool {
	if a == job.Unlimited {
		return true
	}
	return b != job.Unlimited && a >= b
}

// limitOf gives the time limit that w gets in the lane's partition. It is false, with the reason
// noted, when the partition does not run jobs that long.
func (p *planner) limitOf(l *lane, w *Waiting) (int64, bool) {
	part := p.s.Partitions[l.part]
	limit, ok := TimeLimit(w.Time, w.TimeMin, part.DefaultTime, part.MaxTime)
	if ok {
		return limit, true
	}
	p.reason(w.JobID, job.ReasonPartitionTimeLimit, "asks for "+minutes(limit)+"; partition "+
		part.Name+" allows "+minutes(part.MaxTime), 0)
	return 0, false
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

// skip passes over a job that would delay one before it; after MaxSkips of them the class is left.
func (p *planner) skip(l *lane, lanes *lanes) {
	p.verdict(l, verdict{rank: rankPriority, reason: job.ReasonPriority, detail: p.behind(l)})
	if l.skips++; l.skips >= MaxSkips {
		lanes.close(l)
		return
	}
	lanes.advance(l)
}

// reason notes why one record waits.
func (p *planner) reason(id uint32, r job.Reason, detail string, start int64) {
	if len(p.out.Reasons) < MaxReasons {
		p.out.Reasons = append(p.out.Reasons, Reason{JobID: id, Reason: r, Detail: detail, Start: start})
	}
}
