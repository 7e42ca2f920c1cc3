package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

const gib = int64(1) << 30

// someJobs fills the fake with one job of each kind.
func (r *runner) someJobs() {
	now := fakeNow.UnixMilli()
	spec := func(name string) *ctldpb.JobSpec {
		return &ctldpb.JobSpec{Name: name, Account: "lab", WorkDir: "/home/alice", MemPerNode: 4 * gib, Gres: "gpu:a100:2", Comment: "see http://x", CpusPerTask: 4}
	}
	mine := func(j *ctldpb.Job) *ctldpb.Job {
		j.User, j.Uid, j.Group, j.Gid, j.Partition, j.SubmitMs = "alice", 1000, "users", 100, "main", now-600000
		if j.ArrayJobId == 0 {
			j.ArrayTaskId = -1
		}
		return j
	}
	r.fake.jobs = []*ctldpb.Job{
		mine(&ctldpb.Job{JobId: 1, Spec: spec("train"), State: "RUNNING", StartMs: now - 3661000, EligibleMs: now - 3661000, TimeLimitMs: 7200000, EndMs: now + 3539000, NodeList: "n[1-2]", BatchHost: "n1",
			NumNodes: 2, NumCpus: 8, NumTasks: 2, Priority: 100, Tres: "cpu=8,mem=8G,node=2,billing=8,gres/gpu=4", Requeue: true, StdOut: "/home/alice/slurm-1.out", StdErr: "/home/alice/slurm-1.out",
			Allocs: []*ctldpb.NodeAlloc{{Node: "n1", Cpus: 4, Mem: 4 * gib, Gres: "gpu:a100:2", CpuIds: []uint32{0, 1, 2, 3}, GresIndex: []*ctldpb.GresIndex{{Name: "gpu", Type: "a100", Index: []uint32{0, 1}}}}},
			Steps:  []*ctldpb.Step{{StepId: "batch", Name: "batch", State: "RUNNING", StartMs: now - 3661000, NodeList: "n1", Tasks: 1}}}),
		mine(&ctldpb.Job{JobId: 2, ArrayJobId: 2, ArrayTaskId: -1, ArrayPending: "[0-4%2]", ArrayMaxRunning: 2, Spec: spec("sweep"), State: "PENDING", Reason: "Resources", ReasonDetail: "waits for 2 GPUs", Priority: 90, TimeLimitMs: -1}),
		mine(&ctldpb.Job{JobId: 3, ArrayJobId: 2, ArrayTaskId: 7, Spec: spec("sweep"), State: "COMPLETED", StartMs: now - 100000, EndMs: now - 40000, EligibleMs: now - 200000, NodeList: "n1", NumCpus: 4, NumNodes: 1, MemTotal: 4 * gib,
			Usage: &ctldpb.Usage{UserUs: 61234000, SysUs: 1000000, MaxRss: 123456 << 10, MaxRssNode: "n1"},
			Steps: []*ctldpb.Step{{StepId: "batch", Name: "batch", State: "COMPLETED", StartMs: now - 100000, EndMs: now - 40000, Tasks: 1, Usage: &ctldpb.Usage{UserUs: 61234000, SysUs: 1000000, MaxRss: 123456 << 10}}}}),
		mine(&ctldpb.Job{JobId: 4, Spec: spec("gone"), State: "CANCELLED", EndMs: now - 5000, HasCancelledBy: true, CancelledBy: 1000}),
		mine(&ctldpb.Job{JobId: 5, Spec: spec("bad"), State: "FAILED", Reason: "NonZeroExitCode", StartMs: now - 9000, EndMs: now - 5000, NodeList: "n2", NumCpus: 4, NumNodes: 1, Exit: &ctldpb.ExitStatus{Code: 3}}),
	}
	r.fake.nodes = []*ctldpb.Node{
		{Name: "n1", State: "MIXED", Cpus: 8, CpusAlloc: 4, Mem: 16 * gib, MemAlloc: 4 * gib, Partitions: []string{"main", "gpu"}, Gres: "gpu:a100:4", GresUsed: "gpu:a100:2(IDX:0-1)", Weight: 1, LastSeenMs: now, Load: 1.5},
		{Name: "n2", State: "IDLE", Cpus: 8, Mem: 32 * gib, Partitions: []string{"main"}, Weight: 1},
		{Name: "n3", State: "IDLE", Flags: []string{"DRAIN"}, Reason: "new disk", ReasonUser: "root", ReasonMs: now - 60000, Cpus: 8, Mem: 16 * gib, Partitions: []string{"main"}},
		{Name: "n10", State: "DOWN", Flags: []string{"NOT_RESPONDING"}, Reason: "Not responding", ReasonUser: "slurm", Cpus: 8, Mem: 16 * gib, Partitions: []string{"main"}},
	}
	r.fake.parts = []*ctldpb.Partition{
		{Name: "main", State: "UP", IsDefault: true, Nodes: "n[1-3,10]", MaxTimeMs: -1, TotalNodes: 4, TotalCpus: 32, SharedFs: true, PriorityTier: 1},
		{Name: "gpu", State: "UP", Nodes: "n1", MaxTimeMs: 86400000, TotalNodes: 1, TotalCpus: 8, SharedFs: true},
		{Name: "none", State: "DOWN", MaxTimeMs: 1800000, SharedFs: true},
	}
}

