package state

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// schedCache keeps what the planner sees over versions that do not change it: what is the same is the same pointer.
type schedCache struct {
	mu     sync.Mutex
	made   bool
	usage  uint64
	key    formKey
	nodes  []*Node // of which forms are
	forms  []*place.Node
	runs   []*sched.Running
	fixed  *fixedView
	shares *shareView

	versions *atomic.Uint64 // last Version given to a class
}

func newSchedCache(versions *atomic.Uint64) *schedCache {
	if versions == nil {
		versions = new(atomic.Uint64)
	}
	return &schedCache{versions: versions}
}

// formKey is what forms of single records depend on beside the record.
type formKey struct {
	layout uint64
	db     *accounting.DB
}

// activeRun is one record that holds nodes. A stored one never changes; the form is made when it is first asked for.
type activeRun struct {
	job  *Job
	form atomic.Pointer[runForm]
}

type runForm struct {
	key formKey
	run *sched.Running
}

// schedClass is what the planner sees of one class as it is.
type schedClass struct{ form atomic.Pointer[classForm] }

type classForm struct {
	key      formKey
	of       uint64 // version of the state that Waiting walks over
	estimate int64
	class    *sched.Class
}

// maxFormAge is over how many entries a class's list may be that of an older state, which it keeps in memory.
const maxFormAge = 4096

// Sched is the planner's snapshot of this view.
func (v *View) Sched() *sched.Snapshot {
	v.once.Do(func() {
		t := &v.tables
		s := &sched.Snapshot{Version: t.version, Capacity: t.capacity, Layout: t.layout}
		c := v.cache
		c.mu.Lock()
		defer c.mu.Unlock()
		fixed := c.get(t, s)
		s.Partitions, s.Topology, s.Cluster = fixed.parts, fixed.topology, fixed.cluster
		s.Classes, s.Promised = t.schedClasses(c.versions), t.schedPromised()
		t.schedPolicy(c, fixed, s)
		v.snap = s
	})
	return v.snap
}

func (t *tables) formKey() formKey { return formKey{t.layout, t.db} }

// get fills in nodes and runs, and gives what changes with the configuration only. The cache's lock is held.
func (c *schedCache) get(t *tables, s *sched.Snapshot) *fixedView {
	key := t.formKey()
	if c.made && c.usage == t.usage && c.key == key {
		s.Nodes, s.Running = c.forms, c.runs
		return c.fixed
	}
	fixed := c.fixed
	if !c.made || c.key != key {
		fixed = t.fixedView()
	}
	same := c.made && c.key.layout == key.layout
	nodes, forms := make([]*Node, 0, t.nodes.Len()), make([]*place.Node, 0, t.nodes.Len())
	t.nodes.Scan(func(_ uint32, n *Node) bool {
		i := len(nodes)
		if same && i < len(c.nodes) && c.nodes[i] == n {
			forms = append(forms, c.forms[i])
		} else {
			forms = append(forms, t.placeNode(n))
		}
		nodes = append(nodes, n)
		return true
	})
	runs := make([]*sched.Running, 0, t.active.Len())
	t.active.Scan(func(_ uint32, r *activeRun) bool {
		runs = append(runs, t.schedRun(r, key))
		return true
	})
	s.Nodes, s.Running = forms, runs
	if !c.made || c.usage <= t.usage { // an old view must not push out a newer one's
		c.made, c.usage, c.key, c.nodes, c.forms, c.runs, c.fixed = true, t.usage, key, nodes, forms, runs, fixed
	}
	return fixed
}

