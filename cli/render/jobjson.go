package render

import (
	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// exitJSON is Slurm's process_exit_code_verbose.
type exitJSON struct {
	Status     []string `json:"status"`
	ReturnCode Number   `json:"return_code"`
	Signal     struct {
		ID   Number `json:"id"`
		Name string `json:"name"`
	} `json:"signal"`
}

func newExit(e *ctldpb.ExitStatus) exitJSON {
	var x exitJSON
	x.Status = []string{"SUCCESS"}
	x.ReturnCode = Num(e.GetCode())
	switch {
	case e.GetSignal() != 0:
		x.Status = []string{"SIGNALED"}
		x.Signal.ID = Num(e.GetSignal())
	case e.GetCode() != 0:
		x.Status = []string{"ERROR"}
	}
	return x
}

// JobJSON is one job in the shape of the data parser; the fields that clients read.
type JobJSON struct {
	Account           string         `json:"account"`
	AccrueTime        Number         `json:"accrue_time"`
	AdminComment      string         `json:"admin_comment"`
	ArrayJobID        Number         `json:"array_job_id"`
	ArrayTaskID       Number         `json:"array_task_id"`
	ArrayMaxTasks     Number         `json:"array_max_tasks"`
	ArrayTaskString   string         `json:"array_task_string"`
	BatchFlag         bool           `json:"batch_flag"`
	BatchHost         string         `json:"batch_host"`
	Cluster           string         `json:"cluster"`
	Command           string         `json:"command"`
	Comment           string         `json:"comment"`
	CPUs              Number         `json:"cpus"`
	CPUsPerTask       Number         `json:"cpus_per_task"`
	CurrentWorkingDir string         `json:"current_working_directory"`
	Dependency        string         `json:"dependency"`
	DerivedExitCode   exitJSON       `json:"derived_exit_code"`
	EligibleTime      Number         `json:"eligible_time"`
	EndTime           Number         `json:"end_time"`
	ExcludedNodes     string         `json:"excluded_nodes"`
	ExitCode          exitJSON       `json:"exit_code"`
	FailedNode        string         `json:"failed_node"`
	Features          string         `json:"features"`
	GroupID           uint32         `json:"group_id"`
	GroupName         string         `json:"group_name"`
	Hold              bool           `json:"hold"`
	JobID             uint32         `json:"job_id"`
	JobResources      *resourcesJSON `json:"job_resources,omitempty"`
	JobState          []string       `json:"job_state"`
	LastSchedEval     Number         `json:"last_sched_evaluation"`
	MemoryPerCPU      Number         `json:"memory_per_cpu"`
	MemoryPerNode     Number         `json:"memory_per_node"`
	Name              string         `json:"name"`
	Nice              int32          `json:"nice"`
	NodeCount         Number         `json:"node_count"`
	Nodes             string         `json:"nodes"`
	Partition         string         `json:"partition"`
	Priority          Number         `json:"priority"`
	QOS               string         `json:"qos"`
	Requeue           bool           `json:"requeue"`
	RequiredNodes     string         `json:"required_nodes"`
	RestartCnt        uint32         `json:"restart_cnt"`
	StandardError     string         `json:"standard_error"`
	StandardInput     string         `json:"standard_input"`
	StandardOutput    string         `json:"standard_output"`
	StartTime         Number         `json:"start_time"`
	StateDescription  string         `json:"state_description"`
	StateReason       string         `json:"state_reason"`
	SubmitTime        Number         `json:"submit_time"`
	Tasks             Number         `json:"tasks"`
	TimeLimit         Number         `json:"time_limit"`
	TimeMinimum       Number         `json:"time_minimum"`
	TresAllocStr      string         `json:"tres_alloc_str"`
	TresPerNode       string         `json:"tres_per_node"`
	TresReqStr        string         `json:"tres_req_str"`
	UserID            uint32         `json:"user_id"`
	UserName          string         `json:"user_name"`
	WCKey             string         `json:"wckey"`
	StepsInMemory     []stepJSON     `json:"tensorgrid_steps,omitempty"`
}

type resourcesJSON struct {
	Nodes          string          `json:"nodes"`
	AllocatedCores uint32          `json:"allocated_cores"`
	AllocatedNodes []allocatedNode `json:"allocated_nodes"`
}

type allocatedNode struct {
	Nodename        string `json:"nodename"`
	CPUsUsed        uint32 `json:"cpus_used"`
	MemoryAllocated int64  `json:"memory_allocated"` // MiB
	Gres            string `json:"gres"`
}

type stepJSON struct {
	ID    string   `json:"id"`
	Name  string   `json:"name"`
	State string   `json:"state"`
	Exit  exitJSON `json:"exit_code"`
}

// NewJobJSON converts one job.
func NewJobJSON(j *ctldpb.Job, cluster string) JobJSON {
	s := j.Spec
	out := JobJSON{
		Account: s.GetAccount(), AccrueTime: Stamp(j.AccrueMs), AdminComment: j.AdminComment,
		ArrayJobID: Num(j.ArrayJobId), ArrayMaxTasks: Num(j.ArrayMaxRunning), ArrayTaskString: ArrayTasks(j, 0),
		BatchFlag: true, BatchHost: j.BatchHost, Cluster: cluster, Command: s.GetCommand(), Comment: s.GetComment(),
		CPUs: Num(CPUs(j)), CPUsPerTask: NumIf(s.GetCpusPerTask()), CurrentWorkingDir: s.GetWorkDir(),
		Dependency: s.GetDependency(), DerivedExitCode: newExit(j.DerivedExit), EligibleTime: Stamp(j.EligibleMs),
		EndTime: Stamp(j.EndMs), ExcludedNodes: s.GetExclude(), ExitCode: newExit(j.Exit), FailedNode: j.FailedNode,
		Features: s.GetConstraint(), GroupID: j.Gid, GroupName: j.Group, Hold: j.Priority == 0 && j.State == "PENDING",
		JobID: j.JobId, JobState: append([]string{j.State}, j.Flags...), LastSchedEval: Stamp(j.LastEvalMs),
		MemoryPerCPU: NumIf(s.GetMemPerCpu() >> 20), MemoryPerNode: NumIf(max(0, s.GetMemPerNode()) >> 20),
		Name: s.GetName(), Nice: s.GetNice(), NodeCount: Num(Nodes(j)), Nodes: j.NodeList, Partition: j.Partition,
		Priority: Num(j.Priority), QOS: QOS(j), Requeue: j.Requeue, RequiredNodes: s.GetNodeList(), RestartCnt: j.Restarts,
		StandardError: j.StdErr, StandardInput: j.StdIn, StandardOutput: j.StdOut, StartTime: Stamp(j.StartMs),
		StateDescription: j.ReasonDetail, StateReason: Or(j.Reason, "None"), SubmitTime: Stamp(j.SubmitMs), Tasks: Num(Tasks(j)),
		TimeLimit: Minutes(j.TimeLimitMs), TimeMinimum: Minutes(s.GetTimeMinMs()), TresPerNode: TresPerNode(s),
		TresReqStr: j.Tres, UserID: j.Uid, UserName: j.User, WCKey: Rare(j, "wckey"),
	}
	if IsTask(j) {
		out.ArrayTaskID = Num(j.ArrayTaskId)
	}
	if j.NodeList != "" {
		out.TresAllocStr = j.Tres
		out.JobResources = &resourcesJSON{Nodes: j.NodeList, AllocatedCores: j.NumCpus, AllocatedNodes: []allocatedNode{}}
		for _, a := range j.Allocs {
			out.JobResources.AllocatedNodes = append(out.JobResources.AllocatedNodes,
				allocatedNode{Nodename: a.Node, CPUsUsed: a.Cpus, MemoryAllocated: a.Mem >> 20, Gres: a.Gres})
		}
	}
	for _, st := range j.Steps {
		out.StepsInMemory = append(out.StepsInMemory, stepJSON{ID: st.StepId, Name: st.Name, State: st.State, Exit: newExit(st.Exit)})
	}
	return out
}

// NewJobsJSON converts all jobs; the list is never null.
func NewJobsJSON(jobs []*ctldpb.Job, cluster string) []JobJSON {
	out := make([]JobJSON, 0, len(jobs))
	for _, j := range jobs {
		out = append(out, NewJobJSON(j, cluster))
	}
	return out
}
