package priority

import (
	"cmp"
	"math"

	"github.com/tensorgrid/tensorgrid/accounting"
)

// Highest is the highest priority there is, as Slurm's.
const Highest = math.MaxUint32

// shortest is the shortest run time that an order divides by: 10 s, as the bounded slowdown has it. longest stands for
// a job without a limit.
const (
	shortest = 10 * 1000
	longest  = 365 * 24 * 3600 * 1000
)

// Job is one waiting job as the ranking sees it. Times are Unix ms, durations ms, money 10^-6 token.
type Job struct {
	Submit, Accrue int64  // Accrue: since when its age counts; 0 = it does not yet
	Nodes, CPUs    uint32 // least nodes asked for, CPUs asked for (0 = unknown)
	Limit          int64  // time limit; 0 or less = none
	Estimate       int64  // by the user's history; 0 = unknown
	TRES           accounting.TRES
	PartTRES       accounting.TRES // of the partition; nil = the cluster's
	PartFactor     uint32          // PriorityJobFactor of the partition
	QOSPriority    uint32
	AssocPriority  uint32
	FairShare      float64 // 0 to 1
	Nice           int32
	Site           int64
	Bid, Price     int64 // what it would pay, and the posted price; Bid 0 = none
	Fixed          int64 // above 0: set by an administrator
	Deadline       int64 // must end by then; 0 = none
}

// Term is the term of one trackable resource.
type Term struct {
	Name         string
	Factor, Term float64
}

// Terms are a priority and what it is made of: factors as they count (0 to 1 where they are normalised) and weighted.
type Terms struct {
	AgeFactor, AssocFactor, FairShareFactor, JobSizeFactor float64
	PartitionFactor, QOSFactor, BidFactor, DeadlineFactor  float64
	Age, Assoc, FairShare, JobSize, Partition, QOS, Bid    float64
	Deadline                                               float64
	TRES                                                   float64 // sum of TRESOf
	TRESOf                                                 []Term
	Site, Nice                                             int64
	Expansion                                              float64 // (waited + run time) / run time
	Starved                                                bool    // it waited so long that it goes first
	Priority                                               int64   // 1 to Highest
}

// Key orders jobs: Compare.
type Key struct {
	Starved bool
	Score   float64 // higher goes first; of a starved job, the earlier
	Latest  int64   // latest start that keeps the deadline; Never without one
}

// Never is the latest start of a job without a deadline.
const Never = math.MaxInt64

// Compare is below 0 if a goes before b: the starved ones first and the longest waiting of them, then the higher score,
// then who must start earlier for a deadline. At 0 the submission decides, then the id.
func Compare(a, b Key) int {
	if a.Starved != b.Starved {
		if a.Starved {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Latest, b.Latest))
}

// Less tells whether a goes before b.
func Less(a, b Key) bool { return Compare(a, b) < 0 }

// Part is what of a job's rank does not change with time and is the same for all jobs of a class.
type Part struct {
	p        *Params
	static   float64
	fixed    int64
	cpus     float64
	run      float64 // run time, ms
	limit    int64
	deadline int64
}

// Part works out the part of j's rank that does not change with time; Accrue and Submit are not read.
func (p *Params) Part(c *Cluster, j *Job) Part {
	return p.part(c, j, &Terms{})
}

// part is Part, with the terms noted in t.
func (p *Params) part(c *Cluster, j *Job, t *Terms) Part {
	return Part{p: p, static: p.static(c, j, t), fixed: j.Fixed, cpus: float64(max(j.CPUs, 1)), run: p.run(j), limit: j.Limit, deadline: j.Deadline}
}

// Run is the run time that the order counts with, in ms: the limit, or the corrected estimate.
func (t *Part) Run() float64 { return t.run }

// Key is the key at now of a job of the part's class that was submitted and accrues since the given times.
func (t *Part) Key(submit, accrue, now int64) Key {
	terms := Terms{}
	return t.p.key(t, submit, accrue, now, &terms)
}

// Key is j's key at now.
func (p *Params) Key(c *Cluster, j *Job, now int64) Key {
	part := p.Part(c, j)
	return part.Key(j.Submit, j.Accrue, now)
}

// Rank is j's priority at now with its terms, for people. It agrees with Key.
func (p *Params) Rank(c *Cluster, j *Job, now int64) Terms {
	var t Terms
	part := p.part(c, j, &t)
	key := p.key(&part, j.Submit, j.Accrue, now, &t)
	t.Starved = key.Starved
	return t
}

// run is the run time that the order counts with.
func (p *Params) run(j *Job) float64 {
	ms := j.Limit
	if ms <= 0 {
		ms = longest
	}
	if p.Estimates == CorrectedEstimates && j.Estimate > 0 {
		ms = min(ms, j.Estimate)
	}
	return float64(max(ms, 1))
}

// key works out the key, and notes in t what changes with time.
func (p *Params) key(part *Part, submit, accrue, now int64, t *Terms) Key {
	since := accrue
	if p.Flags.AccrueAlways {
		since = submit
	}
	wait := int64(0)
	if since > 0 {
		wait = max(now-since, 0)
	}
	k := Key{Latest: Never}
	t.Expansion = float64(float64(wait)+max(part.run, shortest)) / max(part.run, shortest)
	if part.deadline > 0 {
		k.Latest = part.deadline - max(part.limit, 0)
		t.DeadlineFactor = urgency(k.Latest-now, part.limit)
	}
	k.Score, t.Priority = p.score(part, submit, wait, t)
	switch {
	case part.fixed > 0:
		k.Score, t.Priority = float64(part.fixed), part.fixed
		if p.Type == Expansion {
			k.Score = float64(part.fixed) / 1000
		}
	case p.Starvation > 0 && wait >= p.Starvation:
		k.Starved, k.Score = true, -float64(since)
	}
	return k
}

