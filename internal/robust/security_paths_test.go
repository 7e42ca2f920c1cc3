package robust

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// shadow is a file that root alone may read, of which nothing may come out and into which nothing may go.
type shadow struct {
	path string
	info os.FileInfo
}

const shadowText = "root:$y$the-hash-that-nobody-may-see\n"

func (c *cluster) shadow() shadow {
	c.t.Helper()
	dir := c.path("work", "roots") // beside the user's files: hard links reach it
	c.ok(errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "shadow"), []byte(shadowText), 0o600), os.Mkdir(filepath.Join(dir, "private"), 0o700),
		os.WriteFile(filepath.Join(dir, "private", "keep"), []byte(shadowText), 0o600)))
	info, err := os.Stat(filepath.Join(dir, "shadow"))
	c.ok(err)
	return shadow{filepath.Join(dir, "shadow"), info}
}

// touched says what has become of it; nil: nothing.
func (s shadow) touched() error {
	info, err := os.Lstat(s.path)
	if err != nil {
		return err
	}
	a, b := s.info.Sys().(*syscall.Stat_t), info.Sys().(*syscall.Stat_t)
	text, err := os.ReadFile(s.path)
	keep, keepErr := os.ReadFile(filepath.Join(filepath.Dir(s.path), "private", "keep"))
	if err = errors.Join(err, keepErr); err != nil {
		return err
	}
	if string(text) != shadowText || string(keep) != shadowText || a.Uid != b.Uid || a.Gid != b.Gid || a.Mode != b.Mode || a.Ino != b.Ino {
		return fmt.Errorf("it is now of %d:%d, mode %o, %q and %q", b.Uid, b.Gid, b.Mode, text, keep)
	}
	return nil
}

// swapper exchanges a name for others, as its owner, until quit.
func (c *cluster) swapper(name string, others []string, quit <-chan struct{}) (swaps *int, wg *sync.WaitGroup) {
	swaps, wg = new(int), new(sync.WaitGroup)
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			case <-time.After(200 * time.Microsecond):
			}
			if unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, others[i%len(others)], unix.RENAME_EXCHANGE) == nil {
				*swaps++
			}
		}
	})
	return swaps, wg
}

// TestSecurityPaths: while jobs start, what they name as output, input and work directory turns into links to
// root's files, hard links, pipes and sockets and back, thousands of times: root's files stay as they are,
// nothing of them gets out, and the node goes on.
func TestSecurityPaths(t *testing.T) {
	long(t)
	c := start(t, layout{controllers: 1, nodes: 1, cpus: 64, partitions: []string{"PartitionName=batch Nodes=ALL Default=YES", "PartitionName=own Nodes=ALL SharedFS=NO"}})
	s := c.shadow()
	place := c.path("work", "swap")
	c.ok(errors.Join(os.Mkdir(place, 0o755), os.Chown(place, userUID, userUID)))
	at := func(name string) string { return filepath.Join(place, name) }
	own := func(path string) error { return os.Lchown(path, userUID, userUID) }
	var all []*int
	quit := make(chan struct{})
	var groups []*sync.WaitGroup
	for _, what := range []string{"out", "in"} {
		c.ok(errors.Join(os.WriteFile(at(what), []byte("mine\n"), 0o644), own(at(what))))
		c.ok(errors.Join(os.Symlink(s.path, at(what+".link")), own(at(what+".link"))))
		others := []string{at(what + ".link"), at(what + ".fifo"), at(what + ".link"), at(what + ".dangling"), at(what + ".link")}
		c.ok(errors.Join(unix.Mkfifo(at(what+".fifo"), 0o644), own(at(what+".fifo")), os.Symlink(c.path("etc", "new-file-of-roots-"+what), at(what+".dangling")), own(at(what+".dangling"))))
		if os.Link(s.path, at(what+".hard")) == nil { // what protected_hardlinks=0 lets everybody do
			others = append(others, at(what+".hard"))
		}
		swaps, wg := c.swapper(at(what), others, quit)
		all, groups = append(all, swaps), append(groups, wg)
	}
	c.ok(errors.Join(os.Mkdir(at("dir"), 0o755), own(at("dir")), os.Symlink(filepath.Join(filepath.Dir(s.path), "private"), at("dir.link"))))
	swaps, wg := c.swapper(at("dir"), []string{at("dir.link")}, quit)
	all, groups = append(all, swaps), append(groups, wg)

	jobs := 0
	for begin := time.Now(); time.Since(begin) < 25*time.Second || jobs < 100; jobs++ {
		spec := c.spec(fmt.Sprintf("p%d", jobs), "")
		spec.Script = []byte("#!/bin/sh\ncat\ncat keep 2>/dev/null\necho written by the job\n")
		spec.WorkDir, spec.StdOut, spec.StdErr, spec.StdIn, spec.TimeLimitMs = at("dir"), at("out"), at("err"), at("in"), 60_000
		c.submit(spec)
		if jobs%8 == 7 {
			c.settled(30 * time.Second)
		}
	}
	close(quit)
	for _, wg := range groups {
		wg.Wait()
	}
	c.settled(60 * time.Second)
	bad := 0
	if err := s.touched(); err != nil {
		bad++
		t.Errorf("root's file: %v", err)
	}
	filepath.WalkDir(place, func(p string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		if info, err := e.Info(); err == nil && info.Sys().(*syscall.Stat_t).Uid != userUID && !os.SameFile(info, s.info) {
			bad++
			t.Errorf("%s is not the user's", p)
		}
		if text, _ := os.ReadFile(p); strings.Contains(string(text), "$y$") && !strings.Contains(p, ".hard") {
			if info, err := os.Stat(p); err == nil && !os.SameFile(info, s.info) {
				bad++
				t.Errorf("%s holds what root alone may read", p)
			}
		}
		return nil
	})
	for _, what := range []string{"out", "in"} {
		if _, err := os.Lstat(c.path("etc", "new-file-of-roots-"+what)); err == nil {
			bad++
			t.Error("a file was made through a dangling link")
		}
	}
	least := slices.MinFunc(all, func(a, b *int) int { return *a - *b })
	figure(t, "security_paths_swaps", float64(*least), "swaps of each name", 1000)
	figure(t, "security_paths_jobs", float64(jobs), "jobs", 100)
	most(t, "security_paths_touched", float64(bad), "files", 0)
	c.submit(c.spec("after", ":"))
	c.settled(30 * time.Second)
	ended := map[string]int{}
	for _, j := range c.allJobs() {
		ended[j.State]++
	}
	t.Logf("%v", ended)
	figure(t, "security_paths_completed", float64(ended["COMPLETED"]), "jobs", 20)
	figure(t, "security_paths_failed", float64(ended["FAILED"]), "jobs that had no file to open", 1)
}

