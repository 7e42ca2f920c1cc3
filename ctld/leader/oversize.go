package leader

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// startFrame is what a command adds to the one start in it, at most.
const startFrame = 64

// oversize takes the starts out of a decision that no command can hold, alone or with those that they are
// taken with, and gives the commands that hold their jobs instead, with the limit as the reason: planned
// again and again they would keep their nodes from everybody. The list of d's starts is replaced.
func oversize(d *sched.Decision) (hold []*logpb.Command) {
	var kept []sched.Start
	for list := d.Starts; len(list) > 0; {
		group := startsTogether(list)
		list = list[len(group):]
		n := sizeOf(group)
		if n <= replica.MaxCommand {
			kept = append(kept, group...)
			continue
		}
		nodes := 0
		for i := range group {
			nodes += len(group[i].Nodes)
		}
		for i := range group {
			hold = append(hold, holdFor(d.Base, group[i].JobID,
				fmt.Sprintf("the start on %d nodes takes %d bytes, over MaxCommand=%d: ask for fewer nodes or CPUs", nodes, n, replica.MaxCommand))...)
		}
	}
	d.Starts = kept
	return hold
}

// holdFor gives the commands that hold a job and say why.
func holdFor(base uint64, id uint32, why string) []*logpb.Command {
	return []*logpb.Command{
		{Of: &logpb.Command_Control{Control: &logpb.Control{Op: opHold, Jobs: []*logpb.JobRef{{JobId: id}}, Caller: controllerItself}}},
		{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Base: base, Reasons: []*logpb.ReasonChange{{
			JobId: id, Reason: string(job.ReasonHeldAdmin), Detail: why,
		}}}}},
	}
}

// opHold is Control's operation, as the state numbers it.
const opHold = uint32(state.OpHold)

// sizeOf is what starts that belong together take as one command; where it is far below the limit, a bound of that.
func sizeOf(group []sched.Start) int {
	n := startFrame
	for i := range group {
		n += roughSize(&group[i])
	}
	if n <= replica.MaxCommand {
		return n
	}
	n = startFrame
	for i := range group {
		n += proto.Size(fsm.StartToLog(&group[i])) + partFrame
	}
	return n
}

// roughSize is never less than what a start takes in the log.
func roughSize(s *sched.Start) int {
	n := 2 * startFrame
	for i := range s.Nodes {
		a := &s.Nodes[i]
		n += startFrame + len(a.Node) + 5*len(a.CPUIDs)
		for _, g := range a.Gres {
			n += startFrame + len(g.Name) + len(g.Type) + 5*len(g.Index)
		}
	}
	return n
}
