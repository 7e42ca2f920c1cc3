package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/gsub"
)

// rares writes the rare options of a specification.
func rares(s *ctldpb.JobSpec) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(s.GetRare())) {
		words = append(words, k+"="+s.Rare[k])
	}
	return strings.Join(words, " ")
}

func TestPlanningOptions(t *testing.T) {
	r := newRunner(t)
	for _, c := range []struct{ args, want string }{
		{"--reservation=a,b", "reservation=a,b"},
		{"-L b:2,a@srv,b", "licenses=a@srv:1,b:3"},
		{"--deadline=now+2hours", "deadline=1796047200000"},
		{"--switches=2", "switches=2"},
		{"--switches=2@60", "switches=2@3600"},
		{"--switches=1@1:30:00", "switches=1@5400"},
		{"--prefer=a100&nvlink --contiguous --spread-job --use-min-nodes", "contiguous=yes prefer=a100&nvlink spread-job=yes use-min-nodes=yes"},
		{"--exclusive=user", "exclusive=user"},
		{"--exclusive=topo", "exclusive=topo"},
		{"--exclusive=user --exclusive", ""},
		{"-B 2:8:1", "cores-per-socket=8 sockets-per-node=2 threads-per-core=1"},
		{"-B *:4", "cores-per-socket=4"},
		{"--sockets-per-node=2 --cores-per-socket=4 --threads-per-core=2", "cores-per-socket=4 sockets-per-node=2 threads-per-core=2"},
		{"--kill-on-invalid-dep=yes", "kill-on-invalid-dep=yes"},
		{"--bid=1.5", "bid=1500000"}, {"--bid=0.000001", "bid=1"}, {"--bid=3", "bid=3000000"},
		{"-O -s --segment=4", "overcommit=yes oversubscribe=yes segment=4"},
	} {
		s, a := r.submitted("", strings.Fields(c.args)...)
		if got := rares(s); got != c.want || s == nil {
			t.Errorf("%s: got %q, want %q: %s", c.args, got, c.want, a.errout)
		}
	}
	if s, _ := r.submitted("", "--exclusive=user", "--exclusive"); !s.Exclusive {
		t.Error("the later --exclusive is lost")
	}
	if s, _ := r.submitted("#SBATCH --exclusive", "--exclusive=user"); s.Exclusive || rares(s) != "exclusive=user" {
		t.Error("--exclusive=user of the command line does not win")
	}
}

func TestPlanningRefusals(t *testing.T) {
	r := newRunner(t)
	for _, c := range []struct {
		arg  string
		code int
		want string
	}{
		{"--reservation=a,,b", 255, "has an empty name"},
		{"-La|b", 1, "Invalid license specification"},
		{"-La:0", 1, "a number over 0 was expected"},
		{"--deadline=yesterday", 255, "Invalid --deadline specification"},
		{"--deadline=2026-11-30T11:00:00", 255, "is over; give a time to come"},
		{"--switches=x", 255, `"x" is no number of switches`},
		{"--switches=1@never", 255, `"never" is no time to wait`},
		{"--exclusive=mcs", 1, "--exclusive=mcs is not available"},
		{"--exclusive=moon", 255, "Invalid --exclusive specification"},
		{"-B2:x", 255, `"x" in "2:x" is no number and no star`},
		{"-B1:2:3:4", 255, "is not SOCKETS[:CORES[:THREADS]]"},
		{"--kill-on-invalid-dep=perhaps", 255, "is neither yes nor no"},
		{"--bid=-1", 255, "is no number of tokens"}, {"--bid=1.0000001", 255, "is no number of tokens"}, {"--bid=4294967297", 255, "is no number of tokens"},
		{"--segment=0", 255, "Invalid numeric value"},
	} {
		_, a := r.submitted("", c.arg)
		if a.code != c.code || !strings.Contains(a.errout, c.want) {
			t.Errorf("%s: %+v", c.arg, a)
		}
	}
}

// documented are the variables that sbatch reads.
const documented = "ACCOUNT ACCTG_FREQ ARRAY_INX BATCH CLUSTERS CONSTRAINT CONTAINER CONTAINER_ID CORE_SPEC CPU_FREQ_REQ CPUS_PER_GPU DEBUG DELAY_BOOT " +
	"DISTRIBUTION ERROR EXCLUSIVE EXPORT GET_USER_ENV GPU_BIND GPU_FREQ GPUS GPUS_PER_NODE GPUS_PER_TASK GRES GRES_FLAGS HINT IGNORE_PBS INPUT JOB_NAME MEM_BIND " +
	"MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NETWORK NO_KILL NO_REQUEUE OPEN_MODE OUTPUT OVERCOMMIT PARTITION PROFILE QOS REQ_SWITCH REQUEUE RESERVATION SEGMENT_SIZE " +
	"SIGNAL SPREAD_JOB THREAD_SPEC THREADS_PER_CORE TIMELIMIT TRES_BIND TRES_PER_TASK USE_MIN_NODES WAIT WAIT_ALL_NODES WAIT4SWITCH WCKEY"

