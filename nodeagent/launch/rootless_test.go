package launch_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// TestRootlessAsUser runs the rootless tests under an ordinary uid when the tests run as root.
func TestRootlessAsUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the rootless tests run directly")
	}
	if _, err := binaries(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "tg-rootless-")
	must(t, err)
	defer os.RemoveAll(dir)
	must(t, os.Chmod(dir, 0o755))
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(dir+"/test", self, 0o755))
	must(t, os.Mkdir(dir+"/tmp", 0o755))
	must(t, os.Chown(dir+"/tmp", userID, userID))
	bin, _ := binaries()
	cmd := exec.Command(dir+"/test", "-test.run=^TestRootless(Runs|Refuses)$", "-test.v")
	cmd.Dir = dir + "/tmp"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "TMPDIR=" + dir + "/tmp", "HOME=" + dir + "/tmp", binEnv + "=" + bin}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userID, Gid: userID}}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "SKIP") || !strings.Contains(string(out), "PASS: TestRootlessRuns") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRootlessRuns(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root: run by TestRootlessAsUser")
	}
	n := newNodeAs(t, "rootless = yes")
	list := n.ask(launch.Request{List: true})
	if list.Driver != "none" || len(list.Missing) == 0 {
		t.Errorf("driver %q, missing %v", list.Driver, list.Missing)
	}
	k := n.start(n.order("#!/bin/sh\nid -u\nexit 3"))
	if r := n.wait(k); r.ExitCode != 3 {
		t.Errorf("got %+v", *r)
	}
	n.release(k)

	k = n.start(n.order("#!/bin/bash\necho up\nsetsid sleep 100 &\nsleep 100", func(l *cred.Launch) { l.TimeLimit, l.KillWait = 500, 300 }))
	n.waitFor("out", "up")
	if r := n.wait(k); r.Signal != 15 || job.Why(r.Why) != job.WhyTimeLimit {
		t.Errorf("time limit: %+v", *r)
	}
	n.release(k)

	k = n.start(n.order("#!/bin/bash\ntrap '' TERM\necho up2\nsetsid sleep 100 &\nwhile :; do sleep 100; done"))
	n.waitFor("out", "up2")
	n.tell(k, shepherd.Down{Terminate: &shepherd.Terminate{Why: uint8(job.WhyCancel), Now: true}})
	if r := n.wait(k); r.Signal != 9 || job.Why(r.Why) != job.WhyCancel {
		t.Errorf("killed: %+v", *r)
	}
	n.release(k)

	k = n.start(n.order("#!/bin/bash\necho up3\nsleep 100"))
	n.waitFor("out", "up3")
	if r := n.ask(launch.Request{Kill: &k}); r.Err != "" {
		t.Error(r.Err)
	}
	if r := n.wait(k); r.Signal != 9 {
		t.Errorf("killed by the launcher: %+v", *r)
	}
	n.release(k)
}

func TestRootlessRefuses(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root: run by TestRootlessAsUser")
	}
	n := newNodeAs(t, "rootless = yes")
	o := n.order("#!/bin/sh\n", func(l *cred.Launch) { l.UID = otherID })
	if r := n.ask(launch.Request{Start: n.sign(o)}); !strings.Contains(r.Err, "serves uid") || job.Cause(r.Cause) != job.CauseUser {
		t.Errorf("another uid: %+v", r)
	}
}
