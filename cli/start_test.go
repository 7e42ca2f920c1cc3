package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// startBudget is what a command that needs no controller may take beyond an empty Go program.
const startBudget = 8 * time.Millisecond

// TestStartTime compares the quickest of many starts, which a busy host disturbs least.
func TestStartTime(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs; not with -short")
	}
	bin, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if out, err := exec.Command("go", "build", "-ldflags", "-s -w", "-o", empty, filepath.Join(dir, "main.go")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	base := quickest(t, empty)
	for _, args := range [][]string{{"scontrol", "show", "hostnames", "n[1-64]"}, {"sbatch", "--version"}, {"squeue", "--help"}} {
		d := quickest(t, filepath.Join(bin, args[0]), args[1:]...)
		t.Logf("%v: %s, an empty program %s", args, d, base)
		if d > base+startBudget {
			t.Errorf("%v starts in %s, an empty program in %s: more than %s over", args, d, base, startBudget)
		}
	}
}

func quickest(t *testing.T, name string, args ...string) time.Duration {
	t.Helper()
	best := time.Hour
	for range 25 {
		begin := time.Now()
		if err := exec.Command(name, args...).Run(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		best = min(best, time.Since(begin))
	}
	return best
}
