package launch_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch/server"
)

func TestFilesThatCannotBeOpened(t *testing.T) {
	n := newNode(t)
	must(t, os.WriteFile(n.dir+"/roots", []byte("precious"), 0o600))
	for _, c := range []struct {
		name   string
		change func(*cred.Launch)
		want   string
	}{
		{"no folder for stdout", func(l *cred.Launch) { l.StdOut = "nodir/x" }, "stdout file nodir/x: No such file or directory"},
		{"no folder for stderr", func(l *cred.Launch) { l.StdErr = "nodir/y" }, "stderr file nodir/y: No such file or directory"},
		{"no stdin", func(l *cred.Launch) { l.StdIn = "missing" }, "stdin file missing: No such file or directory"},
		{"root's file", func(l *cred.Launch) { l.StdOut = n.dir + "/roots" }, "Permission denied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := n.start(n.order("#!/bin/sh\ntouch ran", c.change))
			r := n.wait(k)
			if r.ExitCode != 0 || r.Signal != 53 || job.Cause(r.Cause) != job.CauseUser || !strings.Contains(r.StdoutError, c.want) {
				t.Errorf("got %+v, want 0:53 and %q", *r, c.want)
			}
			n.release(k)
		})
	}
	if _, err := os.Stat(n.dir + "/home/ran"); err == nil {
		t.Error("the script ran")
	}
	if data, _ := os.ReadFile(n.dir + "/roots"); string(data) != "precious" {
		t.Errorf("root's file holds %q", data)
	}
}

func TestOpenModes(t *testing.T) {
	n := newNode(t)
	run := func(appending bool, text, want string) {
		t.Helper()
		k := n.start(n.order("#!/bin/sh\necho "+text+"; echo err >&2", func(l *cred.Launch) { l.Append = appending }))
		n.wait(k)
		n.release(k)
		if got := n.read("out"); got != want {
			t.Errorf("got %q want %q", got, want)
		}
	}
	run(false, "one", "one\nerr\n")
	run(false, "two", "two\nerr\n")
	run(true, "three", "two\nerr\nthree\nerr\n")
}

func TestStdin(t *testing.T) {
	n := newNode(t)
	must(t, os.WriteFile(n.dir+"/home/in", []byte("from the file"), 0o644))
	if got := n.output("#!/bin/sh\ncat", func(l *cred.Launch) { l.StdIn = "in" }); got != "from the file" {
		t.Errorf("got %q", got)
	}
}

func TestWorkDirectoryThatCannotBeEntered(t *testing.T) {
	n := newNode(t)
	must(t, os.Mkdir(n.dir+"/private", 0o700))
	k := n.start(n.order("#!/bin/sh\npwd", func(l *cred.Launch) {
		l.WorkDir = n.dir + "/private"
		l.StdOut = n.dir + "/home/out"
		l.StdErr = n.dir + "/home/err"
	}))
	if r := n.wait(k); r.ExitCode != 0 || r.Signal != 0 {
		t.Errorf("got %+v", *r)
	}
	if got := n.read("out"); got != "/tmp\n" {
		t.Errorf("ran in %q", got)
	}
	want := fmt.Sprintf("slurmstepd: error: couldn't chdir to `%s/private': Permission denied: going to /tmp instead\n", n.dir)
	if got := n.read("err"); got != want {
		t.Errorf("standard error %q want %q", got, want)
	}
	n.release(k)
}

func TestInterpreterThatIsMissing(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		script string
		errno  unix.Errno
	}{{"#!/no/such/shell\n", unix.ENOENT}, {"not a script", unix.ENOEXEC}, {"#!/root\n", unix.EACCES}} {
		k := n.start(n.order(c.script))
		r := n.wait(k)
		if r.ExitCode != int(c.errno) || job.Cause(r.Cause) != job.CauseUser || !strings.Contains(r.Err, "execve()") {
			t.Errorf("%q: got %+v, want the exit code %d", c.script, *r, c.errno)
		}
		if got := n.read("out"); !strings.Contains(got, "slurmstepd: error: execve(): ") {
			t.Errorf("output %q", got)
		}
		n.release(k)
	}
}

