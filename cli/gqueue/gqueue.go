// Package gqueue shows the queue: squeue's options, columns and texts.
package gqueue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

const invalidID = "Invalid job id specified"

// Main runs the command and gives its exit code.
func Main(env *program.Env) int {
	m := Manual()
	given, operands, err := getopt.Parse(m.Options, env.Args, getopt.Permute)
	if err != nil {
		bad := env.BadUsage(err)
		return min(bad, 1)
	}
	if env.Common(m, given) {
		return 0
	}
	if err := program.CheckText(given, operands); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	var q query
	environment(env, &q)
	for _, g := range given {
		if err := q.apply(g); err != nil {
			env.Errorf("%v", err)
			return 1
		}
	}
	operands = q.takeOperand(given, operands)
	if len(operands) > 0 {
		env.Errorf("Unrecognized option: %s", operands[0])
		env.Errorf(`Try "%s --help" for more information`, env.Name)
		return 1
	}
	if err := q.checkStates(); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	q.checkUsers(env)
	c, err := env.Connect()
	if err != nil {
		env.Refused("", err)
		return 1
	}
	defer c.Close()
	if q.why != "" {
		return explain(env, c, &q)
	}
	for {
		code := show(env, c, &q)
		if q.iterate == 0 || code != 0 || env.OutputError() != nil {
			return code
		}
		env.Sleep(q.iterate)
	}
}

// takeOperand gives -j and -s, whose values are optional, the word that follows: "squeue -j 12".
func (q *query) takeOperand(given []getopt.Given, operands []string) []string {
	for _, g := range given {
		if g.HasValue || len(operands) == 0 {
			continue
		}
		switch g.Option.Long {
		case "jobs":
			q.jobs, operands = append(q.jobs, split(operands[0])...), operands[1:]
		case "steps":
			q.stepIDs, operands = append(q.stepIDs, split(operands[0])...), operands[1:]
		}
	}
	return operands
}

// checkUsers resolves names and complains about those that nobody has, as squeue does, with success.
func (q *query) checkUsers(env *program.Env) {
	if q.me {
		q.users = []string{fmt.Sprint(env.UID)}
		return
	}
	var known []string
	for _, u := range q.users {
		if id, ok := program.UserID(u); ok {
			known = append(known, fmt.Sprint(id))
		} else {
			env.Errorf("Invalid user: %s", u)
			q.badUsers = append(q.badUsers, u)
		}
	}
	q.users = known
}

func (q *query) request() *ctldpb.ListJobsRequest {
	req := &ctldpb.ListJobsRequest{
		Read: &ctldpb.ReadOptions{Stale: q.stale}, JobIds: slices.Clone(q.jobs), Users: q.users, Partitions: q.partitions,
		States: q.states, Names: q.names, Accounts: q.accounts, Qos: q.qos, Nodes: q.nodes, ArrayTasks: q.array,
		Detail: q.json || q.steps,
	}
	for i, id := range req.JobIds {
		req.JobIds[i] = render.PlainID(id)
	}
	if q.start && len(q.states) == 0 {
		req.States = []string{"PENDING"}
	}
	if q.steps {
		req.JobIds = nil
		for _, id := range q.stepIDs {
			base, _, _ := strings.Cut(id, ".")
			req.JobIds = append(req.JobIds, base)
		}
	}
	return req
}

func show(env *program.Env, c *client.Client, q *query) int {
	out := bufio.NewWriter(env.Stdout)
	defer out.Flush()
	l, err := newLister(env, q, out)
	if err != nil {
		env.Errorf("%v", err)
		return 1
	}
	var info *ctldpb.ReadInfo
	var unknown []string
	if len(q.users) > 0 || len(q.badUsers) == 0 {
		if info, unknown, err = load(c, q.request(), l); err == nil && len(q.jobs) > 0 {
			err = components(c, q.request(), l)
		}
		if err != nil {
			out.Flush()
			loadError(env, err)
			return 1
		}
	}
	if len(unknown) > 0 && len(q.jobs)+len(q.stepIDs) == 1 {
		fmt.Fprintf(env.Stderr, "slurm_load_jobs error: %s\n", invalidID)
		return 1
	}
	if age := info.GetAgeMs(); q.stale && age > 0 {
		env.Infof("this answer of %s is %d ms old", info.GetController(), age)
	}
	finish := l.finish
	if q.json {
		finish = func() error { return l.writeJSON(out, c.Cluster()) }
	}
	if err := finish(); err != nil {
		if env.OutputError() == nil {
			env.Errorf("%v", err)
		}
		return 1
	}
	return 0
}

