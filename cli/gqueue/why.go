package gqueue

import (
	"context"
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// explain prints one job's reason in words.
func explain(env *program.Env, c *client.Client, q *query) int {
	res, err := c.ListJobs(context.Background(), &ctldpb.ListJobsRequest{JobIds: []string{render.PlainID(q.why)}, States: []string{"all"}, Detail: true})
	if err != nil {
		loadError(env, err)
		return 1
	}
	if len(res.Jobs) == 0 {
		fmt.Fprintf(env.Stderr, "slurm_load_jobs error: %s\n", invalidID)
		return 1
	}
	clock := render.Clock{Now: env.Now(), Format: env.Getenv("SLURM_TIME_FORMAT")}
	answers := explanations(c, render.PlainID(q.why))
	for _, j := range res.Jobs {
		e := answers[render.JobID(j, 0)]
		if e == nil {
			e = answers[fmt.Sprint(j.JobId)]
		}
		state, _ := render.State(j)
		reason, detail := render.Or(j.Reason, "None"), j.ReasonDetail
		if e != nil {
			reason, detail = render.Or(e.Reason, reason), render.Or(e.Detail, detail)
		}
		fmt.Fprintf(env.Stdout, "%s %s (%s)", render.JobID(j, q.bitmap), state, reason)
		if detail != "" {
			fmt.Fprintf(env.Stdout, ": %s", render.Clean(detail))
		}
		fmt.Fprintln(env.Stdout)
		switch {
		case render.BaseState(j) != job.Pending:
		case e != nil:
			for _, line := range render.Explain(e, clock) {
				fmt.Fprintln(env.Stdout, line)
			}
		default:
			asksFor(env, j, clock)
		}
	}
	return 0
}

// explanations asks the planner. A controller of before it has none.
func explanations(c *client.Client, id string) map[string]*ctldpb.JobExplanation {
	var res *ctldpb.ExplainJobResponse
	err := c.Do(context.Background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ExplainJob(ctx, &ctldpb.ExplainJobRequest{JobId: id})
		return err
	})
	if err != nil {
		return nil
	}
	m := map[string]*ctldpb.JobExplanation{}
	for _, e := range res.Jobs {
		m[e.JobId] = e
		if base, _, ok := strings.Cut(e.JobId, "_["); ok {
			m[base] = e
		}
	}
	return m
}

// asksFor prints what is known of a waiting job without the planner.
func asksFor(env *program.Env, j *ctldpb.Job, clock render.Clock) {
	fmt.Fprintf(env.Stdout, "  asks for: %d node(s), %d CPU(s), memory %s, %s, time %s, partition %s\n", render.Nodes(j), render.CPUs(j),
		memoryOf(j), render.Or(render.TresPerNode(j.Spec), "no generic resource"), render.Limit(j.TimeLimitMs), j.Partition)
	from := "from " + clock.Time(j.EligibleMs, "a time that is not known yet")
	if dep := j.Spec.GetDependency(); j.EligibleMs == 0 && dep != "" {
		from = "after " + render.Clean(dep)
	}
	fmt.Fprintf(env.Stdout, "  submitted %s, may start %s, expected to start %s\n", clock.Time(j.SubmitMs, "unknown"),
		from, clock.Time(j.StartMs, "not known yet"))
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
