package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

func (r *runner) script(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// environ gives the last submitted environment.
func (r *runner) environ() map[string]string {
	s := request[*ctldpb.SubmitRequest](r, "Submit")
	r.fake.mu.Lock()
	defer r.fake.mu.Unlock()
	m := map[string]string{}
	for e := range strings.SplitSeq(string(r.fake.blobs[string(s.Spec.EnvHash)]), "\x00") {
		if k, v, ok := strings.Cut(e, "="); ok {
			m[k] = v
		}
	}
	return m
}

func TestSubmitLines(t *testing.T) {
	r := newRunner(t)
	r.want(r.call("sbatch", "--wrap", "true"), 0, "Submitted batch job 1\n", "")
	r.want(r.call("gsub", "--parsable", "--wrap=true"), 0, "2\n", "")
	r.want(r.call("grid", "sbatch", "--parsable", "-M", "lab", "--wrap=true"), 0, "3;lab\n", "")
	r.want(r.call("sbatch", "--test-only", "--wrap=true"), 0, "",
		"sbatch: Job 1 to start at 2026-11-30T12:00:00 using 1 processors on nodes n1 in partition main\n")
	r.want(r.call("sbatch", "-W", "--wrap", "exit 7"), 7, "Submitted batch job 4\n", "")
	r.want(r.call("sbatch", "--wait", "--wrap", "kill -9 $$"), 1, "Submitted batch job 5\n", "")
	a := r.call("sbatch", "-o", "nodir/x-%j.out", "--wrap", "true")
	if a.out != "Submitted batch job 6\n" || !strings.Contains(a.errout, "nodir does not exist") {
		t.Errorf("missing folder: %+v", a)
	}
	r.shared = true // both streams in one pipe: tools count words
	r.want(r.call("sbatch", "-o", "nodir/x-%j.out", "--wrap", "true"), 0, "Submitted batch job 7\n", "")
}

// TestSubmitSpec: which source wins, and what options become.
func TestSubmitSpec(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name, directives, args string
		env                    []string
		ok                     func(*ctldpb.JobSpec) bool
	}{
		{"directive", "#SBATCH -t 15 -J dir", "", nil, func(s *ctldpb.JobSpec) bool { return s.TimeLimitMs == 900000 && s.Name == "dir" }},
		{"environment over directive", "#SBATCH -t 15", "", []string{"SBATCH_TIMELIMIT=33"}, func(s *ctldpb.JobSpec) bool { return s.TimeLimitMs == 33*60000 }},
		{"command line over both", "#SBATCH -t 15", "-t 44", []string{"SBATCH_TIMELIMIT=33"}, func(s *ctldpb.JobSpec) bool { return s.TimeLimitMs == 44*60000 }},
		{"the later line wins", "#SBATCH -t 1\n#GSUB -t 2", "", nil, func(s *ctldpb.JobSpec) bool { return s.TimeLimitMs == 120000 }},
		{"empty variable is none", "#SBATCH -p p1", "", []string{"SBATCH_PARTITION="}, func(s *ctldpb.JobSpec) bool { return s.Partition == "p1" }},
		{"flag in a variable", "", "", []string{"SBATCH_REQUEUE=", "SBATCH_EXCLUSIVE="}, func(s *ctldpb.JobSpec) bool { return s.Requeue == 1 && s.Exclusive }},
		{"flag that is off", "", "", []string{"SBATCH_NO_REQUEUE=0"}, func(s *ctldpb.JobSpec) bool { return s.Requeue == 0 }},
		{"glued and prefixes", "", "-N2 -n4 --cpus-per-t=3", nil, func(s *ctldpb.JobSpec) bool {
			return s.MinNodes == 2 && s.MaxNodes == 2 && s.Ntasks == 4 && s.CpusPerTask == 3
		}},
		{"range of nodes", "", "-N 2-4", nil, func(s *ctldpb.JobSpec) bool { return s.MinNodes == 2 && s.MaxNodes == 4 }},
		{"memory", "", "--mem=1500K", nil, func(s *ctldpb.JobSpec) bool { return s.MemPerNode == 2<<20 }},
		{"all memory", "", "--mem=0", nil, func(s *ctldpb.JobSpec) bool { return s.MemPerNode == job.WholeNode }},
		{"a stronger source replaces its rival", "#SBATCH --mem=4G", "--mem-per-cpu=1G", nil, func(s *ctldpb.JobSpec) bool { return s.MemPerNode == 0 && s.MemPerCpu == gib }},
		{"no limit", "", "-t UNLIMITED", nil, func(s *ctldpb.JobSpec) bool { return s.TimeLimitMs == job.Unlimited }},
		{"kept by name", "", "--hint=nomultithread --mail-type=END --wckey=submitit --overcommit", nil, func(s *ctldpb.JobSpec) bool {
			return s.Rare["hint"] == "nomultithread" && s.Rare["mail-type"] == "END" && s.Rare["wckey"] == "submitit" && s.Rare["overcommit"] == "yes"
		}},
		{"GPUs of each node", "", "--gpus-per-node=a100:2", nil, func(s *ctldpb.JobSpec) bool { return s.Gres == "gpu:a100:2" }},
		{"GPUs in all", "", "-G 8 -N 4", nil, func(s *ctldpb.JobSpec) bool { return s.Gres == "gpu:2" && s.Rare["gpus"] == "8" }},
		{"GPUs of each task", "", "--gpus-per-task=1 -n 8 -N 2", nil, func(s *ctldpb.JobSpec) bool { return s.Gres == "gpu:4" }},
		{"what hangs on GPUs", "", "--gres=gpu:2 --cpus-per-gpu=4 --mem-per-gpu=8G", nil, func(s *ctldpb.JobSpec) bool { return s.CpusPerTask == 8 && s.MemPerNode == 16*gib }},
		{"tasks of each GPU", "", "--gpus-per-node=4 -N 2 --ntasks-per-gpu=1", nil, func(s *ctldpb.JobSpec) bool { return s.NtasksPerNode == 4 && s.Ntasks == 8 }},
		{"resources of each task", "", "--tres-per-task=cpu=4,gres/gpu=1 -n 2", nil, func(s *ctldpb.JobSpec) bool { return s.CpusPerTask == 4 && s.Gres == "gpu:2" }},
		{"relative folder", "", "-D sub", nil, func(s *ctldpb.JobSpec) bool { return strings.HasSuffix(s.WorkDir, "/sub") && filepath.IsAbs(s.WorkDir) }},
		{"begin", "", "--begin=now+1hour", nil, func(s *ctldpb.JobSpec) bool { return s.BeginMs == fakeNow.UnixMilli()+3600000 }},
		{"nice alone", "", "--nice", nil, func(s *ctldpb.JobSpec) bool { return s.Nice == 100 }},
		{"signal kept as given", "", "--signal=B:USR2@30", nil, func(s *ctldpb.JobSpec) bool { return s.Signal == "B:USR2@30" }},
		{"array kept as given", "", "-a [1-3]", nil, func(s *ctldpb.JobSpec) bool { return s.Array == "[1-3]" }},
		{"open mode by prefix", "", "--open-mode=a", nil, func(s *ctldpb.JobSpec) bool { return s.OpenMode == "append" }},
		{"a PBS line, then ours", "#PBS -N pbs -l walltime=1:00:00\n#SBATCH -J ours", "", nil, func(s *ctldpb.JobSpec) bool { return s.Name == "ours" && s.TimeLimitMs == 3600000 }},
		{"PBS lines passed over", "#PBS -N pbs", "--ignore-pbs", nil, func(s *ctldpb.JobSpec) bool { return s.Name == "job.sh" }},
		{"the same by a variable", "#PBS -N pbs", "", []string{"SBATCH_IGNORE_PBS=1"}, func(s *ctldpb.JobSpec) bool { return s.Name == "job.sh" }},
		{"older spelling", "", "--tasks-per-node=2", nil, func(s *ctldpb.JobSpec) bool { return s.NtasksPerNode == 2 }},
		{"negative nice of a user", "", "--nice=-5", nil, func(s *ctldpb.JobSpec) bool { return s.Nice == 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRunner(t)
			r.env = append(r.env, c.env...)
			path := r.script("job.sh", "#!/bin/sh\n"+c.directives+"\ntrue\n")
			a := r.call("sbatch", append(strings.Fields(c.args), path, "one", "-N9")...)
			if a.code != 0 {
				t.Fatalf("code %d: %s", a.code, a.errout)
			}
			s := request[*ctldpb.SubmitRequest](r, "Submit").Spec
			if !c.ok(s) {
				t.Errorf("got %v", s)
			}
			if s.Command != path || strings.Join(s.Args, " ") != "one -N9" {
				t.Errorf("command %s %q", s.Command, s.Args)
			}
		})
	}
}

