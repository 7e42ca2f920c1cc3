package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// verdict is how a record stands with one condition, from worst to best.
type verdict uint8

const (
	never verdict = iota
	waits
	met
)

// dependOnSubmit reads a new record's dependency, refuses ids that are not known, and sets how it
// stands now.
func (t *Tx) dependOnSubmit(j *Job) *Refusal {
	if j.Spec.Dependency == "" {
		return nil
	}
	dep, err := job.ParseDependency(j.Spec.Dependency)
	if err != nil {
		return dependencyProblem(err.Error())
	}
	for _, term := range dep.Terms {
		for _, d := range term.Jobs {
			if d.ID == j.ID || t.feature < FeatureSched && !t.knows(d) {
				return dependencyProblem(fmt.Sprintf("job %d is not known, or left memory after it ended", d.ID))
			}
		}
		if term.Type == job.DepExpand || term.Type == job.DepAfterBB {
			return dependencyProblem(fmt.Sprintf("%s is not offered", term.Type))
		}
	}
	if r := t.mayWatch(j, &dep); r != nil {
		return r
	}
	t.depend(j, &dep)
	return nil
}

// dependAgain judges a record that comes back to the queue and was not told of what it waited for since it was
// cancelled. In the first release it waits for ever for what has ended meanwhile.
func (t *Tx) dependAgain(j *Job) *Refusal {
	dep, err := job.ParseDependency(j.Spec.Dependency)
	if err != nil {
		return nil // refused when it was submitted
	}
	was := edit(j)
	if t.depend(j, &dep); t.staysNever(was, j.Dep, &dep) {
		j.Dep = DepNever
	}
	j.Eligible = j.eligibleAt(t.now)
	if j.Dep == DepWaits {
		return t.mayWatch(j, &dep)
	}
	return nil
}

func dependencyProblem(why string) *Refusal {
	return refuse("ESLURM_DEPENDENCY", "Job dependency problem", why)
}

// knows tells whether a job, or task, that a condition names is in memory.
func (t *tables) knows(d job.DepJob) bool {
	j := t.Job(d.ID)
	if d.Task == job.NoTask {
		return j != nil || len(t.ArrayTasks(d.ID)) > 0
	}
	return j != nil && j.Waiting != nil && j.Waiting.Contains(uint32(d.Task)) || t.ArrayTask(d.ID, d.Task) != nil
}

// depend sets how j, not stored yet, stands with its dependency, and gives a condition that keeps it
// there.
func (t *Tx) depend(j *Job, dep *job.Dependency) (why reasonAt) {
	j.Dep, j.EligibleAt = DepMet, 0
	if len(dep.Terms) == 0 {
		return why
	}
	best, worst := never, met
	var last, first int64
	var upper, lower reasonAt
	for i := range dep.Terms {
		v, at, k := t.judge(j, &dep.Terms[i])
		if i == 0 || v > best {
			upper = reasonAt{i, k}
		}
		if i == 0 || v < worst {
			lower = reasonAt{i, k}
		}
		best, worst = max(best, v), min(worst, v)
		if v == met {
			if last = max(last, at); first == 0 || at < first {
				first = at
			}
		}
	}
	v, at, why := worst, last, lower
	if dep.Any {
		v, at, why = best, first, upper
	}
	switch v {
	case met:
		j.EligibleAt = at
	case waits:
		j.Dep = DepWaits
	case never:
		j.Dep = DepNever
	}
	return why
}

// judge finds how j stands with one condition; at is the time before which it does not count as
// met (after:id+minutes), k the place of the job that decides.
func (t *Tx) judge(j *Job, term *job.DepTerm) (v verdict, at int64, k int) {
	if term.Type == job.DepSingleton {
		return t.judgeSingleton(j), 0, 0
	}
	v = met
	for i, d := range term.Jobs {
		dv, dat := t.judgeTarget(j, term.Type, d)
		if dv < v {
			v, k = dv, i
		}
		at = max(at, dat)
	}
	return v, at, k
}

