package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// testOnly answers whether and when a job would start by the present plan, and proposes nothing. Of a heterogeneous
// job each component is asked for by itself: together they start no sooner than the last of them.
func (s *Server) testOnly(ctx context.Context, view state.Viewer, c authn.Caller, req *ctldpb.SubmitRequest) (*ctldpb.SubmitResponse, error) {
	if req.GetSpec() == nil {
		return nil, refusalError(noJob())
	}
	if len(req.Het) > 0 {
		if ref := hetBounds(view, req); ref != nil {
			return nil, refusalError(ref)
		}
	}
	id := view.NextID()
	out := &ctldpb.SubmitResponse{JobId: id}
	var lines []string
	for i, p := range components(req) {
		spec := new(job.Spec)
		specFromAPI(spec, p)
		if ref, _ := s.prepare(spec, view, c, req.Uid, i > 0); ref != nil {
			return nil, refusalError(ref)
		}
		answer, err := s.foresee(ctx, view, spec)
		if err != nil {
			return nil, err
		}
		if ref := s.late(spec, view, answer); ref != nil {
			return nil, refusalError(ref)
		}
		if answer.Start == 0 {
			return nil, refuse("ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", "no start can be foreseen: "+why(answer))
		}
		e := explanation(answer)
		e.JobId = fmt.Sprint(id + uint32(i))
		if out.Explanation == nil || e.StartMs > out.Explanation.StartMs {
			out.Explanation = e
		}
		lines = append(lines, fmt.Sprintf("Job %s to start at %s using %d processors on nodes %s in partition %s",
			e.JobId, clock(e.StartMs), e.Cpus, e.Nodes, e.Partition))
	}
	out.TestResult = strings.Join(lines, "\n")
	return out, nil
}

// foresee asks the planner for a job that is not there.
func (s *Server) foresee(ctx context.Context, view state.Viewer, spec *job.Spec) (*sched.Answer, error) {
	class, waiting := view.Asked(spec)
	return s.probe(ctx, view, s.Now().UnixMilli(), sched.Ask{Class: class, Waiting: waiting})
}

// late refuses a job that can never run, and one whose deadline the present plan does not meet.
func (s *Server) late(spec *job.Spec, view state.Viewer, a *sched.Answer) *ctldpb.Refusal {
	if a.Never {
		return refusalOf("ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", why(a))
	}
	x, err := spec.Extra()
	if err != nil || x.Deadline == 0 {
		return nil
	}
	if a.Start == 0 {
		return refusalOf("ESLURM_INVALID_TIME_LIMIT", fmt.Sprintf("--deadline: no plan meets %s: %s", clock(x.Deadline), why(a)))
	}
	least := spec.TimeLimit
	if spec.TimeMin > 0 {
		least = spec.TimeMin
	}
	if p := view.Partition(a.Partition); p != nil && least == 0 {
		if least = p.DefaultTime; least == 0 {
			least = p.MaxTime
		}
	}
	switch {
	case least <= 0:
		return refusalOf("ESLURM_INVALID_TIME_LIMIT", "--deadline: a job without a time limit ends by none; give it one with --time")
	case a.Start+least > x.Deadline:
		return refusalOf("ESLURM_INVALID_TIME_LIMIT", fmt.Sprintf("--deadline: by the present plan the job starts at %s and ends at %s at the earliest, its deadline is %s",
			clock(a.Start), clock(a.Start+least), clock(x.Deadline)))
	}
	return nil
}

// planned are the rare options that make a job's admission the planner's question: a deadline, and shapes that single
// nodes say nothing of.
var planned = []string{job.OptDeadline, job.OptSwitches, job.OptContiguous, job.OptSegment}

// admitPlanned asks the planner for a job whose admission is its question.
func (s *Server) admitPlanned(ctx context.Context, view state.Viewer, spec *job.Spec) (*ctldpb.Refusal, error) {
	if view.Feature() < state.FeatureSched || !isPlanned(spec) {
		return nil, nil
	}
	if spec.RareValue(job.OptDeadline) == "" {
		return s.hopeless(ctx, view, spec)
	}
	a, err := s.foresee(ctx, view, spec)
	if err != nil {
		return nil, err
	}
	return s.late(spec, view, a), nil
}

// hopeless refuses a job that no nodes could run were all of them up and empty.
func (s *Server) hopeless(ctx context.Context, view state.Viewer, spec *job.Spec) (*ctldpb.Refusal, error) {
	done, err := s.think(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	class, _ := view.Asked(spec)
	if why, never := sched.Never(view.Sched(), class); never {
		return refusalOf("ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE", why), nil
	}
	return nil, nil
}

// isPlanned tells whether a job's admission is the planner's question. Features that so many nodes must have, or all
// of them the same, are of that kind too.
func isPlanned(spec *job.Spec) bool {
	if strings.ContainsAny(spec.Constraint, "[*") {
		return true
	}
	return slices.ContainsFunc(spec.Rare, func(o job.Option) bool { return slices.Contains(planned, o.Name) })
}
