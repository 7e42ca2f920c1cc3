package client

import (
	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// SpecToAPI turns a specification into what travels to a controller. The fields that say who the user is
// stay behind: a controller takes them from the caller.
func SpecToAPI(s *job.Spec) *ctldpb.JobSpec {
	out := &ctldpb.JobSpec{
		Name: s.Name, Account: s.Account, Partition: s.Partition, Qos: s.QOS, WorkDir: s.WorkDir,
		StdIn: s.StdIn, StdOut: s.StdOut, StdErr: s.StdErr, OpenMode: s.OpenMode,
		Command: s.Command, SubmitLine: s.SubmitLine, SubmitHost: s.SubmitHost, Args: s.Args,
		Script: s.Script, ScriptHash: s.ScriptHash, EnvHash: s.EnvHash,
		MinNodes: s.MinNodes, MaxNodes: s.MaxNodes, Ntasks: s.NTasks, NtasksPerNode: s.NTasksPerNode,
		CpusPerTask: s.CPUsPerTask, MinCpusPerNode: s.MinCPUsPerNode,
		MemPerNode: s.MemPerNode, MemPerCpu: s.MemPerCPU, MinTmpDisk: s.MinTmpDisk,
		Gres: s.Gres, NodeList: s.NodeList, Exclude: s.Exclude, Constraint: s.Constraint, Exclusive: s.Exclusive,
		TimeLimitMs: s.TimeLimit, TimeMinMs: s.TimeMin, BeginMs: s.Begin, Array: s.Array, Hold: s.Hold,
		Requeue: int32(s.Requeue), Nice: s.Nice, Comment: s.Comment, Signal: s.Signal, Dependency: s.Dependency,
		Umask: s.Umask, Export: s.Export, GetUserEnv: s.GetUserEnv,
	}
	if len(s.Rare) > 0 {
		out.Rare = make(map[string]string, len(s.Rare))
		for _, o := range s.Rare {
			out.Rare[o.Name] = o.Value
		}
	}
	return out
}
