package main_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
)

var benchLaunch = flag.Bool("bench-launch", false, "measure jobs a second end to end, beside a bare fork loop")

// Figures of make bench-launch.
const (
	benchJobs    = 1000
	benchRounds  = 3
	ofFloor      = 0.4  // of the bare loop in the same run
	overSlurm    = 10.0 // times the rate of Debian's Slurm, when it is measured
	benchTimeout = 5 * time.Minute
)

// TestBenchLaunch measures no-op batch jobs end to end on one host: submitted held, released, until
// the last has ended. (a) groups that only track, (b) the machine's full driver. The floor is a bare
// loop with as many workers as there are slots: it makes the same groups, forks the same script into
// them, waits and removes them.
func TestBenchLaunch(t *testing.T) {
	if !*benchLaunch {
		t.Skip("only with -bench-launch (make bench-launch)")
	}
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	slots := 2
	if s := os.Getenv("BENCH_SLOTS"); s != "" {
		slots, _ = strconv.Atoi(s)
	}
	for _, driver := range []string{cgroup.Track, cgroup.Auto} {
		c := startCluster(t, "--nodes", "1", "--cpus", strconv.Itoa(slots), "--mem", "8000", "--cgroup", driver)
		work := c.workDir(t)
		var ours, bare []float64
		for range benchRounds {
			bare = append(bare, floor(t, work, driver, slots))
			ours = append(ours, endToEnd(t, c, work))
		}
		o, b := median(ours), median(bare)
		t.Logf("driver %s, %d slots: ours %.0f jobs/s %v, bare loop %.0f/s %v", driver, slots, o, round(ours), b, round(bare))
		name := map[string]string{cgroup.Track: "track", cgroup.Auto: "full"}[driver]
		fmt.Printf("figure launch_%s_jobs %.0f 1/s\n", name, o)
		fmt.Printf("figure launch_%s_bare %.0f 1/s\n", name, b)
		figure(t, "launch_"+name+"_of_bare", o/b, "x", ofFloor)
		c.stop(t)
		if driver == cgroup.Track {
			besideSlurm(t, o, slots)
		}
	}
}

// besideSlurm measures Debian's Slurm with as many slots as ours, and with the 64 that suit it better;
// the better rate counts.
func besideSlurm(t *testing.T, ours float64, slots int) {
	t.Helper()
	best := 0.0
	for _, n := range []int{slots, 64} {
		rate, ok := slurmRate(t, n)
		if !ok {
			t.Log("Slurm is not installed, so it is not measured: make bench-slurm-install")
			return
		}
		t.Logf("Slurm, %d slots: %.0f jobs/s", n, rate)
		best = max(best, rate)
	}
	fmt.Printf("figure launch_slurm_jobs %.0f 1/s\n", best)
	figure(t, "launch_track_of_slurm", ours/best, "x", overSlurm)
}

// figure prints one measured line and fails when it is short.
func figure(t *testing.T, name string, value float64, unit string, target float64) {
	t.Helper()
	word := "ok"
	if value < target {
		word = "short"
		t.Errorf("%s is %.2f, the target is %.2f", name, value, target)
	}
	fmt.Printf("figure %s %.2f %s (target >= %.2f) %s\n", name, value, unit, target, word)
}

func median(v []float64) float64 {
	s := append([]float64(nil), v...)
	for i := range s {
		for j := i; j > 0 && s[j] < s[j-1]; j-- {
			s[j], s[j-1] = s[j-1], s[j]
		}
	}
	return s[len(s)/2]
}

func round(v []float64) []int {
	out := make([]int, len(v))
	for i := range v {
		out[i] = int(v[i] + 0.5)
	}
	return out
}

const noop = "#!/bin/sh\n:\n"

// endToEnd is jobs a second from the release of a held array until its last task has ended.
func endToEnd(t *testing.T, c *cluster, work string) float64 {
	t.Helper()
	script := filepath.Join(work, "noop.sh")
	if err := os.WriteFile(script, []byte(noop), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), benchTimeout)
	defer cancel()
	waiter := c.command(ctx, work, "sbatch", "-W", "--parsable", "-H", "--mem=10M", "-o", "/dev/null", "-a", fmt.Sprintf("0-%d", benchJobs-1), script)
	out, err := waiter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := waiter.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("sbatch: %v", err)
	}
	id = strings.TrimSpace(id)
	from := time.Now()
	c.run(t, work, "scontrol", "release", id)
	if err := waiter.Wait(); err != nil {
		t.Fatalf("sbatch -W: %v", err)
	}
	took := time.Since(from)
	rows := c.run(t, work, "sacct", "-X", "-n", "-P", "-j", id, "-o", "State")
	if n := strings.Count(rows, "COMPLETED\n"); n != benchJobs {
		t.Fatalf("%d of %d tasks completed", n, benchJobs)
	}
	return benchJobs / took.Seconds()
}

// floor is the bare loop's rate.
func floor(t *testing.T, work, driver string, workers int) float64 {
	t.Helper()
	d, err := cgroup.Open(cgroup.Config{Driver: driver, Subtree: "bench_floor"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	script := filepath.Join(work, "floor.sh")
	if err := os.WriteFile(script, []byte(noop), 0o755); err != nil {
		t.Fatal(err)
	}
	limits := cgroup.Limits{Memory: 10 << 20, Shares: 1024}
	if driver == cgroup.Track {
		limits = cgroup.Limits{}
	}
	next := make(chan uint32, benchJobs)
	for i := range benchJobs {
		next <- uint32(i)
	}
	close(next)
	var wg sync.WaitGroup
	from := time.Now()
	for range workers {
		wg.Go(func() {
			for i := range next {
				if err := bareJob(d, i, limits, script); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return benchJobs / time.Since(from).Seconds()
}

// bareJob makes the groups, forks the script into them, waits, and removes them.
func bareJob(d *cgroup.Driver, i uint32, limits cgroup.Limits, script string) error {
	g, err := d.Create(cgroup.Key{Job: i + 1, Step: 1}, limits)
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", `for f; do echo $$ > "$f" || exit 9; done; exec `+script, "bare")
	if len(g.Legacy) == 0 {
		cmd = exec.Command(script)
	}
	for _, dir := range g.Legacy {
		cmd.Args = append(cmd.Args, filepath.Join(dir, "cgroup.procs"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if g.Unified != "" {
		f, err := os.Open(g.Unified)
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("bare job %d: %w", i, err)
	}
	return g.Destroy()
}
