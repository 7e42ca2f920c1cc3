// Command gnode-launch is the root part of a node: it checks launch credentials and starts steps.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/internal/version"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch/server"
)

const usage = `Usage: gnode-launch [-f FILE]

The small part of a node that runs as root: it checks launch credentials and starts steps. It takes orders
on a local socket only, and believes none of them without a controller's signature.

  -f FILE          launch.conf (default: /etc/tensorgrid/launch.conf); root's, and writable by root only
  -V, --version    print the version and end
  -h, --help       print this and end

Example: gnode-launch -f /etc/tensorgrid/launch.conf
`

func main() {
	conf := flag.String("f", "/etc/tensorgrid/launch.conf", "")
	var show bool
	flag.BoolVar(&show, "V", false, "")
	flag.BoolVar(&show, "version", false, "")
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	if show {
		fmt.Println("gnode-launch", version.Version)
		return
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "gnode-launch: unknown word %q\nTry 'gnode-launch --help'.\n", flag.Arg(0))
		os.Exit(2)
	}
	// Starts are short pieces of work between system calls: one processor does them with the least
	// passing around, and leaves the others to the jobs.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if err := run(*conf, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "gnode-launch:", err)
		os.Exit(1)
	}
}

func run(path string, log *slog.Logger) error {
	// Descriptors that we were started with are nobody's below us.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	c, err := server.LoadConf(path)
	if err != nil {
		return err
	}
	s, err := server.New(c, fault.Now, log)
	if err != nil {
		return err
	}
	l, err := s.Listen()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log.Info("ready", "node", c.Node, "socket", c.Socket, "driver", s.Driver(), "missing", s.Missing())
	return s.Run(ctx, l)
}