func TestQueue(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	const header = "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
	const waits = "         2_[0-4%2]      main    sweep    alice PD       0:00      1 (Resources)\n"
	const runs = "                 1      main    train    alice  R    1:01:01      2 n[1-2]\n"
	for _, c := range []struct {
		name, args, want string
		env              string
	}{
		{"default", "", header + waits + runs, ""},
		{"no header, sorted by id", "-h -S i", runs + waits, ""},
		{"sorted backwards", "-h -S -i", waits + runs, ""},
		{"one job", "-h -j 1", runs, ""},
		{"one job, glued", "-h -j1", runs, ""},
		{"abbreviated", "--noh --job 1", runs, ""},
		{"state", "-h -t R", runs, ""},
		{"ended", "-h -t F,CA", "                 4      main     gone    alice CA       0:00      1 \n                 5      main      bad    alice  F       0:04      1 (NonZeroExitCode)\n", ""},
		{"two columns", `-h -t all -S i -o %i:%t`, "1:R\n2_[0-4%2]:PD\n2_7:CD\n4:CA\n5:F\n", ""},
		{"long language", "-h -j 1 -O jobid:5,username:.8,state:|", "1       aliceRUNNING|\n", ""},
		{"separator only", "-h -j 1 -O jobid:##,tres-alloc:##,", "1##cpu=8,mem=8G,node=2,billing=8,gres/gpu=4##\n", ""},
		{"literal text", `-h -j 1 -o {"id":%A,"k":"%K"}`, "{\"id\":1,\"k\":\"N/A\"}\n", ""},
		{"comment and limit", "-h -j 1 -o %k|%l|%L|%m|%b|%C", "see http://x|2:00:00|58:59|4G|gres:gpu:a100:2|8\n", ""},
		{"unknown name", "-h -n nosuch", "", ""},
		{"from the environment", "-h", "1 R\n", "SQUEUE_FORMAT=%i %t;SQUEUE_STATES=R"},
		{"width cuts", "-h -j 1 -o %.2j|%2j|%6j|", "tr|tr|train |\n", ""},
		{"steps", "-h -s", "        1.batch    batch      main    alice   1:01:01 n1\n", ""},
		{"start", "-h --start", "         2_[0-4%2]      main    sweep    alice PD                 N/A      1 (null)               (Resources)\n", ""},
		{"seconds", "-h -j 1 -o %V", "1796039400\n", "SLURM_TIME_FORMAT=%s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := *r
			x.t = t
			if c.env != "" {
				x.env = append(x.env, strings.Split(c.env, ";")...)
			}
			x.want(x.call("squeue", strings.Fields(c.args)...), 0, c.want, "")
		})
	}
	r.want(r.call("squeue", "-l", "-j", "1"), 0, "Mon Nov 30 12:00:00 2026\n"+
		"             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES NODELIST(REASON)\n"+
		"                 1      main    train    alice  RUNNING    1:01:01   2:00:00      2 n[1-2]\n", "")
	r.want(r.call("squeue", "-j", "999999"), 1, "", "slurm_load_jobs error: Invalid job id specified\n")
	r.want(r.call("squeue", "-j", "999999,999998"), 0, header, "")
	r.want(r.call("squeue", "-j", "5"), 0, header, "") // ended, but known
	r.want(r.call("squeue", "-u", "no-such-user-here"), 0, header, "squeue: error: Invalid user: no-such-user-here\n")
	if a := r.call("squeue", "-t", "XX"); a.code != 1 || !strings.HasPrefix(a.errout, "squeue: error: Invalid job state specified: XX\nsqueue: error: Valid job states include: PENDING,") {
		t.Errorf("bad state: %+v", a)
	}
	if a := r.call("squeue", "-h", "-j", "1", "-o", "%all"); strings.Count(a.out, "|") < 40 || !strings.Contains(a.out, "|train|") {
		t.Errorf("%%all: %+v", a)
	}
}

