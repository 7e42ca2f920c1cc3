package server

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
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
	refs, results, err := s.targets(s.Log.View(), c, req.JobIds)
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
	for _, ref := range refs {
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
		if k := strings.ToLower(key); k == "starttime" || k == "eligibletime" || k == "begintime" {
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

func refName(ref *logpb.JobRef) string {
	if ref.HasTasks {
		return job.Ref{ID: ref.JobId, Tasks: job.NewSet(ref.Tasks...)}.String()
	}
	return strconv.FormatUint(uint64(ref.JobId), 10)
}
