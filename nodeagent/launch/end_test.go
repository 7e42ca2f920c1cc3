package launch_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

func TestTimeLimit(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		name, script string
		code, signal int
	}{
		{"TERM ends it", "#!/bin/bash\nsleep 100", 0, 15},
		{"KILL ends it", "#!/bin/bash\ntrap '' TERM\nwhile :; do sleep 100; done", 0, 9},
		{"it ends itself", "#!/bin/bash\ntrap 'exit 4' TERM\nsleep 100 & wait", 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := n.start(n.order(c.script, func(l *cred.Launch) { l.TimeLimit, l.KillWait, l.StdErr = 300, 300, "err" }))
			r := n.wait(k)
			if r.ExitCode != c.code || r.Signal != c.signal || job.Why(r.Why) != job.WhyTimeLimit {
				t.Errorf("got %+v, want %d:%d", *r, c.code, c.signal)
			}
			if took := r.End - r.Start; took < 300 || took > 5000 {
				t.Errorf("took %d ms", took)
			}
			text := n.read("err")
			if !strings.HasPrefix(text, "slurmstepd: error: *** JOB ") || !strings.Contains(text, " ON "+nodeName+" CANCELLED AT 20") ||
				!strings.Contains(text, " DUE TO TIME LIMIT ***\n") {
				t.Errorf("standard error %q", text)
			}
			n.release(k)
		})
	}
}

func TestOrdersOfTheAgent(t *testing.T) {
	n := newNode(t)
	limit := int64(200)
	for _, c := range []struct {
		name   string
		script string
		down   shepherd.Down
		why    job.Why
		signal int
		note   string
	}{
		{"terminate", "sleep 100", shepherd.Down{Terminate: &shepherd.Terminate{Why: uint8(job.WhyCancel)}}, job.WhyCancel, 15, " ON " + nodeName + " CANCELLED AT "},
		{"terminate with a note", "sleep 100", shepherd.Down{Terminate: &shepherd.Terminate{Why: uint8(job.WhyPreempt), Note: "*** gone ***"}},
			job.WhyPreempt, 15, "slurmstepd: error: *** gone ***\n"},
		{"kill at once", "trap '' TERM; sleep 100", shepherd.Down{Terminate: &shepherd.Terminate{Why: uint8(job.WhyRequeue), Now: true, KillWait: 60000}},
			job.WhyRequeue, 9, "DUE TO JOB REQUEUE"},
		{"stubborn", "trap '' TERM; sleep 100", shepherd.Down{Terminate: &shepherd.Terminate{Why: uint8(job.WhyCancel), KillWait: 200}}, job.WhyCancel, 9, "CANCELLED"},
		{"new limit", "sleep 100", shepherd.Down{Limit: &limit}, job.WhyTimeLimit, 15, "TIME LIMIT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := n.start(n.order("#!/bin/bash\necho up\n"+c.script, func(l *cred.Launch) { l.StdErr = "err" }))
			n.waitFor("out", "up")
			n.tell(k, c.down)
			r := n.wait(k)
			if r.Signal != c.signal || job.Why(r.Why) != c.why {
				t.Errorf("got %+v", *r)
			}
			if text := n.read("err"); !strings.Contains(text, c.note) {
				t.Errorf("standard error %q, want %q", text, c.note)
			}
			must(t, os.Remove(n.dir+"/home/out"))
			n.release(k)
		})
	}
}

