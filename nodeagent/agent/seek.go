package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
)

const (
	// welcomeTimeout is how long a controller may take to answer a Hello. One that knows of no leader
	// keeps us waiting for a little less, and says at once when there is one.
	welcomeTimeout = 5 * time.Second
	// seekNext is after how long without an answer the next controller is asked beside the first.
	seekNext = 300 * time.Millisecond
	// maxSeek bounds the pause between two rounds of asking all of them: a leader must be found soon
	// after it has come. Controllers that turn us away for good are asked less often.
	maxSeek = 500 * time.Millisecond
)

// sessions keeps one session with the leader until ctx ends.
func (a *Agent) sessions(ctx context.Context) {
	back := newBackoff(a.d.Jitter)
	s := &seeker{a: a, conns: map[string]Conn{}}
	defer s.close()
	first, last := "", ""
	for ctx.Err() == nil {
		o, err := s.round(ctx, first)
		if err == nil {
			s.close()
			back.reset()
			first, last = o.address, ""
			err = a.serveSession(ctx, o)
			var hint *notLeader
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, errNews):
				continue
			case errors.As(err, &hint):
				first = a.addressOf(hint)
				continue
			}
			a.log.Warn("session with the leader ended", "controller", o.address, "err", err)
		} else if ctx.Err() != nil {
			return
		} else if text := err.Error(); text != last && !errors.Is(err, errNoLeader) {
			a.log.Warn("no session with a leader", "err", err) // an election is no news, the rest is news once
			last = text
		}
		back.most = maxSeek
		if refusedForGood(err) {
			back.most = maxBackoff
		}
		if !back.wait(ctx) {
			return
		}
	}
}

// refusedForGood tells whether a controller has said that it will not have us as we are.
func refusedForGood(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.FailedPrecondition, codes.InvalidArgument, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}

// seeker finds the leader. Connections to controllers that have answered are kept while it looks: an
// election must not cost each of them a handshake with every node in each round.
type seeker struct {
	a     *Agent
	conns map[string]Conn
}

func (s *seeker) close() {
	for address, conn := range s.conns {
		conn.Close()
		delete(s.conns, address)
	}
}

// opened is a stream on which a controller has said Welcome.
type opened struct {
	address string
	conn    Conn
	stream  grpc.BidiStreamingClient[nodepb.AgentMessage, nodepb.ControllerMessage]
	welcome *nodepb.Welcome
	driver  string // what the hello said
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

func (o *opened) close() {
	o.cancel(nil)
	o.conn.Close()
}

// found is what came of asking one controller.
type found struct {
	address string
	conn    Conn // still good, for the next round; nil when it is not, or is the stream's
	o       *opened
	err     error
}

// round asks the controllers, first the one that is named, then the others: the next one when the last
// has said no, or nothing for seekNext; and whomever one of them names. The first to say Welcome gets
// the session. The error is the last one's, errNoLeader only when nobody said anything else.
func (s *seeker) round(ctx context.Context, first string) (*opened, error) {
	asking, stop := context.WithCancel(ctx)
	results := make(chan found)
	asked, running := map[string]bool{}, 0
	ask := func(address string) {
		if address == "" || asked[address] {
			return
		}
		asked[address] = true
		running++
		conn := s.conns[address]
		delete(s.conns, address)
		go func() { results <- s.a.open(asking, ctx, address, conn) }()
	}
	defer func() {
		stop()
		for ; running > 0; running-- {
			s.keep(<-results)
		}
	}()
	rest := s.a.addresses()
	next := func() {
		for before := running; running == before && len(rest) > 0; rest = rest[1:] {
			ask(rest[0])
		}
	}
	var last error = errNoLeader
	if ask(first); running == 0 {
		next()
	}
	hedge := time.NewTicker(seekNext)
	defer hedge.Stop()
	for running > 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-hedge.C:
			next()
			continue
		case f := <-results:
			running--
			if f.o != nil {
				return f.o, nil
			}
			var hint *notLeader
			switch s.keep(f); {
			case errors.As(f.err, &hint):
				ask(s.a.addressOf(hint))
			case !errors.Is(f.err, errNoLeader):
				last = fmt.Errorf("%s: %w", f.address, f.err)
			}
			if running == 0 {
				next()
			}
		}
	}
	return nil, last
}

