package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// submitted runs sbatch on a script with these directives and gives what was sent.
func (r *runner) submitted(directives string, args ...string) (*ctldpb.JobSpec, answer) {
	r.t.Helper()
	path := r.script("job.sh", "#!/bin/sh\n"+directives+"\ntrue\n")
	a := r.call("sbatch", append(args, path)...)
	if a.code != 0 {
		return nil, a
	}
	return request[*ctldpb.SubmitRequest](r, "Submit").Spec, a
}

// TestSubmitBytes: scripts are bytes; names and paths are UTF-8, and what is not is refused by name, never by grpc.
func TestSubmitBytes(t *testing.T) {
	const body = "#!/bin/sh\n# caf\xe9\necho \xe9\xff\n"
	r := newRunner(t)
	path := r.script("caf\xe9.sh", body)
	if a := r.call("sbatch", path); a.code != 0 {
		t.Fatalf("a script in Latin-1: %+v", a)
	}
	s := request[*ctldpb.SubmitRequest](r, "Submit").Spec
	if string(s.Script) != body || s.Name != "caf?.sh" || !strings.HasSuffix(s.Command, "/caf?.sh") || !strings.HasSuffix(s.SubmitLine, "/caf?.sh") {
		t.Errorf("script %q, name %q, command %q, line %q", s.Script, s.Name, s.Command, s.SubmitLine)
	}
	if a := r.call("sbatch", "--wrap", "echo \xe9"); a.code != 0 || !strings.Contains(string(request[*ctldpb.SubmitRequest](r, "Submit").Spec.Script), "echo \xe9\n") {
		t.Errorf("--wrap: %+v", a)
	}
	r.env = append(r.env, "V=\xe9")
	if a := r.call("sbatch", "--wrap", "true"); a.code != 0 || r.environ()["V"] != "\xe9" {
		t.Errorf("a variable: %+v", a)
	}
	good := r.script("good.sh", "#!/bin/sh\ntrue\n")
	bad := r.script("bad.sh", "#!/bin/sh\n#SBATCH --comment=\xe9\ntrue\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-J", "caf\xe9", good}, 255, "Invalid --job-name specification\nsbatch: error: byte 0xe9 at 3 is not UTF-8"},
		{[]string{"-o", "/tmp/\xe9", good}, 255, "Invalid --output specification\nsbatch: error: byte 0xe9 at 5 is not UTF-8"},
		{[]string{"-D", "/tmp/\xe9", good}, 255, "Invalid --chdir specification"},
		{[]string{"--wckey=\xff", good}, 255, "Invalid --wckey specification\nsbatch: error: byte 0xff at 0"},
		{[]string{good, "one", "tw\xf6"}, 1, "Argument 2 of the script cannot be used: byte 0xf6 at 2 is not UTF-8"},
		{[]string{bad}, 255, "Invalid --comment specification"},
	} {
		if a := r.call("sbatch", c.args...); a.code != c.code || !strings.HasPrefix(a.errout, "sbatch: error: "+c.want) || strings.Contains(a.errout, "grpc") {
			t.Errorf("%q: %+v", c.args, a)
		}
	}
	r.dir = filepath.Join(r.dir, "d\xe9")
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if a := r.call("sbatch", "--wrap", "true"); a.code != 1 || !strings.Contains(a.errout, "The working folder cannot be used: byte 0xe9") || !strings.Contains(a.errout, "--chdir") {
		t.Errorf("working folder: %+v", a)
	}
	if a := r.call("sbatch", "-D", "/tmp", "--wrap", "true"); a.code != 0 {
		t.Errorf("the way out: %+v", a)
	}
}

