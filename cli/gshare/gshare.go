// Package gshare shows the shares of accounts and users, what they used, and the fair-share factor: sshare's columns.
package gshare

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

const (
	defaultFields = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
	longFields    = "Account,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS,GrpTRESMins,TRESRunMins"
)

// Manual describes the command.
func Manual() *getopt.Manual {
	opts := []getopt.Option{
		{Long: "accounts", Short: 'A', Arg: getopt.RequiredArg, Value: "LIST", Help: "only these accounts", Alias: []string{"account"}},
		{Long: "all", Short: 'a', Help: "all users; else one's own associations"},
		{Long: "clusters", Short: 'M', Arg: getopt.RequiredArg, Value: "NAME", Help: "only this cluster's name", Alias: []string{"cluster"}},
		{Long: "format", Short: 'o', Arg: getopt.RequiredArg, Value: "LIST", Help: "fields, as Account%20,User,FairShare"},
		{Long: "helpformat", Short: 'e', Help: "list the fields"},
		{Long: "json", Arg: getopt.OptionalArg, Value: "PARSER", Help: "everything, as JSON"},
		{Long: "long", Short: 'l', Help: "more columns"},
		{Long: "noheader", Short: 'n', Help: "no line with names", Alias: []string{"noheading"}},
		{Long: "Partition", Short: 'm', Help: "a column for the partition", Alias: []string{"partition"}},
		{Long: "parsable", Short: 'p', Help: "bars between cells and at the end"},
		{Long: "parsable2", Short: 'P', Help: "bars between cells only"},
		{Long: "stale", Help: "show what the nearest controller knows"},
		{Long: "user", Short: 'u', Arg: getopt.RequiredArg, Value: "LIST", Help: "only these users; accounts are shown too", Alias: []string{"users", "uid"}},
		{Long: "Users", Short: 'U', Help: "only users, no accounts"},
		{Long: "verbose", Short: 'v', Help: ""},
		{Long: "yaml", Arg: getopt.OptionalArg, Value: "PARSER", Help: "not available; --json is"},
	}
	return &getopt.Manual{
		Name: "gshare", Slurm: "sshare", Summary: "show shares, usage and fair-share factors",
		Synopsis: []string{"[OPTIONS]"},
		Description: []string{
			"Shows the tree of accounts, each name indented below its parent's, with the shares given, the usage so far, and what fair share makes of it.",
			"RawUsage is in billing seconds and halves every PriorityDecayHalfLife. NormShares is the part among its siblings, EffectvUsage the part of the parent's usage, LevelFS the one divided by the other; inf means that nothing was used. FairShare is the factor from 0 to 1 that priority takes: users are ranked through the tree, the best one has 1.",
			"A share of parent takes part in that of the account above.",
		},
		Options: append(opts, program.CommonOptions()...),
		Sections: []getopt.Section{
			{Title: "FIELDS", Items: []getopt.Item{{Text: "In any case, each with %WIDTH, or %-WIDTH for the left: " + fieldNames() + "."}}},
		},
		Example: "gshare -a -A physics",
		Exit:    []string{"0 when the list was shown, even when it is empty; 1 otherwise."},
		SeeAlso: []string{"gprio(1)", "gacctmgr(1)", "grid.conf(5)"},
	}
}

// field is one column; what has no meaning for a row is blank.
type field struct {
	name  string
	width int
	value func(*ctldpb.ShareRow) string
}

// ratio prints a number from 0 to 1 or more; NaN is blank.
func ratio(get func(*ctldpb.ShareRow) float64) func(*ctldpb.ShareRow) string {
	return func(r *ctldpb.ShareRow) string {
		v := get(r)
		switch {
		case math.IsNaN(v):
			return ""
		case math.IsInf(v, 0):
			return "inf"
		}
		return fmt.Sprintf("%.6f", v)
	}
}

