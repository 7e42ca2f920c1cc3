package shepherd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// runOps forks a child that works off ops, and gives its messages and its end.
func runOps(t *testing.T, p *program) (msgs []message, status unix.WaitStatus) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	syscall.ForkLock.Lock()
	pid, errno := fork(p.ops, pair[1], -1, false)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(p)
	unix.Close(pair[1])
	if errno != 0 {
		t.Fatal(errno)
	}
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	for {
		var m message
		n, err := unix.Read(pair[0], unsafe.Slice((*byte)(unsafe.Pointer(&m)), unsafe.Sizeof(m)))
		if err != nil || n == 0 {
			return msgs, status
		}
		msgs = append(msgs, m)
	}
}

func TestChildStopsWhenIDsAreNotThose(t *testing.T) {
	uid := uint32(os.Getuid())
	for _, c := range []struct {
		name string
		want []uint32
		size bool
		ok   bool
	}{{"same", []uint32{uid, uid, uid}, false, true}, {"other", []uint32{uid, uid, uid + 1}, false, false}, {"count", []uint32{uid, uid, uid}, true, false}} {
		t.Run(c.name, func(t *testing.T) {
			p := new(program)
			got := make([]uint32, 3)
			at := p.ids(got)
			p.add(op{call: unix.SYS_GETRESUID, kind: compare, arg: [5]uintptr{at, at + 4, at + 8}, got: got, want: c.want, size: c.size})
			p.add(op{call: unix.SYS_EXIT_GROUP, arg: [5]uintptr{42}})
			msgs, status := runOps(t, p)
			if c.ok && (status.ExitStatus() != 42 || len(msgs) != 0) {
				t.Errorf("ended with %d, %v", status.ExitStatus(), msgs)
			}
			if !c.ok && (status.ExitStatus() != failed || len(msgs) != 1 || msgs[0] != (message{0, int32(unix.EPERM)})) {
				t.Errorf("ended with %d, %v, want it stopped", status.ExitStatus(), msgs)
			}
		})
	}
}

func TestChildGoesRoundWhatIsSoftAndStopsAtWhatIsHard(t *testing.T) {
	p := new(program)
	p.add(op{call: unix.SYS_CHDIR, kind: soft, skip: 1, arg: [5]uintptr{p.str("/no/such")}})
	p.add(op{call: unix.SYS_CHDIR, arg: [5]uintptr{p.str("/")}})
	p.add(op{call: unix.SYS_CHDIR, kind: soft, skip: 1, arg: [5]uintptr{p.str("/")}})
	p.add(op{call: unix.SYS_CHDIR, arg: [5]uintptr{p.str("/left/out")}})
	p.add(op{call: unix.SYS_OPENAT, arg: [5]uintptr{atCWD, p.str("/no/such/file")}})
	p.add(op{call: unix.SYS_EXIT_GROUP, arg: [5]uintptr{42}})
	msgs, status := runOps(t, p)
	want := []message{{0, int32(unix.ENOENT)}, {4, int32(unix.ENOENT)}}
	if status.ExitStatus() != failed || fmt.Sprint(msgs) != fmt.Sprint(want) {
		t.Errorf("ended with %d, %v, want %v", status.ExitStatus(), msgs, want)
	}
}

func TestDigits(t *testing.T) {
	for _, n := range []uintptr{0, 7, 10, 4194304, 4294967295} {
		var buf [pidDigits + 1]byte
		digits(uintptr(unsafe.Pointer(&buf[0])), n)
		if got, _, _ := bytes.Cut(buf[:], []byte{0}); string(got) != fmt.Sprint(n) {
			t.Errorf("%d is written %q", n, got)
		}
	}
}

