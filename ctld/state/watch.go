package state

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/tidwall/btree"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// watch is a record that waits for others: what for, and one condition that keeps it as it is, so
// that most changes of the others cost one look.
type watch struct {
	dep *job.Dependency
	why reasonAt
}

// reasonAt is the place of a job in a dependency: its term, and where in that.
type reasonAt struct{ term, job int }

// parsedDep is a dependency that some records have in common.
type parsedDep struct {
	dep  job.Dependency
	refs int
}

// nameKey orders live records by user and name, of which it has the hash, and by when they were submitted: a part of an
// array that was cut out has a new id, but came when its array did. The first releases go by the id alone.
type nameKey struct {
	hash uint64
	seq  uint64
	id   uint32
}

// singleKey orders the records that asked for singleton as nameKey does; the id stands in the lower half.
func (t *Tx) singleKey(j *Job) uint64 {
	if t.feature >= FeatureSched {
		return j.SubmitSeq<<32 | uint64(j.ID)
	}
	return uint64(j.ID)
}

// reorderSingles puts names and singletons into the order of a level that has begun.
func (t *Tx) reorderSingles() {
	t.names, t.singles = nil, map[singleName]*btree.Map[uint64, none]{}
	for id, w := range t.watching {
		j := t.Job(id)
		for i := range w.dep.Terms {
			if w.dep.Terms[i].Type == job.DepSingleton {
				addTo(t.singles, singleName{j.Spec.UID, j.Spec.Name}, t.singleKey(j))
			}
		}
	}
}

func lessName(a, b nameKey) bool {
	return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.seq, b.seq), cmp.Compare(a.id, b.id)) < 0
}

func (t *Tx) nameKey(j *Job) nameKey {
	const spread = 0x9e3779b97f4a7c15
	key := nameKey{hash: maphash.String(t.nameSeed, j.Spec.Name) ^ uint64(j.Spec.UID)*spread, id: j.ID}
	if t.feature >= FeatureSched {
		key.seq = j.SubmitSeq
	}
	return key
}

// indexNames keeps live records by name, once somebody has asked for them.
func (t *Tx) indexNames(old, j *Job) {
	if t.names == nil {
		return
	}
	was, is := old != nil && isLive(old), j != nil && isLive(j)
	if was && is && (old.Spec == j.Spec || old.Spec.Name == j.Spec.Name) {
		return
	}
	if was {
		t.names.Delete(t.nameKey(old))
	}
	if is {
		t.names.Set(t.nameKey(j))
	}
}

// needNames makes the index of names when the first singleton asks. Most clusters never do, and keeping it
// was an eighth of the cost of a submission.
func (t *Tx) needNames() {
	if t.names != nil {
		return
	}
	t.names = btree.NewBTreeGOptions(lessName, btree.Options{NoLocks: true})
	for j := range t.Live() {
		if isLive(j) {
			t.names.Set(t.nameKey(j))
		}
	}
}

// eachNamesake walks the live records that a singleton waits for: of the same user and name, that
// came before it and are no part of the same array.
func (t *Tx) eachNamesake(j *Job, f func(*Job) bool) {
	t.needNames()
	key := t.nameKey(j)
	t.names.Ascend(nameKey{hash: key.hash}, func(k nameKey) bool {
		if !lessName(k, key) {
			return false
		}
		other := t.Job(k.id)
		if other.Spec.Name != j.Spec.Name || other.Spec.UID != j.Spec.UID || j.ArrayID != 0 && other.ArrayID == j.ArrayID || j.Het != 0 && other.Het == j.Het {
			return true
		}
		return f(other)
	})
}

// watches tells whether a record waits for others. Once met a dependency stays met.
func watches(j *Job) bool {
	return j != nil && j.State == job.Pending && j.Spec.Dependency != "" && j.Dep != DepMet && !isComponent(j)
}

// indexDependency keeps who waits for whom, and notes those who wait for a record that has changed.
func (t *Tx) indexDependency(old, j *Job) {
	t.indexStats(old, j)
	t.indexNames(old, j)
	was, is := watches(old), watches(j)
	if was && !(is && old.Spec.Dependency == j.Spec.Dependency && old.Spec.Name == j.Spec.Name) {
		t.unwatch(old)
		was = false
	}
	if is && !was {
		t.watch(j)
	}
	if j != nil && !t.restoring && (len(t.dependents) > 0 || len(t.singles) > 0) {
		t.noteDependents(old, j)
	}
}