// settled cancels what has hung at a pipe, and waits until nothing runs and the node is well.
func (c *cluster) settled(most time.Duration) {
	c.t.Helper()
	begin := time.Now()
	within(c.t, most, "all jobs over", func() error {
		left := 0
		for _, j := range c.allJobs() {
			if over(j) {
				continue
			}
			left++
			if time.Since(begin) > 2*time.Second {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				c.user(0).any().Cancel(ctx, &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(j.JobId)}}, Key: fmt.Sprint("s", j.JobId, time.Now().Unix())})
				cancel()
			}
		}
		if left > 0 {
			return fmt.Errorf("%d are left", left)
		}
		return nil
	})
	c.waitReady(20 * time.Second)
}

// TestSecurityWorkFolders: where a job's folder is in the node's spool, its owner changes it from outside while
// root takes it away: nothing outside of it is touched.
func TestSecurityWorkFolders(t *testing.T) {
	long(t)
	c := start(t, layout{controllers: 1, nodes: 1, cpus: 64, partitions: []string{"PartitionName=own Nodes=ALL Default=YES SharedFS=NO"}})
	s := c.shadow()
	victim := filepath.Join(filepath.Dir(s.path), "private")
	c.ok(os.Chmod(victim, 0o755)) // who may look into it is no matter: it is root that removes
	// A process of the user's that is no job's holds each work folder and plants links in it.
	plant := `#!/bin/sh
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do mkdir -p a$i/b/c; echo x > a$i/b/c/f; done
echo $PWD > ` + c.path("work", "jobs") + `/$SLURM_JOB_NAME.dir
sleep 0.3
`
	quit := make(chan struct{})
	var wg sync.WaitGroup
	swaps := 0
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			case <-time.After(200 * time.Microsecond):
			}
			dirs, _ := filepath.Glob(c.path("spool", "n1", "work", "*", "a*", "b"))
			if len(dirs) == 0 {
				dirs, _ = filepath.Glob(c.path("spool", "n1", "*", "*", "a*", "b"))
			}
			for _, d := range dirs {
				link := filepath.Dir(d) + "/x"
				os.Symlink(victim, link)
				if unix.Renameat2(unix.AT_FDCWD, d, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil {
					swaps++
				}
			}
		}
	})
	const jobs = 60
	for i := range jobs {
		spec := c.spec(fmt.Sprintf("w%d", i), "")
		spec.Script, spec.WorkDir, spec.StdOut = []byte(plant), "/", ""
		c.submit(spec)
	}
	c.settled(60 * time.Second)
	close(quit)
	wg.Wait()
	c.ok(os.Chmod(victim, 0o700))
	bad := 0
	if err := s.touched(); err != nil {
		bad++
		t.Errorf("root's file: %v", err)
	}
	figure(t, "security_work_swaps", float64(swaps), "swaps", 1000)
	most(t, "security_work_touched", float64(bad), "files", 0)
}

