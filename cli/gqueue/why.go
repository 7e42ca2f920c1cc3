package gqueue

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// people writes the table for a terminal: bold header, colour by state, and below each waiting job the
// sentence that says why it waits.
func people(out io.Writer, cols []render.Column, text [][]string, rows []*row, q *query) error {
	// The whole table is laid out at once, so that a widest column stays one width.
	var b strings.Builder
	if err := render.Table(&b, cols, text); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != len(text) { // a value held a line break
		_, err := io.WriteString(out, b.String())
		return err
	}
	if !q.noHeader && len(lines) > 0 {
		fmt.Fprintln(out, render.Bold(lines[0]))
		lines = lines[1:]
	}
	for i, line := range lines {
		fmt.Fprintln(out, render.Paint(render.StateColour(rows[i].Job), line))
		if rows[i].ReasonDetail != "" && render.BaseState(rows[i].Job) == job.Pending && q.format == "" && q.longFormat == "" {
			fmt.Fprintln(out, render.Dim("                   "+render.Clean(rows[i].ReasonDetail)))
		}
	}
	return nil
}

// explain prints one job's reason in words.
func explain(env *program.Env, c *client.Client, q *query) int {
	res, err := c.ListJobs(context.Background(), &ctldpb.ListJobsRequest{JobIds: []string{q.why}, States: []string{"all"}, Detail: true})
	if err != nil {
		loadError(env, err)
		return 1
	}
	if len(res.Jobs) == 0 {
		fmt.Fprintf(env.Stderr, "slurm_load_jobs error: %s\n", invalidID)
		return 1
	}
	clock := render.Clock{Now: env.Now(), Format: env.Getenv("SLURM_TIME_FORMAT")}
	for _, j := range res.Jobs {
		state, _ := render.State(j)
		fmt.Fprintf(env.Stdout, "%s %s (%s)", render.JobID(j, q.bitmap), state, render.Or(j.Reason, "None"))
		if j.ReasonDetail != "" {
			fmt.Fprintf(env.Stdout, ": %s", j.ReasonDetail)
		}
		fmt.Fprintln(env.Stdout)
		if render.BaseState(j) != job.Pending {
			continue
		}
		fmt.Fprintf(env.Stdout, "  asks for: %d node(s), %d CPU(s), memory %s, %s, time %s, partition %s\n", render.Nodes(j), render.CPUs(j),
			memoryOf(j), render.Or(render.TresPerNode(j.Spec), "no generic resource"), render.Limit(j.TimeLimitMs), j.Partition)
		from := "from " + clock.Time(j.EligibleMs, "a time that is not known yet")
		if dep := j.Spec.GetDependency(); j.EligibleMs == 0 && dep != "" {
			from = "after " + render.Clean(dep)
		}
		fmt.Fprintf(env.Stdout, "  submitted %s, may start %s, expected to start %s\n", clock.Time(j.SubmitMs, "unknown"),
			from, clock.Time(j.StartMs, "not known yet"))
	}
	return 0
}

// memoryOf is the memory that a waiting job will have: what it asks for, else what its partition gives.
func memoryOf(j *ctldpb.Job) string {
	switch {
	case j.Spec.GetMemPerCpu() > 0:
		return render.MinMemory(j.Spec) + " for each CPU"
	case j.Spec.GetMemPerNode() > 0:
		return render.MinMemory(j.Spec)
	case j.MemTotal > 0:
		return job.FormatMem(j.MemTotal)
	}
	return "all of the node's"
}