// TestGPUSources: whichever way a stronger source asks for GPUs, it replaces what a weaker one asked for.
func TestGPUSources(t *testing.T) {
	for _, c := range []struct {
		directives, env, args, gres string
		cpus                        uint32
	}{
		{"#SBATCH --gpus-per-node=4", "", "-G 1", "gpu:1", 0},
		{"#SBATCH --gres=gpu:2", "", "-G 1", "gpu:1", 0},
		{"#SBATCH --gres=gpu:2,shard:3", "", "--gpus-per-node=1", "shard:3,gpu:1", 0},
		{"#SBATCH -G 8", "", "--gres=gpu:a100:1", "gpu:a100:1", 0},
		{"#SBATCH --gpus-per-task=2 -n 3", "", "-G 1", "gpu:1", 0},
		{"#SBATCH --tres-per-task=gres/gpu=2", "", "-G 1", "gpu:1", 0},
		{"#SBATCH -G 8", "", "--tres-per-task=gres/gpu=1 -n 2", "gpu:2", 0},
		{"#SBATCH -G 8", "SBATCH_GPUS_PER_NODE=2", "", "gpu:2", 0},
		{"#SBATCH -G 8", "SBATCH_GPUS_PER_NODE=2", "--gres=gpu:3", "gpu:3", 0},
		{"#SBATCH -G 8", "", "--gres=shard:1", "shard:1,gpu:8", 0},
		{"#SBATCH --gres=gpu:2 --cpus-per-gpu=4", "", "-c 1", "gpu:2", 1},
		{"#SBATCH --gres=gpu:2 -c 1", "", "--cpus-per-gpu=4", "gpu:2", 8},
		{"", "", "-G 4 --gpus-per-task=2", "gpu:4", 0},
	} {
		r := newRunner(t)
		if c.env != "" {
			r.env = append(r.env, c.env)
		}
		s, a := r.submitted(c.directives, strings.Fields(c.args)...)
		if s == nil {
			t.Errorf("%+v: %s", c, a.errout)
			continue
		}
		if s.Gres != c.gres || s.CpusPerTask != c.cpus || c.args == "-G 1" && (s.Rare["gpus-per-node"] != "" || s.Rare["gpus-per-task"] != "" || s.Rare["tres-per-task"] != "") {
			t.Errorf("%+v: gres %q, %d CPUs, %v", c, s.Gres, s.CpusPerTask, s.Rare)
		}
	}
	r := newRunner(t)
	for _, both := range []string{"--gres=gpu:1 -G 1", "--gres=gpu:1 --cpus-per-gpu=1 -c 1"} {
		if s, a := r.submitted("", strings.Fields(both)...); s != nil || a.code == 0 {
			t.Errorf("%s of one source: %+v", both, a)
		}
	}
}

// TestGresHelp: what the nodes have; no job.
func TestGresHelp(t *testing.T) {
	r := newRunner(t)
	r.want(r.call("sbatch", "--gres=help"), 0, "There are no generic resources on this cluster.\n", "")
	r.fake.nodes = []*ctldpb.Node{{Name: "n1", Gres: "gpu:a100:4,shard:8"}, {Name: "n2", Gres: "gpu:a100:2"}, {Name: "n3"}}
	r.want(r.call("sbatch", "--gres=help", "no-such-script"), 0,
		"Valid gres options are:\ngpu:a100:N               at most 4 on a node: n[1-2]\nshard:N                  at most 8 on a node: n1\n", "")
	if len(r.fake.jobs) != 0 {
		t.Error("a job")
	}
}

// TestNodeCounts: a list is a range when it leaves nothing out.
func TestNodeCounts(t *testing.T) {
	r := newRunner(t)
	for list, want := range map[string][2]uint32{"2,3,4": {2, 4}, "4,2-3": {2, 4}, "2-4:1": {2, 4}, "5-8:9": {5, 5}, "1k-2k": {1024, 2048}, "1-3,2-6": {1, 6}, "3": {3, 3}} {
		if s, a := r.submitted("", "-N", list); s == nil || s.MinNodes != want[0] || s.MaxNodes != want[1] {
			t.Errorf("--nodes=%s: %v %s", list, s, a.errout)
		}
	}
	for list, hint := range map[string]string{"20-100:20": "--nodes=20-100,", "2,4": "--nodes=2-4,", "1-2,9": "--nodes=1-9,"} {
		if s, a := r.submitted("", "-N", list); s != nil || a.code != 1 || !strings.Contains(a.errout, "Node count specification invalid") || !strings.Contains(a.errout, hint) {
			t.Errorf("--nodes=%s: %+v", list, a)
		}
	}
	for _, list := range []string{"", "0", "4-2", "2-4:0", "2:1", "1,", ",", "a", "1-2:x", "1--2", strings.Repeat("1,", 1000) + "1"} {
		if s, a := r.submitted("", "--nodes="+list); s != nil || a.code != 255 {
			t.Errorf("--nodes=%.20s: %+v", list, a)
		}
	}
}

