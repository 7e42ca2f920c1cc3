package launch_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// TestOutputToAPipeThatNobodyReads: the start does not wait for a reader, and the user is told.
func TestOutputToAPipeThatNobodyReads(t *testing.T) {
	for _, driver := range []string{"auto", "none"} {
		t.Run(driver, func(t *testing.T) {
			n := newNode(t, "cgroup_driver = "+driver)
			must(t, unix.Mkfifo(n.dir+"/home/fifo", 0o666))
			must(t, os.Chown(n.dir+"/home/fifo", userID, userID))
			k := n.start(n.order("#!/bin/sh\necho hi", func(l *cred.Launch) { l.StdOut = "fifo" }))
			if r := n.wait(k); r.Signal != 53 || !strings.Contains(r.StdoutError, "could not open stdout file fifo") {
				t.Errorf("got %+v", *r)
			}
			n.release(k)
			in := n.start(n.order("#!/bin/sh\ncat; echo over", func(l *cred.Launch) { l.StdIn = "fifo" }))
			if r := n.wait(in); r.ExitCode != 0 || r.Signal != 0 || n.read("out") != "over\n" {
				t.Errorf("got %+v, output %q", *r, n.read("out"))
			}
			n.release(in)
		})
	}
}

// TestOutputToAPipeWithAReader: the descriptors that a job gets wait as ever.
func TestOutputToAPipeWithAReader(t *testing.T) {
	n := newNode(t)
	path := n.dir + "/home/fifo"
	must(t, unix.Mkfifo(path, 0o666))
	must(t, os.Chown(path, userID, userID))
	reader, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer reader.Close()
	script := "#!/usr/bin/python3\nimport fcntl, os\nfor fd in 0, 1, 2: os.write(1, b'%d ' % (fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK))"
	k := n.start(n.order(script, func(l *cred.Launch) { l.StdOut = "fifo" }))
	if r := n.wait(k); r.ExitCode != 0 || r.Signal != 0 {
		t.Errorf("got %+v", *r)
	}
	var buf [64]byte
	got, err := reader.Read(buf[:])
	if string(buf[:got]) != "0 0 0 " {
		t.Errorf("got %q %v", buf[:got], err)
	}
	n.release(k)
}

// TestStartThatHangsCanBeKilled freezes the run's group, so that the second step's first process stands
// still before its script: a kill ends it, and the pair that started it goes on.
func TestStartThatHangsCanBeKilled(t *testing.T) {
	n := newNode(t)
	first := n.start(n.order("#!/bin/sh\necho up\nsleep 100"))
	n.waitFor("out", "up")
	second := n.order("#!/bin/sh\necho second >second", func(l *cred.Launch) { l.JobID, l.Step, l.StdOut = first.Job, 3, "out2" })
	freeze := n.groupOf(first) + "/cgroup.freeze"
	must(t, os.WriteFile(freeze, []byte("1"), 0))
	answer, err := n.send(launch.Request{Start: n.sign(second)})
	must(t, err)
	k := second.key()
	select {
	case r := <-answer:
		t.Fatalf("it did not hang: %+v", r)
	case <-time.After(500 * time.Millisecond):
	}
	if r := n.ask(launch.Request{Kill: &k}); r.Err != "" {
		t.Error(r.Err)
	}
	select {
	case r := <-answer:
		if r.Err != "" {
			t.Errorf("start: %+v", r)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the kill did not end the start")
	}
	if r := n.wait(k); r.Signal != 9 {
		t.Errorf("got %+v", *r)
	}
	must(t, os.WriteFile(freeze, []byte("0"), 0))
	n.release(k)
	n.ask(launch.Request{Kill: &first})
	n.wait(first)
	n.release(first)
	if _, err := os.Stat(n.dir + "/home/second"); err == nil {
		t.Error("the script ran")
	}
}

// groupOf is the version 2 group of a run.
func (n *node) groupOf(k launch.Key) string {
	n.t.Helper()
	pattern := "/sys/fs/cgroup/%stensorgrid/test_" + nodeName + "/job_" + fmt.Sprintf("%d.%d", k.Job, k.Run)
	for _, root := range []string{"unified/", "", "*/", "*/*/", "*/*/*/"} {
		if found, _ := filepath.Glob(fmt.Sprintf(pattern, root)); len(found) == 1 {
			if _, err := os.Stat(found[0] + "/cgroup.freeze"); err == nil {
				return found[0]
			}
		}
	}
	n.t.Skip("no version 2 group here")
	return ""
}

// TestStepUIDCanChangeItsRecordOnly tries all that the shepherds' uid could do in a step's folder.
func TestStepUIDCanChangeItsRecordOnly(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/sh\necho up\nwhile [ ! -e go ]; do sleep 0.02; done\nexec cat $0"))
	n.waitFor("out", "up")
	folder := launch.StepFolder(n.spool, k)
	for _, try := range []string{"echo x >new && mv -f new script", "rm -f script", "mv script other", "echo x >script", "rm -f lock",
		"mv lock other", "ln -sf /etc/passwd lock", "echo 1 0 >lock"} {
		cmd := exec.Command("/bin/sh", "-c", try)
		cmd.Dir = folder
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stepID, Gid: stepID, Groups: []uint32{agentID}}}
		if err := cmd.Run(); err == nil {
			t.Errorf("the shepherds' uid can: %s", try)
		}
	}
	must(t, os.WriteFile(n.dir+"/home/go", nil, 0o644))
	if r := n.wait(k); r.ExitCode != 0 || !strings.Contains(n.read("out"), "exec cat $0") {
		t.Errorf("got %+v, output %q", *r, n.read("out"))
	}
	n.recordOf(k)
	n.release(k)
}

