// Package gcancel ends or signals jobs: scancel's options, texts and exit codes.
package gcancel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Manual describes the command.
func Manual() *getopt.Manual {
	opts := []getopt.Option{
		{Long: "account", Short: 'A', Arg: getopt.RequiredArg, Value: "NAME", Help: "only jobs of this account"},
		{Long: "batch", Short: 'b', Help: "signal the batch script only"},
		{Long: "clusters", Short: 'M', Arg: getopt.RequiredArg, Value: "NAME", Help: "only this cluster's name is taken", Alias: []string{"cluster"}},
		{Long: "ctld", Help: "kept for scripts; controllers always send the signals"},
		{Long: "full", Short: 'f', Help: "signal the batch script and all that it started"},
		{Long: "hurry", Short: 'H', Help: ""},
		{Long: "interactive", Short: 'i', Help: "ask for each job"},
		{Long: "me", Help: "only my jobs"},
		{Long: "name", Short: 'n', Arg: getopt.RequiredArg, Value: "NAME", Help: "only jobs with this name", Alias: []string{"jobname"}},
		{Long: "nodelist", Short: 'w', Arg: getopt.RequiredArg, Value: "NODES", Help: "only jobs on these nodes"},
		{Long: "partition", Short: 'p', Arg: getopt.RequiredArg, Value: "NAME", Help: "only jobs of this partition"},
		{Long: "qos", Short: 'q', Arg: getopt.RequiredArg, Value: "NAME", Help: "only jobs with this QOS"},
		{Long: "quiet", Short: 'Q', Help: "no errors about jobs that are gone"},
		{Long: "reservation", Short: 'R', Arg: getopt.RequiredArg, Value: "NAME", Help: "only jobs in this reservation"},
		{Long: "sibling", Arg: getopt.RequiredArg, Help: ""},
		{Long: "signal", Short: 's', Arg: getopt.RequiredArg, Value: "SIGNAL", Help: "send this signal instead of ending the job"},
		{Long: "state", Short: 't', Arg: getopt.RequiredArg, Value: "STATE", Help: "only jobs that are PENDING, RUNNING or SUSPENDED"},
		{Long: "user", Short: 'u', Arg: getopt.RequiredArg, Value: "USER", Help: "only jobs of this user"},
		{Long: "verbose", Short: 'v', Help: "say which jobs are ended"},
		{Long: "wckey", Arg: getopt.RequiredArg, Value: "KEY", Help: "only jobs with this key"},
	}
	common := program.CommonOptions()
	common[0].Short = 0
	return &getopt.Manual{
		Name: "gcancel", Slurm: "scancel", Summary: "end or signal jobs",
		Synopsis: []string{"[OPTIONS] JOB...", "[OPTIONS] --user=USER", "[OPTIONS] --name=NAME"},
		Description: []string{
			"Ends jobs: those that wait at once; those that run get TERM, and KILL after KillWait. JOB is 12, an array 12, a task 12_3, tasks 12_[1-5,9], or a component 12+1; a comma list is taken too.",
			"With filters, only jobs that meet all of them; without JOB, all such jobs. Jobs that ended meanwhile are passed over in silence.",
		},
		Options: append(opts, common...),
		Sections: []getopt.Section{{Title: "ENVIRONMENT", Items: []getopt.Item{{
			Text: "SCANCEL_ACCOUNT, SCANCEL_BATCH, SCANCEL_FULL, SCANCEL_INTERACTIVE, SCANCEL_NAME, SCANCEL_PARTITION, SCANCEL_QOS, SCANCEL_STATE, SCANCEL_USER, SCANCEL_VERBOSE and SCANCEL_WCKEY stand for the options of that name."}}}},
		Example: "gcancel 12_[1-5]",
		Exit:    []string{"0 when every job is ended or was already; 1 when one could not be, or nothing says which jobs are meant."},
		SeeAlso: []string{"gqueue(1)", "gsub(1)"},
	}
}

// call is one call of the command.
type call struct {
	env                         *program.Env
	filter                      ctldpb.JobFilter
	signal                      string
	batch, full                 bool
	interactive, quiet, verbose bool
}

// variables gives the options that stand in the environment.
var variables = []struct{ env, option string }{
	{"ACCOUNT", "account"}, {"BATCH", "batch"}, {"FULL", "full"}, {"INTERACTIVE", "interactive"}, {"NAME", "name"}, {"PARTITION", "partition"},
	{"QOS", "qos"}, {"STATE", "state"}, {"USER", "user"}, {"VERBOSE", "verbose"}, {"WCKEY", "wckey"},
}

