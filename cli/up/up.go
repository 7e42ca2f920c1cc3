// Package up starts and stops a whole cluster on this host, for a laptop or a try: it runs gctld --dev in the
// background and minds it by its pid and start time.
package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
)

// Times that starting and stopping may take.
const (
	startLimit = 60 * time.Second
	stopLimit  = 60 * time.Second
	lookPause  = 50 * time.Millisecond
)

// Files in the cluster's folder.
const (
	pidFile   = "grid.pid"
	readyFile = "grid.ready"
	logFile   = "gctld.log"
	confFile  = "grid.conf"
	lockFile  = "grid.lock"
	madeFile  = ".made-by-grid-up" // the folder goes with the cluster
)

// Options are what both words take.
func Options() []getopt.Option {
	return append([]getopt.Option{
		{Long: "controllers", Arg: getopt.RequiredArg, Value: "1|3|5", Help: "up: how many controllers (1)"},
		{Long: "dir", Arg: getopt.RequiredArg, Value: "DIR", Help: "folder of the cluster"},
		{Long: "nodes", Arg: getopt.RequiredArg, Value: "N", Help: "up: how many nodes (2)"},
		{Long: "sim", Arg: getopt.RequiredArg, Value: "BOARD", Help: "up: simulated GPUs of each node, as dgx-a100 or a100:4"},
	}, program.CommonOptions()...)
}

// cluster is one folder's.
type cluster struct {
	env  *program.Env
	dir  string
	args []string // for gctld
}

// newCluster reads the options.
func newCluster(env *program.Env, given []getopt.Given) *cluster {
	c := &cluster{env: env}
	for _, g := range given {
		if g.Option.Long == "dir" {
			c.dir = g.Value
		} else {
			c.args = append(c.args, "--"+g.Option.Long, g.Value)
		}
	}
	if c.dir == "" {
		base := env.Getenv("XDG_RUNTIME_DIR")
		if base == "" {
			base = os.TempDir()
		}
		c.dir = filepath.Join(base, fmt.Sprintf("tensorgrid-%d", env.UID))
	}
	if !filepath.IsAbs(c.dir) {
		c.dir = filepath.Join(env.Dir, c.dir)
	}
	return c
}

func (c *cluster) file(name string) string { return filepath.Join(c.dir, name) }

// Up starts the cluster and waits until it takes jobs.
func Up(env *program.Env, given []getopt.Given) int {
	c := newCluster(env, given)
	if err := c.mine(); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	unlock, err := c.lock(true)
	if err != nil {
		env.Errorf("%v", err)
		return 1
	}
	defer unlock()
	if pid, running := c.running(); running {
		env.Infof("the cluster in %s runs already (process %d)", c.dir, pid)
		c.tell()
		return 0
	}
	if err := c.start(); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	c.tell()
	return 0
}

