package leader

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// maxHeld bounds the runs that an agent may say it holds; a host cannot run more.
const maxHeld = 65536

// Reasons for which a session ends.
var (
	errReplaced = errors.New("the node has opened a newer session")
	errGone     = errors.New("the node is not in the configuration")
	errSilent   = errors.New("the node was down: register again")
)

type stream = grpc.BidiStreamingServer[nodepb.AgentMessage, nodepb.ControllerMessage]

// session is one agent's stream. One goroutine (drive) sends, one receives, one proposes what the
// agent says; none of them waits for another node.
type session struct {
	l      *Leader
	t      *term
	node   string
	health *health
	turn   *turn
	stream stream
	ctx    context.Context
	cancel context.CancelCauseFunc
	kick   chan struct{} // something below waits to be sent
	inbox  chan saying   // what the agent said, on its way into the log

	mu                sync.Mutex
	runs              map[runKey]*run
	acks              []*nodepb.StepKey
	acksDue           bool                 // they go now
	beat              *nodepb.HeartbeatAck // to be sent
	proven            bool                 // beat renews leases: a majority has confirmed this leader since it was asked for
	renews            bool                 // the last acknowledgement that went out was such a one
	unproven, checked *nodepb.HeartbeatAck // waits for proveLoop; is in its hands
	sendingSince      time.Time            // instant since which a message is on its way; zero: none is
	reads             []*nodepb.ReadOutput
	waits             map[uint64]*output
	lastRead          uint64 // id given to the newest read
}

// runKey names one attempt of a job's batch step.
type runKey struct{ job, run, step uint32 }

func keyOf(k *nodepb.StepKey) runKey { return runKey{k.GetJobId(), k.GetRun(), k.GetStep()} }

func (k runKey) proto() *nodepb.StepKey {
	return &nodepb.StepKey{JobId: k.job, Run: k.run, Step: k.step}
}

// Session implements nodepb.NodeServer.
func (l *Leader) Session(st stream) error {
	caller, ok := authn.FromContext(st.Context())
	if !ok || caller.Role != authn.RoleNode {
		return status.Error(codes.PermissionDenied, "only a node's certificate opens a session")
	}
	first, err := st.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if err := checkHello(hello, caller.Name, l.Config().ClusterName); err != nil {
		return err
	}
	t := l.await(st.Context(), awaitLeader)
	if t == nil {
		return l.refer(st)
	}
	if l.Log.View().Node(caller.Name) == nil {
		return status.Errorf(codes.FailedPrecondition, "node %s is not in the configuration of cluster %s", caller.Name, l.Config().ClusterName)
	}
	s := l.open(t, st, caller.Name, hello)
	if s == nil {
		return l.refer(st)
	}
	defer l.close(s)
	if err := s.takeTurn(); err != nil {
		return l.over(s, st, err)
	}
	if err := s.begin(hello); err != nil {
		s.endTurn()
		return l.over(s, st, err)
	}
	go s.receive()
	go s.commit()
	return l.over(s, st, s.drive())
}

// begin brings the state up to the hello, or the other way round, and welcomes the agent. What the session
// does from then on follows from a state that is newer than the hello: a controller that was deposed and
// does not know it must neither call a run unknown that its successor has started, nor send one that its
// successor was told about.
func (s *session) begin(hello *nodepb.Hello) error {
	ctx, cancel := context.WithTimeout(s.ctx, awaitLeader)
	defer cancel()
	view, err := s.l.proven(ctx, s.t)
	if err != nil {
		return err
	}
	n := view.Node(s.node)
	if n == nil {
		return errGone
	}
	if err := s.register(view, n, hello); err != nil {
		return err
	}
	return s.stream.Send(s.l.welcome(s.t))
}

// welcome is the leader's answer to a hello.
func (l *Leader) welcome(t *term) *nodepb.ControllerMessage {
	c := l.Config()
	return &nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Welcome{Welcome: &nodepb.Welcome{
		Leader: l.Name, HeartbeatMs: c.HeartbeatInterval.Milliseconds(), KillWaitMs: c.KillWait.Milliseconds(), Term: t.number,
		SharedFs: true, Prolog: c.Prolog, Epilog: c.Epilog, PrologTimeoutMs: c.PrologEpilogTimeout.Milliseconds(),
		Controllers: l.members(),
	}}}
}

