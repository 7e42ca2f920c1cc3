package gctl

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

const invalidID = "Invalid job id specified"

// showJobs prints the jobs asked for, or all that a controller knows.
func (c *call) showJobs(ids []string) int {
	if !c.connect() {
		return 1
	}
	var list []string
	for _, id := range ids {
		for _, one := range splitIDs(strings.TrimPrefix(id, "=")) {
			list = append(list, render.PlainID(one))
		}
	}
	res, err := c.client.ListJobs(background(), &ctldpb.ListJobsRequest{
		Read: &ctldpb.ReadOptions{Stale: c.stale}, JobIds: list, States: []string{"all"}, Detail: true,
	})
	if err != nil {
		return c.failed("slurm_load_jobs", err)
	}
	if len(list) > 0 && len(res.Jobs) == 0 {
		fmt.Fprintf(c.env.Stderr, "slurm_load_jobs error: %s\n", invalidID)
		return 1
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	if c.json {
		meta := render.NewMeta(c.client.Cluster(), program.SlurmVersion, append([]string{c.env.Name}, c.env.Args...))
		if err := render.WriteJSON(out, "jobs", render.NewJobsJSON(res.Jobs, c.client.Cluster()), c.env.Now(), meta, c.env.Getenv("SLURM_JSON") == "compact"); err != nil {
			return 1
		}
		return 0
	}
	if len(res.Jobs) == 0 {
		fmt.Fprintln(out, "No jobs in the system")
		return 0
	}
	for _, j := range res.Jobs {
		c.jobRecord(j).write(out, c.oneLine)
	}
	if len(res.UnknownIds) > 0 {
		fmt.Fprintf(c.env.Stderr, "slurm_load_jobs error: %s: %s\n", invalidID, render.Clean(strings.Join(res.UnknownIds, ",")))
		return 1
	}
	return 0
}

// splitIDs cuts at commas outside brackets.
func splitIDs(s string) []string {
	depth := 0
	return strings.FieldsFunc(s, func(r rune) bool {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		return r == ',' && depth <= 0
	})
}

func (c *call) clock() render.Clock {
	return render.Clock{Now: c.env.Now(), Format: c.env.Getenv("SLURM_TIME_FORMAT")}
}

func duration(ms int64, none string) string {
	if ms == 0 {
		return none
	}
	return job.FormatDuration(ms)
}

func count(n uint32, none string) string {
	if n == 0 {
		return none
	}
	return strconv.FormatUint(uint64(n), 10)
}

func digit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// jobRecord lays a job out in Slurm's order, which programs rely on.
func (c *call) jobRecord(j *ctldpb.Job) *record {
	r, s, clock := &record{}, j.Spec, c.clock()
	head := []string{kv("JobId", j.JobId)}
	if j.ArrayJobId != 0 {
		head = append(head, kv("ArrayJobId", j.ArrayJobId))
		if render.IsTask(j) {
			head = append(head, kv("ArrayTaskId", j.ArrayTaskId))
		} else {
			head = append(head, kv("ArrayTaskId", render.ArrayTasks(j, c.bitmap())))
		}
		if j.ArrayMaxRunning > 0 {
			head = append(head, kv("ArrayTaskThrottle", j.ArrayMaxRunning))
		}
	} else if j.HetJobId != 0 {
		head = append(head, kv("HetJobId", j.HetJobId), kv("HetJobOffset", j.HetOffset))
	}
	r.line(append(head, kv("JobName", s.GetName()))...)
	if j.HetJobId != 0 {
		r.line(kv("HetJobIdSet", j.HetIds))
	}
	state, _ := render.State(j)
	r.line(kv("UserId", fmt.Sprintf("%s(%d)", render.Or(j.User, "unknown"), j.Uid)), kv("GroupId", fmt.Sprintf("%s(%d)", render.Or(j.Group, "unknown"), j.Gid)), "MCS_label=N/A")
	r.line(kv("Priority", j.Priority), kv("Nice", s.GetNice()), kv("Account", render.Null(s.GetAccount())), kv("QOS", render.QOS(j)))
	r.line(kv("JobState", state), kv("Reason", render.Or(j.Reason, "None")), kv("Dependency", render.Null(render.Dependency(j))))
	r.line(kv("Requeue", digit(j.Requeue)), kv("Restarts", j.Restarts), "BatchFlag=1", "Reboot=0", kv("ExitCode", render.Exit(j.Exit)))
	if c.detail {
		r.line(kv("DerivedExitCode", render.Exit(j.DerivedExit)))
	}
	r.line(kv("RunTime", job.FormatDuration(render.Elapsed(j, clock.Now.UnixMilli()))), kv("TimeLimit", duration(j.TimeLimitMs, "Partition_Limit")),
		kv("TimeMin", duration(s.GetTimeMinMs(), "N/A")))
	r.line(kv("SubmitTime", clock.Time(j.SubmitMs, "Unknown")), kv("EligibleTime", clock.Time(j.EligibleMs, "Unknown")))
	r.line(kv("AccrueTime", clock.Time(j.AccrueMs, "Unknown")))
	end := j.EndMs
	if j.TimeLimitMs < 0 && !render.BaseState(j).Ended() {
		end = 0
	}
	r.line(kv("StartTime", clock.Time(j.StartMs, "Unknown")), kv("EndTime", clock.Time(end, "Unknown")), kv("Deadline", clock.Time(render.Deadline(j), "N/A")))
	if j.PreemptMs > 0 {
		r.line("PreemptEligibleTime="+clock.Time(j.StartMs, "Unknown"), kv("PreemptTime", clock.Time(j.PreemptMs, "None")))
	}
	r.line(kv("SuspendTime", clock.Time(j.SuspendMs, "None")), kv("SecsPreSuspend", ranBeforeSuspend(j, clock.Now)), kv("LastSchedEval", clock.Time(j.LastEvalMs, "Unknown")), "Scheduler=Main")
	c.jobSizes(r, j)
	c.jobFiles(r, j)
	return r
}

// ranBeforeSuspend is for how many seconds a suspended job ran until it was suspended; 0 for one that isn't.
func ranBeforeSuspend(j *ctldpb.Job, now time.Time) int64 {
	if j.SuspendMs == 0 || render.BaseState(j) != job.Suspended {
		return 0
	}
	return render.Elapsed(j, now.UnixMilli()) / 1000 // time stopped, to this moment, isn't in it
}

// jobSizes is what the job asks for and holds.
func (c *call) jobSizes(r *record, j *ctldpb.Job) {
	s := j.Spec
	r.line(kv("Partition", j.Partition), kv("AllocNode:Sid", render.Or(s.GetSubmitHost(), "unknown")+":0"))
	r.line(kv("ReqNodeList", render.Null(s.GetNodeList())), kv("ExcNodeList", render.Null(s.GetExclude())))
	r.line(kv("NodeList", render.Null(j.NodeList)))
	if j.SchedNodes != "" && j.NodeList == "" {
		r.line(kv("SchedNodeList", j.SchedNodes))
	}
	if j.BatchHost != "" {
		r.line(kv("BatchHost", j.BatchHost))
	}
	nodes := fmt.Sprint(render.Nodes(j))
	if j.NodeList == "" && s.GetMaxNodes() > s.GetMinNodes() {
		nodes = fmt.Sprintf("%d-%d", max(1, s.GetMinNodes()), s.GetMaxNodes())
	}
	r.line(kv("NumNodes", nodes), kv("NumCPUs", render.CPUs(j)), kv("NumTasks", render.Tasks(j)), kv("CPUs/Task", max(1, s.GetCpusPerTask())), kv("ReqB:S:C:T", "0:0:"+render.Or(render.Rare(j, job.OptCores), "*")+":"+render.Or(render.Rare(j, job.OptThreads), "*")))
	r.line(kv("TRES", render.Null(j.Tres)))
	r.line(kv("Socks/Node", render.Or(render.Rare(j, job.OptSockets), "*")), kv("NtasksPerN:B:S:C", fmt.Sprintf("%d:0:*:*", s.GetNtasksPerNode())), "CoreSpec=*")
	if c.detail && len(j.Allocs) > 0 {
		c.jobAllocs(r, j)
	}
	memory := kv("MinMemoryNode", render.MinMemory(s))
	if s.GetMemPerCpu() > 0 {
		memory = kv("MinMemoryCPU", render.MinMemory(s))
	}
	r.line(kv("MinCPUsNode", max(1, s.GetMinCpusPerNode(), s.GetCpusPerTask()*max(1, s.GetNtasksPerNode()))), memory, kv("MinTmpDiskNode", render.MiB(s.GetMinTmpDisk())))
	features := []string{kv("Features", render.Null(s.GetConstraint()))}
	if p := render.Rare(j, job.OptPrefer); p != "" {
		features = append(features, kv("Prefer", p))
	}
	r.line(append(features, "DelayBoot=00:00:00")...)
	if v := render.Reservation(j); v != "" {
		r.line(kv("Reservation", v))
	}
	share := "OK"
	if s.GetExclusive() {
		share = "NO"
	} else if e := render.Rare(j, job.OptExclusive); e != "" {
		share = strings.ToUpper(e)
	} else if render.Rare(j, "oversubscribe") != "" {
		share = "YES"
	}
	r.line(kv("OverSubscribe", share), kv("Contiguous", digit(render.Rare(j, "contiguous") != "")), kv("Licenses", render.Null(render.Licenses(j))),
		kv("Network", render.Null(render.Rare(j, "network"))))
}

// jobPlans is what the planner was asked for and has promised; it has no line where nothing was.
func (c *call) jobPlans(r *record, j *ctldpb.Job) {
	if v := render.Rare(j, job.OptSwitches); v != "" {
		r.line(kv("Switches", v))
	}
	if v := render.Rare(j, job.OptInvalidDep); v != "" {
		r.line(kv("KillOInInvalidDependent", strings.ToUpper(v[:1])+v[1:]))
	}
	if j.CheckpointMs > 0 {
		r.line(kv("CheckpointTime", c.clock().Time(j.CheckpointMs, "None")))
	}
	if !c.env.ByGName() {
		return
	}
	if render.BaseState(j) == job.Pending && j.StartMs > 0 {
		kind := "estimate"
		if j.StartPromised {
			kind = "promised"
		}
		r.line(kv("StartKind", kind))
	}
	if n, err := strconv.ParseInt(render.Rare(j, job.OptBid), 10, 64); err == nil {
		r.line(kv("Bid", strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64)))
	}
}

