// Package gctl shows and changes jobs, nodes, partitions and the controllers: scontrol's words, fields and texts.
package gctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
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

	// A word with options of its own: what follows it is read by this table, and the call's gets only what stands
	// before it. runGiven takes the place of run.
	options  []getopt.Option
	runGiven func(c *call, given []getopt.Given, args []string) int
	words    func() []subword
	example  string // of its help
}

// verbs are looked through in order; the first that the word begins is meant.
func verbs() []verb {
	return slices.Concat(steering(), administration(), session())
}

// administration are the words for the cluster itself; each has options of its own.
func administration() []verb {
	return []verb{
		{name: "controller", short: 4, runGiven: (*call).controllerWord, words: controllerWords, example: "gctl controller add c4 Address=10.0.0.4 --promote",
			options: controllerOptions(), args: "status | add NAME [KEY=VALUE...] | promote NAME | remove NAME | transfer [NAME]",
			help: "the replicas: show them, add one as a learner, make it a voter, take one out, hand leadership over"},
		{name: "snapshot", short: 2, runGiven: (*call).snapshotWord, words: snapshotWords, example: "gctl snapshot save lab.snap",
			options: snapshotOptions(), args: "save FILE|- | inspect FILE|-", local: true,
			help: "write a backup of the whole cluster; say what is in one (needs no controller)"},
		{name: "pki", short: 3, runGiven: (*call).pkiWord, words: pkiWords, example: "gctl pki issue --role=ctld c1 c2 c3",
			options: pkiOptions(), args: "init | issue NAMES | renew NAMES | show", local: true,
			help: "make, renew and show the cluster's CA and the certificates of its daemons, on this machine (needs no controller)"},
		{name: "whoami", short: 2, run: (*call).whoami, help: "show whom the controller takes you for"},
		{name: "node", short: 4, runGiven: (*call).nodeWord, words: nodeWords, example: "gctl node token gpu[01-64] --ttl=1h --out=gpu.token",
			options: tokenOptions(), args: "fenced NODE | token NAMES | tokens | revoke ID",
			help: "say that nothing is alive on a node that does not answer; one-time tokens with which daemons get their certificates"},
	}
}

// steering are scontrol's words.
func steering() []verb {
	return []verb{
		{name: "show", short: 2, run: (*call).show, args: "KIND [NAME...]", help: "show job, node, partition, reservation, licenses, assoc_mgr, config, step, hostnames LIST, hostlist NAMES, hostlistsorted NAMES", local: true},
		{name: "hold", short: 2, run: control(hold), args: "JOB...", help: "keep jobs from starting"},
		{name: "uhold", short: 2, run: control(uhold), args: "JOB...", help: "hold jobs so that their owner can release them"},
		{name: "release", short: 3, run: control(release), args: "JOB...", help: "let held jobs start"},
		{name: "requeue", short: 7, run: control(requeue), args: "JOB...", help: "end jobs and queue them again"},
		{name: "requeuehold", short: 8, run: control(requeueHold), args: "JOB...", help: "end jobs and queue them again, held"},
		{name: "suspend", short: 3, run: control(suspend), args: "JOB...", help: "stop running jobs; they keep memory and devices, their CPUs are free"},
		{name: "resume", short: 3, run: control(resume), args: "JOB...", help: "let suspended jobs go on"},
		{name: "top", short: 3, run: control(top), args: "JOB...", help: "put jobs in front of one's others"},
		{name: "update", short: 1, run: (*call).update, args: "WHAT=NAME KEY=VALUE...", help: "change JobId=, NodeName=, PartitionName= or ReservationName="},
		{name: "create", short: 1, run: (*call).create, args: "reservation KEY=VALUE...", help: "reserve nodes or licenses for users or accounts, from StartTime= for Duration="},
		{name: "delete", short: 1, run: (*call).remove, args: "ReservationName=NAME", help: "end a reservation"},
		{name: "job", short: 3, run: (*call).jobWord, args: "output ID [--stderr] [--follow]", help: "show a job's output, wherever it ran; --follow goes on until the job ends"},
		{name: "write", short: 2, run: (*call).write, args: "batch_script ID [FILE|-]", help: "save a job's script"},
		{name: "wait_job", short: 2, run: (*call).waitJob, args: "ID", help: "wait until a job's nodes are there"},
		{name: "ping", short: 2, run: (*call).ping, help: "ask every controller"},
		{name: "reconfigure", short: 3, run: (*call).reconfigure, args: "[--dry-run]", help: "read grid.conf again; shows what changes"},
	}
}

