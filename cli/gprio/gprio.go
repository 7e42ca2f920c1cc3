// Package gprio shows what the priority of each waiting job is made of: sprio's options and columns.
package gprio

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// Manual describes the command.
func Manual() *getopt.Manual {
	opts := []getopt.Option{
		{Long: "clusters", Short: 'M', Arg: getopt.RequiredArg, Value: "NAME", Help: "only this cluster's name", Alias: []string{"cluster"}},
		{Long: "federation", Help: ""},
		{Long: "format", Short: 'o', Arg: getopt.RequiredArg, Value: "FORMAT", Help: `columns by letter, as "%.15i %.10Y %.10A"`},
		{Long: "jobs", Short: 'j', Arg: getopt.OptionalArg, Value: "LIST", Help: "only these jobs"},
		{Long: "json", Arg: getopt.OptionalArg, Value: "PARSER", Help: "everything, as JSON"},
		{Long: "local", Help: ""},
		{Long: "long", Short: 'l', Help: "all terms, weighted or not"},
		{Long: "noheader", Short: 'h', Help: "no line with names"},
		{Long: "norm", Short: 'n', Help: "the factors from 0 to 1, not weighted"},
		{Long: "partition", Short: 'p', Arg: getopt.RequiredArg, Value: "LIST", Help: "only these partitions"},
		{Long: "sibling", Help: ""},
		{Long: "sort", Short: 'S', Arg: getopt.RequiredArg, Value: "LETTERS", Help: "order, as -Y,i; the default is i"},
		{Long: "stale", Help: "show what the nearest controller knows"},
		{Long: "user", Short: 'u', Arg: getopt.RequiredArg, Value: "LIST", Help: "only these users", Alias: []string{"users"}},
		{Long: "verbose", Short: 'v', Help: ""},
		{Long: "weights", Short: 'w', Help: "the weights, no jobs"},
		{Long: "yaml", Arg: getopt.OptionalArg, Value: "PARSER", Help: "not available; --json is"},
	}
	common := program.CommonOptions()
	common[0].Short = 0
	return &getopt.Manual{
		Name: "gprio", Slurm: "sprio", Summary: "show what the priority of each waiting job is made of",
		Synopsis: []string{"[OPTIONS]"},
		Description: []string{
			"Shows each waiting job, in each of its partitions, with the terms whose sum is its priority: factors from 0 to 1 times the weights PriorityWeightAge, Assoc, FairShare, JobSize, Partition, QOS and TRES of grid.conf. Terms without a weight are left out; -l shows all.",
			"Under the policy expansion the order comes from the expansion factor, wait plus limit divided by limit, and jobs that waited past the bound go first; under fcfs from the submission. PLACE is the job's place in line of its partition.",
		},
		Options: append(opts, common...),
		Sections: []getopt.Section{
			{Title: "FORMATS", Items: []getopt.Item{{Text: "As of gqueue -o. Capital letters are weighted terms, small ones the factors. Letters: " + letters()}}},
			{Title: "ENVIRONMENT", Items: []getopt.Item{{Text: "SPRIO_FORMAT stands for --format."}}},
		},
		Example: "gprio -l -u bob",
		Exit:    []string{"0 when the list was shown, even when it is empty; 1 otherwise."},
		SeeAlso: []string{"gshare(1)", "gqueue(1)", "grid.conf(5)"},
	}
}

// query is what was asked for.
type query struct {
	jobs, users, partitions    []string
	format, sort               string
	long, normal, weights, own bool
	noHeader, json, stale      bool
}

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
	q := &query{format: env.Getenv("SPRIO_FORMAT"), own: env.ByGName()}
	err = program.CheckText(given, operands)
	for _, g := range given {
		if err == nil {
			err = q.apply(env, g)
		}
		if g.Option.Long == "jobs" && !g.HasValue && len(operands) > 0 {
			q.jobs, operands = append(q.jobs, commas(operands[0])...), operands[1:]
		}
	}
	if err == nil && len(operands) > 0 {
		err = fmt.Errorf("Unrecognized option: %s", operands[0])
	}
	if err == nil {
		_, _, err = view(q.format)
	}
	if err != nil {
		env.Errorf("%v", err)
		return 1
	}
	return q.show(env)
}

func (q *query) apply(env *program.Env, g getopt.Given) error {
	switch g.Option.Long {
	case "format":
		q.format = g.Value
	case "jobs":
		q.jobs = append(q.jobs, commas(g.Value)...)
	case "json":
		q.json = true
	case "long":
		q.long = true
	case "noheader":
		q.noHeader = true
	case "norm":
		q.normal = true
	case "partition":
		q.partitions = append(q.partitions, commas(g.Value)...)
	case "sort":
		q.sort = g.Value
	case "stale":
		q.stale = true
	case "user":
		for _, u := range commas(g.Value) {
			id, ok := program.UserID(u)
			if !ok {
				return fmt.Errorf("Invalid user: %s", u)
			}
			q.users = append(q.users, fmt.Sprint(id))
		}
	case "weights":
		q.weights = true
	case "yaml":
		return program.NoYAML()
	}
	return nil
}

// commas cuts a list; commas in brackets stay.
func commas(s string) []string {
	depth := 0
	return strings.FieldsFunc(s, func(r rune) bool {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		return (r == ',' || r == ' ') && depth <= 0
	})
}

func joinSorted(list []string) string {
	slices.Sort(list)
	return strings.Join(list, ",")
}