// jobAllocs says what the job holds on each node; nodes with the same are one line.
func (c *call) jobAllocs(r *record, j *ctldpb.Job) {
	total := ""
	var items []gres.Item
	for _, a := range j.Allocs {
		list, err := gres.Parse(a.Gres)
		if err == nil {
			items = gres.Sum(items, list)
		}
	}
	if total = gres.Format(items); total == "" {
		total = "(null)"
	}
	r.line(kv("JOB_GRES", total))
	for _, a := range j.Allocs {
		r.line("  "+kv("Nodes", a.Node), kv("CPU_IDs", gres.FormatIndex(a.CpuIds)), kv("Mem", render.MiB(a.Mem)), kv("GRES", indexed(a)))
	}
}

// indexed is "gpu:a100:2(IDX:0-1)".
func indexed(a *ctldpb.NodeAlloc) string {
	items, err := gres.Parse(a.Gres)
	if err != nil {
		return a.Gres
	}
	var parts []string
	for _, it := range items {
		part := it.String()
		i := slices.IndexFunc(a.GresIndex, func(g *ctldpb.GresIndex) bool { return g.Name == it.Name && g.Type == it.Type })
		if i >= 0 {
			part += "(IDX:" + gres.FormatIndex(a.GresIndex[i].Index) + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// jobFiles is the command, its files and what is optional.
func (c *call) jobFiles(r *record, j *ctldpb.Job) {
	s := j.Spec
	command := render.Null(s.GetCommand())
	if len(s.GetArgs()) > 0 {
		command += " " + strings.Join(s.GetArgs(), " ")
	}
	r.line(kv("Command", command))
	r.line(kv("WorkDir", render.Null(s.GetWorkDir())))
	if s.GetComment() != "" {
		r.line(kv("Comment", s.GetComment()))
	}
	if j.AdminComment != "" {
		r.line(kv("AdminComment", j.AdminComment))
	}
	r.line(kv("StdErr", render.Or(j.StdErr, s.GetStdErr())))
	r.line(kv("StdIn", render.Or(j.StdIn, "/dev/null")))
	r.line(kv("StdOut", render.Or(j.StdOut, s.GetStdOut())))
	r.line("Power=")
	if t := render.TresPerNode(s); t != "" {
		r.line(kv("TresPerNode", t))
	}
	if u := render.Rare(j, "mail-user"); u != "" || render.Rare(j, "mail-type") != "" {
		r.line(kv("MailUser", render.Or(u, j.User)), kv("MailType", render.Or(render.Rare(j, "mail-type"), "NONE")))
	}
	c.jobPlans(r, j)
	if s.GetSignal() != "" {
		r.line(kv("Signal", s.GetSignal()))
	}
	if w := render.Rare(j, "wckey"); w != "" {
		r.line(kv("WCKey", w))
	}
	if j.FailedNode != "" {
		r.line(kv("FailedNode", j.FailedNode))
	}
	if j.ReasonDetail != "" && c.env.ByGName() && !c.oneLine {
		r.line(kv("ReasonDetail", j.ReasonDetail))
	}
}

func (c *call) bitmap() int {
	if n, err := strconv.Atoi(c.env.Getenv("SLURM_BITSTR_LEN")); err == nil && n >= 0 {
		return n
	}
	return render.DefaultBitmap
}
