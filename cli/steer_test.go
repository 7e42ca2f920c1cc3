package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
)

func TestCancel(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	r.fake.jobs = append(r.fake.jobs, &ctldpb.Job{JobId: 6, ArrayTaskId: -1, Spec: &ctldpb.JobSpec{}, User: "root", State: "RUNNING"})
	for _, c := range []struct {
		name, args  string
		code        int
		out, errout string
	}{
		{"one", "1", 0, "", ""},
		{"verbose", "-v 1", 0, "", "scancel: Terminating job 1\n"},
		{"a signal", "-v -s USR1 1", 0, "", "scancel: Signal 10 to job 1\n"},
		{"unknown is silent", "999999", 0, "", ""},
		{"unknown, verbose", "-v 999999", 0, "", "scancel: Terminating job 999999\nscancel: error: Kill job error on job id 999999: Invalid job id specified\n"},
		{"of somebody else", "6", 1, "", "scancel: error: Kill job error on job id 6: Access/permission denied\n"},
		{"of somebody else, quiet", "-Q 6", 1, "", ""},
		{"not a number", "xyz", 1, "", "scancel: error: Invalid job id xyz\n"},
		{"nothing", "", 1, "", "scancel: error: No job identification provided\n"},
		{"bad signal", "-s NOSUCH 1", 1, "", "scancel: error: Unknown job signal: NOSUCH\n"},
		{"empty cluster", "--clusters= 1", 0, "", ""},
		{"signal after the id", "1 --signal TERM", 0, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := *r
			x.t = t
			x.want(x.call("scancel", strings.Fields(c.args)...), c.code, c.out, c.errout)
		})
	}
	r.call("scancel", "-u", "root", "-n", "a,b", "-t", "PD", "-p", "main", "-A", "lab", "-q", "high", "-w", "n[1-2]")
	f := request[*ctldpb.CancelRequest](r, "Cancel").Filter
	if f.Users[0] != "0" || len(f.Names) != 2 || f.States[0] != "PENDING" || f.Partitions[0] != "main" || f.Accounts[0] != "lab" || f.Qos[0] != "high" || f.Nodes[0] != "n[1-2]" {
		t.Errorf("filter %v", f)
	}
	r.call("scancel", "12_[1-3,5],13", "14")
	if f := request[*ctldpb.CancelRequest](r, "Cancel").Filter; strings.Join(f.JobIds, " ") != "12_[1-3,5] 13 14" {
		t.Errorf("ids %q", f.JobIds)
	}
	r.call("scancel", "--me")
	if f := request[*ctldpb.CancelRequest](r, "Cancel").Filter; f.Users[0] != "1000" {
		t.Errorf("--me: %v", f)
	}
	r.stdin = "n\ny\n"
	a := r.call("scancel", "-i", "-t", "RUNNING,PENDING")
	if f := request[*ctldpb.CancelRequest](r, "Cancel").Filter; len(f.JobIds) != 1 || strings.Count(a.out, "[y/n]?") != 2 {
		t.Errorf("interactive: %v, %q", f, a.out)
	}
}

// TestCancelEmptyFilter: a filter that is given and empty, as from a variable that is not set, ends nothing.
func TestCancelEmptyFilter(t *testing.T) {
	r := newRunner(t)
	r.someJobs()
	for _, option := range []string{"-n", "-p", "-t", "-A", "-q", "-w", "-R", "-u", "--wckey", "-s"} {
		for _, value := range []string{"", ",", " ", ",,"} {
			for _, line := range [][]string{{"--me", option, value}, {option, value}, {option, value, "1"}, {"-i", "--me", option, value}} {
				if a := r.call("scancel", line...); a.code != 1 || !strings.Contains(a.errout, "names nothing") {
					t.Errorf("scancel %q: %+v", line, a)
				}
			}
		}
	}
	for _, line := range [][]string{{"--me", ""}, {"--me", ","}, {"-u", "root", "1", " "}} {
		if a := r.call("scancel", line...); a.code != 1 || !strings.HasPrefix(a.errout, "scancel: error: Invalid job id") {
			t.Errorf("scancel %q: %+v", line, a)
		}
	}
	r.env = append(r.env, "SCANCEL_NAME=,")
	if a := r.call("scancel", "--me"); a.code != 1 {
		t.Errorf("SCANCEL_NAME=,: %+v", a)
	}
	r.env[len(r.env)-1] = "SCANCEL_NAME="
	r.stdin = "y\ny\ny\n"
	if a := r.call("scancel", "-i", "--me", "-R", "x"); a.code != 1 || a.out != "" {
		t.Errorf("-i with -R asks about jobs that are not meant: %+v", a)
	}
	r.fake.mu.Lock()
	sent := r.fake.last["Cancel"]
	r.fake.mu.Unlock()
	if sent != nil {
		t.Errorf("sent %v", sent)
	}
	r.want(r.call("scancel", "--me"), 0, "", "")
}

