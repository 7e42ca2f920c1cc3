package shepherd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// notePrefix is what programs that read job logs look for.
const notePrefix = "slurmstepd: error: "

// maxNotes bounds the notes that wait for a slow standard error; noteWait bounds the wait for them
// at the end of a step.
const (
	maxNotes = 16
	noteWait = 2 * time.Second
)

// noter writes notes to the user's standard error. That may be a pipe that nobody reads or a dead
// file server, which must not hold up the shepherd: what does not fit is left out.
type noter struct {
	to    *os.File
	lines chan string // nil before the first note
	done  chan struct{}
}

func newNoter(f *os.File) *noter { return &noter{to: f} }

func (n *noter) write() {
	defer close(n.done)
	for line := range n.lines {
		n.to.WriteString(line) // the user's disk may be full: there is nobody else to tell
	}
}

func (n *noter) add(text string) {
	if n.to == nil {
		return
	}
	if n.lines == nil {
		n.lines, n.done = make(chan string, maxNotes), make(chan struct{})
		go n.write()
	}
	if !strings.HasPrefix(text, notePrefix) {
		text = notePrefix + text
	}
	select {
	case n.lines <- strings.TrimSuffix(text, "\n") + "\n":
	default:
	}
}

// close waits for the notes to be written, for a while, and tells whether they were. No note may be
// added after.
func (n *noter) close() bool {
	if n.lines == nil {
		return true
	}
	close(n.lines)
	select {
	case <-n.done:
		return true
	case <-time.After(noteWait):
		return false
	}
}

// cancelNote is the line about a step that was ended from outside, in the words of Slurm.
func cancelNote(k launch.Key, node string, at time.Time, why job.Why) string {
	what := "JOB " + strconv.FormatUint(uint64(k.Job), 10)
	if k.Step != job.BatchStep {
		what = "STEP " + stepName(k)
	}
	due := map[job.Why]string{job.WhyTimeLimit: " DUE TO TIME LIMIT", job.WhyPreempt: " DUE TO PREEMPTION",
		job.WhyRequeue: " DUE TO JOB REQUEUE", job.WhyNodeFail: " DUE TO NODE FAILURE", job.WhyStale: " DUE TO EXPIRED LEASE"}[why]
	return fmt.Sprintf("*** %s ON %s CANCELLED AT %s%s ***", what, node, at.Format("2006-01-02T15:04:05"), due)
}

// oomNote is the line about processes that the kernel killed for want of memory.
func oomNote(k launch.Key, n int64) string {
	events := "event"
	if n > 1 {
		events = "events"
	}
	return fmt.Sprintf("Detected %d oom_kill %s in StepId=%s. Some of the step tasks have been OOM Killed.",
		n, events, stepName(k))
}

func stepWord(step uint32) string {
	switch step {
	case job.BatchStep:
		return "batch"
	case job.ExternStep:
		return "extern"
	case job.InteractiveStep:
		return "interactive"
	}
	return strconv.FormatUint(uint64(step), 10)
}
