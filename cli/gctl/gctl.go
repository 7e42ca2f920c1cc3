// Package gctl shows and changes jobs, nodes, partitions and the controllers: scontrol's words, fields and texts.
package gctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
)

// call is one call of the command.
type call struct {
	env     *program.Env
	client  *client.Client
	oneLine bool
	detail  bool
	all     bool
	json    bool
	quiet   bool
	follow  bool
	stderr  bool
	dryRun  bool
	stale   bool
}

// verb is one word of the command.
type verb struct {
	name  string
	short int // bytes that are enough
	run   func(c *call, args []string) int
	args  string
	help  string
	local bool // needs no controller
}

// verbs are looked through in order; the first that the word begins is meant.
func verbs() []verb {
	return []verb{
		{"show", 2, (*call).show, "KIND [NAME...]", "show job, node, partition, config, step, hostnames LIST, hostlist NAMES, hostlistsorted NAMES", true},
		{"hold", 2, control(hold), "JOB...", "keep jobs from starting", false},
		{"uhold", 2, control(uhold), "JOB...", "hold jobs so that their owner can release them", false},
		{"release", 3, control(release), "JOB...", "let held jobs start", false},
		{"requeue", 7, control(requeue), "JOB...", "end jobs and queue them again", false},
		{"requeuehold", 8, control(requeueHold), "JOB...", "end jobs and queue them again, held", false},
		{"suspend", 3, control(suspend), "JOB...", "not offered yet: says so", false},
		{"resume", 3, control(resume), "JOB...", "not offered yet: says so", false},
		{"top", 3, control(top), "JOB...", "put jobs in front of one's others", false},
		{"update", 1, (*call).update, "WHAT=NAME KEY=VALUE...", "change JobId=, NodeName= or PartitionName=", false},
		{"job", 3, (*call).jobWord, "output ID [--stderr] [--follow]", "show a job's output, wherever it ran; --follow goes on until the job ends", false},
		{"node", 4, (*call).nodeWord, "fenced NODE", "say that nothing is alive on a node that does not answer", false},
		{"write", 2, (*call).write, "batch_script ID [FILE|-]", "save a job's script", false},
		{"wait_job", 2, (*call).waitJob, "ID", "wait until a job's nodes are there", false},
		{"ping", 2, (*call).ping, "", "ask every controller", false},
		{"reconfigure", 3, (*call).reconfigure, "[--dry-run]", "read grid.conf again; shows what changes", false},
		{"version", 7, (*call).version, "", "show the version", true},
		{"help", 1, (*call).help, "", "show the words", true},
		{"exit", 1, (*call).nothing, "", "end the session", true},
		{"quit", 4, (*call).nothing, "", "end the session", true},
	}
}

// Manual describes the command.
func Manual() *getopt.Manual {
	common := program.CommonOptions()
	opts := []getopt.Option{
		{Long: "all", Short: 'a', Help: "hidden partitions too"},
		{Long: "clusters", Short: 'M', Arg: getopt.RequiredArg, Value: "NAME", Help: "only this cluster's name is taken", Alias: []string{"cluster"}},
		{Long: "details", Short: 'd', Help: "show job: what it holds on each node"},
		{Long: "dry-run", Help: "reconfigure: show what would change"},
		{Long: "federation", Help: ""},
		{Long: "follow", Help: "job output: go on until the job ends"},
		{Long: "future", Short: 'F', Help: ""},
		{Long: "hide", Help: ""},
		{Long: "json", Arg: getopt.OptionalArg, Value: "PARSER", Help: "show job: as JSON"},
		{Long: "local", Help: ""},
		{Long: "oneliner", Short: 'o', Help: "one line for each record"},
		{Long: "quiet", Short: 'Q', Help: "no messages"},
		{Long: "sibling", Help: ""},
		{Long: "stale", Help: "take what the nearest controller knows"},
		{Long: "stderr", Help: "job output: standard error"},
		{Long: "uid", Short: 'u', Arg: getopt.RequiredArg, Help: ""},
		{Long: "verbose", Short: 'v', Help: "say what is done"},
		{Long: "yaml", Arg: getopt.OptionalArg, Value: "PARSER", Help: "not available; --json is"},
	}
	words := getopt.Section{Title: "COMMANDS"}
	for _, v := range verbs() {
		words.Items = append(words.Items, getopt.Item{Term: strings.TrimSpace(v.name + " " + v.args), Text: v.help})
	}
	return &getopt.Manual{
		Name: "gctl", Slurm: "scontrol", Summary: "show and change jobs, nodes and partitions",
		Synopsis: []string{"[OPTIONS] COMMAND [ARGUMENT...]", "[OPTIONS]"},
		Description: []string{
			"Does one command, or reads commands from standard input when none is given. Commands and kinds may be cut as long as they are clear.",
			"gctl job output ID shows what a job wrote to its output file, also when that file is on a node's own disk.",
			"show hostnames, hostlist and hostlistsorted fold and unfold host names and ask no controller; without a list show hostnames takes SLURM_JOB_NODELIST.",
		},
		Options:  append(opts, common...),
		Sections: []getopt.Section{words, {Title: "ENVIRONMENT", Items: []getopt.Item{{Text: "SLURM_JOB_NODELIST, SLURM_TIME_FORMAT and SLURM_BITSTR_LEN as in gqueue(1)."}}}},
		Example:  "gctl update NodeName=n[01-04] State=DRAIN Reason=\"new disks\"",
		Exit:     []string{"0 when all was done; 1 otherwise."},
		SeeAlso:  []string{"gqueue(1)", "ginfo(1)", "grid.conf(5)"},
	}
}