// waitFor waits until a file of the user's holds a text.
func (n *node) waitFor(name, text string) {
	n.t.Helper()
	for range 2000 {
		if data, _ := os.ReadFile(n.dir + "/home/" + name); strings.Contains(string(data), text) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	n.t.Fatalf("%s never held %q", name, text)
}

func TestWarningSignal(t *testing.T) {
	n := newNode(t)
	script := "#!/bin/bash\ntrap 'echo warned; exit 0' USR1\nsleep 100 & wait"
	k := n.start(n.order(script, func(l *cred.Launch) { l.TimeLimit, l.Signal = 60_500, "B:USR1@60" }))
	if r := n.wait(k); r.ExitCode != 0 || r.Signal != 0 || r.Why != 0 {
		t.Errorf("got %+v", *r)
	}
	if got := n.read("out"); got != "warned\n" {
		t.Errorf("output %q", got)
	}
	n.release(k)
}

func TestLease(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/bash\nsleep 100", func(l *cred.Launch) { l.Lease = 400 }))
	start := time.Now()
	for range 4 {
		var ts unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts))
		now := ts.Nano() / 1e6
		n.tell(k, shepherd.Down{Renew: &now})
		time.Sleep(200 * time.Millisecond)
	}
	r := n.wait(k)
	if job.Why(r.Why) != job.WhyStale || r.Signal != 9 {
		t.Errorf("got %+v", *r)
	}
	if took := time.Since(start); took < time.Second {
		t.Errorf("ended after %v although it was renewed for 800 ms", took)
	}
	n.release(k)
}

func TestOutOfMemory(t *testing.T) {
	n := newNode(t, "cgroup_driver = hybrid")
	k := n.start(n.order("#!/usr/bin/python3\nx = bytearray(10**9)", func(l *cred.Launch) { l.Alloc.Mem = 50 << 20; l.StdErr = "err" }))
	r := n.wait(k)
	if !r.OOM || r.Signal != 9 {
		t.Errorf("got %+v", *r)
	}
	if text := n.read("err"); !strings.Contains(text, "oom_kill event in StepId=") {
		t.Errorf("standard error %q", text)
	}
	n.release(k)
}

func TestWhatIsLeftBehindIsKilled(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/bash\nsetsid sleep 1000 </dev/null >/dev/null 2>&1 &\n(setsid sleep 1001 &)\necho $!\nexit 7"))
	r := n.wait(k)
	if r.ExitCode != 7 || r.Signal != 0 {
		t.Errorf("got %+v", *r)
	}
	if pid := strings.TrimSpace(n.read("out")); pid != "" {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			t.Errorf("process %s lives on", pid)
		}
	}
	n.release(k)
}

func TestUsage(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/usr/bin/python3\nimport time\nx=bytearray(30<<20)\ne=time.process_time()+0.3\nwhile time.process_time()<e: pass"))
	r := n.wait(k)
	if cpu := r.UserUS + r.SysUS; cpu < 250_000 || cpu > 2_000_000 {
		t.Errorf("%d us of processor time, want about 300 ms", cpu)
	}
	if r.MaxRSS < 30<<20 || r.MaxRSS > 200<<20 {
		t.Errorf("max RSS %d", r.MaxRSS)
	}
	n.release(k)
}

func TestJobRunsOnWithoutAgentAndLauncher(t *testing.T) {
	n := newNode(t)
	script := "#!/bin/bash\necho up\nwhile [ ! -e go ]; do sleep 0.02; done\nexit 5"
	still := n.start(n.order(script))
	n.waitFor("out", "up")
	meanwhile := n.start(n.order("#!/bin/bash\nwhile [ ! -e now ]; do sleep 0.02; done\nexit 6", func(l *cred.Launch) { l.StdOut = "out2" }))
	n.stopAgent()
	n.killLauncher()
	must(t, os.WriteFile(n.dir+"/home/now", nil, 0o644))
	record := n.recordOf(meanwhile)
	if record.ExitCode != 6 || record.Key != meanwhile {
		t.Errorf("record of the one that ended meanwhile: %+v", *record)
	}
	n.startLauncher()
	n.startAgent()
	keys := n.ask(launch.Request{List: true}).Keys
	if len(keys) != 2 {
		t.Errorf("listed %v", keys)
	}
	must(t, os.WriteFile(n.dir+"/home/go", nil, 0o644))
	n.until("hello of the one that runs", func() bool { return n.links[still] != nil || n.ended[still] != nil })
	if r := n.wait(still); r.ExitCode != 5 || r.End == 0 {
		t.Errorf("got %+v", *r)
	}
	n.release(still)
	n.release(meanwhile)
}