func TestSubmitErrors(t *testing.T) {
	r := newRunner(t)
	good := r.script("good.sh", "#!/bin/sh\ntrue\n")
	for _, c := range []struct {
		name string
		args []string
		code int
		want string // all of standard error, or its beginning when it ends in "..."
	}{
		{"option", []string{"--x", good}, 255, "sbatch: unrecognized option '--x'\nTry \"sbatch --help\" for more information\n"},
		{"time", []string{"-t", "10m", good}, 255, "sbatch: error: Invalid --time specification\n..."},
		{"time that overflows", []string{"-t", "999999999999", good}, 255, "sbatch: error: Invalid --time specification\n..."},
		{"memory", []string{"--mem=1.5G", good}, 255, "sbatch: error: Invalid --mem specification\n..."},
		{"number", []string{"-n", "x", good}, 255, "sbatch: error: Invalid numeric value \"x\" for --ntasks.\n"},
		{"array", []string{"-a", "5-1", good}, 1, "sbatch: error: Batch job submission failed: Invalid job array specification\n..."},
		{"gres", []string{"--gres=gpu:x:y:z", good}, 1, "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification\n..."},
		{"node list", []string{"-w", "node]1-2[", good}, 1, "sbatch: error: Batch job submission failed: Invalid node name specified\nsbatch: error: --nodelist: invalid hostlist \"node]1-2[\"..."},
		{"rivals", []string{"--mem=1G", "--mem-per-cpu=1G", good}, 255, "sbatch: error: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.\n"},
		{"not built", []string{"--core-spec=1", good}, 1, "sbatch: error: Batch job submission failed: no cores can be set aside for the system..."},
		{"uneven GPUs", []string{"-G", "3", "-N", "2", good}, 1, "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification\n..."},
		{"other user", []string{"--uid=0", good}, 255, "sbatch: error: --uid only permitted by root user\n"},
		{"other cluster", []string{"-M", "other", good}, 1, "sbatch: error: No cluster 'other' known by database.\n..."},
		{"missing", []string{"nosuch.sh"}, 1, "sbatch: error: Unable to open file nosuch.sh\n"},
		{"empty", []string{r.script("e.sh", "")}, 1, "sbatch: error: Batch script is empty!\n"},
		{"blank", []string{r.script("b.sh", " \n\n")}, 1, "sbatch: error: Batch script contains only whitespace!\n"},
		{"no interpreter", []string{r.script("n.sh", "echo hi\n")}, 1, "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must start with #! followed by the path to an interpreter.\nsbatch: error: For instance: #!/bin/sh\n"},
		{"DOS", []string{r.script("d.sh", "#!/bin/sh\r\ntrue\r\n")}, 1, "sbatch: error: Batch script contains DOS line breaks (\\r\\n)\nsbatch: error: instead of expected UNIX line breaks (\\n).\n"},
		{"NUL", []string{r.script("0.sh", "#!/bin/sh\ntrue\x00\n")}, 1, "sbatch: error: The batch script contains the NULL character..."},
		{"directive word", []string{r.script("w.sh", "#!/bin/sh\n#SBATCH --job-name=Big simulation\n")}, 255, "sbatch: error: Invalid directive found in batch script: simulation\n"},
		{"directive option", []string{r.script("o.sh", "#!/bin/sh\n#SBATCH --nosuch\n")}, 255, "sbatch: unrecognized option '--nosuch'\nTry \"sbatch --help\" for more information\n"},
		{"wrap and script", []string{"--wrap=true", good}, 1, "sbatch: error: Script arguments are not permitted with the --wrap option\n"},
		{"too long", []string{r.script("l.sh", "#!/bin/sh\n"+strings.Repeat("#", job.MaxScript))}, 1, "sbatch: error: Batch script is over the limit of 4194304 bytes\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := r.call("sbatch", c.args...)
			want, begins := strings.CutSuffix(c.want, "...")
			if a.code != c.code || a.out != "" || begins && !strings.HasPrefix(a.errout, want) || !begins && a.errout != want {
				t.Errorf("got code %d, out %q, err\n%swant code %d, err\n%s", a.code, a.out, a.errout, c.code, c.want)
			}
		})
	}
	if len(r.fake.jobs) != 0 {
		t.Errorf("%d jobs were submitted", len(r.fake.jobs))
	}
}