// view reads a format.
func view(format string) ([]render.Column, []*column, error) {
	cols, err := render.ParseFormat(format)
	if err != nil {
		return nil, nil, err
	}
	shown := make([]*column, len(cols))
	for i, c := range cols {
		if shown[i] = byLetter(c.Key); shown[i] == nil && c.Key != "" {
			return nil, nil, fmt.Errorf("Invalid job format specification: %s\nthe letters are %s", c.Key, letters())
		}
	}
	return cols, shown, nil
}

func (q *query) show(env *program.Env) int {
	c, err := env.Connect()
	if err != nil {
		env.Refused("", err)
		return 1
	}
	defer c.Close()
	req := &ctldpb.ListPrioritiesRequest{Read: &ctldpb.ReadOptions{Stale: q.stale}, JobIds: q.jobs, Users: q.users, Partitions: q.partitions}
	var res *ctldpb.ListPrioritiesResponse
	err = c.Do(context.Background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListPriorities(ctx, req)
		return err
	})
	if err != nil {
		env.Refused("", err)
		return 1
	}
	if age := res.Info.GetAgeMs(); q.stale && age > 0 {
		env.Infof("this answer of %s is %d ms old", res.Info.GetController(), age)
	}
	out := bufio.NewWriter(env.Stdout)
	defer out.Flush()
	q.order(res.Rows)
	if q.json {
		meta := render.NewMeta(c.Cluster(), program.SlurmVersion, append([]string{env.Name}, env.Args...))
		if err := render.WriteJSON(out, "jobs", rowsJSON(res), env.Now(), meta, env.Getenv("SLURM_JSON") == "compact"); err != nil {
			env.Errorf("%v", err)
			return 1
		}
		return 0
	}
	if len(res.Rows) == 0 && len(q.jobs)+len(q.users) > 0 && !q.weights {
		fmt.Fprintln(out, "Unable to find jobs matching user/id(s) specified")
		return 0
	}
	return q.table(out, res)
}

func (q *query) table(out *bufio.Writer, res *ctldpb.ListPrioritiesResponse) int {
	format := q.format
	if format == "" {
		format = ready(q, res)
	}
	cols, shown, err := view(format)
	if err != nil { // it was read before
		return 1
	}
	var lines [][]string
	if !q.noHeader {
		lines = append(lines, cells(cols, shown, func(c *column) string { return c.header }))
	}
	if q.weights {
		lines = append(lines, cells(cols, shown, func(c *column) string { return weightText(res.Weights, c) }))
	} else {
		for _, r := range res.Rows {
			lines = append(lines, cells(cols, shown, func(c *column) string { return c.value(r) }))
		}
	}
	if render.Table(out, cols, lines) != nil {
		return 1
	}
	return 0
}

// order sorts by letters; without any the controller's order, which is by job, stays.
func (q *query) order(rows []*row) {
	if q.sort == "" {
		return
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		for part := range strings.SplitSeq(q.sort, ",") {
			part = strings.TrimSpace(part)
			c := byLetter(strings.TrimLeft(part, "+-"))
			if c == nil {
				continue
			}
			var r int
			if c.number != nil {
				r = cmp.Compare(c.number(a), c.number(b))
			} else {
				r = cmp.Or(cmp.Compare(len(c.value(a)), len(c.value(b)))*idOnly(c), strings.Compare(c.value(a), c.value(b)))
			}
			if strings.HasPrefix(part, "-") {
				r = -r
			}
			if r != 0 {
				return r
			}
		}
		return 0
	})
}

// idOnly: ids are compared as numbers are, the shorter first.
func idOnly(c *column) int {
	if c.letter == 'i' {
		return 1
	}
	return 0
}

// rowJSON is one job in one partition.
type rowJSON struct {
	JobID     string             `json:"job_id"`
	Partition string             `json:"partition"`
	User      string             `json:"user_name"`
	Account   string             `json:"account"`
	QOS       string             `json:"qos"`
	Priority  int64              `json:"priority"`
	Policy    string             `json:"policy"`
	Place     uint64             `json:"place"`
	Starved   bool               `json:"starved"`
	Fixed     bool               `json:"fixed"`
	Expansion float64            `json:"expansion"`
	Nice      int64              `json:"nice"`
	Site      int64              `json:"site"`
	TRES      string             `json:"tres"`
	Weighted  map[string]float64 `json:"weighted"`
	Factors   map[string]float64 `json:"normalized"`
}

func rowsJSON(res *ctldpb.ListPrioritiesResponse) []rowJSON {
	list := make([]rowJSON, 0, len(res.Rows))
	for _, r := range res.Rows {
		j := rowJSON{JobID: r.JobId, Partition: r.Partition, User: r.User, Account: r.Account, QOS: r.Qos, Priority: r.Priority,
			Policy: cmp.Or(r.Policy, res.Policy), Place: r.Place, Starved: r.Starved, Fixed: r.Fixed, Expansion: finite(r.Expansion), Nice: r.Nice,
			Site: r.Site, TRES: r.TresTerms, Weighted: map[string]float64{}, Factors: map[string]float64{}}
		for i := range columns {
			if c := &columns[i]; c.weight != "" && c.number != nil {
				if 'a' <= c.letter && c.letter <= 'z' {
					j.Factors[c.weight] = finite(c.number(r))
				} else {
					j.Weighted[c.weight] = finite(c.number(r))
				}
			}
		}
		list = append(list, j)
	}
	return list
}

// finite: JSON has no word for what is no number.
func finite(v float64) float64 {
	if v-v != 0 {
		return 0
	}
	return v
}
