package server

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// specFromAPI takes what a user asks for into s. Identity is not part of it.
func specFromAPI(s *job.Spec, p *ctldpb.JobSpec) {
	*s = job.Spec{
		Name: p.Name, Account: p.Account, Partition: p.Partition, QOS: p.Qos, WorkDir: p.WorkDir,
		StdIn: p.StdIn, StdOut: p.StdOut, StdErr: p.StdErr, OpenMode: p.OpenMode, Command: p.Command,
		SubmitLine: p.SubmitLine, SubmitHost: p.SubmitHost, Args: p.Args,
		Script: p.Script, ScriptHash: p.ScriptHash, EnvHash: p.EnvHash,
		MinNodes: p.MinNodes, MaxNodes: p.MaxNodes, NTasks: p.Ntasks, NTasksPerNode: p.NtasksPerNode,
		CPUsPerTask: p.CpusPerTask, MinCPUsPerNode: p.MinCpusPerNode, MemPerNode: p.MemPerNode, MemPerCPU: p.MemPerCpu,
		MinTmpDisk: p.MinTmpDisk, Gres: p.Gres, NodeList: p.NodeList, Exclude: p.Exclude,
		Constraint: p.Constraint, Exclusive: p.Exclusive,
		TimeLimit: p.TimeLimitMs, TimeMin: p.TimeMinMs, Begin: p.BeginMs, Array: p.Array, Hold: p.Hold,
		Requeue: sign(p.Requeue), Nice: p.Nice, Comment: p.Comment, Signal: p.Signal, Dependency: p.Dependency,
		Umask: p.Umask, Export: p.Export, GetUserEnv: p.GetUserEnv,
	}
	for name, value := range p.Rare {
		s.Rare = append(s.Rare, job.Option{Name: name, Value: value})
	}
	slices.SortFunc(s.Rare, func(a, b job.Option) int { return strings.Compare(a.Name, b.Name) })
}

func sign(n int32) int8 {
	switch {
	case n > 0:
		return 1
	case n < 0:
		return -1
	}
	return 0
}

// specToAPI shows a specification; script and environment are never part of it. What may hold
// secrets (arguments, command line, exported values) is only for whom mine says yes.
func specToAPI(s *job.Spec, mine bool) *ctldpb.JobSpec {
	p := &ctldpb.JobSpec{
		Name: s.Name, Account: s.Account, Partition: s.Partition, Qos: s.QOS, WorkDir: s.WorkDir,
		StdIn: s.StdIn, StdOut: s.StdOut, StdErr: s.StdErr, OpenMode: s.OpenMode, Command: s.Command,
		SubmitHost: s.SubmitHost,
		MinNodes:   s.MinNodes, MaxNodes: s.MaxNodes, Ntasks: s.NTasks, NtasksPerNode: s.NTasksPerNode,
		CpusPerTask: s.CPUsPerTask, MinCpusPerNode: s.MinCPUsPerNode, MemPerNode: s.MemPerNode, MemPerCpu: s.MemPerCPU,
		MinTmpDisk: s.MinTmpDisk, Gres: s.Gres, NodeList: s.NodeList, Exclude: s.Exclude,
		Constraint: s.Constraint, Exclusive: s.Exclusive,
		TimeLimitMs: s.TimeLimit, TimeMinMs: s.TimeMin, BeginMs: s.Begin, Array: s.Array, Hold: s.Hold,
		Requeue: int32(s.Requeue), Nice: s.Nice, Comment: s.Comment, Signal: s.Signal, Dependency: s.Dependency,
		Umask: s.Umask, GetUserEnv: s.GetUserEnv,
	}
	if mine {
		p.Args, p.SubmitLine, p.Export = s.Args, s.SubmitLine, s.Export
		p.ScriptHash, p.EnvHash = s.ScriptHash, s.EnvHash
	}
	for _, o := range s.Rare {
		if p.Rare == nil {
			p.Rare = map[string]string{}
		}
		p.Rare[o.Name] = o.Value
	}
	return p
}

// jobRow is one line of ListJobs: a record, or one waiting task of an array's record.
type jobRow struct {
	j     *state.Job
	task  int64    // >= 0: this waiting task alone
	tasks *job.Set // of the waiting record: those asked for
}

// shower shows the jobs of one moment.
type shower struct {
	view state.Viewer
	now  int64
	rank *ranker
	// billing weights by partition, as far as they were needed
	weights map[string]*accounting.Weights
}

func newShower(view state.Viewer, now int64) *shower {
	return &shower{view: view, now: now, rank: newRanker(view, now)}
}

