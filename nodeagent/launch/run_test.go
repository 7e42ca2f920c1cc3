package launch_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

func TestExitCodes(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		script       string
		code, signal int
	}{
		{"exit 0", 0, 0}, {"exit 3", 3, 0}, {"kill -9 $$", 0, 9}, {"exit 137", 137, 0}, {"nosuchcmd 2>/dev/null", 127, 0},
		{"exit 256", 0, 0}, {"kill -TERM $$", 0, 15},
	} {
		t.Run(c.script, func(t *testing.T) {
			k := n.start(n.order("#!/bin/bash\n" + c.script))
			r := n.wait(k)
			if r.ExitCode != c.code || r.Signal != c.signal || r.Why != 0 || r.OOM || r.Err != "" {
				t.Errorf("got %+v, want %d:%d", *r, c.code, c.signal)
			}
			if r.Start == 0 || r.End < r.Start {
				t.Errorf("from %d to %d", r.Start, r.End)
			}
			n.release(k)
		})
	}
}

// output runs a script and gives back what it wrote.
func (n *node) output(script string, change ...func(*cred.Launch)) string {
	n.t.Helper()
	k := n.start(n.order(script, change...))
	r := n.wait(k)
	if r.ExitCode != 0 || r.Signal != 0 {
		n.t.Errorf("ended with %+v", *r)
	}
	n.release(k)
	return n.read("out")
}

func TestProcessIsTheUsersAlone(t *testing.T) {
	n := newNode(t)
	// The interpreter shows itself: a shell changes its signals and descriptors first.
	status := n.output("#!/usr/bin/env -S cat /proc/self/status", func(l *cred.Launch) {
		l.Groups = []uint32{otherID, userID, 44, userID}
	})
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", userID), fmt.Sprintf("Gid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", userID),
		fmt.Sprintf("Groups:\t%d %d \n", userID, otherID), // 44 is the system's
		"SigBlk:\t0000000000000000\n", "SigIgn:\t0000000000000000\n", "CapInh:\t0000000000000000\n",
		"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in %s", want, status)
		}
	}
	if got := n.output("#!/usr/bin/env -S python3 -Ic 'import os;print(sorted(os.listdir(\"/proc/self/fd\")))'"); got != "['0', '1', '2', '3']\n" {
		t.Errorf("open descriptors %s, want the standard ones and the listing's own", got)
	}
}

func TestShellSeesItsPlace(t *testing.T) {
	n := newNode(t)
	o := n.order(`#!/bin/bash
echo umask $(umask) cwd $PWD stdin $(readlink /proc/$$/fd/0) nofile $(ulimit -n)
test $(ps -o sid= -p $$) = $$ && echo leader
cat
grep ^0: /proc/self/cgroup
printf 'no newline'`, func(l *cred.Launch) { l.Umask = 0o027 })
	k := n.start(o)
	n.wait(k)
	want := fmt.Sprintf(`umask 0027 cwd %s/home stdin /dev/null nofile 1024
leader
0::/tensorgrid/test_%s/job_%d.0/step_4294967291
no newline`, n.dir, nodeName, k.Job)
	if got := n.read("out"); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	st, err := os.Stat(n.dir + "/home/out")
	must(t, err)
	if st.Mode().Perm() != 0o640 {
		t.Errorf("output has mode %o, want 0666 less umask 027", st.Mode().Perm())
	}
	n.release(k)
}

func TestEnvironmentIsExactlyWhatWasGiven(t *testing.T) {
	n := newNode(t)
	o := n.order("#!/usr/bin/env -S python3 -I\nimport os,sys\nprint(os.getpid(), len(sys.argv), sys.argv[1:])\n" +
		"sys.stdout.flush()\nos.write(1, open('/proc/self/environ','rb').read())")
	o.Env = [][]byte{[]byte("PATH=/usr/bin"), []byte("SLURM_TASK_PID=1"), []byte("X=a\nb"), []byte("BAD=\xff"), []byte("EMPTY=")}
	o.Args = []string{"one", "", "two words"}
	k := n.start(o)
	n.wait(k)
	out := n.read("out")
	head, env, _ := strings.Cut(out, "\n")
	var pid int
	fmt.Sscan(head, &pid)
	if want := fmt.Sprintf("%d 4 ['one', '', 'two words']", pid); head != want {
		t.Errorf("got %q want %q", head, want)
	}
	vars := strings.Split(strings.TrimRight(env, "\x00"), "\x00")
	want := []string{"PATH=/usr/bin", "X=a\nb", "BAD=\xff", "EMPTY=", fmt.Sprintf("SLURM_TASK_PID=%d", pid)}
	if fmt.Sprintf("%q", vars) != fmt.Sprintf("%q", want) {
		t.Errorf("got %q\nwant %q", vars, want)
	}
	n.release(k)
}

// TestShepherdIsNobody looks at every thread of a shepherd from outside.
func TestShepherdIsNobody(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/bash\necho $PPID; kill -0 $PPID && echo may signal; cat /proc/$PPID/environ && echo may read; sleep 100"))
	n.waitFor("out", "denied")
	pid := strings.Fields(n.read("out"))[0]
	if out := n.read("out"); strings.Contains(out, "may ") {
		t.Errorf("the job reaches its shepherd: %s", out)
	}
	threads, err := os.ReadDir("/proc/" + pid + "/task")
	must(t, err)
	for _, th := range threads {
		data, err := os.ReadFile("/proc/" + pid + "/task/" + th.Name() + "/status")
		must(t, err)
		for _, want := range []string{
			fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", stepID), fmt.Sprintf("Gid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", stepID),
			fmt.Sprintf("Groups:\t%d \n", agentID), "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n",
		} {
			if !strings.Contains(string(data), want) {
				t.Errorf("thread %s has no %q", th.Name(), want)
			}
		}
	}
	st, err := os.Stat("/proc/" + pid + "/environ")
	must(t, err)
	if owner := st.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		t.Errorf("its /proc files belong to uid %d: it can be dumped and traced", owner)
	}
	group, err := os.ReadFile("/proc/" + pid + "/cgroup")
	must(t, err)
	if strings.Contains(string(group), "tensorgrid/test_"+nodeName) {
		t.Errorf("the shepherd is in its job's groups: %s", group)
	}
	n.ask(launch.Request{Kill: &k})
	n.wait(k)
	n.release(k)
}
