package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func msDuration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// waitPace is how long a waiter rests between two looks at so many records.
func waitPace(records int) time.Duration {
	return min(10*time.Millisecond+time.Duration(records)*50*time.Microsecond, time.Second)
}

func toLogCaller(c authn.Caller) *logpb.Caller {
	return &logpb.Caller{Uid: c.UID, User: c.User, Operator: c.IsOperator()}
}

// Cancel ends or signals jobs. Ids that were named are answered one by one; what a filter takes is
// silently only what is the caller's own and has not ended.
func (s *Server) Cancel(ctx context.Context, req *ctldpb.CancelRequest) (*ctldpb.JobResults, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	f := req.GetFilter()
	if f == nil {
		f = &ctldpb.JobFilter{}
	}
	if f.Reservation != "" || f.Wckey != "" {
		return nil, refuse("ESLURM_NOT_SUPPORTED", "jobs carry no reservation or wckey yet")
	}
	sel, err := s.compile(f)
	if err != nil {
		return nil, err
	}
	if sel.unrestricted() {
		return nil, refuse("ESLURM_INVALID_JOB_ID", "No job identification provided")
	}
	signal := 0
	if req.Signal != "" {
		n, ok := job.SignalNumber(req.Signal)
		if !ok {
			return nil, refuse(codeInvalid, fmt.Sprintf("Unknown job signal: %s", req.Signal))
		}
		signal = n
	}
	view := s.Log.View()
	command := func(refs []*logpb.JobRef) *logpb.Command {
		return &logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{
			Jobs: refs, Signal: int32(signal), BatchOnly: req.BatchOnly, Full: req.Full, Caller: toLogCaller(c),
		}}}
	}
	if len(sel.refs) > 0 {
		refs, results := s.namedRefs(view, c, sel)
		done, err := s.steer(ctx, refs, command)
		return &ctldpb.JobResults{Results: append(results, done...)}, err
	}
	sel.restrict(c)
	_, err = s.steer(ctx, matchedRefs(view, sel), command)
	return &ctldpb.JobResults{}, err
}

// namedRefs turns ids into references; ids that name nothing are answered at once, ids that a
// filter beside them does not take are left out.
func (s *Server) namedRefs(view state.Viewer, c authn.Caller, sel *selection) (refs []*logpb.JobRef, results []*ctldpb.JobResult) {
	filtered := sel.users != nil || sel.partitions != nil || sel.names != nil || sel.accounts != nil ||
		sel.qos != nil || sel.nodes != nil || len(sel.states) > 0
	for i, ref := range sel.refs {
		rows := rowsOf(view, ref)
		if len(rows) == 0 || !s.Auth.Policy().MaySeeJob(c, rows[0].j.Spec.UID) {
			results = append(results, refused(sel.named[i], refusalOf("ESLURM_INVALID_JOB_ID", "")))
			continue
		}
		if !filtered {
			refs = append(refs, splitRef(ref.ID, ref.Tasks)...)
			continue
		}
		for _, row := range rows {
			if sel.takes(row.j) {
				refs = append(refs, rowRef(row)...)
			}
		}
	}
	return refs, results
}

// matchedRefs are the references of what a filter without ids takes, each array once where the
// filter cannot tell its tasks apart.
func matchedRefs(view state.Viewer, sel *selection) []*logpb.JobRef {
	whole := len(sel.states) == 0 && sel.nodes == nil && sel.partitions == nil
	seen := map[uint32]bool{}
	var refs []*logpb.JobRef
	for row := range sel.rows(view, nil) {
		switch {
		case row.j.State.Ended():
		case row.j.ArrayID != 0 && whole:
			if !seen[row.j.ArrayID] {
				seen[row.j.ArrayID] = true
				refs = append(refs, &logpb.JobRef{JobId: row.j.ArrayID})
			}
		default:
			refs = append(refs, rowRef(row)...)
		}
	}
	return refs
}

// rowRef names exactly one row.
func rowRef(row jobRow) []*logpb.JobRef {
	switch {
	case row.j.Waiting != nil:
		tasks := row.tasks
		if row.task >= 0 {
			tasks = job.NewSet(uint32(row.task))
		}
		return splitRef(row.j.ArrayID, tasks)
	case row.j.ArrayTask >= 0:
		return splitRef(row.j.ArrayID, job.NewSet(uint32(row.j.ArrayTask)))
	}
	return splitRef(row.j.ID, nil)
}

