package sim

import (
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// victims checks the evictions of a plan that was made on this very state: each makes room for a job that waits and may
// push the run aside, on nodes that the job may use.
func (s *sim) victims(before *state.View, p *logpb.Plan) {
	for _, e := range p.GetEvicts() {
		old, by := before.Job(e.JobId), before.Job(e.By)
		if e.How == sched.EvictResume {
			continue
		}
		switch {
		case by == nil || runs(by) || by.State.Ended():
			s.fail("job %d is to make room for job %d, which does not wait", e.JobId, e.By)
		case !runs(old):
			s.fail("job %d is to make room for job %d, and does not run", e.JobId, e.By)
		case !s.mayPush(before, old, by):
			s.fail("job %d of partition %s, QOS %q, is to make room for job %d of %s, QOS %q", old.ID, old.Partition, old.Spec.QOS, by.ID, by.Spec.Partition, by.Spec.QOS)
		}
	}
}

// mayPush tells whether a waiting job, or a component of it, may push a run aside: its partition, or its QOS, goes before
// that of the run, and the run is on nodes of the partition.
func (s *sim) mayPush(v *state.View, old, by *state.Job) bool {
	for id := by.ID; id < by.ID+max(1, by.HetSize()); id++ {
		part := v.Job(id)
		if part == nil {
			continue
		}
		for name := range strings.SplitSeq(part.Spec.Partition, ",") {
			if p, of := v.Partition(name), v.Partition(old.Partition); p != nil && of != nil && s.goesBefore(v, part, old, p, of) &&
				(old.Het != 0 || slices.ContainsFunc(old.Allocs, func(a job.NodeAlloc) bool { return slices.Contains(p.Nodes, a.Node) })) {
				return true
			}
		}
	}
	return false
}

// goesBefore tells whether a job in a partition may push a run of another aside.
func (s *sim) goesBefore(v *state.View, by, old *state.Job, p, of *state.Partition) bool {
	if v.Config().Sched.PreemptType == "partition_prio" {
		return p.PriorityTier > of.PriorityTier
	}
	q := v.Accounting().QOS(by.Spec.QOS)
	return v.Config().Sched.PreemptType == "qos" && q != nil && slices.Contains(q.Preempt, old.Spec.QOS)
}

// evicted checks the runs that an entry has pushed aside: a plan in it says so of this very run.
func (s *sim) evicted(before *state.View, cmds []*logpb.Command) {
	for old := range before.Active() {
		j := s.view.Job(old.ID)
		if j == nil || j.PreemptAt == 0 || j.PreemptAt == old.PreemptAt || old.HetOffset > 0 {
			continue
		}
		if !slices.ContainsFunc(cmds, func(c *logpb.Command) bool {
			return slices.ContainsFunc(c.GetPlan().GetEvicts(), func(e *logpb.Evict) bool {
				first := before.Job(e.JobId)
				return first != nil && e.Run == old.Run && (e.JobId == old.ID || old.Het != 0 && first.Het == old.Het)
			})
		}) {
			s.fail("run %d of job %d makes room for job %d, and no plan has said so", old.Run, old.ID, j.PreemptBy)
		}
	}
}
