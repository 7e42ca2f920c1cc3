package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/cli/program"
)

// full takes so many bytes, as a disk with little space does.
type full struct{ room int }

var errFull = errors.New("no space left on device")

func (f *full) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// TestOutputLost: a command that could not print all it had to say fails, and sbatch still tells the id.
func TestOutputLost(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	lines := [][]string{
		{"squeue"}, {"squeue", "--json"}, {"sinfo"}, {"sinfo", "--json"}, {"sinfo", "-i", "1"}, {"squeue", "-i", "1"}, {"sacct"}, {"sacct", "--json"}, {"sacct", "-e"},
		{"scontrol", "show", "job", "1"}, {"scontrol", "show", "hostnames", "n[1-3]"}, {"scontrol", "ping"}, {"scontrol", "job", "output", "1"},
		{"scontrol", "write", "batch_script", "1", "-"}, {"scontrol", "--version"}, {"sbatch", "--help"}, {"sbatch", "--wrap", "true"}, {"sbatch", "--parsable", "--wrap", "true"}, {"grid", "--help"},
	}
	for _, line := range lines {
		for _, room := range []int{0, 1} {
			r.out = &full{room}
			if a := r.call(line[0], line[1:]...); a.code == 0 || !strings.Contains(a.errout, "no space left on device") {
				t.Errorf("%q with room for %d bytes: %+v", line, room, a)
			}
		}
	}
	r.out = &full{}
	if a := r.call("sbatch", "--wrap", "true"); a.code != 1 || !strings.Contains(a.errout, "sbatch: error: job 10 was submitted") {
		t.Errorf("the id is lost: %+v", a)
	}
	r.out = &full{}
	if a := r.call("sbatch", "--wait", "--wrap", "exit 7"); a.code != 7 {
		t.Errorf("--wait: %+v", a)
	}
}

// TestOtherCluster: what was meant for another cluster does nothing here.
func TestOtherCluster(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	for _, line := range []string{"scancel -M other --me", "scancel -M lab,other 1", "scontrol -M other hold 1", "squeue -M other", "sinfo -M other", "sacct -M other", "sbatch -M other --wrap true"} {
		w := strings.Fields(line)
		if a := r.call(w[0], w[1:]...); a.code != 1 || a.out != "" || !strings.Contains(a.errout, "No cluster 'other' known by database.") {
			t.Errorf("%s: %+v", line, a)
		}
	}
	r.fake.mu.Lock()
	sent := len(r.fake.last)
	r.fake.mu.Unlock()
	if sent != 0 {
		t.Errorf("sent %d requests", sent)
	}
	for _, line := range []string{"scontrol -M lab hold 1", "squeue -M lab", "sinfo --clusters=", "sacct -M all"} {
		w := strings.Fields(line)
		if a := r.call(w[0], w[1:]...); a.code != 0 {
			t.Errorf("%s: %+v", line, a)
		}
	}
}

// TestTexts: values that cannot travel as text are refused by name, before anything is sent.
func TestTexts(t *testing.T) {
	r := newRunner(t)
	for _, line := range [][]string{{"squeue", "-n", "caf\xe9"}, {"scancel", "-n", "caf\xe9"}, {"sacct", "--name=caf\xe9"}, {"sinfo", "-p", "caf\xe9"}} {
		if a := r.call(line[0], line[1:]...); a.code != 1 || !strings.Contains(a.errout, "byte 0xe9 at 3 is not UTF-8") || strings.Contains(a.errout, "grpc") {
			t.Errorf("%q: %+v", line, a)
		}
	}
	if a := r.call("scontrol", "update", "JobId=1", "Comment=\xff"); a.code != 1 || !strings.Contains(a.errout, "byte 0xff at 8 is not UTF-8") {
		t.Errorf("scontrol: %+v", a)
	}
	r.stdin = "update JobId=1 Comment=\xff\n"
	if a := r.call("scontrol"); a.code != 1 || !strings.Contains(a.errout, "a value holds bytes that are not UTF-8") {
		t.Errorf("scontrol, from a file: %+v", a)
	}
}

// TestYAML: the refusal says what to use.
func TestYAML(t *testing.T) {
	r := newRunner(t)
	for _, line := range []string{"squeue --yaml", "sinfo --yaml", "sacct --yaml", "scontrol --yaml show job"} {
		w := strings.Fields(line)
		if a := r.call(w[0], w[1:]...); a.code != 1 || !strings.Contains(a.errout, "use --json") {
			t.Errorf("%s: %+v", line, a)
		}
	}
}

// TestPingLatency: in milliseconds, under the own name only.
func TestPingLatency(t *testing.T) {
	r := newRunner(t)
	if a := r.call("gctl", "ping"); a.code != 0 || !strings.Contains(a.out, " 1.3ms\n") {
		t.Errorf("%+v", a)
	}
	if a := r.call("scontrol", "ping"); a.code != 0 || strings.Contains(a.out, "ms") {
		t.Errorf("%+v", a)
	}
}

// TestHelpOfOutput: whoever looks for a job's output finds how.
func TestHelpOfOutput(t *testing.T) {
	r := newRunner(t)
	if a := r.call("gctl", "--help"); a.code != 0 || !strings.Contains(a.out, "job output ID [--stderr] [--follow]\n") || !strings.Contains(a.out, "show a job's output") {
		t.Errorf("%+v", a)
	}
}

// TestGridTakesNoWords: the word that is too much is named, not the command.
func TestGridTakesNoWords(t *testing.T) {
	r := newRunner(t)
	if a := r.call("grid", "up", "extra"); a.code != program.ExitUsage || !strings.Contains(a.errout, `up takes options only, not "extra"`) {
		t.Errorf("%+v", a)
	}
	if a := r.call("grid", "install-links"); a.code != program.ExitUsage || !strings.Contains(a.errout, "takes one folder") {
		t.Errorf("%+v", a)
	}
}

// TestNodesWithoutLimits: people are told that jobs are not held to what they asked for; programs are not.
func TestNodesWithoutLimits(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	r.fake.nodes[0].CgroupDriver = "none"
	if a := r.call("ginfo"); strings.Contains(a.out, "not limited") {
		t.Errorf("into a pipe: %s", a.out)
	}
	r.tty = true
	if a := r.call("ginfo"); !strings.Contains(a.out, fmt.Sprintf("1 of %d nodes have no control groups", len(r.fake.nodes))) {
		t.Errorf("on a terminal: %s", a.out)
	}
}

// TestUpdateSaysItOnce: one job, one line.
func TestUpdateSaysItOnce(t *testing.T) {
	r := newRunner(t)
	if a := r.call("scontrol", "update", "JobId=99", "Comment=x"); a.code != 1 || strings.Count(a.errout, "\n") != 1 || !strings.HasPrefix(a.errout, "slurm_update error: ") {
		t.Errorf("%+v", a)
	}
}
