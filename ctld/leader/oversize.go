package leader

import (
	"fmt"
	"slices"

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

// oversize takes the starts out of a decision that no command can hold, and gives the commands that
// hold their jobs instead, with the limit as the reason: planned again and again they would keep
// their nodes from everybody.
func oversize(d *sched.Decision) (hold []*logpb.Command) {
	d.Starts = slices.DeleteFunc(d.Starts, func(s sched.Start) bool {
		if roughSize(&s) <= replica.MaxCommand {
			return false
		}
		n := proto.Size(fsm.StartToLog(&s)) + startFrame
		if n <= replica.MaxCommand {
			return false
		}
		hold = append(hold,
			&logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: opHold,
				Jobs: []*logpb.JobRef{{JobId: s.JobID}}, Caller: controllerItself}}},
			&logpb.Command{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Base: d.Base, Reasons: []*logpb.ReasonChange{{
				JobId: s.JobID, Reason: string(job.ReasonHeldAdmin),
				Detail: fmt.Sprintf("the start on %d nodes takes %d bytes, over MaxCommand=%d: ask for fewer nodes or CPUs", len(s.Nodes), n, replica.MaxCommand),
			}}}}})
		return true
	})
	return hold
}

// opHold is Control's operation, as the state numbers it.
const opHold = uint32(state.OpHold)

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