func (c *cluster) start() error {
	daemon, err := program.Beside("gctld")
	if err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	log, err := os.OpenFile(c.file(logFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(daemon, append([]string{"--dev", "--dir", c.dir, "--ready", c.file(readyFile)}, c.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", daemon, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := c.await(cmd.Process.Pid, ended); err != nil {
		return fmt.Errorf("%w\n%s", err, c.logTail())
	}
	return nil
}

// mine refuses a folder that somebody else has laid in the way: what stands in it is believed.
func (c *cluster) mine() error {
	st, err := os.Lstat(c.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || !ok || sys.Uid != c.env.UID || st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder of yours that only you may write; use --dir", c.dir)
	}
	return nil
}

// prepare takes away what a former cluster has left in the way.
func (c *cluster) prepare() error {
	if err := os.Remove(c.file(readyFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// await notes the process and waits for its ready file; a process that does not get ready is ended.
func (c *cluster) await(pid int, ended <-chan error) error {
	start, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("gctld ended at once: %w", <-ended)
	}
	if err := os.WriteFile(c.file(pidFile), fmt.Appendf(nil, "%d %d\n", pid, start), 0o600); err != nil {
		syscall.Kill(pid, syscall.SIGTERM)
		return err
	}
	limit := time.After(startLimit)
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			os.Remove(c.file(pidFile))
			if err == nil {
				err = errors.New("exit code 0")
			}
			return fmt.Errorf("gctld ended before it was ready: %w", err)
		case <-limit:
			syscall.Kill(pid, syscall.SIGTERM)
			<-ended
			os.Remove(c.file(pidFile))
			return fmt.Errorf("the cluster was not ready in %s", startLimit)
		case <-tick.C:
			if _, err := os.Stat(c.file(readyFile)); err == nil {
				return nil
			}
		}
	}
}

// logTail is the end of the log, for an error.
func (c *cluster) logTail() string {
	b, err := os.ReadFile(c.file(logFile))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// tell prints how the cluster is used.
func (c *cluster) tell() {
	bin := c.file("bin")
	fmt.Fprintf(c.env.Stdout, "The cluster is up. To use it:\n\n  export GRID_CONF=%s\n", c.file(confFile))
	if err := InstallLinks(bin); err == nil {
		fmt.Fprintf(c.env.Stdout, "  export PATH=%s:$PATH\n", bin)
	}
	if c.env.UID != 0 {
		fmt.Fprintln(c.env.Stdout, "\nWithout root, jobs run without control groups: their memory and processors are not limited.")
	}
	fmt.Fprintf(c.env.Stdout, "\n  ginfo                           its nodes\n  gsub --wrap 'hostname; sleep 30'  a job\n  gqueue                          what waits and runs\n"+
		"\nTo end it and all its jobs: grid down --dir %s\nIts log: %s\n", c.dir, c.file(logFile))
}

// Down stops the cluster and removes what Up made.
func Down(env *program.Env, given []getopt.Given) int {
	c := newCluster(env, given)
	if err := c.mine(); err != nil {
		env.Errorf("%v", err)
		return 1
	}
	if unlock, err := c.lock(false); err == nil {
		defer unlock()
	} else if !errors.Is(err, os.ErrNotExist) {
		env.Errorf("%v", err)
		return 1
	}
	pid, running := c.running()
	if !running {
		if _, err := os.Stat(c.file(pidFile)); err != nil {
			env.Errorf("no cluster was started in %s", c.dir)
			return 1
		}
		env.Infof("the cluster in %s is not running any more", c.dir)
		return c.clean()
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		env.Errorf("process %d: %v", pid, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for {
		if _, running := c.running(); !running {
			fmt.Fprintln(env.Stdout, "The cluster is down.")
			return c.clean()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			env.Errorf("process %d still runs after %s; its log is %s", pid, stopLimit, c.file(logFile))
			return 1
		}
	}
}

func (c *cluster) clean() int {
	if _, err := os.Stat(c.file(madeFile)); err == nil {
		if err := os.RemoveAll(c.dir); err != nil {
			c.env.Errorf("%v", err)
			return 1
		}
		return 0
	}
	for _, name := range []string{pidFile, readyFile, logFile, lockFile} {
		os.Remove(c.file(name))
	}
	os.RemoveAll(c.file("bin"))
	return 0
}

// running tells whether the process of the pid file is still that one: a pid may have gone to another since.
func (c *cluster) running() (pid int, ok bool) {
	b, err := os.ReadFile(c.file(pidFile))
	if err != nil {
		return 0, false
	}
	var start uint64
	if _, err := fmt.Sscan(string(b), &pid, &start); err != nil || pid <= 1 {
		return 0, false
	}
	now, err := startTime(pid)
	return pid, err == nil && now == start
}

// startTime is field 22 of /proc/PID/stat; an ended process that nobody has waited for counts as gone.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	i := strings.LastIndexByte(string(b), ')') // the name may hold blanks and parentheses
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 || f[0] == "Z" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}
