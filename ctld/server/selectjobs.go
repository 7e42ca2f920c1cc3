package server

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// selection is a compiled filter over jobs. An empty list of a kind takes everything.
type selection struct {
	refs       []job.Ref
	named      []string // as the caller wrote refs
	users      map[string]bool
	uids       []uint32 // of users, sorted; nil when one of them is no user of this machine
	partitions map[string]bool
	names      map[string]bool
	accounts   map[string]bool
	qos        map[string]bool
	nodes      map[string]bool
	// of the reservation that a job is in, or waits for; "" = any
	reservation string
	states      []stateTest
	anyState    bool
	endedAfter  int64
	before      int64
	onlyOf      *uint32 // owner that the caller is restricted to
}

type stateTest struct {
	state job.State
	flag  job.Flags
}

// compile checks a filter against the limits and turns it into a selection. onlyLive is the
// meaning of an empty list of states: jobs that have not finished.
func (s *Server) compile(f *ctldpb.JobFilter) (*selection, error) {
	for _, list := range []struct {
		name  string
		words []string
	}{
		{"users", f.Users}, {"names", f.Names}, {"partitions", f.Partitions}, {"states", f.States},
		{"accounts", f.Accounts}, {"qos", f.Qos}, {"nodes", f.Nodes},
	} {
		if n := len(list.words); n > MaxFilterNames {
			return nil, tooMany(list.name, "MaxFilterNames", n, MaxFilterNames)
		}
		for _, w := range list.words {
			if len(w) > MaxFilterWord {
				return nil, refuse(codeLimit, fmt.Sprintf("an entry of %s has %d bytes, over MaxFilterWord (%d)", list.name, len(w), MaxFilterWord))
			}
		}
	}
	sel := &selection{
		users: s.userSet(f.Users), partitions: set(f.Partitions), names: set(f.Names),
		accounts: set(f.Accounts), qos: set(f.Qos), reservation: f.Reservation,
	}
	sel.uids = s.uidsOf(f.Users)
	var err error
	if sel.refs, err = parseRefs(f.JobIds); err != nil {
		return nil, err
	}
	sel.named = f.JobIds
	if sel.nodes, err = nodeSet(f.Nodes); err != nil {
		return nil, err
	}
	for _, name := range f.States {
		if strings.EqualFold(name, "all") {
			sel.anyState = true
			continue
		}
		st, flag, ok := job.ParseState(name)
		if !ok {
			return nil, refuse(codeInvalid, fmt.Sprintf("Invalid job state specified: %s", name))
		}
		sel.states = append(sel.states, stateTest{st, flag})
	}
	return sel, nil
}

