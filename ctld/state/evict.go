package state

import (
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

const (
	sigTerm = 15
	sigCont = 18
)

// MaxGrace bounds the grace of one eviction, in ms.
const MaxGrace int64 = 30 * 24 * 3600 * 1000

// evict makes room as the planner decided, if the run is still the one that it looked at. A run that has been told
// already is not told again.
func (t *Tx) evict(e *sched.Evict) bool {
	old := t.Job(e.JobID)
	if old == nil || t.feature < FeatureSched || old.Run != e.Run || !isRunning(old) || old.Kill != job.WhyNone {
		return false
	}
	if old = t.firstOf(old); old == nil || !isRunning(old) || old.Kill != job.WhyNone {
		return false
	}
	switch e.How {
	case sched.EvictResume:
		return old.SuspendedByPlan && t.resume(old)
	case sched.EvictSuspend:
		return old.GraceEnd == 0 && t.suspendFor(old, e.By)
	case sched.EvictCancel, sched.EvictRequeue:
		return old.GraceEnd == 0 && t.sendAway(old, e)
	}
	return false
}

// suspendFor suspends a run to make room for another.
func (t *Tx) suspendFor(old *Job, by uint32) bool {
	if !t.suspend(old, true) {
		return false
	}
	was := t.Job(old.ID)
	j := edit(was)
	j.PreemptAt, j.PreemptHow, j.PreemptBy = t.now, sched.EvictSuspend, by
	t.put(was, j)
	return true
}

// sendAway ends a run or queues it again, after its grace if it has one: it gets its warning at once and goes on until
// it ends or the grace is over.
func (t *Tx) sendAway(old *Job, e *sched.Evict) bool {
	j := edit(old)
	j.PreemptAt, j.PreemptHow, j.PreemptBy = t.now, e.How, e.By
	if grace := min(e.Grace, MaxGrace); grace > 0 && j.State == job.Running && j.Flags&job.Configuring == 0 {
		j.GraceEnd = t.now + grace
		for _, s := range t.warning(j) {
			j.addSignal(s) // one that finds no place is made up for by the kill
		}
		t.put(old, j)
		return true
	}
	t.preempt(old, j)
	return true
}

// warning is what tells a run that its grace begins: CONT, and TERM, or with PreemptParameters=send_user_signal the
// signal of --signal, to whom that goes, unless its time has come already.
func (t *Tx) warning(j *Job) []Signal {
	last := Signal{Number: sigTerm, Full: true}
	asked, err := job.ParseSignalSpec(j.Spec.Signal)
	if j.Spec.Signal != "" && err == nil && t.cfg.Sched.sendUserSignal() {
		if end := j.Start + j.Stopped + j.TimeLimit; j.TimeLimit <= 0 || t.now < end-asked.Before {
			last = Signal{Number: int32(asked.Signal), BatchOnly: asked.Batch}
		}
	}
	return []Signal{{Number: sigCont, Full: true}, last}
}

// sendUserSignal tells whether the run that makes room gets its own signal.
func (c *SchedConfig) sendUserSignal() bool {
	return slices.ContainsFunc(c.PreemptParameters, func(w string) bool { return strings.EqualFold(w, "send_user_signal") })
}

// preempt ends a run that was chosen to make room, or takes it back to the queue. j is a copy of old, to be stored.
func (t *Tx) preempt(old, j *Job) {
	j.Kill, j.KillAt = job.WhyPreempt, t.now
	t.conclude(j, ending{state: job.Preempted, exit: j.Exit})
	t.settle(old, j)
}

// graceTimer ends a run whose grace is over.
func (t *Tx) graceTimer(old *Job) {
	if old.GraceEnd == 0 || old.GraceEnd > t.now || !isRunning(old) || old.Kill != job.WhyNone {
		return
	}
	t.preempt(old, edit(old))
}

// madeRoom tells whether a run that ended within its grace did so to make room: one that is to be queued again does
// whatever its exit, one that is cancelled does unless it had come to a good end.
func madeRoom(j *Job, exit job.Exit) bool {
	return j.GraceEnd > 0 && (j.PreemptHow == sched.EvictRequeue || !exit.OK())
}

// forgetPreemption clears what belonged to an eviction of the run before.
func (j *Job) forgetPreemption() {
	j.PreemptAt, j.PreemptHow, j.PreemptBy, j.GraceEnd = 0, "", 0, 0
}
