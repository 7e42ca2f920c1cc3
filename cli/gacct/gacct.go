// Package gacct shows finished and running jobs with what they used, from what the controllers still keep:
// sacct's options, fields and layout.
package gacct

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Main runs the command and gives its exit code.
func Main(env *program.Env) int {
	m := Manual()
	given, operands, err := getopt.Parse(m.Options, env.Args, getopt.Permute)
	if err != nil {
		env.BadUsage(err)
		return 1
	}
	if env.Common(m, given) {
		return 0
	}
	if err := program.CheckText(given, operands); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	q, err := newQuery(env, given, operands)
	if err != nil {
		env.Errorf("%v", err)
		return 1
	}
	if q.helpFormat {
		return listFields(env.Stdout)
	}
	c, err := env.Connect()
	if err != nil {
		env.Refused("", err)
		return 1
	}
	defer c.Close()
	return q.run(env, c)
}

// listFields is --helpformat: four names a line.
func listFields(w io.Writer) int {
	for i := range fields {
		end := " "
		if i%4 == 3 || i == len(fields)-1 {
			end = "\n"
		}
		fmt.Fprintf(w, "%-19s%s", fields[i].name, end)
	}
	return 0
}

func (q *query) run(env *program.Env, c *client.Client) int {
	res, err := c.ListJobs(context.Background(), &ctldpb.ListJobsRequest{
		JobIds: q.jobs, Users: q.users, Partitions: q.partitions, States: []string{"all"}, Names: q.names, Accounts: q.accounts,
		Qos: q.qos, Nodes: q.nodes, Detail: true,
	})
	if err != nil {
		var r *client.Refusal
		if errors.As(err, &r) && strings.Contains(r.Code, "INVALID_JOB_ID") {
			res = &ctldpb.ListJobsResponse{}
		} else {
			env.Refused("", err)
			return 1
		}
	}
	jobs := slices.DeleteFunc(res.Jobs, func(j *ctldpb.Job) bool { return !q.keeps(j) })
	slices.SortStableFunc(jobs, func(a, b *ctldpb.Job) int {
		base := func(j *ctldpb.Job) uint32 { return cmp.Or(j.ArrayJobId, j.JobId) }
		return cmp.Or(cmp.Compare(base(a), base(b)), cmp.Compare(a.ArrayTaskId, b.ArrayTaskId), cmp.Compare(a.JobId, b.JobId))
	})
	out := bufio.NewWriter(env.Stdout)
	defer out.Flush()
	if q.script || q.environ {
		return q.texts(env, c, out, jobs)
	}
	if q.json {
		meta := render.NewMeta(c.Cluster(), program.SlurmVersion, append([]string{env.Name}, env.Args...))
		if err := render.WriteJSON(out, "jobs", render.NewJobsJSON(jobs, c.Cluster()), env.Now(), meta, env.Getenv("SLURM_JSON") == "compact"); err != nil {
			return 1
		}
		return 0
	}
	q.header(out)
	clock := render.Clock{Now: env.Now(), Format: env.Getenv("SLURM_TIME_FORMAT")}
	for _, j := range jobs {
		q.line(out, &record{Job: j, clock: clock, unit: q.unit}, c.Cluster())
		if q.allocations {
			continue
		}
		for _, s := range j.Steps {
			if q.wantsStep(j, s.StepId) {
				q.line(out, &record{Job: j, step: s, clock: clock, unit: q.unit}, c.Cluster())
			}
		}
	}
	return 0
}

// keeps applies the window of time and the states.
func (q *query) keeps(j *ctldpb.Job) bool {
	base := render.BaseState(j)
	if len(q.states) > 0 {
		long, _ := render.State(j)
		if !slices.Contains(q.states, base.String()) && !slices.Contains(q.states, long) {
			return false
		}
	}
	if len(q.jobs) > 0 && !q.hasWindow {
		return true
	}
	begin := max(j.SubmitMs, j.EligibleMs)
	if base != job.Pending && j.StartMs > 0 {
		begin = min(begin, j.StartMs)
	}
	if begin > q.end.UnixMilli() {
		return false
	}
	return !base.Ended() || j.EndMs == 0 || j.EndMs >= q.start.UnixMilli()
}

func (q *query) wantsStep(j *ctldpb.Job, step string) bool {
	if len(q.steps) == 0 {
		return true
	}
	for _, want := range q.steps {
		if base, s, _ := strings.Cut(want, "."); base == fmt.Sprint(j.JobId) || base == render.JobID(j, 0) {
			return s == step
		}
	}
	return true
}

func (q *query) header(w io.Writer) {
	if q.noHeader {
		return
	}
	var names, dashes []string
	for _, c := range q.cols {
		if q.parsable {
			names = append(names, c.name)
			continue
		}
		n := max(c.width, -c.width)
		names = append(names, pad(c.name, c.width))
		dashes = append(dashes, strings.Repeat("-", n))
	}
	q.write(w, names)
	if !q.parsable {
		q.write(w, dashes)
	}
}

func (q *query) line(w io.Writer, r *record, cluster string) {
	var cells []string
	for _, c := range q.cols {
		v := render.Clean(c.value(r))
		if c.name == "Cluster" {
			v = cluster
		}
		if !q.parsable {
			v = pad(v, c.width)
		}
		cells = append(cells, v)
	}
	q.write(w, cells)
}

// write ends each cell with a blank, or puts the delimiter between the cells and, with -p, after the last.
func (q *query) write(w io.Writer, cells []string) {
	if !q.parsable {
		fmt.Fprintln(w, strings.Join(cells, " ")+" ")
		return
	}
	s := strings.Join(cells, q.delimiter)
	if q.trailing {
		s += q.delimiter
	}
	fmt.Fprintln(w, s)
}

// pad fits s into a column; what is cut ends in a plus sign.
func pad(s string, width int) string {
	n := max(width, -width)
	if utf8.RuneCountInString(s) > n {
		return string([]rune(s)[:n-1]) + "+"
	}
	return render.Pad(s, n, width > 0)
}

// midnight begins the day of t.
func midnight(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, t.Location())
}