// TestSubmitFromRemovedFolder: the job works in /tmp, and whoever submits is told.
func TestSubmitFromRemovedFolder(t *testing.T) {
	r := newRunner(t)
	r.dir = ""
	if a := r.call("sbatch", "--wrap", "true"); a.code != 0 || !strings.Contains(a.errout, "warning: this folder has been removed") {
		t.Errorf("%+v", a)
	}
	if s := request[*ctldpb.SubmitRequest](r, "Submit"); s.Spec.WorkDir != "/tmp" {
		t.Errorf("works in %q", s.Spec.WorkDir)
	}
	if a := r.call("sbatch", "-D", "sub", "--wrap", "true"); a.code != 1 || !strings.Contains(a.errout, "give --chdir an absolute path") {
		t.Errorf("%+v", a)
	}
	if a := r.call("sbatch", "-D", "/var/tmp", "--wrap", "true"); a.code != 0 || a.errout != "" {
		t.Errorf("%+v", a)
	}
}

// TestSubmitRefused: what the controller says is the first line, why is the second.
func TestSubmitRefused(t *testing.T) {
	r := newRunner(t)
	r.fake.refuse["Submit"] = &ctldpb.Refusal{Code: "ESLURM_INVALID_PARTITION_NAME", Text: "Invalid partition name specified", Why: "there is no partition \"x\"; known are main"}
	r.want(r.call("sbatch", "-p", "x", "--wrap", "true"), 1, "",
		"sbatch: error: Batch job submission failed: Invalid partition name specified\nsbatch: error: there is no partition \"x\"; known are main\n")
}