// placeNode is what the planner sees of a node.
func (t *tables) placeNode(n *Node) *place.Node {
	s := &place.Node{
		Name: n.Name, Weight: n.Weight, Up: n.Usable(),
		CPUs: n.Config.CPUs, Mem: n.Config.Mem, TmpDisk: n.Config.TmpDisk, Features: n.Features,
		Sockets: n.Config.Sockets, Cores: n.Config.CoresPerSocket, Threads: n.Config.ThreadsPerCore,
		FreeCPUs: n.Config.CPUs - min(n.CPUsAlloc, n.Config.CPUs), FreeMem: max(0, n.Config.Mem-n.MemAlloc),
		CPUUsed: make([]bool, n.Config.CPUs), Busy: len(n.Jobs) > int(n.Stopped), Excl: n.Exclusive, Runs: len(n.Jobs),
	}
	copy(s.CPUUsed, n.CPUsUsed)
	for _, g := range n.gres {
		r := place.Gres{Name: g.name, Type: g.typ, Total: g.total}
		key := gresKey(g.name, g.typ)
		if g.devices {
			r.Used = make([]bool, g.total)
			r.Taken = uint64(count1(n.GresUsed[key]))
			copy(r.Used, n.GresUsed[key])
			if n.oldGres { // none is given until those in use are back
				r.Taken = g.total
				for i := range r.Used {
					r.Used[i] = true
				}
			}
		} else {
			r.Taken = n.GresCount[key]
		}
		s.Gres = append(s.Gres, r)
	}
	for _, id := range n.Jobs {
		j := t.Job(id)
		if j == nil {
			continue
		}
		s.Users = insertID(s.Users, j.Spec.UID)
		if t.ownsNode(j) {
			s.Owner = int64(j.Spec.UID) + 1
		}
	}
	return s
}

// ownsNode tells whether a run lets nobody else's onto its nodes.
func (t *tables) ownsNode(j *Job) bool {
	if p := t.Partition(j.Partition); p != nil && p.ExclusiveUser {
		return true
	}
	return j.Spec.RareValue(job.OptExclusive) == "user"
}

func count1(set []bool) (n int) {
	for _, on := range set {
		if on {
			n++
		}
	}
	return n
}

// schedRun is what the planner sees of a run.
func (t *tables) schedRun(a *activeRun, key formKey) *sched.Running {
	if f := a.form.Load(); f != nil && f.key == key {
		return f.run
	}
	j := a.job
	r := &sched.Running{
		JobID: j.ID, Run: j.Run, Partition: j.Partition, Start: j.Start, End: j.End, Exclusive: j.Alone, Allocs: j.Allocs,
		UID: j.Spec.UID, User: j.Spec.User, Account: j.Spec.Account, QOS: j.Spec.QOS, Suspended: j.SuspendedAt > 0,
		BySched: j.SuspendedByPlan, Requeue: t.mayRequeue(j), Checkpoint: j.Checkpoint, Het: j.Het, Reservation: j.Reservation, By: j.PreemptBy,
	}
	if len(j.Spec.Rare) > 0 {
		r.Licenses = licensesOf(j.Spec)
	}
	if p := t.Partition(j.Partition); p != nil {
		r.Tier = p.PriorityTier
	}
	if r.Priority = fixedPriority(j); r.Priority == 0 && t.db != nil {
		if q := t.db.QOS(j.Spec.QOS); q != nil {
			r.Priority = int64(q.Priority)
		}
	}
	switch {
	case j.Flags&job.Completing != 0:
		if r.Evicting = true; j.State.Ended() || j.KillAt == 0 {
			r.End = max(j.End, j.KillAt)
		} else {
			r.End = j.KillAt // of one that is queued again End is still that of its limit
		}
		r.End += t.cfg.KillWait
	case j.GraceEnd > 0 && isRunning(j):
		r.Evicting = true
		if gone := j.GraceEnd + t.cfg.KillWait; r.End == 0 || gone < r.End {
			r.End = gone
		}
	}
	if t.feature < FeatureSched {
		r.Evicting, r.End = false, j.End
	}
	if slices.Contains(j.Done, true) {
		r.Allocs = nil
		for i := range j.Allocs {
			if holds(j, i) {
				r.Allocs = append(r.Allocs, j.Allocs[i])
			}
		}
	}
	a.form.Store(&runForm{key, r})
	return r
}

// sameRunForm tells whether the planner sees the same of two records of one run that holds nodes.
func sameRunForm(a, b *Job) bool {
	return sameRun(a, b) && a.Spec == b.Spec && a.State == b.State && a.Flags&job.Completing == b.Flags&job.Completing &&
		a.End == b.End && a.KillAt == b.KillAt && a.GraceEnd == b.GraceEnd && a.SuspendedAt == b.SuspendedAt &&
		a.SuspendedByPlan == b.SuspendedByPlan && a.Checkpoint == b.Checkpoint && a.Priority == b.Priority && a.Fixed == b.Fixed &&
		a.Partition == b.Partition && a.Reservation == b.Reservation && slices.Equal(a.Done, b.Done)
}