func TestSpooledOutput(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/sh\npwd; id -u; stat -c %a:%u .; echo e >&2", func(l *cred.Launch) {
		l.SharedFS, l.WorkDir, l.StdErr = false, "/home/nobody-here", "err"
	}))
	n.wait(k)
	work := launch.WorkFolder(n.spool, k)
	out := launch.OutputFile(n.spool, k, false)
	data, err := os.ReadFile(out)
	must(t, err)
	if want := fmt.Sprintf("%s\n%d\n700:%d\n", work, userID, userID); string(data) != want {
		t.Errorf("got %q want %q", data, want)
	}
	if data, _ := os.ReadFile(launch.OutputFile(n.spool, k, true)); string(data) != "e\n" {
		t.Errorf("standard error %q", data)
	}
	var st unix.Stat_t
	must(t, unix.Lstat(out, &st))
	if st.Uid != stepID || st.Gid != agentID || st.Mode&0o777 != 0o640 {
		t.Errorf("output has uid %d gid %d mode %o", st.Uid, st.Gid, st.Mode&0o777)
	}
	if r := n.ask(launch.Request{Release: &launch.Release{Key: k, KeepOutput: true}}); r.Err != "" {
		t.Error(r.Err)
	}
	if _, err := os.Stat(out); err != nil {
		t.Error("the output should have been kept")
	}
	if _, err := os.Stat(work); err == nil {
		t.Error("the work directory should be gone")
	}
}

