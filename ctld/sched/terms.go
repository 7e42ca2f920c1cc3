package sched

import (
	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Ranked is what the jobs of a class are to the ranking in a partition. When they were submitted, and since when they gain
// age, is each one's own and not set. Options that cannot be read count as not given.
func (s *Snapshot) Ranked(c *Class, part *Partition) priority.Job {
	x := c.Extra
	if x == nil {
		own, _ := c.Spec.Extra()
		x = &own
	}
	return *s.ranked(c, x, requestOf(c.Spec), part)
}

// Terms is what the planner ranks a record of a class by in a partition, and what that is made of. The snapshot's Priority
// must not be nil, nor the class Mixed: there nothing is worked out.
func (s *Snapshot) Terms(c *Class, w *Waiting, part *Partition, now int64) priority.Terms {
	j := s.Ranked(c, part)
	j.Submit, j.Accrue = w.Submit, w.Accrue
	return s.Priority.Rank(&s.Cluster, &j, now)
}

// ranked is Ranked with what is known already.
func (s *Snapshot) ranked(c *Class, x *job.Extra, q *job.Request, part *Partition) *priority.Job {
	limit, _ := TimeLimit(c.Time, c.TimeMin, part.DefaultTime, part.MaxTime)
	j := &priority.Job{Nodes: q.MinNodes, CPUs: q.CPUs, Limit: limit, Estimate: c.Estimate, PartFactor: part.PriorityJob,
		QOSPriority: c.QOSPriority, AssocPriority: c.AssocPrio, FairShare: 1, Nice: c.Spec.Nice, Site: c.Site, Bid: x.Bid,
		Fixed: c.Fixed, Deadline: x.Deadline}
	if s.Priority != nil {
		j.Price = s.Priority.Price
	}
	if s.Shares != nil {
		j.FairShare = s.Shares(c.Assoc)
	}
	if s.Priority != nil && len(s.Priority.TRES) > 0 {
		j.TRES = accounting.RequestTRES(c.Spec, q, x.Licenses, part.DefMemPerNode, part.DefMemPerCPU)
	}
	return j
}