func (t *Tx) watch(j *Job) {
	text := j.Spec.Dependency
	p := t.parsed[text]
	if p == nil {
		dep, err := job.ParseDependency(text)
		if err != nil {
			return // refused when it was submitted
		}
		p = &parsedDep{dep: dep}
		t.parsed[text] = p
	}
	p.refs++
	t.watching[j.ID] = &watch{dep: &p.dep}
	for i := range p.dep.Terms {
		term := &p.dep.Terms[i]
		if term.Type == job.DepSingleton {
			addTo(t.singles, singleName{j.Spec.UID, j.Spec.Name}, t.singleKey(j))
		}
		for _, d := range term.Jobs {
			addTo(t.dependents, d.ID, j.ID)
		}
		if n := len(term.Jobs); n > 0 {
			t.edges[j.Spec.UID] += n
		}
	}
}

func (t *Tx) unwatch(j *Job) {
	w := t.watching[j.ID]
	if w == nil {
		return
	}
	delete(t.watching, j.ID)
	for i := range w.dep.Terms {
		term := &w.dep.Terms[i]
		if term.Type == job.DepSingleton {
			removeFrom(t.singles, singleName{j.Spec.UID, j.Spec.Name}, t.singleKey(j))
		}
		for _, d := range term.Jobs {
			removeFrom(t.dependents, d.ID, j.ID)
		}
		t.edges[j.Spec.UID] -= len(term.Jobs)
	}
	if t.edges[j.Spec.UID] == 0 {
		delete(t.edges, j.Spec.UID)
	}
	if p := t.parsed[j.Spec.Dependency]; p != nil {
		if p.refs--; p.refs == 0 {
			delete(t.parsed, j.Spec.Dependency)
		}
	}
}

// stands tells that a waiting record stands as it did: what has changed does not decide, and there
// is another condition that keeps it where it is. The place of that is remembered, so that it is
// mostly one look; what the answer is does not depend on it, since a restored replica does not have it.
func (t *Tx) stands(j *Job, w *watch, change wakeup) bool {
	for i := range w.dep.Terms {
		term := &w.dep.Terms[i]
		for _, d := range term.Jobs {
			if d.ID != change.by && (change.of == 0 || d.ID != change.of) {
				continue
			}
			v, _ := t.judgeTarget(j, term.Type, d)
			switch {
			case j.Dep == DepNever && !w.dep.Any: // decided by the one that can never be met
			case j.Dep == DepNever, w.dep.Any && v == met, !w.dep.Any && v == never:
				return false
			}
		}
	}
	if len(w.dep.Terms) == 0 || w.dep.Any && j.Dep == DepNever {
		return false
	}
	want := waits
	if j.Dep == DepNever {
		want = never
	}
	return t.findFrom(j, w, w.why, want) || t.findFrom(j, w, reasonAt{}, want)
}

// findFrom looks for a job of the dependency, from a place on, that the record stands with as wanted.
func (t *Tx) findFrom(j *Job, w *watch, from reasonAt, want verdict) bool {
	for i, k := from.term, from.job; i < len(w.dep.Terms); i, k = i+1, 0 {
		for ; k < max(1, len(w.dep.Terms[i].Jobs)); k++ {
			if t.at(j, w.dep, reasonAt{i, k}) == want {
				w.why = reasonAt{i, k}
				return true
			}
			if w.dep.Any {
				break // all of the term was looked at
			}
		}
	}
	return false
}

// at finds how j stands with one job of its dependency; where one term is enough, with all of a term.
func (t *Tx) at(j *Job, dep *job.Dependency, place reasonAt) verdict {
	term := &dep.Terms[place.term]
	if dep.Any || term.Type == job.DepSingleton {
		v, _, _ := t.judge(j, term)
		return v
	}
	v, _ := t.judgeTarget(j, term.Type, term.Jobs[place.job])
	return v
}

