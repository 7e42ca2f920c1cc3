package server

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// ListPartitions shows the partitions, all or those named. Hidden ones are among them with their
// flag: the client leaves them out unless it is asked for all, as Slurm's does.
func (s *Server) ListPartitions(ctx context.Context, req *ctldpb.ListPartitionsRequest) (*ctldpb.ListPartitionsResponse, error) {
	c, err := visitor(ctx)
	if err != nil {
		return nil, err
	}
	if s.Auth.Policy().Private("partitions") && !c.IsOperator() {
		return nil, private("partitions")
	}
	if n := len(req.Names); n > MaxFilterNames {
		return nil, tooMany("names", "MaxFilterNames", n, MaxFilterNames)
	}
	view, info, err := s.read(ctx, req.Read)
	if err != nil {
		return nil, err
	}
	out := &ctldpb.ListPartitionsResponse{Info: info}
	if len(req.Names) == 0 {
		for p := range view.Partitions() {
			out.Partitions = append(out.Partitions, partitionToAPI(view, p))
		}
		return out, nil
	}
	for _, name := range req.Names {
		if p := view.Partition(name); p != nil {
			out.Partitions = append(out.Partitions, partitionToAPI(view, p))
		} else {
			out.Unknown = append(out.Unknown, name)
		}
	}
	return out, nil
}

func partitionToAPI(view state.Viewer, p *state.Partition) *ctldpb.Partition {
	out := &ctldpb.Partition{
		Name: p.Name, State: p.State, IsDefault: p.Default, Nodes: hostlist.Compress(p.Nodes),
		MaxTimeMs: p.MaxTime, DefaultTimeMs: p.DefaultTime, MinNodes: p.MinNodes, MaxNodes: p.MaxNodes,
		TotalNodes: uint32(len(p.Nodes)), PriorityTier: p.PriorityTier, PriorityJobFactor: p.PriorityJob,
		DefMemPerNode: p.DefMemPerNode, DefMemPerCpu: p.DefMemPerCPU, MaxMemPerNode: p.MaxMemPerNode, MaxMemPerCpu: p.MaxMemPerCPU,
		AllowGroups: listOrAll(p.AllowGroups), AllowAccounts: listOrAll(p.AllowAccounts), AllowQos: listOrAll(p.AllowQOS),
		OverSubscribe: p.OverSubscribe, Hidden: p.Hidden, RootOnly: p.RootOnly, SharedFs: p.SharedFS,
	}
	out.Other = otherOf(p)
	total := job.TRES{}
	for _, name := range p.Nodes {
		n := view.Node(name)
		if n == nil {
			continue
		}
		total.Nodes++
		total.CPUs += uint64(n.Config.CPUs)
		total.Mem += n.Config.Mem
		items, err := gres.ParseInventory(n.Config.Gres)
		if err == nil {
			total.Gres = gres.Sum(total.Gres, gres.Items(items))
		}
	}
	total.Billing = total.CPUs
	out.TotalCpus, out.Tres = uint32(total.CPUs), total.String()
	return out
}

// otherOf lists what few partitions set, by Slurm's names; nil when p sets nothing of it.
func otherOf(p *state.Partition) map[string]string {
	var other map[string]string
	put := func(key, value string) {
		if value == "" {
			return
		}
		if other == nil {
			other = map[string]string{}
		}
		other[key] = value
	}
	yes := func(on bool) string {
		if on {
			return "YES"
		}
		return ""
	}
	number := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatUint(n, 10)
	}
	put("DenyAccounts", strings.Join(p.DenyAccounts, ","))
	put("DenyQos", strings.Join(p.DenyQOS, ","))
	put("QoS", p.QOS)
	put("PreemptMode", p.PreemptMode)
	put("GraceTime", number(uint64(p.Grace)/1000))
	put("TRESBillingWeights", strings.Join(p.BillingWeights, ","))
	put("ExclusiveUser", yes(p.ExclusiveUser))
	put("LLN", yes(p.LLN))
	put("ReqResv", yes(p.ReqResv))
	put("MaxCPUsPerNode", number(uint64(p.MaxCPUsPerNode)))
	return other
}

func listOrAll(list []string) string {
	if len(list) == 0 {
		return "ALL"
	}
	return strings.Join(list, ",")
}

// UpdatePartition changes one partition until the next change of the file says otherwise.
func (s *Server) UpdatePartition(ctx context.Context, req *ctldpb.UpdatePartitionRequest) (*ctldpb.UpdatePartitionResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(req.Set); n > MaxSet {
		return nil, tooMany("keys", "MaxSet", n, MaxSet)
	}
	if len(req.Set) == 0 {
		return nil, refuse(codeInvalid, "no changes specified")
	}
	if s.Log.View().Partition(req.Name) == nil {
		return nil, refuse("ESLURM_INVALID_PARTITION_NAME", fmt.Sprintf("there is no partition %q", req.Name))
	}
	res, err := s.Log.Propose(ctx, &logpb.Command{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{
		Name: req.Name, Set: req.Set, Caller: toLogCaller(c),
	}}})
	if err != nil {
		return nil, logError(err)
	}
	s.admit.drop()
	if r := res[0].Refused; r != nil {
		return nil, refusalError(fromFSM(r))
	}
	var changed []string
	for k, v := range req.Set {
		changed = append(changed, k+"="+v)
	}
	slices.Sort(changed)
	return &ctldpb.UpdatePartitionResponse{Changed: strings.Join(changed, " ")}, nil
}
