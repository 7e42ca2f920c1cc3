package leader

import (
	"context"
	"fmt"

	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// turn is the right to speak for one node: to put what its agent says into the log. One session has it
// at a time, whatever the terms. A refusal on its way into the log that a later session does not wait
// for would end a run that the later session has meanwhile sent again.
type turn struct {
	taken chan struct{} // full while a session has it
	doubt bool          // guarded by it: words of an earlier session may still be on their way into the log
}

// turnOf gives a node's turn. l.mu is held.
func (l *Leader) turnOf(name string) *turn {
	u := l.turns[name]
	if u == nil {
		u = &turn{taken: make(chan struct{}, 1)}
		l.turns[name] = u
	}
	return u
}

// takeTurn waits until the node's earlier sessions have said what they say. They have ended, so they
// wait for nothing but the log.
func (s *session) takeTurn() error {
	select {
	case s.turn.taken <- struct{}{}:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

func (s *session) endTurn() { <-s.turn.taken }

// proven gives a view that holds all that was in the log when it was called, of this term as a majority
// says. A deposed leader's read may be answered by its successor: so the term is looked at afterwards.
func (l *Leader) proven(ctx context.Context, t *term) (state.Viewer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	view, err := l.Log.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotLeading, err)
	}
	if _, self := l.Log.Leader(); !self || t.ctx.Err() != nil || l.Log.Status().Term != t.number {
		return nil, errNotLeading
	}
	return view, nil
}
