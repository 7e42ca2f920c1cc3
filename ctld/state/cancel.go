package state

import (
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Cancel ends jobs, or sends them a signal.
type Cancel struct {
	Jobs      []job.Ref
	Signal    int32 // 0 = end the job
	BatchOnly bool
	Full      bool
	States    []job.State // only jobs that are in one of them when it is applied; none = whatever their state
	Caller    Caller
}

const sigKill = 9

// Cancel takes an end or a signal for jobs. Waiting ones end at once; running ones are CANCELLED
// and COMPLETING until their nodes are done.
func (t *Tx) Cancel(c *Cancel) []JobResult {
	end := c.Signal == 0 || c.Signal == sigKill && !c.BatchOnly && !c.Full
	return t.eachJob(c.Jobs, c.Caller, func(x target) *Refusal {
		asked := x.job
		if x = t.whole(x); x.job != asked && asked.State == job.Cancelled && end {
			return nil // it was cancelled with the first component, maybe by this very command
		}
		switch {
		case len(c.States) > 0 && !slices.Contains(c.States, x.job.State):
			return nil // it has moved on since it was looked for
		case end:
			return t.cancel(x, c)
		}
		return t.signal(x.job, c)
	})
}

func alreadyDone(j *Job) *Refusal {
	return refuse("ESLURM_ALREADY_DONE", "Job/step already completing or completed",
		fmt.Sprintf("job %s is %s", j.Name(), j.State))
}

func (t *Tx) cancel(x target, c *Cancel) *Refusal {
	if _, _, ok := job.Next(x.job.State, x.job.Flags, job.EventCancel); !ok {
		return alreadyDone(x.job)
	}
	old, j, r := t.part(x)
	if r != nil {
		return r
	}
	j.happen(job.EventCancel)
	j.Reason, j.Detail = "", ""
	if j.HeldBy == HoldUser { // an administrator's stays for when it is queued again
		j.HeldBy = HoldNone
	}
	j.Cancelled, j.CancelUID = true, c.Caller.UID
	j.End = t.now
	if j.Flags&job.Completing != 0 {
		j.Kill, j.KillAt, j.KillSignal = job.WhyCancel, t.now, c.Signal
	}
	t.settle(old, j)
	return nil
}

func (t *Tx) signal(old *Job, c *Cancel) *Refusal {
	switch {
	case !isLive(old) || old.State.Ended():
		return alreadyDone(old)
	case !isRunning(old):
		return refuse("ESLURM_TRANSITION_STATE_NO_UPDATE", "Job can not be altered now, try again later",
			fmt.Sprintf("job %s has no processes to signal", old.Name()))
	}
	j := edit(old)
	if !j.addSignal(Signal{Number: c.Signal, BatchOnly: c.BatchOnly, Full: c.Full}) {
		return refuse("EAGAIN", "Resource temporarily unavailable",
			fmt.Sprintf("MaxSignals=%d signals are on their way to job %s", MaxSignals, old.Name()))
	}
	t.put(old, j)
	return nil
}
