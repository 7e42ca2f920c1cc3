package state

import (
	"fmt"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// JobResult is the outcome of a command for one job, or task "12_3", that it named.
type JobResult struct {
	Job     string
	Refused *Refusal
}

// Name is how people call the record: "12", "12_3", "12_[1-5]".
func (j *Job) Name() string {
	switch {
	case j.Het != 0:
		return fmt.Sprintf("%d+%d", j.Het, j.HetOffset)
	case j.ArrayTask >= 0:
		return fmt.Sprintf("%d_%d", j.ArrayID, j.ArrayTask)
	case j.Waiting != nil:
		return fmt.Sprintf("%d_%s", j.ArrayID, job.ArrayText(j.Waiting, 0, 64))
	}
	return fmt.Sprint(j.ID)
}

// target is a record that a reference reaches; tasks is the part of its waiting tasks that is
// meant, nil = all of the record.
type target struct {
	job   *Job
	tasks *job.Set
}

// targets finds what a reference names: a record by its own id, all of an array by its base id,
// or some of an array's tasks.
func (t *tables) targets(ref job.Ref) []target {
	if ref.Tasks == nil {
		return t.wholeJob(ref.ID)
	}
	var list []target
	for task := range ref.Tasks.All() {
		if id, ok := t.tasks.Get(pair(ref.ID, task)); ok {
			list = append(list, target{job: t.Job(id)})
		}
	}
	for _, j := range t.waitingParts(ref.ID) {
		switch part := j.Waiting.Intersect(ref.Tasks); part.Len() {
		case 0:
		case j.Waiting.Len():
			list = append(list, target{job: j})
		default:
			list = append(list, target{job: j, tasks: part})
		}
	}
	return list
}

// waitingParts gives the records of an array's tasks that never started: its own, and those that
// were cut out of it because they were held, changed or cancelled apart.
func (t *tables) waitingParts(base uint32) []*Job {
	var list []*Job
	if j := t.Job(base); j != nil && j.Waiting != nil && j.ArrayID == base {
		list = append(list, j)
	}
	t.parted.Ascend(pair(base, 0), func(k uint64, _ none) bool {
		if uint32(k>>32) != base {
			return false
		}
		list = append(list, t.Job(uint32(k)))
		return true
	})
	return list
}

func (t *tables) wholeJob(id uint32) []target {
	rec := t.Job(id)
	if rec != nil && rec.ArrayID != id {
		return []target{{job: rec}}
	}
	var list []target
	for _, j := range t.ArrayTasks(id) {
		list = append(list, target{job: j})
	}
	if rec != nil && rec.ArrayID == id && rec.Waiting != nil {
		list = append(list, target{job: rec})
	}
	return list
}

// eachJob runs f on every record that refs name and gives one result for each reference: refused
// when none of its records took the command.
func (t *Tx) eachJob(refs []job.Ref, c Caller, f func(target) *Refusal) []JobResult {
	results := make([]JobResult, 0, len(refs))
	for _, ref := range refs {
		list := t.targets(ref)
		result := JobResult{Job: ref.String()}
		if len(list) == 0 {
			result.Refused = refuse("ESLURM_INVALID_JOB_ID", "Invalid job id specified",
				fmt.Sprintf("job %s is not known, or left memory after it ended", ref))
		}
		taken := false
		for _, x := range list {
			r := t.onOwn(x, c, f)
			taken = taken || r == nil
			if result.Refused == nil {
				result.Refused = r
			}
		}
		if taken {
			result.Refused = nil
		}
		results = append(results, result)
	}
	return results
}

// onOwn runs f on a record that the caller may touch. Records may have changed since they were
// found: an earlier one of the same command can have caused it.
func (t *Tx) onOwn(x target, c Caller, f func(target) *Refusal) *Refusal {
	if x.job.Spec.UID != c.UID && !c.Operator {
		return denied(fmt.Sprintf("job %s belongs to %s", x.job.Name(), x.job.Spec.User))
	}
	x.job = t.Job(x.job.ID)
	return f(x)
}

// cutOut gives some waiting tasks of an array a record of their own, under a new id, and stores
// the rest. The new record is not stored. It is nil when ids are used up.
func (t *Tx) cutOut(old *Job, tasks *job.Set) *Job {
	if t.nextID > MaxJobID {
		return nil
	}
	base, j := edit(old), edit(old)
	base.Waiting = old.Waiting.WithoutSet(tasks)
	t.put(old, base)
	j.ID, j.Waiting, j.Key, j.Class, j.Promise, j.PromiseBase = t.nextID, tasks, "", "", nil, 0
	t.nextID++
	return j
}