// urgency is how near a deadline is: 0 while the slack is a whole limit (an hour at least), 1 when there is none left.
func urgency(slack, limit int64) float64 {
	whole := max(limit, 3600*1000)
	return 1 - float64(min(max(slack, 0), whole))/float64(whole)
}

// score is what the order gives a job: the number that decides, and the priority that is shown.
func (p *Params) score(part *Part, submit, wait int64, t *Terms) (float64, int64) {
	run := part.run / 1000
	switch p.Type {
	case FCFS:
		return 1, 1
	case Expansion:
		return t.Expansion, shown(t.Expansion * 1000)
	case SJF:
		return -run, shown(1e9 / run)
	case Area:
		area := float64(run * part.cpus)
		return -area, shown(1e12 / area)
	case WFP3:
		x := float64(wait) / max(part.run, shortest)
		v := float64(float64(float64(x*x)*x) * part.cpus)
		return v, shown(v * 1000)
	case F1:
		v := float64(log10(uint64(run))*part.cpus) + float64(870*log10(uint64(max(submit/1000, 1))))
		return -v, 1
	}
	t.AgeFactor = 1
	if wait < p.MaxAge {
		t.AgeFactor = float64(wait) / float64(p.MaxAge)
	}
	t.Age = float64(float64(p.Age) * t.AgeFactor)
	t.Deadline = float64(p.own() * t.DeadlineFactor)
	n := shown(part.static + t.Age + t.Deadline)
	return float64(n), n
}

// own is what the terms that are a job's own can add up to: the weight of a deadline that is at hand, so that it beats
// them, while partition, QOS and association still come first.
func (p *Params) own() float64 {
	return float64(p.Age) + float64(p.FairShare) + float64(p.Bid) + float64(p.JobSize)
}

// shown cuts a score to the range of priorities.
func shown(x float64) int64 {
	switch {
	case !(x >= 1):
		return 1
	case x >= Highest:
		return Highest
	}
	return int64(x)
}

// static sums the terms of the weighted sum that do not change with time, and notes them in t.
func (p *Params) static(c *Cluster, j *Job, t *Terms) float64 {
	t.Site, t.Nice = j.Site, int64(j.Nice)
	if p.Type != Multifactor {
		return 0
	}
	t.AssocFactor = share(j.AssocPriority, c.MaxAssoc, p.Flags.NoNormalAssoc)
	t.FairShareFactor = unit(j.FairShare)
	t.JobSizeFactor = p.size(c, j)
	t.PartitionFactor = share(j.PartFactor, c.MaxPartition, p.Flags.NoNormalPart)
	t.QOSFactor = share(j.QOSPriority, c.MaxQOS, p.Flags.NoNormalQOS)
	t.BidFactor = bid(j.Bid, j.Price)
	t.Assoc = float64(float64(p.Assoc) * t.AssocFactor)
	t.FairShare = float64(float64(p.FairShare) * t.FairShareFactor)
	t.JobSize = float64(float64(p.JobSize) * t.JobSizeFactor)
	t.Partition = float64(float64(p.Partition) * t.PartitionFactor)
	t.QOS = float64(float64(p.QOS) * t.QOSFactor)
	t.Bid = float64(float64(p.Bid) * t.BidFactor)
	p.tres(c, j, t)
	return t.Assoc + t.FairShare + t.JobSize + t.Partition + t.QOS + t.TRES + t.Bid + float64(t.Site) - float64(t.Nice)
}

// tres are the terms of the trackable resources.
func (p *Params) tres(c *Cluster, j *Job, t *Terms) {
	whole := j.PartTRES
	if whole == nil {
		whole = c.TRES
	}
	for _, w := range p.TRES {
		n, _ := j.TRES.Get(w.Name)
		f := float64(n)
		if !p.Flags.NoNormalTRES {
			if of, _ := whole.Get(w.Name); of <= 0 {
				f = 0
			} else {
				f /= float64(of)
			}
		}
		term := Term{w.Name, f, float64(float64(w.W) * f)}
		t.TRESOf = append(t.TRESOf, term)
		t.TRES += term.Term
	}
}

// share is a factor over the largest one of its kind, or as it is.
func share(x, most uint32, raw bool) float64 {
	switch {
	case raw:
		return float64(x)
	case most == 0:
		return 0
	}
	return float64(x) / float64(most)
}

func unit(x float64) float64 { return max(0, min(1, x)) }

// size is the factor of a job's size, by nodes and CPUs or relative to its time limit.
func (p *Params) size(c *Cluster, j *Job) float64 {
	if c.Nodes == 0 || c.CPUs == 0 {
		return 0
	}
	N, C, n, cpus := float64(c.Nodes), float64(c.CPUs), float64(max(j.Nodes, 1)), float64(j.CPUs)
	if p.Flags.SmallRelativeToTime {
		minutes := j.Limit / 60000
		if minutes <= 0 {
			minutes = 1
			if j.Limit <= 0 {
				minutes = longest / 60000
			}
		}
		f := max(float64(n*C)/N, cpus) / float64(minutes) / C
		if p.FavorSmall {
			f = 1 - f
		}
		return unit(f)
	}
	f, of := n/N, cpus/C
	if p.FavorSmall {
		f, of = max(0, (N-n)/N), (C-cpus)/C
	}
	if cpus > 0 {
		f = (f + of) / 2
	}
	return unit(f)
}