// judgeTarget finds how j stands with one job of a condition. A job that left memory ended long
// before that: it was judged then, and holds nobody up now.
func (t *Tx) judgeTarget(j *Job, kind job.DepType, d job.DepJob) (verdict, int64) {
	one := t.Job(d.ID)
	stat := t.arrayStats[d.ID]
	task := d.Task
	if kind == job.DepAfterCorr && task == job.NoTask && stat != nil && j.ArrayID != 0 {
		if task = j.ArrayTask; task == job.NoTask {
			return waits, 0 // an array's waiting record: its tasks are judged one by one
		}
		if !t.hadTask(d.ID, task) {
			return never, 0
		}
	}
	switch {
	case task != job.NoTask:
		if other := t.ArrayTask(d.ID, task); other != nil {
			return judgeRecord(kind, other, d.Delay)
		}
		if one != nil && one.Waiting != nil && one.Waiting.Contains(uint32(task)) {
			return judgeRecord(kind, one, d.Delay)
		}
	case one != nil && one.ArrayID != d.ID:
		return judgeRecord(kind, one, d.Delay)
	case stat != nil:
		return t.judgeArray(kind, d, stat)
	}
	return met, 0
}

// hadTask tells whether an array was submitted with a task of that number.
func (t *Tx) hadTask(base uint32, task int64) bool {
	one := t.Job(base)
	if one == nil {
		return true // not known any more
	}
	set, _, err := job.ParseArray(one.Spec.Array, 0)
	return err != nil || set.Contains(uint32(task))
}

// arrayStat counts the records of one array, so that who waits for the whole of it is judged
// without a walk over its tasks.
type arrayStat struct {
	records   int
	tasks     int // that were submitted and have not been purged: no change of records loses one
	live      int // not ended, or completing
	unstarted int // never started and not cancelled
	failed    int // ended otherwise than COMPLETED
}

func (s *arrayStat) add(j *Job, by int) {
	s.records += by
	if isLive(j) {
		s.live += by
	} else if j.State != job.Completed {
		s.failed += by
	}
	if j.State == job.Pending && j.Restarts == 0 {
		s.unstarted += by
	}
}

// tasks is how many tasks of an array a record stands for.
func (j *Job) tasks() int {
	if j.Waiting != nil {
		return j.Waiting.Len()
	}
	return 1
}

// indexStats keeps the counts of arrays.
func (t *Tx) indexStats(old, j *Job) {
	base := either(old, j).ArrayID
	if base == 0 {
		return
	}
	s := t.arrayStats[base]
	if s == nil {
		s = new(arrayStat)
		t.arrayStats[base] = s
	}
	if old != nil {
		s.add(old, -1)
	}
	if j != nil {
		s.add(j, 1)
	}
	switch {
	case j == nil:
		s.tasks -= old.tasks()
	case old == nil && (t.restoring || j.ID == base): // else a part of another record
		s.tasks += j.tasks()
	}
	if s.records == 0 {
		delete(t.arrayStats, base)
	}
}

// judgeArray finds how a whole array meets one kind of condition.
func (t *Tx) judgeArray(kind job.DepType, d job.DepJob, s *arrayStat) (verdict, int64) {
	switch kind {
	case job.DepAfter:
		if s.unstarted > 0 {
			return waits, 0
		}
		var last int64
		for _, other := range append(t.ArrayTasks(d.ID), t.waitingParts(d.ID)...) {
			_, at := judgeRecord(kind, other, d.Delay)
			last = max(last, at)
		}
		return met, last
	case job.DepAfterOK, job.DepAfterCorr:
		switch {
		case s.failed > 0:
			return never, 0
		case s.live > 0:
			return waits, 0
		}
		return met, 0
	case job.DepAfterNot:
		switch {
		case s.live > 0:
			return waits, 0
		case s.failed > 0:
			return met, 0
		}
		return never, 0
	}
	if s.live > 0 {
		return waits, 0
	}
	return met, 0
}

// judgeRecord finds how one record meets one kind of condition.
func judgeRecord(kind job.DepType, other *Job, delay int64) (verdict, int64) {
	over, ok := !isLive(other), other.State == job.Completed
	switch kind {
	case job.DepAfter:
		switch {
		case other.Start > 0:
			return met, delayed(other.Start, delay)
		case over:
			return met, delayed(other.End, delay)
		case other.Restarts > 0:
			return met, 0
		}
		return waits, 0
	case job.DepAfterOK, job.DepAfterCorr, job.DepAfterNot:
		switch {
		case !over:
			return waits, 0
		case ok == (kind != job.DepAfterNot):
			return met, 0
		}
		return never, 0
	}
	if over {
		return met, 0
	}
	return waits, 0
}