// TestForeignDirectives: #SLURM with a reminder, #BSUB with what was passed over.
func TestForeignDirectives(t *testing.T) {
	r := newRunner(t)
	s, a := r.submitted("#SLURM -J old\n#SLURM settings of ours\n#SLURM -t 5")
	if s == nil || s.Name != "old" || s.TimeLimitMs != 300000 || strings.Count(a.errout, "\n") != 1 || !strings.HasPrefix(a.errout, "sbatch: error: line 2: #SLURM is an old word for #SBATCH") {
		t.Errorf("#SLURM: %v, %+v", s, a)
	}
	s, a = r.submitted("#BSUB -J run[1-4]%2 -n 4 -q main\n#BSUB -W 1:30\n#BSUB -o out.%J.%I -gpu \"num=2:mode=shared\"\n#BSUB -R \"span[hosts=1]\" -M 4000\n#BSUB -R x")
	if s == nil || s.Name != "run" || s.Array != "1-4%2" || s.Ntasks != 4 || s.Partition != "main" || s.TimeLimitMs != 90*60000 || s.StdOut != "out.%A.%a" || s.Gres != "gpu:2" ||
		a.errout != "sbatch: warning: of the #BSUB lines these options have no meaning here: -M -R\n" {
		t.Errorf("#BSUB: %v, %+v", s, a)
	}
	if s, a = r.submitted("#SBATCH -J ours --gres=gpu:1\n#BSUB -J theirs -gpu num=4\n#PBS -N theirs"); s == nil || s.Name != "ours" || s.Gres != "gpu:1" {
		t.Errorf("a script for several systems: %v, %+v", s, a)
	}
	if s, a = r.submitted("#BSUB -J x -R y", "--ignore-pbs"); s == nil || s.Name != "job.sh" || a.errout != "" {
		t.Errorf("--ignore-pbs: %v, %+v", s, a)
	}
	r.shared = true
	if s, a = r.submitted("#SLURM -J old"); s == nil || a.errout != "" {
		t.Errorf("both streams in one pipe: %+v", a)
	}
}

// TestRequeueAndPriority: values of later releases, and what is not for everybody.
func TestRequeueAndPriority(t *testing.T) {
	r := newRunner(t)
	if s, a := r.submitted("", "--requeue=expedite"); s == nil || s.Requeue != 1 || !strings.HasPrefix(a.errout, "sbatch: warning: --requeue=expedite") {
		t.Errorf("expedite: %+v", a)
	}
	if s, a := r.submitted("", "--requeue"); s == nil || s.Requeue != 1 || a.errout != "" {
		t.Errorf("--requeue: %+v", a)
	}
	if s, a := r.submitted("", "--requeue=soon"); s != nil || a.code != 255 {
		t.Errorf("--requeue=soon: %+v", a)
	}
	r.env = append(r.env, "SBATCH_REQUEUE=0")
	if s, _ := r.submitted(""); s == nil || s.Requeue != 0 {
		t.Errorf("SBATCH_REQUEUE=0: %v", s)
	}
	if s, a := r.submitted("", "--priority=9"); s != nil || a.code != 1 || !strings.HasPrefix(a.errout, "sbatch: error: Batch job submission failed: Access/permission denied\n") {
		t.Errorf("--priority of a user: %+v", a)
	}
	r.uid = 0
	if s, a := r.submitted("", "--priority=TOP"); s == nil || !strings.Contains(a.errout, "scontrol update") {
		t.Errorf("--priority of root: %+v", a)
	}
	if s, a := r.submitted("", "--priority=x"); s != nil || a.code != 255 {
		t.Errorf("--priority=x: %+v", a)
	}
}

// TestAcctTexts: sacct -B and --env-vars.
func TestAcctTexts(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	bar := strings.Repeat("-", 80)
	r.want(r.call("sacct", "-B", "-j", "1"), 0, "Batch Script for 1\n"+bar+"\n#!/bin/sh\ntrue\n", "")
	r.want(r.call("sacct", "--batch-script", "-j", "2"), 0, "Batch Script for 2\n"+bar+"\n#!/bin/sh\ntrue\n", "")
	r.want(r.call("sacct", "--env-vars", "-j", "1"), 0, "Environment used for 1 (must be batch to display)\n"+bar+"\n#!/bin/sh\ntrue\n", "")
	if req := request[*ctldpb.GetScriptRequest](r, "GetScript"); req.JobId != 1 || !req.Env {
		t.Errorf("%v", req)
	}
	for _, line := range []string{"-B", "-B --env-vars -j 1", "--env-vars"} {
		if a := r.call("sacct", strings.Fields(line)...); a.code != 1 || a.out != "" {
			t.Errorf("sacct %s: %+v", line, a)
		}
	}
	r.fake.refuse["GetScript"] = &ctldpb.Refusal{Code: "ESLURM_ACCESS_DENIED", Text: "Access/permission denied"}
	r.want(r.call("sacct", "-B", "-j", "1"), 1, "", "sacct: error: job 1: Access/permission denied\n")
}

// TestInfoStates: a & b is both.
func TestInfoStates(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	for states, want := range map[string]string{"idle": "n2\n", "idle&mix": "", "down&no_respond": "n10\n", "idle,down&no_respond": "n2\nn10\n", "drain&drained": "n3\n", "DOWN*&all": "n1\nn2\nn3\nn10\n"} {
		if a := r.call("sinfo", "-h", "-N", "-p", "main", "-o", "%N", "-t", states); a.code != 0 || a.out != want {
			t.Errorf("-t %s: %+v", states, a)
		}
	}
	if a := r.call("sinfo", "-t", "idle&nosuch"); a.code != 1 || !strings.Contains(a.errout, `"nosuch"`) {
		t.Errorf("%+v", a)
	}
}
