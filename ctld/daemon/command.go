package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/leader"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/version"
)

const usage = `Usage: gctld [--conf FILE] [--name NAME] [--ready FILE] [--join | --bootstrap]
       gctld --check [--conf FILE]
       gctld --inspect FILE
       gctld --restore FILE [--skip-ids N] [--conf FILE] [--name NAME]
       gctld --dev [--nodes N] [--controllers 1|3|5] [--sim BOARD] [--dir DIR]

The controller of a cluster: one of its 1, 3 or 5 replicas.

  -f, --conf FILE      grid.conf (default: $GRID_CONF, $TENSORGRID_CONF, $SLURM_CONF, or /etc/tensorgrid/grid.conf)
  -n, --name NAME      which ControllerName this is (default: the host's short name)
      --ready FILE     write FILE when calls are taken (systemd's NOTIFY_SOCKET is served too)
      --join           with an empty StateDir: wait until "gctl controller add NAME" takes it in
      --bootstrap      with an empty StateDir: start a cluster without asking the other controllers whether there
                       is one already. If there is one, acknowledged jobs can be lost: for disasters only
      --inspect FILE   print what a backup (gctl snapshot save) holds, check it, and end
      --restore FILE   make an empty StateDir out of a backup, and end; the same on each controller, all stopped
      --skip-ids N     --restore: the next job id moves on by N, past those given after the backup (default 10000)
      --check          read the configuration, print all that is wrong with it, and end
      --dev            a whole cluster on this host: certificates, grid.conf, agents, all in one folder
      --nodes N        --dev: number of nodes (default 2, at most 64)
      --controllers N  --dev: 1, 3 or 5 replicas (default 1)
      --sim BOARD      --dev: simulated GPUs of each node: dgx-a100, hgx-h100, a100:4, ... (default none)
      --cpus N         --dev: CPUs of each node (default: those of this host)
      --mem MiB        --dev: memory of each node (default: an equal share of this host's)
      --cgroup DRIVER  --dev: control groups: auto, hybrid, v2, v1, track or none (default auto)
      --set KEY=VALUE  --dev: one more line of grid.conf; may be given more than once
      --dir DIR        --dev: folder of everything (default: a new one under $TMPDIR, removed at the end)
  -V, --version        print the version and end
  -h, --help           print this and end

Example: gctld --dev --nodes 4 --sim dgx-a100 --dir /tmp/grid
         GRID_CONF=/tmp/grid/grid.conf gsub --wrap 'nproc'
`

// flags is the command line.
type flags struct {
	conf, name, ready           string
	inspect, restore            string
	skipIDs                     uint64
	join, bootstrap             bool
	check, dev, version, helped bool
	devOptions
}

// Main is the program: it gives the exit code.
func Main(args []string, stdout, stderr *os.File) int {
	f, err := parseFlags(args)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "gctld: %v\nTry 'gctld --help'.\n", err)
		return 2
	case f.helped:
		fmt.Fprint(stdout, usage)
		return 0
	case f.version:
		fmt.Fprintln(stdout, "gctld", version.Version)
		return 0
	case f.check:
		return check(f.conf, stdout, stderr)
	case f.inspect != "":
		return inspect(f.inspect, stdout, stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch {
	case f.restore != "":
		err = restore(f, stdout)
	case f.dev:
		err = runDev(ctx, f, stdout, stderr)
	default:
		err = runOne(ctx, f, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "gctld: %v\n", err)
		return 1
	}
	return 0
}

func parseFlags(args []string) (flags, error) {
	var f flags
	set := flag.NewFlagSet("gctld", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	for _, n := range []string{"conf", "f"} {
		set.StringVar(&f.conf, n, conf.Find(), "")
	}
	for _, n := range []string{"name", "n"} {
		set.StringVar(&f.name, n, "", "")
	}
	for _, n := range []string{"version", "V"} {
		set.BoolVar(&f.version, n, false, "")
	}
	set.StringVar(&f.ready, "ready", "", "")
	set.BoolVar(&f.check, "check", false, "")
	set.BoolVar(&f.dev, "dev", false, "")
	set.BoolVar(&f.join, "join", false, "")
	set.BoolVar(&f.bootstrap, "bootstrap", false, "")
	set.StringVar(&f.inspect, "inspect", "", "")
	set.StringVar(&f.restore, "restore", "", "")
	set.Uint64Var(&f.skipIDs, "skip-ids", defaultSkip, "")
	set.IntVar(&f.nodes, "nodes", 2, "")
	set.IntVar(&f.controllers, "controllers", 1, "")
	set.StringVar(&f.sim, "sim", "", "")
	set.IntVar(&f.cpus, "cpus", 0, "")
	set.Int64Var(&f.memMiB, "mem", 0, "")
	set.StringVar(&f.dir, "dir", "", "")
	set.StringVar(&f.cgroup, "cgroup", "", "")
	set.Func("set", "", func(line string) error { f.set = append(f.set, line); return nil })
	err := set.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.helped = true
		return f, nil
	}
	if err == nil && set.NArg() > 0 {
		err = fmt.Errorf("%q is not an option; gctld takes options only", set.Arg(0))
	}
	if err == nil {
		err = f.conflicts(set)
	}
	if err == nil && f.dev {
		err = f.devOptions.check()
	}
	return f, err
}