var fields = []field{
	{"Account", -20, func(r *ctldpb.ShareRow) string { return strings.Repeat(" ", int(r.Depth)) + r.Account }},
	{"User", 10, func(r *ctldpb.ShareRow) string { return r.User }},
	{"Partition", 10, func(r *ctldpb.ShareRow) string { return r.Partition }},
	{"RawShares", 10, rawShares},
	{"NormShares", 11, ratio((*ctldpb.ShareRow).GetNormShares)},
	{"RawUsage", 11, func(r *ctldpb.ShareRow) string { return fmt.Sprint(r.RawUsage) }},
	{"NormUsage", 11, ratio((*ctldpb.ShareRow).GetNormUsage)},
	{"EffectvUsage", 13, ratio((*ctldpb.ShareRow).GetEffectiveUsage)},
	{"FairShare", 10, ratio((*ctldpb.ShareRow).GetFairShare)},
	{"LevelFS", 10, ratio((*ctldpb.ShareRow).GetLevelFs)},
	{"GrpTRESMins", 30, func(r *ctldpb.ShareRow) string { return r.GrpTresMins }},
	{"TRESRunMins", 30, func(r *ctldpb.ShareRow) string { return r.TresRunMins }},
}

// rawShares: root has none, "parent" takes part in the account's.
func rawShares(r *ctldpb.ShareRow) string {
	switch {
	case r.Depth == 0 && !r.IsUser && r.Account == "root":
		return ""
	case r.RawShares < 0:
		return "parent"
	}
	return fmt.Sprint(r.RawShares)
}