// TestStateLetters: batchtools asks for all of these.
func TestStateLetters(t *testing.T) {
	r := newRunner(t)
	r.want(r.call("squeue", "--states=R,S,CG,RS,SI,SO,ST", "--noheader", "--format=%i", "-r"), 0, "", "")
	r.want(r.call("squeue", "--states=PD,CF,RF,RH,RQ,SE", "--noheader", "--format=%i", "-r", "--clusters="), 0, "", "")
}

// TestWhy: sentences are for people at terminals, under the g-name.
func TestWhy(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	if a := r.call("gqueue"); strings.Contains(a.out, "waits for 2 GPUs") || strings.Contains(a.out, "\x1b") {
		t.Errorf("into a pipe: %s", a.out)
	}
	r.tty = true
	if a := r.call("gqueue"); !strings.Contains(a.out, "waits for 2 GPUs") || !strings.Contains(a.out, "\x1b[") {
		t.Errorf("on a terminal: %s", a.out)
	}
	if a := r.call("squeue"); strings.Contains(a.out, "waits for 2 GPUs") || strings.Contains(a.out, "\x1b") {
		t.Errorf("squeue on a terminal: %s", a.out)
	}
	if a := r.call("gqueue", "--why", "2"); a.code != 0 || !strings.HasPrefix(a.out, "2_[0-4%2] PENDING (Resources): waits for 2 GPUs\n") {
		t.Errorf("--why: %+v", a)
	}
	j := r.fake.jobs[1]
	j.Spec.MemPerNode, j.MemTotal, j.Spec.Dependency, j.StartMs = 0, 500<<20, "afterok:1", fakeNow.UnixMilli()+60000
	if a := r.call("gqueue", "--why", "2"); !strings.Contains(a.out, "memory 500M,") || !strings.Contains(a.out, "may start after afterok:1, expected to start 2026-11-30T12:01:00\n") {
		t.Errorf("--why: %s", a.out)
	}
	j.MemTotal, j.StartMs = 0, 0
	if a := r.call("gqueue", "--why", "2"); !strings.Contains(a.out, "memory all of the node's,") || !strings.Contains(a.out, "expected to start not known yet\n") {
		t.Errorf("--why: %s", a.out)
	}
}

func TestQueueJSON(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	a := r.call("squeue", "--json", "-t", "all")
	var doc struct {
		Jobs []struct {
			JobID    int      `json:"job_id"`
			JobState []string `json:"job_state"`
			EndTime  struct {
				Set    bool
				Number int64
			} `json:"end_time"`
			TimeLimit struct{ Set, Infinite bool } `json:"time_limit"`
		}
		Meta struct {
			Slurm struct {
				Version struct{ Major, Minor, Micro string }
			}
		}
	}
	if err := json.Unmarshal([]byte(a.out), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Jobs) != 5 || doc.Meta.Slurm.Version.Major != "22" || doc.Meta.Slurm.Version.Minor != "05" {
		t.Errorf("%d jobs, %+v", len(doc.Jobs), doc.Meta)
	}
	for _, j := range doc.Jobs {
		if j.JobID == 2 && (j.JobState[0] != "PENDING" || j.EndTime.Set || !j.TimeLimit.Infinite) || j.JobID == 5 && (!j.EndTime.Set || j.EndTime.Number == 0) {
			t.Errorf("%+v", j)
		}
	}
	for _, cmd := range [][]string{{"sinfo", "--json"}, {"sacct", "--json", "-a"}, {"scontrol", "show", "job", "1", "--json"}} {
		if a := r.call(cmd[0], cmd[1:]...); a.code != 0 || !json.Valid([]byte(a.out)) {
			t.Errorf("%v: code %d, %s", cmd, a.code, a.errout)
		}
	}
}

