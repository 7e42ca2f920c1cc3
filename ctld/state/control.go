package state

import (
	"fmt"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Op is a control operation. The values are those of ctldpb.ControlRequest.Op.
type Op uint32

// The operations, as scontrol's.
const (
	OpNone Op = iota
	OpHold
	OpUHold
	OpRelease
	OpRequeue
	OpRequeueHold
	OpSuspend
	OpResume
	OpTop
)

// Control applies one operation to jobs. Delay (ms) replaces RequeueDelay when it is not 0.
type Control struct {
	Op     Op
	Jobs   []job.Ref
	Caller Caller
	Delay  int64
}

// Control applies one operation to jobs and gives one result for each reference.
func (t *Tx) Control(c *Control) []JobResult {
	return t.eachJob(c.Jobs, c.Caller, func(x target) *Refusal { return t.control(x, c) })
}

func (t *Tx) control(x target, c *Control) *Refusal {
	x = t.whole(x)
	switch c.Op {
	case OpHold:
		who := HoldUser
		if c.Caller.Operator {
			who = HoldAdmin
		}
		return t.hold(x, who)
	case OpUHold:
		return t.hold(x, HoldUser)
	case OpRelease:
		return t.releaseHold(x, c.Caller)
	case OpRequeue, OpRequeueHold:
		return t.controlRequeue(x.job, c)
	case OpTop:
		return t.top(x, c.Caller)
	case OpSuspend, OpResume:
		return t.controlSuspend(x.job, c)
	}
	return refuse("ESLURM_NOT_SUPPORTED", "Operation not supported", fmt.Sprintf("there is no control operation %d", c.Op))
}

// part gives the stored record that a command changes, and a copy to change and put: for some of
// an array's waiting tasks a new record, cut out of the old one.
func (t *Tx) part(x target) (old, j *Job, r *Refusal) {
	if x.tasks == nil {
		return x.job, edit(x.job), nil
	}
	if j = t.cutOut(x.job, x.tasks); j == nil {
		return nil, nil, refuse("EAGAIN", "Resource temporarily unavailable",
			fmt.Sprintf("all job ids up to MaxJobId=%d have been given", MaxJobID))
	}
	return nil, j, nil
}

// hold keeps a waiting record from starting; of a running one only a later run.
func (t *Tx) hold(x target, who Hold) *Refusal {
	if x.job.State.Ended() {
		return alreadyDone(x.job)
	}
	old, j, r := t.part(x)
	if r != nil {
		return r
	}
	if j.HeldBy = max(j.HeldBy, who); j.State == job.Pending {
		j.Priority, j.Eligible, j.Fixed = 0, 0, false
		j.Reason, j.Detail = "", ""
	}
	t.put(old, j)
	return nil
}

// releaseHold lifts a hold. A user cannot lift an operator's.
func (t *Tx) releaseHold(x target, c Caller) *Refusal {
	switch {
	case x.job.State.Ended():
		return alreadyDone(x.job)
	case x.job.HeldBy == HoldAdmin && !c.Operator:
		return denied(fmt.Sprintf("job %s was held by an administrator", x.job.Name()))
	}
	old, j, r := t.part(x)
	if r != nil {
		return r
	}
	if j.HeldBy = HoldNone; j.State == job.Pending {
		j.happen(job.EventRelease)
		j.Reason, j.Detail = "", ""
		j.Priority = j.basePriority()
		j.Eligible = j.eligibleAt(t.now)
	}
	t.put(old, j)
	return nil
}

// controlRequeue takes a running or ended job back to the queue.
func (t *Tx) controlRequeue(old *Job, c *Control) *Refusal {
	event, back := job.EventRequeue, comeback{delay: t.cfg.RequeueDelay}
	if c.Delay > 0 {
		back.delay = c.Delay
	}
	if c.Op == OpRequeueHold {
		event, back.hold = job.EventRequeueHold, HoldUser
		if c.Caller.Operator {
			back.hold = HoldAdmin
		}
	}
	if old.State == job.Pending && c.Op == OpRequeueHold {
		return t.hold(target{job: old}, back.hold)
	}
	switch {
	case old.Waiting != nil && old.State.Ended():
		return alreadyDone(old)
	case !t.mayRequeue(old):
		return refuse("ESLURM_DISABLED", "Requested operation is presently disabled",
			fmt.Sprintf("job %s was submitted with --no-requeue, or JobRequeue=0", old.Name()))
	}
	if most := t.cfg.MaxSubmitPerUser; most > 0 && !isLive(old) && t.owned[old.Spec.UID] >= most {
		return refuse("ESLURM_ACCOUNTING_POLICY",
			"Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
			fmt.Sprintf("MaxSubmitPerUser=%d: the user has %d jobs and this adds 1", most, t.owned[old.Spec.UID]))
	}
	j := edit(old)
	if r := t.mayComeBack(old); r != nil {
		return r
	}
	if !t.comeBack(j, event, back) {
		return refuse("ESLURM_JOB_PENDING", "Job is pending execution", fmt.Sprintf("job %s is in the queue already", old.Name()))
	}
	if j.Dep != DepMet && t.feature >= FeatureMembers {
		if r := t.dependAgain(j); r != nil {
			return r
		}
	}
	j.Cancelled, j.CancelUID = false, 0
	t.settle(old, j)
	return nil
}

// top puts a waiting job before the user's others.
func (t *Tx) top(x target, c Caller) *Refusal {
	if x.job.State != job.Pending || x.job.Priority == 0 {
		return refuse("ESLURM_TRANSITION_STATE_NO_UPDATE", "Job can not be altered now, try again later",
			fmt.Sprintf("job %s does not wait, or is held", x.job.Name()))
	}
	if !c.Operator {
		return denied("moving a job to the top is for operators")
	}
	highest := int64(0)
	for other := range t.OfUser(x.job.Spec.UID) {
		if isWaiting(other) && other.ID != x.job.ID && other.Partition == x.job.Partition && (other.Fixed || t.feature < FeatureSched) {
			highest = max(highest, other.Priority)
		}
	}
	if t.feature >= FeatureSched {
		highest = max(highest, x.job.Priority, basePriority-1) // above what is worked out for jobs that nobody has set
	} else if highest < x.job.Priority {
		return nil
	}
	old, j, r := t.part(x)
	if r != nil {
		return r
	}
	j.Priority, j.Fixed = highest+1, t.feature >= FeatureSched
	t.put(old, j)
	return nil
}