func TestSubmitEnvironment(t *testing.T) {
	r := newRunner(t)
	r.env = append(r.env, "A1=one", "FOO=foo", "SLURM_NTASKS=7", "SLURM_JOB_ID=3", "SLURM_CONF=/etc/s.conf")
	file := r.script("vars", "X=1\x00Y=a\nb\x00")
	for _, c := range []struct {
		export   string
		has      map[string]string
		hasNot   []string
		loginEnv bool
	}{
		{"", map[string]string{"A1": "one", "SLURM_CONF": "/etc/s.conf", "SLURM_SUBMIT_DIR": r.dir}, []string{"SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_EXPORT_ENV"}, false},
		{"ALL,Z=1", map[string]string{"A1": "one", "Z": "1", "SLURM_EXPORT_ENV": "ALL,Z=1"}, nil, false},
		{"Z=1,FOO", map[string]string{"Z": "1", "FOO": "foo"}, []string{"A1", "PATH"}, true},
		{"NONE", map[string]string{"SLURM_EXPORT_ENV": "NONE", "SLURM_GET_USER_ENV": "1", "SLURM_CONF": "/etc/s.conf"}, []string{"A1", "PATH"}, true},
		{"NIL", map[string]string{"SLURM_EXPORT_ENV": "NIL"}, []string{"A1", "SLURM_GET_USER_ENV"}, false},
	} {
		t.Run("export "+c.export, func(t *testing.T) {
			args := []string{"--wrap", "true", "--export-file", file}
			if c.export != "" {
				args = append(args, "--export="+c.export)
			}
			if a := r.call("sbatch", args...); a.code != 0 {
				t.Fatal(a.errout)
			}
			env := r.environ()
			for k, v := range c.has {
				if env[k] != v {
					t.Errorf("%s is %q, want %q", k, env[k], v)
				}
			}
			for _, k := range c.hasNot {
				if v, ok := env[k]; ok {
					t.Errorf("%s=%s leaked", k, v)
				}
			}
			if env["X"] != "1" || env["Y"] != "a\nb" {
				t.Errorf("export-file: X=%q Y=%q", env["X"], env["Y"])
			}
			if s := request[*ctldpb.SubmitRequest](r, "Submit").Spec; s.GetUserEnv != c.loginEnv {
				t.Errorf("login environment: %t", s.GetUserEnv)
			}
		})
	}
	r.env = append(r.env, "BIG="+strings.Repeat("x", job.MaxEnv))
	if a := r.call("sbatch", "--wrap", "true"); a.code != 1 || !strings.Contains(a.errout, "the limit is 1048576") {
		t.Errorf("over the limit: %+v", a)
	}
}

