// Package trace reads recorded and modelled workloads: the Standard Workload Format of the Parallel Workloads Archive,
// and the node and pod lists of the openb traces. Every line that cannot be read is an error that names it.
package trace

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is read.
const (
	MaxLine = 1 << 20  // bytes
	MaxJobs = 10 << 20 // of one trace
)

// Job is one job of a trace. Times are ms since the trace's own zero, durations ms, memory bytes.
type Job struct {
	ID     uint32
	Submit int64
	Run    int64 // how long it ran, at least 1 and at most Limit
	Limit  int64 // what its user asked for
	Tasks  uint32
	CPUs   uint32 // of a task
	Mem    int64  // of a node; 0 = its part by CPUs
	GPUs   uint32 // of a node
	User   string
}

// Node is one machine.
type Node struct {
	Name string
	CPUs uint32
	Mem  int64
	GPUs uint32
	Type string // of the GPUs
}

// Trace is a workload and the machine it is for.
type Trace struct {
	Name    string
	Nodes   []Node
	Jobs    []Job    // by submission; of equal ones as in the file
	Dropped int      // jobs that were left out
	Notes   []string // what was changed, for the report
}

// CPUs is the size of the machine.
func (t *Trace) CPUs() (n uint64) {
	for i := range t.Nodes {
		n += uint64(t.Nodes[i].CPUs)
	}
	return n
}

// GPUs is how many GPUs the machine has.
func (t *Trace) GPUs() (n uint64) {
	for i := range t.Nodes {
		n += uint64(t.Nodes[i].GPUs)
	}
	return n
}

// Window is the trace of count jobs from index first on, in the order of the file; count 0 = all that follow.
func (t *Trace) Window(first, count int) (*Trace, error) {
	if first < 0 || first >= len(t.Jobs) || count < 0 || count > len(t.Jobs)-first {
		return nil, fmt.Errorf("jobs %d to %d: the trace has %d", first, first+count, len(t.Jobs))
	}
	if count == 0 {
		count = len(t.Jobs) - first
	}
	w := *t
	w.Jobs = t.Jobs[first : first+count]
	return &w, nil
}

// Perfect is the trace as if each user had known how long the job runs.
func (t *Trace) Perfect() *Trace {
	w := *t
	w.Jobs = slices.Clone(t.Jobs)
	for i := range w.Jobs {
		w.Jobs[i].Limit = w.Jobs[i].Run
	}
	return &w
}

// columns of the Standard Workload Format that are read, counted from 0.
const (
	swfJob       = 0
	swfSubmit    = 1
	swfRun       = 3
	swfAllocated = 4
	swfRequested = 7
	swfTime      = 8
	swfUser      = 11
	swfColumns   = 18
)

// ReadSWF reads a workload in the Standard Workload Format for a machine of so many processors; 0 = as its header
// says. As published replays do it, a job is dropped if it asks for more processors than there are, ran for no time or
// asked for none; of allocated and requested processors the requested count, or those that are told; a job that ran
// longer than it asked for ran as long as it asked for. In a file that tells no requested times they are the run times.
func ReadSWF(name string, r io.Reader, procs uint32) (*Trace, error) {
	t := &Trace{Name: name}
	var rows [][swfColumns]int64
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxLine)
	times := false
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if rest, ok := strings.CutPrefix(line, ";"); ok {
			if procs == 0 {
				procs = headerProcs(rest)
			}
			continue
		}
		if line == "" {
			continue
		}
		row, err := swfRow(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if len(rows) == MaxJobs {
			return nil, fmt.Errorf("%s:%d: more than %d jobs", name, n, MaxJobs)
		}
		times = times || row[swfTime] > 0
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if procs == 0 {
		return nil, fmt.Errorf("%s: its header has neither MaxProcs nor MaxNodes; say how many processors the machine has", name)
	}
	for i := range rows {
		t.swfJob(&rows[i], int64(procs), times)
	}
	if !times {
		t.Notes = append(t.Notes, "no requested times: the run times stand for them")
	}
	t.Nodes = []Node{{Name: "machine", CPUs: procs, Mem: int64(procs) << 30}}
	slices.SortStableFunc(t.Jobs, func(a, b Job) int { return cmp.Compare(a.Submit, b.Submit) })
	return t, nil
}

// headerProcs is what a header line says of the machine's size, 0 where it is about something else.
func headerProcs(line string) uint32 {
	key, value, _ := strings.Cut(line, ":")
	switch strings.TrimSpace(key) {
	case "MaxProcs", "MaxNodes":
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 31)
		if err == nil {
			return uint32(n)
		}
	}
	return 0
}

func swfRow(line string) (row [swfColumns]int64, err error) {
	words := strings.Fields(line)
	if len(words) != swfColumns {
		return row, fmt.Errorf("%d columns; the Standard Workload Format has %d", len(words), swfColumns)
	}
	for i, w := range words {
		x, err := strconv.ParseFloat(w, 64)
		if err != nil || x < -1<<40 || x > 1<<40 || x != x {
			return row, fmt.Errorf("column %d: %q is no number of a usual size", i+1, w)
		}
		row[i] = int64(x)
	}
	if row[swfJob] < 0 || row[swfJob] > 1<<31 || row[swfSubmit] < 0 {
		return row, fmt.Errorf("job %s is submitted at %s: both must be 0 or more", words[swfJob], words[swfSubmit])
	}
	return row, nil
}

// swfJob takes one row into the trace, or drops it.
func (t *Trace) swfJob(row *[swfColumns]int64, procs int64, times bool) {
	n, allocated, run, limit := row[swfRequested], row[swfAllocated], row[swfRun], row[swfTime]
	if n <= 0 {
		n = allocated
	}
	if !times {
		limit = run
	}
	if n <= 0 || n > procs || allocated > procs || run <= 0 || limit <= 0 {
		t.Dropped++
		return
	}
	t.Jobs = append(t.Jobs, Job{ID: uint32(row[swfJob]), Submit: row[swfSubmit] * 1000, Run: min(run, limit) * 1000, Limit: limit * 1000,
		Tasks: uint32(n), CPUs: 1, User: strconv.FormatInt(row[swfUser], 10)})
}