// TestFullDiskLosesNoEnd fills the disk of the spool while a job runs.
func TestFullDiskLosesNoEnd(t *testing.T) {
	n := newNode(t)
	steps := n.spool + "/steps"
	must(t, unix.Mount("tmpfs", steps, "tmpfs", 0, "size=64k,mode=711"))
	t.Cleanup(func() { must(t, unix.Unmount(steps, unix.MNT_DETACH)) })
	k := n.start(n.order("#!/bin/sh\necho up\nwhile [ ! -e go ]; do sleep 0.02; done\nexit 3"))
	n.waitFor("out", "up")
	must(t, os.Mkdir(steps+"/fill", 0o700))
	for i := range 1000 {
		if err := os.WriteFile(fmt.Sprint(steps, "/fill/", i), make([]byte, 512), 0o600); err != nil {
			break
		}
	}
	refused := n.ask(launch.Request{Start: n.sign(n.order("#!/bin/sh"))})
	if refused.Errno != int(unix.ENOSPC) {
		t.Errorf("start on a full disk: %+v", refused)
	}
	n.stopAgent()
	must(t, os.WriteFile(n.dir+"/home/go", nil, 0o644))
	if r := n.recordOf(k); r.ExitCode != 3 || r.Key != k {
		t.Errorf("got %+v", *r)
	}
	if left, _ := filepath.Glob(steps + "/.spare*"); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	n.release(k)
}

// TestDamagedPlanDoesNotKeepTheLauncherDown spoils the lock file of one of two steps.
func TestDamagedPlanDoesNotKeepTheLauncherDown(t *testing.T) {
	damage := map[string]func(path string) error{
		"zeros": func(p string) error { return os.WriteFile(p, make([]byte, 1024), 0) },
		"empty": func(p string) error { return os.Truncate(p, 0) },
		"link":  func(p string) error { return errors.Join(os.Remove(p), os.Symlink("/etc/passwd", p)) },
		"fifo":  func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
	}
	for name, spoil := range damage {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "epilog="+hook(t, "exit 0"))
			bad := n.start(n.order("#!/bin/sh\necho up\nsleep 100"))
			n.waitFor("out", "up")
			good := n.start(n.order("#!/bin/sh\necho up\nwhile [ ! -e go ]; do sleep 0.02; done\nexit 4", func(l *cred.Launch) { l.StdOut = "out2" }))
			n.waitFor("out2", "up")
			n.killLauncher()
			must(t, spoil(launch.StepFolder(n.spool, bad)+"/lock"))
			n.startLauncher()
			if r := n.wait(bad); r.Signal != 9 {
				t.Errorf("the damaged one: %+v", *r)
			}
			must(t, os.WriteFile(n.dir+"/home/go", nil, 0o644))
			if r := n.wait(good); r.ExitCode != 4 || r.Signal != 0 {
				t.Errorf("the other: %+v", *r)
			}
			if r := n.ask(launch.Request{Release: &launch.Release{Key: bad}}); !strings.Contains(r.Err, "epilog: it has not run") {
				t.Errorf("release of the damaged one: %+v", r)
			}
			n.release(bad)
			n.release(good)
		})
	}
}

// hook writes a program of root's.
func hook(t *testing.T, script string) string {
	t.Helper()
	path := t.TempDir() + "/hook"
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	return path
}

