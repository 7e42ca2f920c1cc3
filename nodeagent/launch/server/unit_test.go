package server

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

func FuzzParseConf(f *testing.F) {
	f.Add([]byte("cluster = a\nnode=b # c\nmin_uid=1\nrefuse_uids=1-2,4\nallow_gids=5\nprolog_timeout=1\nrootless=yes"))
	f.Add([]byte("x\n=\nprolog=relative"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := ParseConf(data); err == nil && c.HookTime <= 0 {
			t.Fatal("no time for hooks")
		}
	})
}

func TestParseConfNamesEachLine(t *testing.T) {
	_, err := ParseConf([]byte("cluster = x\nwhat = 1\nspool = rel\nmin_uid = -1\nnot a line\nca=/a/../b\nrootless=maybe\ncluster=y\nrefuse_uids=9-1"))
	for _, want := range []string{"line 2: unknown key", "line 3: spool", "line 4: min_uid", "line 5:", "line 6: ca", "line 7: rootless", "line 8: cluster is given twice", "line 9: refuse_uids"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

func TestConfChecks(t *testing.T) {
	full := "cluster=c\nnode=n\nca=/ca\nsocket=/s\nspool=/p\nstepd=/d\nagent_socket=/a\n"
	ids := "agent_uid=5\nagent_gid=5\nstep_uid=6\nstep_gid=6\n"
	for _, c := range []struct {
		name, text string
		euid       int
		want       string
	}{
		{"good", full + ids, 0, ""}, {"no ids", full, 0, "must be given and not 0"}, {"root ids", full + "agent_uid=0\nagent_gid=5\nstep_uid=6\nstep_gid=6", 0, "not 0"},
		{"rootless", full + "rootless=yes", 1000, ""}, {"rootless as root", full + "rootless=yes", 0, "this is root"},
		{"ordinary", full + ids, 1000, "not root"}, {"no spool", strings.Replace(full, "spool=/p\n", "", 1) + ids, 0, "spool is missing"},
		{"one uid for both", full + "agent_uid=5\nagent_gid=5\nstep_uid=5\nstep_gid=6\n", 0, "must differ"},
		{"one gid for both", full + "agent_uid=5\nagent_gid=5\nstep_uid=6\nstep_gid=5\n", 0, "must differ"},
		{"node is a path", strings.Replace(full, "node=n", "node=..", 1) + ids, 0, `node = ".."`},
		{"cluster has a slash", strings.Replace(full, "cluster=c", "cluster=a/b", 1) + ids, 0, `cluster = "a/b"`},
		{"uid 0 allowed", full + ids + "min_uid=0", 0, "min_uid must be"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := ParseConf([]byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			err = conf.check(c.euid)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v want %q", err, c.want)
			}
		})
	}
}

func TestJoinIDs(t *testing.T) {
	for want, ids := range map[string][]uint32{"": nil, "0": {0}, "0-2": {0, 1, 2}, "0,2-3,9": {0, 2, 3, 9}} {
		if got := joinIDs(ids); got != want {
			t.Errorf("%v: got %q want %q", ids, got, want)
		}
	}
}

func TestHookValuesArePlain(t *testing.T) {
	for in, want := range map[string]string{"alice": "alice", "n[01-03,7]": "n[01-03,7]", "a b": "", "$(x)": "", "a\nb": "", "user@site": "user@site"} {
		if got := plain(in); got != want {
			t.Errorf("%q: got %q want %q", in, got, want)
		}
	}
}

func TestPrologOncePerRun(t *testing.T) {
	var table jobTable
	var ran []string
	enter := func(k launch.Key) {
		prolog := func() error { ran = append(ran, "prolog"); return nil }
		if err := table.enter(&storedPlan{Key: k}, prolog, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	leave := func(k launch.Key) {
		if err := table.leave(k, func(*storedPlan) error { ran = append(ran, "epilog"); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	a, b, next := launch.Key{Job: 1}, launch.Key{Job: 1, Step: 1}, launch.Key{Job: 1, Run: 1}
	enter(a)
	enter(b)
	enter(next)
	leave(a)
	leave(a)
	leave(b)
	leave(b)
	leave(next)
	if got := strings.Join(ran, " "); got != "prolog prolog epilog epilog" {
		t.Errorf("ran %s", got)
	}
	table.adopt(&storedPlan{Key: a})
	enter(b)
	leave(b)
	if len(ran) != 4 {
		t.Error("a run of an earlier launcher got another prolog, or an epilog too early")
	}
}

// TestRequestsBeyondTheLimitWait sends MaxInflight+1 requests that cannot end and sees that the last
// is not taken from the socket before one of them has ended.
func TestRequestsBeyondTheLimitWait(t *testing.T) {
	s := &Server{conf: &Conf{AgentUID: os.Getuid(), StepUID: -2, Spool: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	driver, err := cgroup.Open(cgroup.Config{Driver: cgroup.None, Subtree: "x"})
	if err != nil {
		t.Fatal(err)
	}
	s.groups, s.spool = driver, &spool{conf: s.conf}
	path := t.TempDir() + "/s"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	key := launch.Key{Job: 1}
	unlock := s.jobs.lockStep(key) // every release of this step waits here
	served := make(chan struct{})
	go func() { s.serve(t.Context(), conn); close(served) }()
	for id := range uint64(MaxInflight + 1) {
		if err := launch.WriteRequest(client, &launch.Request{ID: id, Release: &launch.Release{Key: key}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := launch.WriteRequest(client, &launch.Request{ID: 9999, Signal: &launch.Signal{Number: 99}}); err != nil {
		t.Fatal(err)
	}
	client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	var r launch.Reply
	if err := launch.ReadFrame(client, &r); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the request over the limit was answered: %+v %v", r, err)
	}
	client.SetReadDeadline(time.Now().Add(10 * time.Second))
	unlock()
	for range MaxInflight + 2 {
		if err := launch.ReadFrame(client, &r); err != nil {
			t.Fatal(err)
		}
	}
	client.Close()
	<-served
}

// TestOnlyRootsFilesAreTrusted: the authority's certificate and gstepd, and the folders that they are in.
func TestOnlyRootsFilesAreTrusted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: owners are changed")
	}
	for _, c := range []struct {
		name         string
		fileUID      int
		file, folder os.FileMode
		folderUID    int
		want         string
	}{
		{"root's", 0, 0o755, 0o755, 0, ""}, {"of another", 1234, 0o755, 0o755, 0, "belongs to uid 1234"},
		{"writable", 0, 0o666, 0o755, 0, "mode 0666"}, {"folder of another", 0, 0o755, 0o755, 1234, "belongs to uid 1234"},
		{"folder writable", 0, 0o755, 0o777, 0, "mode 0777"}, {"folder sticky", 0, 0o755, 0o777 | os.ModeSticky, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := dir + "/f"
			err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, c.file), os.Chown(path, c.fileUID, 0),
				os.Chmod(dir, c.folder), os.Chown(dir, c.folderUID, 0))
			if err != nil {
				t.Fatal(err)
			}
			link := t.TempDir() + "/link"
			if err := os.Symlink(path, link); err != nil {
				t.Fatal(err)
			}
			for _, p := range []string{path, link} {
				if err := checkOurs(p, false); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: got %v, want %q", p, err, c.want)
				}
			}
		})
	}
}

// TestCollectedGroupIsNotKilled: the number of a child that has been collected may be another's.
func TestCollectedGroupIsNotKilled(t *testing.T) {
	other := exec.Command("sleep", "100")
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Process.Kill()
	r := newReaper()
	r.killGroup(other.Process.Pid)
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatal(err)
	}
	r.waiting[other.Process.Pid] = make(chan syscall.WaitStatus, 1)
	r.killGroup(other.Process.Pid)
	if err := other.Wait(); err == nil || other.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", err)
	}
}

func TestPlainPaths(t *testing.T) {
	for in, want := range map[string]string{"/home/a.b/x_1": "/home/a.b/x_1", "/home/a b": "", "/$(x)": "", "/x;y": ""} {
		if got := plainPath(in); got != want {
			t.Errorf("%q: got %q want %q", in, got, want)
		}
	}
}

// TestRefusalsDoNotFillTheLog: of many at once one is written, and the next says how many were left out.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(slog.NewTextHandler(&out, nil))
		var i intake
		for range 2000 {
			i.warn(log, "refused", errors.New("x"))
		}
		time.Sleep(logEvery)
		i.warn(log, "refused", errors.New("x"))
		if n := strings.Count(out.String(), "\n"); n != 2 || !strings.Contains(out.String(), "left_out=1999") {
			t.Errorf("%d lines: %s", n, out.String())
		}
	})
}