func TestLooseConf(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		name  string
		spoil func(path string)
		want  string
	}{
		{"group may write", func(p string) { must(t, os.Chmod(p, 0o620)) }, "may write it"},
		{"others may write", func(p string) { must(t, os.Chmod(p, 0o602)) }, "may write it"},
		{"somebody else's", func(p string) { must(t, os.Chown(p, userID, 0)) }, "belongs to uid"},
		{"a link", func(p string) { must(t, os.Rename(p, p+".x")); must(t, os.Symlink(p+".x", p)) }, "too many levels"},
		{"a folder", func(p string) { must(t, os.Remove(p)); must(t, os.Mkdir(p, 0o755)) }, "not a regular file"},
		{"too long", func(p string) { must(t, os.WriteFile(p, make([]byte, 64<<10+1), 0o600)) }, "over 65536 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := t.TempDir() + "/launch.conf"
			data, err := os.ReadFile(n.conf)
			must(t, err)
			must(t, os.WriteFile(path, data, 0o600))
			if _, err := server.LoadConf(path); err != nil {
				t.Fatalf("before: %v", err)
			}
			c.spoil(path)
			if _, err := server.LoadConf(path); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestHooks(t *testing.T) {
	dir, err := os.MkdirTemp("", "tg-hooks-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	hook := func(name, text string) string {
		path := dir + "/" + name
		must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
		return path
	}
	log := dir + "/log"
	n := newNode(t, "prolog="+hook("prolog", "echo prolog >>"+log+"; env | sort >"+dir+"/env"),
		"epilog="+hook("epilog", "echo epilog $SLURM_SCRIPT_CONTEXT $SLURM_JOB_EXIT_CODE $SLURM_JOB_EXIT_CODE2 $SLURM_JOB_DERIVED_EC $SLURM_JOB_WORK_DIR >>"+log+"; exit 3"), "prolog_timeout=1")
	o := n.order("#!/bin/sh\necho job >>"+dir+"/log", func(l *cred.Launch) {
		l.StdOut = "/dev/null"
		l.JobName, l.Partition = "$(reboot)", "p"
		l.Alloc.Gres = []job.GresAlloc{{Name: "gpu", Count: 2, Index: []uint32{1, 3}}}
	})
	o.Env = append(o.Env, []byte("LD_PRELOAD=/evil"))
	must(t, os.WriteFile(log, nil, 0o666))
	must(t, os.Chmod(log, 0o666))
	must(t, os.Chmod(dir, 0o755))
	k := n.start(o)
	n.wait(k)
	first := n.ask(launch.Request{Release: &launch.Release{Key: k, KeepRecord: true, Exit: &launch.Exit{Code: 7, Signal: 0}}})
	if !strings.Contains(first.Err, "epilog: "+dir+"/epilog: exit status 3") || job.Cause(first.Cause) != job.CauseNode {
		t.Errorf("release with a failing epilog: %+v", first)
	}
	n.release(k) // the second half does not run it again
	data, _ := os.ReadFile(log)
	if string(data) != "prolog\njob\nepilog epilog_slurmd 1792 7:0 0 "+n.dir+"/home\n" {
		t.Errorf("order %q", data)
	}
	env, _ := os.ReadFile(dir + "/env")
	want := fmt.Sprintf("CUDA_VISIBLE_DEVICES=1,3\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nPWD=/\nSLURMD_NODENAME=%[3]s\nSLURM_CLUSTER_NAME=test\n"+
		"SLURM_JOBID=%[1]d\nSLURM_JOB_ACCOUNT=\nSLURM_JOB_GID=%[2]d\nSLURM_JOB_GPUS=1,3\nSLURM_JOB_ID=%[1]d\nSLURM_JOB_NAME=\nSLURM_JOB_NODELIST=%[3]s\n"+
		"SLURM_JOB_PARTITION=p\nSLURM_JOB_UID=%[2]d\nSLURM_JOB_USER=tester\nSLURM_JOB_WORK_DIR=%[4]s/home\nSLURM_NODELIST=%[3]s\n"+
		"SLURM_SCRIPT_CONTEXT=prolog_slurmd\nSLURM_UID=%[2]d\n", k.Job, userID, nodeName, n.dir)
	if string(env) != want {
		t.Errorf("environment of the prolog:\n%s\nwant:\n%s", env, want)
	}

	hook("prolog", "exit 2")
	r := n.ask(launch.Request{Start: n.sign(n.order("#!/bin/sh\n"))})
	if job.Cause(r.Cause) != job.CauseProlog || !strings.Contains(r.Err, "exit status 2") {
		t.Errorf("failing prolog: %+v", r)
	}
	must(t, os.Chmod(dir+"/prolog", 0o777))
	if r := n.ask(launch.Request{Start: n.sign(n.order("#!/bin/sh\n"))}); !strings.Contains(r.Err, "may write it") {
		t.Errorf("loose prolog: %+v", r)
	}
	must(t, os.Chmod(dir+"/prolog", 0o755))

	// One that hangs is ended, with what it started, and holds up nobody else.
	hook("prolog", "test $SLURM_JOB_PARTITION = slow || exit 0\nsleep 99")
	slow, err := n.send(launch.Request{Start: n.sign(n.order("#!/bin/sh\n", func(l *cred.Launch) { l.Partition = "slow" }))})
	must(t, err)
	start := time.Now()
	quick := n.start(n.order("#!/bin/sh\n", func(l *cred.Launch) { l.StdOut = "/dev/null" }))
	if took := time.Since(start); took > 900*time.Millisecond {
		t.Errorf("another start took %v beside a slow prolog", took)
	}
	if r := <-slow; !strings.Contains(r.Err, "killed after 1s") {
		t.Errorf("slow prolog: %+v", r)
	}
	n.wait(quick)
	n.ask(launch.Request{Release: &launch.Release{Key: quick}})
}

// TestHangingStartsHoldUpNobody starts more steps that stand still before their script than shepherds
// may be between fork and answer: their run's group is frozen.
func TestHangingStartsHoldUpNobody(t *testing.T) {
	n := newNode(t)
	first := n.start(n.order("#!/bin/sh\necho up\nsleep 100"))
	n.waitFor("out", "up")
	freeze := n.groupOf(first) + "/cgroup.freeze"
	must(t, os.WriteFile(freeze, []byte("1"), 0))
	var hanging []chan launch.Reply
	var keys []launch.Key
	for i := range uint32(20) {
		o := n.order("#!/bin/sh\n", func(l *cred.Launch) { l.JobID, l.Step, l.StdOut = first.Job, i, "/dev/null" })
		ch, err := n.send(launch.Request{Start: n.sign(o)})
		must(t, err)
		hanging, keys = append(hanging, ch), append(keys, o.key())
	}
	k := n.start(n.order("#!/bin/sh\nexit 4", func(l *cred.Launch) { l.StdOut = "/dev/null" }))
	if r := n.wait(k); r.ExitCode != 4 {
		t.Errorf("got %+v", *r)
	}
	n.release(k)
	must(t, os.WriteFile(freeze, []byte("0"), 0))
	for i, ch := range hanging {
		if r := <-ch; r.Err != "" {
			t.Error(r.Err)
		}
		n.wait(keys[i])
		n.release(keys[i])
	}
	n.ask(launch.Request{Kill: &first})
	n.wait(first)
	n.release(first)
}
