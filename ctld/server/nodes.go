package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// ListNodes shows nodes, all or those named. Load and free memory are the leader's knowledge; a
// follower answers without them only when a stale answer is asked for.
func (s *Server) ListNodes(ctx context.Context, req *ctldpb.ListNodesRequest) (*ctldpb.ListNodesResponse, error) {
	c, err := visitor(ctx)
	if err != nil {
		return nil, err
	}
	if s.Auth.Policy().Private("nodes") && !c.IsOperator() {
		return nil, private("nodes")
	}
	if n := len(req.Names); n > MaxFilterNames {
		return nil, tooMany("names", "MaxFilterNames", n, MaxFilterNames)
	}
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return nil, err
	}
	out := &ctldpb.ListNodesResponse{Info: info}
	now := max(view.Time(), s.Now().UnixMilli())
	parts := map[string][]string{}
	for p := range view.Partitions() {
		if (p.Hidden || s.Auth.Policy().Private("partitions")) && !c.IsOperator() {
			continue
		}
		for _, n := range p.Nodes {
			parts[n] = append(parts[n], p.Name)
		}
	}
	kept := keptIdle(view)
	show := func(n *state.Node) {
		out.Nodes = append(out.Nodes, s.nodeToAPI(n, parts[n.Name], view.ReservationFlags(n.Name, now)|kept(n)))
	}
	if len(req.Names) == 0 {
		for n := range view.Nodes() {
			show(n)
		}
		return out, nil
	}
	names, err := hostlist.Expand(strings.Join(req.Names, ","))
	if err != nil {
		return nil, refuse("ESLURM_INVALID_NODE_NAME", err.Error())
	}
	for _, name := range names {
		if n := view.Node(name); n != nil {
			show(n)
		} else {
			out.Unknown = append(out.Unknown, name)
		}
	}
	return out, nil
}

// keptIdle gives a function that marks what is idle, all of a node or part of it, and promised to a waiting job.
func keptIdle(view state.Viewer) func(*state.Node) node.Flags {
	promised := map[string]bool{}
	for j := range view.Promises() {
		for i := range j.Promise.Nodes {
			promised[j.Promise.Nodes[i].Node] = true
		}
	}
	return func(n *state.Node) node.Flags {
		if s := n.BaseState(); promised[n.Name] && (s == node.Idle || s == node.Mixed) {
			return node.Planned
		}
		return 0
	}
}

// private refuses what PrivateData hides from all but operators.
func private(kind string) error {
	return refuse("ESLURM_ACCESS_DENIED", "PrivateData="+kind+" shows them to operators only")
}

// nodeToAPI shows a node; more are the flags that it has for a time only, as those of reservations.
func (s *Server) nodeToAPI(n *state.Node, parts []string, more node.Flags) *ctldpb.Node {
	inv := n.Config
	out := &ctldpb.Node{
		Name: n.Name, Hostname: n.Hostname, Addr: n.Addr, State: n.BaseState().String(), Flags: (n.Flags | more).Names(),
		Reason: n.Reason, ReasonMs: n.ReasonTime, ReasonUid: n.ReasonUID, ReasonUser: n.ReasonUser,
		Cpus: inv.CPUs, Boards: inv.Boards, Sockets: inv.Sockets, Cores: inv.CoresPerSocket, Threads: inv.ThreadsPerCore,
		Mem: inv.Mem, TmpDisk: inv.TmpDisk, Features: strings.Join(n.Features, ","), ActiveFeatures: strings.Join(n.Features, ","),
		Gres: inv.Gres, GresUsed: gresUsed(n), Weight: n.Weight, CpusAlloc: n.CPUsAlloc, MemAlloc: n.MemAlloc,
		Version: n.Version, Os: n.Registered.OS, Arch: n.Registered.Arch, BootMs: n.Boot, StartMs: n.AgentStart,
		LastBusyMs: n.LastBusy, Partitions: parts, Comment: n.Comment, CgroupDriver: n.Driver, BootId: n.BootID,
		Jobs: uint32(len(n.Jobs)),
	}
	if s.Telemetry != nil {
		if load, free, seen, ok := s.Telemetry.NodeLoad(n.Name); ok {
			out.Load, out.FreeMem, out.LastSeenMs = load, free, seen
		}
	}
	return out
}