// splitRef makes references of at most tasksPerRef tasks, so that no command outgrows the log.
func splitRef(id uint32, tasks *job.Set) []*logpb.JobRef {
	if tasks == nil {
		return []*logpb.JobRef{{JobId: id}}
	}
	var refs []*logpb.JobRef
	var cur *logpb.JobRef
	for task := range tasks.All() {
		if cur == nil || len(cur.Tasks) == tasksPerRef {
			cur = &logpb.JobRef{JobId: id, HasTasks: true}
			refs = append(refs, cur)
		}
		cur.Tasks = append(cur.Tasks, task)
	}
	return refs
}

// steer proposes one kind of command for many jobs, in pieces that the log takes.
func (s *Server) steer(ctx context.Context, refs []*logpb.JobRef, command func([]*logpb.JobRef) *logpb.Command) ([]*ctldpb.JobResult, error) {
	var cmds []*logpb.Command
	var part []*logpb.JobRef
	tasks := 0
	flush := func() {
		if len(part) > 0 {
			cmds = append(cmds, command(part))
			part, tasks = nil, 0
		}
	}
	for _, ref := range refs {
		if len(part) == refsPerCommand || tasks+len(ref.Tasks) > tasksPerRef {
			flush()
		}
		part, tasks = append(part, ref), tasks+len(ref.Tasks)
	}
	flush()
	if len(cmds) == 0 {
		return nil, nil
	}
	done, err := s.Log.Propose(ctx, cmds...)
	if err != nil {
		return nil, logError(err)
	}
	var results []*ctldpb.JobResult
	for _, r := range done {
		if r.Refused != nil {
			return results, refusalError(fromFSM(r.Refused))
		}
		results = append(results, jobResults(r.Jobs)...)
	}
	return results, nil
}

func jobResults(list []fsm.JobResult) []*ctldpb.JobResult {
	out := make([]*ctldpb.JobResult, 0, len(list))
	for _, r := range list {
		if r.Refused != nil {
			out = append(out, refused(r.Job, fromFSM(r.Refused)))
			continue
		}
		out = append(out, &ctldpb.JobResult{JobId: r.Job})
	}
	return out
}

func refused(id string, r *ctldpb.Refusal) *ctldpb.JobResult {
	text := r.Text
	if r.Why != "" {
		text += ": " + r.Why
	}
	return &ctldpb.JobResult{JobId: id, Code: r.Code, Text: text}
}

// Control holds, releases, requeues, suspends and resumes.
func (s *Server) Control(ctx context.Context, req *ctldpb.ControlRequest) (*ctldpb.JobResults, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if req.Op == ctldpb.ControlRequest_NONE || ctldpb.ControlRequest_Op_name[int32(req.Op)] == "" {
		return nil, refuse(codeInvalid, fmt.Sprintf("unknown operation %d", req.Op))
	}
	refs, results, err := s.targets(s.Log.View(), c, req.JobIds)
	if err != nil {
		return nil, err
	}
	done, err := s.steer(ctx, refs, func(part []*logpb.JobRef) *logpb.Command {
		return &logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{
			Op: uint32(req.Op), Jobs: part, Caller: toLogCaller(c),
		}}}
	})
	return &ctldpb.JobResults{Results: append(results, done...)}, err
}

// targets reads the ids of a request that changes jobs; "name=x" takes the caller's live jobs of
// that name.
func (s *Server) targets(view state.Viewer, c authn.Caller, ids []string) (refs []*logpb.JobRef, results []*ctldpb.JobResult, err error) {
	if len(ids) == 0 {
		return nil, nil, refuse("ESLURM_INVALID_JOB_ID", "no job was named")
	}
	if n := len(ids); n > MaxIDs {
		return nil, nil, tooMany("job ids", "MaxIDs", n, MaxIDs)
	}
	f := &ctldpb.JobFilter{}
	for _, id := range ids {
		if name, ok := cutFold(id, "name="); ok {
			f.Names = append(f.Names, name)
			continue
		}
		f.JobIds = append(f.JobIds, id)
	}
	if len(f.JobIds) > 0 {
		sel, err := s.compile(&ctldpb.JobFilter{JobIds: f.JobIds})
		if err != nil {
			return nil, nil, err
		}
		refs, results = s.namedRefs(view, c, sel)
	}
	if len(f.Names) > 0 {
		sel, err := s.compile(&ctldpb.JobFilter{Names: f.Names})
		if err != nil {
			return nil, nil, err
		}
		sel.restrict(c)
		more := matchedRefs(view, sel)
		if len(more) == 0 {
			results = append(results, refused("name="+f.Names[0], refusalOf("ESLURM_INVALID_JOB_ID", "no live job of yours has that name")))
		}
		refs = append(refs, more...)
	}
	return refs, results, nil
}

func cutFold(s, prefix string) (string, bool) {
	if len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix) {
		return s[len(prefix):], true
	}
	return s, false
}