func TestEveryVariable(t *testing.T) {
	text := ""
	for _, s := range gsub.Manual().Sections {
		for _, it := range s.Items {
			text += it.Text
		}
	}
	for name := range strings.FieldsSeq(documented) {
		if !strings.Contains(text, "SBATCH_"+name+" ") {
			t.Errorf("SBATCH_%s is not read", name)
		}
	}
}

// TestPrecedence: command line, then variable, then directive, for each kind of value.
func TestPrecedence(t *testing.T) {
	for _, c := range []struct {
		env, option, low, mid, high string
		get                         func(*ctldpb.JobSpec) any
	}{
		{"PARTITION", "partition", "p1", "p2", "p3", func(s *ctldpb.JobSpec) any { return s.Partition }},
		{"QOS", "qos", "a", "b", "c", func(s *ctldpb.JobSpec) any { return s.Qos }},
		{"ACCOUNT", "account", "a", "b", "c", func(s *ctldpb.JobSpec) any { return s.Account }},
		{"JOB_NAME", "job-name", "a", "b", "c", func(s *ctldpb.JobSpec) any { return s.Name }},
		{"CONSTRAINT", "constraint", "a", "b", "c", func(s *ctldpb.JobSpec) any { return s.Constraint }},
		{"ARRAY_INX", "array", "1", "2", "3", func(s *ctldpb.JobSpec) any { return s.Array }},
		{"TIMELIMIT", "time", "1", "2", "3", func(s *ctldpb.JobSpec) any { return s.TimeLimitMs / 60000 }},
		{"MEM_PER_NODE", "mem", "1", "2", "3", func(s *ctldpb.JobSpec) any { return s.MemPerNode >> 20 }},
		{"SIGNAL", "signal", "USR1", "USR2", "INT", func(s *ctldpb.JobSpec) any { return s.Signal }},
		{"OUTPUT", "output", "a", "b", "c", func(s *ctldpb.JobSpec) any { return s.StdOut }},
		{"RESERVATION", "reservation", "a", "b", "c", func(s *ctldpb.JobSpec) any { return s.Rare["reservation"] }},
		{"REQ_SWITCH", "switches", "1", "2", "3", func(s *ctldpb.JobSpec) any { return s.Rare["switches"] }},
		{"SEGMENT_SIZE", "segment", "1", "2", "3", func(s *ctldpb.JobSpec) any { return s.Rare["segment"] }},
		{"THREADS_PER_CORE", "threads-per-core", "1", "2", "4", func(s *ctldpb.JobSpec) any { return s.Rare["threads-per-core"] }},
		{"WCKEY", "wckey", "a", "b", "c", func(s *ctldpb.JobSpec) any { return s.Rare["wckey"] }},
		{"EXCLUSIVE", "exclusive", "topo", "user", "topo", func(s *ctldpb.JobSpec) any { return s.Rare["exclusive"] }},
	} {
		r := newRunner(t)
		line := "#SBATCH --" + c.option + "=" + c.low
		check := func(want string, args ...string) {
			t.Helper()
			s, a := r.submitted(line, args...)
			if s == nil || fmt.Sprint(c.get(s)) != want {
				t.Errorf("%s: got %v, want %s: %s", c.env, s, want, a.errout)
			}
		}
		check(c.low)
		r.env = append(r.env, "SBATCH_"+c.env+"="+c.mid)
		check(c.mid)
		check(c.high, "--"+c.option+"="+c.high)
	}
	r := newRunner(t)
	r.env = append(r.env, "SBATCH_REQ_SWITCH=2", "SBATCH_WAIT4SWITCH=10", "SBATCH_SPREAD_JOB=1", "SBATCH_USE_MIN_NODES=no", "SBATCH_OVERCOMMIT=")
	if s, a := r.submitted(""); rares(s) != "overcommit=yes spread-job=yes switches=2@600" {
		t.Errorf("%s %s", rares(s), a.errout)
	}
}

