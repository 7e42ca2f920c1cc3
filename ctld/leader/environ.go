package leader

import (
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/step"
)

// described are the variables that describe an allocation. Those of the job that submitted never
// reach the new one, also where the new one has no such value: a script must not see another job's
// task count or devices.
var described = strings.Fields(`
	CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ENVIRONMENT HOSTNAME SLURMD_NODENAME GRID_JOB_RUN
	SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NAME SLURM_JOB_PARTITION SLURM_JOB_ACCOUNT SLURM_JOB_QOS SLURM_JOB_RESERVATION
	SLURM_JOB_NODELIST SLURM_NODELIST SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_JOB_CPUS_PER_NODE SLURM_TASKS_PER_NODE
	SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_CPUS_PER_TASK SLURM_CPUS_ON_NODE
	SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK
	SLURM_GPUS_ON_NODE SLURM_SHARDS_ON_NODE SLURM_JOB_GPUS SLURM_STEP_GPUS SLURM_JOB_DEPENDENCY
	SLURM_JOB_START_TIME SLURM_JOB_END_TIME SLURM_JOB_USER SLURM_JOB_UID SLURM_JOB_GID SLURM_JOB_GROUP
	SLURM_CLUSTER_NAME SLURM_CONF SLURM_RESTART_COUNT SLURM_PRIO_PROCESS
	SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT SLURM_ARRAY_TASK_MIN SLURM_ARRAY_TASK_MAX SLURM_ARRAY_TASK_STEP
	SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_GTIDS SLURM_TASK_PID SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NODELIST
	SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_TOPOLOGY_ADDR SLURM_TOPOLOGY_ADDR_PATTERN`)

const mib = 1 << 20

// variables is an environment under construction.
type variables map[string]string

func (v variables) number(name string, n int64) { v[name] = strconv.FormatInt(n, 10) }

// given sets a variable unless its value is empty.
func (v variables) given(name, value string) {
	if value != "" {
		v[name] = value
	}
}

// environment is what the batch step sees: the user's variables, under those that describe the job
// as Slurm's do; sorted NAME=value. The node adds SLURM_TASK_PID.
func (l *Leader) environment(view state.Viewer, j *state.Job, node string, users *userEnv) [][]byte {
	v := make(variables, 64)
	for _, name := range consulted {
		if value, ok := users.values[name]; ok {
			v[name] = value
		}
	}
	l.jobVariables(v, view, j)
	sizeVariables(v, view, j)
	arrayVariables(v, view, j)
	nodeVariables(v, view, j, node)
	userVariables(v, j.Spec)
	return users.with(v)
}

// jobVariables say which job it is.
func (l *Leader) jobVariables(v variables, view state.Viewer, j *state.Job) {
	spec := j.Spec
	v.number("SLURM_JOB_ID", int64(j.ID))
	v["SLURM_JOBID"] = v["SLURM_JOB_ID"]
	v["SLURM_JOB_NAME"] = jobName(j)
	v["SLURM_JOB_PARTITION"] = j.Partition
	v.given("SLURM_JOB_ACCOUNT", spec.Account)
	v.given("SLURM_JOB_QOS", spec.QOS)
	v.given("SLURM_JOB_DEPENDENCY", spec.Dependency)
	v["SLURM_JOB_USER"] = spec.User
	v.number("SLURM_JOB_UID", int64(spec.UID))
	v.number("SLURM_JOB_GID", int64(spec.GID))
	v.given("SLURM_JOB_GROUP", spec.Group)
	v["SLURM_CLUSTER_NAME"] = view.Config().Cluster
	v.given("SLURM_CONF", l.Config().Source)
	if _, ok := v["SLURM_SUBMIT_DIR"]; !ok { // the client's: it may differ from --chdir
		v["SLURM_SUBMIT_DIR"] = spec.WorkDir
	}
	if _, ok := v["SLURM_SUBMIT_HOST"]; !ok {
		v.given("SLURM_SUBMIT_HOST", spec.SubmitHost)
	}
	if spec.Export != "" {
		v["SLURM_EXPORT_ENV"] = spec.Export
	}
	if j.Start > 0 {
		v.number("SLURM_JOB_START_TIME", j.Start/1000)
		if j.TimeLimit > 0 {
			v.number("SLURM_JOB_END_TIME", (j.Start+j.TimeLimit)/1000)
		}
	}
	if j.Restarts > 0 {
		v.number("SLURM_RESTART_COUNT", int64(j.Restarts))
	}
	v.number("GRID_JOB_RUN", int64(j.Run))
}

