package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// MaxHetComponents bounds the components of one heterogeneous job, as Slurm's.
const MaxHetComponents = 128

// SubmitHet takes a heterogeneous job: its components get consecutive ids and enter together or not at all. The key
// is the whole job's; id is the first component's.
func (t *Tx) SubmitHet(key string, digest []byte, specs []*job.Spec) (id uint32, duplicate bool, r *Refusal) {
	if r := t.mayBeHet(specs); r != nil {
		return 0, false, r
	}
	uid := specs[0].UID
	if key != "" {
		if id, r := t.known(uid, key, digest); id != 0 || r != nil {
			return id, id != 0, r
		}
	}
	first, submits := t.nextID, t.submits
	for i, s := range specs {
		s.Rare = withOption(s.Rare, job.Option{Name: job.OptHet, Value: fmt.Sprintf("%d/%d", i, len(specs))})
		j, r := t.enter(s, "", first, uint32(i))
		if r == nil {
			continue
		}
		for n := range i { // all or none
			t.drop(t.Job(first + uint32(n)))
		}
		t.nextID, t.submits = first, submits
		r.Why = fmt.Sprintf("component %d: %s", i, r.Why)
		_ = j
		return 0, false, r
	}
	if key != "" {
		old := t.Job(first)
		j := edit(old)
		j.Key = key
		t.put(old, j)
		t.setKey(first, keyRecord{uid: uid, key: key, digest: [32]byte(digest), time: t.now})
	}
	t.follow(t.Job(first))
	return first, false, nil
}

func (t *Tx) mayBeHet(specs []*job.Spec) *Refusal {
	switch {
	case t.feature < FeatureSched:
		return refuse("ESLURM_NOT_SUPPORTED", "Operation not supported", "the controllers do not all run a version that knows heterogeneous jobs yet")
	case len(specs) < 2 || len(specs) > MaxHetComponents:
		return refuse("ESLURM_INVALID_VALUE", "Invalid heterogeneous job",
			fmt.Sprintf("it has from 2 to MaxHetComponents=%d components, this one %d", MaxHetComponents, len(specs)))
	case uint64(t.nextID)+uint64(len(specs)) > uint64(MaxJobID)+1:
		return refuse("EAGAIN", "Resource temporarily unavailable", fmt.Sprintf("all job ids up to MaxJobId=%d have been given", MaxJobID))
	}
	for i, s := range specs {
		switch {
		case s.UID != specs[0].UID:
			return denied(fmt.Sprintf("component %d is another user's", i))
		case s.Array != "":
			return refuse("ESLURM_INVALID_ARRAY", "Invalid job array specification", fmt.Sprintf("component %d: --array and a heterogeneous job exclude each other", i))
		case i > 0 && s.Dependency != specs[0].Dependency:
			s.Dependency = specs[0].Dependency
		}
		s.Begin, s.Hold = specs[0].Begin, specs[0].Hold
	}
	return nil
}

// withOption gives a list, sorted by name, with one option set.
func withOption(list []job.Option, o job.Option) []job.Option {
	out := slices.DeleteFunc(slices.Clone(list), func(x job.Option) bool { return x.Name == o.Name })
	at, _ := slices.BinarySearchFunc(out, o, func(a, b job.Option) int { return strings.Compare(a.Name, b.Name) })
	return slices.Insert(out, at, o)
}

// hetSize is how many components the job of a specification has; 0 = it is no part of a heterogeneous one.
func hetSize(s *job.Spec) uint32 {
	_, size, ok := strings.Cut(s.RareValue(job.OptHet), "/")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(size, 10, 16)
	if err != nil || n > MaxHetComponents {
		return 0
	}
	return uint32(n)
}

// HetSize is how many components the record's heterogeneous job has; 0 for other jobs.
func (j *Job) HetSize() uint32 {
	if j.Het == 0 {
		return 0
	}
	return hetSize(j.Spec)
}

// isComponent tells whether a record is a component other than the first: it has no batch step of its own and follows
// the first in all that happens to it.
func isComponent(j *Job) bool { return j.HetOffset > 0 }

// firstOf gives the record that a component follows, any other record itself; nil when the first has left memory.
func (t *tables) firstOf(j *Job) *Job {
	if !isComponent(j) {
		return j
	}
	if first := t.Job(j.Het); first != nil && first.Het == j.Het {
		return first
	}
	return nil
}

// group gives the records that start, run and end together with j, j among them, ascending by id.
func (t *tables) group(j *Job) []*Job {
	if j.Het == 0 {
		return []*Job{j}
	}
	var list []*Job
	for id := j.Het; id < j.Het+max(1, j.HetSize()); id++ {
		if part := t.Job(id); part != nil && part.Het == j.Het {
			list = append(list, part)
		}
	}
	return list
}

// whole lets a command that names a component mean all of the job.
func (t *tables) whole(x target) target {
	if first := t.firstOf(x.job); first != nil {
		x.job = first
	}
	return x
}

// follow brings the other components along after the first has changed.
func (t *Tx) follow(first *Job) {
	if first == nil || first.Het != first.ID || t.restoring {
		return
	}
	for id := first.ID + 1; id < first.ID+first.HetSize(); id++ {
		old := t.Job(id)
		if old == nil || old.Het != first.ID {
			continue
		}
		if j := t.inStep(old, first); j != nil {
			t.put(old, j)
		}
	}
}