func fieldNames() string {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

// query is what was asked for.
type query struct {
	accounts, users              []string
	all, long, usersOnly, byPart bool
	noHeader, parsable, trailing bool
	json, stale, helpFormat      bool
	format                       string
	shown                        []*field
	cols                         []render.ReportColumn
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
	q := &query{}
	err = program.CheckText(given, operands)
	for _, g := range given {
		if err == nil {
			err = q.apply(g)
		}
	}
	if err == nil && len(operands) > 0 {
		err = fmt.Errorf("Unrecognized option: %s", operands[0])
	}
	if err == nil {
		err = q.view()
	}
	if err != nil {
		env.Errorf("%v", err)
		return 1
	}
	if q.helpFormat {
		fmt.Fprintln(env.Stdout, fieldNames())
		return 0
	}
	return q.show(env)
}

func (q *query) apply(g getopt.Given) error {
	switch g.Option.Long {
	case "accounts":
		q.accounts = append(q.accounts, commas(g.Value)...)
	case "all":
		q.all = true
	case "format":
		q.format = g.Value
	case "helpformat":
		q.helpFormat = true
	case "json":
		q.json = true
	case "long":
		q.long = true
	case "noheader":
		q.noHeader = true
	case "Partition":
		q.byPart = true
	case "parsable":
		q.parsable, q.trailing = true, true
	case "parsable2":
		q.parsable, q.trailing = true, false
	case "stale":
		q.stale = true
	case "user":
		for _, u := range commas(g.Value) {
			if strings.Trim(u, "0123456789") == "" {
				if id, ok := program.UserID(u); ok {
					u = program.UserName(id)
				}
			}
			q.users = append(q.users, u)
		}
	case "Users":
		q.usersOnly = true
	case "yaml":
		return program.NoYAML()
	}
	return nil
}

func commas(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// view picks the columns.
func (q *query) view() error {
	format := q.format
	if format == "" {
		if format = defaultFields; q.long {
			format = longFields
		}
		if q.byPart {
			format = strings.Replace(format, "User,", "User,Partition,", 1)
		}
	}
	for word := range strings.SplitSeq(format, ",") {
		if strings.TrimSpace(word) == "" {
			continue
		}
		name, width, err := render.FieldWidth(word, 0)
		if err != nil {
			return err
		}
		low := strings.ToLower(name)
		i := slices.IndexFunc(fields, func(f field) bool { return strings.ToLower(f.name) == low })
		if i < 0 {
			i = slices.IndexFunc(fields, func(f field) bool { return low != "" && strings.HasPrefix(strings.ToLower(f.name), low) })
		}
		if i < 0 {
			return fmt.Errorf("Invalid field requested: %q\nknown are %s", name, fieldNames())
		}
		if width == 0 {
			width = fields[i].width
		}
		q.shown, q.cols = append(q.shown, &fields[i]), append(q.cols, render.ReportColumn{Name: fields[i].name, Width: width})
	}
	if len(q.cols) == 0 {
		return fmt.Errorf("Invalid field requested: %q\nknown are %s", format, fieldNames())
	}
	return nil
}

func (q *query) show(env *program.Env) int {
	c, err := env.Connect()
	if err != nil {
		env.Refused("", err)
		return 1
	}
	defer c.Close()
	req := &ctldpb.ListSharesRequest{Read: &ctldpb.ReadOptions{Stale: q.stale}, Accounts: q.accounts, Users: q.users, All: q.all}
	if !q.all && len(q.users) == 0 {
		req.Users = []string{program.UserName(env.UID)}
	}
	var res *ctldpb.ListSharesResponse
	err = c.Do(context.Background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListShares(ctx, req)
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
	rows := slices.DeleteFunc(res.Rows, func(r *ctldpb.ShareRow) bool { return q.usersOnly && !r.IsUser })
	if q.json {
		meta := render.NewMeta(c.Cluster(), program.SlurmVersion, append([]string{env.Name}, env.Args...))
		if err := render.WriteJSON(out, "shares", sharesJSON(rows), env.Now(), meta, env.Getenv("SLURM_JSON") == "compact"); err != nil {
			env.Errorf("%v", err)
			return 1
		}
		return 0
	}
	r := render.Report{Columns: q.cols, NoHeader: q.noHeader, Parsable: q.parsable, Trailing: q.trailing}
	r.Header(out)
	for _, row := range rows {
		cells := make([]string, len(q.shown))
		for i, f := range q.shown {
			cells[i] = f.value(row)
		}
		r.Row(out, cells)
	}
	return 0
}

// real is a number of JSON that may be missing or infinite.
type real struct {
	Set      bool    `json:"set"`
	Infinite bool    `json:"infinite"`
	Number   float64 `json:"number"`
}

func number(v float64) real {
	if math.IsNaN(v) {
		return real{}
	}
	if math.IsInf(v, 0) {
		return real{Set: true, Infinite: true}
	}
	return real{Set: true, Number: v}
}

// shareJSON is one association.
type shareJSON struct {
	Account        string `json:"account"`
	User           string `json:"user"`
	Partition      string `json:"partition"`
	Depth          uint32 `json:"depth"`
	RawShares      int64  `json:"shares"` // -1 = parent
	NormShares     real   `json:"shares_normalized"`
	RawUsage       int64  `json:"usage"` // billing seconds
	NormUsage      real   `json:"usage_normalized"`
	EffectiveUsage real   `json:"effective_usage"`
	LevelFS        real   `json:"level_fs"`
	FairShare      real   `json:"fairshare"`
	GrpTRESMins    string `json:"grp_tres_mins"`
	TRESRunMins    string `json:"tres_run_mins"`
}

func sharesJSON(rows []*ctldpb.ShareRow) []shareJSON {
	list := make([]shareJSON, 0, len(rows))
	for _, r := range rows {
		list = append(list, shareJSON{
			Account: r.Account, User: r.User, Partition: r.Partition, Depth: r.Depth, RawShares: r.RawShares, NormShares: number(r.NormShares),
			RawUsage: r.RawUsage, NormUsage: number(r.NormUsage), EffectiveUsage: number(r.EffectiveUsage), LevelFS: number(r.LevelFs),
			FairShare: number(r.FairShare), GrpTRESMins: r.GrpTresMins, TRESRunMins: r.TresRunMins,
		})
	}
	return list
}