// mayWatch checks what j, not stored yet, may wait for: the limits, and that nothing of it waits for j.
func (t *Tx) mayWatch(j *Job, dep *job.Dependency) *Refusal {
	edges := t.edges[j.Spec.UID]
	if w := t.watching[j.ID]; w != nil {
		for i := range w.dep.Terms {
			edges -= len(w.dep.Terms[i].Jobs) // those of now give way
		}
	}
	for i := range dep.Terms {
		edges += len(dep.Terms[i].Jobs)
		for _, d := range dep.Terms[i].Jobs {
			if set := t.dependents[d.ID]; set != nil && set.Len() >= MaxDependents {
				if _, already := set.Get(j.ID); !already {
					return dependencyProblem(fmt.Sprintf("MaxDependents=%d jobs wait for job %d already; an array counts as one", MaxDependents, d.ID))
				}
			}
		}
	}
	if edges > MaxUserDependencies {
		return dependencyProblem(fmt.Sprintf("the dependencies of a user's waiting jobs name at most MaxUserDependencies=%d jobs", MaxUserDependencies))
	}
	c := &circle{t: t, of: j, seen: map[uint32]bool{}}
	if t.feature >= FeatureMembers && c.named(dep) { // the first release lets it wait for itself
		return refuse("ESLURM_CIRCULAR_DEPENDENCY", "Circular job dependency", fmt.Sprintf("job %s would wait for itself", j.Name()))
	}
	if t.Job(j.ID) == nil || j.Het == 0 && t.dependents[j.ID] == nil && t.dependents[j.ArrayID] == nil && len(t.singles) == 0 {
		return nil // nobody can wait for it
	}
	return c.look(j, dep)
}

// maxCircle bounds the jobs that are looked at to find a circle.
const maxCircle = 100000

// circle looks for a way from what a record is to wait for back to the record.
type circle struct {
	t    *Tx
	of   *Job
	seen map[uint32]bool
	todo []*Job
	n    int
}

func (c *circle) look(j *Job, dep *job.Dependency) *Refusal {
	for {
		if c.n > maxCircle {
			return dependencyProblem(fmt.Sprintf("more than %d jobs would have to end before it", maxCircle))
		}
		if c.closes(j, dep) {
			return refuse("ESLURM_CIRCULAR_DEPENDENCY", "Circular job dependency",
				fmt.Sprintf("job %s waits for job %s", j.Name(), c.of.Name()))
		}
		if len(c.todo) == 0 {
			return nil
		}
		j = c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		dep = c.t.watching[j.ID].dep
	}
}

// closes tells whether j waits for the record by itself, and notes what else it waits for.
func (c *circle) closes(j *Job, dep *job.Dependency) (found bool) {
	for i := range dep.Terms {
		if dep.Terms[i].Type == job.DepSingleton {
			c.t.eachNamesake(j, func(other *Job) bool {
				found = found || other.ID == c.of.ID
				return c.note(other) && !found
			})
		}
		for _, d := range dep.Terms[i].Jobs {
			if c.is(d) {
				return true
			}
			c.note(c.t.Job(d.ID))
			for _, part := range c.t.waitingParts(d.ID) {
				if d.Task == job.NoTask || part.Waiting.Contains(uint32(d.Task)) {
					c.note(part)
				}
			}
		}
	}
	return found
}

// named tells whether a dependency names the record itself, or an array that it is part of.
func (c *circle) named(dep *job.Dependency) bool {
	for i := range dep.Terms {
		if slices.ContainsFunc(dep.Terms[i].Jobs, c.is) {
			return true
		}
	}
	return false
}

// is tells whether d names the record or, of an array, any of the tasks that it has.
func (c *circle) is(d job.DepJob) bool {
	j := c.of
	if j.Het != 0 && d.ID >= j.Het && d.ID < j.Het+j.HetSize() { // components begin and end together
		return true
	}
	if d.Task == job.NoTask {
		return d.ID == j.ID || d.ID == j.ArrayID
	}
	return d.ID == j.ArrayID && (d.Task == j.ArrayTask || j.Waiting != nil && j.Waiting.Contains(uint32(d.Task)))
}

// note puts a record that waits for others on the list; false when the list is too long.
func (c *circle) note(j *Job) bool {
	c.n++
	if j != nil && isComponent(j) { // it waits for what the first one waits for
		j = c.t.Job(j.Het)
	}
	if j != nil && !c.seen[j.ID] && c.t.watching[j.ID] != nil {
		c.seen[j.ID] = true
		c.todo = append(c.todo, j)
	}
	return c.n <= maxCircle
}
