package launch_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// gstepds lists the processes of this node's launcher, or of its dead predecessors, that run gstepd.
// role "" takes all, launch.Warm shepherds, launch.Forker forkers.
func (n *node) gstepds(role string) []int {
	n.t.Helper()
	dirs, err := os.ReadDir("/proc")
	must(n.t, err)
	var pids []int
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		// Their standard error is this node's own file.
		if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", pid)); to != n.spool+"/shepherd.log" {
			continue
		}
		// A job's process borrows the forker's memory until it has executed its script, but has one thread.
		if tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); len(tasks) < 2 {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := strings.Split(string(line), "\x00"); len(args) > 1 && (role == "" || args[1] == role) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestShepherdIsUsedAgain runs steps one after the other.
func TestShepherdIsUsedAgain(t *testing.T) {
	n := newNode(t)
	seen := map[string]int{}
	for range 50 {
		seen[strings.TrimSpace(n.output("#!/bin/sh\necho $PPID"))]++
	}
	if len(seen) > 3 {
		t.Errorf("%d shepherds for 50 steps: %v", len(seen), seen)
	}
}

// TestNothingOfAStepIsLeftForTheNext has a user's step change all that it can, and looks at what a
// step of another user finds in the same shepherd.
func TestNothingOfAStepIsLeftForTheNext(t *testing.T) {
	n := newNode(t)
	must(t, os.Chmod(n.dir+"/home", 0o777))
	look := `#!/usr/bin/env -S python3 -I
import os,resource,signal
print(os.getppid())
print(os.getcwd(), oct(os.umask(0)), sorted(os.environ), sorted(os.listdir('/proc/self/fd')), os.nice(0))
print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE), os.getgroups(), os.getresuid(), os.getresgid())
print([l for l in open('/proc/self/status') if l.startswith(('SigBlk','SigIgn','Cap','NoNewPrivs'))])
`
	spoil := look + `
os.chdir('/'); os.environ['LEFT']='1'; os.nice(5)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
for s in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1): signal.signal(s, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
os.set_inheritable(os.open('/dev/zero', os.O_RDONLY), True)
if os.fork() == 0:
    os.setsid()
    import time; time.sleep(100)
`
	run := func(script string, uid uint32, out string) []string {
		t.Helper()
		k := n.start(n.order(script, func(l *cred.Launch) { l.UID, l.GID, l.Groups, l.StdOut, l.Umask = uid, uid, nil, out, 0o027 }))
		if r := n.wait(k); r.ExitCode != 0 || r.Signal != 0 {
			t.Errorf("%+v", *r)
		}
		n.release(k)
		return strings.SplitN(n.read(out), "\n", 2)
	}
	before := run(look, otherID, "before")
	spoilt, shared := map[string]bool{}, 0
	for round := 0; shared < 5 && round < 50; round++ {
		spoilt[run(spoil, userID, "spoilt")[0]] = true
		after := run(look, otherID, "after")
		if after[1] != before[1] {
			t.Errorf("before %s\nafter %s", before[1], after[1])
		}
		if spoilt[after[0]] {
			shared++
		}
	}
	if shared < 5 {
		t.Errorf("only %d steps had a shepherd that another user's had before", shared)
	}
	for _, pid := range n.gstepds("") {
		n.comesTo("a gstepd without anything of a step's", func() bool { return n.holdsNothing(pid) })
	}
}

// holdsNothing looks at a process's descriptors: the standard ones, its two sockets, the runtime's own.
func (n *node) holdsNothing(pid int) bool {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return true // it has gone
	}
	sockets := 0
	for _, fd := range fds {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		switch {
		case strings.HasPrefix(to, "socket:"):
			sockets++
		case strings.HasPrefix(to, n.spool+"/steps"), strings.HasPrefix(to, "/sys/fs/cgroup"), strings.HasPrefix(to, n.dir+"/home"), to == "/dev/zero":
			return false
		}
	}
	return sockets <= 2
}

// TestIdleShepherdsAreBounded runs many steps at once and waits for the pool to shrink.
func TestIdleShepherdsAreBounded(t *testing.T) {
	n := newNode(t)
	var keys []launch.Key
	for range 24 {
		keys = append(keys, n.start(n.order("#!/bin/sh\nsleep 1", func(l *cred.Launch) { l.StdOut = "/dev/null" })))
	}
	if got := len(n.gstepds(launch.Warm)); got < 24 {
		t.Errorf("%d shepherds for 24 steps", got)
	}
	for _, k := range keys {
		n.wait(k)
		n.release(k)
	}
	limit := max(8, 2*hostCPUs())
	n.comesTo("idle shepherds within the limit", func() bool { return len(n.gstepds(launch.Warm)) <= limit })
	n.comesTo("no idle shepherds", func() bool { return len(n.gstepds("")) == 0 })
}

// TestLongStepNeedsNoForker waits for the forker of a long step to go.
func TestLongStepNeedsNoForker(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.1; done; exit 3"))
	n.comesTo("one process", func() bool { return len(n.gstepds(launch.Forker)) == 0 && len(n.gstepds("")) == 1 })
	must(t, os.WriteFile(n.dir+"/home/go", nil, 0o644))
	if r := n.wait(k); r.ExitCode != 3 {
		t.Errorf("%+v", *r)
	}
	n.release(k)
}