// session are the words about the command itself.
func session() []verb {
	return []verb{
		{name: "version", short: 7, run: (*call).version, help: "show the version", local: true},
		{name: "help", short: 1, run: (*call).help, help: "show the words", local: true},
		{name: "exit", short: 1, run: (*call).nothing, help: "end the session", local: true},
		{name: "quit", short: 4, run: (*call).nothing, help: "end the session", local: true},
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
		for i := range v.options {
			if o := &v.options[i]; o.Help != "" {
				words.Items = append(words.Items, getopt.Item{Term: v.name + " " + o.Label(), Text: o.Help})
			}
		}
	}
	return &getopt.Manual{
		Name: "gctl", Slurm: "scontrol", Summary: "show and change jobs, nodes, partitions and the controllers",
		Synopsis: []string{"[OPTIONS] COMMAND [ARGUMENT...]", "[OPTIONS]"},
		Description: []string{
			"Does one command, or reads commands from standard input when none is given. Commands and kinds may be cut as long as they are clear.",
			"The words controller, snapshot, pki and node are for those who run the cluster; each has options of its own, which stand after it, and tells them with --help.",
			"On a host without a controller, commands call the controllers' UserPort: with a token that gnoded --login of this host mints for its users, or with the wallet whose key is in the file that GRID_WALLET names.",
			"update JobId=ID takes TimeLimit, Priority, Nice, Partition, QOS, Account, Reservation, Licenses, Deadline, StartTime, Dependency and more; Checkpoint=now says that the job has saved its work, which counts when something has to make room.",
			"A reservation is made of Nodes=, or NodeCnt= with Features= and PartitionName=, or Licenses= with the flag LICENSE_ONLY; of Users= or Accounts=, a minus sign in front keeps somebody out; and of Flags=: MAINT, IGNORE_JOBS, OVERLAP, DAILY, WEEKLY, WEEKDAY, WEEKEND, FLEX and others. += and -= change lists.",
			"gctl job output ID shows what a job wrote to its output file, also when that file is on a node's own disk.",
			"show hostnames, hostlist and hostlistsorted fold and unfold host names and ask no controller; without a list show hostnames takes SLURM_JOB_NODELIST.",
		},
		Options:  append(opts, common...),
		Sections: []getopt.Section{words, {Title: "ENVIRONMENT", Items: []getopt.Item{{Term: "GRID_WALLET", Text: "A file of mode 0600 with the 64 hexadecimal digits of a wallet's key. Calls are signed with it and are that wallet's, on a controller's host too."}, {Text: "SLURM_JOB_NODELIST, SLURM_TIME_FORMAT and SLURM_BITSTR_LEN as in gqueue(1)."}}}},
		Example:  "gctl update NodeName=n[01-04] State=DRAIN Reason=\"new disks\"",
		Exit:     []string{"0 when all was done; 1 otherwise."},
		SeeAlso:  []string{"gqueue(1)", "ginfo(1)", "grid.conf(5)"},
	}
}

// Main runs the command and gives its exit code.
func Main(env *program.Env) int {
	m := Manual()
	// scontrol takes its options anywhere; a word with a table of its own takes what follows it.
	given, words, err := getopt.Parse(m.Options, env.Args, getopt.StopAtOperand)
	if err == nil && (len(words) == 0 || findVerb(words[0]) == nil || findVerb(words[0]).options == nil) {
		given, words, err = getopt.Parse(m.Options, env.Args, getopt.Permute)
	}
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
	var given []getopt.Given
	args := words[1:]
	if v.options != nil {
		var err error
		if len(args) > 0 && (args[len(args)-1] == "--help" || args[len(args)-1] == "-h") {
			c.wordHelp(v)
			return 0
		}
		if given, args, err = getopt.Parse(v.options, args, getopt.Permute); err != nil {
			c.env.Errorf("%s: %v", v.name, err)
			c.env.Errorf("write: %s %s %s", c.env.Name, v.name, v.args)
			return 1
		}
	}
	if !v.local && !c.connect() {
		return 1
	}
	if v.options != nil {
		return v.runGiven(c, given, args)
	}
	return v.run(c, args)
}

// wordHelp says how a word with options of its own is used.
func (c *call) wordHelp(v *verb) {
	m := getopt.Manual{Name: c.env.Name, Summary: v.help, Options: v.options, Example: v.example}
	for _, w := range v.words() {
		m.Synopsis = append(m.Synopsis, v.name+" "+w.write)
	}
	io.WriteString(c.env.Stdout, m.Help(c.env.Name))
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
		fmt.Fprintf(c.env.Stderr, "%s error: %s\n", what, render.Clean(err.Error()))
		return 1
	}
	fmt.Fprintf(c.env.Stderr, "%s error: %s\n", what, render.Clean(r.Text))
	if r.Why != "" {
		c.env.Errorf("%s", r.Why)
	}
	return 1
}

func background() context.Context { return context.Background() }