// shortest is the time limit of a run that begins: of a heterogeneous job's first component, which starts last and ends the
// others, the shortest of all, so that none runs beyond its own.
func (t *Tx) shortest(j *Job, limit int64) int64 {
	if j.Het == 0 || isComponent(j) {
		return limit
	}
	for _, part := range t.group(j) {
		if isComponent(part) && part.TimeLimit > 0 && (limit < 0 || part.TimeLimit < limit) {
			limit = part.TimeLimit
		}
	}
	return limit
}

// step is what a component has in common with the first.
type step struct {
	state                                          job.State
	flags                                          job.Flags
	held                                           Hold
	run, restarts                                  uint32
	eligible, begin, eligibleAt, end               int64
	exit                                           job.Exit
	kill                                           job.Why
	killAt, suspendedAt, stopped, preemptAt, grace int64
	cancelUID                                      uint32
	cancelled, byPlan, fixed                       bool
	dep                                            DepState
	preemptHow                                     string
	preemptBy                                      uint32
	checkpoint                                     int64
}

func stepOf(j *Job) step {
	return step{state: j.State, flags: j.Flags, held: j.HeldBy, run: j.Run, restarts: j.Restarts, eligible: j.Eligible, begin: j.Begin,
		eligibleAt: j.EligibleAt, end: j.End, exit: j.Exit, kill: j.Kill, killAt: j.KillAt, suspendedAt: j.SuspendedAt, stopped: j.Stopped,
		preemptAt: j.PreemptAt, grace: j.GraceEnd, cancelUID: j.CancelUID, cancelled: j.Cancelled, byPlan: j.SuspendedByPlan,
		fixed: j.Fixed, dep: j.Dep, preemptHow: j.PreemptHow, preemptBy: j.PreemptBy, checkpoint: j.Checkpoint}
}

// inStep gives the record of a component that follows the first; nil when it does already.
func (t *Tx) inStep(old, first *Job) *Job {
	s, was := stepOf(first), stepOf(old)
	over := first.State == job.Pending && first.Flags&job.Completing == 0 && len(old.Allocs) > 0
	gone := len(old.Allocs) > 0 && !holdsAny(first) && slices.Contains(old.Done, false)
	priority := componentPriority(old, first)
	if s == was && !over && !gone && old.Priority == priority {
		return nil
	}
	j := edit(old)
	if over || s.run != was.run {
		t.nextRun(j)
	}
	j.State, j.Flags, j.HeldBy, j.Run, j.Restarts = s.state, s.flags, s.held, s.run, s.restarts
	j.Eligible, j.Begin, j.EligibleAt, j.End, j.Exit = s.eligible, s.begin, s.eligibleAt, s.end, s.exit
	j.Kill, j.KillAt, j.SuspendedAt, j.Stopped = s.kill, s.killAt, s.suspendedAt, s.stopped
	j.PreemptAt, j.GraceEnd, j.CancelUID, j.Cancelled, j.SuspendedByPlan = s.preemptAt, s.grace, s.cancelUID, s.cancelled, s.byPlan
	j.Fixed, j.Dep, j.PreemptHow, j.PreemptBy, j.Checkpoint = s.fixed, s.dep, s.preemptHow, s.preemptBy, s.checkpoint
	j.Priority = priority
	if s.state != was.state || s.flags != was.flags || s.held != was.held {
		j.Reason, j.Detail = first.Reason, first.Detail
	}
	if gone && len(j.Allocs) > 0 {
		j.Done = allTrue(len(j.Allocs))
	}
	return j
}

// componentPriority is the priority of a component: held with the first, set with it, else its own.
func componentPriority(j, first *Job) int64 {
	switch {
	case first.Priority == 0:
		return 0
	case first.Fixed:
		return first.Priority
	case j.Priority == 0 || j.Fixed:
		return max(1, basePriority-int64(j.SubmitSeq)-int64(j.Spec.Nice))
	}
	return j.Priority
}

// componentLost: node i of a component that has no processes of its own is lost. The whole job ends for it.
func (t *Tx) componentLost(old *Job, i int) {
	j := edit(old)
	j.Done = withTrue(old.Done, i)
	t.put(old, j)
	first := t.firstOf(j)
	if first == nil || !isRunning(first) || first.Kill != job.WhyNone {
		return
	}
	f := edit(first)
	t.conclude(f, ending{state: job.NodeFail, reason: job.ReasonNodeDown, exit: first.Exit, node: old.Allocs[i].Node})
	t.settle(first, f)
}

// mayComeBack: a job that has ended counts again when it is queued again, and is held against accounts, limits and
// reservations as they are now. A heterogeneous one comes back with all its components, or not at all.
func (t *Tx) mayComeBack(j *Job) *Refusal {
	group := t.group(j)
	if j.Het != 0 && len(group) != int(j.HetSize()) {
		return refuse("ESLURM_INVALID_JOB_ID", "Invalid job id specified", fmt.Sprintf("components of job %d have left memory", j.Het))
	}
	if t.feature < FeatureSched || !j.State.Ended() {
		return nil
	}
	for i, part := range group {
		spec := *part.Spec // readmit fills in what is not given
		if r := t.readmit(&spec, int64(i+1)); r != nil {
			return r
		}
	}
	return nil
}