// TestSecurityJobSees: a job has the descriptors 0, 1 and 2 and its own environment; prolog and epilog have
// nothing of the user's in theirs.
func TestSecurityJobSees(t *testing.T) {
	needRoot(t)
	if testing.Short() {
		t.Skip("starts a cluster; not with -short")
	}
	c := prepare(t, layout{controllers: 1, nodes: 1})
	conf := c.path("etc", "n1.launch.conf")
	hook := c.path("etc", "hook")
	c.ok(os.WriteFile(hook, []byte("#!/bin/sh\n{ echo \"== $SLURM_SCRIPT_CONTEXT\"; tr '\\0' '\\n' < /proc/self/environ; ls -l /proc/self/fd; } >> "+c.path("ca", "hooks")+"\n"), 0o755))
	text, err := os.ReadFile(conf)
	c.ok(errors.Join(err, os.WriteFile(conf, append(text, "prolog = "+hook+"\nepilog = "+hook+"\n"...), 0o600)))
	c.run("c1")
	c.run(launcher("n1"))
	c.run("n1")
	c.waitReady(60 * time.Second)
	evil := []string{"LD_PRELOAD=/tmp/evil.so", "LD_LIBRARY_PATH=/tmp/evil", "BASH_ENV=/tmp/evil.sh", "ENV=/tmp/evil.sh", "IFS=/", "PS4=$(touch /tmp/evil)",
		"SHELLOPTS=xtrace", "BASH_FUNC_ls%%=() { touch /tmp/evil; }", "PYTHONPATH=/tmp/evil", "SLURM_JOB_USER=root", "SLURM_CONF=/tmp/evil", "GRID_CONF=" + c.path("etc", "user.conf")}
	out := c.path("work", "sees")
	script := c.path("work", "see.sh")
	c.ok(os.WriteFile(script, []byte("#!/bin/sh\nls -1 /proc/$$/fd\necho \"/ $(id -u) $(id -G)\"\n"), 0o755))
	cmd := exec.Command(filepath.Join(c.bin, "gsub"), "--parsable", "-J", "$(touch /tmp/evil);`id`", "--chdir", c.path("work"), "-o", out, script)
	cmd.Env = append([]string{"PATH=/tmp/evil:" + c.bin + ":/usr/bin:/bin"}, evil[2:]...) // what the loader reads would end gsub itself
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH=/tmp/evil")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userUID, Gid: userUID}}
	_, err = output(cmd)
	c.ok(err)
	var hooks string
	within(t, 30*time.Second, "prolog and epilog", func() error {
		data, _ := os.ReadFile(c.path("ca", "hooks"))
		if hooks = string(data); !strings.Contains(hooks, "epilog_slurmd") {
			return fmt.Errorf("%q", hooks)
		}
		return nil
	})
	for line := range strings.Lines(hooks) {
		name, _, isVar := strings.Cut(strings.TrimSpace(line), "=")
		known := strings.HasPrefix(name, "SLURM_") || name == "SLURMD_NODENAME" || name == "PATH" || name == "PWD" || name == "_"
		if strings.Contains(line, "evil") || isVar && !known && !strings.HasPrefix(line, "==") {
			t.Errorf("prolog or epilog has %q", line)
		}
	}
	if n := strings.Count(hooks, "/proc/"); n > 2 || strings.Contains(hooks, "socket:") {
		t.Errorf("prolog or epilog has descriptors that are not its own:\n%s", hooks)
	}
	if !strings.Contains(hooks, "PATH=/usr/sbin:/usr/bin:/sbin:/bin\n") || !strings.Contains(hooks, "SLURM_JOB_USER="+account(t, userUID)+"\n") {
		t.Errorf("the environment of prolog and epilog:\n%s", hooks)
	}
	seen, err := os.ReadFile(out)
	c.ok(err)
	fds, ids, _ := strings.Cut(string(seen), "/ ")
	// A shell keeps its script open, at 10 or 255.
	if f := strings.Fields(fds); len(f) < 3 || !slices.Equal(f[:3], []string{"0", "1", "2"}) && !slices.Equal(f, []string{"0", "1", "10", "2"}) && !slices.Equal(f, []string{"0", "1", "2", "255"}) {
		t.Errorf("the job has the descriptors %q", fds)
	}
	if w := strings.Fields(ids); len(w) < 2 || w[0] != fmt.Sprint(userUID) || slices.Contains(w[1:], "0") || slices.Contains(w[1:], fmt.Sprint(agentUID)) || slices.Contains(w[1:], fmt.Sprint(stepUID)) {
		t.Errorf("the job runs as %q", ids)
	}
}
