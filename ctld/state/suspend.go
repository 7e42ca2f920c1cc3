package state

import (
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// keepsCPUs tells whether a record that holds nodes holds their CPUs too. A suspended run has given its own to
// others and keeps memory and devices; that stays so when it is ended meanwhile, until its nodes are done.
func keepsCPUs(j *Job) bool { return j.SuspendedAt == 0 }

// RunTime is how long the run was going at time now (Unix ms), in ms: time in which it was suspended does not count.
func (j *Job) RunTime(now int64) int64 {
	switch {
	case j.Start == 0:
		return 0
	case j.SuspendedAt > 0:
		now = j.SuspendedAt
	case j.State.Ended() && j.End > 0:
		now = j.End
	}
	return max(0, now-j.Start-j.Stopped)
}

// limitEnd is when the time limit ends the run; 0 when it has none, or is suspended.
func (j *Job) limitEnd() int64 {
	if j.TimeLimit <= 0 || j.SuspendedAt > 0 {
		return 0
	}
	return j.Start + j.Stopped + j.TimeLimit
}

// suspend stops a run's processes; its CPUs are free from now on. False when it cannot be suspended now.
func (t *Tx) suspend(old *Job, byPlan bool) bool {
	j := edit(old)
	if !j.happen(job.EventSuspend) {
		return false
	}
	j.SuspendedAt, j.SuspendedByPlan = t.now, byPlan
	j.End = 0
	t.put(old, j)
	return true
}

// resume lets a suspended run go on where all its CPUs are free. False when they are not, or it is not suspended.
func (t *Tx) resume(old *Job) bool {
	j := edit(old)
	if !j.happen(job.EventResume) {
		return false
	}
	asked := map[string]uint32{} // components may be on one node
	for _, part := range t.group(old) {
		for i := range part.Allocs {
			if !holds(part, i) {
				continue
			}
			a := part.Allocs[i]
			if !t.fitsCPUs(&a, part.Alone) {
				return false
			}
			if asked[a.Node] += a.CPUs; !t.fitsMore(a.Node, asked[a.Node]) {
				return false
			}
		}
	}
	j.Stopped += max(0, t.now-j.SuspendedAt)
	j.SuspendedAt, j.SuspendedByPlan = 0, false
	if j.PreemptHow == sched.EvictSuspend {
		j.forgetPreemption()
	}
	j.End = j.limitEnd()
	t.put(old, j)
	return true
}

// fitsCPUs tells whether the CPUs of a share that has the rest of it already are free.
func (t *tables) fitsCPUs(a *job.NodeAlloc, alone bool) bool {
	n := t.Node(a.Node)
	if n == nil || n.Exclusive || alone && len(n.Jobs) > int(n.Stopped) {
		return false
	}
	return a.CPUs <= n.Config.CPUs-min(n.CPUsAlloc, n.Config.CPUs) && freeIndexes(n.CPUsUsed, a.CPUIDs, uint64(len(n.CPUsUsed))+uint64(n.Config.CPUs)+maxIndex(a.CPUIDs))
}

// fitsMore tells whether so many CPUs of a node are free.
func (t *tables) fitsMore(name string, cpus uint32) bool {
	n := t.Node(name)
	return n != nil && cpus <= n.Config.CPUs-min(n.CPUsAlloc, n.Config.CPUs)
}

// maxIndex is one more than the highest number of a list: CPUs that the node was configured with when the run began.
func maxIndex(list []uint32) uint64 {
	if len(list) == 0 {
		return 0
	}
	return uint64(slices.Max(list)) + 1
}

// controlSuspend suspends a run, or lets it go on, for an operator.
func (t *Tx) controlSuspend(old *Job, c *Control) *Refusal {
	switch {
	case t.feature < FeatureSched:
		return refuse("ESLURM_DISABLED", "Requested operation is presently disabled", "suspending and resuming jobs is not offered")
	case !c.Caller.Operator:
		return denied("suspending and resuming jobs is for operators")
	case old.State == job.Pending:
		return refuse("ESLURM_JOB_PENDING", "Job is pending execution", fmt.Sprintf("job %s does not run", old.Name()))
	case old.State.Ended():
		return alreadyDone(old)
	}
	if c.Op == OpSuspend {
		if !t.suspend(old, false) {
			return refuse("ESLURM_DISABLED", "Requested operation is presently disabled",
				fmt.Sprintf("job %s is %s and has not started all of itself, or is suspended already", old.Name(), old.State))
		}
		return nil
	}
	switch {
	case old.State != job.Suspended:
		return refuse("ESLURM_DISABLED", "Requested operation is presently disabled", fmt.Sprintf("job %s is not suspended", old.Name()))
	case !t.resume(old):
		return refuse("ESLURM_NODES_BUSY", "Requested nodes are busy",
			fmt.Sprintf("others have the CPUs of job %s; it can go on when they have ended", old.Name()))
	}
	return nil
}
