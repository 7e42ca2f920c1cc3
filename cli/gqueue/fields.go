package gqueue

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// row is one job, or one step of it, as seen by a reader.
type row struct {
	*ctldpb.Job
	step   *ctldpb.Step
	clock  render.Clock
	bitmap int
}

func (r *row) now() int64 { return r.clock.Now.UnixMilli() }

// column is one thing that can be shown: by letter, and by the names of the long language.
type column struct {
	letter byte
	names  string // space separated, lower case
	header string
	value  func(*row) string
	number func(*row) int64 // what it is sorted by; nil = by value
}

func (r *row) timeLeft() string {
	switch {
	case r.TimeLimitMs == job.Unlimited:
		return "UNLIMITED"
	case r.TimeLimitMs <= 0:
		return "NOT_SET"
	}
	left := r.TimeLimitMs - render.Elapsed(r.Job, r.now())
	if left < 0 {
		return "INVALID"
	}
	return job.FormatElapsed(left)
}

func (r *row) oversubscribe() string {
	switch {
	case r.Spec.GetExclusive():
		return "NO"
	case render.Rare(r.Job, "oversubscribe") != "":
		return "YES"
	}
	return "OK"
}

// allocated is what the job holds; what it only asks for is not shown.
func (r *row) allocated() string {
	if r.NodeList == "" {
		return "N/A"
	}
	return r.Tres
}

func (r *row) taskID() string {
	switch {
	case render.IsTask(r.Job):
		return fmt.Sprint(r.ArrayTaskId)
	case render.IsArrayRest(r.Job):
		return render.ArrayTasks(r.Job, r.bitmap)
	}
	return "N/A"
}

func (r *row) arrayJob() uint32 {
	if r.ArrayJobId != 0 {
		return r.ArrayJobId
	}
	return r.JobId
}

// startTime of a waiting job is what is expected.
func (r *row) startTime() int64 { return r.StartMs }

// startKind says whether the start of a waiting job is promised or only an estimate.
func (r *row) startKind() string {
	switch {
	case render.BaseState(r.Job) != job.Pending || r.StartMs == 0:
		return "N/A"
	case r.StartPromised:
		return "promised"
	}
	return "estimate"
}

// schedNodes are those that a waiting job is promised.
func (r *row) schedNodes() string {
	if render.BaseState(r.Job) != job.Pending {
		return ""
	}
	return r.SchedNodes
}

// switches are how many the job asks for at most, and how long it waits for that.
func (r *row) switches() (count, wait string) {
	count, seconds, _ := strings.Cut(render.Rare(r.Job, job.OptSwitches), "@")
	n, _ := strconv.ParseInt(seconds, 10, 32) // "" is 0
	return render.Or(count, "0"), job.FormatElapsed(n * 1000)
}

// bid is in tokens.
func (r *row) bid() string {
	n, err := strconv.ParseInt(render.Rare(r.Job, job.OptBid), 10, 64)
	if err != nil {
		return "N/A"
	}
	return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64)
}

func het(f func(*row) string) func(*row) string {
	return func(r *row) string {
		if r.HetJobId == 0 {
			return "N/A"
		}
		return f(r)
	}
}

func (r *row) pendingTime() int64 {
	end := r.StartMs
	if end == 0 || render.BaseState(r.Job) == job.Pending {
		end = r.now()
	}
	return max(0, end-r.SubmitMs) / 1000
}

func str(f func(*row) string) func(*row) string {
	return func(r *row) string { return render.Null(f(r)) }
}

func num(f func(*row) int64) func(*row) string {
	return func(r *row) string { return fmt.Sprint(f(r)) }
}

func spec(f func(*ctldpb.JobSpec) string) func(*row) string {
	return func(r *row) string { return render.Null(f(r.Spec)) }
}

func rare(name, none string) func(*row) string {
	return func(r *row) string { return render.Or(render.Rare(r.Job, name), none) }
}

func fixed(s string) func(*row) string { return func(*row) string { return s } }

func stamp(f func(*row) int64) func(*row) string {
	return func(r *row) string { return r.clock.Time(f(r), "N/A") }
}

func long(r *row) string  { l, _ := render.State(r.Job); return l }
func short(r *row) string { _, s := render.State(r.Job); return s }

func stateRank(r *row) int64 { return int64(render.BaseState(r.Job)) }