// sizeVariables say what was allocated, and what was asked where scripts read it back.
func sizeVariables(v variables, view state.Viewer, j *state.Job) {
	spec := j.Spec
	cpus, tasks := make([]uint32, len(j.Allocs)), make([]uint32, len(j.Allocs))
	total := int64(0)
	for i := range j.Allocs {
		cpus[i], tasks[i] = j.Allocs[i].CPUs, j.Allocs[i].Tasks
		total += int64(tasks[i])
	}
	v["SLURM_JOB_NODELIST"] = nodeList(j)
	v["SLURM_NODELIST"] = v["SLURM_JOB_NODELIST"]
	v.number("SLURM_JOB_NUM_NODES", int64(len(j.Allocs)))
	v["SLURM_NNODES"] = v["SLURM_JOB_NUM_NODES"]
	v["SLURM_JOB_CPUS_PER_NODE"] = step.FormatCounts(cpus)
	v["SLURM_TASKS_PER_NODE"] = step.FormatCounts(tasks)
	if spec.NTasks > 0 || spec.NTasksPerNode > 0 {
		v.number("SLURM_NTASKS", total)
		v["SLURM_NPROCS"] = v["SLURM_NTASKS"]
	}
	if spec.NTasksPerNode > 0 {
		v.number("SLURM_NTASKS_PER_NODE", int64(spec.NTasksPerNode))
	}
	if spec.CPUsPerTask > 0 {
		v.number("SLURM_CPUS_PER_TASK", int64(spec.CPUsPerTask))
	}
	perNode, perCPU := spec.MemPerNode, spec.MemPerCPU
	if p := view.Partition(j.Partition); perNode == 0 && perCPU == 0 && p != nil {
		if perNode = p.DefMemPerNode; perNode == 0 {
			perCPU = p.DefMemPerCPU
		}
	}
	switch {
	case perNode == job.WholeNode || perCPU == job.WholeNode:
		v.number("SLURM_MEM_PER_NODE", j.Allocs[0].Mem/mib)
	case perNode > 0:
		v.number("SLURM_MEM_PER_NODE", perNode/mib)
	case perCPU > 0:
		v.number("SLURM_MEM_PER_CPU", perCPU/mib)
	}
	v.given("SLURM_GPUS", spec.RareValue("gpus"))
	v.given("SLURM_GPUS_PER_NODE", spec.RareValue("gpus-per-node"))
	v.given("SLURM_GPUS_PER_TASK", spec.RareValue("gpus-per-task"))
	v.given("SLURM_MEM_PER_GPU", spec.RareValue("mem-per-gpu"))
}

// arrayVariables say which task of which array it is.
func arrayVariables(v variables, view state.Viewer, j *state.Job) {
	if j.ArrayID == 0 || j.ArrayTask < 0 {
		return
	}
	v.number("SLURM_ARRAY_JOB_ID", int64(j.ArrayID))
	v.number("SLURM_ARRAY_TASK_ID", j.ArrayTask)
	set, _, err := job.ParseArray(j.Spec.Array, view.Config().MaxArraySize)
	if err != nil {
		return // MaxArraySize has shrunk since; the task knows its number at least
	}
	v.number("SLURM_ARRAY_TASK_COUNT", int64(set.Len()))
	v.number("SLURM_ARRAY_TASK_MIN", int64(set.Min()))
	v.number("SLURM_ARRAY_TASK_MAX", int64(set.Max()))
	v.number("SLURM_ARRAY_TASK_STEP", int64(set.Step()))
}

// nodeVariables are those of the batch task on its node. Without GPUs the variables that name them
// are not set at all.
func nodeVariables(v variables, view state.Viewer, j *state.Job, node string) {
	a := &j.Allocs[0]
	v["ENVIRONMENT"] = "BATCH"
	v["SLURMD_NODENAME"] = node
	v["HOSTNAME"] = hostname(view, node)
	v["SLURM_TOPOLOGY_ADDR"] = node
	v["SLURM_TOPOLOGY_ADDR_PATTERN"] = "node"
	for _, name := range []string{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_PRIO_PROCESS"} {
		v[name] = "0"
	}
	v.number("SLURM_CPUS_ON_NODE", int64(a.CPUs))
	if _, ok := v["TMPDIR"]; !ok {
		v["TMPDIR"] = "/tmp"
	}
	var inventory []gres.Item
	if n := view.Node(node); n != nil {
		if resources, err := gres.ParseInventory(n.Config.Gres); err == nil {
			inventory = gres.Items(resources)
		}
	}
	var gpus []string
	var count, shards uint64
	for _, g := range a.Gres {
		switch g.Name {
		case "gpu":
			count += g.Count
			for _, i := range gres.Global(inventory, gres.Alloc(g)) {
				gpus = append(gpus, strconv.FormatUint(uint64(i), 10))
			}
		case "shard":
			shards += g.Count
		}
	}
	if count > 0 {
		v.number("SLURM_GPUS_ON_NODE", int64(count))
	}
	if shards > 0 {
		v.number("SLURM_SHARDS_ON_NODE", int64(shards))
	}
	if len(gpus) > 0 {
		list := strings.Join(gpus, ",")
		v["SLURM_JOB_GPUS"], v["CUDA_VISIBLE_DEVICES"], v["GPU_DEVICE_ORDINAL"] = list, list, list
	}
}

// userVariables give a job that does not bring its submitter's environment what a login has.
func userVariables(v variables, spec *job.Spec) {
	if !spec.GetUserEnv {
		return
	}
	for name, value := range map[string]string{"HOME": spec.Home, "USER": spec.User, "LOGNAME": spec.User,
		"SHELL": spec.Shell, "PATH": "/usr/local/bin:/usr/bin:/bin"} {
		if _, ok := v[name]; !ok {
			v.given(name, value)
		}
	}
}