// delayed is a time after another; without a delay there is nothing to wait for.
func delayed(at, delay int64) int64 {
	if delay == 0 {
		return 0
	}
	return at + delay
}

// judgeSingleton: no live record of the same user and name came before.
func (t *Tx) judgeSingleton(j *Job) verdict {
	v := met
	t.eachNamesake(j, func(other *Job) bool {
		v = waits
		return false
	})
	return v
}

// wakeup is a waiting record to be judged again because of one task (-1: whatever changed).
type wakeup struct {
	id   uint32
	task int64
	by   uint32 // the record that has changed, and its array; 0 when that does not matter
	of   uint32
}

// noteDependents remembers the records that wait for one that has changed. A task that has just been
// given a record of its own (old is nil) was PENDING before.
func (t *Tx) noteDependents(old, j *Job) {
	if old == nil {
		if isWaiting(j) {
			return
		}
		before := *j
		before.State, before.Flags = job.Pending, 0
		old = &before
	}
	if j.State == old.State && j.Flags == old.Flags && j.Spec == old.Spec {
		return
	}
	note := func(id uint32, _ none) bool {
		t.woken = append(t.woken, wakeup{id, j.ArrayTask, j.ID, j.ArrayID})
		return true
	}
	if set := t.dependents[old.ID]; set != nil {
		set.Scan(note)
	}
	if set := t.dependents[old.ArrayID]; set != nil && old.ArrayID != old.ID {
		set.Scan(note)
	}
	name := singleName{old.Spec.UID, old.Spec.Name}
	if set := t.singles[name]; set != nil && isLive(old) && !(isLive(j) && j.Spec.Name == name.name) {
		first, _, _ := set.Min()
		set.Scan(func(key uint64, _ none) bool {
			// Those behind the first wait for it; parts of one array came together.
			if key != first && (t.feature < FeatureSched || key>>32 != first>>32) {
				return false
			}
			t.woken = append(t.woken, wakeup{id: uint32(key), task: -1})
			return true
		})
	}
}

// wake judges again those that were noted. One that is cancelled for it wakes others: they join
// the same list, so that a long chain does not nest.
func (t *Tx) wake() {
	if t.waking || len(t.woken) == 0 {
		return
	}
	t.waking = true
	for i := 0; i < len(t.woken); i++ {
		t.judgeAgain(t.woken[i])
	}
	t.waking, t.woken = false, t.woken[:0]
}

func (t *Tx) judgeAgain(w wakeup) {
	old, seen := t.Job(w.id), t.watching[w.id]
	if old == nil || seen == nil || !watches(old) {
		return
	}
	dep := seen.dep
	if old.Waiting != nil && byTask(dep) {
		if t.feature >= FeatureMembers && !onlyTask(dep, w) {
			w.task = -1
		}
		t.judgeTasks(old, dep, w.task)
		return
	}
	if w.by != 0 && t.stands(old, seen, w) {
		return
	}
	j := edit(old)
	seen.why = t.depend(j, dep)
	t.putJudged(old, old, j, dep)
}

// byTask tells whether a dependency is met by each task of an array for itself.
func byTask(dep *job.Dependency) bool {
	for _, term := range dep.Terms {
		if term.Type == job.DepAfterCorr {
			return true
		}
	}
	return false
}

// onlyTask tells whether a change decides for nobody but the task of the same number: the dependency names
// what has changed as a whole array, by aftercorr. The first release took every change for such a one.
func onlyTask(dep *job.Dependency, w wakeup) bool {
	for i := range dep.Terms {
		for _, d := range dep.Terms[i].Jobs {
			if names := d.ID == w.by || d.ID == w.of; names && (dep.Terms[i].Type != job.DepAfterCorr || d.Task != job.NoTask || d.ID != w.of) {
				return false
			}
		}
	}
	return w.of != 0
}

