// Package gacctmgr shows and changes accounts, users, associations and QOS: sacctmgr's grammar, columns and texts.
package gacctmgr

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
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// call is one call of the command.
type call struct {
	env       *program.Env
	client    *client.Client
	in        *bufio.Reader
	immediate bool
	readOnly  bool
	quiet     bool
	json      bool
	withAssoc bool
	noHeader  bool
	parsable  bool
	trailing  bool
	stale     bool
	over      bool // the session was ended
}

// Manual describes the command.
func Manual() *getopt.Manual {
	opts := []getopt.Option{
		{Long: "associations", Short: 's', Help: "show: with associations, as withassoc"},
		{Long: "clusters", Short: 'M', Arg: getopt.RequiredArg, Value: "NAME", Help: "only this cluster's name", Alias: []string{"cluster"}},
		{Long: "immediate", Short: 'i', Help: "change at once, ask nothing"},
		{Long: "json", Arg: getopt.OptionalArg, Value: "PARSER", Help: "show: as JSON"},
		{Long: "noheader", Short: 'n', Help: "show: no line with names"},
		{Long: "oneliner", Short: 'o', Help: ""},
		{Long: "parsable", Short: 'p', Help: "show: bars between cells and at the end"},
		{Long: "parsable2", Short: 'P', Help: "show: bars between cells only"},
		{Long: "quiet", Short: 'Q', Help: "no messages, only errors"},
		{Long: "readonly", Short: 'r', Help: "refuse every change"},
		{Long: "stale", Help: "show what the nearest controller knows"},
		{Long: "verbose", Short: 'v', Help: ""},
		{Long: "yaml", Arg: getopt.OptionalArg, Value: "PARSER", Help: "not available; --json is"},
	}
	return &getopt.Manual{
		Name: "gacctmgr", Slurm: "sacctmgr", Summary: "show and change accounts, users, QOS and their limits",
		Synopsis: []string{"[OPTIONS] COMMAND ENTITY [NAME...] [KEY=VALUE...]", "[OPTIONS]"},
		Description: []string{
			"Does one command, or reads commands from standard input when none is given, until quit. Commands, entities and keys may be cut as long as they are clear, in any case.",
			"Accounts form a tree below root; a user in an account is an association, which holds shares and limits. What is not set there comes from the accounts above. A job needs an association when AccountingStorageEnforce in grid.conf says associations.",
			"A change is shown first and done after y within 30 seconds; -i does it at once. Operators and admins change everything, a coordinator the users of his accounts and of those below.",
		},
		Options: append(opts, program.CommonOptions()...),
		Sections: []getopt.Section{
			{Title: "COMMANDS", Items: []getopt.Item{
				{Term: "add|create ENTITY NAMES [KEY=VALUE...]", Text: "account, user, qos, coordinator"},
				{Term: "modify ENTITY [where] KEY=VALUE... set KEY=VALUE...", Text: "account, user, qos"},
				{Term: "delete|remove ENTITY [where] KEY=VALUE...", Text: "account, user, qos, coordinator"},
				{Term: "list|show ENTITY [where] KEY=VALUE... [format=LIST]", Text: "account, association, cluster, qos, tres, user"},
				{Term: "dump [CLUSTER] [file=FILE]", Text: "write everything to a file"},
				{Term: "load [file=]FILE", Text: "add what such a file says and is not there"},
				{Term: "version, help, exit, quit", Text: "about the command"},
			}},
			{Title: "KEYS", Items: keyHelp()},
			{Title: "FIELDS", Items: []getopt.Item{{Text: "Of format=, in any case and cut as long as they are clear, each with %WIDTH, or %-WIDTH for the left: " + fieldNames() + "."}}},
		},
		Example: "gacctmgr -i add user bob account=physics fairshare=10",
		Exit:    []string{"0 when the command was done; 1 when it was refused, nothing was there to change, or the answer was no."},
		SeeAlso: []string{"gshare(1)", "gprio(1)", "gsub(1)", "grid.conf(5)"},
	}
}

