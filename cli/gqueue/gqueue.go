// Package gqueue shows the queue: squeue's options, columns and texts.
package gqueue

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
		Read: &ctldpb.ReadOptions{Stale: q.stale}, JobIds: q.jobs, Users: q.users, Partitions: q.partitions,
		States: q.states, Names: q.names, Accounts: q.accounts, Qos: q.qos, Nodes: q.nodes, ArrayTasks: q.array,
		Detail: q.json || q.steps,
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
	res := &ctldpb.ListJobsResponse{}
	if len(q.users) > 0 || len(q.badUsers) == 0 {
		var err error
		if res, err = c.ListJobs(context.Background(), q.request()); err != nil {
			loadError(env, err)
			return 1
		}
	}
	if len(res.UnknownIds) > 0 && len(q.jobs)+len(q.stepIDs) == 1 {
		fmt.Fprintf(env.Stderr, "slurm_load_jobs error: %s\n", invalidID)
		return 1
	}
	if age := res.Info.GetAgeMs(); q.stale && age > 0 {
		env.Infof("this answer of %s is %d ms old", res.Info.GetController(), age)
	}
	now := env.Now()
	jobs := slices.DeleteFunc(res.Jobs, func(j *ctldpb.Job) bool { return !q.keeps(j) })
	out := bufio.NewWriter(env.Stdout)
	defer out.Flush()
	if q.json {
		sorted := makeRows(env, q, jobs, now)
		for i, r := range sorted {
			jobs[i] = r.Job
		}
		meta := render.NewMeta(c.Cluster(), program.SlurmVersion, append([]string{env.Name}, env.Args...))
		if err := render.WriteJSON(out, "jobs", render.NewJobsJSON(jobs, c.Cluster()), now, meta, env.Getenv("SLURM_JSON") == "compact"); err != nil {
			return 1
		}
		return 0
	}
	if err := table(env, out, q, jobs, now); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	return 0
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
	return has(q.reservation, render.Rare(j, "reservation")) && has(q.licenses, render.Rare(j, "licenses"))
}

// view picks the format and the set of columns.
func (q *query) view() (cols []render.Column, sets [][]column, sorting string, err error) {
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
	return expandAll(cols, sets[0]), sets, sorting, err
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

func makeRows(env *program.Env, q *query, jobs []*ctldpb.Job, now time.Time) []*row {
	clock := render.Clock{Now: now, Format: env.Getenv("SLURM_TIME_FORMAT")}
	var rows []*row
	for _, j := range jobs {
		if !q.steps {
			rows = append(rows, &row{Job: j, clock: clock, bitmap: q.bitmap})
			continue
		}
		for _, s := range j.Steps {
			if s.State == "RUNNING" && q.wantsStep(j, s) {
				rows = append(rows, &row{Job: j, step: s, clock: clock, bitmap: q.bitmap})
			}
		}
	}
	_, sets, sorting, err := q.view()
	if err == nil {
		order(rows, sets, sorting)
	}
	return rows
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

// order sorts by squeue's letters; ties by id.
func order(rows []*row, sets [][]column, sorting string) {
	type key struct {
		col  *column
		down bool
	}
	var keys []key
	for part := range strings.SplitSeq(sorting, ",") {
		part = strings.TrimSpace(part)
		k := key{down: strings.HasPrefix(part, "-")}
		part = strings.TrimLeft(part, "+-#")
		if k.col = byLetter(sets[0], part); k.col == nil {
			k.col = byName(part, sets...)
		}
		if k.col != nil {
			keys = append(keys, k)
		}
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		for _, k := range keys {
			var c int
			if k.col.number != nil {
				c = cmp.Compare(k.col.number(a), k.col.number(b))
			} else {
				c = strings.Compare(k.col.value(a), k.col.value(b))
			}
			if k.down {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return cmp.Compare(idRank(a), idRank(b))
	})
}

func table(env *program.Env, out io.Writer, q *query, jobs []*ctldpb.Job, now time.Time) error {
	cols, sets, _, err := q.view()
	if err != nil {
		return err
	}
	shown := make([]*column, len(cols))
	header := make([]string, len(cols))
	for i, c := range cols {
		if q.longFormat != "" && q.format == "" {
			shown[i] = byName(c.Key, sets...)
		} else {
			shown[i] = byLetter(sets[0], c.Key)
		}
		if shown[i] == nil {
			if c.Key != "" {
				env.Errorf("Invalid job format specification: %s", c.Key)
			}
			shown[i] = &column{value: func(*row) string { return "" }}
			cols[i].Width = 0
		}
		header[i] = shown[i].header
	}
	rows := makeRows(env, q, jobs, now)
	var text [][]string
	if !q.noHeader {
		text = append(text, header)
	}
	for _, r := range rows {
		line := make([]string, len(cols))
		for i := range cols {
			line[i] = shown[i].value(r)
		}
		text = append(text, line)
	}
	if (q.long || q.iterate > 0) && !q.noHeader {
		fmt.Fprintln(out, now.Format("Mon Jan _2 15:04:05 2006"))
	}
	if !env.ByGName() || !env.StdoutTerminal {
		return render.Table(out, cols, text)
	}
	return people(out, cols, text, rows, q)
}
