// Command gnoded is the agent of one node: it registers with the leading controller and carries its
// orders to the launcher. It runs unprivileged and may be stopped and started at any time; steps go on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/gres/discover"
	"github.com/tensorgrid/tensorgrid/internal/version"
)

const usage = `Usage: gnoded [--conf FILE] [--node NAME] [--launcher SOCKET] [--spool DIR]
       gnoded --login [--conf FILE] [--node NAME]
       gnoded join --controller HOST:PORT --name NAME --token-file FILE|-
       gnoded -C

The agent of one compute node. Steps go on while it is stopped, and are found again.

  -f, --conf FILE      grid.conf (default: $GRID_CONF, $TENSORGRID_CONF, $SLURM_CONF, or /etc/tensorgrid/grid.conf)
  -N, --node NAME      the node that this is (default: the host's short name)
      --launcher SOCK  socket of gnode-launch (default: launcher.sock in NodeRunDir)
      --spool DIR      the node's spool (default: SlurmdSpoolDir)
      --allow-root     stay root; without it gnoded gives up root for AgentUser before it opens the network
      --login          serve a login host's users instead: vouch for them to the controllers (LoginSocket)
  -C, --print          print this host's NodeName line for grid.conf and end
  -V, --version        print the version and end
  -h, --help           print this and end

"gnoded join --help" shows how a host gets its first certificate.
Example: gnoded --conf /etc/tensorgrid/grid.conf --node gpu01
`

// options is the command line.
type options struct {
	conf, node, launcher, spool              string
	allowRoot, login, print, version, helped bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "join" {
		return runJoin(args[1:], os.Stdin, stdout, stderr)
	}
	o, err := parseArgs(args)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "gnoded: %v\nTry 'gnoded --help'.\n", err)
		return 2
	case o.helped:
		fmt.Fprint(stdout, usage)
		return 0
	case o.version:
		fmt.Fprintln(stdout, "gnoded", version.Version)
		return 0
	case o.print:
		line, err := nodeLine(discover.Local(), o.node)
		if err != nil {
			fmt.Fprintln(stderr, "gnoded:", err)
			return 1
		}
		fmt.Fprint(stdout, line)
		return 0
	}
	c, err := conf.Load(o.conf)
	if err != nil {
		fmt.Fprintln(stderr, "gnoded:", err)
		return 1
	}
	// The processors are the jobs'. What an agent does comes in small pieces, and to hand each to another
	// thread costs more than to do it.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level(c.LogLevel)}))
	signal.Ignore(syscall.SIGHUP) // what "reload" sends: an agent takes a new configuration when it is started again
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	work := serve
	if o.login {
		work = serveLogin
	}
	if err := work(ctx, o, c, log); err != nil {
		log.Error("gnoded ends", "err", err)
		return 1
	}
	return 0
}

func parseArgs(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("gnoded", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	text := func(p *string, value string, names ...string) {
		for _, n := range names {
			f.StringVar(p, n, value, "")
		}
	}
	yes := func(p *bool, names ...string) {
		for _, n := range names {
			f.BoolVar(p, n, false, "")
		}
	}
	text(&o.conf, conf.Find(), "conf", "f")
	text(&o.node, "", "node", "N")
	text(&o.launcher, "", "launcher")
	text(&o.spool, "", "spool")
	yes(&o.allowRoot, "allow-root")
	yes(&o.login, "login")
	yes(&o.print, "print", "C")
	yes(&o.version, "version", "V")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		o.helped = true
		return o, nil
	}
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("%q is not an option; gnoded takes options only", f.Arg(0))
	}
	return o, err
}

func level(name string) slog.Level {
	switch name {
	case "quiet", "fatal", "error":
		return slog.LevelError
	case "debug", "debug2", "debug3", "debug4", "debug5":
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
