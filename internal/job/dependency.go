package job

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrDependency is wrapped by errors about a dependency that cannot be read.
var ErrDependency = errors.New("invalid job dependency")

// MaxDependencies bounds the job ids of one job's dependencies.
const MaxDependencies = 1000

// Dependency is what must have happened before a job may start. The zero value is nothing.
type Dependency struct {
	Any   bool // one term is enough ('?'); else all of them are needed
	Terms []DepTerm
}

// DepTerm is one condition on some jobs; all of Jobs must meet it.
type DepTerm struct {
	Type DepType
	Jobs []DepJob // none for Singleton
}

// DepJob is one job of a condition.
type DepJob struct {
	ID    uint32
	Task  int64 // NoTask = the job, or all tasks of an array
	All   bool  // written ID_*
	Delay int64 // ms after it (DepAfter)
}

// DepType is the word of a condition.
type DepType string

// The conditions, as Slurm's.
const (
	DepAfter     DepType = "after"            // has started or was cancelled
	DepAfterAny  DepType = "afterany"         // has ended
	DepAfterOK   DepType = "afterok"          // has ended with exit code 0
	DepAfterNot  DepType = "afternotok"       // has ended otherwise
	DepAfterCorr DepType = "aftercorr"        // the same task of the other array has ended with exit code 0
	DepAfterBB   DepType = "afterburstbuffer" // has ended, its files have been moved out
	DepExpand    DepType = "expand"
	DepSingleton DepType = "singleton" // no other job of this name and user is live before it
)

var depTypes = []DepType{DepAfter, DepAfterAny, DepAfterOK, DepAfterNot, DepAfterCorr, DepAfterBB, DepExpand, DepSingleton}

// ParseDependency reads type:id[+minutes][:id...] terms, joined by ',' (all of them) or '?' (any of them).
// An id is N, N_T or N_*. An id without a type means afterany. An empty s is no dependency.
func ParseDependency(s string) (Dependency, error) {
	var d Dependency
	if s == "" {
		return d, nil
	}
	if len(s) > MaxList {
		return d, fmt.Errorf("%w: %d bytes, the limit MaxList is %d", ErrDependency, len(s), MaxList)
	}
	separator := ","
	if strings.Contains(s, "?") {
		if strings.Contains(s, ",") {
			return d, fmt.Errorf("%w %q: both ',' and '?', use one of them", ErrDependency, s)
		}
		separator, d.Any = "?", true
	}
	total := 0
	for _, word := range strings.Split(s, separator) {
		term, err := parseDepTerm(word)
		if err != nil {
			return Dependency{}, fmt.Errorf("%w %q: %w", ErrDependency, s, err)
		}
		if total += max(1, len(term.Jobs)); total > MaxDependencies {
			return Dependency{}, fmt.Errorf("%w: more than MaxDependencies, %d jobs", ErrDependency, MaxDependencies)
		}
		d.Terms = append(d.Terms, term)
	}
	return d, nil
}

func parseDepTerm(word string) (DepTerm, error) {
	name, ids, hasIDs := strings.Cut(word, ":")
	if name != "" && '0' <= name[0] && name[0] <= '9' {
		name, ids, hasIDs = string(DepAfterAny), word, true
	}
	term := DepTerm{Type: DepType(strings.ToLower(name))}
	switch {
	case !slices.Contains(depTypes, term.Type):
		return term, fmt.Errorf("unknown condition %q", name)
	case term.Type == DepSingleton:
		if hasIDs {
			return term, errors.New("singleton takes no job id")
		}
		return term, nil
	case !hasIDs || ids == "":
		return term, fmt.Errorf("%s needs a job id", name)
	}
	for _, text := range strings.Split(ids, ":") {
		job, err := parseDepJob(term.Type, text)
		if err != nil {
			return term, err
		}
		term.Jobs = append(term.Jobs, job)
	}
	return term, nil
}

func parseDepJob(kind DepType, text string) (DepJob, error) {
	idText, delay, hasDelay := strings.Cut(text, "+")
	idText, taskText, hasTask := strings.Cut(idText, "_")
	job := DepJob{Task: NoTask}
	var ok bool
	if job.ID, ok = parseID(idText); !ok {
		return job, fmt.Errorf("%q is not a job id", text)
	}
	switch {
	case taskText == "*":
		job.All = true
	case hasTask:
		if job.Task, ok = digitsIn(taskText); !ok || job.Task >= MaxArrayIndex {
			return job, fmt.Errorf("%q: %q is not a task number", text, taskText)
		}
	}
	if !hasDelay {
		return job, nil
	}
	minutes, ok := digitsIn(delay)
	switch {
	case kind != DepAfter:
		return job, fmt.Errorf("%q: only after takes a delay", text)
	case !ok || minutes > MaxTimeLimit/minute:
		return job, fmt.Errorf("%q: %q is not a number of minutes", text, delay)
	}
	job.Delay = minutes * minute
	return job, nil
}

// String writes the dependency as ParseDependency reads it.
func (d Dependency) String() string {
	var b strings.Builder
	for i, term := range d.Terms {
		if i > 0 {
			b.WriteByte(",?"[boolIndex(d.Any)])
		}
		b.WriteString(string(term.Type))
		for _, job := range term.Jobs {
			b.WriteByte(':')
			b.WriteString(job.String())
		}
	}
	return b.String()
}

// String writes one job of a condition: 12, 12_3, 12_* or 12+5.
func (j DepJob) String() string {
	s := strconv.FormatUint(uint64(j.ID), 10)
	switch {
	case j.All:
		s += "_*"
	case j.Task != NoTask:
		s += "_" + strconv.FormatInt(j.Task, 10)
	}
	if j.Delay > 0 {
		s += "+" + strconv.FormatInt(j.Delay/minute, 10)
	}
	return s
}

func boolIndex(b bool) int {
	if b {
		return 1
	}
	return 0
}
