package state

import (
	"fmt"

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
			if d.ID == j.ID || !t.knows(d) {
				return dependencyProblem(fmt.Sprintf("job %d is not known, or left memory after it ended", d.ID))
			}
		}
		if term.Type == job.DepExpand || term.Type == job.DepAfterBB {
			return dependencyProblem(fmt.Sprintf("%s is not offered", term.Type))
		}
	}
	t.depend(j, &dep)
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

// depend sets how j, not stored yet, stands with its dependency.
func (t *Tx) depend(j *Job, dep *job.Dependency) {
	best, worst := never, met
	var start, any int64
	for i := range dep.Terms {
		v, at := t.judge(j, &dep.Terms[i])
		best, worst = max(best, v), min(worst, v)
		if v == met {
			start = max(start, at)
			if any == 0 || at < any {
				any = at
			}
		}
	}
	v := worst
	if dep.Any {
		v, start = best, any
	}
	if len(dep.Terms) == 0 {
		v, start = met, 0
	}
	j.Dep, j.EligibleAt = DepWaits, 0
	switch v {
	case met:
		j.Dep, j.EligibleAt = DepMet, start
	case never:
		j.Dep = DepNever
	}
}

// judge finds how j stands with one condition; at is the time before which it does not count as
// met (after:id+minutes).
func (t *Tx) judge(j *Job, term *job.DepTerm) (v verdict, at int64) {
	if term.Type == job.DepSingleton {
		return t.judgeSingleton(j), 0
	}
	v = met
	for _, d := range term.Jobs {
		for _, other := range t.depRecords(j, term.Type, d) {
			ov, oat := judgeRecord(term.Type, other, d.Delay)
			v, at = min(v, ov), max(at, oat)
		}
	}
	return v, at
}

// depRecords gives the records that one job of a condition stands for. A job that left memory had
// ended before that: nothing more is known of it and it holds nobody up.
func (t *tables) depRecords(j *Job, kind job.DepType, d job.DepJob) []*Job {
	one := t.Job(d.ID)
	task := d.Task
	if kind == job.DepAfterCorr && task == job.NoTask && j.ArrayTask >= 0 {
		task = j.ArrayTask
	}
	if task != job.NoTask {
		if other := t.ArrayTask(d.ID, task); other != nil {
			return []*Job{other}
		}
		if one != nil && one.Waiting != nil && one.Waiting.Contains(uint32(task)) {
			return []*Job{one}
		}
		if kind != job.DepAfterCorr {
			return nil
		}
	}
	if one != nil && one.ArrayID != d.ID {
		return []*Job{one}
	}
	list := t.ArrayTasks(d.ID)
	if one != nil && one.ArrayTask < 0 {
		list = append(list, one)
	}
	return list
}

// judgeRecord finds how one record meets one kind of condition.
func judgeRecord(kind job.DepType, other *Job, delay int64) (verdict, int64) {
	over := other.State.Ended() && other.Flags&job.Completing == 0
	ok := other.State == job.Completed
	switch kind {
	case job.DepAfter:
		switch {
		case isRunning(other) || other.State.Ended() && other.Start > 0:
			return met, other.Start + delay
		case other.State.Ended():
			return met, other.End + delay
		}
		return waits, 0
	case job.DepAfterOK, job.DepAfterCorr:
		switch {
		case over && ok:
			return met, 0
		case over:
			return never, 0
		}
		return waits, 0
	case job.DepAfterNot:
		switch {
		case over && !ok:
			return met, 0
		case over:
			return never, 0
		}
		return waits, 0
	}
	if over {
		return met, 0
	}
	return waits, 0
}

// judgeSingleton: no live record of the same user and name came before.
func (t *Tx) judgeSingleton(j *Job) verdict {
	for other := range t.OfUser(j.Spec.UID) {
		if other.ID >= j.ID {
			break
		}
		if other.Spec.Name == j.Spec.Name && !(j.ArrayID != 0 && other.ArrayID == j.ArrayID) {
			return waits
		}
	}
	return met
}

// indexDependency keeps who waits for whom, and looks again at those who wait for a record that
// has changed.
func (t *Tx) indexDependency(old, j *Job) {
	was := old != nil && old.State == job.Pending && old.Spec.Dependency != ""
	is := j != nil && j.State == job.Pending && j.Spec.Dependency != ""
	if was && !(is && old.Spec.Dependency == j.Spec.Dependency && old.Spec.Name == j.Spec.Name) {
		t.eachWatched(old, func(id uint32) { removeFrom(t.dependents, id, old.ID) }, func(n singleName) { removeFrom(t.singles, n, old.ID) })
		was = false
	}
	if is && !was {
		t.eachWatched(j, func(id uint32) { addTo(t.dependents, id, j.ID) }, func(n singleName) { addTo(t.singles, n, j.ID) })
	}
	if old != nil && (len(t.dependents) > 0 || len(t.singles) > 0) {
		t.noteDependents(old, j)
	}
}

// eachWatched calls byID with every job id that j's dependency names and byName when it is a singleton.
func (t *Tx) eachWatched(j *Job, byID func(uint32), byName func(singleName)) {
	dep, err := job.ParseDependency(j.Spec.Dependency)
	if err != nil {
		return // refused when it was submitted
	}
	for _, term := range dep.Terms {
		if term.Type == job.DepSingleton {
			byName(singleName{j.Spec.UID, j.Spec.Name})
		}
		for _, d := range term.Jobs {
			byID(d.ID)
		}
	}
}

// noteDependents remembers the records that wait for one that has changed, or left.
func (t *Tx) noteDependents(old, j *Job) {
	if j != nil && j.State == old.State && j.Flags == old.Flags && j.Spec == old.Spec && j.Waiting == old.Waiting {
		return
	}
	note := func(id uint32, _ none) bool { t.woken = append(t.woken, id); return true }
	if set := t.dependents[old.ID]; set != nil {
		set.Scan(note)
	}
	if set := t.dependents[old.ArrayID]; set != nil && old.ArrayID != old.ID {
		set.Scan(note)
	}
	if set := t.singles[singleName{old.Spec.UID, old.Spec.Name}]; set != nil && isLive(old) && (j == nil || !isLive(j)) {
		if id, _, ok := set.Min(); ok { // the ones behind it wait for it
			t.woken = append(t.woken, id)
		}
	}
}

// wake judges again those that were noted. One that is cancelled for it wakes others: they join
// the same list, so that a long chain does not nest.
func (t *Tx) wake() {
	if t.waking {
		return
	}
	t.waking = true
	for i := 0; i < len(t.woken); i++ {
		t.judgeAgain(t.woken[i])
	}
	t.waking, t.woken = false, t.woken[:0]
}

func (t *Tx) judgeAgain(id uint32) {
	old := t.Job(id)
	if old == nil || old.State != job.Pending {
		return
	}
	dep, err := job.ParseDependency(old.Spec.Dependency)
	if err != nil {
		return
	}
	j := edit(old)
	if t.depend(j, &dep); j.Dep == old.Dep && j.EligibleAt == old.EligibleAt {
		return
	}
	if j.Dep == DepNever && yes(j.Spec.RareValue("kill-on-invalid-dep")) && j.happen(job.EventCancel) {
		j.Reason, j.End = job.ReasonDependencyNever, t.now
	} else {
		j.Eligible = j.eligibleAt(t.now)
	}
	t.capacity++
	t.put(old, j)
}
