package server

import (
	"context"
	"fmt"
	"iter"
	"slices"
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
	if f.Wckey != "" {
		return nil, refuse("ESLURM_NOT_SUPPORTED", "jobs carry no wckey yet")
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
			Jobs: refs, Signal: int32(signal), BatchOnly: req.BatchOnly, Full: req.Full, Caller: toLogCaller(c), States: sel.pureStates(),
		}}}
	}
	var refs []*logpb.JobRef
	var results []*ctldpb.JobResult
	if len(sel.refs) > 0 {
		refs, results, err = s.namedRefs(view, c, sel)
	} else {
		sel.restrict(c)
		refs, err = matchedRefs(view, sel)
	}
	if err != nil {
		return nil, err
	}
	done, err := s.steer(ctx, refs, command)
	if len(sel.refs) == 0 {
		done = nil
	}
	return &ctldpb.JobResults{Results: append(results, done...)}, err
}

// refList gathers references. Tasks go one by one into the log, so it counts them.
type refList struct {
	refs  []*logpb.JobRef
	tasks int
}

// add names a whole record: a job, or all of an array.
func (l *refList) add(id uint32) { l.refs = append(l.refs, &logpb.JobRef{JobId: id}) }

// addRows names those tasks of an array that the rows are, in references of at most tasksPerRef
// tasks. Only tasks that exist are named, however many were asked for.
func (l *refList) addRows(array uint32, rows []jobRow) error {
	var cur *logpb.JobRef
	for _, row := range rows {
		for task := range row.numbers() {
			if l.tasks++; l.tasks > MaxTasks {
				return refuse(codeLimit, fmt.Sprintf("more than MaxTasks (%d) array tasks are named one by one; name the array as a whole", MaxTasks))
			}
			if cur == nil || len(cur.Tasks) == tasksPerRef {
				cur = &logpb.JobRef{JobId: array, HasTasks: true}
				l.refs = append(l.refs, cur)
			}
			cur.Tasks = append(cur.Tasks, task)
		}
	}
	return nil
}

// addRow names exactly one row.
func (l *refList) addRow(row jobRow) error {
	if row.j.Waiting == nil && row.j.ArrayTask < 0 {
		l.add(row.j.ID)
		return nil
	}
	return l.addRows(row.j.ArrayID, []jobRow{row})
}

// numbers walks the tasks of an array that a row is.
func (row jobRow) numbers() iter.Seq[uint32] {
	switch {
	case row.j.Waiting == nil:
		return slices.Values([]uint32{uint32(row.j.ArrayTask)})
	case row.task >= 0:
		return slices.Values([]uint32{uint32(row.task)})
	}
	return row.tasks.All()
}

// namedRefs turns ids into references; ids that name nothing are answered at once, ids that a
// filter beside them does not take are left out.
func (s *Server) namedRefs(view state.Viewer, c authn.Caller, sel *selection) (refs []*logpb.JobRef, results []*ctldpb.JobResult, err error) {
	filtered := sel.users != nil || sel.partitions != nil || sel.names != nil || sel.accounts != nil ||
		sel.qos != nil || sel.nodes != nil || len(sel.states) > 0 || sel.reservation != ""
	var list refList
	for i, ref := range sel.refs {
		rows := rowsOf(view, ref)
		if len(rows) == 0 || !s.Auth.Policy().MaySeeJob(c, rows[0].j.Spec.UID) {
			results = append(results, refused(sel.named[i], refusalOf("ESLURM_INVALID_JOB_ID", "")))
			continue
		}
		if !filtered && ref.Tasks == nil {
			list.add(ref.ID)
			continue
		}
		if !filtered {
			if err := list.addRows(ref.ID, rows); err != nil {
				return nil, nil, err
			}
			continue
		}
		for _, row := range rows {
			if !sel.takes(row.j) {
				continue
			}
			if err := list.addRow(row); err != nil {
				return nil, nil, err
			}
		}
	}
	return list.refs, results, nil
}

// matchedRefs are the references of what a filter without ids takes; an array that it takes all of
// is named once.
func matchedRefs(view state.Viewer, sel *selection) ([]*logpb.JobRef, error) {
	whole := map[uint32]bool{}
	var list refList
	for row := range sel.rows(view, nil) {
		array := row.j.ArrayID
		all, seen := whole[array]
		if array != 0 && !seen {
			all = sel.takesArray(view, array)
			if whole[array] = all; all {
				list.add(array)
			}
		}
		switch {
		case row.j.State.Ended(), array != 0 && all:
		default:
			if err := list.addRow(row); err != nil {
				return nil, err
			}
		}
	}
	return list.refs, nil
}

// takesArray tells whether the filter takes every task of an array that has not ended, their states
// apart, which the command looks at itself. Nodes can be others by the time it is applied.
func (sel *selection) takesArray(view state.Viewer, array uint32) bool {
	if len(sel.states) > 0 && sel.pureStates() == nil || sel.nodes != nil {
		return false
	}
	return !slices.ContainsFunc(rowsOf(view, job.Ref{ID: array}), func(row jobRow) bool {
		return !row.j.State.Ended() && !sel.takesInAnyState(row.j)
	})
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
		if refs, results, err = s.namedRefs(view, c, sel); err != nil {
			return nil, nil, err
		}
	}
	if len(f.Names) > 0 {
		sel, err := s.compile(&ctldpb.JobFilter{Names: f.Names})
		if err != nil {
			return nil, nil, err
		}
		sel.restrict(c)
		more, err := matchedRefs(view, sel)
		if err != nil {
			return nil, nil, err
		}
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
