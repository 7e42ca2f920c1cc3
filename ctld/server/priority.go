package server

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// maxPriorityRows bounds one answer of ListPriorities: it is one message.
const maxPriorityRows = 20_000

// ranker tells what priorities waiting jobs have at one moment. The planner's snapshot is asked for only when a
// priority has to be worked out.
type ranker struct {
	view  state.Viewer
	now   int64
	snap  *sched.Snapshot
	parts map[string]*sched.Partition
	known map[rankKey]priority.Job // what the records of a class have in common
	ran   map[ranKey]priority.Job
	asked bool
}

// rankKey is a class in one partition.
type rankKey struct{ class, partition string }

// ranKey is the specification that the tasks of an array have in common, in one partition: a record that does not wait is
// in no class.
type ranKey struct {
	spec      *job.Spec
	partition string
}

func newRanker(view state.Viewer, now int64) *ranker { return &ranker{view: view, now: now} }

// ready tells whether priorities are worked out at all: by weights, or by the policy.
func (r *ranker) ready() bool {
	if !r.asked {
		r.asked = true
		if cfg := &r.view.Config().Sched; r.view.Feature() >= state.FeatureSched && ranked(cfg) {
			r.snap = r.view.Sched()
			r.parts = make(map[string]*sched.Partition, len(r.snap.Partitions))
			r.known, r.ran = map[rankKey]priority.Job{}, map[ranKey]priority.Job{}
			for _, p := range r.snap.Partitions {
				r.parts[p.Name] = p
			}
		}
	}
	return r.snap != nil && r.snap.Priority != nil
}

// ranked tells whether a configuration ranks jobs by more than the order of their submission.
func ranked(c *state.SchedConfig) bool {
	switch c.PriorityType {
	case priority.FCFS:
		return false
	case "", priority.Multifactor:
		return c.WeightAge|c.WeightAssoc|c.WeightShare|c.WeightJobSize|c.WeightPart|c.WeightQOS|c.WeightBid != 0 || len(c.WeightTRES) > 0
	}
	return true
}

// priority is what a job's priority is: 0 while it is held, the best of those in its partitions while it waits, and with
// the age that it had when it started from then on.
func (r *ranker) priority(j *state.Job) int64 {
	if j.Priority == 0 || j.Fixed || !r.ready() {
		return j.Priority
	}
	if j.State != job.Pending {
		return r.last(j)
	}
	c := r.class(j.Class)
	if c == nil {
		return j.Priority
	}
	best := int64(0)
	for name := range strings.SplitSeq(j.Spec.Partition, ",") {
		if p := r.parts[name]; p != nil {
			key := rankKey{j.Class, name}
			pj, ok := r.known[key]
			if !ok {
				pj = r.snap.Ranked(c, p)
				r.known[key] = pj
			}
			pj.Submit, pj.Accrue = j.Submit, j.Eligible
			best = max(best, r.snap.Priority.Rank(&r.snap.Cluster, &pj, r.now).Priority)
		}
	}
	return max(best, 1)
}

// last is the priority that a job had when it started, or when it ended without having run, by the shares and weights of
// now: nothing of it is kept on the record.
func (r *ranker) last(j *state.Job) int64 {
	name, _, _ := strings.Cut(j.Partition, ",")
	p := r.parts[name]
	if p == nil {
		return j.Priority
	}
	key := ranKey{j.Spec, name}
	pj, ok := r.ran[key]
	if !ok {
		c, _ := r.view.Asked(j.Spec)
		pj = r.snap.Ranked(c, p)
		r.ran[key] = pj
	}
	pj.Submit, pj.Accrue = j.Submit, j.Eligible
	at := min(cmp.Or(j.Start, j.End, r.now), r.now)
	return max(r.snap.Priority.Rank(&r.snap.Cluster, &pj, at).Priority, 1)
}

// class finds a class by its key.
func (r *ranker) class(key string) *sched.Class {
	at, found := slices.BinarySearchFunc(r.snap.Classes, key, func(c *sched.Class, key string) int { return strings.Compare(c.Key, key) })
	if !found {
		return nil
	}
	return r.snap.Classes[at]
}

