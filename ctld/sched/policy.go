package sched

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// How jobs behind one that waits are looked at.
const (
	BackfillPriority = "priority" // in the order of the queue
	BackfillShortest = "shortest" // shortest run time first, equal ones in the order of the queue
	BackfillOff      = "off"      // not at all

	// BackfillSubmission looks at them in the order of submission, as some published replays do.
	BackfillSubmission = "submission"
)

// DefaultPromises is how many waiting jobs of a partition are promised a start where SchedulerParameters do not say.
const DefaultPromises = 32

// Policy is what a site chooses. The zero value is usable: open mode, in the order of the queue.
type Policy struct {
	MaxStarts int    // most starts in one plan; 0 = 1,000
	Promises  int    // jobs of a partition that are promised a start; 0 = open mode: the first one's is kept free, and only estimated
	Backfill  string // "" = priority
	Depth     int    // most classes looked at; 0 = all
	UserDepth int    // most classes of one user looked at; 0 = all
	Work      int    // most nodes looked at in a round; 0 = no bound
	PartWork  int    // most nodes looked at for one partition; 0 = no bound
	Window    int64  // ms; no start later than that from now is reserved or promised; 0 = any
	LimitStop bool   // a job that waits for a limit of its association blocks the jobs behind it

	Preempt Preemption

	// For replays of published results.
	StrictEnd  bool // a job behind a reserved start must end before it, not at it
	NoSpare    bool // it may not use what the reserved start leaves
	StickyHead bool // the job that a start is reserved for keeps it until it starts, whatever comes
}

// Preemption is who makes room for whom.
type Preemption struct {
	Type         string // "" = nobody; partition_prio, qos
	Mode         string // of the cluster: OFF, CANCEL, REQUEUE, SUSPEND
	Exempt       int64  // ms that a run is left alone
	MinExempt    int64  // runs of this priority or more are left alone; 0 = none
	Youngest     bool   // the youngest runs go first
	Jobs         int    // most jobs of a round that room is made for; 0 = 16
	WithinQOS    bool   // jobs of one QOS may preempt those of lower priority in it
	SuspendGrace int64  // ms
}

// The values of Preemption.Type.
const (
	PreemptPartition = "partition_prio"
	PreemptQOS       = "qos"
)

// ParsePolicy reads the words of SchedulerParameters that are the planner's; others are passed over. Where none says
// otherwise DefaultPromises jobs of a partition are promised a start; promises=0 is open mode. Errors name the word.
func ParsePolicy(words []string) (Policy, error) {
	p := Policy{Promises: DefaultPromises}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		if err := p.word(strings.ToLower(name), value); err != nil {
			return Policy{Promises: DefaultPromises}, fmt.Errorf("SchedulerParameters: %s: %w", word, err)
		}
	}
	return p, nil
}

func (p *Policy) word(name, value string) (err error) {
	numbers := map[string]*int{"promises": &p.Promises, "sched_max_job_start": &p.MaxStarts, "bf_max_job_test": &p.Depth,
		"bf_max_job_user": &p.UserDepth, "work": &p.Work, "max_sched_work": &p.Work, "partition_work": &p.PartWork, "partition_sched_work": &p.PartWork,
		"max_preempting_jobs": &p.Preempt.Jobs}
	if to := numbers[name]; to != nil {
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return fmt.Errorf("%q is not a number from 0 to %d", value, 1<<31-1)
		}
		*to = int(n)
		return nil
	}
	switch name {
	case "backfill":
		switch value {
		case BackfillPriority, BackfillShortest, BackfillOff, BackfillSubmission:
			p.Backfill = value
		default:
			return fmt.Errorf("%q is none of priority, shortest, submission, off", value)
		}
	case "bf_window":
		if p.Window, err = job.ParseTimeLimit(value); err != nil {
			return err
		}
		p.Window = max(p.Window, 0) // UNLIMITED: any
	case "assoc_limit_stop":
		p.LimitStop = true
	}
	return nil
}

// ParsePreemption reads PreemptType, PreemptMode, PreemptExemptTime (ms, below 0 = none) and PreemptParameters.
func ParsePreemption(kind, mode string, exempt int64, words []string) (Preemption, error) {
	p := Preemption{Type: strings.TrimPrefix(strings.ToLower(kind), "preempt/"), Mode: strings.ToUpper(mode), Exempt: max(exempt, 0)}
	switch p.Type {
	case "", "none":
		p.Type = ""
	case PreemptPartition, PreemptQOS:
	default:
		return Preemption{}, fmt.Errorf("PreemptType: %q is none of preempt/none, preempt/partition_prio, preempt/qos", kind)
	}
	for word := range strings.SplitSeq(p.Mode, ",") {
		switch word {
		case "WITHIN":
			p.WithinQOS = true
		case "GANG", "PRIORITY":
		default:
			p.Mode = word
		}
	}
	switch p.Mode {
	case "", EvictCancel, EvictRequeue, EvictSuspend, PreemptOff:
	default:
		return Preemption{}, fmt.Errorf("PreemptMode: %q is none of OFF, CANCEL, REQUEUE, SUSPEND", p.Mode)
	}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch strings.ToLower(name) {
		case "youngest_first":
			p.Youngest = true
		case "min_exempt_priority":
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				return Preemption{}, fmt.Errorf("PreemptParameters: %s: %q is not a priority", word, value)
			}
			p.MinExempt = int64(n)
		}
	}
	return p, nil
}

// PreemptOff is the mode of what is never preempted.
const PreemptOff = "OFF"
