package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/fault"
)

const (
	// missedAcks is after how many intervals without a heartbeat's answer a session is dead.
	missedAcks    = 3
	minHeartbeat  = 100 * time.Millisecond
	maxHeartbeat  = time.Minute
	askedRing     = 16 // heartbeats whose answer may still renew a lease
	maxPrologWait = time.Hour
)

var (
	errDead     = errors.New("no answer to heartbeats")
	errNoLeader = errors.New("controller does not lead")
	errNews     = errors.New("the launcher has told what this node can enforce")
)

// notLeader is a controller's word on who leads.
type notLeader struct{ name, address string }

func (n *notLeader) Error() string { return "controller does not lead; " + n.name + " does" }

// session is one stream with one controller.
type session struct {
	a      *Agent
	number uint64 // of this agent's sessions
	stream grpc.BidiStreamingClient[nodepb.AgentMessage, nodepb.ControllerMessage]
	every  time.Duration

	nextBeat time.Time

	mu      sync.Mutex
	seq     uint64
	asked   [askedRing]int64 // CLOCK_BOOTTIME when heartbeat seq%askedRing was sent
	lastAck time.Time
}

// causeOf prefers our own reason for ending a stream to the status that came of it.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

func (a *Agent) hello() *nodepb.Hello {
	held := a.held()
	a.mu.Lock()
	defer a.mu.Unlock()
	return &nodepb.Hello{
		Node: a.cfg.Node, Cluster: a.cfg.Cluster, Version: a.cfg.Version,
		BootId: a.cfg.BootID, BootMs: a.cfg.BootMS, AgentStartMs: a.startMS,
		Inventory: inventoryToPB(a.cfg.Inventory), Held: held,
		CgroupDriver: a.driver, LimitsMissing: a.missing, NowMs: a.d.Now().UnixMilli(),
	}
}

// applyWelcome takes the leader's settings within bounds and gives the heartbeat's interval.
func (a *Agent) applyWelcome(w *nodepb.Welcome) time.Duration {
	if len(w.GetControllers()) > 0 {
		a.learn(w.GetControllers())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ms := func(n int64, low, high time.Duration) time.Duration {
		return min(max(time.Duration(min(n, int64(time.Hour/time.Millisecond)*24))*time.Millisecond, low), high)
	}
	s := &a.settings
	if w.GetHeartbeatMs() > 0 {
		s.heartbeat = ms(w.GetHeartbeatMs(), minHeartbeat, maxHeartbeat)
	}
	if w.GetKillWaitMs() > 0 {
		s.killWait = ms(w.GetKillWaitMs(), 0, 24*time.Hour)
	}
	if w.GetPrologTimeoutMs() > 0 {
		s.prolog = ms(w.GetPrologTimeoutMs(), 0, maxPrologWait)
	}
	return s.heartbeat
}

// run sends and receives until the stream ends. Receiving never waits for anything but the stream.
func (s *session) run(ctx, life context.Context, cancel context.CancelCauseFunc) error {
	s.a.reportAll()
	received := make(chan struct{})
	go func() {
		defer close(received)
		cancel(s.receive(life))
	}()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.minds(ctx, cancel)
	}()
	err := s.send(ctx)
	cancel(err)
	<-received
	<-watched
	return context.Cause(ctx)
}

// minds ends the session when heartbeats are not answered; a send that is stuck ends with it.
func (s *session) minds(ctx context.Context, cancel context.CancelCauseFunc) {
	for sleep(ctx, s.every/2) {
		s.mu.Lock()
		silent := instant().Sub(s.lastAck)
		s.mu.Unlock()
		if silent > missedAcks*s.every {
			cancel(errDead)
			return
		}
	}
}

func (s *session) send(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		if msg := s.next(); msg != nil {
			if err := s.stream.Send(msg); err != nil {
				return nil // the receiving side has the reason
			}
			continue
		}
		timer.Reset(max(s.nextBeat.Sub(instant()), 0))
		select {
		case <-ctx.Done():
		case <-s.a.out.wake:
		case <-timer.C:
		}
	}
	return nil
}