// members lists where agents reach the controllers.
func (l *Leader) members() []*nodepb.ControllerAddress {
	if l.Controllers == nil {
		return nil
	}
	return l.Controllers()
}

// awaitLeader is how long a controller that knows of no leader keeps an agent waiting: an election is
// over sooner, and the agent is told at once. It is shorter than agents wait for a welcome. lookForLeader
// is how often it looks. awaitSuccessor is how long agents of a term that is over are kept for the word who
// leads now: soon after a transfer, not at all when this controller is cut off.
const (
	awaitLeader    = 4 * time.Second
	awaitSuccessor = 500 * time.Millisecond
	lookForLeader  = 50 * time.Millisecond
)

// await gives the term, nil when another leads or nobody has come to lead in that time.
func (l *Leader) await(ctx context.Context, most time.Duration) *term {
	for end := l.instant().Add(most); ; {
		l.mu.Lock()
		t, news := l.term, l.news
		l.mu.Unlock()
		leader, _ := l.Log.Leader()
		if t != nil || leader != "" && leader != l.Name || !l.instant().Before(end) {
			return t
		}
		look := time.NewTimer(lookForLeader)
		select {
		case <-ctx.Done():
			look.Stop()
			return nil
		case <-news:
			look.Stop()
		case <-look.C:
		}
	}
}

// checkHello refuses an agent that is not who its certificate says, or of another cluster.
func checkHello(h *nodepb.Hello, name, cluster string) error {
	switch {
	case h == nil:
		return status.Error(codes.InvalidArgument, "a session begins with hello")
	case h.GetNode() != name:
		return status.Errorf(codes.PermissionDenied, "the certificate is of node %s, the hello of node %q", name, h.GetNode())
	case h.GetCluster() != cluster:
		return status.Errorf(codes.PermissionDenied, "this is cluster %s, the agent is of cluster %q", cluster, h.GetCluster())
	case len(h.GetHeld()) > maxHeld:
		return status.Errorf(codes.InvalidArgument, "the agent holds %d runs (limit %d)", len(h.GetHeld()), maxHeld)
	}
	return nil
}

// refer tells the agent who leads.
func (l *Leader) refer(st stream) error {
	leader, _ := l.Log.Leader()
	address := ""
	if leader == l.Name && l.current() == nil { // it does not know yet that it has lost, or is not ready
		leader = ""
	}
	if leader != "" {
		address = l.Address(leader)
	}
	return st.Send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_NotLeader{
		NotLeader: &nodepb.NotLeader{Leader: leader, Address: address}}})
}