// parseRefs reads job ids; more than MaxIDs are refused.
func parseRefs(ids []string) ([]job.Ref, error) {
	if n := len(ids); n > MaxIDs {
		return nil, tooMany("job ids", "MaxIDs", n, MaxIDs)
	}
	refs := make([]job.Ref, 0, len(ids))
	for _, id := range ids {
		ref, err := job.ParseRef(id)
		if err != nil {
			return nil, refuse("ESLURM_INVALID_JOB_ID", err.Error())
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

func set(words []string) map[string]bool {
	if len(words) == 0 {
		return nil
	}
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[w] = true
	}
	return m
}

// userSet takes names and uids; both are matched by uid where the account is known here.
func (s *Server) userSet(users []string) map[string]bool {
	m := set(users)
	for _, u := range users {
		if acc, err := s.Auth.Accounts().ByName(u); err == nil {
			m[strconv.FormatUint(uint64(acc.UID), 10)] = true
		}
	}
	return m
}

// uidsOf gives the uids of users, nil unless all of them are known here: a record keeps the name that its owner had.
func (s *Server) uidsOf(users []string) []uint32 {
	var uids []uint32
	for _, u := range users {
		if acc, err := s.Auth.Accounts().ByName(u); err == nil {
			uids = append(uids, acc.UID)
		} else if uid, err := strconv.ParseUint(u, 10, 32); err == nil {
			uids = append(uids, uint32(uid))
		} else {
			return nil
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

func nodeSet(patterns []string) (map[string]bool, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	names, err := hostlist.Expand(strings.Join(patterns, ","))
	if err != nil {
		return nil, refuse("ESLURM_INVALID_NODE_NAME", err.Error())
	}
	return set(names), nil
}

// unrestricted tells whether the selection would take every job there is.
func (sel *selection) unrestricted() bool {
	return len(sel.refs) == 0 && sel.users == nil && sel.partitions == nil && sel.names == nil &&
		sel.accounts == nil && sel.qos == nil && sel.nodes == nil && sel.reservation == "" && len(sel.states) == 0 && !sel.anyState
}

// takes tells whether a record passes the filter, its id apart.
func (sel *selection) takes(j *state.Job) bool { return sel.takesInAnyState(j) && sel.takesState(j) }

func (sel *selection) takesInAnyState(j *state.Job) bool {
	sp := j.Spec
	switch {
	case sel.onlyOf != nil && sp.UID != *sel.onlyOf,
		sel.users != nil && !sel.users[sp.User] && !sel.users[strconv.FormatUint(uint64(sp.UID), 10)],
		sel.names != nil && !sel.names[sp.Name],
		sel.accounts != nil && !sel.accounts[sp.Account],
		sel.qos != nil && !sel.qos[sp.QOS],
		sel.partitions != nil && !inPartition(sel.partitions, j),
		sel.reservation != "" && !inReservation(j, sel.reservation),
		sel.nodes != nil && !slices.ContainsFunc(j.Allocs, func(a job.NodeAlloc) bool { return sel.nodes[a.Node] }),
		sel.endedAfter > 0 && j.State.Ended() && j.End < sel.endedAfter,
		sel.before > 0 && (j.Start > sel.before || j.Start == 0 && j.Submit > sel.before):
		return false
	}
	return true
}

// pureStates gives the states that the filter names, for a command that is to leave alone what has
// left them by the time it is applied; nil when it names none, or flags beside them.
func (sel *selection) pureStates() []uint32 {
	var list []uint32
	for _, t := range sel.states {
		if sel.anyState || t.flag != 0 {
			return nil
		}
		list = append(list, uint32(t.state))
	}
	return list
}

func (sel *selection) takesState(j *state.Job) bool {
	if sel.anyState {
		return true
	}
	if len(sel.states) == 0 {
		return !j.State.Ended() || j.Flags&job.Completing != 0
	}
	return slices.ContainsFunc(sel.states, func(t stateTest) bool {
		if t.flag != 0 {
			return j.Flags&t.flag != 0
		}
		return j.State == t.state
	})
}

// inReservation tells whether a job runs in a reservation, or may once it starts.
func inReservation(j *state.Job, name string) bool {
	if j.Reservation != "" {
		return j.Reservation == name
	}
	return slices.Contains(strings.Split(j.Spec.RareValue(job.OptReservation), ","), name)
}

func inPartition(want map[string]bool, j *state.Job) bool {
	names := j.Partition
	if names == "" {
		names = j.Spec.Partition
	}
	for name := range strings.SplitSeq(names, ",") {
		if want[name] {
			return true
		}
	}
	return false
}

// rows walks what the selection takes, ascending by id unless ids were named. unknown collects the
// ids that name nothing.
func (sel *selection) rows(view state.Viewer, unknown *[]string) iter.Seq[jobRow] {
	if len(sel.refs) > 0 {
		return func(yield func(jobRow) bool) {
			for i, ref := range sel.refs {
				found := rowsOf(view, ref)
				if len(found) == 0 && unknown != nil {
					*unknown = append(*unknown, sel.named[i])
				}
				for _, row := range found {
					if sel.takes(row.j) && !yield(row) {
						return
					}
				}
			}
		}
	}
	return func(yield func(jobRow) bool) {
		for j := range sel.candidates(view) {
			if sel.takes(j) && !yield(wholeRow(j)) {
				return
			}
		}
	}
}

// candidates is the smallest of the state's lists that holds everything the filter can take.
func (sel *selection) candidates(view state.Viewer) iter.Seq[*state.Job] {
	live := !sel.anyState && !slices.ContainsFunc(sel.states, func(t stateTest) bool {
		return t.flag != 0 || t.state.Ended()
	})
	switch {
	case live && sel.onlyOf != nil:
		return view.OfUser(*sel.onlyOf)
	case live && len(sel.uids) == 1:
		return view.OfUser(sel.uids[0])
	case live && len(sel.uids) > 1:
		return ofUsers(view, sel.uids)
	case live:
		return view.Live()
	}
	return view.Jobs()
}

// ofUsers walks the live records of several users, ascending by id.
func ofUsers(view state.Viewer, uids []uint32) iter.Seq[*state.Job] {
	var list []*state.Job
	for _, uid := range uids {
		list = slices.AppendSeq(list, view.OfUser(uid))
	}
	slices.SortFunc(list, func(a, b *state.Job) int { return cmp.Compare(a.ID, b.ID) })
	return slices.Values(list)
}

func wholeRow(j *state.Job) jobRow { return jobRow{j: j, task: job.NoTask, tasks: j.Waiting} }

// rowsOf gives what one id names: a job, all of an array, or tasks of it, waiting ones included.
func rowsOf(view state.Viewer, ref job.Ref) []jobRow {
	j := view.Job(ref.ID)
	var rows []jobRow
	if ref.Tasks == nil {
		if j != nil && (j.Waiting != nil || j.ArrayID != j.ID) {
			rows = append(rows, wholeRow(j))
		}
		if j == nil || j.ArrayID == ref.ID {
			for _, t := range view.ArrayTasks(ref.ID) {
				rows = append(rows, wholeRow(t))
			}
		}
		return rows
	}
	if j != nil && j.Waiting != nil && j.ArrayID == ref.ID {
		rows = appendPart(rows, j, ref.Tasks)
	}
	if ref.Tasks.Len() == 1 {
		if t := view.ArrayTask(ref.ID, int64(ref.Tasks.Min())); t != nil {
			rows = appendPart(rows, t, ref.Tasks)
		}
		return rows
	}
	for _, t := range view.ArrayTasks(ref.ID) {
		rows = appendPart(rows, t, ref.Tasks)
	}
	return rows
}

// appendPart adds a record of an array as far as the tasks asked for go.
func appendPart(rows []jobRow, j *state.Job, asked *job.Set) []jobRow {
	if j.Waiting == nil {
		if j.ArrayTask >= 0 && asked.Contains(uint32(j.ArrayTask)) {
			rows = append(rows, wholeRow(j))
		}
		return rows
	}
	in := j.Waiting.Intersect(asked)
	switch {
	case in.Len() == 0:
	case asked.Len() == 1:
		rows = append(rows, jobRow{j: j, task: int64(in.Min()), tasks: in})
	default:
		rows = append(rows, jobRow{j: j, task: job.NoTask, tasks: in})
	}
	return rows
}

// restrict limits a selection to what the caller may change.
func (sel *selection) restrict(c authn.Caller) {
	if !c.IsOperator() {
		sel.onlyOf = &c.UID
	}
}
