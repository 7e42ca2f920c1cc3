package leader

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// maxText bounds what an agent's words take in the log, bytes.
const maxText = 1024

func clip(s string) string {
	if len(s) > maxText {
		return strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}

func launchedToLog(node string, r *nodepb.LaunchResult) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{
		JobId: r.GetKey().GetJobId(), Run: r.GetKey().GetRun(), Node: node, Ok: r.GetOk(), StartMs: r.GetStartMs(),
		Error: clip(r.GetError()), Cause: uint32(r.GetCause()),
	}}}
}

// reportedToLog takes the node from the session, not from the report: a node speaks only for itself.
func reportedToLog(node string, r *nodepb.Report) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_Reported{Reported: &logpb.Reported{
		JobId: r.GetKey().GetJobId(), Run: r.GetKey().GetRun(), Step: r.GetKey().GetStep(), Node: node,
		ExitCode: r.GetExitCode(), Signal: r.GetSignal(), Oom: r.GetOom(), StartMs: r.GetStartMs(), EndMs: r.GetEndMs(),
		KilledFor: uint32(r.GetKilledFor()), Error: clip(r.GetError()), Cause: uint32(r.GetCause()),
		UserUs: r.GetUserUs(), SysUs: r.GetSysUs(), MaxRss: r.GetMaxRss(),
		StdoutError: clip(r.GetStdoutError()), EpilogError: clip(r.GetEpilogError()), Lost: r.GetLost(),
	}}}
}

func registerToLog(h *nodepb.Hello, addr string) *logpb.RegisterNode {
	inv := h.GetInventory()
	out := &logpb.RegisterNode{
		Node: h.GetNode(), BootId: h.GetBootId(), Version: clip(h.GetVersion()),
		Cpus: inv.GetCpus(), Boards: inv.GetBoards(), Sockets: inv.GetSockets(), CoresPerSocket: inv.GetCoresPerSocket(),
		ThreadsPerCore: inv.GetThreadsPerCore(), Mem: inv.GetMem(), TmpDisk: inv.GetTmpDisk(), Gres: clip(inv.GetGres()),
		Os: clip(inv.GetOs()), Arch: clip(inv.GetArch()), Hostname: clip(inv.GetHostname()),
		AgentStartMs: h.GetAgentStartMs(), BootMs: h.GetBootMs(), CgroupDriver: clip(h.GetCgroupDriver()), Addr: addr,
	}
	for _, k := range h.GetHeld() {
		out.HeldJob = append(out.HeldJob, k.GetJobId())
		out.HeldRun = append(out.HeldRun, k.GetRun())
	}
	return out
}

// SetConfig is the command that puts what the state needs of a configuration into it.
func SetConfig(c *conf.Config) *logpb.SetConfig {
	out := &logpb.SetConfig{
		FirstJobId: c.FirstJobId, MaxJobCount: c.MaxJobCount, MaxArraySize: c.MaxArraySize,
		KillWaitMs: c.KillWait.Milliseconds(), JobRequeue: c.JobRequeue, MaxBatchRequeue: c.MaxBatchRequeue,
		Cluster: c.ClusterName, ReturnToService: c.ReturnToService, RequeueDelayMs: c.RequeueDelay.Milliseconds(),
		OverTimeLimitMs: c.OverTimeLimit.Milliseconds(), JobFileAppend: c.JobFileAppend, Digest: c.Digest(),
		MaxSubmitPerUser: c.MaxSubmitPerUser, Sched: schedToLog(c),
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		out.Nodes = append(out.Nodes, &logpb.ConfigNode{
			Name: n.Name, Hostname: n.Hostname, Addr: n.Address, Cpus: n.CPUs, Boards: n.Boards, Sockets: n.Sockets,
			CoresPerSocket: n.CoresPerSocket, ThreadsPerCore: n.ThreadsPerCore, Mem: n.RealMemory, TmpDisk: n.TmpDisk,
			Gres: n.Gres, Features: n.Features, Weight: n.Weight, State: n.State, Reason: n.Reason,
		})
	}
	for i := range c.Partitions {
		out.Partitions = append(out.Partitions, partitionToLog(&c.Partitions[i]))
	}
	return out
}