func TestControlWords(t *testing.T) {
	r := newRunner(t)
	for _, c := range []struct {
		args string
		op   ctldpb.ControlRequest_Op
		ids  string
	}{
		{"hold 1 2", ctldpb.ControlRequest_HOLD, "1 2"}, {"uhold 1", ctldpb.ControlRequest_UHOLD, "1"}, {"release 1,2_[3-4]", ctldpb.ControlRequest_RELEASE, "1 2_[3-4]"},
		{"rel name=x", ctldpb.ControlRequest_RELEASE, "name=x"}, {"requeue 12_3", ctldpb.ControlRequest_REQUEUE, "12_3"}, {"requeuehold 1", ctldpb.ControlRequest_REQUEUE_HOLD, "1"},
		{"suspend 1", ctldpb.ControlRequest_SUSPEND, "1"}, {"resume JobId=1", ctldpb.ControlRequest_RESUME, "1"}, {"top 1", ctldpb.ControlRequest_TOP, "1"},
	} {
		r.want(r.call("scontrol", strings.Fields(c.args)...), 0, "", "")
		req := request[*ctldpb.ControlRequest](r, "Control")
		if req.Op != c.op || strings.Join(req.JobIds, " ") != c.ids || req.Key == "" {
			t.Errorf("%s: %v", c.args, req)
		}
	}
	r.want(r.call("scontrol", "hold", "99"), 1, "", "Invalid job id specified for job 99\nslurm_update error: Invalid job id specified\n")
	for _, line := range [][]string{{"hold", "name="}, {"requeue", "name=,"}, {"update", "JobName=", "TimeLimit=1"}, {"hold", ""}, {"update", "JobId=", "TimeLimit=1"}} {
		if a := r.call("scontrol", line...); a.code != 1 || a.errout == "" {
			t.Errorf("scontrol %q names no job: %+v", line, a)
		}
	}
	r.want(r.call("scontrol", "hold", "x"), 1, "", "scontrol: error: Invalid job id x\n")
	if a := r.call("scontrol", "frobnicate"); a.code != 1 || !strings.HasPrefix(a.errout, "scontrol: error: invalid keyword: frobnicate\n") {
		t.Errorf("%+v", a)
	}
	if a := r.call("scontrol", "show", "frob"); a.code != 1 || !strings.HasPrefix(a.errout, "scontrol: error: invalid entity:frob for keyword:show\n") {
		t.Errorf("%+v", a)
	}
}