// keyHelp says what the keys are.
func keyHelp() []getopt.Item {
	list := func(keys []string) string { return strings.Join(keys, ", ") + "." }
	return []getopt.Item{
		{Term: "account", Text: list(accountKeys)}, {Term: "user", Text: list(userKeys)},
		{Term: "limits of both", Text: list(limitKeys)}, {Term: "qos", Text: list(qosKeys)},
		{Text: "A TRES list is written as cpu=100,mem=200G,gres/gpu=8; -1 takes a limit away. Lists of QOS, preempt and flags also take += and -=. Times are minutes or as in gsub(1). GrpCPUs, MaxNodes and the like of old scripts are read as their TRES."},
		{Text: "show also takes the words withassoc, withcoord and tree."},
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
	c := &call{env: env, in: bufio.NewReader(env.Stdin)}
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
	case "associations":
		c.withAssoc = true
	case "immediate":
		c.immediate = true
	case "json":
		c.json = true
	case "noheader":
		c.noHeader = true
	case "parsable":
		c.parsable, c.trailing = true, true
	case "parsable2":
		c.parsable, c.trailing = true, false
	case "quiet":
		c.quiet = true
	case "readonly":
		c.readOnly = true
	case "stale":
		c.stale = true
	case "yaml":
		return program.NoYAML()
	}
	return nil
}

// session reads commands until the input ends; its exit code is the last one's.
func (c *call) session() int {
	code := 0
	for !c.over && c.env.OutputError() == nil {
		if c.env.StdinTerminal {
			fmt.Fprintf(c.env.Stdout, "%s: ", c.env.Name)
		}
		line, err := c.in.ReadString('\n')
		words, bad := splitWords(line)
		switch {
		case bad != nil:
			c.env.Errorf("%v", bad)
			code = 1
		case len(words) > 0:
			code = c.do(words)
		}
		if err != nil {
			break
		}
	}
	return code
}

// splitWords cuts a line at blanks outside quotes; the quotes go.
func splitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote := false, rune(0)
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, in = r, true
		case strings.ContainsRune(" \t\r\n", r):
			if in {
				words = append(words, word.String())
				word.Reset()
			}
			in = false
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c is not closed", quote)
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

// verbs are the commands, with the shortest form that is clear.
var verbs = []struct {
	name  string
	short int
	run   func(c *call, args []string) int
}{
	{"add", 1, func(c *call, a []string) int { return c.change("add", a) }},
	{"create", 1, func(c *call, a []string) int { return c.change("add", a) }},
	{"modify", 1, func(c *call, a []string) int { return c.change("modify", a) }},
	{"delete", 2, func(c *call, a []string) int { return c.change("delete", a) }},
	{"remove", 3, func(c *call, a []string) int { return c.change("delete", a) }},
	{"list", 2, (*call).list},
	{"show", 1, (*call).list},
	{"dump", 2, (*call).dump},
	{"load", 2, (*call).load},
	{"version", 3, func(c *call, _ []string) int { fmt.Fprintln(c.env.Stdout, c.env.VersionLine()); return 0 }},
	{"help", 1, func(c *call, _ []string) int { io.WriteString(c.env.Stdout, Manual().Help(c.env.Name)); return 0 }},
	{"exit", 1, (*call).quit},
	{"quit", 1, (*call).quit},
	{"!!", 2, nil}, {"archive", 2, nil}, {"clear", 2, nil}, {"reconfigure", 5, nil}, {"ping", 2, nil}, {"shutdown", 3, nil},
}

// do runs one command.
func (c *call) do(words []string) int {
	low := strings.ToLower(words[0])
	for _, v := range verbs {
		if len(low) < v.short || !strings.HasPrefix(v.name, low) {
			continue
		}
		if v.run == nil {
			c.env.Errorf("%s: there is no database beside the controllers here, so this has nothing to do", v.name)
			return 1
		}
		return v.run(c, words[1:])
	}
	c.env.Errorf("invalid keyword: %s", words[0])
	c.env.Errorf("known are add, modify, delete, list, show, dump, load, version, help, quit")
	return 1
}

func (c *call) quit([]string) int {
	c.over = true
	return 0
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

// failed prints what a controller refused, in sacctmgr's form, and why.
func (c *call) failed(err error) int {
	var r *client.Refusal
	if !errors.As(err, &r) {
		fmt.Fprintf(c.env.Stderr, " Error with request: %s\n", render.Clean(err.Error()))
		return 1
	}
	fmt.Fprintf(c.env.Stderr, " Error with request: %s\n", render.Clean(r.Text))
	if r.Why != "" {
		fmt.Fprintf(c.env.Stderr, " %s\n", render.Clean(r.Why))
	}
	return 1
}

func background() context.Context { return context.Background() }
