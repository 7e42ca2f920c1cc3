package render

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// DefaultBitmap is how much of an array's waiting tasks is shown; SLURM_BITSTR_LEN changes it.
const DefaultBitmap = 64

// shownFlags stand in place of the base state, the first that is set, in Slurm's order.
var shownFlags = []struct{ long, short string }{
	{"COMPLETING", "CG"}, {"STAGE_OUT", "SO"}, {"CONFIGURING", "CF"}, {"RESIZING", "RS"}, {"REQUEUED", "RQ"},
	{"REQUEUE_HOLD", "RH"}, {"SPECIAL_EXIT", "SE"}, {"STOPPED", "ST"}, {"REVOKED", "RV"}, {"SIGNALING", "SI"},
}

// State gives the long and the compact name of a job's state.
func State(j *ctldpb.Job) (long, short string) {
	for _, f := range shownFlags {
		if slices.Contains(j.Flags, f.long) {
			return f.long, f.short
		}
	}
	s, _, ok := job.ParseState(j.State)
	if !ok {
		return j.State, j.State
	}
	return s.String(), s.Short()
}

// BaseState is the state without flags.
func BaseState(j *ctldpb.Job) job.State {
	s, _, _ := job.ParseState(j.State)
	return s
}

// IsArrayRest tells whether the record stands for an array's waiting tasks.
func IsArrayRest(j *ctldpb.Job) bool {
	return j.ArrayJobId != 0 && j.ArrayTaskId < 0 && j.ArrayPending != ""
}

// IsTask tells whether the record is one task of an array.
func IsTask(j *ctldpb.Job) bool { return j.ArrayJobId != 0 && j.ArrayTaskId >= 0 }

// JobID is how a job is called: 12, 12_3, 12_[4-9%2], 12+1 for a component. bitmap cuts the list of tasks, 0 = whole.
func JobID(j *ctldpb.Job, bitmap int) string {
	switch {
	case j.HetJobId != 0:
		return fmt.Sprintf("%d+%d", j.HetJobId, j.HetOffset)
	case IsTask(j):
		return fmt.Sprintf("%d_%d", j.ArrayJobId, j.ArrayTaskId)
	case IsArrayRest(j):
		return fmt.Sprintf("%d_[%s]", j.ArrayJobId, ArrayTasks(j, bitmap))
	}
	return fmt.Sprint(j.JobId)
}

// ArrayTasks is the list of waiting tasks without brackets.
func ArrayTasks(j *ctldpb.Job, bitmap int) string {
	list := strings.TrimSuffix(strings.TrimPrefix(j.ArrayPending, "["), "]")
	if bitmap > 0 && len(list) > bitmap {
		list = list[:bitmap]
		if i := strings.LastIndexByte(list, ','); i > 0 {
			list = list[:i+1]
		}
		list += "..."
	}
	return list
}

// PlainID turns 12+1, as components are shown, into the id of that record: their ids follow each other. Others stay.
func PlainID(id string) string {
	first, offset, is := strings.Cut(id, "+")
	n, err := strconv.ParseUint(first, 10, 32)
	k, err2 := strconv.ParseUint(offset, 10, 31)
	if !is || err != nil || err2 != nil || n+k > 1<<32-1 {
		return id
	}
	return strconv.FormatUint(n+k, 10)
}

// Dependency is what a waiting job still waits for; "" when it waits for nothing any more. Of a single one it is told how
// it stands.
func Dependency(j *ctldpb.Job) string {
	d := j.Spec.GetDependency()
	delayed := j.Reason == string(job.ReasonBeginTime) && strings.Contains(d, "+") && j.EligibleMs > j.Spec.GetBeginMs() // after:26+1
	switch {
	case d == "" || BaseState(j) != job.Pending || j.EligibleMs != 0 && !delayed && j.Reason != "DependencyNeverSatisfied":
		return ""
	case strings.ContainsAny(d, ",?") || strings.Count(d, ":") > 1:
		return d
	case j.Reason == "DependencyNeverSatisfied":
		return d + "(failed)"
	}
	return d + "(unfulfilled)"
}