func TestHetJob(t *testing.T) {
	r := newRunner(t)
	path := r.script("het.sh", "#!/bin/sh\n#SBATCH -t 10 -n 1 --mem=100 -q high\n#SBATCH hetjob\n#SBATCH -n 2 --mem-per-cpu=10\n#SBATCH hetjob\n#SBATCH -t 20\ntrue\n")
	describe := func() string {
		q := request[*ctldpb.SubmitRequest](r, "Submit")
		out := ""
		for _, s := range append([]*ctldpb.JobSpec{q.Spec}, q.Het...) {
			out += fmt.Sprintf("[n=%d t=%d mem=%d/%d q=%s p=%s J=%s script=%t env=%t]", s.Ntasks, s.TimeLimitMs/60000, s.MemPerNode>>20, s.MemPerCpu>>20, s.Qos, s.Partition, s.Name, len(s.Script) > 0, len(s.EnvHash) > 0)
		}
		return out
	}
	const first = "[n=1 t=10 mem=100/0 q=high p= J=het.sh script=true env=true]"
	if a := r.call("sbatch", path); a.code != 0 || describe() != first+"[n=2 t=10 mem=0/10 q=high p= J=het.sh script=false env=false][n=0 t=20 mem=100/0 q=high p= J=het.sh script=false env=false]" {
		t.Errorf("%s %s", describe(), a.errout)
	}
	r.want(r.call("sbatch", "--parsable", path), 0, "2\n", "")
	if a := r.call("sbatch", "-n4", "-p", "a", "-J", "x", ":", "-n5", path, ":", "arg"); a.code != 0 || describe() != ""+
		"[n=4 t=10 mem=100/0 q=high p=a J=x script=true env=true][n=5 t=10 mem=0/10 q=high p= J=x script=false env=false][n=0 t=20 mem=100/0 q=high p= J=x script=false env=false]" {
		t.Errorf("%s %s", describe(), a.errout)
	}
	if q := request[*ctldpb.SubmitRequest](r, "Submit"); strings.Join(q.Spec.Args, " ") != ": arg" {
		t.Errorf("arguments %q", q.Spec.Args)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-a", "1-3", ":", "-n2", path}, 1, "Invalid job array specification"},
		{[]string{"-n1", ":", "-a1-3", path}, 1, "a heterogeneous job cannot be an array"},
		{[]string{"-n1", ":", "--mem=x", path}, 255, "het component 1: Invalid --mem specification"},
		{[]string{"-n1", ":", "-G3", "-N2", path}, 1, "Invalid generic resource"},
		{append(strings.Fields(strings.Repeat("-n1 : ", 128)), path), 255, "more than 128 components"},
	} {
		if a := r.call("sbatch", c.args...); a.code != c.code || !strings.Contains(a.errout, c.want) {
			t.Errorf("%q: %+v", c.args, a)
		}
	}
	if a := r.call("sbatch", r.script("colon.sh", "#!/bin/sh\n#SBATCH :\ntrue\n")); a.code == 0 {
		t.Errorf("a lone colon in a directive: %+v", a)
	}
	if a := r.call("sbatch", r.script("word.sh", "#!/bin/sh\n#SBATCH -n1 hetjob\ntrue\n")); a.code == 0 || !strings.Contains(a.errout, "hetjob") {
		t.Errorf("hetjob with others: %+v", a)
	}
}

func TestTestOnlyExplains(t *testing.T) {
	r := newRunner(t)
	r.fake.explained = &ctldpb.JobExplanation{Needs: "1 node with 8 CPUs", Lacks: []string{"2 of 2 nodes have too few free CPUs (needs 8)"}, BlockedBy: []string{"reservation maint"},
		Ahead: 3, Queue: 17, StartMs: fakeNow.UnixMilli() + 60000, Promised: true, Nodes: "n[1-2]", Partition: "main", Advice: []string{"with --time=10 it could start now"}}
	path := r.script("job.sh", "#!/bin/sh\ntrue\n")
	const line = "sbatch: Job 1 to start at 2026-11-30T12:00:00 using 1 processors on nodes n1 in partition main\n"
	r.want(r.call("sbatch", "--test-only", path), 0, "", line+
		"sbatch:   needs:      1 node with 8 CPUs\n"+
		"sbatch:   lacks:      2 of 2 nodes have too few free CPUs (needs 8)\n"+
		"sbatch:   blocked by: reservation maint\n"+
		"sbatch:   in line:    3 jobs before it of 17 that wait in main\n"+
		"sbatch:   starts:     2026-11-30T12:01:00 (promised) on n[1-2] in partition main\n"+
		"sbatch:   sooner:     with --time=10 it could start now\n")
	r.want(r.call("sbatch", "-Q", "--test-only", path), 0, "", line)
}