// noteRun keeps the record of a run that holds nodes where the planner looks for it.
func (t *Tx) noteRun(old, j *Job) {
	r := &activeRun{job: j}
	if was, ok := t.active.Get(j.ID); ok && old != nil && sameRunForm(old, j) {
		r.form.Store(was.form.Load())
	} else {
		t.usage++
	}
	t.active.Set(j.ID, r)
}

// lean is a part of the tables that a class's list of waiting records is read from.
func (t *tables) lean() *tables {
	return &tables{jobs: t.jobs, waiting: t.waiting, arrays: t.arrays, parts: t.parts, cfg: t.cfg, feature: t.feature}
}

func (t *tables) schedClasses(versions *atomic.Uint64) []*sched.Class {
	list := make([]*sched.Class, 0, t.classes.Len())
	key, lean := t.formKey(), t.lean()
	ranks := t.feature >= FeatureSched && t.estimates()
	t.classes.Scan(func(_ string, c *class) bool {
		var estimate int64
		if ranks {
			estimate = t.estimate(c)
		}
		f := c.sched.form.Load()
		switch {
		case f == nil || f.key != key || f.estimate != estimate:
			f = &classForm{key: key, of: t.version, estimate: estimate, class: t.schedClass(c, lean)}
			f.class.Version, f.class.Estimate = versions.Add(1), estimate
			c.sched.form.Store(f)
		case f.of+maxFormAge < t.version:
			again := *f.class
			again.Waiting = lean.waitingOf(c.number)
			f = &classForm{key: key, of: t.version, estimate: estimate, class: &again}
			c.sched.form.Store(f)
		}
		list = append(list, f.class)
		return true
	})
	return list
}

// schedPromised lists the waiting records that hold a promise, ascending by id.
func (t *tables) schedPromised() []sched.Promised {
	list := make([]sched.Promised, 0, t.promised.Len())
	t.promised.Scan(func(id uint32, _ none) bool {
		j := t.Job(id)
		list = append(list, sched.Promised{Class: j.Class, Waiting: t.schedWaiting(j)})
		return true
	})
	return list
}

// waitingOf walks the waiting records of a class, best first.
func (t *tables) waitingOf(number uint32) func(yield func(sched.Waiting) bool) {
	return func(yield func(sched.Waiting) bool) {
		t.eachWaiting(number, func(j *Job) bool { return yield(t.schedWaiting(j)) })
	}
}

// schedClass is what the planner sees of a class.
func (t *tables) schedClass(c *class, lean *tables) *sched.Class {
	s := &sched.Class{Key: c.key, Spec: c.spec, Avoid: c.avoid, Count: c.count, Waiting: lean.waitingOf(c.number), Mixed: c.shape == ""}
	spec := c.spec
	extra, err := spec.Extra()
	if err == nil {
		s.Extra = &extra
	}
	if s.Mixed {
		extra.Licenses, extra.Reservations = nil, nil // nothing is counted or kept there
		return s
	}
	s.Shape, s.UID, s.User, s.Account, s.QOS = c.shape, spec.UID, spec.User, spec.Account, spec.QOS
	s.Time, s.TimeMin, s.Fixed = spec.TimeLimit, spec.TimeMin, c.fixed
	if t.db == nil {
		return s
	}
	first, _, _ := strings.Cut(spec.Partition, ",")
	if a := t.db.Find(spec.User, spec.Account, first); a != nil {
		s.Assoc, s.AssocPrio = a.ID, a.Priority
	}
	if q := t.db.QOS(spec.QOS); q != nil {
		s.QOSPriority = q.Priority
	}
	return s
}

func (t *tables) schedWaiting(j *Job) sched.Waiting {
	w := sched.Waiting{
		JobID: j.ID, Run: j.Run, Revision: j.Revision, SubmitSeq: j.SubmitSeq, Held: j.Priority == 0, Priority: j.Priority,
		Submit: j.Submit, Accrue: j.Eligible, Begin: notBefore(j), Time: j.Spec.TimeLimit, TimeMin: j.Spec.TimeMin,
		Tasks: j.Waiting, Limit: t.arrayRoom(j), Blocked: t.blocked(j), Promise: j.Promise,
	}
	if j.Het != 0 {
		w.Het, w.HetSize = j.Het, j.HetSize()
	}
	return w
}
