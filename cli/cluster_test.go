package main_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// cluster is a development cluster that a test started.
type cluster struct {
	dir, bin string
	user     *user.User // who submits
	root     bool
	cmd      *exec.Cmd
	log      *bytes.Buffer
}

var buildOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "grid-bin-")
	if err != nil {
		return "", err
	}
	os.Chmod(dir, 0o755)
	for name, pkg := range map[string]string{"grid": ".", "gctld": "../ctld", "gnoded": "../nodeagent",
		"gnode-launch": "../nodeagent/launcher", "gstepd": "../nodeagent/stepd"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	for _, l := range strings.Fields("gsub gqueue gcancel ginfo gacct gctl gacctmgr gshare gprio sbatch squeue scancel sinfo sacct scontrol sacctmgr sshare sprio") {
		if err := os.Symlink("grid", filepath.Join(dir, l)); err != nil {
			return dir, err
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv("CASES_FOLDER") == "" {
		if dir, _ := buildOnce(); dir != "" {
			os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// startCluster builds the programs, starts a cluster and waits until its nodes take jobs. As root the
// jobs are nobody's, else those of the user who runs the test.
func startCluster(t *testing.T, flags ...string) *cluster {
	t.Helper()
	bin, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "grid-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	c := &cluster{dir: filepath.Join(dir, "c"), bin: bin, root: os.Geteuid() == 0, log: &bytes.Buffer{}}
	name := "nobody"
	if !c.root {
		name = strconv.Itoa(os.Getuid())
	}
	if c.user, err = user.LookupId(name); err != nil {
		if c.user, err = user.Lookup(name); err != nil {
			t.Fatal(err)
		}
	}
	args := append([]string{"--dev", "--dir", c.dir, "--set", "Operators=" + c.user.Username}, flags...)
	c.cmd = exec.Command(filepath.Join(bin, "gctld"), args...)
	c.cmd.Stderr = c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.stop(t) })
	c.waitReady(t, out)
	return c
}

// waitReady reads the line that says that every node is up.
func (c *cluster) waitReady(t *testing.T, out io.Reader) {
	t.Helper()
	ready := make(chan bool, 1)
	go func() {
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			if strings.HasPrefix(sc.Text(), "gctld ready") {
				ready <- true
				break
			}
		}
		close(ready)
		io.Copy(io.Discard, out)
	}()
	select {
	case ok := <-ready:
		if ok {
			return
		}
	case <-time.After(90 * time.Second):
	}
	t.Fatalf("the cluster did not come up\n%s\n%s", c.log, c.logs())
}

// logs gives the ends of the daemons' logs.
func (c *cluster) logs() string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(c.dir, "log", "*.log"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if len(text) > 3000 {
			text = text[len(text)-3000:]
		}
		fmt.Fprintf(&b, "== %s\n%s", filepath.Base(f), text)
	}
	return b.String()
}

func (c *cluster) stop(t *testing.T) {
	c.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- c.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		c.cmd.Process.Kill()
		t.Error("the cluster did not stop within a minute of TERM")
	}
	if t.Failed() {
		t.Logf("%s\n%s", c.log, c.logs())
	}
}

// pid is a daemon's process id: "c1", "n1" (agent), "n1.launch"; 0 while it is down.
func (c *cluster) pid(daemon string) int {
	b, err := os.ReadFile(filepath.Join(c.dir, "log", daemon+".pid"))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// command makes a command of the user's.
func (c *cluster) command(ctx context.Context, work, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, name), args...)
	cmd.Dir = work
	cmd.Env = c.environ(work)
	cmd.SysProcAttr = c.asUser()
	return cmd
}

func (c *cluster) environ(work string) []string {
	return []string{"PATH=" + c.bin + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + work, "USER=" + c.user.Username,
		"GRID_CONF=" + filepath.Join(c.dir, "grid.conf"), "LANG=C.UTF-8", "TMPDIR=" + work}
}

func (c *cluster) asUser() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.root {
		uid, _ := strconv.ParseUint(c.user.Uid, 10, 32)
		gid, _ := strconv.ParseUint(c.user.Gid, 10, 32)
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr
}

// workDir makes a folder that the user owns.
func (c *cluster) workDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "grid-work-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c.own(t, dir)
	return dir
}

func (c *cluster) own(t *testing.T, dir string) {
	if !c.root {
		return
	}
	uid, _ := strconv.Atoi(c.user.Uid)
	gid, _ := strconv.Atoi(c.user.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
}

// runAsUser runs this test binary again as the user, for the scripts of a folder.
func (c *cluster) runAsUser(t *testing.T, folder string) {
	t.Helper()
	work := c.workDir(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The binary that "go test" made may lie where the user cannot read it.
	copyOf := filepath.Join(filepath.Dir(c.dir), "cases.test")
	data, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(copyOf, data, 0o755)
	}
	scripts := filepath.Join(filepath.Dir(c.dir), "src")
	if err == nil {
		err = os.CopyFS(filepath.Join(scripts, "testdata"), os.DirFS("testdata"))
	}
	if err != nil {
		t.Fatal(err)
	}
	filepath.Walk(scripts, func(p string, _ os.FileInfo, _ error) error { return os.Chmod(p, 0o755) })
	cmd := exec.Command(copyOf, "-test.run=^"+t.Name()+"$", "-test.v", "-test.parallel=8", "-test.timeout=10m")
	if folder != "cases" { // they change nodes, controllers and limits: one at a time
		cmd.Args = append(cmd.Args, "-test.parallel=1")
	}
	if p := os.Getenv("CASES_RUN"); p != "" {
		cmd.Args[1] += "/" + p
	}
	cmd.Dir = scripts
	cmd.Env = append(c.environ(work), "CASES_FOLDER="+folder, "CASES_WORK="+work)
	if c.root {
		cmd.Env = append(cmd.Env, "CASES_ROOT=1")
	}
	for _, v := range []string{"ADM", "C4", "USERPORT"} {
		cmd.Env = append(cmd.Env, v+"="+os.Getenv(v))
	}
	cmd.SysProcAttr = c.asUser()
	stop := c.serveRestarts(work)
	out, err := cmd.CombinedOutput()
	stop()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		return
	}
	t.Logf("%s", out)
}

// serveRestarts kills the daemons that a script asks for: the file restart-NAME in its work root
// names one, and is gone when the daemon has another pid.
func (c *cluster) serveRestarts(work string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			asked, _ := filepath.Glob(filepath.Join(work, "restart-*"))
			for _, f := range asked {
				name := strings.TrimPrefix(filepath.Base(f), "restart-")
				old := c.pid(name)
				if old != 0 {
					syscall.Kill(old, syscall.SIGKILL)
				}
				for end := time.Now().Add(20 * time.Second); (c.pid(name) == 0 || c.pid(name) == old) && time.Now().Before(end); {
					time.Sleep(20 * time.Millisecond)
				}
				os.Remove(f)
			}
		}
	}()
	return func() { close(quit); <-done }
}
