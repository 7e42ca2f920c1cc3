package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescentTakesNobodyElses: a lock file whose numbers are another's by now finds nothing.
func TestDescentTakesNobodyElses(t *testing.T) {
	sleeper := exec.Command("sleep", "100")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sleeper.Process.Kill(); sleeper.Wait() }()
	pid, uid := sleeper.Process.Pid, os.Getuid()
	good, err := LockLine(os.Getpid(), pid)
	if err != nil {
		t.Fatal(err)
	}
	word := func(n int, with string) string {
		words := strings.Fields(string(good))
		words[n] = with
		return strings.Join(words, " ")
	}
	for _, c := range []struct {
		name, line string
		held       bool
		uid        int
		found      bool
	}{
		{"its session", string(good), false, uid, true},
		{"below the shepherd", string(good), true, uid, true},
		{"of another boot", word(4, "00000000-0000-0000-0000-000000000000"), false, uid, false},
		{"number given again", word(3, "7"), false, uid, false},
		{"of another user", string(good), false, uid + 1, false},
		{"of nobody knows whom", string(good), false, -1, false},
		{"shepherd's number given again", strings.Join([]string{strconv.Itoa(os.Getpid()), "7", "0", "0", strings.Fields(string(good))[4]}, " "), true, uid, false},
		{"old text", fmt.Sprintf("1 0\n%100s", ""), true, uid, false},
		{"nothing", "", true, uid, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, LockName), []byte(c.line), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.held {
				f, err := os.Open(filepath.Join(dir, LockName))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
					t.Fatal(err)
				}
			}
			pids, err := Descent(dir, c.uid)
			if err != nil || slices.Contains(pids, pid) != c.found || !c.found && len(pids) > 0 {
				t.Errorf("found %v %v", pids, err)
			}
		})
	}
}

// TestDescentReadsItsOwnLockOnly: what somebody else has put there counts for nothing.
func TestDescentReadsItsOwnLockOnly(t *testing.T) {
	good, err := LockLine(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, LockName)
	if err := os.WriteFile(filepath.Join(dir, "other"), good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("other", path); err != nil {
		t.Fatal(err)
	}
	if pids, err := Descent(dir, 0); err == nil {
		t.Errorf("a link: found %v", pids)
	}
	if err := os.Rename(filepath.Join(dir, "other"), path); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(path, 61002, 61002); err != nil {
			t.Fatal(err)
		}
		if pids, err := Descent(dir, 0); err == nil {
			t.Errorf("another's file: found %v", pids)
		}
	}
}