func (n *node) comesTo(what string, ok func() bool) {
	n.t.Helper()
	for range 1500 {
		if ok() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.t.Fatalf("%s: never\n%s", what, n.crashes())
}

// TestWarmShepherdsOutliveTheLauncher kills the launcher under warm shepherds that mind steps.
func TestWarmShepherdsOutliveTheLauncher(t *testing.T) {
	n := newNode(t)
	n.output("#!/bin/sh\necho warm")
	var keys []launch.Key
	for range 4 {
		keys = append(keys, n.start(n.order("#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.05; done; exit 4", func(l *cred.Launch) { l.StdOut = "/dev/null" })))
	}
	old := n.gstepds(launch.Warm)
	n.killLauncher()
	n.comesTo("the forkers of a dead launcher gone", func() bool { return len(n.gstepds(launch.Forker)) == 0 })
	n.startLauncher()
	if got := n.output("#!/bin/sh\necho $PPID"); slices.Contains(old, atoi(got)) {
		t.Error("a shepherd of the old launcher was used")
	}
	must(t, os.WriteFile(n.dir+"/home/go", nil, 0o644))
	for _, k := range keys {
		if r := n.wait(k); r.ExitCode != 4 {
			t.Errorf("%+v", *r)
		}
		n.release(k)
	}
	n.comesTo("the old shepherds gone", func() bool {
		return !slices.ContainsFunc(n.gstepds(""), func(pid int) bool { return slices.Contains(old, pid) })
	})
}

func atoi(s string) int {
	i, _ := strconv.Atoi(strings.TrimSpace(s))
	return i
}

// TestKilledAtRandom kills forkers, shepherds and the launcher while steps start, run and end. Each
// step is refused, or ends with its own exit code, or is plainly lost with its shepherd: its lock is
// free, there is no record, and nothing of it lives after a kill.
func TestKilledAtRandom(t *testing.T) {
	for _, victim := range []string{launch.Forker, launch.Warm, "launcher"} {
		t.Run(victim, func(t *testing.T) { killAtRandom(t, victim) })
	}
}

func killAtRandom(t *testing.T, victim string) {
	n := newNode(t)
	steps, kills, refused, lost := 200, 0, 0, 0
	if victim == "launcher" {
		steps = 60
	}
	rng := rand.New(rand.NewPCG(uint64(len(victim)), 7))
	for i := range steps {
		o := n.order(fmt.Sprintf("#!/bin/sh\nsleep 0.0%d\nexit %d", rng.IntN(3), i%200), func(l *cred.Launch) { l.StdOut = "/dev/null" })
		k := o.key()
		ch, err := n.send(launch.Request{Start: n.sign(o)})
		must(t, err)
		if i%3 == 0 {
			time.Sleep(time.Duration(rng.IntN(12000)) * time.Microsecond)
			kills += n.killOne(victim, rng)
		}
		if n.refuses(ch, k, victim) {
			refused++
			continue
		}
		r := n.outcome(k)
		switch {
		case r == nil && victim == launch.Warm, r == nil && victim == "launcher" && n.notStarted(k):
			lost++
		case r == nil:
			t.Errorf("step %d is lost", i)
		case r.ExitCode != i%200 || r.Signal != 0:
			t.Errorf("step %d ended with %+v", i, *r)
		}
		n.ask(launch.Request{Kill: &k})
		n.comesTo("release of "+k.String(), func() bool { return n.ask(launch.Request{Release: &launch.Release{Key: k}}).Err == "" })
	}
	t.Logf("%d steps, %d kills, %d refused, %d lost", steps, kills, refused, lost)
	if kills < steps/8 || refused+lost > kills {
		t.Errorf("%d kills, but %d refused and %d lost", kills, refused, lost)
	}
}

// killOne kills one process of the kind; 0 when there was none.
func (n *node) killOne(victim string, rng *rand.Rand) int {
	if victim == "launcher" {
		n.killLauncher()
		n.startLauncher()
		return 1
	}
	pids := n.gstepds(victim)
	if len(pids) == 0 {
		return 0
	}
	unix.Kill(pids[rng.IntN(len(pids))], unix.SIGKILL)
	return 1
}

// refuses waits for the answer to a start. A launcher that was killed gives none.
func (n *node) refuses(ch chan launch.Reply, k launch.Key, victim string) bool {
	n.t.Helper()
	wait := 20 * time.Second
	if victim == "launcher" {
		wait = 100 * time.Millisecond
	}
	select {
	case r := <-ch:
		if r.Err != "" {
			if _, err := os.Stat(launch.StepFolder(n.spool, k)); err == nil {
				n.t.Errorf("%s was refused, and its folder is there: %s", k, r.Err)
			}
		}
		return r.Err != ""
	case <-time.After(wait):
		if victim != "launcher" {
			n.t.Fatalf("%s: no answer", k)
		}
		_, err := os.Stat(launch.StepFolder(n.spool, k))
		return err != nil
	}
}

// outcome is what an agent finds: the record, or a free lock without one.
func (n *node) outcome(k launch.Key) *shepherd.Record {
	n.t.Helper()
	folder := launch.StepFolder(n.spool, k)
	lock, err := os.Open(folder + "/" + shepherd.LockFile)
	must(n.t, err)
	defer lock.Close()
	must(n.t, unix.Flock(int(lock.Fd()), unix.LOCK_SH))
	data, err := os.ReadFile(folder + "/" + shepherd.RecordFile)
	if err != nil {
		return nil
	}
	r, err := shepherd.ParseRecord(data)
	must(n.t, err)
	return r
}

// notStarted tells whether nothing of a step lives that a dead launcher had claimed only.
func (n *node) notStarted(k launch.Key) bool {
	return n.ask(launch.Request{Signal: &launch.Signal{Key: k, Number: 18}}).Errno == int(unix.ESRCH)
}

func hostCPUs() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return 1
	}
	return set.Count()
}
