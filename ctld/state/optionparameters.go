package state

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// setRare sets a rare option of a specification, or takes it away (value "").
func setRare(s *job.Spec, name, value string) {
	if value == "" {
		s.Rare = slices.DeleteFunc(slices.Clone(s.Rare), func(o job.Option) bool { return o.Name == name })
		return
	}
	s.Rare = withOption(s.Rare, job.Option{Name: name, Value: value})
}

// setOption takes the value of a rare option as --name has it; "" takes the option away.
func setOption(name string) func(*jobEdit, string, string) *Refusal {
	return func(e *jobEdit, key, value string) *Refusal {
		setRare(e.spec, name, value)
		if _, err := e.spec.Extra(); err != nil {
			return badValue(key, value, "one that can be read: "+err.Error())
		}
		return nil
	}
}

func setContiguous(e *jobEdit, key, value string) *Refusal {
	var on bool
	if r := setFlag(&on, key, value); r != nil {
		return r
	}
	setRare(e.spec, job.OptContiguous, map[bool]string{true: "yes"}[on])
	return nil
}

// moment reads Unix ms, or an instant in UTC, relative ones to the state's clock.
func (e *jobEdit) moment(key, value string) (int64, *Refusal) {
	if ms, err := strconv.ParseInt(value, 10, 64); err == nil && len(value) >= unixDigits && ms > 0 {
		return ms, nil
	}
	at, err := job.ParseInstant(value, time.UnixMilli(e.t.now).UTC())
	if err != nil {
		return 0, badValue(key, value, "a time: "+err.Error())
	}
	return at.UnixMilli(), nil
}

// setDeadline takes a time; "" and 0 take the deadline away.
func setDeadline(e *jobEdit, key, value string) *Refusal {
	if value == "" || value == "0" {
		setRare(e.spec, job.OptDeadline, "")
		return nil
	}
	at, r := e.moment(key, value)
	if r == nil {
		setRare(e.spec, job.OptDeadline, fmt.Sprint(at))
	}
	return r
}

// setCheckpoint notes that a run has saved its work: now, or at a time that has been.
func setCheckpoint(e *jobEdit, key, value string) *Refusal {
	if !isRunning(e.j) {
		return refuse("ESLURM_TRANSITION_STATE_NO_UPDATE", "Job can not be altered now, try again later",
			fmt.Sprintf("job %s does not run, so it has no work to save", e.j.Name()))
	}
	at, r := e.moment(key, value)
	if r != nil {
		return r
	}
	if at > e.t.now || at < e.j.Start {
		return badValue(key, value, "now, or a time since the run began")
	}
	e.j.Checkpoint = max(e.j.Checkpoint, at)
	return nil
}