// idRank: tasks stand with their array, components with the first one.
func idRank(r *row) int64 {
	if r.HetJobId != 0 {
		return int64(r.HetJobId)<<32 | int64(r.HetOffset)
	}
	return int64(r.arrayJob())<<32 | max(0, r.ArrayTaskId)
}

// columns of jobs, in the order of %all.
var columns = []column{
	{'a', "account", "ACCOUNT", str(func(r *row) string { return render.Account(r.Job) }), nil},
	{'b', "tres-per-node gres", "TRES_PER_NODE", func(r *row) string { return render.Or(render.TresPerNode(r.Spec), "N/A") }, nil},
	{'c', "mincpus", "MIN_CPUS", num(func(r *row) int64 { return int64(max(1, r.Spec.GetMinCpusPerNode())) }), nil},
	{'d', "mintmpdisk", "MIN_TMP_DISK", func(r *row) string { return render.MiB(r.Spec.GetMinTmpDisk()) }, nil},
	{'e', "endtime", "END_TIME", stamp(func(r *row) int64 { return r.EndMs }), func(r *row) int64 { return r.EndMs }},
	{'f', "feature features", "FEATURES", spec((*ctldpb.JobSpec).GetConstraint), nil},
	{'g', "groupname", "GROUP", func(r *row) string { return r.Group }, nil},
	{'h', "oversubscribe", "OVER_SUBSCRIBE", (*row).oversubscribe, nil},
	{'i', "jobarrayid", "JOBID", func(r *row) string { return render.JobID(r.Job, r.bitmap) }, idRank},
	{'j', "name jobname", "NAME", func(r *row) string { return r.Spec.GetName() }, nil},
	{'k', "comment", "COMMENT", spec((*ctldpb.JobSpec).GetComment), nil},
	{'l', "timelimit", "TIME_LIMIT", func(r *row) string { return render.Limit(r.TimeLimitMs) }, func(r *row) int64 { return r.TimeLimitMs }},
	{'m', "minmemory", "MIN_MEMORY", func(r *row) string { return render.MinMemory(r.Spec) }, nil},
	{'n', "reqnodes", "REQ_NODES", func(r *row) string { return r.Spec.GetNodeList() }, nil},
	{'o', "command", "COMMAND", spec((*ctldpb.JobSpec).GetCommand), nil},
	{'p', "priority", "PRIORITY", func(r *row) string { return fmt.Sprintf("%16.14f", float64(r.Priority)/(1<<32-1)) }, func(r *row) int64 { return r.Priority }},
	{'q', "qos", "QOS", func(r *row) string { return render.QOS(r.Job) }, nil},
	{'r', "reason", "REASON", func(r *row) string { return render.Or(r.Reason, "None") }, nil},
	{'s', "", "SLUID", fixed("N/A"), nil},
	{'t', "statecompact", "ST", short, stateRank},
	{'u', "username", "USER", func(r *row) string { return render.Or(r.User, fmt.Sprint(r.Uid)) }, nil},
	{'v', "reservation", "RESERVATION", str(func(r *row) string { return render.Reservation(r.Job) }), nil},
	{'w', "wckey", "WCKEY", rare("wckey", "(null)"), nil},
	{'x', "excnodes", "EXC_NODES", func(r *row) string { return r.Spec.GetExclude() }, nil},
	{'y', "nice", "NICE", num(func(r *row) int64 { return int64(r.Spec.GetNice()) }), func(r *row) int64 { return int64(r.Spec.GetNice()) }},
	{'z', "sct", "S:C:T", fixed("*:*:*"), nil},
	{'A', "jobid", "JOBID", num(func(r *row) int64 { return int64(r.JobId) }), func(r *row) int64 { return int64(r.JobId) }},
	{'B', "batchhost", "EXEC_HOST", func(r *row) string { return render.Or(r.BatchHost, "n/a") }, nil},
	{'C', "numcpus", "CPUS", num(func(r *row) int64 { return int64(render.CPUs(r.Job)) }), func(r *row) int64 { return int64(render.CPUs(r.Job)) }},
	{'D', "numnodes", "NODES", num(func(r *row) int64 { return int64(render.Nodes(r.Job)) }), func(r *row) int64 { return int64(render.Nodes(r.Job)) }},
	{'E', "dependency", "DEPENDENCY", str(func(r *row) string { return render.Dependency(r.Job) }), nil},
	{'F', "arrayjobid", "ARRAY_JOB_ID", num(func(r *row) int64 { return int64(r.arrayJob()) }), func(r *row) int64 { return int64(r.arrayJob()) }},
	{'G', "groupid", "GROUP", num(func(r *row) int64 { return int64(r.Gid) }), func(r *row) int64 { return int64(r.Gid) }},
	{'H', "sockets", "SOCKETS_PER_NODE", rare("sockets-per-node", "*"), nil},
	{'I', "cores", "CORES_PER_SOCKET", rare("cores-per-socket", "*"), nil},
	{'J', "threads", "THREADS_PER_CORE", rare("threads-per-core", "*"), nil},
	{'K', "arraytaskid", "ARRAY_TASK_ID", (*row).taskID, func(r *row) int64 { return r.ArrayTaskId }},
	{'L', "timeleft", "TIME_LEFT", (*row).timeLeft, func(r *row) int64 { return r.TimeLimitMs - render.Elapsed(r.Job, r.now()) }},
	{'M', "timeused", "TIME", func(r *row) string { return job.FormatElapsed(render.Elapsed(r.Job, r.now())) }, func(r *row) int64 { return render.Elapsed(r.Job, r.now()) }},
	{'N', "nodelist", "NODELIST", func(r *row) string { return r.NodeList }, nil},
	{'O', "contiguous", "CONTIGUOUS", func(r *row) string { return flag01(render.Rare(r.Job, "contiguous") != "") }, nil},
	{'P', "partition", "PARTITION", func(r *row) string { return r.Partition }, nil},
	{'Q', "prioritylong", "PRIORITY", num(func(r *row) int64 { return r.Priority }), func(r *row) int64 { return r.Priority }},
	{'R', "reasonlist", "NODELIST(REASON)", func(r *row) string { return render.NodesOrReason(r.Job) }, nil},
	{'S', "starttime", "START_TIME", stamp((*row).startTime), (*row).startTime},
	{'T', "state", "STATE", long, stateRank},
	{'U', "userid", "UID", num(func(r *row) int64 { return int64(r.Uid) }), func(r *row) int64 { return int64(r.Uid) }},
	{'V', "submittime", "SUBMIT_TIME", stamp(func(r *row) int64 { return r.SubmitMs }), func(r *row) int64 { return r.SubmitMs }},
	{'W', "licenses", "LICENSES", str(func(r *row) string { return render.Licenses(r.Job) }), nil},
	{'X', "corespec", "CORE_SPEC", rare("core-spec", "N/A"), nil},
	{'Y', "schednodes", "SCHEDNODES", str((*row).schedNodes), nil},
	{'Z', "workdir", "WORK_DIR", func(r *row) string { return r.Spec.GetWorkDir() }, nil},
}