// job shows one row.
func (w *shower) job(row jobRow, mine, detail bool) *ctldpb.Job {
	view, j := w.view, row.j
	out := &ctldpb.Job{
		JobId: j.ID, ArrayJobId: j.ArrayID, ArrayTaskId: j.ArrayTask, ArrayMaxRunning: j.ArrayLimit,
		Spec: specToAPI(j.Spec, mine), Uid: j.Spec.UID, Gid: j.Spec.GID, User: j.Spec.User, Group: j.Spec.Group,
		State: j.State.String(), Flags: j.Flags.Names(), Priority: j.Priority, Restarts: j.Restarts, Run: j.Run,
		SubmitMs: j.Submit, EligibleMs: j.Eligible, StartMs: j.Start, EndMs: j.End, TimeLimitMs: j.TimeLimit,
		Exit: exitToAPI(j.Exit), DerivedExit: exitToAPI(j.Derived), Partition: j.Partition,
		AdminComment: j.Comment, CancelledBy: j.CancelUID, HasCancelledBy: j.Cancelled,
		FailedNode: j.FailedNode, AccrueMs: j.Eligible,
	}
	if out.Partition == "" {
		out.Partition = j.Spec.Partition
	}
	if row.task >= 0 {
		out.ArrayTaskId = row.task
	} else if j.Waiting != nil {
		out.ArrayPending = job.ArrayText(row.tasks, j.ArrayLimit, 0)
	}
	reason, why := view.Reason(j)
	out.Reason, out.ReasonDetail = string(reason), why
	w.schedule(out, j)
	out.Requeue = j.Spec.Requeue > 0 || j.Spec.Requeue == 0 && view.Config().JobRequeue
	if j.TimeLimit == 0 {
		out.TimeLimitMs = pendingLimit(view, j)
	}
	if j.UserUS != 0 || j.SysUS != 0 || j.MaxRSS != 0 {
		out.Usage = &ctldpb.Usage{UserUs: j.UserUS, SysUs: j.SysUS, MaxRss: j.MaxRSS}
	}
	w.sizes(out, j)
	out.StdOut, out.StdErr, out.StdIn = outputPaths(j, row)
	if detail {
		for _, a := range j.Allocs {
			out.Allocs = append(out.Allocs, allocToAPI(a))
		}
	}
	if len(j.Allocs) > 0 && j.Start > 0 {
		out.Steps = []*ctldpb.Step{{
			StepId: "batch", Name: "batch", State: out.State, StartMs: j.Start, EndMs: ended(j), Exit: out.Exit,
			Usage: out.Usage, NodeList: j.Allocs[0].Node, Tasks: 1,
		}}
	}
	return out
}

// schedule shows what the scheduler has to say of a record: when it starts and where, what it belongs to, what was
// done to make room.
func (w *shower) schedule(out *ctldpb.Job, j *state.Job) {
	if j.State == job.Pending {
		if j.Start == 0 {
			out.StartMs = w.view.ExpectedStart(j)
			out.StartPromised = out.StartMs != 0 && w.view.Promised(j)
		}
		if j.Promise != nil && out.StartMs != 0 {
			names := make([]string, len(j.Promise.Nodes))
			for i := range j.Promise.Nodes {
				names[i] = j.Promise.Nodes[i].Node
			}
			out.SchedNodes = hostlist.Compress(names)
		}
	}
	out.Priority = w.rank.priority(j)
	if j.Stopped > 0 || j.SuspendedAt > 0 {
		end := w.now
		if j.State.Ended() {
			end = j.End
		}
		out.SuspendedMs = max(0, end-j.Start-j.RunTime(end))
	}
	out.PreemptMs, out.CheckpointMs, out.SuspendMs = j.PreemptAt, j.Checkpoint, j.SuspendedAt
	if out.HetJobId, out.HetOffset = j.Het, j.HetOffset; j.Het != 0 {
		if size := j.HetSize(); size > 0 {
			out.HetIds = fmt.Sprintf("%d-%d", j.Het, j.Het+size-1)
		}
	}
	if len(j.Spec.Rare) == 0 {
		return
	}
	out.Licenses, out.Reservation = j.Spec.RareValue(job.OptLicenses), j.Spec.RareValue(job.OptReservation)
	if j.Reservation != "" {
		out.Reservation = j.Reservation
	}
	out.DeadlineMs, _ = strconv.ParseInt(j.Spec.RareValue(job.OptDeadline), 10, 64)
}

func ended(j *state.Job) int64 {
	if j.State.Ended() {
		return j.End
	}
	return 0
}

func exitToAPI(e job.Exit) *ctldpb.ExitStatus {
	return &ctldpb.ExitStatus{Code: e.Code, Signal: e.Signal}
}

