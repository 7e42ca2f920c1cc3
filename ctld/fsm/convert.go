package fsm

import (
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// SpecFromLog gives the specification that a message holds; it shares the message's bytes. A nil
// message gives an empty one.
func SpecFromLog(m *logpb.JobSpec) *job.Spec {
	if m == nil {
		return &job.Spec{}
	}
	s := &job.Spec{
		Name: m.Name, Account: m.Account, Partition: m.Partition, QOS: m.Qos, WorkDir: m.WorkDir,
		StdIn: m.StdIn, StdOut: m.StdOut, StdErr: m.StdErr, OpenMode: m.OpenMode, Command: m.Command,
		SubmitLine: m.SubmitLine, SubmitHost: m.SubmitHost, Args: m.Args,
		Script: m.Script, ScriptHash: m.ScriptHash, EnvHash: m.EnvHash,
		MinNodes: m.MinNodes, MaxNodes: m.MaxNodes, NTasks: m.Ntasks, NTasksPerNode: m.NtasksPerNode,
		CPUsPerTask: m.CpusPerTask, MinCPUsPerNode: m.MinCpusPerNode,
		MemPerNode: m.MemPerNode, MemPerCPU: m.MemPerCpu, MinTmpDisk: m.MinTmpDisk, Gres: m.Gres,
		NodeList: m.NodeList, Exclude: m.Exclude, Constraint: m.Constraint, Exclusive: m.Exclusive,
		TimeLimit: m.TimeLimitMs, TimeMin: m.TimeMinMs, Begin: m.BeginMs, Array: m.Array, Hold: m.Hold,
		Requeue: int8(max(-1, min(m.Requeue, 1))), Nice: m.Nice, Comment: m.Comment, Signal: m.Signal,
		Dependency: m.Dependency, Umask: m.Umask, Export: m.Export, GetUserEnv: m.GetUserEnv,
		UID: m.Uid, GID: m.Gid, Groups: m.Groups, User: m.User, Group: m.Group, Home: m.Home, Shell: m.Shell,
	}
	for i := 0; i+1 < len(m.Rare); i += 2 {
		s.Rare = append(s.Rare, job.Option{Name: m.Rare[i], Value: m.Rare[i+1]})
	}
	return s
}

// SpecToLog is the message of a specification; it shares the specification's bytes.
func SpecToLog(s *job.Spec) *logpb.JobSpec {
	m := new(logpb.JobSpec)
	SpecIntoLog(m, s)
	return m
}

// SpecIntoLog makes m the message of a specification; it shares the specification's bytes. m is a
// new one or one that this function has filled before.
func SpecIntoLog(m *logpb.JobSpec, s *job.Spec) {
	m.Name, m.Account, m.Partition, m.Qos = s.Name, s.Account, s.Partition, s.QOS
	m.WorkDir, m.StdIn, m.StdOut, m.StdErr = s.WorkDir, s.StdIn, s.StdOut, s.StdErr
	m.OpenMode, m.Command, m.SubmitLine, m.SubmitHost = s.OpenMode, s.Command, s.SubmitLine, s.SubmitHost
	m.Args, m.Script, m.ScriptHash, m.EnvHash = s.Args, s.Script, s.ScriptHash, s.EnvHash
	m.MinNodes, m.MaxNodes, m.Ntasks, m.NtasksPerNode = s.MinNodes, s.MaxNodes, s.NTasks, s.NTasksPerNode
	m.CpusPerTask, m.MinCpusPerNode, m.MemPerNode, m.MemPerCpu = s.CPUsPerTask, s.MinCPUsPerNode, s.MemPerNode, s.MemPerCPU
	m.MinTmpDisk, m.Gres, m.NodeList, m.Exclude = s.MinTmpDisk, s.Gres, s.NodeList, s.Exclude
	m.Constraint, m.Exclusive, m.TimeLimitMs, m.TimeMinMs = s.Constraint, s.Exclusive, s.TimeLimit, s.TimeMin
	m.BeginMs, m.Array, m.Hold, m.Requeue = s.Begin, s.Array, s.Hold, int32(s.Requeue)
	m.Nice, m.Comment, m.Signal, m.Dependency = s.Nice, s.Comment, s.Signal, s.Dependency
	m.Umask, m.Export, m.GetUserEnv, m.Uid = s.Umask, s.Export, s.GetUserEnv, s.UID
	m.Gid, m.Groups, m.User, m.Group = s.GID, s.Groups, s.User, s.Group
	m.Home, m.Shell = s.Home, s.Shell
	clear(m.Rare)
	m.Rare = m.Rare[:0]
	for _, o := range s.Rare {
		m.Rare = append(m.Rare, o.Name, o.Value)
	}
}

// StartToLog is one start of a plan's command; it shares the start's lists.
func StartToLog(s *sched.Start) *logpb.Start {
	return &logpb.Start{
		JobId: s.JobID, ArrayTask: s.Task, Run: s.Run, Revision: s.Revision, Partition: s.Partition, TimeLimitMs: s.TimeLimit,
		LeaseMs: s.Lease, Nodes: allocsToLog(s.Nodes), Group: s.Group, Backfilled: s.Backfilled,
	}
}

// EvictToLog is one eviction of a plan's command.
func EvictToLog(e *sched.Evict) *logpb.Evict {
	return &logpb.Evict{JobId: e.JobID, Run: e.Run, How: e.How, By: e.By, GraceMs: e.Grace}
}

// PromiseToLog is one promise of a plan's command, or its end; it shares the promise's lists.
func PromiseToLog(c *sched.PromiseChange) *logpb.Promise {
	m := promiseToLog(c.Promise)
	if m == nil {
		m = &logpb.Promise{}
	}
	m.JobId, m.Revision = c.JobID, c.Revision
	return m
}

func promiseToLog(p *sched.Promise) *logpb.Promise {
	if p == nil {
		return nil
	}
	return &logpb.Promise{StartMs: p.Start, Partition: p.Partition, Nodes: allocsToLog(p.Nodes), TimeLimitMs: p.Limit}
}

func promiseFromLog(m *logpb.Promise) *sched.Promise {
	if m.GetStartMs() == 0 {
		return nil
	}
	return &sched.Promise{Start: m.StartMs, Partition: m.Partition, Nodes: allocsFromLog(m.Nodes), Limit: m.TimeLimitMs}
}

// PlanFromLog is the decision that a command proposes.
func PlanFromLog(m *logpb.Plan) *sched.Decision {
	d := &sched.Decision{Base: m.Base}
	for _, s := range m.Starts {
		d.Starts = append(d.Starts, sched.Start{
			JobID: s.JobId, Task: s.ArrayTask, Run: s.Run, Revision: s.Revision, Partition: s.Partition, TimeLimit: s.TimeLimitMs,
			Lease: s.LeaseMs, Nodes: allocsFromLog(s.Nodes), Group: s.Group, Backfilled: s.Backfilled,
		})
	}
	for _, r := range m.Reasons {
		d.Reasons = append(d.Reasons, sched.Reason{JobID: r.JobId, Reason: job.Reason(r.Reason), Detail: r.Detail, Start: r.StartMs})
	}
	for _, c := range m.Classes {
		d.Classes = append(d.Classes, sched.ClassReason{Class: c.Class, Reason: job.Reason(c.Reason), Detail: c.Detail, Start: c.StartMs, Promised: c.Promised})
	}
	for _, e := range m.Evicts {
		d.Evicts = append(d.Evicts, sched.Evict{JobID: e.JobId, Run: e.Run, How: e.How, By: e.By, Grace: e.GraceMs})
	}
	for _, p := range m.Promises {
		d.Promises = append(d.Promises, sched.PromiseChange{JobID: p.JobId, Revision: p.Revision, Promise: promiseFromLog(p)})
	}
	return d
}

func allocsToLog(list []job.NodeAlloc) []*logpb.NodeAlloc {
	var out []*logpb.NodeAlloc
	for i := range list {
		a := &list[i]
		m := &logpb.NodeAlloc{Node: a.Node, Cpus: a.CPUs, Mem: a.Mem, Tasks: a.Tasks, CpuIds: a.CPUIDs}
		for _, g := range a.Gres {
			m.Gres = append(m.Gres, &logpb.GresAlloc{Name: g.Name, Type: g.Type, Index: g.Index, Count: g.Count})
		}
		out = append(out, m)
	}
	return out
}

func allocsFromLog(list []*logpb.NodeAlloc) []job.NodeAlloc {
	var out []job.NodeAlloc
	for _, m := range list {
		a := job.NodeAlloc{Node: m.Node, CPUs: m.Cpus, Mem: m.Mem, Tasks: m.Tasks, CPUIDs: m.CpuIds}
		for _, g := range m.Gres {
			a.Gres = append(a.Gres, job.GresAlloc{Name: g.Name, Type: g.Type, Index: g.Index, Count: g.Count})
		}
		out = append(out, a)
	}
	return out
}

func launchedFromLog(m *logpb.Launched) *state.Launched {
	return &state.Launched{
		JobID: m.JobId, Run: m.Run, Node: m.Node, OK: m.Ok, Start: m.StartMs, Error: m.Error, Cause: job.Cause(m.Cause),
	}
}

func reportedFromLog(m *logpb.Reported) *state.Reported {
	return &state.Reported{
		JobID: m.JobId, Run: m.Run, Step: m.Step, Node: m.Node, Exit: job.Exit{Code: m.ExitCode, Signal: m.Signal}, OOM: m.Oom,
		Start: m.StartMs, End: m.EndMs, KilledFor: job.Why(m.KilledFor), Error: m.Error, Cause: job.Cause(m.Cause),
		UserUS: m.UserUs, SysUS: m.SysUs, MaxRSS: m.MaxRss,
		StdoutError: m.StdoutError, EpilogError: m.EpilogError, Lost: m.Lost,
	}
}

func registrationFromLog(m *logpb.RegisterNode) *state.Registration {
	r := &state.Registration{
		Node: m.Node, BootID: m.BootId, Version: m.Version, Hostname: m.Hostname, AgentStart: m.AgentStartMs, Boot: m.BootMs,
		Driver: m.CgroupDriver, Addr: m.Addr,
		Inventory: node.Inventory{
			CPUs: m.Cpus, Boards: m.Boards, Sockets: m.Sockets, CoresPerSocket: m.CoresPerSocket, ThreadsPerCore: m.ThreadsPerCore,
			Mem: m.Mem, TmpDisk: m.TmpDisk, Gres: m.Gres, OS: m.Os, Arch: m.Arch, Hostname: m.Hostname,
		},
	}
	for i := range min(len(m.HeldJob), len(m.HeldRun)) {
		r.Held = append(r.Held, state.RunKey{JobID: m.HeldJob[i], Run: m.HeldRun[i]})
	}
	return r
}

func callerFromLog(m *logpb.Caller) state.Caller {
	return state.Caller{UID: m.GetUid(), User: m.GetUser(), Operator: m.GetOperator()}
}

func nodeUpdateFromLog(m *logpb.NodeUpdate) *state.NodeUpdate {
	return &state.NodeUpdate{Nodes: m.Nodes, State: m.State, Reason: m.Reason, Caller: callerFromLog(m.Caller), Set: m.Set}
}

func silenceFromLog(m *logpb.NodeSilent) *state.Silence {
	return &state.Silence{Node: m.Node, Silent: m.Silent, Down: m.Down, Reason: m.Reason}
}

func timerFromLog(m *logpb.JobTimer) *state.JobTimer {
	return &state.JobTimer{JobID: m.JobId, Run: m.Run, What: m.What, Seq: m.Seq}
}

func refFromLog(m *logpb.JobRef) job.Ref {
	r := job.Ref{ID: m.GetJobId()}
	if m.GetHasTasks() {
		r.Tasks = job.NewSet(m.Tasks...)
	}
	return r
}

func refsFromLog(list []*logpb.JobRef) []job.Ref {
	refs := make([]job.Ref, len(list))
	for i, m := range list {
		refs[i] = refFromLog(m)
	}
	return refs
}

func cancelFromLog(m *logpb.Cancel) *state.Cancel {
	c := &state.Cancel{
		Jobs: refsFromLog(m.Jobs), Signal: m.Signal, BatchOnly: m.BatchOnly, Full: m.Full, Caller: callerFromLog(m.Caller),
	}
	for _, s := range m.States {
		c.States = append(c.States, job.State(min(s, 255)))
	}
	return c
}

func controlFromLog(m *logpb.Control) *state.Control {
	return &state.Control{Op: state.Op(m.Op), Jobs: refsFromLog(m.Jobs), Caller: callerFromLog(m.Caller), Delay: m.DelayMs}
}

func jobUpdateFromLog(m *logpb.UpdateJob) *state.JobUpdate {
	return &state.JobUpdate{Job: refFromLog(m.Job), Set: m.Set, Caller: callerFromLog(m.Caller)}
}

func configFromLog(m *logpb.SetConfig) (state.Config, []state.NodeConfig, []state.Partition) {
	cfg := state.Config{
		Cluster: m.Cluster, FirstJobID: m.FirstJobId, MaxJobCount: m.MaxJobCount, MaxArraySize: m.MaxArraySize,
		MaxBatchRequeue: m.MaxBatchRequeue, MaxSubmitPerUser: m.MaxSubmitPerUser, ReturnToService: m.ReturnToService,
		KillWait: m.KillWaitMs, RequeueDelay: m.RequeueDelayMs, OverTimeLimit: m.OverTimeLimitMs,
		JobRequeue: m.JobRequeue, JobFileAppend: m.JobFileAppend, Digest: m.Digest, Sched: schedFromLog(m.Sched),
	}
	nodes := make([]state.NodeConfig, len(m.Nodes))
	for i, n := range m.Nodes {
		nodes[i] = nodeFromLog(n)
	}
	parts := make([]state.Partition, len(m.Partitions))
	for i, p := range m.Partitions {
		parts[i] = partitionFromLog(p)
	}
	return cfg, nodes, parts
}

func nodeFromLog(m *logpb.ConfigNode) state.NodeConfig {
	return state.NodeConfig{
		Name: m.Name, Hostname: m.Hostname, Addr: m.Addr, Features: m.Features, Weight: m.Weight, State: m.State, Reason: m.Reason,
		Inventory: node.Inventory{
			CPUs: m.Cpus, Boards: m.Boards, Sockets: m.Sockets, CoresPerSocket: m.CoresPerSocket, ThreadsPerCore: m.ThreadsPerCore,
			Mem: m.Mem, TmpDisk: m.TmpDisk, Gres: m.Gres,
		},
	}
}

func nodeToLog(n *state.NodeConfig) *logpb.ConfigNode {
	i := &n.Inventory
	return &logpb.ConfigNode{
		Name: n.Name, Hostname: n.Hostname, Addr: n.Addr, Features: n.Features, Weight: n.Weight, State: n.State, Reason: n.Reason,
		Cpus: i.CPUs, Boards: i.Boards, Sockets: i.Sockets, CoresPerSocket: i.CoresPerSocket, ThreadsPerCore: i.ThreadsPerCore,
		Mem: i.Mem, TmpDisk: i.TmpDisk, Gres: i.Gres,
	}
}

func partitionFromLog(m *logpb.ConfigPartition) state.Partition {
	state := m.State
	if state == "" {
		state = "UP"
	}
	return partitions.Partition{
		Name: m.Name, Default: m.IsDefault, Nodes: m.Nodes, State: state, MaxTime: m.MaxTimeMs, DefaultTime: m.DefaultTimeMs,
		MinNodes: m.MinNodes, MaxNodes: m.MaxNodes, PriorityTier: m.PriorityTier, PriorityJob: m.PriorityJobFactor,
		DefMemPerNode: m.DefMemPerNode, DefMemPerCPU: m.DefMemPerCpu, MaxMemPerNode: m.MaxMemPerNode, MaxMemPerCPU: m.MaxMemPerCpu,
		AllowGroups: m.AllowGroups, AllowAccounts: m.AllowAccounts, DenyAccounts: m.DenyAccounts, AllowQOS: m.AllowQos,
		OverSubscribe: m.OverSubscribe, Hidden: m.Hidden, RootOnly: m.RootOnly, SharedFS: m.SharedFs, NoRoot: m.DisableRootJobs,
		JobLease: max(-1, m.JobLeaseMs),
		QOS:      m.Qos, DenyQOS: m.DenyQos, PreemptMode: m.PreemptMode, Grace: m.GraceMs, BillingWeights: m.TresBillingWeights,
		ExclusiveUser: m.ExclusiveUser, LLN: m.Lln, MaxCPUsPerNode: m.MaxCpusPerNode, ReqResv: m.ReqResv,
	}
}

func partitionToLog(p *state.Partition) *logpb.ConfigPartition {
	return &logpb.ConfigPartition{
		Name: p.Name, IsDefault: p.Default, Nodes: p.Nodes, State: p.State, MaxTimeMs: p.MaxTime, DefaultTimeMs: p.DefaultTime,
		MinNodes: p.MinNodes, MaxNodes: p.MaxNodes, PriorityTier: p.PriorityTier, PriorityJobFactor: p.PriorityJob,
		DefMemPerNode: p.DefMemPerNode, DefMemPerCpu: p.DefMemPerCPU, MaxMemPerNode: p.MaxMemPerNode, MaxMemPerCpu: p.MaxMemPerCPU,
		AllowGroups: p.AllowGroups, AllowAccounts: p.AllowAccounts, DenyAccounts: p.DenyAccounts, AllowQos: p.AllowQOS,
		OverSubscribe: p.OverSubscribe, Hidden: p.Hidden, RootOnly: p.RootOnly, SharedFs: p.SharedFS, DisableRootJobs: p.NoRoot,
		JobLeaseMs: p.JobLease,
		Qos:        p.QOS, DenyQos: p.DenyQOS, PreemptMode: p.PreemptMode, GraceMs: p.Grace, TresBillingWeights: p.BillingWeights,
		ExclusiveUser: p.ExclusiveUser, Lln: p.LLN, MaxCpusPerNode: p.MaxCPUsPerNode, ReqResv: p.ReqResv,
	}
}

// ConfigToLog is the command that puts a configuration in force.
func ConfigToLog(cfg *state.Config, nodes []state.NodeConfig, parts []state.Partition) *logpb.SetConfig {
	m := &logpb.SetConfig{
		Cluster: cfg.Cluster, FirstJobId: cfg.FirstJobID, MaxJobCount: cfg.MaxJobCount, MaxArraySize: cfg.MaxArraySize,
		MaxBatchRequeue: cfg.MaxBatchRequeue, MaxSubmitPerUser: cfg.MaxSubmitPerUser, ReturnToService: cfg.ReturnToService,
		KillWaitMs: cfg.KillWait, RequeueDelayMs: cfg.RequeueDelay, OverTimeLimitMs: cfg.OverTimeLimit,
		JobRequeue: cfg.JobRequeue, JobFileAppend: cfg.JobFileAppend, Digest: cfg.Digest,
	}
	if cfg.Sched.Given() {
		m.Sched = schedToLog(&cfg.Sched)
	}
	for i := range nodes {
		m.Nodes = append(m.Nodes, nodeToLog(&nodes[i]))
	}
	for i := range parts {
		m.Partitions = append(m.Partitions, partitionToLog(&parts[i]))
	}
	return m
}

func controllerFromLog(m *logpb.SetController) state.Controller {
	return state.Controller{Name: m.Name, Address: m.Address, Port: m.Port, RaftPort: m.RaftPort, UserPort: m.UserPort}
}

func newJoinTokenFromLog(m *logpb.CreateJoinToken) *state.NewJoinToken {
	return &state.NewJoinToken{
		ID: m.Id, Secret: m.SecretSha256, Role: m.Role, Names: m.Names, Expires: m.ExpiresMs, Uses: m.Uses, Caller: callerFromLog(m.Caller),
	}
}