// gresUsed writes what is taken, as scontrol's GresUsed: gpu:a100:2(IDX:0-1),shard:3.
func gresUsed(n *state.Node) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n.GresUsed)) {
		var index []uint32
		for i, used := range n.GresUsed[name] {
			if used {
				index = append(index, uint32(i))
			}
		}
		list := gres.FormatIndex(index)
		if list == "" {
			list = "N/A"
		}
		parts = append(parts, fmt.Sprintf("%s:%d(IDX:%s)", name, len(index), list))
	}
	for _, name := range slices.Sorted(maps.Keys(n.GresCount)) {
		parts = append(parts, fmt.Sprintf("%s:%d", name, n.GresCount[name]))
	}
	return strings.Join(parts, ",")
}

// nodeStates are the states that people may set; those that take a node away want a reason.
var nodeStates = map[string]bool{
	"DOWN": true, "DRAIN": true, "FAIL": true, "RESUME": false, "UNDRAIN": false, "IDLE": false,
}

// UpdateNode changes nodes; all of them or none.
func (s *Server) UpdateNode(ctx context.Context, req *ctldpb.UpdateNodeRequest) (*ctldpb.UpdateNodeResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	view := s.Log.View()
	names, err := s.nodeNames(view, req.Names)
	if err != nil {
		return nil, err
	}
	up := &logpb.NodeUpdate{Nodes: names, Caller: toLogCaller(c), Set: map[string]string{}}
	if n := len(req.Set); n > MaxSet {
		return nil, tooMany("keys", "MaxSet", n, MaxSet)
	}
	for key, value := range req.Set {
		switch strings.ToLower(key) {
		case "state":
			up.State = strings.ToUpper(value)
		case "reason":
			up.Reason = value
		default:
			up.Set[key] = value
		}
	}
	if up.State != "" {
		wants, ok := nodeStates[up.State]
		if !ok {
			return nil, refuse("ESLURM_INVALID_NODE_STATE", fmt.Sprintf("%q is none of %s", up.State, strings.Join(slices.Sorted(maps.Keys(nodeStates)), ", ")))
		}
		if wants && up.Reason == "" {
			return nil, refuse("ESLURM_MISSING_REASON", "State="+up.State+" needs Reason=TEXT")
		}
	}
	res, err := s.Log.Propose(ctx, &logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: up}})
	if err != nil {
		return nil, logError(err)
	}
	s.admit.drop()
	if r := res[0].Refused; r != nil {
		return nil, refusalError(fromFSM(r))
	}
	out := &ctldpb.UpdateNodeResponse{}
	for _, name := range names {
		out.Results = append(out.Results, &ctldpb.JobResult{JobId: name})
	}
	return out, nil
}

// nodeNames unfolds a list of nodes and refuses those that are not there; ALL means every node.
func (s *Server) nodeNames(view state.Viewer, list string) ([]string, error) {
	if strings.EqualFold(list, "all") {
		var names []string
		for n := range view.Nodes() {
			names = append(names, n.Name)
		}
		return names, nil
	}
	names, err := hostlist.Expand(list)
	if err != nil {
		return nil, refuse("ESLURM_INVALID_NODE_NAME", err.Error())
	}
	if len(names) == 0 {
		return nil, refuse("ESLURM_INVALID_NODE_NAME", "no node was named")
	}
	for _, name := range names {
		if view.Node(name) == nil {
			return nil, refuse("ESLURM_INVALID_NODE_NAME", fmt.Sprintf("there is no node %q", name))
		}
	}
	return names, nil
}