// Main runs the command and gives its exit code.
func Main(env *program.Env) int {
	m := Manual()
	given, ids, err := getopt.Parse(m.Options, env.Args, getopt.Permute)
	if err != nil {
		env.BadUsage(err)
		return 1
	}
	if env.Common(m, given) {
		return 0
	}
	if err := program.CheckText(given, ids); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	c := &call{env: env}
	for _, v := range variables {
		if value, ok := env.Lookup("SCANCEL_" + v.env); ok && value != "" {
			given = append([]getopt.Given{{Option: getopt.Lookup(m.Options, v.option), Value: value, HasValue: true}}, given...)
		}
	}
	for _, g := range given {
		if err := c.apply(g); err != nil {
			env.Errorf("%v", err)
			return 1
		}
	}
	if err := c.takeIDs(ids); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	if c.empty() {
		env.Errorf("No job identification provided")
		return 1
	}
	if c.interactive && (c.filter.Reservation != "" || c.filter.Wckey != "") {
		env.Errorf("--interactive cannot be used with --reservation or --wckey")
		return 1
	}
	return c.run()
}

// apply takes one option. A value that is empty is refused: whoever writes -n "$NAME" and has no NAME does not
// mean every job there is.
func (c *call) apply(g getopt.Given) error {
	if g.Option.Arg == getopt.RequiredArg && g.Option.Long != "clusters" && blank(g.Value) {
		return fmt.Errorf("Invalid --%s specification\nthe value %q names nothing; leave the option out to mean all", g.Option.Long, g.Value)
	}
	f := &c.filter
	switch g.Option.Long {
	case "account":
		f.Accounts = commas(g.Value)
	case "batch":
		c.batch = true
	case "full":
		c.full = true
	case "interactive":
		c.interactive = true
	case "me":
		f.Users = []string{fmt.Sprint(c.env.UID)}
	case "name":
		f.Names = commas(g.Value)
	case "nodelist":
		f.Nodes = []string{g.Value}
	case "partition":
		f.Partitions = commas(g.Value)
	case "qos":
		f.Qos = commas(g.Value)
	case "quiet":
		c.quiet = true
	case "reservation":
		f.Reservation = g.Value
	case "signal":
		n, ok := job.SignalNumber(g.Value)
		if !ok {
			return fmt.Errorf("Unknown job signal: %s", g.Value)
		}
		c.signal = job.SignalName(n)
	case "state":
		return c.applyState(g.Value)
	case "user":
		uid, ok := program.UserID(g.Value)
		if !ok {
			return fmt.Errorf("Unknown user: %s", g.Value)
		}
		f.Users = []string{fmt.Sprint(uid)}
	case "verbose":
		c.verbose = true
	case "wckey":
		f.Wckey = g.Value
	}
	return nil
}

func (c *call) applyState(list string) error {
	for _, s := range commas(list) {
		state, flags, ok := job.ParseState(s)
		if !ok || flags != 0 || state > job.Suspended {
			return fmt.Errorf("Unrecognized job state value: %s\nthe states of jobs that can be ended are PENDING, RUNNING and SUSPENDED", s)
		}
		c.filter.States = append(c.filter.States, state.String())
	}
	return nil
}

// takeIDs reads the operands; a list may be one word.
func (c *call) takeIDs(words []string) error {
	for _, w := range words {
		if blank(w) {
			return fmt.Errorf("Invalid job id %q\nan operand that is empty names no job", w)
		}
		for _, id := range splitIDs(w) {
			id = render.PlainID(id)
			base, _, _ := strings.Cut(id, ".")
			if _, err := job.ParseRef(base); err != nil {
				return fmt.Errorf("Invalid job id %s", id)
			}
			if base != id {
				return fmt.Errorf("Invalid job id %s\nsingle steps cannot be ended, only the whole job %s", id, base)
			}
			c.filter.JobIds = append(c.filter.JobIds, id)
		}
	}
	return nil
}

// splitIDs cuts at blanks and at commas outside brackets.
func splitIDs(s string) []string {
	depth := 0
	return strings.FieldsFunc(s, func(r rune) bool {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		return r == ' ' || r == ',' && depth <= 0
	})
}

