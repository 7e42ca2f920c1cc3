package leader

import (
	"fmt"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// missedBeats is how many heartbeats an agent may miss before its node takes no new work, and
// beatMargin what comes on top for a busy host.
const (
	missedBeats = 3
	beatMargin  = 2 * time.Second
	// stoodStill is how late a round may be before it is taken that this process was stopped, or the host.
	stoodStill = time.Second
)

// livenessLoop tells the state which nodes are silent, and which are back. Heartbeats themselves
// are not in the log.
func (l *Leader) livenessLoop(t *term) {
	for {
		interval := l.Config().HeartbeatInterval
		round, began := max(interval, 100*time.Millisecond), l.instant()
		if !l.pause(t.ctx, round) {
			return
		}
		if now := l.instant(); now.Sub(began) >= round+stoodStill {
			l.Logger.Warn("this controller stood still", "seconds", now.Sub(began).Seconds())
			t.mu.Lock()
			t.awake = now
			t.mu.Unlock()
		}
		l.strikeStuck()
		var cmds []*logpb.Command
		for n := range l.Log.View().Nodes() {
			if cmd := l.judge(t, n, interval); cmd != nil {
				cmds = append(cmds, &logpb.Command{Of: &logpb.Command_NodeSilent{NodeSilent: cmd}})
			}
		}
		if len(cmds) > 0 {
			l.propose(t.ctx, cmds...) // the next round sees what was not taken
		}
	}
}

// strikeStuck counts a message that an agent does not take for so long as a launch that is not answered.
func (l *Leader) strikeStuck() {
	l.mu.Lock()
	open := make([]*session, 0, len(l.sessions))
	for _, s := range l.sessions {
		open = append(open, s)
	}
	l.mu.Unlock()
	now, timeout := l.instant(), l.Config().LaunchTimeout
	for _, s := range open {
		s.mu.Lock()
		stuck := !s.sendingSince.IsZero() && now.Sub(s.sendingSince) >= timeout
		if stuck {
			s.sendingSince = now
		}
		s.mu.Unlock()
		if stuck && s.health.strike(now, timeout) {
			go s.drain(fmt.Sprintf("Agent takes no message for %s: connection timed out (ETIMEDOUT)", launchStrikes*timeout), controllerItself)
		}
	}
}

// judge gives what is new about a node's silence, nil when the state has it.
func (l *Leader) judge(t *term, n *state.Node, interval time.Duration) *logpb.NodeSilent {
	if n.State == node.Future {
		return nil
	}
	quiet := l.instant().Sub(t.lastHeard(n.Name))
	flagged := n.Flags&node.NotResponding != 0
	down := l.Config().SlurmdTimeout // 0: never
	switch {
	case down > 0 && quiet >= down:
		if n.State != node.Down {
			l.Logger.Warn("node is down: not heard", "node", n.Name, "quiet", quiet)
			return &logpb.NodeSilent{Node: n.Name, Silent: true, Down: true, Reason: "Not responding"}
		}
	case quiet >= missedBeats*interval+beatMargin:
		if !flagged {
			l.Logger.Warn("node is silent", "node", n.Name, "quiet", quiet)
			return &logpb.NodeSilent{Node: n.Name, Silent: true, Reason: "Not responding"}
		}
	case flagged && t.connected(n.Name):
		if n.State == node.Down {
			// Only a registration may bring it back: let the agent open a new session.
			l.hangUp(n.Name)
			return nil
		}
		return &logpb.NodeSilent{Node: n.Name}
	}
	return nil
}

// connected tells whether the node has a session.
func (t *term) connected(name string) bool {
	h := t.health(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.connected
}

// hangUp ends a node's session; its agent opens the next.
func (l *Leader) hangUp(name string) {
	l.mu.Lock()
	s := l.sessions[name]
	l.mu.Unlock()
	if s != nil {
		s.end(errSilent)
	}
}
