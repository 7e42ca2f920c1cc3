package render

import (
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Explain says in lines what a job needs, what is missing, what stands in its way, and when it starts. The lines are
// for people; nil gives none.
func Explain(e *ctldpb.JobExplanation, clock Clock) []string {
	if e == nil {
		return nil
	}
	var lines []string
	add := func(head string, texts ...string) {
		for _, t := range texts {
			lines = append(lines, fmt.Sprintf("  %-11s %s", head, Clean(t)))
			head = ""
		}
	}
	if e.Needs != "" {
		add("needs:", e.Needs)
	}
	add("lacks:", e.Lacks...)
	add("blocked by:", e.BlockedBy...)
	if e.Queue > 0 {
		add("in line:", inLine(e))
	}
	if e.StartMs > 0 {
		kind := "estimate"
		switch {
		case e.Promised:
			kind = "promised"
		case e.Reason == string(job.ReasonBeginTime):
			kind = "at the earliest"
		}
		at := fmt.Sprintf("%s (%s)", clock.Time(e.StartMs, ""), kind)
		if e.Nodes != "" {
			at += " on " + e.Nodes
		}
		if e.Partition != "" {
			at += " in partition " + e.Partition
		}
		add("starts:", at)
	} else {
		add("starts:", noStart(job.Reason(e.Reason)))
	}
	add("sooner:", e.Advice...)
	return lines
}

// noStart says why no time can be told.
func noStart(r job.Reason) string {
	switch r {
	case job.ReasonDependencyNever:
		return "never: what it depends on can't come any more"
	case job.ReasonDependency:
		return "not before what it depends on has come"
	case job.ReasonHeldUser, job.ReasonHeldAdmin, job.ReasonReservationDeleted, job.ReasonMaxRequeue,
		job.ReasonLaunchFailure, job.ReasonProlog:
		return "not before it is released"
	}
	return "not known yet"
}

// inLine is "3 jobs before it of 17 that wait in main".
func inLine(e *ctldpb.JobExplanation) string {
	var b strings.Builder
	switch e.Ahead {
	case 0:
		b.WriteString("it is the next")
	case 1:
		b.WriteString("1 job before it")
	default:
		fmt.Fprintf(&b, "%d jobs before it", e.Ahead)
	}
	fmt.Fprintf(&b, " of %d that wait", e.Queue)
	if e.Partition != "" {
		b.WriteString(" in " + e.Partition)
	}
	return b.String()
}