// blank: nothing but separators.
func blank(s string) bool { return strings.Trim(s, ", \t\n") == "" }

func commas(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func (c *call) empty() bool {
	f := &c.filter
	return len(f.JobIds)+len(f.Users)+len(f.Names)+len(f.Partitions)+len(f.States)+len(f.Accounts)+len(f.Qos)+len(f.Nodes) == 0 &&
		f.Reservation == "" && f.Wckey == ""
}

func (c *call) run() int {
	cl, err := c.env.Connect()
	if err != nil {
		c.env.Refused("", err)
		return 1
	}
	defer cl.Close()
	ctx := context.Background()
	if c.interactive {
		if ids := c.ask(ctx, cl); len(ids) > 0 {
			c.filter = ctldpb.JobFilter{JobIds: ids}
		} else {
			return 0
		}
	}
	named := len(c.filter.JobIds) > 0
	if c.verbose {
		for _, id := range c.filter.JobIds {
			c.announce(id)
		}
	}
	req := &ctldpb.CancelRequest{Filter: &c.filter, Signal: c.signal, BatchOnly: c.batch, Full: c.full, Key: client.NewKey()}
	var res *ctldpb.JobResults
	err = cl.Do(ctx, func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.Cancel(ctx, req)
		return err
	})
	if err != nil {
		var r *client.Refusal
		if named && len(c.filter.JobIds) == 1 && errors.As(err, &r) && gone(r.Code, r.Text) {
			return c.report(&ctldpb.JobResult{JobId: c.filter.JobIds[0], Code: r.Code, Text: r.Text}, true)
		}
		c.env.Refused("", err)
		return 1
	}
	code := 0
	for _, one := range res.Results {
		code = max(code, c.report(one, named))
	}
	return code
}

func (c *call) announce(id string) {
	if c.signal != "" && c.signal != "KILL" {
		n, _ := job.SignalNumber(c.signal)
		c.env.Infof("Signal %d to job %s", n, id)
		return
	}
	c.env.Infof("Terminating job %s", id)
}

// report tells what became of one job. A job that is gone is an error only for those who want to know; it
// never makes the command fail, because the job is not there, as asked.
func (c *call) report(r *ctldpb.JobResult, named bool) int {
	if c.verbose && !named {
		c.announce(r.JobId)
	}
	switch {
	case r.Code == "":
		return 0
	case gone(r.Code, r.Text):
		if c.verbose && named && !c.quiet {
			c.env.Errorf("Kill job error on job id %s: %s", r.JobId, r.Text)
		}
		return 0
	}
	if !c.quiet {
		c.env.Errorf("Kill job error on job id %s: %s", r.JobId, r.Text)
	}
	return 1
}

// gone: the job is not known, or ended already.
func gone(code, text string) bool {
	return strings.Contains(code, "INVALID_JOB_ID") || strings.Contains(code, "ALREADY_DONE") ||
		strings.HasPrefix(text, "Invalid job id") || strings.HasPrefix(text, "Job/step already completing")
}

// ask goes through the jobs that are meant and gives the ids that were confirmed.
func (c *call) ask(ctx context.Context, cl *client.Client) []string {
	f := &c.filter
	res, err := cl.ListJobs(ctx, &ctldpb.ListJobsRequest{JobIds: f.JobIds, Users: f.Users, Partitions: f.Partitions, States: f.States,
		Names: f.Names, Accounts: f.Accounts, Qos: f.Qos, Nodes: f.Nodes})
	if err != nil {
		c.env.Refused("", err)
		return nil
	}
	in := bufio.NewScanner(c.env.Stdin)
	var ids []string
	for _, j := range res.Jobs {
		id := render.JobID(j, 0)
		fmt.Fprintf(c.env.Stdout, "Cancel job_id=%s name=%s partition=%s [y/n]? ", id, j.Spec.GetName(), j.Partition)
		if !in.Scan() {
			break
		}
		if a := strings.ToLower(strings.TrimSpace(in.Text())); a == "y" || a == "yes" {
			ids = append(ids, restRef(j, id))
		}
	}
	return ids
}

// restRef names an array's waiting tasks without the limit on how many run at once.
func restRef(j *ctldpb.Job, id string) string {
	if !render.IsArrayRest(j) {
		return render.PlainID(id)
	}
	base, _, _ := strings.Cut(id, "%")
	return strings.TrimSuffix(base, "]") + "]"
}
