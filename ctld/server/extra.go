package server

import (
	"fmt"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// yesOrNo are the rare options that are on or off.
var yesOrNo = map[string]bool{
	job.OptContiguous: true, job.OptSpread: true, job.OptFewNodes: true, job.OptOvercommit: true, job.OptInvalidDep: true,
}

// checkExtra refuses rare options that cannot be meant: the refusal names the option and its word.
func (s *Server) checkExtra(spec *job.Spec, view state.Viewer) *ctldpb.Refusal {
	if len(spec.Rare) == 0 {
		return nil
	}
	for _, o := range spec.Rare {
		switch {
		case o.Name == job.OptHet:
			return refusalOf(codeInvalid, "--"+job.OptHet+" is the controller's to set; separate components with a colon, or with #SBATCH hetjob")
		case yesOrNo[o.Name] && o.Value != "yes" && o.Value != "no" && o.Value != "":
			return refusalOf(codeInvalid, fmt.Sprintf("--%s=%s: yes or no was expected", o.Name, o.Value))
		}
	}
	x, err := spec.Extra()
	if err != nil {
		return specRefusal(err)
	}
	if x.Bid < 0 {
		return refusalOf(codeInvalid, fmt.Sprintf("--bid: %d is below 0", x.Bid))
	}
	if c := view.Config(); x.Bid > 0 && c != nil && c.Sched.WeightBid == 0 {
		return refusalOf(codeInvalid, "--bid: bids have no effect on this cluster (PriorityWeightBid is 0)")
	}
	if x.Prefer != "" {
		if _, err := partitions.ParseFeatures(x.Prefer); err != nil {
			return refusalOf("ESLURM_INVALID_FEATURE", fmt.Sprintf("--prefer: %v", err))
		}
	}
	if x.Segment > 0 && spec.MinNodes > 0 && spec.MinNodes%x.Segment != 0 {
		return refusalOf("ESLURM_INVALID_NODE_COUNT", fmt.Sprintf("--segment=%d: %d nodes are no whole number of segments", x.Segment, spec.MinNodes))
	}
	return checkDeadline(spec, &x, s.Now().UnixMilli())
}

// checkDeadline refuses a deadline that has passed, or that the job's own time limit does not leave room for.
// Whether other jobs do is the planner's answer.
func checkDeadline(spec *job.Spec, x *job.Extra, now int64) *ctldpb.Refusal {
	if x.Deadline == 0 {
		return nil
	}
	if x.Deadline <= now {
		return refusalOf("ESLURM_INVALID_TIME_VALUE", fmt.Sprintf("--deadline: %s has passed; it is %s", clock(x.Deadline), clock(now)))
	}
	least := spec.TimeLimit
	if spec.TimeMin > 0 {
		least = spec.TimeMin
	}
	start := max(now, spec.Begin)
	switch {
	case least == job.Unlimited:
		return refusalOf("ESLURM_INVALID_TIME_LIMIT", "--deadline: a job without a time limit ends by none; give it one with --time")
	case least > 0 && start+least > x.Deadline:
		return refusalOf("ESLURM_INVALID_TIME_LIMIT", fmt.Sprintf("--deadline: the job may take %s and would end at %s at the earliest, its deadline is %s",
			job.FormatDuration(least), clock(start+least), clock(x.Deadline)))
	}
	return nil
}

// clock writes a moment in the controller's zone, as Slurm's tools do.
func clock(ms int64) string { return time.UnixMilli(ms).Format("2006-01-02T15:04:05") }
