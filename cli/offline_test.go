package main

import (
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/conf"
)

// TestOffline runs testdata/offline: what commands do without a controller.
func TestOffline(t *testing.T) {
	cmds := map[string]func(*testscript.TestScript, bool, []string){"grid": offline("grid")}
	for _, c := range commands {
		cmds[c.own], cmds[c.slurm] = offline(c.own), offline(c.slurm)
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/offline", Cmds: cmds, RequireExplicitExec: true})
}

// offline runs a command in this process.
func offline(name string) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		env := &program.Env{
			Name: name, Args: args, Stdin: strings.NewReader(""), Stdout: ts.Stdout(), Stderr: ts.Stderr(), Dir: ts.Getenv("WORK"),
			Environ: []string{"SLURM_JOB_NODELIST=" + ts.Getenv("SLURM_JOB_NODELIST")}, UID: 1000, Now: time.Now, Sleep: func(time.Duration) {},
			Connect: func() (*client.Client, error) {
				_, err := conf.Load(ts.MkAbs("no-such.conf"))
				return nil, err
			},
		}
		if code := dispatch(env); (code != 0) != neg {
			ts.Fatalf("%s %q: exit code %d", name, args, code)
		}
	}
}
