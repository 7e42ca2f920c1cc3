package leader

import (
	"errors"
	"fmt"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// Limits of what an agent says.
const (
	// maxInbox bounds what an agent said and the log has not; beyond it the agent is not listened to.
	maxInbox = 1024
	// maxProposal bounds the commands of one proposal of a session.
	maxProposal = replica.MaxEntryCommands
)

// confirmDelay is how long the word that a run has started waits for something else to go into the
// log: nothing depends on it, and the end of a short run goes with it.
const confirmDelay = 10 * time.Millisecond

// ackDelay is how long acknowledgements wait for something else to go to the agent.
const ackDelay = 20 * time.Millisecond

// saying is one thing an agent said, as a command. ack, if set, is sent when the command is applied.
type saying struct {
	cmd  *logpb.Command
	ack  *nodepb.StepKey
	lazy bool // may wait for confirmDelay
}

// receive takes the agent's messages until the stream ends.
func (s *session) receive() {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.end(err)
			return
		}
		s.heard(nil)
		switch {
		case m.GetHeartbeat() != nil:
			s.heartbeat(m.GetHeartbeat())
		case m.GetLaunched() != nil:
			for _, r := range m.GetLaunched().GetResults() {
				s.launched(r)
			}
		case m.GetReports() != nil:
			for _, r := range m.GetReports().GetReports() {
				s.reported(r)
			}
		case m.GetKilled() != nil:
			for _, r := range m.GetKilled().GetResults() {
				s.killed(r)
			}
		case m.GetOutput() != nil:
			s.chunk(m.GetOutput())
		}
	}
}

// say puts a command on its way; it waits while the inbox is full.
func (s *session) say(what saying) {
	select {
	case s.inbox <- what:
	case <-s.ctx.Done():
	}
}

// heartbeat keeps what the agent says of its node. It is acknowledged whether or not the node can
// take jobs; where there are leases the acknowledgement renews them, see proveLoop.
func (s *session) heartbeat(b *nodepb.Heartbeat) {
	var news bool
	s.heard(func(h *health) {
		news = b.GetProblem() != "" && b.GetProblem() != h.problem
		h.load, h.freeMem, h.steps, h.problem = b.GetLoad(), b.GetFreeMem(), b.GetSteps(), clip(b.GetProblem())
		h.clock(b.GetSentMs(), h.heard)
	})
	switch {
	case news:
		s.drain(b.GetProblem(), agentItself)
	case b.GetProblem() == "":
		s.lift()
	}
	ack := &nodepb.HeartbeatAck{Seq: b.GetSeq(), Term: s.t.number}
	s.mu.Lock()
	if s.l.leases(s.l.Log.View()) || s.t.leased.Load() {
		s.unproven = ack
		s.mu.Unlock()
		select {
		case s.t.prove <- struct{}{}:
		default:
		}
		return
	}
	s.beat, s.proven = ack, false
	s.mu.Unlock()
	s.renewed() // an agent takes every acknowledgement for a renewal: a lease may have been taken out of the configuration just now
	s.wake()
}

// drain takes the node out of use for that reason, unless somebody has done so before.
func (s *session) drain(why string, who *logpb.Caller) {
	if n := s.l.Log.View().Node(s.node); n != nil && n.Flags&node.Drain != 0 {
		return
	}
	s.l.Logger.Warn("draining node", "node", s.node, "reason", why)
	s.say(saying{cmd: &logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{
		Nodes: []string{s.node}, State: "DRAIN", Reason: clip(why), Caller: who}}}})
}

// lift takes back a drain that the agent's own word caused, when it has no complaint any more: a disk
// that was full for a moment needs no administrator. A drain of anybody else's stays.
func (s *session) lift() {
	n := s.l.Log.View().Node(s.node)
	if n == nil || n.Flags&node.Drain == 0 || n.ReasonUser != agentItself.User {
		return
	}
	s.l.Logger.Info("node is well again", "node", s.node, "was", n.Reason)
	s.say(saying{cmd: &logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{
		Nodes: []string{s.node}, State: "UNDRAIN", Caller: agentItself}}}})
}

// controllerItself is who acts when no person does.
var controllerItself = &logpb.Caller{User: "root", Operator: true}

// agentItself is who drains a node that says itself that it can take no jobs.
var agentItself = &logpb.Caller{User: "gnoded", Operator: true}

// launched takes the answer to one launch.
func (s *session) launched(r *nodepb.LaunchResult) {
	if !r.GetOk() && r.GetCause() == nodepb.LaunchResult_CREDENTIAL {
		s.refusedCredential(r)
	} else {
		s.health.answered()
	}
	s.mu.Lock()
	if k := s.runs[keyOf(r.GetKey())]; k != nil {
		k.answered = true
		k.over = !r.GetOk() && r.GetCause() != nodepb.LaunchResult_DUPLICATE
	}
	s.mu.Unlock() // drive looks again when the answer is applied
	if !r.GetOk() {
		s.wake() // nothing may change with the answer
	}
	s.say(saying{cmd: launchedToLog(s.node, r), lazy: r.GetOk()})
}