// TestSignalForStepsLeavesTheScriptAlone: neither the batch shell nor its children get it.
func TestSignalForStepsLeavesTheScriptAlone(t *testing.T) {
	n := newNode(t)
	script := "#!/bin/bash\ntrap 'kill $!; exit 3' USR2\nsleep 100 &\necho up\nwait\nexit 1"
	k := n.start(n.order(script))
	n.waitFor("out", "up")
	if r := n.ask(launch.Request{Signal: &launch.Signal{Key: k, Number: int(unix.SIGUSR1), Steps: true}}); r.Err != "" {
		t.Errorf("got %+v", r)
	}
	if r := n.ask(launch.Request{Signal: &launch.Signal{Key: k, Number: int(unix.SIGUSR2), Batch: true}}); r.Err != "" {
		t.Errorf("got %+v", r)
	}
	if r := n.wait(k); r.ExitCode != 3 || r.Signal != 0 {
		t.Errorf("got %+v", *r)
	}
	n.release(k)
}

// TestStopDuringAProlog: the start is answered and taken back, and the prolog ends with the launcher.
func TestStopDuringAProlog(t *testing.T) {
	n := newNode(t, "prolog="+hook(t, "echo $$ >$0.pid; exec sleep 100"), "epilog="+hook(t, "echo ran >$0.ran"))
	conf, err := os.ReadFile(n.conf)
	must(t, err)
	_, prolog, _ := strings.Cut(string(conf), "prolog=")
	prolog, _, _ = strings.Cut(prolog, "\n")
	o := n.order("#!/bin/sh\necho no >no")
	answer, err := n.send(launch.Request{Start: n.sign(o)})
	must(t, err)
	var pid string
	for range 1000 {
		data, _ := os.ReadFile(prolog + ".pid")
		if pid = strings.TrimSpace(string(data)); pid != "" {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	must(t, n.cmd.Process.Signal(unix.SIGTERM))
	select {
	case r := <-answer:
		if !strings.Contains(r.Err, "the launcher was stopped") || job.Cause(r.Cause) != job.CauseNode {
			t.Errorf("got %+v", r)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no answer")
	}
	if err := n.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/proc/" + pid); err == nil {
		t.Errorf("prolog %s lives on", pid)
	}
	n.startLauncher()
	if keys := n.ask(launch.Request{List: true}).Keys; len(keys) != 0 {
		t.Errorf("left %v", keys)
	}
}

// TestLauncherKilledDuringAProlog: nobody holds the step's lock then, which tells that it never started.
func TestLauncherKilledDuringAProlog(t *testing.T) {
	n := newNode(t, "prolog="+hook(t, "echo up >$0.up; exec sleep 100"), "epilog="+hook(t, "exit 0"))
	conf, err := os.ReadFile(n.conf)
	must(t, err)
	_, prolog, _ := strings.Cut(string(conf), "prolog=")
	prolog, _, _ = strings.Cut(prolog, "\n")
	o := n.order("#!/bin/sh\necho no >no")
	_, err = n.send(launch.Request{Start: n.sign(o)})
	must(t, err)
	for range 1000 {
		if _, err := os.Stat(prolog + ".up"); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	k := o.key()
	held := func() error {
		lock, err := os.Open(launch.StepFolder(n.spool, k) + "/lock")
		must(t, err)
		defer lock.Close()
		return unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	}
	if held() == nil {
		t.Error("nobody holds the lock during the prolog")
	}
	n.killLauncher()
	n.startLauncher()
	if r := n.ask(launch.Request{Start: n.sign(o)}); job.Cause(r.Cause) != job.CauseDuplicate {
		t.Errorf("again: %+v", r)
	}
	if err := held(); err != nil {
		t.Errorf("lock: %v", err)
	}
	n.release(k)
}

// TestStepsShareNoKeyring: what a job puts into its session keyring is nobody else's.
func TestStepsShareNoKeyring(t *testing.T) {
	n := newNode(t)
	ours, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
	if err != nil {
		t.Skip("no keys here:", err)
	}
	script := fmt.Sprintf("#!/usr/bin/python3\nimport ctypes\nprint(ctypes.CDLL(None).syscall(%d, 0, -3, 0))", unix.SYS_KEYCTL)
	seen := map[string]bool{fmt.Sprintln(ours): true}
	for range 3 {
		ring := n.output(script)
		if seen[ring] {
			t.Errorf("keyring %s is another's", ring)
		}
		seen[ring] = true
	}
}

// TestSecondLauncher: a second launcher on the same spool ends by itself, and the first goes on.
func TestSecondLauncher(t *testing.T) {
	n := newNode(t)
	bin, err := binaries()
	must(t, err)
	out, err := exec.Command(bin+"/launcher", "-f", n.conf).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "in use by another launcher") {
		t.Errorf("a second launcher: %v, %s", err, out)
	}
	conn, err := n.dialAs(agentID)
	if err != nil {
		t.Fatalf("the first launcher's socket: %v", err)
	}
	conn.Close()
	n.conn.Close()
	n.cmd.Process.Kill() // and at once another
	n.cmd.Wait()
	n.startLauncher()
}