// pendingLimit is the limit that a job would get if it started now.
func pendingLimit(view state.Viewer, j *state.Job) int64 {
	if j.Spec.TimeLimit != 0 {
		return j.Spec.TimeLimit
	}
	first, _, _ := strings.Cut(j.Spec.Partition, ",")
	p := view.Partition(first)
	switch {
	case p == nil:
		return 0
	case p.DefaultTime != 0:
		return p.DefaultTime
	}
	return p.MaxTime
}

// sizes fills in what the run holds, or what a waiting job asks for at least.
func (w *shower) sizes(out *ctldpb.Job, j *state.Job) {
	if len(j.Allocs) == 0 {
		r := j.Spec.Request()
		first, _, _ := strings.Cut(j.Spec.Partition, ",")
		p := w.view.Partition(first)
		if p != nil && r.MemPerNode == 0 && r.MemPerCPU == 0 {
			r.MemPerNode = p.DefMemPerNode
			if r.MemPerNode == 0 {
				r.MemPerCPU = p.DefMemPerCPU
			}
		}
		t := r.TRES()
		if p != nil && len(p.BillingWeights) > 0 {
			t.Billing = w.billing(p, accounting.RequestTRES(j.Spec, &r, licensesOf(j.Spec), 0, 0))
		}
		out.NumNodes, out.NumTasks, out.NumCpus, out.MemTotal, out.Tres = r.MinNodes, r.Tasks, r.CPUs, t.Mem, t.String()
		return
	}
	names := make([]string, len(j.Allocs))
	for i, a := range j.Allocs {
		names[i] = a.Node
		out.NumCpus += a.CPUs
		out.NumTasks += a.Tasks
		out.MemTotal += a.Mem
	}
	out.NumNodes = uint32(len(names))
	out.NodeList, out.BatchHost = hostlist.Compress(names), names[0]
	t := job.AllocTRES(j.Allocs)
	if p := w.view.Partition(j.Partition); p != nil && len(p.BillingWeights) > 0 {
		t.Billing = w.billing(p, accounting.AllocTRES(j.Allocs, licensesOf(j.Spec)))
	}
	out.Tres = t.String()
}

// licensesOf are the licenses that a job asks for. They were checked when it came.
func licensesOf(s *job.Spec) []job.License {
	list, _ := job.ParseLicenses(s.RareValue(job.OptLicenses))
	return list
}

// billing is what a vector costs by the weights of a partition.
func (w *shower) billing(p *state.Partition, t accounting.TRES) uint64 {
	weights, known := w.weights[p.Name]
	if !known {
		weights, _ = accounting.ParseWeights(p.BillingWeights) // they were checked when they came
		if w.weights == nil {
			w.weights = map[string]*accounting.Weights{}
		}
		w.weights[p.Name] = weights
	}
	flags := w.view.Config().Sched.PriorityFlags
	has := func(name string) bool {
		return slices.ContainsFunc(flags, func(f string) bool { return strings.EqualFold(f, name) })
	}
	return uint64(max(0, weights.Billing(t, has("MAX_TRES"), has("MAX_TRES_GRES"))))
}

func allocToAPI(a job.NodeAlloc) *ctldpb.NodeAlloc {
	out := &ctldpb.NodeAlloc{Node: a.Node, Cpus: a.CPUs, Mem: a.Mem, Tasks: a.Tasks, CpuIds: a.CPUIDs}
	for _, g := range a.Gres {
		if len(g.Index) > 0 {
			out.GresIndex = append(out.GresIndex, &ctldpb.GresIndex{Name: g.Name, Type: g.Type, Index: g.Index})
		}
	}
	out.Gres = gres.Format(gres.Allocated(a.Gres))
	return out
}

// outputPaths are the files of a job with their patterns filled in.
func outputPaths(j *state.Job, row jobRow) (stdout, stderr, stdin string) {
	s := j.Spec
	v := job.PatternVars{
		JobID: j.ID, ArrayJob: j.ArrayID, Task: j.ArrayTask, StepID: "batch", User: s.User, Name: s.Name,
		Restarts: j.Restarts, IsArray: j.ArrayID != 0,
	}
	if row.task >= 0 {
		v.Task = row.task
	}
	if v.ArrayJob == 0 {
		v.ArrayJob = j.ID
	}
	if len(j.Allocs) > 0 {
		v.Host = j.Allocs[0].Node
	}
	expand := func(pattern string) string {
		p := job.ExpandPattern(pattern, v)
		if p == "" || path.IsAbs(p) || s.WorkDir == "" {
			return p
		}
		return path.Join(s.WorkDir, p)
	}
	out := s.StdOut
	if out == "" {
		out = job.DefaultOutput(v.IsArray)
	}
	stdout = expand(out)
	stderr = stdout
	if s.StdErr != "" {
		stderr = expand(s.StdErr)
	}
	if stdin = expand(s.StdIn); stdin == "" {
		stdin = "/dev/null"
	}
	return stdout, stderr, stdin
}
