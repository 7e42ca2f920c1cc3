package fsm

import (
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// nodeRecord is a node's record in a snapshot; what runs hold there follows from the jobs.
func nodeRecord(n *state.Node) *logpb.SnapshotNode {
	r := &n.Registered
	return &logpb.SnapshotNode{
		Config: nodeToLog(&state.NodeConfig{Name: n.Name, Hostname: n.Hostname, Addr: n.Addr, Inventory: n.Config, Features: n.Features, Weight: n.Weight}),
		Registered: &logpb.RegisterNode{
			BootId: n.BootID, Version: n.Version, Cpus: r.CPUs, Boards: r.Boards, Sockets: r.Sockets, CoresPerSocket: r.CoresPerSocket,
			ThreadsPerCore: r.ThreadsPerCore, Mem: r.Mem, TmpDisk: r.TmpDisk, Gres: r.Gres, Os: r.OS, Arch: r.Arch, Hostname: r.Hostname,
			AgentStartMs: n.AgentStart, BootMs: n.Boot, CgroupDriver: n.Driver,
		},
		State: uint32(n.State), Flags: uint32(n.Flags), Reason: n.Reason, ReasonMs: n.ReasonTime, ReasonUid: n.ReasonUID, ReasonUser: n.ReasonUser,
		LastBusyMs: n.LastBusy, Comment: n.Comment, Removed: n.Removed,
	}
}

func nodeFromRecord(m *logpb.SnapshotNode) state.Node {
	if m.Config == nil {
		m.Config = &logpb.ConfigNode{}
	}
	if m.Registered == nil {
		m.Registered = &logpb.RegisterNode{}
	}
	c, r := nodeFromLog(m.Config), registrationFromLog(m.Registered)
	return state.Node{
		Name: c.Name, Hostname: c.Hostname, Addr: c.Addr, Config: c.Inventory, Features: c.Features, Weight: c.Weight, Registered: r.Inventory,
		BootID: r.BootID, Version: r.Version, AgentStart: r.AgentStart, Boot: r.Boot, Driver: r.Driver,
		State: node.State(m.State), Flags: node.Flags(m.Flags), Reason: m.Reason, ReasonTime: m.ReasonMs, ReasonUID: m.ReasonUid, ReasonUser: m.ReasonUser,
		LastBusy: m.LastBusyMs, Comment: m.Comment, Removed: m.Removed,
	}
}

// jobRecord is a job's record in a snapshot, and its specification, which is not yet in it. Records of one array that share their specification
// name the first that has it instead of repeating it.
func jobRecord(j *state.Job, owners map[*job.Spec]uint32) (*logpb.SnapshotJob, *job.Spec) {
	m := &logpb.SnapshotJob{
		Id: j.ID, ArrayId: j.ArrayID, ArrayTask: j.ArrayTask, ArrayLimit: j.ArrayLimit,
		State: uint32(j.State), Flags: uint32(j.Flags), Reason: string(j.Reason), ReasonDetail: j.Detail, Priority: j.Priority,
		HeldBy: uint32(j.HeldBy), Run: j.Run, Restarts: j.Restarts, SubmitMs: j.Submit, EligibleMs: j.Eligible, BeginMs: j.Begin,
		StartMs: j.Start, EndMs: j.End, TimeLimitMs: j.TimeLimit, Partition: j.Partition, Allocs: allocsToLog(j.Allocs),
		NodeDone: indexes(j.Done), Launched: indexes(j.Confirmed),
		ExitCode: j.Exit.Code, ExitSignal: j.Exit.Signal, DerivedCode: j.Derived.Code, DerivedSignal: j.Derived.Signal, Oom: j.OOM,
		KillWhy: uint32(j.Kill), KillMs: j.KillAt, KillSignal: j.KillSignal, SignalSeq: j.SignalSeq,
		CancelledBy: j.CancelUID, HasCancelledBy: j.Cancelled, UserUs: j.UserUS, SysUs: j.SysUS, MaxRss: j.MaxRSS,
		FailedNode: j.FailedNode, Avoid: j.Avoid, AdminComment: j.Comment, Key: j.Key,
		Dependency: uint32(j.Dep), DependencyMs: j.EligibleAt, Alone: j.Alone, SubmitSeq: j.SubmitSeq,
		Revision: j.Revision, LeaseMs: j.Lease,
		FixedPriority: j.Fixed, HetId: j.Het, HetOffset: j.HetOffset, SuspendedMs: j.SuspendedAt, StoppedMs: j.Stopped,
		SuspendedByPlan: j.SuspendedByPlan, PreemptMs: j.PreemptAt, PreemptHow: j.PreemptHow, PreemptBy: j.PreemptBy,
		GraceEndMs: j.GraceEnd, CheckpointMs: j.Checkpoint, ChargedMs: j.Charged, PromiseBase: j.PromiseBase, Reservation: j.Reservation,
	}
	m.Promise = promiseToLog(j.Promise)
	if j.Waiting != nil {
		m.ArrayPending, _ = j.Waiting.MarshalBinary() // never fails
	}
	for _, s := range j.Signals {
		m.Signals = append(m.Signals, &logpb.SnapshotSignal{Seq: s.Seq, Number: s.Number, BatchOnly: s.BatchOnly, Full: s.Full})
	}
	if owner, known := owners[j.Spec]; known {
		m.SpecOf = owner
		return m, nil
	}
	if j.ArrayID != 0 {
		owners[j.Spec] = j.ID
	}
	return m, j.Spec
}

// indexes lists where list is true.
func indexes(list []bool) []uint32 {
	var out []uint32
	for i, on := range list {
		if on {
			out = append(out, uint32(i))
		}
	}
	return out
}

// flagsAt is the reverse of indexes, for a list of n.
func flagsAt(n int, at []uint32) ([]bool, error) {
	if n == 0 && len(at) == 0 {
		return nil, nil
	}
	list := make([]bool, n)
	for _, i := range at {
		if int(i) >= n {
			return nil, fmt.Errorf("node %d of %d", i, n)
		}
		list[i] = true
	}
	return list, nil
}

func jobFromRecord(re *state.Restorer, m *logpb.SnapshotJob) (*state.Job, error) {
	j := &state.Job{
		ID: m.Id, ArrayID: m.ArrayId, ArrayTask: m.ArrayTask, ArrayLimit: m.ArrayLimit,
		State: job.State(m.State), Flags: job.Flags(m.Flags), Reason: job.Reason(m.Reason), Detail: m.ReasonDetail, Priority: m.Priority,
		HeldBy: state.Hold(m.HeldBy), Run: m.Run, Restarts: m.Restarts, Submit: m.SubmitMs, Eligible: m.EligibleMs, Begin: m.BeginMs,
		Start: m.StartMs, End: m.EndMs, TimeLimit: m.TimeLimitMs, Partition: m.Partition, Allocs: allocsFromLog(m.Allocs), Launched: uint32(len(m.Launched)),
		Exit: job.Exit{Code: m.ExitCode, Signal: m.ExitSignal}, Derived: job.Exit{Code: m.DerivedCode, Signal: m.DerivedSignal}, OOM: m.Oom,
		Kill: job.Why(m.KillWhy), KillAt: m.KillMs, KillSignal: m.KillSignal, SignalSeq: m.SignalSeq,
		CancelUID: m.CancelledBy, Cancelled: m.HasCancelledBy, UserUS: m.UserUs, SysUS: m.SysUs, MaxRSS: m.MaxRss,
		FailedNode: m.FailedNode, Avoid: m.Avoid, Comment: m.AdminComment, Key: m.Key,
		Dep: state.DepState(m.Dependency), EligibleAt: m.DependencyMs, Alone: m.Alone, SubmitSeq: m.SubmitSeq,
		Revision: m.Revision, Lease: m.LeaseMs,
		Fixed: m.FixedPriority, Het: m.HetId, HetOffset: m.HetOffset, SuspendedAt: m.SuspendedMs, Stopped: m.StoppedMs,
		SuspendedByPlan: m.SuspendedByPlan, PreemptAt: m.PreemptMs, PreemptHow: m.PreemptHow, PreemptBy: m.PreemptBy,
		GraceEnd: m.GraceEndMs, Checkpoint: m.CheckpointMs, Charged: m.ChargedMs, PromiseBase: m.PromiseBase, Reservation: m.Reservation,
	}
	j.Promise = promiseFromLog(m.Promise)
	for _, s := range m.Signals {
		j.Signals = append(j.Signals, state.Signal{Seq: s.Seq, Number: s.Number, BatchOnly: s.BatchOnly, Full: s.Full})
	}
	var err error
	if j.Done, err = flagsAt(len(j.Allocs), m.NodeDone); err != nil {
		return nil, fmt.Errorf("job %d, done: %w", m.Id, err)
	}
	if j.Confirmed, err = flagsAt(len(j.Allocs), m.Launched); err != nil {
		return nil, fmt.Errorf("job %d, launched: %w", m.Id, err)
	}
	if len(m.ArrayPending) > 0 {
		if j.Waiting, err = job.UnmarshalSet(m.ArrayPending); err != nil {
			return nil, fmt.Errorf("job %d: %w", m.Id, err)
		}
	}
	if m.SpecOf == 0 {
		j.Spec = SpecFromLog(m.Spec)
		return j, nil
	}
	owner := re.Record(m.SpecOf)
	if owner == nil {
		return nil, fmt.Errorf("job %d: its specification is job %d's, which did not come before", m.Id, m.SpecOf)
	}
	j.Spec = owner.Spec
	return j, nil
}

func controllerToLog(c *state.Controller) *logpb.SetController {
	return &logpb.SetController{Name: c.Name, Address: c.Address, Port: c.Port, RaftPort: c.RaftPort, UserPort: c.UserPort}
}

// joinTokenRecord is a join token's record in a snapshot.
func joinTokenRecord(k *state.JoinToken) *logpb.SnapshotJoinToken {
	return &logpb.SnapshotJoinToken{
		Token: &logpb.CreateJoinToken{
			Id: k.ID, SecretSha256: k.Secret[:], Role: k.Role, Names: k.Names, ExpiresMs: k.Expires, Uses: k.Uses,
			Caller: &logpb.Caller{Uid: k.UID, User: k.User},
		},
		UsedBy: k.UsedBy, CreatedMs: k.Created, Revoked: k.Revoked,
	}
}

func joinTokenFromRecord(m *logpb.SnapshotJoinToken) (state.JoinToken, error) {
	t := m.GetToken()
	k := state.JoinToken{
		ID: t.GetId(), Role: t.GetRole(), Names: t.GetNames(), Expires: t.GetExpiresMs(), Created: m.CreatedMs, Uses: t.GetUses(),
		UsedBy: m.UsedBy, Revoked: m.Revoked, UID: t.GetCaller().GetUid(), User: t.GetCaller().GetUser(),
	}
	if n := copy(k.Secret[:], t.GetSecretSha256()); n != len(k.Secret) || n != len(t.GetSecretSha256()) {
		return k, fmt.Errorf("join token %q: the hash of its secret has %d bytes", k.ID, len(t.GetSecretSha256()))
	}
	return k, nil
}
