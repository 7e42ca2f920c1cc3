package fsm_test

import (
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// storyEvery is after how many entries of a golden log a story begins.
const storyEvery = 101

// story is entries that follow each other, and that chance would hardly put in a row: a job that runs in a reservation, is
// suspended and resumed, reports a checkpoint and ends; a heterogeneous job that starts together; one that is killed and runs out of
// memory, one that its node fails; and a join token that is used and revoked.
var story = []func(g *generator) []*logpb.Command{
	func(g *generator) []*logpb.Command {
		return []*logpb.Command{{Of: &logpb.Command_Noop{Noop: &logpb.Noop{}}}}
	}, // entry 0 is the first configuration
	func(g *generator) []*logpb.Command {
		return []*logpb.Command{{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 3}}}, config(),
			register("n1", fmt.Sprint("story", g.now)), register("n2", fmt.Sprint("story", g.now)),
			{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{Nodes: []string{"n1", "n2"}, State: "RESUME", Caller: storyteller}}},
			{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{Name: "p", Set: map[string]string{"State": "UP", "ReqResv": "no", "QOS": "", "OverSubscribe": "NO"}, Caller: storyteller}}},
			{Of: &logpb.Command_ReservationChange{ReservationChange: &logpb.ReservationChange{Verb: "delete", Name: "maint", Caller: storyteller}}},
			{Of: &logpb.Command_ReservationChange{ReservationChange: &logpb.ReservationChange{Verb: "create", Name: "story", Caller: storyteller,
				Set: []string{"starttime", "=", fmt.Sprint(g.now), "duration", "=", "60", "nodes", "=", "n1", "users", "=", "alice", "flags", "=", "IGNORE_JOBS,OVERLAP,PURGE_COMP=01:00:00"}}}}}
	},
	func(g *generator) []*logpb.Command {
		return []*logpb.Command{submit("", &logpb.JobSpec{Name: "story", User: "alice", Uid: 1, TimeLimitMs: 600_000, Requeue: 1, Rare: []string{job.OptReservation, "story"}}),
			submit("", &logpb.JobSpec{Name: "killed", Uid: 1, User: "bob", TimeLimitMs: 60_000}), submit("", &logpb.JobSpec{Name: "unlucky", Uid: 1, User: "bob", TimeLimitMs: 60_000, Requeue: 1}),
			{Of: &logpb.Command_CreateJoinToken{CreateJoinToken: &logpb.CreateJoinToken{Id: fmt.Sprint("story", g.now), SecretSha256: make([]byte, 32), Role: "node", Names: "n[1-3]", ExpiresMs: g.now + 3600_000, Caller: storyteller}}},
			{Of: &logpb.Command_UseJoinToken{UseJoinToken: &logpb.UseJoinToken{Id: fmt.Sprint("story", g.now), SecretSha256: make([]byte, 32), Role: "node", Name: "n1"}}},
			{Of: &logpb.Command_RevokeJoinToken{RevokeJoinToken: &logpb.RevokeJoinToken{Id: fmt.Sprint("story", g.now), Caller: storyteller}}},
			{Of: &logpb.Command_SubmitHet{SubmitHet: &logpb.SubmitHet{Key: fmt.Sprint("story", g.now), Digest: make([]byte, 32),
				Specs: []*logpb.JobSpec{{Name: "pair", User: "bob", Uid: 1, TimeLimitMs: 60_000}, {Name: "pair", User: "bob", Uid: 1, TimeLimitMs: 60_000}}}}}}
	},
	func(g *generator) []*logpb.Command {
		var starts []*logpb.Start
		for _, j := range g.named("story", job.Pending) {
			starts = append(starts, &logpb.Start{JobId: j.ID, ArrayTask: -1, Run: j.Run, Revision: j.Revision, Partition: "p", TimeLimitMs: 600_000, Nodes: []*logpb.NodeAlloc{{Node: "n1", Cpus: 1, Tasks: 1}}})
		}
		for _, j := range append(g.named("killed", job.Pending), g.named("unlucky", job.Pending)...) {
			starts = append(starts, &logpb.Start{JobId: j.ID, ArrayTask: -1, Run: j.Run, Revision: j.Revision, Partition: "p", TimeLimitMs: 60_000, Nodes: []*logpb.NodeAlloc{{Node: "n2", Cpus: 1, Tasks: 1}}})
		}
		for _, j := range g.named("pair", job.Pending) {
			starts = append(starts, &logpb.Start{JobId: j.ID, ArrayTask: -1, Run: j.Run, Revision: j.Revision, Partition: "p", TimeLimitMs: 60_000, Group: j.Het, Backfilled: true,
				Nodes: []*logpb.NodeAlloc{{Node: "n2", Cpus: 1, Tasks: 1}}})
		}
		return []*logpb.Command{{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Starts: starts}}}}
	},
	func(g *generator) (cmds []*logpb.Command) {
		for _, j := range append(g.named("story", job.Running), g.named("pair", job.Running)...) {
			cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{JobId: j.ID, Run: j.Run, Node: j.Allocs[0].Node, StartMs: g.now, Ok: true}}})
		}
		return cmds
	},
	func(g *generator) []*logpb.Command {
		cmds := g.steer("story", job.Running, state.OpSuspend)
		for _, j := range g.named("killed", job.Running) {
			cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Reported{Reported: &logpb.Reported{JobId: j.ID, Run: j.Run, Step: 0, Node: j.Allocs[0].Node, ExitCode: 3, Signal: 9, EndMs: g.now}}},
				&logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{{JobId: j.ID}}, Signal: 10, BatchOnly: true, Caller: storyteller}}},
				&logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{{JobId: j.ID}}, Signal: 9, Caller: storyteller}}})
		}
		for _, j := range g.named("unlucky", job.Running) {
			cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{JobId: j.ID, Run: j.Run, Node: j.Allocs[0].Node, Cause: uint32(job.CauseNode), Error: "no disk"}}})
		}
		return cmds
	},
	func(g *generator) []*logpb.Command {
		cmds := g.steer("story", job.Suspended, state.OpResume)
		for _, j := range g.named("killed", job.Cancelled) {
			if len(j.Allocs) > 0 {
				cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Reported{Reported: &logpb.Reported{JobId: j.ID, Run: j.Run, Step: job.BatchStep, Node: j.Allocs[0].Node, Signal: 9, Oom: true, EndMs: g.now}}})
			}
		}
		return cmds
	},
	func(g *generator) (cmds []*logpb.Command) {
		for _, j := range g.named("story", job.Running) {
			cmds = append(cmds, &logpb.Command{Of: &logpb.Command_UpdateJob{UpdateJob: &logpb.UpdateJob{Job: &logpb.JobRef{JobId: j.ID},
				Set: map[string]string{"Checkpoint": "now"}, Caller: &logpb.Caller{Uid: 1, User: "alice"}}}})
		}
		return cmds
	},
	func(g *generator) (cmds []*logpb.Command) {
		for _, j := range append(g.named("story", job.Running), g.named("pair", job.Running)...) {
			cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Reported{Reported: &logpb.Reported{JobId: j.ID, Run: j.Run, Step: job.BatchStep, Node: j.Allocs[0].Node, EndMs: g.now}}})
		}
		return append(cmds, &logpb.Command{Of: &logpb.Command_UsageTick{UsageTick: &logpb.UsageTick{}}})
	},
}

var storyteller = &logpb.Caller{User: "root", Operator: true}

// named are the records of that name in a state.
func (g *generator) named(name string, s job.State) (list []*state.Job) {
	for j := range g.a.View().Jobs() {
		if j.Spec.Name == name && j.State == s {
			list = append(list, j)
		}
	}
	return list
}

func (g *generator) steer(name string, s job.State, op state.Op) (cmds []*logpb.Command) {
	for _, j := range g.named(name, s) {
		cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: uint32(op), Jobs: []*logpb.JobRef{{JobId: j.ID}}, Caller: storyteller}}})
	}
	return cmds
}
