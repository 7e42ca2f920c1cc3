package up

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
)

// daemon is a gctld of few words: it says that it is ready and runs until TERM.
const daemon = `#!/bin/sh
while [ $# -gt 0 ]; do
	[ "$1" = --ready ] && ready=$2
	[ "$1" = --sim ] && [ "$2" = bad ] && { echo "no board bad"; exit 2; }
	shift
done
trap 'exit 0' TERM
[ -z "$STARTS" ] || echo $$ >> "$STARTS"
echo ready > "$ready"
while :; do sleep 0.05; done
`

// call runs up or down with a PATH that holds the daemon.
func call(t *testing.T, f func(*program.Env, []getopt.Given) int, args ...string) (int, string, string) {
	t.Helper()
	given, _, err := getopt.Parse(Options(), args, getopt.Permute)
	if err != nil {
		t.Fatal(err)
	}
	var out, errout bytes.Buffer
	code := f(&program.Env{Name: "grid", Stdout: &out, Stderr: &errout, Environ: os.Environ(), Dir: "/", UID: uint32(os.Getuid())}, given)
	return code, out.String(), errout.String()
}

func install(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "gctld"), []byte(daemon), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

func TestUpAndDown(t *testing.T) {
	install(t)
	dir := filepath.Join(t.TempDir(), "c")
	code, out, errout := call(t, Up, "--dir", dir, "--nodes", "2")
	if code != 0 || !strings.Contains(out, "export GRID_CONF="+dir+"/grid.conf") {
		t.Fatalf("up: %d %s %s", code, out, errout)
	}
	if code, _, errout := call(t, Up, "--dir", dir); code != 0 || !strings.Contains(errout, "runs already") {
		t.Errorf("up again: %d %s", code, errout)
	}
	if code, _, errout := call(t, Down, "--dir", dir); code != 0 {
		t.Errorf("down: %d %s", code, errout)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder is still there")
	}
	if code, _, errout := call(t, Down, "--dir", dir); code != 1 || !strings.Contains(errout, "no cluster was started") {
		t.Errorf("down again: %d %s", code, errout)
	}
}

// TestUpFails: the daemon's last words are shown.
func TestUpFails(t *testing.T) {
	install(t)
	dir := filepath.Join(t.TempDir(), "c")
	code, _, errout := call(t, Up, "--dir", dir, "--sim", "bad")
	if code != 1 || !strings.Contains(errout, "exit status 2") || !strings.Contains(errout, "no board bad") {
		t.Errorf("%d %s", code, errout)
	}
}

// TestStalePid: a pid that another process has by now is not touched.
func TestStalePid(t *testing.T) {
	dir := t.TempDir()
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{env: &program.Env{UID: uint32(os.Getuid())}, dir: dir}
	for text, want := range map[string]bool{
		fmt.Sprintf("%d %d", os.Getpid(), start): true, fmt.Sprintf("%d %d", os.Getpid(), start+1): false,
		"1 0": false, "-5 1": false, "x": false, "": false,
	} {
		if err := os.WriteFile(c.file(pidFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.running(); ok != want {
			t.Errorf("%q: running %t", text, ok)
		}
	}
}

func TestForeignFolder(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "l")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, link} {
		for _, f := range []func(*program.Env, []getopt.Given) int{Up, Down} {
			if code, _, errout := call(t, f, "--dir", dir); code != 1 || !strings.Contains(errout, "not a folder of yours") {
				t.Errorf("%s: %d %s", dir, code, errout)
			}
		}
	}
}

func TestLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	for range 2 { // again is no error
		if err := InstallLinks(dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Readlink(filepath.Join(dir, "squeue")); err != nil {
		t.Error(err)
	}
	path := filepath.Join(dir, "sbatch")
	os.Remove(path)
	if err := os.WriteFile(path, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := InstallLinks(dir); err == nil {
		t.Error("a file that is no link was replaced")
	}
}

// TestUpAtOnce: of several that start at once one does, and what it started ends with down.
func TestUpAtOnce(t *testing.T) {
	install(t)
	dir, starts := filepath.Join(t.TempDir(), "c"), filepath.Join(t.TempDir(), "starts")
	t.Setenv("STARTS", starts)
	given, _, err := getopt.Parse(Options(), []string{"--dir", dir}, getopt.Permute)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				var out, errout bytes.Buffer
				env := &program.Env{Name: "grid", Stdout: &out, Stderr: &errout, Environ: os.Environ(), Dir: "/", UID: uint32(os.Getuid())}
				if code := Up(env, given); code != 0 || !strings.Contains(out.String(), "The cluster is up") {
					t.Errorf("up: %d %s", code, errout.String())
				}
			})
		}
		all.Wait()
		if code, _, errout := call(t, Down, "--dir", dir); code != 0 {
			t.Errorf("down: %d %s", code, errout)
		}
	}
	pids, err := os.ReadFile(starts)
	if err != nil || strings.Count(string(pids), "\n") != 3 {
		t.Errorf("started %q %v, want one process each time", pids, err)
	}
	for word := range strings.FieldsSeq(string(pids)) {
		if pid, err := strconv.Atoi(word); err != nil || syscall.Kill(pid, 0) == nil {
			t.Errorf("process %s runs on (%v)", word, err)
		}
	}
}
