package gctl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/cli/program"
)

// TestNamesOfATokenCountOnce: a name that is written twice is one use.
func TestNamesOfATokenCountOnce(t *testing.T) {
	req, err := tokenRequest(given{}, []string{"n1", "n[1-2]", "n2"})
	if err != nil || req.Names != "n[1-2]" {
		t.Errorf("names %q, %v", req.GetNames(), err)
	}
}

// TestFileThatIsThere: what is said of a file in the way has no word of an option that only backups have.
func TestFileThatIsThere(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := mayReplace(name, false)
	if !errors.Is(err, errThere) || strings.Contains(err.Error(), "--force") || strings.Contains(err.Error(), "backup") {
		t.Errorf("%v", err)
	}
	if err := mayReplace(name, true); err != nil {
		t.Errorf("with force: %v", err)
	}
}

// TestInspectOfAPipe: a backup that comes by a pipe is the daemon's to read; for a file our input is left alone,
// since it may be where commands come from.
func TestInspectOfAPipe(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "gctld"), []byte("#!/bin/sh\necho \"$1\"\nexec cat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	for file, want := range map[string]string{
		"-": "--inspect=/dev/stdin\nbytes", "/dev/stdin": "--inspect=/dev/stdin\nbytes", "a.snap": "--inspect=a.snap\n", "-x": "--inspect=-x\n",
	} {
		var out, errs strings.Builder
		env := &program.Env{Name: "gctl", Args: []string{"snapshot", "inspect", "--", file}, Stdin: strings.NewReader("bytes"), Stdout: &out, Stderr: &errs, Dir: dir}
		if code := Main(env); code != 0 || out.String() != want {
			t.Errorf("inspect %s: code %d, %q, %s", file, code, out.String(), errs.String())
		}
	}
}