// TestRootIsGivenUpBeforeUsersPathsAreTouched pins the order of the child's calls.
func TestRootIsGivenUpBeforeUsersPathsAreTouched(t *testing.T) {
	p := &launch.Plan{UID: 5, GID: 6, Groups: []uint32{6, 7}, WorkDir: "/w", Script: "/s", StdErr: "e",
		Group: &cgroup.Group{Legacy: []string{"/cg"}}}
	var order []string
	for _, o := range compose(p, files{-1, -1}, 9).ops {
		switch o.call {
		case unix.SYS_SETGROUPS:
			order = append(order, "setgroups")
		case unix.SYS_SETRESGID:
			order = append(order, "setresgid")
		case unix.SYS_SETRESUID:
			order = append(order, "setresuid")
		case unix.SYS_GETGROUPS, unix.SYS_GETRESGID, unix.SYS_GETRESUID:
			order = append(order, "check")
		case unix.SYS_CHDIR:
			order = append(order, "chdir")
		case unix.SYS_OPENAT:
			order = append(order, map[uint32]string{stageGroup: "group", stageStdin: "in", stageStdout: "out", stageStderr: "err"}[o.note])
		case unix.SYS_EXECVE:
			order = append(order, "exec")
		}
	}
	want := "group setgroups setresgid setresuid check check check chdir chdir in out err exec"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzParseDown(f *testing.F) {
	f.Add([]byte(`{"limit_ms":5}`))
	f.Add([]byte(`{"terminate":{"why":1,"kill_wait_ms":30000}}`))
	f.Add([]byte(`{"renew_boottime_ms":7,"limit_ms":1}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		d, err := ParseDown(line)
		if err != nil {
			return
		}
		data, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseDown(data); err != nil {
			t.Fatalf("%s becomes %s: %v", line, data, err)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"key":{"job":1,"run":0,"step":4294967291},"code":3,"end_ms":5}`))
	f.Fuzz(func(t *testing.T, data []byte) { ParseRecord(data) })
}

func TestRecordIsWholeOrNot(t *testing.T) {
	path := t.TempDir()
	dir, err := openPlain(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	want := Record{Key: launch.Key{Job: 7, Step: job.BatchStep}, ExitCode: 3, End: 9, Err: "x"}
	if err := writeRecord(dir, &want); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(path, RecordFile))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseRecord(data); err != nil || *got != want {
		t.Errorf("got %+v %v", got, err)
	}
	for n := range len(bytes.TrimSpace(data)) - 1 {
		if r, err := ParseRecord(data[:n]); err == nil {
			t.Fatalf("the first %d bytes read as %+v", n, r)
		}
	}
	if left, _ := os.ReadDir(path); len(left) != 1 {
		t.Errorf("left %v", left)
	}
	if err := keep(path); err != nil {
		t.Error(err)
	}
}

func TestNotes(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	batch, numbered := launch.Key{Job: 7, Step: job.BatchStep}, launch.Key{Job: 7, Step: 2}
	for _, c := range []struct{ got, want string }{
		{cancelNote(batch, "n1", at, job.WhyTimeLimit), "*** JOB 7 ON n1 CANCELLED AT 2026-11-30T10:00:00 DUE TO TIME LIMIT ***"},
		{cancelNote(batch, "n1", at, job.WhyCancel), "*** JOB 7 ON n1 CANCELLED AT 2026-11-30T10:00:00 ***"},
		{cancelNote(numbered, "n1", at, job.WhyPreempt), "*** STEP 7.2 ON n1 CANCELLED AT 2026-11-30T10:00:00 DUE TO PREEMPTION ***"},
		{oomNote(batch, 1), "Detected 1 oom_kill event in StepId=7.batch. Some of the step tasks have been OOM Killed."},
		{oomNote(numbered, 2), "Detected 2 oom_kill events in StepId=7.2. Some of the step tasks have been OOM Killed."},
	} {
		if c.got != c.want {
			t.Errorf("got %q\nwant %q", c.got, c.want)
		}
	}
}

func TestNotesNeverHoldUpTheShepherd(t *testing.T) {
	r, w, err := os.Pipe() // nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	n := newNoter(w)
	long := strings.Repeat("x", 64<<10)
	for range maxNotes + 5 {
		n.add(long)
	}
	start := time.Now()
	n.close()
	if took := time.Since(start); took > noteWait+time.Second {
		t.Errorf("took %v", took)
	}
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &step{plan: &launch.Plan{Key: launch.Key{Job: 1, Step: job.BatchStep}, TimeLimit: 60_000, WarnSignal: 10, WarnBefore: 20_000, WarnBatch: true}, start: start}
		m := newMinder(s, newLink("", Hello{}), time.Now, func() time.Duration { return 0 })
		defer m.notes.close()
		m.setLimit(60_000)
		at := func(c <-chan time.Time) time.Duration { <-c; return time.Since(start) }
		if got := at(m.warn.C); got != 40*time.Second {
			t.Errorf("warned after %v", got)
		}
		if got := at(m.limit.C); got != time.Minute {
			t.Errorf("limit after %v", got)
		}
		m.setLimit(30_000) // already over
		if got := at(m.limit.C); got != time.Minute {
			t.Errorf("a limit that is over fires after %v", got)
		}
		m.setLimit(job.Unlimited)
		select {
		case <-m.limit.C:
			t.Error("no limit fired")
		case <-m.warn.C:
			t.Error("warned without a limit")
		case <-time.After(1000 * time.Hour):
		}
		m.plan.WarnBatch = false // the batch shell is left alone
		m.setLimit(1 << 40)
		if m.warn.Stop() {
			t.Error("a signal for steps is set for the batch shell")
		}
	})
}

func TestLeaseIsNotRenewedFromTheFuture(t *testing.T) {
	s := &step{plan: &launch.Plan{}}
	m := newMinder(s, newLink("", Hello{}), time.Now, func() time.Duration { return 5 * time.Second })
	defer m.notes.close()
	for _, c := range []struct{ renew, want int64 }{{2000, 2000}, {1000, 2000}, {9000, 5000}} {
		m.order(context.Background(), Down{Renew: &c.renew})
		if m.renewed != ms(c.want) {
			t.Errorf("renewed at %d gives %v, want %v", c.renew, m.renewed, ms(c.want))
		}
	}
}

func TestLinkRefusesALineOverTheLimit(t *testing.T) {
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	link := newLink(path, Hello{PID: 7})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { link.run(ctx); close(done) }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(`{"limit_ms":` + strings.Repeat(" ", MaxLine-16) + "5}\n")); err != nil {
		t.Fatal(err)
	}
	if d := <-link.downs; d.Limit == nil || *d.Limit != 5 {
		t.Errorf("a line below the limit: %+v", d)
	}
	conn.Write([]byte(`{"limit_ms":` + strings.Repeat(" ", MaxLine) + "5}\n"))
	next, err := l.Accept() // it hangs up and comes again
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	conn.Close()
	next.Close()
	<-done
}