// open makes the node's session, ending the one it had. It gives nil when the term is over.
func (l *Leader) open(t *term, st stream, name string, hello *nodepb.Hello) *session {
	s := &session{l: l, t: t, node: name, health: t.health(name), stream: st, kick: make(chan struct{}, 1),
		inbox: make(chan saying, maxInbox), runs: map[runKey]*run{}, waits: map[uint64]*output{}}
	s.ctx, s.cancel = context.WithCancelCause(st.Context())
	for _, k := range hello.GetHeld() {
		s.runs[keyOf(k)] = &run{answered: true}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != t {
		s.cancel(errNotLeading)
		return nil
	}
	s.turn = l.turnOf(name)
	if older := l.sessions[name]; older != nil {
		older.end(errReplaced)
	}
	l.sessions[name] = s
	s.heard(func(h *health) {
		h.connected, h.missing = true, hello.GetLimitsMissing()
		h.clock(hello.GetNowMs(), h.heard)
	})
	return s
}

// close forgets a session that has ended.
func (l *Leader) close(s *session) {
	s.cancel(io.EOF)
	s.failReads()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[s.node] == s {
		delete(l.sessions, s.node)
		s.health.mu.Lock()
		s.health.connected = false
		s.health.mu.Unlock()
	}
}

// end makes the session come to its end for that reason.
func (s *session) end(why error) { s.cancel(why) }

// over turns the end of a session into what the agent is told.
func (l *Leader) over(s *session, st stream, err error) error {
	if why := context.Cause(s.ctx); s.ctx.Err() != nil && why != nil {
		err = why
	}
	switch {
	case errors.Is(err, errNotLeading):
		l.await(st.Context(), awaitSuccessor)
		return l.refer(st)
	case errors.Is(err, errReplaced):
		return status.Error(codes.Aborted, err.Error())
	case errors.Is(err, errGone):
		return status.Error(codes.FailedPrecondition, err.Error())
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil
	}
	l.Logger.Warn("session ended", "node", s.node, "error", err)
	return status.Error(codes.Unavailable, err.Error())
}

// register puts what the agent said of the node and its runs into the state where it differs. Where it
// is not known what has become of an earlier session's words it is put there in any case: what was on
// its way into the log before is in it then, or never will be.
func (s *session) register(view state.Viewer, n *state.Node, hello *nodepb.Hello) error {
	addr := ""
	if p, ok := peer.FromContext(s.stream.Context()); ok && p.Addr != nil {
		addr = p.Addr.String()
	}
	r := registerToLog(hello, addr)
	if !s.turn.doubt && registered(n, r) && s.agrees(view, n) {
		return nil
	}
	results, err := s.l.propose(s.ctx, &logpb.Command{Of: &logpb.Command_RegisterNode{RegisterNode: r}})
	if err != nil {
		s.turn.doubt = true
		return err
	}
	if refused := results[0].Refused; refused != nil {
		s.l.Logger.Warn("registration refused", "node", s.node, "code", refused.Code, "why", refused.Why)
	}
	s.turn.doubt = false
	return nil
}

// registered tells whether the state knows all that the agent said, and thinks the node is there.
func registered(n *state.Node, r *logpb.RegisterNode) bool {
	i := n.Registered
	return n.State != node.Unknown && n.State != node.Down && n.Flags&node.NotResponding == 0 &&
		n.BootID == r.BootId && n.AgentStart == r.AgentStartMs && n.Version == r.Version && n.Driver == r.CgroupDriver &&
		i.CPUs == r.Cpus && i.Boards == r.Boards && i.Sockets == r.Sockets && i.CoresPerSocket == r.CoresPerSocket &&
		i.ThreadsPerCore == r.ThreadsPerCore && i.Mem == r.Mem && i.TmpDisk == r.TmpDisk && i.Gres == r.Gres &&
		i.OS == r.Os && i.Arch == r.Arch && i.Hostname == r.Hostname
}

// agrees tells whether the runs that the node has confirmed are those that it holds. Where they
// are not, the registration tells the state: a confirmed run that is not held is lost, a held one
// that is not confirmed has started. A run that is neither is simply sent.
func (s *session) agrees(view state.Viewer, n *state.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range n.Jobs {
		j := view.Job(id)
		if !batchHost(j, s.node) {
			continue
		}
		confirmed := len(j.Confirmed) > 0 && j.Confirmed[0]
		if held := s.runs[runKey{j.ID, j.Run, job.BatchStep}] != nil; held != confirmed || j.Reason == job.ReasonFencing {
			return false
		}
	}
	return true
}

// batchHost tells whether the record's batch step belongs on the node and is not over there. Of a heterogeneous
// job the first component has it.
func batchHost(j *state.Job, name string) bool {
	return j != nil && j.HetOffset == 0 && len(j.Allocs) > 0 && j.Allocs[0].Node == name && !(len(j.Done) > 0 && j.Done[0])
}

// heard notes that the agent spoke.
func (s *session) heard(note func(*health)) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	s.health.heard, s.health.seen = s.l.instant(), s.l.Now()
	if note != nil {
		note(s.health)
	}
}

// wakeForAcks has acknowledgements sent that nothing else has taken along.
func (s *session) wakeForAcks() {
	s.mu.Lock()
	s.acksDue = len(s.acks) > 0
	s.mu.Unlock()
	s.wake()
}

// wake makes drive look again.
func (s *session) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