// namedColumns have no letter.
var namedColumns = []column{
	{0, "accruetime", "ACCRUE_TIME", stamp(func(r *row) int64 { return r.AccrueMs }), nil},
	{0, "admin_comment", "ADMIN_COMMENT", str(func(r *row) string { return r.AdminComment }), nil},
	{0, "allocnodes", "ALLOC_NODES", spec((*ctldpb.JobSpec).GetSubmitHost), nil},
	{0, "allocsid", "ALLOC_SID", fixed("0"), nil},
	{0, "associd", "ASSOC_ID", fixed("0"), nil},
	{0, "batchflag", "BATCH_FLAG", fixed("1"), nil},
	{0, "boardsperboard boardspernode", "BOARDS_PER_NODE", fixed("N/A"), nil},
	{0, "burstbuffer", "BURST_BUFFER", fixed("N/A"), nil},
	{0, "burstbufferstate", "BURST_BUFFER_STATE", fixed("N/A"), nil},
	{0, "cluster", "CLUSTER", fixed("N/A"), nil},
	{0, "clusterfeature", "CLUSTER_FEATURES", fixed("N/A"), nil},
	{0, "container", "CONTAINER", fixed(""), nil},
	{0, "cpufreq", "CPU_FREQ", rare("cpu-freq", "N/A"), nil},
	{0, "cpus-per-task", "CPUS_PER_TASK", func(r *row) string {
		if n := r.Spec.GetCpusPerTask(); n > 0 {
			return fmt.Sprint(n)
		}
		return "N/A"
	}, nil},
	{0, "cpus-per-tres", "CPUS_PER_TRES", rare("cpus-per-gpu", "N/A"), nil},
	{0, "deadline", "DEADLINE", stamp(func(r *row) int64 { return render.Deadline(r.Job) }), func(r *row) int64 { return render.Deadline(r.Job) }},
	{0, "delayboot", "DELAY_BOOT", rare("delay-boot", "0:00"), nil},
	{0, "derivedec", "DERIVED_EC", func(r *row) string { return render.Exit(r.DerivedExit) }, nil},
	{0, "eligibletime", "ELIGIBLE_TIME", stamp(func(r *row) int64 { return r.EligibleMs }), nil},
	{0, "exit_code", "EXIT_CODE", func(r *row) string { return render.Exit(r.Exit) }, nil},
	{0, "hetjobid", "HET_JOB_ID", het(func(r *row) string { return fmt.Sprint(r.HetJobId) }), nil},
	{0, "hetjobidset", "HET_JOB_ID_SET", het(func(r *row) string { return r.HetIds }), nil},
	{0, "hetjoboffset", "HET_JOB_OFFSET", het(func(r *row) string { return fmt.Sprint(r.HetOffset) }), nil},
	{0, "lastschedeval", "LAST_SCHED_EVAL", stamp(func(r *row) int64 { return r.LastEvalMs }), nil},
	{0, "maxcpus", "MAX_CPUS", fixed("0"), nil},
	{0, "maxnodes", "MAX_NODES", num(func(r *row) int64 { return int64(r.Spec.GetMaxNodes()) }), nil},
	{0, "mcslabel", "MCSLABEL", rare("mcs-label", "(null)"), nil},
	{0, "mem-per-tres", "MEM_PER_TRES", rare("mem-per-gpu", "N/A"), nil},
	{0, "mintime", "MIN_TIME", func(r *row) string { return render.Limit(r.Spec.GetTimeMinMs()) }, nil},
	{0, "network", "NETWORK", rare("network", "(null)"), nil},
	{0, "nodes", "NODES", func(r *row) string { return r.NodeList }, nil},
	{0, "ntperboard", "NTASKS_PER_BOARD", fixed("N/A"), nil},
	{0, "ntpercore", "NTASKS_PER_CORE", rare("ntasks-per-core", "N/A"), nil},
	{0, "ntpernode", "NTASKS_PER_NODE", func(r *row) string {
		if n := r.Spec.GetNtasksPerNode(); n > 0 {
			return fmt.Sprint(n)
		}
		return "N/A"
	}, nil},
	{0, "ntpersocket", "NTASKS_PER_SOCKET", rare("ntasks-per-socket", "N/A"), nil},
	{0, "numtasks", "TASKS", num(func(r *row) int64 { return int64(render.Tasks(r.Job)) }), nil},
	{0, "origin", "ORIGIN", fixed("NA"), nil},
	{0, "originraw", "ORIGIN_RAW", fixed("NA"), nil},
	{0, "pendingtime", "PENDING_TIME", num((*row).pendingTime), (*row).pendingTime},
	{0, "preempttime", "PREEMPT_TIME", stamp(func(r *row) int64 { return r.PreemptMs }), nil},
	{0, "prefer", "PREFER", rare("prefer", ""), nil},
	{0, "profile", "PROFILE", rare("profile", "(null)"), nil},
	{0, "reboot", "REBOOT", fixed("0"), nil},
	{0, "reqswitch", "REQ_SWITCH", func(r *row) string { n, _ := r.switches(); return n }, nil},
	{0, "requeue", "REQUEUE", func(r *row) string { return flag01(r.Requeue) }, nil},
	{0, "resizetime", "RESIZE_TIME", fixed("N/A"), nil},
	{0, "restartcnt", "RESTART_COUNT", num(func(r *row) int64 { return int64(r.Restarts) }), nil},
	{0, "resvports", "RESV_PORTS", fixed("(null)"), nil},
	{0, "siblingsactive", "SIBLINGS_ACTIVE", fixed("NA"), nil},
	{0, "siblingsactiveraw", "SIBLINGS_ACTIVE_RAW", fixed("NA"), nil},
	{0, "siblingsviable", "SIBLINGS_VIABLE", fixed("NA"), nil},
	{0, "siblingsviableraw", "SIBLINGS_VIABLE_RAW", fixed("NA"), nil},
	{0, "sperboard", "S_PER_BOARD", fixed("*"), nil},
	{0, "stderr", "STDERR", func(r *row) string { return render.Or(r.StdErr, r.Spec.GetStdErr()) }, nil},
	{0, "stdin", "STDIN", func(r *row) string { return render.Or(r.StdIn, render.Or(r.Spec.GetStdIn(), "/dev/null")) }, nil},
	{0, "stdout", "STDOUT", func(r *row) string { return render.Or(r.StdOut, r.Spec.GetStdOut()) }, nil},
	{0, "system_comment", "SYSTEM_COMMENT", fixed("(null)"), nil},
	{0, "tres-alloc", "TRES_ALLOC", (*row).allocated, nil},
	{0, "tres-bind", "TRES_BIND", rare("gpu-bind", "N/A"), nil},
	{0, "tres-freq", "TRES_FREQ", rare("gpu-freq", "N/A"), nil},
	{0, "tres-per-job", "TRES_PER_JOB", rare("gpus", "N/A"), nil},
	{0, "tres-per-socket", "TRES_PER_SOCKET", fixed("N/A"), nil},
	{0, "tres-per-step", "TRES_PER_STEP", fixed("N/A"), nil},
	{0, "tres-per-task", "TRES_PER_TASK", rare("gpus-per-task", "N/A"), nil},
	{0, "wait4switch", "TIME", func(r *row) string { _, t := r.switches(); return t }, nil},
	{0, "startkind", "START_KIND", (*row).startKind, nil},
	{0, "bid", "BID", (*row).bid, nil},
	{0, "checkpointtime", "CHECKPOINT_TIME", stamp(func(r *row) int64 { return r.CheckpointMs }), nil},
	{0, "reasondetail why", "WHY", func(r *row) string { return r.ReasonDetail }, nil},
}

