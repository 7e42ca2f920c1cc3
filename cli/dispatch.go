package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tensorgrid/tensorgrid/cli/demo"
	"github.com/tensorgrid/tensorgrid/cli/gacct"
	"github.com/tensorgrid/tensorgrid/cli/gacctmgr"
	"github.com/tensorgrid/tensorgrid/cli/gcancel"
	"github.com/tensorgrid/tensorgrid/cli/gctl"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/ginfo"
	"github.com/tensorgrid/tensorgrid/cli/gprio"
	"github.com/tensorgrid/tensorgrid/cli/gqueue"
	"github.com/tensorgrid/tensorgrid/cli/gshare"
	"github.com/tensorgrid/tensorgrid/cli/gsub"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/up"
)

// command is one of the programs in this one.
type command struct {
	own, slurm string
	main       func(*program.Env) int
	manual     func() *getopt.Manual
}

var commands = []command{
	{"gsub", "sbatch", gsub.Main, gsub.Manual},
	{"gqueue", "squeue", gqueue.Main, gqueue.Manual},
	{"gcancel", "scancel", gcancel.Main, gcancel.Manual},
	{"ginfo", "sinfo", ginfo.Main, ginfo.Manual},
	{"gacct", "sacct", gacct.Main, gacct.Manual},
	{"gctl", "scontrol", gctl.Main, gctl.Manual},
	{"gacctmgr", "sacctmgr", gacctmgr.Main, gacctmgr.Manual},
	{"gshare", "sshare", gshare.Main, gshare.Manual},
	{"gprio", "sprio", gprio.Main, gprio.Manual},
}

func find(name string) *command {
	i := slices.IndexFunc(commands, func(c command) bool { return c.own == name || c.slurm == name })
	if i < 0 {
		return nil
	}
	return &commands[i]
}

// dispatch runs the command that the program's name says, or its first argument, and sees to it that nothing of
// what it prints is lost in silence.
func dispatch(env *program.Env) int { return env.Checked(choose) }

func choose(env *program.Env) int {
	if c := find(env.Name); c != nil {
		return c.main(env)
	}
	if len(env.Args) > 0 {
		if c := find(env.Args[0]); c != nil {
			env.Name, env.Args = env.Args[0], env.Args[1:]
			return c.main(env)
		}
		if env.Args[0] == "demo" {
			return demo.Main(env.Args[1:], env.Stdout, env.Stderr)
		}
	}
	return grid(env)
}

// manual describes the program under its own name.
func manual() *getopt.Manual {
	m := &getopt.Manual{
		Name: "grid", Summary: "all of TensorGrid's user commands in one program",
		Synopsis: []string{"COMMAND [ARGUMENT...]", "up [--nodes N] [--controllers 1|3|5] [--sim BOARD] [--dir DIR]", "down [--dir DIR]", "demo [--keep]", "install-links DIR"},
		Description: []string{
			"Runs a command, or is one when it is called through a link of that name.",
			"grid up starts a whole cluster on this host, with its own certificates, for a try: it needs no root and no configuration. grid down ends it and leaves nothing.",
		},
		Options: up.Options(),
		Example: "grid up --nodes 4 --sim a100:4",
		Exit:    []string{"That of the command; 255 when it is not known."},
		SeeAlso: []string{"gsub(1)", "gqueue(1)", "gcancel(1)", "ginfo(1)", "gacct(1)", "gctl(1)", "gacctmgr(1)", "gshare(1)", "gprio(1)", "grid.conf(5)"},
	}
	s := getopt.Section{Title: "COMMANDS"}
	for _, c := range commands {
		s.Items = append(s.Items, getopt.Item{Term: c.own + ", " + c.slurm, Text: c.manual().Summary})
	}
	s.Items = append(s.Items, getopt.Item{Term: "up", Text: "start a cluster on this host"}, getopt.Item{Term: "down", Text: "end it"},
		getopt.Item{Term: "demo", Text: "show a cluster at work: jobs, and the leader killed in the middle"},
		getopt.Item{Term: "install-links DIR", Text: "make a link for every name in DIR"})
	m.Sections = []getopt.Section{s}
	return m
}

// grid is the program under its own name.
func grid(env *program.Env) int {
	m := manual()
	given, words, err := getopt.Parse(m.Options, env.Args, getopt.Permute)
	if err != nil {
		return env.BadUsage(err)
	}
	if env.Common(m, given) {
		return 0
	}
	switch {
	case len(words) == 0:
		io.WriteString(env.Stderr, m.Help(env.Name))
		return program.ExitUsage
	case len(words) == 1 && words[0] == "help":
		io.WriteString(env.Stdout, m.Help(env.Name))
		return 0
	case len(words) == 1 && words[0] == "up":
		return up.Up(env, given)
	case len(words) == 1 && words[0] == "down":
		return up.Down(env, given)
	case words[0] == "up" || words[0] == "down":
		return env.BadUsage(fmt.Errorf("%s takes options only, not %q", words[0], words[1]))
	case words[0] == "install-links" && len(words) != 2:
		return env.BadUsage(errors.New("install-links takes one folder"))
	case words[0] == "install-links":
		if err := up.InstallLinks(words[1]); err != nil {
			env.Errorf("%v", err)
			return 1
		}
		return 0
	}
	fmt.Fprintf(env.Stderr, "%s: no command %q\nTry \"%s --help\" for more information\n", env.Name, words[0], env.Name)
	return program.ExitUsage
}