// Reservation is the one that the job runs in, or those that it asks for.
func Reservation(j *ctldpb.Job) string { return Or(j.Reservation, Rare(j, job.OptReservation)) }

// Licenses are what the job holds or asks for, as name:count.
func Licenses(j *ctldpb.Job) string { return Or(j.Licenses, Rare(j, job.OptLicenses)) }

// Deadline is when the job must have ended, Unix ms; 0 = none.
func Deadline(j *ctldpb.Job) int64 {
	if j.DeadlineMs != 0 {
		return j.DeadlineMs
	}
	ms, _ := strconv.ParseInt(Rare(j, job.OptDeadline), 10, 64) // "" is 0
	return ms
}

// Elapsed is how long the job ran so far, or in all, in milliseconds.
func Elapsed(j *ctldpb.Job, now int64) int64 {
	if j.StartMs == 0 || BaseState(j) == job.Pending {
		return 0
	}
	end := now
	if BaseState(j).Ended() {
		end = j.EndMs
	}
	return max(0, end-j.StartMs-j.SuspendedMs)
}

// NodesOrReason is the nodes of a job that has some to show, else its reason in parentheses.
func NodesOrReason(j *ctldpb.Job) string {
	switch BaseState(j) {
	case job.Pending, job.Timeout, job.OutOfMemory, job.Deadline, job.Failed:
		return "(" + Or(j.Reason, "None") + ")"
	}
	return j.NodeList
}

// Or is s, or none when s is empty.
func Or(s, none string) string {
	if s == "" {
		return none
	}
	return s
}

// Null is s, or "(null)" when s is empty.
func Null(s string) string { return Or(s, "(null)") }

// Exit is "code:signal".
func Exit(e *ctldpb.ExitStatus) string { return fmt.Sprintf("%d:%d", e.GetCode(), e.GetSignal()) }

// Account is the account in the spec; the job message has none of its own.
func Account(j *ctldpb.Job) string { return j.Spec.GetAccount() }

// QOS is the job's QOS, Slurm's default one when none was asked for.
func QOS(j *ctldpb.Job) string { return Or(j.Spec.GetQos(), "normal") }

// Rare gives an option that has no field of its own.
func Rare(j *ctldpb.Job, name string) string { return j.Spec.GetRare()[name] }

// MinMemory is the memory asked for, per node or per CPU, as squeue prints it.
func MinMemory(s *ctldpb.JobSpec) string {
	switch {
	case s.GetMemPerCpu() > 0:
		return job.FormatMem(s.GetMemPerCpu())
	case s.GetMemPerNode() > 0:
		return job.FormatMem(s.GetMemPerNode())
	}
	return "0"
}

// TresPerNode is the generic resources of each node in the words of Slurm 22.05: "gres:gpu:2".
func TresPerNode(s *ctldpb.JobSpec) string {
	if s.GetGres() == "" {
		return ""
	}
	parts := strings.Split(s.GetGres(), ",")
	for i, p := range parts {
		parts[i] = "gres:" + p
	}
	return strings.Join(parts, ",")
}

// Nodes is how many nodes the job has, or asks for at least.
func Nodes(j *ctldpb.Job) uint32 {
	if j.NumNodes > 0 {
		return j.NumNodes
	}
	return max(1, j.Spec.GetMinNodes())
}

// CPUs is how many CPUs the job has, or asks for.
func CPUs(j *ctldpb.Job) uint32 {
	if j.NumCpus > 0 {
		return j.NumCpus
	}
	s := j.Spec
	tasks := max(s.GetNtasks(), s.GetNtasksPerNode()*max(1, s.GetMinNodes()), Nodes(j))
	return tasks * max(1, s.GetCpusPerTask())
}

// Tasks is how many tasks the job has, or asks for.
func Tasks(j *ctldpb.Job) uint32 {
	if j.NumTasks > 0 {
		return j.NumTasks
	}
	return max(j.Spec.GetNtasks(), j.Spec.GetNtasksPerNode()*Nodes(j), Nodes(j))
}
