package main_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReconfigure: the file is read again; what can change changes, the difference is shown, a file
// with mistakes changes nothing and every mistake is named with its line.
func TestReconfigure(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster; not with -short")
	}
	c := startCluster(t, "--controllers", "3", "--nodes", "1", "--cpus", "2", "--mem", "1000")
	work := c.workDir(t)
	path := filepath.Join(c.dir, "grid.conf")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	try := func() (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		out, err := c.command(ctx, work, "gctl", "reconfigure").CombinedOutput()
		return string(out), err
	}

	write(string(good) + "KillWait=7\nRaftTimeout=400ms\nMailProg=/bin/mail\nPartitionName=extra Nodes=n1 MaxTime=30\n")
	out, err := try()
	if err != nil {
		t.Fatalf("reconfigure: %v\n%s", err, out)
	}
	for _, w := range []string{"KillWait 5 sec -> 7 sec", "partition extra added", "RaftTimeout", "MailProg has no effect"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	if show := c.run(t, work, "scontrol", "show", "partition", "extra"); !strings.Contains(show, "MaxTime=00:30:00") {
		t.Errorf("partition extra: %s", show)
	}
	if out := c.run(t, work, "sbatch", "--parsable", "-p", "extra", "-o", "/dev/null", "-W", "--wrap", "true"); strings.TrimSpace(out) == "" {
		t.Error("nothing ran in the new partition")
	}

	write(string(good) + "KillWait=soon\nPartitionName=extra Nodes=n9\nNonsense=1\n")
	out, err = try()
	if err == nil {
		t.Fatalf("a file with mistakes was taken:\n%s", out)
	}
	lines := strings.Count(string(good), "\n")
	for _, w := range []string{"KillWait=soon", "node n9 is on no NodeName line", "Nonsense is no known key"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
	if at := fmt.Sprintf("grid.conf:%d:", lines+1); !strings.Contains(out, at) {
		t.Errorf("no %q in\n%s", at, out)
	}
	if show := c.run(t, work, "scontrol", "show", "config"); !strings.Contains(show, "7 sec") {
		t.Errorf("KillWait did not stay: %s", show)
	}
}
