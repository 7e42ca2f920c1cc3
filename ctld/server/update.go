package server

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// UpdateJob changes jobs; values that need a clock are resolved here, the state checks the rest.
func (s *Server) UpdateJob(ctx context.Context, req *ctldpb.UpdateJobRequest) (*ctldpb.JobResults, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(req.Set); n > MaxSet {
		return nil, tooMany("keys", "MaxSet", n, MaxSet)
	}
	if len(req.Set) == 0 {
		return nil, refuse(codeInvalid, "no changes specified")
	}
	set, err := s.resolveTimes(req.Set)
	if err != nil {
		return nil, err
	}
	// Two updates that are right one by one can be wrong together: each is judged on what the one
	// before it left.
	select {
	case s.updating <- struct{}{}:
		defer func() { <-s.updating }()
	case <-ctx.Done():
		return nil, logError(ctx.Err())
	}
	view := s.Log.View()
	refs, results, err := s.targets(view, c, req.JobIds)
	if err != nil {
		return nil, err
	}
	size := 0
	for key, value := range set {
		size += len(key) + len(value)
	}
	if size*len(refs) > MaxUpdateBytes {
		return nil, refuse(codeLimit, fmt.Sprintf("%d bytes for each of %d jobs are over MaxUpdateBytes (%d)", size, len(refs), MaxUpdateBytes))
	}
	cmds := make([]*logpb.Command, 0, len(refs))
	asked := refs
	refs = nil
	for _, ref := range asked {
		if r := s.admitUpdate(view, c, ref, set); r != nil {
			results = append(results, refused(refName(ref), r))
			continue
		}
		refs = append(refs, ref)
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_UpdateJob{UpdateJob: &logpb.UpdateJob{
			Job: ref, Set: set, Caller: toLogCaller(c),
		}}})
	}
	if len(cmds) == 0 {
		return &ctldpb.JobResults{Results: results}, nil
	}
	done, err := s.Log.Propose(ctx, cmds...)
	if err != nil {
		return nil, logError(err)
	}
	for i, r := range done {
		switch {
		case r.Refused != nil:
			results = append(results, refused(refName(refs[i]), fromFSM(r.Refused)))
		case len(r.Jobs) > 0:
			results = append(results, jobResults(r.Jobs)...)
		default:
			results = append(results, &ctldpb.JobResult{JobId: refName(refs[i])})
		}
	}
	return &ctldpb.JobResults{Results: results}, nil
}

// resolveTimes turns instants (now+1hour, 16:00) into Unix ms: the state knows no clock and no zone.
func (s *Server) resolveTimes(in map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(in))
	for key, value := range in {
		switch strings.ToLower(key) {
		case "starttime", "eligibletime", "begintime", "deadline", "checkpoint":
			at, err := job.ParseInstant(value, s.Now())
			if err != nil {
				return nil, refuse("ESLURM_INVALID_TIME_VALUE", fmt.Sprintf("%s=%s: %v", key, value, err))
			}
			value = strconv.FormatInt(at.UnixMilli(), 10)
		}
		out[key] = value
	}
	return out, nil
}

// editor is what a view must offer to judge an update by its outcome.
type editor interface {
	Edited(j *state.Job, set map[string]string, c state.Caller) *job.Spec
}

// admitUpdate holds the partitions' rules against what an update makes of waiting jobs, as a
// submission is held against them. Operators are free to do otherwise.
func (s *Server) admitUpdate(view state.Viewer, c authn.Caller, ref *logpb.JobRef, set map[string]string) *ctldpb.Refusal {
	edit, ok := view.(editor)
	if !ok || c.IsOperator() {
		return nil
	}
	judged := map[*job.Spec]bool{}
	for _, row := range rowsOf(view, toRef(ref)) {
		old := row.j.Spec
		if row.j.State != job.Pending || old.UID != c.UID || judged[old] {
			continue
		}
		judged[old] = true
		if r := s.admitEdited(view, old, edit.Edited(row.j, set, state.Caller{UID: c.UID, User: c.User})); r != nil {
			return r
		}
	}
	return nil
}

// admitEdited refuses a changed specification that no partition of it admits, or that names one
// which its owner may not use. What was refused before for the same reason was not this update's
// doing: rules may have changed since.
func (s *Server) admitEdited(view state.Viewer, old, next *job.Spec) *ctldpb.Refusal {
	acc, err := s.Auth.Accounts().ByUID(old.UID)
	if err != nil {
		return refusalOf("ESLURM_USER_ID_MISSING", err.Error())
	}
	who := partitions.Who{UID: acc.UID, Groups: acc.GroupNames}
	before := set(strings.Split(old.Partition, ","))
	var first *ctldpb.Refusal
	admitted := false
	for name := range strings.SplitSeq(next.Partition, ",") {
		p := view.Partition(name)
		if p == nil {
			return nil // the state's own rule
		}
		nodes := s.admit.nodes(view, p, s.Now())
		r := partitions.Admit(p, next, who, nodes)
		if r != nil && before[name] {
			if was := partitions.Admit(p, old, who, nodes); was != nil && was.Code == r.Code {
				r = nil
			}
		}
		switch {
		case r == nil:
			admitted = true
		case mayNotUse[r.Code]:
			return fromPartition(r)
		case first == nil:
			first = fromPartition(r)
		}
	}
	if admitted {
		return nil
	}
	return first
}

// mayNotUse are the codes of partitions that a job must not name at all.
var mayNotUse = map[string]bool{
	"ESLURM_ACCESS_DENIED": true, "ESLURM_USER_ID_MISSING": true, "ESLURM_INVALID_ACCOUNT": true, "ESLURM_INVALID_QOS": true,
}

func toRef(ref *logpb.JobRef) job.Ref {
	if ref.HasTasks {
		return job.Ref{ID: ref.JobId, Tasks: job.NewSet(ref.Tasks...)}
	}
	return job.Ref{ID: ref.JobId}
}

func refName(ref *logpb.JobRef) string { return toRef(ref).String() }