func TestUpdateWords(t *testing.T) {
	r := newRunner(t)
	r.want(r.call("scontrol", "update", "JobId=5,6", "TimeLimit=10", "Partition=gpu", "Comment=a=b"), 0, "", "")
	j := request[*ctldpb.UpdateJobRequest](r, "UpdateJob")
	if strings.Join(j.JobIds, " ") != "5 6" || j.Set["TimeLimit"] != "10" || j.Set["Partition"] != "gpu" || j.Set["Comment"] != "a=b" || len(j.Set) != 3 {
		t.Errorf("%v", j)
	}
	r.want(r.call("scontrol", "update", "partition=gpu", "jobid=7"), 0, "", "")
	if j := request[*ctldpb.UpdateJobRequest](r, "UpdateJob"); j.JobIds[0] != "7" || j.Set["partition"] != "gpu" {
		t.Errorf("the job is meant: %v", j)
	}
	r.want(r.call("scontrol", "update", "NodeName=n[1-4]", "State=DRAIN", "Reason=new disk"), 0, "", "")
	if n := request[*ctldpb.UpdateNodeRequest](r, "UpdateNode"); n.Names != "n[1-4]" || n.Set["State"] != "DRAIN" || n.Set["Reason"] != "new disk" {
		t.Errorf("%v", n)
	}
	r.want(r.call("scontrol", "update", "PartitionName=main", "State=DOWN"), 0, "", "")
	if p := request[*ctldpb.UpdatePartitionRequest](r, "UpdatePartition"); p.Name != "main" || p.Set["State"] != "DOWN" {
		t.Errorf("%v", p)
	}
	r.want(r.call("scontrol", "update", "JobId=5"), 1, "", "scontrol: error: No changes specified\n")
	if a := r.call("scontrol", "update", "TimeLimit=5"); a.code != 1 || !strings.HasPrefix(a.errout, "scontrol: error: No valid entity in update command\n") {
		t.Errorf("%+v", a)
	}
	r.want(r.call("gctl", "node", "fenced", "n1"), 0, "", "")
	if n := request[*ctldpb.UpdateNodeRequest](r, "UpdateNode"); n.Set["Fenced"] != "yes" {
		t.Errorf("%v", n)
	}
}

const shownJob = `JobId=1 JobName=train
   UserId=alice(1000) GroupId=users(100) MCS_label=N/A
   Priority=100 Nice=0 Account=lab QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime=01:01:01 TimeLimit=02:00:00 TimeMin=N/A
   SubmitTime=2026-11-30T11:50:00 EligibleTime=2026-11-30T10:58:59
   AccrueTime=Unknown
   StartTime=2026-11-30T10:58:59 EndTime=2026-11-30T12:58:59 Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=Unknown Scheduler=Main
   Partition=main AllocNode:Sid=unknown:0
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-2]
   BatchHost=n1
   NumNodes=2 NumCPUs=8 NumTasks=2 CPUs/Task=4 ReqB:S:C:T=0:0:*:*
   TRES=cpu=8,mem=8G,node=2,billing=8,gres/gpu=4
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:a100:2
     Nodes=n1 CPU_IDs=0-3 Mem=4096 GRES=gpu:a100:2(IDX:0-1)
   MinCPUsNode=4 MinMemoryNode=4G MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=(null)
   WorkDir=/home/alice
   Comment=see http://x
   StdErr=/home/alice/slurm-1.out
   StdIn=/dev/null
   StdOut=/home/alice/slurm-1.out
   Power=
   TresPerNode=gres:gpu:a100:2

`