// keep keeps what is still good of an answer that was no Welcome, or that came too late.
func (s *seeker) keep(f found) {
	if f.o != nil {
		f.o.close()
	}
	if f.conn != nil {
		s.conns[f.address] = f.conn
	}
}

// open asks one controller for a session, over conn or a new connection. asking ends the wait for its
// answer; the stream lives as long as life.
func (a *Agent) open(asking, life context.Context, address string, conn Conn) found {
	if conn == nil {
		var err error
		if conn, err = a.d.Dial(address); err != nil {
			return found{address: address, err: err}
		}
	}
	ctx, cancel := context.WithCancelCause(life)
	early := time.AfterFunc(welcomeTimeout, func() { cancel(errNoLeader) })
	defer early.Stop()
	gone := context.AfterFunc(asking, func() { cancel(context.Cause(asking)) })
	defer gone()
	hello := a.hello()
	stream, welcome, err := greet(ctx, conn, hello)
	if err == nil && early.Stop() && gone() {
		return found{address: address, o: &opened{address, conn, stream, welcome, hello.GetCgroupDriver(), ctx, cancel}}
	}
	if err == nil {
		err = errNoLeader
	}
	err = causeOf(ctx, err)
	cancel(nil)
	var hint *notLeader
	if errors.As(err, &hint) || errors.Is(err, errElection) {
		return found{address: address, conn: conn, err: err}
	}
	conn.Close()
	return found{address: address, err: err}
}

// errElection: a controller has answered that it knows of no leader.
var errElection = fmt.Errorf("%w, and nobody else does", errNoLeader)

// greet says hello and takes the answer.
func greet(ctx context.Context, conn Conn, hello *nodepb.Hello) (grpc.BidiStreamingClient[nodepb.AgentMessage, nodepb.ControllerMessage], *nodepb.Welcome, error) {
	stream, err := nodepb.NewNodeClient(conn).Session(ctx)
	if err != nil {
		return nil, nil, err
	}
	err = stream.Send(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Hello{Hello: hello}})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	first, err := stream.Recv() // the reason of a failed send comes here too
	if err != nil {
		return nil, nil, err
	}
	switch m := first.Of.(type) {
	case *nodepb.ControllerMessage_Welcome:
		return stream, m.Welcome, nil
	case *nodepb.ControllerMessage_NotLeader:
		if m.NotLeader.GetLeader() == "" && m.NotLeader.GetAddress() == "" {
			return nil, nil, errElection
		}
		return nil, nil, &notLeader{m.NotLeader.GetLeader(), m.NotLeader.GetAddress()}
	}
	return nil, nil, fmt.Errorf("controller began with %T, not with a welcome", first.Of)
}

// serveSession runs a session until it ends.
func (a *Agent) serveSession(life context.Context, o *opened) error {
	defer o.close()
	number, ok := a.begin(o)
	if !ok {
		return errNews
	}
	defer a.end()
	a.log.Info("registered", "controller", o.welcome.GetLeader(), "term", o.welcome.GetTerm())
	s := &session{a: a, number: number, stream: o.stream, every: a.applyWelcome(o.welcome), lastAck: instant(), nextBeat: instant()}
	return causeOf(o.ctx, s.run(o.ctx, life, o.cancel))
}

// begin numbers a session, and lets the rest of the agent end it. It is false when the hello told what
// is known better by now.
func (a *Agent) begin(o *opened) (uint64, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.driver != o.driver {
		return 0, false
	}
	a.lastSession++
	a.endSession = o.cancel
	return a.lastSession, true
}

func (a *Agent) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endSession = nil
}