// conflicts refuses options that exclude each other, and those that mean nothing without another.
func (f flags) conflicts(set *flag.FlagSet) error {
	given := map[string]bool{}
	set.Visit(func(one *flag.Flag) { given[one.Name] = true })
	first := ""
	for _, name := range []string{"check", "inspect", "restore", "dev", "join", "bootstrap"} {
		if !given[name] {
			continue
		}
		if first != "" {
			return fmt.Errorf("--%s and --%s exclude each other", first, name)
		}
		first = name
	}
	for _, name := range []string{"inspect", "restore"} {
		if given[name] && set.Lookup(name).Value.String() == "" {
			return fmt.Errorf("--%s: which file?", name)
		}
	}
	if given["skip-ids"] && !given["restore"] {
		return errors.New("--skip-ids is for --restore")
	}
	for _, name := range []string{"nodes", "controllers", "sim", "cpus", "mem", "cgroup", "set", "dir"} {
		if given[name] && !given["dev"] {
			return fmt.Errorf("--%s is for --dev", name)
		}
	}
	if f.skipIDs > maxSkip {
		return fmt.Errorf("--skip-ids %d: at most %d", f.skipIDs, maxSkip)
	}
	return nil
}

// maxSkip leaves most of the job ids to jobs.
const maxSkip = 1 << 28

// loadConf is conf.Load with what only other packages can tell: the check sums of wallets, and what the scheduler reads.
func loadConf(path string) (*conf.Config, error) {
	cfg, err := conf.Load(path)
	if err != nil {
		return nil, err
	}
	if _, err := authn.ParseWallets(cfg.Wallets); err != nil {
		return nil, conf.Problems{{File: cfg.Source, Text: err.Error()}}
	}
	if err := leader.CheckConfig(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// nameOf is which controller this is: the one that was named, else the one whose line names this host.
func nameOf(named string, cfg *conf.Config) (string, error) {
	if named != "" {
		return named, nil
	}
	return thisController(cfg)
}

// check prints every problem of a configuration and what is ignored of it.
func check(path string, stdout, stderr io.Writer) int {
	cfg, err := loadConf(path)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	for _, n := range cfg.Warnings {
		fmt.Fprintf(stdout, "warning: %s\n", n)
	}
	for _, n := range cfg.Ignored {
		fmt.Fprintf(stdout, "ignored: %s\n", n)
	}
	fmt.Fprintf(stdout, "%s: cluster %s, %s, %s, %s: ok\n", cfg.Source, cfg.ClusterName,
		plural(len(cfg.Controllers), "controller"), plural(len(cfg.Nodes), "node"), plural(len(cfg.Partitions), "partition"))
	return 0
}

// plural is a count of things in words.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// runOne is one controller of a configured cluster.
func runOne(ctx context.Context, f flags, stdout, stderr *os.File) error {
	cfg, err := loadConf(f.conf)
	if err != nil {
		return err
	}
	name, err := nameOf(f.name, cfg)
	if err != nil {
		return err
	}
	log := newLogger(stderr, cfg.LogLevel)
	for _, n := range cfg.Warnings {
		log.Warn("configuration", "at", n.String())
	}
	for _, n := range cfg.Ignored {
		log.Info("configuration key has no effect", "at", n.String())
	}
	go tuneGC(ctx)
	return Run(ctx, Options{
		Config: cfg, Name: name, Version: version.Version, Logger: log, Join: f.join, Bootstrap: f.bootstrap,
		Ready: func() {
			text := "gctld ready " + name
			fmt.Fprintln(stdout, text)
			if err := announce(f.ready, text); err != nil {
				log.Warn("readiness not announced", "err", err)
			}
		},
	})
}

// thisController finds the ControllerName line that this host is.
func thisController(cfg *conf.Config) (string, error) {
	if len(cfg.Controllers) == 1 {
		return cfg.Controllers[0].Name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	short, _, _ := strings.Cut(host, ".")
	for _, c := range cfg.Controllers {
		if c.Name == short || c.Name == host || c.Address == host || c.Address == short {
			return c.Name, nil
		}
	}
	return "", fmt.Errorf("%s has no ControllerName for host %s; say which with --name", cfg.Source, short)
}