func partitionToLog(p *conf.Partition) *logpb.ConfigPartition {
	return &logpb.ConfigPartition{
		Name: p.Name, IsDefault: p.Default, Nodes: p.Nodes, State: p.State, MaxTimeMs: p.MaxTime,
		DefaultTimeMs: p.DefaultTime, MinNodes: p.MinNodes, MaxNodes: p.MaxNodes, PriorityTier: p.PriorityTier,
		PriorityJobFactor: p.PriorityJobFactor, DefMemPerNode: p.DefMemPerNode, DefMemPerCpu: p.DefMemPerCPU,
		MaxMemPerNode: p.MaxMemPerNode, MaxMemPerCpu: p.MaxMemPerCPU, AllowGroups: p.AllowGroups,
		AllowAccounts: p.AllowAccounts, DenyAccounts: p.DenyAccounts, AllowQos: p.AllowQOS,
		OverSubscribe: p.OverSubscribe, Hidden: p.Hidden, RootOnly: p.RootOnly, SharedFs: p.SharedFS,
		DisableRootJobs: p.DisableRootJobs, JobLeaseMs: int64(p.JobLease),
		Qos: p.QOS, DenyQos: p.DenyQOS, PreemptMode: preemptMode(p.PreemptMode), GraceMs: p.GraceTime.Milliseconds(),
		TresBillingWeights: p.TRESBillingWeights, ExclusiveUser: p.ExclusiveUser, Lln: p.LLN,
		MaxCpusPerNode: p.MaxCPUsPerNode, ReqResv: p.ReqResv,
	}
}

// schedToLog is what priority, limits, preemption and placement go by. Slurm's plugin prefixes go.
func schedToLog(c *conf.Config) *logpb.ConfigSched {
	out := &logpb.ConfigSched{
		PriorityType: c.PriorityType, WeightAge: c.PriorityWeightAge, WeightAssoc: c.PriorityWeightAssoc,
		WeightFairShare: c.PriorityWeightFairshare, WeightJobSize: c.PriorityWeightJobSize, WeightPartition: c.PriorityWeightPartition,
		WeightQos: c.PriorityWeightQOS, WeightTres: c.PriorityWeightTRES, WeightBid: c.PriorityWeightBid,
		MaxAgeMs: c.PriorityMaxAge, HalfLifeMs: c.PriorityDecayHalfLife, CalcPeriodMs: c.PriorityCalcPeriod,
		FavorSmall: c.PriorityFavorSmall, PriorityFlags: c.PriorityFlags, UsageReset: c.PriorityUsageResetPeriod,
		Dampening: c.FairShareDampeningFactor, Enforce: c.AccountingStorageEnforce,
		PreemptType: strings.TrimPrefix(c.PreemptType, "preempt/"), PreemptMode: clusterPreemptMode(c.PreemptMode),
		PreemptExemptMs: max(c.PreemptExemptTime, 0), PreemptParameters: c.PreemptParameters, SchedulerParameters: c.SchedulerParameters,
		Licenses: c.Licenses, DependencyParameters: c.DependencyParameters, Topology: strings.TrimPrefix(c.TopologyPlugin, "topology/"),
	}
	switch out.PriorityType {
	case "priority/multifactor":
		out.PriorityType = "multifactor"
	case "priority/basic":
		out.PriorityType = "fcfs"
	}
	for i := range c.Switches {
		s := &c.Switches[i]
		below, _ := hostlist.Expand(s.Switches) // checked when the file was loaded
		nodes, _ := hostlist.Expand(s.Nodes)
		out.Switches = append(out.Switches, &logpb.ConfigSwitch{Name: s.Name, Switches: below, Nodes: nodes})
	}
	for _, size := range c.BlockSizes {
		n, _ := strconv.ParseUint(size, 10, 16)
		out.BlockSizes = append(out.BlockSizes, uint32(n))
	}
	return out
}

// clusterPreemptMode is the cluster's: what happens, and with WITHIN that jobs of one QOS may take from each other.
func clusterPreemptMode(words []string) string {
	mode := preemptMode(words)
	if slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, "WITHIN") }) {
		return mode + ",WITHIN"
	}
	return mode
}

// preemptMode is the one word of a list that says what happens; GANG, WITHIN and PRIORITY only qualify it.
func preemptMode(words []string) string {
	for _, w := range words {
		switch w = strings.ToUpper(w); w {
		case "OFF", "CANCEL", "REQUEUE", "SUSPEND":
			return w
		}
	}
	return ""
}
