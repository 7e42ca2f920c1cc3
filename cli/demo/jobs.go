package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// scripts are the users' batch scripts, as one would write them for Slurm.
var scripts = map[string]string{
	"train.sh": `#!/bin/bash
#SBATCH --job-name=train
#SBATCH --gres=gpu:a100:2 --cpus-per-task=2 --mem=500M
#SBATCH --time=5 --output=train-%j.log   # a comment is fine here
echo "job $SLURM_JOB_ID of $SLURM_JOB_USER on $SLURMD_NODENAME: GPUs $CUDA_VISIBLE_DEVICES"
for step in 1 2 3 4 5 6 7 8; do echo "step $step"; sleep 1; done
echo done
`,
	"sweep.sh": `#!/bin/bash
#SBATCH --job-name=sweep --array=0-7%4 --output=sweep-%a.log --time=5 --mem=100M
echo "learning rate 1e-$SLURM_ARRAY_TASK_ID"
sleep 3
echo done
`,
	"broken.sh": `#!/bin/bash
#SBATCH --job-name=broken --output=broken.log --mem=100M
echo "about to fail"
exit 3
`,
}

const trainers = 4

// submit hands in real scripts.
func (d *demo) submit() error {
	d.say("%s submits: %d training jobs with two GPUs each, a sweep of 8 tasks (4 at a time), and one that fails.", d.user.Username, trainers)
	for range trainers {
		if err := d.show("sbatch", "train.sh"); err != nil {
			return err
		}
	}
	for _, s := range []string{"sweep.sh", "broken.sh"} {
		if err := d.show("sbatch", s); err != nil {
			return err
		}
	}
	if err := d.until("four training jobs running", 20*time.Second, func() bool {
		out, err := d.output("squeue", "-h", "-t", "R", "-n", "train", "-o", "%i")
		return err == nil && strings.Count(out, "\n") == trainers
	}); err != nil {
		return err
	}
	return d.show("squeue")
}

func (d *demo) until(what string, most time.Duration, ok func() bool) error {
	for end := time.Now().Add(most); ; time.Sleep(100 * time.Millisecond) {
		if ok() {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v: still not %s", most, what)
		}
	}
}

// killLeader takes the leader away while jobs run and wait.
func (d *demo) killLeader() error {
	leader, err := d.leader()
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(d.dir, "cluster", "log", leader+".pid"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return fmt.Errorf("pid of %s: %w", leader, err)
	}
	d.say("The leading controller, %s, is killed (kill -9 %d) while the jobs run.", leader, pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	from := time.Now()
	if err := d.show("sbatch", "--output=after.log", "--job-name=after", "--mem=100M", "--wrap", "echo the queue is open"); err != nil {
		return err
	}
	took := time.Since(from)
	next, err := d.leader()
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "         That submission was on disk at a majority %d ms after the kill; %s leads now.\n", took.Milliseconds(), next)
	return d.show("squeue")
}

// finish waits for the end and holds the results against what they must be.
func (d *demo) finish() error {
	d.say("The jobs go on under the new leader, to their end.")
	if err := d.until("an empty queue", 40*time.Second, func() bool {
		out, err := d.output("squeue", "-h", "-o", "%i")
		return err == nil && strings.TrimSpace(out) == ""
	}); err != nil {
		return err
	}
	if err := d.show("sacct", "-X", "-S", "now-1hour", "-o", "JobID%12,JobName%10,State%12,ExitCode,Restarts%8,Elapsed,NodeList%8"); err != nil {
		return err
	}
	d.say("What came out is checked: every line of output, every exit code, no job started twice.")
	bad, checked := d.check()
	if len(bad) > 0 {
		return fmt.Errorf("%s", strings.Join(bad, "; "))
	}
	fmt.Fprintf(d.out, "         %d jobs: all as they must be.\n", checked)
	return nil
}

// check compares accounting and output files with what the scripts do.
func (d *demo) check() (bad []string, checked int) {
	out, err := d.output("sacct", "-X", "-n", "-P", "-S", "now-1hour", "-o", "JobID,JobName,State,ExitCode,Restarts")
	if err != nil {
		return []string{err.Error()}, 0
	}
	const train = "step 1\nstep 2\nstep 3\nstep 4\nstep 5\nstep 6\nstep 7\nstep 8\ndone\n"
	for l := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(l), "|")
		if len(f) != 5 {
			return append(bad, fmt.Sprintf("sacct printed %q", l)), checked
		}
		checked++
		want, file, tail := "COMPLETED|0:0|0", "", ""
		switch f[1] {
		case "train":
			file, tail = "train-"+f[0]+".log", train
		case "sweep":
			_, task, _ := strings.Cut(f[0], "_")
			file, tail = "sweep-"+task+".log", "learning rate 1e-"+task+"\ndone\n"
		case "broken":
			want, file, tail = "FAILED|3:0|0", "broken.log", "about to fail\n"
		case "after":
			file, tail = "after.log", "the queue is open\n"
		}
		if got := strings.Join(f[2:], "|"); got != want {
			bad = append(bad, fmt.Sprintf("job %s (%s) is %s, not %s", f[0], f[1], got, want))
		}
		text, err := os.ReadFile(filepath.Join(d.work(), file))
		if err != nil || !strings.HasSuffix(string(text), tail) {
			bad = append(bad, fmt.Sprintf("output of job %s is %q", f[0], text))
		}
	}
	if want := trainers + 8 + 2; checked != want {
		bad = append(bad, fmt.Sprintf("%d jobs are known, not %d", checked, want))
	}
	return bad, checked
}