// stepColumns are shown with -s.
var stepColumns = []column{
	{'i', "stepid", "STEPID", func(r *row) string { return fmt.Sprintf("%s.%s", render.JobID(r.Job, r.bitmap), r.step.GetStepId()) }, idRank},
	{'j', "stepname name", "NAME", func(r *row) string { return render.Or(r.step.GetName(), r.step.GetStepId()) }, nil},
	{'A', "numtasks tasks", "TASKS", num(func(r *row) int64 { return int64(r.step.GetTasks()) }), nil},
	{'N', "nodes nodelist", "NODELIST", func(r *row) string { return render.Or(r.step.GetNodeList(), r.NodeList) }, nil},
	{'M', "timeused", "TIME", func(r *row) string { return job.FormatElapsed(max(0, r.now()-r.step.GetStartMs())) }, nil},
	{'l', "timelimit", "TIME_LIMIT", fixed("UNLIMITED"), nil},
	{'P', "partition", "PARTITION", func(r *row) string { return r.Partition }, nil},
	{'u', "username", "USER", func(r *row) string { return r.User }, nil},
	{'U', "userid", "UID", num(func(r *row) int64 { return int64(r.Uid) }), nil},
	{'S', "starttime", "START_TIME", func(r *row) string { return r.clock.Time(r.step.GetStartMs(), "N/A") }, nil},
	{'b', "tres-per-node gres", "TRES_PER_NODE", func(r *row) string { return render.Or(render.TresPerNode(r.Spec), "N/A") }, nil},
	{0, "stepstate state", "STATE", func(r *row) string { return r.step.GetState() }, nil},
	{0, "arrayjobid", "ARRAY_JOB_ID", num(func(r *row) int64 { return int64(r.arrayJob()) }), nil},
	{0, "arraytaskid", "ARRAY_TASK_ID", (*row).taskID, nil},
	{0, "jobarrayid", "JOB_ARRAY_ID", func(r *row) string { return render.JobID(r.Job, r.bitmap) }, nil},
}

func flag01(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func byLetter(set []column, letter string) *column {
	for i := range set {
		if set[i].letter != 0 && letter == string(set[i].letter) {
			return &set[i]
		}
	}
	return nil
}

func byName(name string, sets ...[]column) *column {
	name = strings.ToLower(name)
	for _, set := range sets {
		for i := range set {
			for n := range strings.FieldsSeq(set[i].names) {
				if n == name {
					return &set[i]
				}
			}
		}
	}
	return nil
}
