package state

import (
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Plan takes what still holds of a plan, whatever state it was made on: each start is checked
// against what is free now. It gives back how many starts were taken.
func (t *Tx) Plan(p *sched.Decision) (taken int) {
	for i := range p.Evicts {
		t.evict(&p.Evicts[i])
	}
	for i := 0; i < len(p.Starts); {
		n := groupLen(p.Starts[i:])
		taken += t.startTogether(p.Starts[i : i+n])
		i += n
	}
	for i := range p.Promises {
		t.promise(&p.Promises[i], p.Base)
	}
	for _, c := range p.Classes {
		if old, ok := t.classes.Get(c.Class); ok {
			n := *old
			n.reason, n.detail, n.start = noneIsEmpty(c.Reason), cut(c.Detail), c.Start
			t.classes.Set(c.Class, &n)
		}
	}
	for _, r := range p.Reasons {
		old := t.Job(r.JobID)
		// Of a held record only why the controller holds it.
		if old != nil && isWaiting(old) && (old.Priority > 0 || old.HeldBy == HoldAdmin && r.Reason == job.ReasonHeldAdmin) {
			j := edit(old)
			j.Reason, j.Detail = noneIsEmpty(r.Reason), cut(r.Detail)
			t.put(old, j)
		}
	}
	return taken
}

func noneIsEmpty(r job.Reason) job.Reason {
	if r == job.ReasonNone {
		return ""
	}
	return r
}

// cut bounds a text that is kept.
func cut(s string) string {
	if len(s) > MaxDetail {
		s = strings.ToValidUTF8(s[:MaxDetail], "")
	}
	return s
}

// groupLen is how many of the first starts belong together.
func groupLen(list []sched.Start) int {
	n := 1
	for g := list[0].Group; g != 0 && n < len(list) && list[n].Group == g; {
		n++
	}
	return n
}

// startTogether starts all of a group or none, and tells how many. The components of a heterogeneous job start only
// all together, the first last: what it does the others follow.
func (t *Tx) startTogether(list []sched.Start) (taken int) {
	if len(list) == 1 {
		if j := t.Job(list[0].JobID); j != nil && j.Het != 0 || !t.start(&list[0]) {
			return 0
		}
		return 1
	}
	if t.feature < FeatureSched || !t.mayStartTogether(list) {
		return 0
	}
	var before []*Job
	for i := range slices.Backward(list) {
		old := t.Job(list[i].JobID)
		if !t.start(&list[i]) {
			for _, was := range slices.Backward(before) {
				t.put(t.Job(was.ID), edit(was))
			}
			return 0
		}
		before = append(before, old)
	}
	return len(list)
}

// mayStartTogether: records that are no arrays, each once, ascending by id; of a heterogeneous job all components.
func (t *tables) mayStartTogether(list []sched.Start) bool {
	for i := range list {
		j := t.Job(list[i].JobID)
		if j == nil || j.ArrayID != 0 || i > 0 && j.ID <= list[i-1].JobID || !isWaiting(j) {
			return false
		}
		if j.Het == 0 {
			continue
		}
		if group := t.group(j); len(group) != int(j.HetSize()) || len(list) != len(group) || group[i] != j {
			return false
		}
	}
	return true
}

// start starts one record, or one task of an array's waiting record, if all of it still holds.
func (t *Tx) start(s *sched.Start) bool {
	old := t.Job(s.JobID)
	if old == nil || !t.startable(old, s) {
		return false
	}
	alone := old.Spec.Exclusive || strings.EqualFold(t.Partition(s.Partition).OverSubscribe, "EXCLUSIVE")
	for i := range s.Nodes {
		if !t.fits(&s.Nodes[i], alone) {
			return false
		}
	}
	reservation, ok := t.mayRun(old, s)
	if !ok || !t.mayShare(old, s) {
		return false
	}
	before, j := old, edit(old)
	if old.Waiting != nil {
		if before, j = t.split(old, uint32(s.Task)); j == nil {
			return false
		}
	}
	j.happen(job.EventStart)
	j.Reason, j.Detail, j.HeldBy = "", "", HoldNone
	j.Promise, j.PromiseBase = nil, 0
	j.Partition, j.Reservation, j.Charged = s.Partition, reservation, 0
	j.Start, j.TimeLimit, j.End = t.now, t.shortest(j, t.limitOf(old, s)), 0
	if j.Lease = 0; s.Lease > 0 && t.mayRequeue(j) {
		j.Lease = s.Lease
	}
	if j.TimeLimit > 0 {
		j.End = j.Start + j.TimeLimit
	}
	if j.Eligible == 0 {
		j.Eligible = t.now
	}
	j.Allocs = t.ownAllocs(s.Nodes)
	j.Done, j.Confirmed = make([]bool, len(j.Allocs)), make([]bool, len(j.Allocs))
	j.Launched, j.Alone = 0, alone
	t.put(before, j)
	return true
}

// startable checks the record's side of a start.
func (t *Tx) startable(j *Job, s *sched.Start) bool {
	if _, _, ok := job.Next(j.State, j.Flags, job.EventStart); !ok || j.Run != s.Run || s.Revision != 0 && j.Revision != s.Revision || t.blocked(j) != "" || notBefore(j) > t.now {
		return false
	}
	if j.Waiting != nil {
		if s.Task < 0 || s.Task > int64(^uint32(0)) || !j.Waiting.Contains(uint32(s.Task)) {
			return false
		}
	} else if s.Task >= 0 && s.Task != j.ArrayTask {
		return false
	}
	p := t.Partition(s.Partition)
	if p == nil || p.State != "UP" && p.State != "DRAIN" || t.limitOf(j, s) == 0 {
		return false
	}
	if !slices.Contains(splitNames(j.Spec.Partition), s.Partition) || len(s.Nodes) == 0 {
		return false
	}
	seen := make(map[string]bool, len(s.Nodes))
	for i := range s.Nodes {
		name := s.Nodes[i].Node
		if seen[name] || !slices.Contains(p.Nodes, name) {
			return false
		}
		seen[name] = true
	}
	return true
}

func splitNames(list string) []string { return strings.Split(list, ",") }

// limitOf is the time limit of a start by what the record asks for and the partition allows; 0 when
// it does not allow that much. The planner's word counts only where the record leaves it the choice,
// between --time-min and --time.
func (t *tables) limitOf(j *Job, s *sched.Start) int64 {
	p := t.Partition(s.Partition)
	limit, ok := sched.TimeLimit(j.Spec.TimeLimit, j.Spec.TimeMin, t.usualTime(p), p.MaxTime)
	if !ok {
		return 0
	}
	if least := j.Spec.TimeMin; least > 0 && s.TimeLimit >= least && (limit < 0 || s.TimeLimit < limit) {
		return s.TimeLimit
	}
	return limit
}

// fits tells whether a share is free on its node now.
func (t *tables) fits(a *job.NodeAlloc, alone bool) bool {
	n := t.Node(a.Node)
	if n == nil || !n.Usable() || n.Exclusive || alone && len(n.Jobs) > int(n.Stopped) {
		return false
	}
	if a.CPUs == 0 || a.CPUs > n.Config.CPUs-min(n.CPUsAlloc, n.Config.CPUs) || a.Mem < 0 || a.Mem > n.Config.Mem-n.MemAlloc {
		return false
	}
	if len(a.CPUIDs) > 0 && (len(a.CPUIDs) != int(a.CPUs) || !freeIndexes(n.CPUsUsed, a.CPUIDs, uint64(n.Config.CPUs))) {
		return false
	}
	return n.fitsGres(a.Gres)
}

// mayShare tells whether a run may come onto its nodes beside those that are there: a node that one user has takes nobody
// else's, and of a partition with MaxCPUsPerNode all runs together hold no more there.
func (t *tables) mayShare(j *Job, s *sched.Start) bool {
	if t.feature < FeatureSched {
		return true
	}
	p := t.Partition(s.Partition)
	alone := p.ExclusiveUser || j.Spec.RareValue(job.OptExclusive) == "user"
	for i := range s.Nodes {
		a := &s.Nodes[i]
		cpus := a.CPUs
		for _, id := range t.Node(a.Node).Jobs {
			other := t.Job(id)
			if other.Spec.UID != j.Spec.UID && (alone || t.ownsNode(other)) {
				return false
			}
			if p.MaxCPUsPerNode > 0 && other.Partition == p.Name && keepsCPUs(other) {
				cpus += cpusOn(other, a.Node)
			}
		}
		if p.MaxCPUsPerNode > 0 && cpus > p.MaxCPUsPerNode {
			return false
		}
	}
	return true
}

// cpusOn is how many CPUs of a node a record was given.
func cpusOn(j *Job, node string) uint32 {
	for i := range j.Allocs {
		if j.Allocs[i].Node == node {
			return j.Allocs[i].CPUs
		}
	}
	return 0
}

func (n *Node) fitsGres(list []job.GresAlloc) bool {
	for i, g := range list {
		at := slices.IndexFunc(n.gres, func(c gresCap) bool { return c.name == g.Name && c.typ == g.Type })
		twice := slices.ContainsFunc(list[:i], func(o job.GresAlloc) bool { return o.Name == g.Name && o.Type == g.Type })
		if at < 0 || twice || g.Count == 0 {
			return false
		}
		c, key := n.gres[at], gresKey(g.Name, g.Type)
		switch {
		case c.devices && (n.oldGres || uint64(len(g.Index)) != g.Count || !freeIndexes(n.GresUsed[key], g.Index, c.total)):
			return false
		case !c.devices && (len(g.Index) > 0 || g.Count > c.total-min(n.GresCount[key], c.total)):
			return false
		}
	}
	return true
}

// freeIndexes: each number of list is below total, free, and named once.
func freeIndexes(used []bool, list []uint32, total uint64) bool {
	sorted := slices.Sorted(slices.Values(list))
	for i, x := range sorted {
		if uint64(x) >= total || int(x) < len(used) && used[x] || i > 0 && sorted[i-1] == x {
			return false
		}
	}
	return true
}

// split takes one task out of an array's waiting record. It gives the stored record that the
// task's takes the place of (nil for a new id) and the task's own, not yet stored; no record when
// ids are used up. The last task keeps the array's own id, as Slurm's.
func (t *Tx) split(old *Job, task uint32) (before, j *Job) {
	rest := old.Waiting.Without(task)
	j = edit(old)
	j.Waiting, j.ArrayTask = nil, int64(task)
	if rest.Len() == 0 {
		return old, j
	}
	if t.nextID > MaxJobID {
		return nil, nil
	}
	base := edit(old)
	base.Waiting = rest
	base.Promise, base.PromiseBase = nil, 0 // it was of the task that starts
	t.put(old, base)
	j.ID, j.Key, j.Class = t.nextID, "", ""
	t.nextID++
	return nil, j
}

// ownAllocs copies allocations so that nothing outside can change them, with shared names.
func (t *Tx) ownAllocs(list []job.NodeAlloc) []job.NodeAlloc {
	own := slices.Clone(list)
	for i := range own {
		a := &own[i]
		a.Node = t.Node(a.Node).Name
		a.CPUIDs, a.Gres = slices.Clone(a.CPUIDs), slices.Clone(a.Gres)
		for k := range a.Gres {
			g := &a.Gres[k]
			g.Name, g.Type, g.Index = t.interner.share(g.Name), t.interner.share(g.Type), slices.Clone(g.Index)
		}
	}
	return own
}