// load gives the jobs to the lister as they come.
func load(c *client.Client, req *ctldpb.ListJobsRequest, l *lister) (info *ctldpb.ReadInfo, unknown []string, err error) {
	begin := func() error {
		unknown = nil
		return l.begin()
	}
	err = c.StreamJobs(context.Background(), req, begin, func(page *ctldpb.ListJobsResponse) error {
		if page.Info != nil {
			info = page.Info
		}
		unknown = append(unknown, page.UnknownIds...)
		for _, j := range page.Jobs {
			l.seen(j)
			if err := l.add(j); err != nil {
				return err
			}
		}
		return nil
	})
	return info, unknown, err
}

// components asks for what else belongs to the heterogeneous jobs that were named by their first component's id.
func components(c *client.Client, req *ctldpb.ListJobsRequest, l *lister) error {
	more := l.missing(req.JobIds)
	if len(more) == 0 {
		return nil
	}
	req.JobIds = more
	res, err := c.ListJobs(context.Background(), req)
	if err != nil {
		return err
	}
	for _, j := range res.Jobs {
		if err := l.add(j); err != nil {
			return err
		}
	}
	return nil
}

// loadError prints in squeue's form, which programs match at the start of the line.
func loadError(env *program.Env, err error) {
	var r *client.Refusal
	if !errors.As(err, &r) {
		fmt.Fprintf(env.Stderr, "slurm_load_jobs error: %s\n", render.Clean(err.Error()))
		return
	}
	fmt.Fprintf(env.Stderr, "slurm_load_jobs error: %s\n", render.Clean(r.Text))
	if r.Why != "" {
		env.Errorf("%s", r.Why)
	}
}

// keeps applies the filters that a controller does not know.
func (q *query) keeps(j *ctldpb.Job) bool {
	has := func(list []string, value string) bool {
		if len(list) == 0 {
			return true
		}
		for v := range strings.SplitSeq(value, ",") {
			if slices.Contains(list, v) {
				return true
			}
		}
		return false
	}
	return has(q.reservation, render.Reservation(j)) && hasLicense(q.licenses, render.Licenses(j))
}

// hasLicense: any of the licenses asked for, however many of it.
func hasLicense(wanted []string, licenses string) bool {
	if len(wanted) == 0 {
		return true
	}
	for l := range strings.SplitSeq(licenses, ",") {
		name, _, _ := strings.Cut(l, ":")
		if slices.Contains(wanted, name) || slices.Contains(wanted, l) {
			return true
		}
	}
	return false
}

// view picks the format and the set of columns.
func (q *query) view(own bool) (cols []render.Column, sets [][]column, sorting string, err error) {
	sets, sorting = [][]column{columns, namedColumns}, q.sort
	format := q.format
	if format == "" {
		switch {
		case q.steps:
			format = stepFormat
		case q.start:
			format = startFormat
		case q.long:
			format = longFormat
		default:
			format = defaultFormat
		}
	}
	if q.steps {
		sets = [][]column{stepColumns}
	}
	if sorting == "" {
		sorting = defaultSort
		if q.start {
			sorting = "S"
		} else if q.steps {
			sorting = "P,i"
		}
	}
	if q.longFormat != "" && q.format == "" {
		cols, err = render.ParseLong(q.longFormat)
		return cols, sets, sorting, err
	}
	cols, err = render.ParseFormat(format)
	if own && q.start && !q.steps && q.format == "" && err == nil {
		cols = withKind(cols)
	}
	return expandAll(cols, sets[0]), sets, sorting, err
}

// withKind puts behind the start of gqueue --start whether it is promised; squeue's columns stay as they are.
func withKind(cols []render.Column) []render.Column {
	i := slices.IndexFunc(cols, func(c render.Column) bool { return c.Key == "S" })
	return slices.Insert(cols, i+1, render.Column{Before: " ", Key: "startkind", Width: len("START_KIND")})
}

// expandAll replaces %all by every column, set apart by bars.
func expandAll(cols []render.Column, set []column) []render.Column {
	var out []render.Column
	for _, c := range cols {
		if c.Key != "all" {
			out = append(out, c)
			continue
		}
		for i := range set {
			one := render.Column{Key: string(set[i].letter)}
			if i > 0 {
				one.Before = "|"
			} else {
				one.Before = c.Before
			}
			if i == len(set)-1 {
				one.After = c.After
			}
			out = append(out, one)
		}
	}
	return out
}

func (q *query) wantsStep(j *ctldpb.Job, s *ctldpb.Step) bool {
	if len(q.stepIDs) == 0 {
		return true
	}
	for _, id := range q.stepIDs {
		base, step, has := strings.Cut(id, ".")
		if (base == fmt.Sprint(j.JobId) || base == render.JobID(j, 0) || base == fmt.Sprint(j.ArrayJobId)) && (!has || step == s.StepId) {
			return true
		}
	}
	return false
}
