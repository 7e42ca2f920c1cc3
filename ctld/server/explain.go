package server

import (
	"context"
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// maxExplained is how many records one ExplainJob looks at: an array can have been cut into many.
const maxExplained = 16

// think waits for a turn to work out an answer that takes a round of planning.
func (s *Server) think(ctx context.Context) (done func(), err error) {
	select {
	case s.thinking <- struct{}{}:
		return func() { <-s.thinking }, nil
	case <-ctx.Done():
		return nil, logError(ctx.Err())
	}
}

// ExplainJob says why jobs wait, what they lack, their place in line, and when they are expected or promised to
// start: the planner's own code, asked for one job.
func (s *Server) ExplainJob(ctx context.Context, req *ctldpb.ExplainJobRequest) (*ctldpb.ExplainJobResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	refs, err := parseRefs([]string{req.JobId})
	if err != nil {
		return nil, err
	}
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return nil, err
	}
	rows := rowsOf(view, refs[0])
	if len(rows) == 0 || !s.Auth.Policy().MaySeeJob(c, rows[0].j.Spec.UID) {
		return nil, refuse("ESLURM_INVALID_JOB_ID", "")
	}
	out := &ctldpb.ExplainJobResponse{Info: info}
	asked := 0
	for _, row := range rows {
		j := row.j
		if j.State.Ended() && len(rows) > 1 {
			continue
		}
		if j.State != job.Pending || asked == maxExplained {
			out.Jobs = append(out.Jobs, shownReason(view, row))
			continue
		}
		asked++
		answer, err := s.probe(ctx, view, info.NowMs, sched.Ask{JobID: j.ID})
		if err != nil {
			return nil, err
		}
		e := explanation(answer)
		e.JobId, e.State = rowName(row), j.State.String()
		if e.Reason == "" || e.Reason == string(job.ReasonNone) {
			reason, detail := view.Reason(j)
			e.Reason, e.Detail = string(reason), detail
		}
		out.Jobs = append(out.Jobs, e)
	}
	return out, nil
}

// probe asks the planner.
func (s *Server) probe(ctx context.Context, view state.Viewer, now int64, ask sched.Ask) (*sched.Answer, error) {
	done, err := s.think(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return sched.Probe(view.Sched(), now, view.Policy(), ask), nil
}

// shownReason explains a record that the planner has nothing to say of.
func shownReason(view state.Viewer, row jobRow) *ctldpb.JobExplanation {
	reason, detail := view.Reason(row.j)
	e := &ctldpb.JobExplanation{JobId: rowName(row), State: row.j.State.String(), Reason: string(reason), Detail: detail, StartMs: row.j.Start, Partition: row.j.Partition}
	for _, a := range row.j.Allocs {
		e.Cpus += a.CPUs
	}
	e.Nodes = allocNames(row.j.Allocs)
	return e
}

// rowName names a row as the queue shows it.
func rowName(row jobRow) string {
	switch {
	case row.task >= 0:
		return fmt.Sprintf("%d_%d", row.j.ArrayID, row.task)
	case row.tasks != nil:
		return fmt.Sprintf("%d_%s", row.j.ArrayID, job.ArrayText(row.tasks, row.j.ArrayLimit, 0))
	}
	return row.j.Name()
}

// explanation writes the planner's answer for users.
func explanation(a *sched.Answer) *ctldpb.JobExplanation {
	e := &ctldpb.JobExplanation{
		Reason: string(a.Reason), Detail: a.Detail, Needs: a.Needs, Lacks: a.Lacks, BlockedBy: a.Blocked, Ahead: uint64(max(a.Ahead, 0)),
		Queue: uint64(max(a.Queue, 0)), StartMs: a.Start, Promised: a.Promised, Partition: a.Partition, Advice: a.Advice, Nodes: allocNames(a.Nodes),
	}
	for _, n := range a.Nodes {
		e.Cpus += n.CPUs
	}
	return e
}

func allocNames(list []job.NodeAlloc) string {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Node
	}
	return hostlist.Compress(names)
}

// why is an answer in one line.
func why(a *sched.Answer) string {
	words := []string{a.Detail}
	if a.Detail == "" {
		words = []string{string(a.Reason)}
	}
	return strings.Join(append(words, a.Lacks...), "; ")
}
