package state

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// JobUpdate changes parameters of one job, or of some of an array's tasks; all of Set or none.
type JobUpdate struct {
	Job    job.Ref
	Set    map[string]string
	Caller Caller
}

// jobEdit is one record being changed.
type jobEdit struct {
	t      *Tx
	j      *Job
	spec   *job.Spec // a copy, to be changed
	caller Caller
}

// UpdateJob changes parameters of a job; keys may be in any case.
func (t *Tx) UpdateJob(u *JobUpdate) []JobResult {
	fresh := map[*job.Spec]*job.Spec{}
	return t.eachJob([]job.Ref{u.Job}, u.Caller, func(x target) *Refusal { return t.updateJob(x, u, fresh) })
}

// updateJob changes one record. Records of an array that share a specification and are changed
// alike share the changed one too: fresh has it by the old one.
func (t *Tx) updateJob(x target, u *JobUpdate, fresh map[*job.Spec]*job.Spec) *Refusal {
	before := x.job.Spec
	trial := edit(x.job)
	if x.tasks != nil {
		trial.Waiting = x.tasks
	}
	if r := t.change(trial, u); r != nil {
		return r
	}
	old, j, r := t.part(x)
	if r != nil {
		return r
	}
	id, waiting, key, class := j.ID, j.Waiting, j.Key, j.Class
	*j = *trial
	j.ID, j.Waiting, j.Key, j.Class = id, waiting, key, class
	if known := fresh[before]; known != nil && reflect.DeepEqual(known, j.Spec) {
		j.Spec = known
	} else if fresh[before] == nil {
		fresh[before] = j.Spec
	}
	t.put(old, j)
	if j.Waiting != nil && watches(j) {
		t.judgeAgain(wakeup{id: j.ID, task: -1}) // tasks whose counterpart has ended already
	}
	t.endInvalid(j.ID)
	return nil
}

// change applies u to a copy of a record, in an order of its own: the result does not depend on
// how a map is walked.
func (t *Tx) change(j *Job, u *JobUpdate) *Refusal {
	spec := *j.Spec
	e := &jobEdit{t: t, j: j, spec: &spec, caller: u.Caller}
	for _, key := range updateOrder(u.Set) {
		p, known := jobParameters[strings.ToLower(key)]
		value := u.Set[key]
		switch {
		case !known:
			return unknownKey(key, strings.Join(slices.Sorted(maps.Keys(jobParameters)), ", "))
		case len(value) > job.MaxList:
			return badValue(key, fmt.Sprintf("of %d bytes", len(value)), fmt.Sprintf("at most MaxList=%d bytes", job.MaxList))
		case p.later && t.feature < FeatureSched:
			return t.needsSched(key)
		case p.first && isComponent(j):
			return refuse("ESLURM_NOT_WHOLE_HET_JOB", "Operation not permitted on a component of a heterogeneous job",
				fmt.Sprintf("%s is one for the whole job: change it of job %d", key, j.Het))
		case p.operator && !u.Caller.Operator:
			return denied("only operators may change " + key)
		case j.State.Ended():
			return alreadyDone(j)
		case p.when == whilePending && j.State != job.Pending:
			return refuse("ESLURM_JOB_NOT_PENDING", "Job is no longer pending execution", fmt.Sprintf("%s of job %s cannot change any more", key, j.Name()))
		}
		if r := p.set(e, key, value); r != nil {
			return r
		}
	}
	if spec.Begin < 0 || spec.Nice < -maxNice || spec.Nice > maxNice {
		return badValue("Nice", fmt.Sprint(spec.Nice), fmt.Sprintf("between -%d and %d", maxNice, maxNice))
	}
	if err := spec.Validate(); err != nil {
		return refuse("ESLURM_INVALID_VALUE", "Invalid job update", err.Error())
	}
	if r := t.mayBecome(j, &spec); r != nil {
		return r
	}
	if !reflect.DeepEqual(&spec, j.Spec) {
		t.internSpec(&spec)
		j.Spec = &spec
		j.Revision++ // a start that was planned on what it was does not hold any more
	}
	return e.finish()
}

// mayBecome holds what a waiting record asks for, where that places or ranks it, against accounts, limits, licenses,
// reservations and its deadline again, as when it was submitted.
func (t *Tx) mayBecome(j *Job, spec *job.Spec) *Refusal {
	if t.feature < FeatureSched || j.State != job.Pending {
		return nil
	}
	now, next := *j, *j
	next.Spec = spec
	if bytes.Equal(appendRanked(nil, &now), appendRanked(nil, &next)) {
		return nil
	}
	// Where it counts for others than before it comes as a new one does.
	moves := now.Spec.Account != spec.Account || now.Spec.QOS != spec.QOS || now.Spec.Partition != spec.Partition
	tasks := int64(0)
	if moves && t.counts() {
		tasks = submits(&now)
		t.countUse(&now, -1)
		defer t.countUse(&now, 1)
	}
	if r := t.readmit(spec, tasks); r != nil {
		return r
	}
	return t.mayMeetDeadline(spec, t.now)
}

// maxNice bounds --nice, as Slurm's.
const maxNice = 2147483645

// finish brings what follows from the parameters along.
func (e *jobEdit) finish() *Refusal {
	j := e.j
	if j.State != job.Pending {
		return nil
	}
	if isComponent(j) {
		// It stands as the first does.
	} else if j.Spec.Dependency == "" {
		j.Dep, j.EligibleAt = DepMet, 0
	} else if r := e.t.dependOnSubmit(j); r != nil {
		return r
	}
	j.Partition = j.Spec.Partition
	j.TimeLimit = e.t.effectiveLimit(j.Spec.TimeLimit, j.Spec.Partition)
	if keeps := e.t.feature >= FeatureSched && j.Eligible > 0 && j.eligibleAt(j.Eligible) == j.Eligible && j.Eligible <= e.t.now; j.Flags&job.Completing == 0 && !keeps {
		j.Eligible = j.eligibleAt(e.t.now) // one that could start already keeps its age
	}
	if j.Priority > 0 { // the planner's word on this record was on what it was
		j.Reason, j.Detail = "", ""
	}
	return nil
}