func TestInfo(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	for _, c := range []struct{ name, args, want string }{
		{"default: a row for each state", "", "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n" +
			"main*        up   infinite      1  down* n10\n" +
			"main*        up   infinite      1  drain n3\n" +
			"main*        up   infinite      1    mix n1\n" +
			"main*        up   infinite      1   idle n2\n" +
			"gpu          up 1-00:00:00      1    mix n1\n" +
			"none       down      30:00      0    n/a \n"},
		{"summary", "-s", "PARTITION AVAIL  TIMELIMIT   NODES(A/I/O/T)  NODELIST\n" +
			"main*        up   infinite          1/1/2/4  n[1-3,10]\n" +
			"gpu          up 1-00:00:00          1/0/0/1  n1\n" +
			"none       down      30:00          0/0/0/0  \n"},
		{"nodes", "-N -p main", "NODELIST  NODES PARTITION STATE \n" +
			"n1            1 main*     mix   \nn2            1 main*     idle  \nn3            1 main*     drain \nn10           1 main*     down* \n"},
		{"reasons", "-R", "REASON               USER      TIMESTAMP           NODELIST\n" +
			"Not responding       slurm     Unknown             n10\nnew disk             root      2026-11-30T11:59:00 n3\n"},
		{"default mark", "-h -o %P", "main*\ngpu\nnone\n"},
		{"all partitions are one without their name", "-h -o %D", "4\n"},
		{"numbers that differ", "-h -p main -o %m", "16384+\n"},
		{"exact", "-h -e -p main -t idle,mix -o %m:%D", "16384:1\n32768:1\n"},
		{"state filter", "-h -t idle -o %N", "n2\n"},
		{"drained", "-h -t drain -o %N", "n3\n"},
		{"CPUs", "-h -o %C -p main", "4/12/16/32\n"},
		{"GPUs", "-ahNO nodehost:10,gres:15,gresused:25,statelong -p gpu", "n1        gpu:a100:4     gpu:a100:2(IDX:0-1)      mixed               \n"},
		{"unknown partition", "-p nosuch", "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"},
		{"nodes of a list", "-h -n n[1-2] -o %n", "n1\nn2\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := *r
			x.t = t
			x.want(x.call("sinfo", strings.Fields(c.args)...), 0, c.want, "")
		})
	}
	if a := r.call("sinfo", "-t", "bogus"); a.code != 1 || !strings.Contains(a.errout, `Bad state string: "bogus"`) {
		t.Errorf("%+v", a)
	}
}

func TestAcct(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	for _, c := range []struct{ name, args, want string }{
		{"default", "-j 1,5", "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n" +
			"------------ ---------- ---------- ---------- ---------- ---------- -------- \n" +
			"1                 train       main        lab          8    RUNNING      0:0 \n" +
			"1.batch           batch                   lab          8    RUNNING      0:0 \n" +
			"5                   bad       main        lab          4     FAILED      3:0 \n"},
		{"parsable", "-P -X -n -o jobid,state", "1|RUNNING\n2_[0-4%2]|PENDING\n2_7|COMPLETED\n4|CANCELLED by 1000\n5|FAILED\n"},
		{"with the last bar", "-p -X -n -j 1 -o jobid,state", "1|RUNNING|\n"},
		{"delimiter", "-P --delimiter ; -X -n -j 1 -o jobid,user", "1;alice\n"},
		{"widths", "-X -n -j 4 -o JobID%5,state%-20,JOBNAME%3", "    4 CANCELLED by 1000    go+ \n"},
		{"cut", "-X -n -j 4 -o state", "CANCELLED+ \n"},
		{"brief", "-b -n -j 5", "5                FAILED      3:0 \n"},
		{"usage", "-n -P -j 2_7 -o jobid,jobidraw,elapsed,totalcpu,maxrss,cputime,reqmem", "2_7|3|00:01:00|01:02.234||00:04:00|4G\n2_7.batch|3.batch|00:01:00|01:02.234|123456K|00:04:00|\n"},
		{"units", "-n -P -j 2_7.batch -o jobid,maxrss --units=M", "2_7|\n2_7.batch|120.56M\n"},
		{"states", "-X -n -P -a -s F,CA -S 2026-11-30 -o jobid", "4\n5\n"},
		{"repeated ids", "-j 1 -j 4 --parsable2 -o JobID,State,NodeList -X", "JobID|State|NodeList\n1|RUNNING|n[1-2]\n4|CANCELLED by 1000|None assigned\n"},
		{"nothing", "-n -j 77", ""},
		{"window", "-X -n -P -S 2026-11-30T11:59:57 -o jobid", "1\n2_[0-4%2]\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := *r
			x.t = t
			x.want(x.call("sacct", strings.Fields(c.args)...), 0, c.want, "")
		})
	}
	r.want(r.call("sacct", "-o", "nosuchfield"), 1, "", "sacct: error: Invalid field requested: \"nosuchfield\"\n")
	if a := r.call("sacct", "--helpformat"); a.code != 0 || !strings.Contains(a.out, "JobIDRaw") {
		t.Errorf("--helpformat: %+v", a)
	}
	r.call("sacct")
	if req := request[*ctldpb.ListJobsRequest](r, "ListJobs"); strings.Join(req.Users, ",") != "1000" {
		t.Errorf("an ordinary user sees %v", req.Users)
	}
	r.uid = 0
	r.call("sacct")
	if req := request[*ctldpb.ListJobsRequest](r, "ListJobs"); len(req.Users) != 0 {
		t.Errorf("root sees %v", req.Users)
	}
}