// refusedCredential counts a launch that the node's launcher did not believe: its clock or its CA
// differs from ours, and it will believe the next one no more. So the node is left alone for a while
// like one that does not answer, or each job in the queue would run against it in turn.
func (s *session) refusedCredential(r *nodepb.LaunchResult) {
	counted, drain := s.health.refused(s.l.instant(), s.l.Config().LaunchTimeout)
	if counted {
		s.l.Logger.Warn("launch credential refused", "node", s.node, "job", r.GetKey().GetJobId(), "error", clip(r.GetError()))
	}
	if drain {
		// Before the refusal itself: the plan that follows it must not take the node again.
		s.drain(fmt.Sprintf("Launch credentials refused %d times in a row: %s", launchStrikes, clip(r.GetError())), controllerItself)
	}
}

// reported takes the end of one step; it is acknowledged once the log holds it.
func (s *session) reported(r *nodepb.Report) {
	s.mu.Lock()
	if k := s.runs[keyOf(r.GetKey())]; k != nil {
		k.answered, k.over = true, true
	}
	s.mu.Unlock()
	s.say(saying{cmd: reportedToLog(s.node, r), ack: r.GetKey()})
}

// killed takes the answer to one kill. What was to be ended and is not there is over.
func (s *session) killed(r *nodepb.KillResult) {
	if r.GetError() != "" {
		s.l.Logger.Warn("kill", "node", s.node, "job", r.GetKey().GetJobId(), "error", clip(r.GetError()))
	}
	s.mu.Lock()
	k := s.runs[keyOf(r.GetKey())]
	gone := k != nil && !r.GetFound() && k.kills > 0 && !k.over
	var why nodepb.Kill_Why
	if gone {
		k.over, why = true, k.why
	}
	var told uint32
	if k != nil && k.kills == 0 && k.signals > 0 {
		if k.signals--; k.signals == 0 {
			told = k.seq
		}
	}
	s.mu.Unlock()
	if told > 0 {
		s.say(saying{cmd: &logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{
			JobId: r.GetKey().GetJobId(), Run: r.GetKey().GetRun(), What: "signals_sent", Seq: told}}}})
	}
	if gone {
		s.say(saying{cmd: reportedToLog(s.node, &nodepb.Report{Key: r.GetKey(), KilledFor: why, EndMs: s.l.Now().UnixMilli()})})
	}
}

// commit proposes what the agent said, in its order and as much at once as has come, and
// acknowledges reports that are applied. Results are not looked at: a refusal by rule is an answer
// to something the state has dealt with already. The turn ends with it.
func (s *session) commit() {
	defer s.endTurn()
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	for {
		batch := s.gather(late)
		if batch == nil || !s.proposeAll(batch) {
			return
		}
	}
}

// gather waits for something to propose; nil: the session has ended. What may wait does so until
// something else comes, at most for confirmDelay.
func (s *session) gather(late *time.Timer) (batch []saying) {
	late.Reset(time.Hour)
	for now := false; len(batch) < maxProposal; {
		var first <-chan time.Time
		if len(batch) > 0 {
			first = late.C
		}
		select {
		case next := <-s.inbox:
			if len(batch) == 0 {
				late.Reset(confirmDelay)
			}
			batch, now = append(batch, next), now || !next.lazy
			if !now || len(s.inbox) > 0 {
				continue
			}
		case <-s.ctx.Done():
			return nil
		case <-first:
		}
		break
	}
	return batch
}

// proposeAll proposes a batch, again while the log is full. When the outcome is not known the
// session ends: the agent reports again to whoever leads.
func (s *session) proposeAll(batch []saying) bool {
	cmds := make([]*logpb.Command, len(batch))
	for i := range batch {
		cmds[i] = batch[i].cmd
	}
	for {
		err := s.l.offer(s.ctx, s.t, cmds)
		if err == nil {
			break
		}
		if !errors.Is(err, replica.ErrBusy) {
			s.turn.doubt = true
			s.end(err)
			return false
		}
		if !s.l.pause(s.ctx, retryDelay) {
			return false
		}
	}
	s.mu.Lock()
	first := len(s.acks) == 0
	for i := range batch {
		if batch[i].ack != nil {
			s.acks = append(s.acks, batch[i].ack)
		}
	}
	wait := first && len(s.acks) > 0
	s.mu.Unlock()
	if wait { // the agent is in no hurry: they go with the next launch
		time.AfterFunc(ackDelay, s.wakeForAcks)
	}
	return true
}