// next picks what goes out first: the heartbeat when it is due, then answers, reports, output.
func (s *session) next() *nodepb.AgentMessage {
	out := s.a.out
	if now := instant(); out.due.Swap(false) || !now.Before(s.nextBeat) {
		s.nextBeat = now.Add(s.every)
		return &nodepb.AgentMessage{Of: &nodepb.AgentMessage_Heartbeat{Heartbeat: s.heartbeat()}}
	}
	if list := out.takeResults(); len(list) > 0 {
		return &nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: &nodepb.LaunchResults{Results: list}}}
	}
	if list := out.takeKilled(); len(list) > 0 {
		return &nodepb.AgentMessage{Of: &nodepb.AgentMessage_Killed{Killed: &nodepb.KillResults{Results: list}}}
	}
	for keys := out.takeReports(); len(keys) > 0; keys = out.takeReports() {
		if list := s.a.reports(keys); len(list) > 0 {
			_ = fault.Point("agent.before-report")
			return &nodepb.AgentMessage{Of: &nodepb.AgentMessage_Reports{Reports: &nodepb.Reports{Reports: list}}}
		}
	}
	c, taken := out.takeChunk(s.number)
	for range taken {
		give(s.a.reads)
	}
	if c != nil {
		return &nodepb.AgentMessage{Of: &nodepb.AgentMessage_Output{Output: c}}
	}
	return nil
}

func (s *session) heartbeat() *nodepb.Heartbeat {
	load, free := s.a.d.Sample()
	boot := s.a.d.Boottime()
	s.mu.Lock()
	s.seq++
	seq := s.seq
	s.asked[seq%askedRing] = boot
	s.mu.Unlock()
	return &nodepb.Heartbeat{
		SentMs: s.a.d.Now().UnixMilli(), SentBoottimeMs: boot, Seq: seq, Load: load, FreeMem: free,
		Problem: s.a.problem.get(), Steps: s.a.living(),
	}
}

// onAck notes that the leader has answered; leases count from when the heartbeat was sent.
func (s *session) onAck(ctx context.Context, seq uint64) {
	s.mu.Lock()
	known := seq > 0 && seq <= s.seq && s.seq-seq < askedRing
	asked := s.asked[seq%askedRing]
	if known {
		s.lastAck = instant()
	}
	s.mu.Unlock()
	if known {
		s.a.renew(ctx, asked)
	}
}

// receive hands on what the controller says. Each case returns at once; what it starts lives as long
// as the agent, not as this session.
func (s *session) receive(life context.Context) error {
	a := s.a
	for {
		msg, err := s.stream.Recv()
		if err != nil {
			return err
		}
		switch m := msg.Of.(type) {
		case *nodepb.ControllerMessage_HeartbeatAck:
			s.onAck(life, m.HeartbeatAck.GetSeq())
		case *nodepb.ControllerMessage_Launch:
			for _, l := range m.Launch.GetLaunches() {
				a.onLaunch(life, l)
			}
		case *nodepb.ControllerMessage_Kill:
			for _, k := range m.Kill.GetKills() {
				a.onKill(life, k)
			}
		case *nodepb.ControllerMessage_Acks:
			a.onAcks(life, m.Acks.GetKeys())
		case *nodepb.ControllerMessage_ReadOutput:
			a.onReadOutput(life, s.number, m.ReadOutput)
		case *nodepb.ControllerMessage_Limits:
			a.onLimits(m.Limits.GetLimits())
		case *nodepb.ControllerMessage_Suspend:
			a.onSuspends(m.Suspend.GetSuspends())
		case *nodepb.ControllerMessage_Forget:
			a.onForget(life, m.Forget.GetKeys())
		case *nodepb.ControllerMessage_Welcome:
			a.applyWelcome(m.Welcome)
		case *nodepb.ControllerMessage_NotLeader:
			return &notLeader{m.NotLeader.GetLeader(), m.NotLeader.GetAddress()}
		}
	}
}
