package state

import "github.com/tensorgrid/tensorgrid/internal/job"

// JobUpdate changes parameters of one job, or of some of an array's tasks; all of Set or none.
type JobUpdate struct {
	Job    job.Ref
	Set    map[string]string
	Caller Caller
}

// UpdateJob changes parameters of a job; keys may be in any case.
func (t *Tx) UpdateJob(u *JobUpdate) []JobResult {
	return t.eachJob([]job.Ref{u.Job}, u.Caller, func(x target) *Refusal { return t.updateJob(x, u) })
}

func (t *Tx) updateJob(x target, u *JobUpdate) *Refusal {
	for key := range u.Set {
		return unknownKey(key, "none")
	}
	return nil
}