// judgeTasks judges the waiting tasks of an array one by one (or only the one that something
// happened to), and gives those whose dependency is settled records of their own.
func (t *Tx) judgeTasks(old *Job, dep *job.Dependency, only int64) {
	settled := map[DepState][]uint32{}
	at := map[uint32]int64{}
	look := func(task uint32) bool {
		trial := edit(old)
		trial.Waiting, trial.ArrayTask = nil, int64(task)
		if t.depend(trial, dep); trial.Dep != DepWaits {
			settled[trial.Dep] = append(settled[trial.Dep], task)
			at[task] = trial.EligibleAt
		}
		return true
	}
	if only >= 0 {
		if old.Waiting.Contains(uint32(only)) {
			look(uint32(only))
		}
	} else {
		old.Waiting.Each(look)
	}
	for _, state := range []DepState{DepMet, DepNever} {
		if old = t.Job(old.ID); state == old.Dep || len(settled[state]) == 0 || t.staysNever(old, state, dep) {
			continue
		}
		part := job.NewSet(settled[state]...)
		before, j := old, edit(old)
		if part.Len() < old.Waiting.Len() {
			if before, j = nil, t.cutOut(old, part); j == nil {
				return
			}
		}
		j.Dep = state
		for task := range part.All() {
			j.EligibleAt = max(j.EligibleAt, at[task])
		}
		t.putJudged(old, before, j, dep)
		if before != nil {
			return
		}
	}
}

// putJudged stores a record that was judged: old is what it was, before what it replaces (nil for
// one that was cut out, which is always stored).
func (t *Tx) putJudged(old, before, j *Job, dep *job.Dependency) {
	if before != nil && (j.Dep == old.Dep && j.EligibleAt == old.EligibleAt || t.staysNever(old, j.Dep, dep)) {
		return
	}
	if j.Dep == DepNever && t.endsInvalid(j) && j.happen(job.EventCancel) {
		j.Reason, j.End = job.ReasonDependencyNever, t.now
		t.settle(before, j)
		return
	}
	j.Eligible = j.eligibleAt(t.now)
	t.put(before, j)
}

// endsInvalid tells whether a record is cancelled when its dependency can never be met: it asked for that, or asked
// for nothing and the configuration says so.
func (t *tables) endsInvalid(j *Job) bool {
	asked := j.Spec.RareValue(job.OptInvalidDep)
	if asked == "" && t.feature >= FeatureSched {
		return t.killInvalid()
	}
	return yes(asked)
}

// killInvalid is DependencyParameters=kill_invalid_depend, which SchedulerParameters may say too.
func (t *tables) killInvalid() bool {
	is := func(w string) bool { return strings.EqualFold(w, "kill_invalid_depend") }
	return slices.ContainsFunc(t.cfg.Sched.Dependencies, is) || slices.ContainsFunc(t.cfg.Sched.Parameters, is)
}

// endInvalid cancels a record that waits for what can never be, if that is to be. Below FeatureSched one that was so
// from the beginning waits on.
func (t *Tx) endInvalid(id uint32) {
	old := t.Job(id)
	if t.feature < FeatureSched || old == nil || old.State != job.Pending || old.Dep != DepNever || isComponent(old) || !t.endsInvalid(old) {
		return
	}
	j := edit(old)
	if j.happen(job.EventCancel) {
		j.Reason, j.Detail, j.End = job.ReasonDependencyNever, "", t.now
		t.settle(old, j)
	}
}

// endAllInvalid does so with all that wait, after the configuration has changed.
func (t *Tx) endAllInvalid() {
	if t.feature < FeatureSched || t.restoring || !t.killInvalid() {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(t.watching)) {
		t.endInvalid(id)
	}
}

// staysNever: what could never be met stays so when the job that it failed on is gone.
func (t *Tx) staysNever(old *Job, now DepState, dep *job.Dependency) bool {
	return old.Dep == DepNever && now == DepMet && !t.knowsAll(dep)
}

func (t *Tx) knowsAll(dep *job.Dependency) bool {
	for _, term := range dep.Terms {
		for _, d := range term.Jobs {
			if !t.knows(d) {
				return false
			}
		}
	}
	return true
}