// ListPriorities shows what the priorities of waiting jobs are made of, and each job's place in the line of its
// partition.
func (s *Server) ListPriorities(ctx context.Context, req *ctldpb.ListPrioritiesRequest) (*ctldpb.ListPrioritiesResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	sel, err := s.compile(&ctldpb.JobFilter{JobIds: req.JobIds, Users: req.Users, Partitions: req.Partitions})
	if err != nil {
		return nil, err
	}
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return nil, err
	}
	if ref := needsSched(view, "priorities by their terms"); ref != nil {
		return nil, refusalError(ref)
	}
	if s.Auth.Policy().Private("jobs") {
		sel.restrict(c)
	}
	done, err := s.think(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	snap := view.Sched()
	out := &ctldpb.ListPrioritiesResponse{Info: info, Policy: snap.Priority.Type, Weights: weights(snap.Priority)}
	l := line{view: view, snap: snap, now: info.NowMs, sel: sel, ids: sel.ids()}
	l.gather()
	if n := l.count(); n > maxPriorityRows {
		return nil, refuse(codeLimit, fmt.Sprintf("%d rows exceed the limit of %d: name jobs, users or partitions", n, maxPriorityRows))
	}
	out.Rows = l.rows()
	return out, nil
}

// weights lists the weights in force by the names that the commands show.
func weights(p *priority.Params) map[string]float64 {
	out := map[string]float64{"age": float64(p.Age), "assoc": float64(p.Assoc), "fairshare": float64(p.FairShare), "jobsize": float64(p.JobSize),
		"partition": float64(p.Partition), "qos": float64(p.QOS), "bid": float64(p.Bid)}
	for _, w := range p.TRES {
		out["tres/"+w.Name] = float64(w.W)
	}
	return out
}

// ids are the records that a selection names; nil when it names none.
func (sel *selection) ids() map[uint32]*job.Set {
	if len(sel.refs) == 0 {
		return nil
	}
	m := make(map[uint32]*job.Set, len(sel.refs))
	for _, ref := range sel.refs {
		m[ref.ID] = ref.Tasks
	}
	return m
}

// line is the waiting jobs of all partitions that somebody asks of, in the order in which they go.
type line struct {
	view state.Viewer
	snap *sched.Snapshot
	now  int64
	sel  *selection
	ids  map[uint32]*job.Set
	at   map[string]int
	in   [][]entry // by partition
}

// entry is one record in one partition.
type entry struct {
	class *sched.Class
	w     sched.Waiting
	key   priority.Key
	shown bool // it is asked for
	ready bool // it is in line: neither blocked nor too early
}

// gather finds who waits where.
func (l *line) gather() {
	l.at = make(map[string]int, len(l.snap.Partitions))
	for i, p := range l.snap.Partitions {
		l.at[p.Name] = i
	}
	l.in = make([][]entry, len(l.snap.Partitions))
	for _, c := range l.snap.Classes {
		for name := range strings.SplitSeq(c.Spec.Partition, ",") {
			at, ok := l.at[name]
			if !ok {
				continue
			}
			inList := l.sel.partitions == nil || l.sel.partitions[name]
			pj := l.snap.Ranked(c, l.snap.Partitions[at])
			part := l.snap.Priority.Part(&l.snap.Cluster, &pj)
			for w := range c.Waiting {
				if w.Held {
					continue
				}
				e := entry{class: c, w: w, ready: w.Blocked == "" && w.Begin <= l.now}
				e.key = part.Key(w.Submit, w.Accrue, l.now)
				e.shown = inList && l.asked(c, &w)
				l.in[at] = append(l.in[at], e)
			}
		}
	}
}