// recordOf waits for the record on the disk, as an agent that comes back does.
func (n *node) recordOf(k launch.Key) *shepherd.Record {
	n.t.Helper()
	path := launch.StepFolder(n.spool, k) + "/" + shepherd.RecordFile
	for range 2000 {
		if data, err := os.ReadFile(path); err == nil {
			var st unix.Stat_t
			must(n.t, unix.Lstat(path, &st))
			if os.Getuid() == 0 && (st.Uid != stepID || st.Gid != agentID || st.Mode&0o777 != 0o640) {
				n.t.Errorf("record has uid %d gid %d mode %o", st.Uid, st.Gid, st.Mode&0o777)
			}
			r := new(shepherd.Record)
			must(n.t, json.Unmarshal(data, r))
			return r
		}
		time.Sleep(5 * time.Millisecond)
	}
	n.t.Fatalf("no record of %s", k)
	return nil
}

func TestTimeLimitWithoutLauncher(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/bash\nsleep 100", func(l *cred.Launch) { l.TimeLimit, l.KillWait = 300, 300 }))
	n.killLauncher()
	if r := n.wait(k); r.Signal != 9 || job.Why(r.Why) != job.WhyTimeLimit {
		t.Errorf("got %+v, want KILL by the group's own switch", *r)
	}
	n.startLauncher()
	n.release(k)
}

func TestShepherdKilled(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/bash\necho $PPID\nsleep 1000"))
	n.waitFor("out", "\n")
	var pid int
	for _, r := range n.read("out") {
		if r >= '0' && r <= '9' {
			pid = pid*10 + int(r-'0')
		}
	}
	must(t, unix.Kill(pid, unix.SIGKILL))
	lock, err := os.Open(launch.StepFolder(n.spool, k) + "/" + shepherd.LockFile)
	must(t, err)
	defer lock.Close()
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX)) // comes free when the shepherd is dead
	if r := n.ask(launch.Request{Release: &launch.Release{Key: k}}); r.Errno != int(unix.EBUSY) {
		t.Errorf("release while the job lives: %+v", r)
	}
	if r := n.ask(launch.Request{Kill: &k}); r.Err != "" {
		t.Error(r.Err)
	}
	for range 500 {
		r := n.ask(launch.Request{Release: &launch.Release{Key: k}})
		if r.Err == "" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the group never got empty")
}

func TestSignals(t *testing.T) {
	n := newNode(t)
	script := "#!/bin/bash\ntrap 'echo shell >>got' USR1\nbash -c 'trap \"echo child >>got; exit\" USR1; echo up; while :; do sleep 0.05; done' &\nwait; wait; exit 0"
	for _, c := range []struct {
		name   string
		signal launch.Signal
		want   string
	}{
		{"all", launch.Signal{Number: 10}, "child shell"}, {"batch", launch.Signal{Number: 10, Batch: true}, "shell"},
	} {
		t.Run(c.name, func(t *testing.T) {
			os.Remove(n.dir + "/home/got")
			os.Remove(n.dir + "/home/out")
			k := n.start(n.order(script))
			n.waitFor("out", "up")
			c.signal.Key = k
			if r := n.ask(launch.Request{Signal: &c.signal}); r.Err != "" {
				t.Error(r.Err)
			}
			for word := range strings.FieldsSeq(c.want) {
				n.waitFor("got", word)
			}
			for _, word := range []string{"shell", "child"} {
				if !strings.Contains(c.want, word) && strings.Contains(n.read("got"), word) {
					t.Errorf("%s got it too", word)
				}
			}
			n.ask(launch.Request{Kill: &k})
			n.wait(k)
			n.release(k)
		})
	}
	if r := n.ask(launch.Request{Signal: &launch.Signal{Key: launch.Key{Job: 1 << 30}, Number: 10}}); r.Errno != int(unix.ESRCH) {
		t.Errorf("signal to nobody: %+v", r)
	}
	if r := n.ask(launch.Request{Signal: &launch.Signal{Number: 65}}); r.Errno != int(unix.EINVAL) {
		t.Errorf("signal 65: %+v", r)
	}
}