// Main runs the command and gives its exit code.
func Main(env *program.Env) int {
	m := Manual()
	given, words, err := getopt.Parse(m.Options, env.Args, getopt.Permute)
	if err != nil {
		env.BadUsage(err)
		return 1
	}
	if env.Common(m, given) {
		return 0
	}
	if err := program.CheckText(given, words); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	c := &call{env: env}
	for _, g := range given {
		if err := c.apply(g); err != nil {
			env.Errorf("%v", err)
			return 1
		}
	}
	defer func() {
		if c.client != nil {
			c.client.Close()
		}
	}()
	if len(words) == 0 {
		return c.session()
	}
	return c.do(words)
}

func (c *call) apply(g getopt.Given) error {
	switch g.Option.Long {
	case "all":
		c.all = true
	case "details":
		c.detail = true
	case "dry-run":
		c.dryRun = true
	case "follow":
		c.follow = true
	case "json":
		c.json = true
	case "oneliner":
		c.oneLine = true
	case "quiet":
		c.quiet = true
	case "stale":
		c.stale = true
	case "stderr":
		c.stderr = true
	case "yaml":
		return program.NoYAML()
	}
	return nil
}

// maxLine bounds a line of a session.
const maxLine = 1 << 20

// session reads commands until the input ends; its exit code is the last one's.
func (c *call) session() int {
	in := bufio.NewScanner(c.env.Stdin)
	in.Buffer(nil, maxLine)
	code := 0
	for {
		if c.env.StdinTerminal {
			fmt.Fprintf(c.env.Stdout, "%s: ", c.env.Name)
		}
		if c.env.OutputError() != nil || !in.Scan() {
			return code
		}
		words := strings.Fields(in.Text())
		if len(words) == 0 {
			continue
		}
		if words[0] == "exit" || words[0] == "quit" || words[0] == "q" {
			return code
		}
		code = c.do(words)
	}
}

// do runs one command.
func (c *call) do(words []string) int {
	v := findVerb(words[0])
	if v == nil {
		c.env.Errorf("invalid keyword: %s", words[0])
		c.env.Errorf("known are %s", strings.Join(verbNames(), ", "))
		return 1
	}
	if !v.local {
		if !c.connect() {
			return 1
		}
	}
	return v.run(c, words[1:])
}

// connect makes the client when it is first needed.
func (c *call) connect() bool {
	if c.client != nil {
		return true
	}
	cl, err := c.env.Connect()
	if err != nil {
		c.env.Refused("", err)
		return false
	}
	c.client = cl
	return true
}

func findVerb(word string) *verb {
	list := verbs()
	low := strings.ToLower(word)
	for i := range list {
		if low == list[i].name {
			return &list[i]
		}
	}
	for i := range list {
		if len(low) >= list[i].short && strings.HasPrefix(list[i].name, low) {
			return &list[i]
		}
	}
	return nil
}

func verbNames() []string {
	var names []string
	for _, v := range verbs() {
		names = append(names, v.name)
	}
	return names
}

func (c *call) version([]string) int {
	fmt.Fprintln(c.env.Stdout, c.env.VersionLine())
	return 0
}

func (c *call) help([]string) int {
	io.WriteString(c.env.Stdout, Manual().Help(c.env.Name))
	return 0
}

func (c *call) nothing([]string) int { return 0 }

// failed prints an error of a call in scontrol's form "slurm_xxx error: TEXT", which programs match.
func (c *call) failed(what string, err error) int {
	if c.quiet {
		return 1
	}
	var r *client.Refusal
	if !errors.As(err, &r) {
		fmt.Fprintf(c.env.Stderr, "%s error: %v\n", what, err)
		return 1
	}
	fmt.Fprintf(c.env.Stderr, "%s error: %s\n", what, r.Text)
	if r.Why != "" {
		c.env.Errorf("%s", r.Why)
	}
	return 1
}

func background() context.Context { return context.Background() }