// asked tells whether a record is one of those asked for, its partition apart.
func (l *line) asked(c *sched.Class, w *sched.Waiting) bool {
	j := l.view.Job(w.JobID)
	if j == nil {
		return false
	}
	if l.ids != nil {
		tasks, named := l.ids[j.ID]
		if !named && j.ArrayID != 0 {
			tasks, named = l.ids[j.ArrayID]
		}
		if !named || tasks != nil && !inTasks(j, tasks) {
			return false
		}
	}
	return (l.sel.onlyOf == nil || *l.sel.onlyOf == c.UID) && (l.sel.users == nil || l.sel.users[j.Spec.User] || l.sel.users[fmt.Sprint(c.UID)])
}

// inTasks tells whether a record has any of these tasks of its array.
func inTasks(j *state.Job, tasks *job.Set) bool {
	if j.Waiting != nil {
		return j.Waiting.Intersect(tasks).Len() > 0
	}
	return j.ArrayTask >= 0 && tasks.Contains(uint32(j.ArrayTask))
}

func (l *line) count() (n int) {
	for _, list := range l.in {
		for i := range list {
			if list[i].shown {
				n++
			}
		}
	}
	return n
}

// rows puts each partition's line in order and shows what is asked for, by job and then partition.
func (l *line) rows() []*ctldpb.PriorityRow {
	var rows []*ctldpb.PriorityRow
	var order []uint32
	for at, list := range l.in {
		slices.SortFunc(list, func(a, b entry) int {
			if a.ready != b.ready {
				return cmp.Compare(b2i(b.ready), b2i(a.ready))
			}
			return cmp.Or(priority.Compare(a.key, b.key), cmp.Compare(a.w.Submit, b.w.Submit), cmp.Compare(a.w.SubmitSeq, b.w.SubmitSeq), cmp.Compare(a.w.JobID, b.w.JobID))
		})
		for i := range list {
			if e := &list[i]; e.shown {
				row := l.row(e, l.snap.Partitions[at])
				if e.ready {
					row.Place = uint64(i + 1)
				}
				rows, order = append(rows, row), append(order, e.w.JobID)
			}
		}
	}
	sortTogether(rows, order)
	return rows
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sortTogether sorts rows by the ids beside them; rows of one id keep their order.
func sortTogether(rows []*ctldpb.PriorityRow, ids []uint32) {
	at := make([]int, len(rows))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(ids[a], ids[b]) })
	old := slices.Clone(rows)
	for i, from := range at {
		rows[i] = old[from]
	}
}

// row shows one record in one partition.
func (l *line) row(e *entry, p *sched.Partition) *ctldpb.PriorityRow {
	j := l.view.Job(e.w.JobID)
	t := l.snap.Terms(e.class, &e.w, p, l.now)
	row := &ctldpb.PriorityRow{
		JobId: recordName(j), Partition: p.Name, User: j.Spec.User, Account: j.Spec.Account, Qos: j.Spec.QOS, Priority: t.Priority, Site: t.Site,
		Age: t.Age, Assoc: t.Assoc, FairShare: t.FairShare, JobSize: t.JobSize, Part: t.Partition, QosTerm: t.QOS, Tres: t.TRES, Bid: t.Bid, Nice: t.Nice,
		NormAge: t.AgeFactor, NormAssoc: t.AssocFactor, NormFairShare: t.FairShareFactor, NormJobSize: t.JobSizeFactor, NormPart: t.PartitionFactor,
		NormQos: t.QOSFactor, NormBid: t.BidFactor, Policy: l.snap.Priority.Type, Expansion: math.NaN(), Starved: t.Starved, Fixed: j.Fixed,
	}
	if l.snap.Priority.Type == priority.Expansion {
		row.Expansion = t.Expansion
	}
	var words []string
	for _, term := range t.TRESOf {
		words = append(words, fmt.Sprintf("%s=%.0f", term.Name, term.Term))
	}
	row.TresTerms = strings.Join(words, ",")
	return row
}

// recordName names a waiting record as the queue shows it: 12, 12_3, 12_[4-9].
func recordName(j *state.Job) string {
	if j.Waiting != nil {
		return fmt.Sprintf("%d_%s", j.ArrayID, job.ArrayText(j.Waiting, j.ArrayLimit, 0))
	}
	return j.Name()
}
