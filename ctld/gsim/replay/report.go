package replay

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/trace"
)

// Sample is queue and use from one moment on. At is ms.
type Sample struct {
	At              int64
	Queued, Running int
	CPUs, GPUs      int64
}

// Outcome is what became of one job, in ms.
type Outcome struct {
	Job   *trace.Job
	Start int64
	Wait  int64
	Late  int64 // started after its first promise by so much
}

// Summary is the report's figures. Waits are seconds, the mean ones over jobs.
type Summary struct {
	Trace       string      `json:"trace"`
	Policy      string      `json:"policy"`
	Jobs        int         `json:"jobs"`
	Dropped     int         `json:"dropped"`
	Slowdown    float64     `json:"average_bounded_slowdown"`
	MeanWait    float64     `json:"mean_wait_s"`
	LongestWait float64     `json:"longest_wait_s"`
	Utilisation float64     `json:"cpu_utilisation"`
	GPUs        float64     `json:"gpu_utilisation"`
	Queue       float64     `json:"mean_queue"`
	LongestQ    int         `json:"longest_queue"`
	Backfilled  int         `json:"backfilled"`
	Promised    int         `json:"promised"`
	Late        int         `json:"promises_broken"`
	Plans       int         `json:"plans"`
	Sizes       []SizeClass `json:"sizes"`
	Notes       []string    `json:"notes,omitempty"`
}

// SizeClass is the figures of the jobs of From to To CPUs.
type SizeClass struct {
	From        uint64  `json:"from_cpus"`
	To          uint64  `json:"to_cpus"`
	Jobs        int     `json:"jobs"`
	Slowdown    float64 `json:"average_bounded_slowdown"`
	MeanWait    float64 `json:"mean_wait_s"`
	LongestWait float64 `json:"longest_wait_s"`
}

// Result is a replay that has ended.
type Result struct {
	Summary  Summary
	Samples  []Sample
	Outcomes []Outcome // in the order of the trace
}

// tally adds up the figures of some jobs.
type tally struct {
	jobs                    int
	slowdown, wait, longest float64
}

func (t *tally) add(wait, run int64) {
	t.jobs++
	t.slowdown += max(1, float64(wait+run)/float64(max(10*1000, run)))
	w := float64(wait) / 1000
	t.wait += w
	t.longest = max(t.longest, w)
}

func mean(sum float64, n int) float64 {
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// result works the figures out.
func (e *engine) result() *Result {
	t := e.w.trace
	r := &Result{Samples: e.samples, Summary: Summary{Trace: t.Name, Policy: e.pol.Name, Jobs: len(t.Jobs), Dropped: t.Dropped, Plans: e.plans, Notes: t.Notes}}
	var all tally
	var sizes [33]tally
	for i := range t.Jobs {
		j, rec := &t.Jobs[i], &e.w.jobs[i]
		o := Outcome{Job: j, Start: rec.start, Wait: rec.start - j.Submit, Late: rec.late}
		r.Outcomes = append(r.Outcomes, o)
		all.add(o.Wait, j.Run)
		sizes[sizeOf(j)].add(o.Wait, j.Run)
		if rec.back {
			r.Summary.Backfilled++
		}
		if rec.first > 0 {
			r.Summary.Promised++
		}
		if rec.late > 0 {
			r.Summary.Late++
		}
	}
	s := &r.Summary
	s.Slowdown, s.MeanWait, s.LongestWait = mean(all.slowdown, all.jobs), mean(all.wait, all.jobs), all.longest
	for k, c := range sizes {
		if c.jobs > 0 {
			s.Sizes = append(s.Sizes, SizeClass{From: 1<<k>>1 + 1, To: 1 << k, Jobs: c.jobs,
				Slowdown: mean(c.slowdown, c.jobs), MeanWait: mean(c.wait, c.jobs), LongestWait: c.longest})
		}
	}
	r.use(t)
	return r
}

// sizeOf is the class of a job's size: n CPUs are of class k for 2^(k-1) < n <= 2^k.
func sizeOf(j *trace.Job) int {
	n, k := uint64(j.Tasks)*uint64(j.CPUs), 0
	for k < 32 && uint64(1)<<k < n {
		k++
	}
	return k
}

// use works out what is a mean over time.
func (r *Result) use(t *trace.Trace) {
	var cpu, gpu, queue float64
	for i := range r.Samples {
		x := &r.Samples[i]
		r.Summary.LongestQ = max(r.Summary.LongestQ, x.Queued)
		if i+1 < len(r.Samples) {
			d := float64(r.Samples[i+1].At - x.At)
			cpu, gpu, queue = cpu+d*float64(x.CPUs), gpu+d*float64(x.GPUs), queue+d*float64(x.Queued)
		}
	}
	span := float64(r.Samples[len(r.Samples)-1].At - r.Samples[0].At)
	if span <= 0 {
		return
	}
	r.Summary.Utilisation, r.Summary.Queue = cpu/span/float64(t.CPUs()), queue/span
	if n := t.GPUs(); n > 0 {
		r.Summary.GPUs = gpu / span / float64(n)
	}
}

// JSON writes the figures as one object.
func (s *Summary) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}

// Text writes the figures for people.
func (s *Summary) Text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("trace", "%s: %d jobs, %d dropped", s.Trace, s.Jobs, s.Dropped)
	row("policy", "%s", s.Policy)
	row("average bounded slowdown", "%.2f", s.Slowdown)
	row("mean wait", "%.0f s", s.MeanWait)
	row("longest wait", "%.1f h", s.LongestWait/3600)
	row("CPUs in use", "%.1f %%", 100*s.Utilisation)
	if s.GPUs > 0 {
		row("GPUs in use", "%.1f %%", 100*s.GPUs)
	}
	row("queue", "%.1f jobs on average, %d at most", s.Queue, s.LongestQ)
	row("backfilled", "%d", s.Backfilled)
	if s.Promised > 0 {
		row("promised", "%d, %d of them broken", s.Promised, s.Late)
	}
	for _, n := range s.Notes {
		row("note", "%s", n)
	}
	fmt.Fprint(tw, "\nCPUs\tjobs\tslowdown\tmean wait s\tlongest h\n")
	for _, c := range s.Sizes {
		name := fmt.Sprint(c.To)
		if c.From < c.To {
			name = fmt.Sprintf("%d-%d", c.From, c.To)
		}
		fmt.Fprintf(tw, "%s\t%d\t%.2f\t%.0f\t%.1f\n", name, c.Jobs, c.Slowdown, c.MeanWait, c.LongestWait/3600)
	}
	return tw.Flush()
}

// Compare writes the figures of several replays side by side, one line each.
func Compare(w io.Writer, list []*Summary) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprint(tw, "trace\tpolicy\tjobs\tslowdown\tmean wait s\tlongest h\tCPUs %\tmean queue\tbackfilled\tpromises broken\n")
	for _, s := range list {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%.2f\t%.0f\t%.1f\t%.1f\t%.1f\t%d\t%d\n", s.Trace, s.Policy, s.Jobs, s.Slowdown, s.MeanWait,
			s.LongestWait/3600, 100*s.Utilisation, s.Queue, s.Backfilled, s.Late)
	}
	return tw.Flush()
}