func TestShow(t *testing.T) {
	r := newRunner(t)
	r.want(r.call("scontrol", "show", "job"), 0, "No jobs in the system\n", "")
	r.someJobs()
	r.want(r.call("scontrol", "show", "job", "1", "-d"), 0, shownJob, "")
	r.want(r.call("scontrol", "show", "jobid=1", "-dd"), 0, shownJob, "")
	r.want(r.call("scontrol", "show", "job", "999999"), 1, "", "slurm_load_jobs error: Invalid job id specified\n")
	one := r.call("scontrol", "-o", "show", "job")
	if n := strings.Count(one.out, "\n"); n != 5 || !strings.HasPrefix(one.out, "JobId=1 JobName=train UserId=") {
		t.Errorf("-o: %d lines\n%s", n, one.out)
	}
	if a := r.call("scontrol", "show", "job", "2"); !strings.HasPrefix(a.out, "JobId=2 ArrayJobId=2 ArrayTaskId=0-4%2 ArrayTaskThrottle=2 JobName=sweep\n") {
		t.Errorf("array: %s", a.out)
	}
	node := r.call("scontrol", "show", "node", "n1", "-o")
	for _, want := range []string{"NodeName=n1 ", "CPUAlloc=4 CPUEfctv=8 CPUTot=8 CPULoad=1.50", "Gres=gpu:a100:4", "RealMemory=16384 AllocMem=4096", "State=MIXED ", "Partitions=main,gpu",
		"CfgTRES=cpu=8,mem=16384M,billing=8,gres/gpu=4", "AllocTRES=cpu=4,mem=4096M,gres/gpu=2"} {
		if !strings.Contains(node.out, want) {
			t.Errorf("node: no %q in\n%s", want, node.out)
		}
	}
	if a := r.call("scontrol", "show", "node", "n3"); !strings.Contains(a.out, "State=IDLE+DRAIN ") || !strings.Contains(a.out, "Reason=new disk [root@2026-11-30T11:59:00]") {
		t.Errorf("drained node: %s", a.out)
	}
	r.want(r.call("scontrol", "show", "node", "nx"), 1, "", "scontrol: error: Node nx not found\n")
	part := r.call("scontrol", "show", "part", "-o", "main")
	for word := range strings.FieldsSeq(part.out) {
		if k, v, ok := strings.Cut(word, "="); !ok || k == "" || v == "" {
			t.Errorf("partition: %q is not KEY=VALUE", word)
		}
	}
	if !strings.Contains(part.out, "PartitionName=main ") || !strings.Contains(part.out, " Default=YES ") || !strings.Contains(part.out, " MaxTime=UNLIMITED ") {
		t.Errorf("partition: %s", part.out)
	}
	r.want(r.call("scontrol", "show", "config"), 0, "Configuration data as of 2026-11-30T12:00:00\nClusterName             = lab\nMaxArraySize            = 1001\n", "")
	if a := r.call("scontrol", "show", "step"); !strings.HasPrefix(a.out, "StepId=1.batch UserId=1000") {
		t.Errorf("steps: %s", a.out)
	}
}

func TestClusterWords(t *testing.T) {
	r := newRunner(t)
	path := r.c.Targets()[0].Socket
	r.c = client.New("lab", []client.Target{{Name: "c1", Socket: path}, {Name: "c2", Socket: path + ".none"}})
	r.want(r.call("scontrol", "ping"), 0, "Slurmctld(primary) at c1 is UP\nSlurmctld(backup) at c2 is DOWN\n", "")
	if a := r.call("gctl", "ping"); !strings.Contains(a.out, "CONTROLLER") || !strings.Contains(a.out, "refused") {
		t.Errorf("gctl ping: %s", a.out)
	}
	r.want(r.call("scontrol", "reconfigure", "--dry-run"), 0, "would change: KillWait 30 -> 10\nneeds a restart: ClusterName a -> b\n", "")
	r.want(r.call("scontrol", "reconfigure"), 1, "", "scontrol: error: grid.conf:3: KillWait: not a number\nslurm_reconfigure error: nothing was changed\n")
	r.want(r.call("gctl", "job", "output", "1"), 0, "hello world\n", "")
	r.want(r.call("scontrol", "write", "batch_script", "1", "-"), 0, "#!/bin/sh\ntrue\n", "")
	r.want(r.call("scontrol", "-Q", "write", "batch", "1"), 0, "", "")
	if b, err := os.ReadFile(filepath.Join(r.dir, "slurm-1.sh")); err != nil || string(b) != "#!/bin/sh\ntrue\n" {
		t.Errorf("script: %q, %v", b, err)
	}
	r.stdin = "hold 1\n\nshow hostnames n[1-2]\nquit\nhold 2\n"
	r.want(r.call("scontrol"), 0, "n1\nn2\n", "")
	if req := request[*ctldpb.ControlRequest](r, "Control"); req.JobIds[0] != "1" {
		t.Errorf("the session went on after quit: %v", req)
	}
	r.someJobs()
	r.want(r.call("scontrol", "wait_job", "1"), 0, "", "")
	r.want(r.call("scontrol", "wait_job", "5"), 1, "", "scontrol: error: Job is no longer pending/configuring (FAILED)\n")
}
