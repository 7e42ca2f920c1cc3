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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch/server"
)

func main() {
	conf := flag.String("f", "/etc/tensorgrid/launch.conf", "configuration; root's, and writable by root only")
	flag.Parse()
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
	s, err := server.New(c, time.Now, log)
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