// TestSubmitScripts: inline, by hash, and from standard input.
func TestSubmitScripts(t *testing.T) {
	r := newRunner(t)
	small := "#!/bin/sh\n" + strings.Repeat("#", job.MaxInlineScript-11) + "\n"
	r.call("sbatch", r.script("small.sh", small))
	if s := request[*ctldpb.SubmitRequest](r, "Submit").Spec; len(s.Script) != job.MaxInlineScript || s.ScriptHash != nil {
		t.Errorf("at the limit: %d bytes inline", len(s.Script))
	}
	r.call("sbatch", r.script("big.sh", small+"x"))
	s := request[*ctldpb.SubmitRequest](r, "Submit").Spec
	if s.Script != nil || string(r.fake.blobs[string(s.ScriptHash)]) != small+"x" {
		t.Errorf("over the limit: not sent as a blob")
	}
	r.stdin = "#!/bin/sh\n#SBATCH -J in\ntrue"
	r.call("sbatch")
	if s := request[*ctldpb.SubmitRequest](r, "Submit").Spec; s.Name != "in" || s.Command != "" || string(s.Script) != r.stdin {
		t.Errorf("standard input: %v", s)
	}
	r.call("sbatch", "--wrap", "true")
	if s := request[*ctldpb.SubmitRequest](r, "Submit").Spec; s.Name != "wrap" {
		t.Errorf("name of --wrap: %s", s.Name)
	}
	os.Mkdir(filepath.Join(r.dir, "bin"), 0o755)
	r.script("bin/inpath.sh", "#!/bin/sh\n")
	r.env = append(r.env, "PATH=/nosuch:"+filepath.Join(r.dir, "bin"))
	if a := r.call("sbatch", "inpath.sh"); a.code != 0 {
		t.Errorf("in PATH: %s", a.errout)
	}
}

// TestSubmitOnce: a lost answer and a controller without a leader do not make a second job.
func TestSubmitOnce(t *testing.T) {
	r := newRunner(t)
	r.fake.down, r.fake.lost = 2, 1
	r.want(r.call("sbatch", "--wrap", "true"), 0, "Submitted batch job 1\n", "")
	if len(r.fake.jobs) != 1 {
		t.Errorf("%d jobs", len(r.fake.jobs))
	}
}

// TestNoController: the line that clients match, quickly.
func TestNoController(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the connect limit")
	}
	r := newRunner(t)
	r.c = client.New("lab", []client.Target{{Name: "c1", Socket: filepath.Join(r.dir, "none.sock")}})
	a := r.call("squeue")
	if a.code != 1 || !strings.HasPrefix(a.errout, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n") {
		t.Errorf("%+v", a)
	}
}

// TestSecondController: the first socket is dead, the second answers.
func TestSecondController(t *testing.T) {
	r := newRunner(t)
	good := r.c.Targets()[0]
	r.c = client.New("lab", []client.Target{{Name: "c0", Socket: filepath.Join(r.dir, "none.sock")}, good})
	r.want(r.call("sbatch", "--wrap", "true"), 0, "Submitted batch job 1\n", "")
}
