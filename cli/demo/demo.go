// Package demo shows a cluster at work on one machine: three controllers, four agents with simulated
// GPUs, real batch scripts of an ordinary user, and the leader killed in the middle.
package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Help is the text of grid demo --help.
const Help = `Usage: grid demo [--keep]

Starts a cluster in a new folder under $TMPDIR, runs jobs on it, kills the leading controller while
they run, shows that they went on, and stops everything. It takes about half a minute. Run as root it
submits as the user who called sudo, or as nobody; run as an ordinary user the cluster is rootless.

  --keep   leave the folder with scripts, output and logs, and say where it is

Example: grid demo
`

// demo is one showing.
type demo struct {
	out   io.Writer
	bin   string // folder of the programs
	dir   string // everything of this showing
	user  *user.User
	root  bool
	begun time.Time
	step  int
	ctld  *exec.Cmd
}

// Main runs the showing and gives the exit code: 1 when something did not go as it must.
func Main(args []string, stdout, stderr io.Writer) int {
	keep := false
	for _, a := range args {
		switch a {
		case "--keep":
			keep = true
		case "-h", "--help":
			fmt.Fprint(stdout, Help)
			return 0
		default:
			fmt.Fprintf(stderr, "grid demo: unknown word %q\nTry \"grid demo --help\" for more information\n", a)
			return 255
		}
	}
	d := &demo{out: stdout, root: os.Geteuid() == 0, begun: time.Now()}
	if err := d.run(keep); err != nil {
		fmt.Fprintf(stderr, "grid demo: %v\n", err)
		return 1
	}
	return 0
}

// say prints a numbered step with the time since the beginning.
func (d *demo) say(format string, args ...any) {
	d.step++
	fmt.Fprintf(d.out, "\n[%4.1f s] %d. %s\n", time.Since(d.begun).Seconds(), d.step, fmt.Sprintf(format, args...))
}

func (d *demo) run(keep bool) (err error) {
	if err := d.prepare(); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, d.stop())
		if keep {
			fmt.Fprintf(d.out, "\nScripts, output and logs: %s\n", d.dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(d.dir))
	}()
	for _, part := range []func() error{d.start, d.submit, d.killLeader, d.finish} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// prepare finds programs and user, and makes the folders.
func (d *demo) prepare() error {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return fmt.Errorf("own path: %w", err)
	}
	d.bin = filepath.Dir(self)
	if _, err := os.Stat(filepath.Join(d.bin, "gctld")); err != nil {
		return fmt.Errorf("gctld is not beside grid: build all programs first (make build)")
	}
	if d.user, err = submitter(d.root); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "grid-demo-"); err != nil {
		return err
	}
	if err := os.Chmod(d.dir, 0o755); err != nil {
		return err
	}
	for name, text := range scripts {
		if err := os.MkdirAll(d.work(), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(d.work(), name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	if d.root {
		uid, gid := ids(d.user)
		return os.Chown(d.work(), int(uid), int(gid))
	}
	return nil
}

func (d *demo) work() string { return filepath.Join(d.dir, "work") }

// submitter is the ordinary user that jobs belong to.
func submitter(root bool) (*user.User, error) {
	if !root {
		return user.Current()
	}
	if id := os.Getenv("SUDO_UID"); id != "" && id != "0" {
		if u, err := user.LookupId(id); err == nil {
			return u, nil
		}
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		return nil, fmt.Errorf("no ordinary user to submit as: %w; run grid demo as one", err)
	}
	return u, nil
}

func ids(u *user.User) (uid, gid uint32) {
	a, _ := strconv.ParseUint(u.Uid, 10, 32)
	b, _ := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(a), uint32(b)
}

// start brings the cluster up and waits until all nodes take jobs.
func (d *demo) start() error {
	how := "rootless, as you"
	if d.root {
		how = "as root, with control groups"
	}
	d.say("A cluster comes up on this machine (%s): three controllers that agree by majority,\n         four nodes with eight simulated A100 GPUs each.", how)
	d.ctld = exec.Command(filepath.Join(d.bin, "gctld"), "--dev", "--controllers", "3", "--nodes", "4",
		"--cpus", "4", "--mem", "2000", "--sim", "dgx-a100", "--dir", filepath.Join(d.dir, "cluster"))
	d.ctld.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(filepath.Join(d.dir, "gctld.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	d.ctld.Stderr = log
	out, err := d.ctld.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.ctld.Start(); err != nil {
		return err
	}
	if err := untilReady(out, 60*time.Second); err != nil {
		return fmt.Errorf("the cluster did not come up: %w; see %s with --keep", err, d.dir)
	}
	return d.show("sinfo")
}

// untilReady reads until the line that says so, and goes on reading so that the pipe never fills.
func untilReady(out io.Reader, most time.Duration) error {
	ready := make(chan bool, 1)
	go func() {
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			if strings.HasPrefix(sc.Text(), "gctld ready") {
				ready <- true
				io.Copy(io.Discard, out)
				return
			}
		}
		ready <- false
	}()
	select {
	case ok := <-ready:
		if ok {
			return nil
		}
		return errors.New("gctld ended")
	case <-time.After(most):
		return fmt.Errorf("nothing ready after %v", most)
	}
}

// command makes a command of the user's.
func (d *demo) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, name), args...)
	cmd.Dir = d.work()
	cmd.Env = []string{"PATH=" + d.bin + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + d.work(), "USER=" + d.user.Username,
		"GRID_CONF=" + filepath.Join(d.dir, "cluster", "grid.conf"), "LANG=C.UTF-8"}
	if d.root {
		uid, gid := ids(d.user)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	}
	return cmd
}

// output runs a command quietly.
func (d *demo) output(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	cmd := d.command(ctx, name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), err
}

// show runs a command for all to see.
func (d *demo) show(name string, args ...string) error {
	words := []string{name}
	for _, a := range args {
		if strings.ContainsAny(a, " |%") {
			a = "'" + a + "'"
		}
		words = append(words, a)
	}
	fmt.Fprintf(d.out, "         $ %s\n", strings.Join(words, " "))
	out, err := d.output(name, args...)
	for l := range strings.Lines(out) {
		fmt.Fprintf(d.out, "         %s\n", strings.TrimRight(l, "\n"))
	}
	return err
}

var leaderLine = regexp.MustCompile(`(?m)^(c\d+)\s.*leader`)

// leader names the controller that leads.
func (d *demo) leader() (string, error) {
	var last error
	for range 100 {
		out, err := d.output("gctl", "ping")
		if m := leaderLine.FindStringSubmatch(out); err == nil && m != nil {
			return m[1], nil
		}
		last = err
		time.Sleep(100 * time.Millisecond)
	}
	return "", fmt.Errorf("no leader within 10 s: %w", last)
}

// stop ends the cluster and checks that nothing of it lives.
func (d *demo) stop() error {
	if d.ctld == nil || d.ctld.Process == nil {
		return nil
	}
	d.say("Everything is stopped and removed.")
	if err := d.ctld.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- d.ctld.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("gctld --dev: %w", err)
		}
	case <-time.After(30 * time.Second):
		return fmt.Errorf("gctld --dev (pid %d) did not stop within 30 s", d.ctld.Process.Pid)
	}
	return nil
}
