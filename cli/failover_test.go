package main_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// run runs a command of the user's to its end and gives its standard output.
func (c *cluster) run(t *testing.T, work, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := c.command(ctx, work, name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.String())
	}
	return string(out)
}

// wait polls until ok; what it waits for happens in other processes.
func wait(t *testing.T, what string, most time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("after %v: still not %s", most, what)
}

var leaderLine = regexp.MustCompile(`(?m)^(c\d+)\s.*leader`)

// leader names the controller that leads.
func (c *cluster) leader(t *testing.T, work string) string {
	t.Helper()
	name := ""
	wait(t, "a leader", 20*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		out, err := c.command(ctx, work, "gctl", "ping").Output()
		if m := leaderLine.FindSubmatch(out); err == nil && m != nil {
			name = string(m[1])
		}
		return name != ""
	})
	return name
}

// TestLeaderKilled: 100 jobs run and 500 wait when the leader dies. No running job notices; all end
// with the right code and whole output, in the first run.
func TestLeaderKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster; not with -short")
	}
	c := startCluster(t, "--controllers", "3", "--nodes", "4", "--cpus", "25", "--mem", "4000")
	work := c.workDir(t)
	const jobs = 600
	script := filepath.Join(work, "job.sh")
	text := "#!/bin/sh\necho begin $SLURM_ARRAY_TASK_ID\nsleep 4\necho end $SLURM_ARRAY_TASK_ID\nexit $((SLURM_ARRAY_TASK_ID % 3))\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(c.run(t, work, "sbatch", "--parsable", "-a", fmt.Sprintf("0-%d", jobs-1), "-o", "o-%a", script))
	wait(t, "100 jobs running", 30*time.Second, func() bool {
		return strings.Count(c.run(t, work, "squeue", "-h", "-t", "R", "-o", "%i"), "\n") >= 100
	})
	before := c.run(t, work, "squeue", "-h", "-t", "R", "-o", "%i %S")
	leader := c.leader(t, work)
	if err := syscall.Kill(c.pid(leader), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	c.run(t, work, "sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true")
	t.Logf("leader %s killed; next submission acknowledged after %v", leader, time.Since(killed).Round(time.Millisecond))
	wait(t, "all jobs over", 3*time.Minute, func() bool { return c.run(t, work, "squeue", "-h", "-o", "%i") == "" })

	rows := c.run(t, work, "sacct", "-X", "-n", "-P", "-j", id, "-o", "JobID,State,ExitCode,Start,Restarts")
	seen := map[string]string{}
	for l := range strings.Lines(rows) {
		f := strings.Split(strings.TrimSpace(l), "|")
		seen[f[0]] = strings.Join(f[1:], "|")
	}
	for i := range jobs {
		state, code := "COMPLETED", "0:0"
		if i%3 != 0 {
			state, code = "FAILED", fmt.Sprintf("%d:0", i%3)
		}
		got := seen[fmt.Sprintf("%s_%d", id, i)]
		if !strings.HasPrefix(got, state+"|"+code+"|") || !strings.HasSuffix(got, "|0") {
			t.Errorf("task %d: %q, want %s %s and no restart", i, got, state, code)
		}
		out, _ := os.ReadFile(filepath.Join(work, fmt.Sprintf("o-%d", i)))
		if want := fmt.Sprintf("begin %d\nend %d\n", i, i); string(out) != want {
			t.Errorf("task %d: output %q, want %q", i, out, want)
		}
	}
	for l := range strings.Lines(before) {
		f := strings.Fields(l)
		if !strings.Contains(seen[f[0]], f[1]) {
			t.Errorf("task %s ran since %s before, now %q", f[0], f[1], seen[f[0]])
		}
	}
}

// TestAgentKilled: agent and launcher die while jobs run; a job goes on, and its code and end time
// arrive, also when it ended while they were gone.
func TestAgentKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster; not with -short")
	}
	c := startCluster(t, "--nodes", "1", "--cpus", "8", "--mem", "2000")
	work := c.workDir(t)
	submit := func(name, cmd string) string {
		return strings.TrimSpace(c.run(t, work, "sbatch", "--parsable", "-o", name, "--wrap", cmd))
	}
	long := submit("long", "sleep 6; echo over; exit 5")
	short := submit("short", "sleep 2; date +%s > ended; exit 6")
	wait(t, "both running", 20*time.Second, func() bool {
		return strings.Count(c.run(t, work, "squeue", "-h", "-o", "%t"), "R\n") == 2
	})
	// They are started again by what minds them; killed again and again they stay away until the short job is over.
	wait(t, "the end of the short job", 20*time.Second, func() bool {
		for _, d := range []string{"n1", "n1.launch"} {
			if pid := c.pid(d); pid != 0 {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_, err := os.Stat(filepath.Join(work, "ended"))
		return err == nil
	})
	wait(t, "both over", 60*time.Second, func() bool { return c.run(t, work, "squeue", "-h", "-o", "%i") == "" })
	for id, code := range map[string]string{long: "5:0", short: "6:0"} {
		row := c.run(t, work, "sacct", "-X", "-n", "-P", "-j", id, "-o", "State,ExitCode,Restarts")
		if strings.TrimSpace(row) != "FAILED|"+code+"|0" {
			t.Errorf("job %s: %q, want FAILED %s", id, row, code)
		}
	}
	ended, _ := os.ReadFile(filepath.Join(work, "ended"))
	end := strings.TrimSpace(c.run(t, work, "sacct", "-X", "-n", "-P", "-j", short, "-o", "End"))
	at, err := time.ParseInLocation("2006-01-02T15:04:05", end, time.Local)
	if err != nil {
		t.Fatalf("end time %q: %v", end, err)
	}
	var unix int64
	fmt.Sscan(string(ended), &unix)
	if d := at.Unix() - unix; d < -1 || d > 1 {
		t.Errorf("the short job ended at %d, sacct says %d", unix, at.Unix())
	}
	if out, _ := os.ReadFile(filepath.Join(work, "long")); string(out) != "over\n" {
		t.Errorf("long job's output %q", out)
	}
}
