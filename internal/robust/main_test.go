package robust

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	robust  = flag.Bool("robust", false, "run the long suites (make robust, robust-failover, robust-agent, robust-members, robust-security)")
	seed    = flag.Uint64("robust-seed", 0, "first seed of make robust; 0 = by the time")
	limit   = flag.Duration("robust-time", 15*time.Minute, "how long make robust goes on with new seeds")
	rounds  = flag.Int("robust-rounds", 10, "kills of the leader in make robust-failover")
	perKill = flag.Int("robust-jobs", 2000, "submissions in each round of make robust-failover")
)

// inside is set in the process that has namespaces of its own.
const inside = "ROBUST_INSIDE"

// TestMain gives the tests, when they are root's, mounts and process ids of their own: whatever they
// mount and start is gone with them, also when they are killed.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 && os.Getenv(inside) == "" {
		if tool, err := exec.LookPath("unshare"); err == nil {
			args := append([]string{tool, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--"}, os.Args...)
			err = syscall.Exec(tool, args, append(os.Environ(), inside+"=yes"))
			fmt.Fprintln(os.Stderr, "unshare:", err)
			os.Exit(1)
		}
	}
	flag.Parse()
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// built is the folder of the programs, which goes at the end.
var built string

// programs builds everything once, so that it can be broken, into a folder that all may read.
var programs = sync.OnceValues(func() (string, error) {
	if given := os.Getenv("ROBUST_BIN"); given != "" { // of another version, say
		return given, nil
	}
	dir, err := os.MkdirTemp("", "grid-robust-bin-")
	if err != nil {
		return "", err
	}
	built = dir
	os.Chmod(dir, 0o755)
	for name, pkg := range map[string]string{"grid": "cli", "gctld": "ctld", "gnoded": "nodeagent", "gnode-launch": "nodeagent/launcher", "gstepd": "nodeagent/stepd"} {
		cmd := exec.Command("go", "build", "-tags", "faults", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), "../../"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	for _, l := range strings.Fields("gsub gqueue gcancel ginfo gacct gctl sbatch squeue scancel sinfo sacct scontrol") {
		if err := os.Symlink("grid", filepath.Join(dir, l)); err != nil {
			return dir, err
		}
	}
	return dir, nil
})

func bin(t testing.TB) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// needRoot skips what one account cannot do.
func needRoot(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() != 0:
		t.Skip("agents, shepherds and users under accounts of their own need root")
	case os.Getenv(inside) == "":
		t.Skip("unshare (util-linux) is not installed: mounts and processes would be left behind")
	}
}

// smoke is for what takes seconds: "make test" runs it.
func smoke(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a cluster; not with -short")
	}
	needRoot(t)
}

// long skips what takes minutes unless it was asked for.
func long(t testing.TB) {
	t.Helper()
	if !*robust {
		t.Skip("only with -robust (make robust, robust-failover, robust-agent, robust-members, robust-security)")
	}
	needRoot(t)
}

// figure prints one measured line and fails the test when it is short.
func figure(t testing.TB, name string, value float64, unit string, target float64) {
	t.Helper()
	word := "ok"
	if value < target {
		word = "short"
		t.Errorf("%s is %.2f %s, the target is at least %.2f", name, value, unit, target)
	}
	fmt.Printf("figure %s %.2f %s (target >= %.2f) %s\n", name, value, unit, target, word)
}

// most is figure for what must not be more than the target.
func most(t testing.TB, name string, value float64, unit string, target float64) {
	t.Helper()
	word := "ok"
	if value > target {
		word = "short"
		t.Errorf("%s is %.2f %s, the target is at most %.2f", name, value, unit, target)
	}
	fmt.Printf("figure %s %.2f %s (target <= %.2f) %s\n", name, value, unit, target, word)
}

func median(v []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}

// within polls until ok gives nil; what it waits for happens in other processes.
func within(t testing.TB, most time.Duration, what string, ok func() error) {
	t.Helper()
	if err := poll(most, ok); err != nil {
		t.Fatalf("%s: not within %v: %v", what, most, err)
	}
}

func poll(most time.Duration, ok func() error) error {
	end := time.Now().Add(most)
	for {
		err := ok()
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

var errNotYet = errors.New("not yet")

// begin is what times of histories count from.
var begin = time.Now()

func since() int64 { return int64(time.Since(begin)) }
