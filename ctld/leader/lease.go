package leader

import (
	"time"

	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// leaseSkew is what clocks may differ by over one lease, and more.
const leaseSkew = 10 * time.Second

// proveLoop acknowledges heartbeats where acknowledgements renew leases. A leader that was deposed
// without noticing (its process was stopped, say) must not renew any more: its successor counts the
// leases from its own election. So a heartbeat is acknowledged only after a majority has confirmed
// this leader at a time after the heartbeat came; all that wait share one such check.
func (l *Leader) proveLoop(t *term) {
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.prove:
		}
		l.mu.Lock()
		waiting := make([]*session, 0, len(l.sessions))
		for _, s := range l.sessions {
			waiting = append(waiting, s)
		}
		l.mu.Unlock()
		for _, s := range waiting {
			s.mu.Lock()
			s.checked, s.unproven = s.unproven, nil
			s.mu.Unlock()
		}
		_, err := l.Log.Read(t.ctx)
		for _, s := range waiting {
			s.mu.Lock()
			if err == nil && s.checked != nil {
				s.beat = s.checked
			}
			s.checked = nil
			s.mu.Unlock()
			if err == nil {
				s.renewed()
				s.wake()
			}
		}
	}
}

// renewed notes that leases on the node are being renewed.
func (s *session) renewed() {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	s.health.renewed = s.l.Now()
}

// leaseOver tells whether the run's shepherd must have ended it by now: its node, the first of the
// run, is silent, and no renewal that a leader gave can have kept it for longer. Earlier leaders'
// renewals were given before this term began.
func (l *Leader) leaseOver(t *term, view state.Viewer, j *state.Job, now time.Time) bool {
	if j.Lease <= 0 || len(j.Allocs) == 0 || len(j.Done) > 0 && j.Done[0] {
		return false
	}
	n := view.Node(j.Allocs[0].Node)
	if n == nil || n.State != node.Down && n.Flags&node.NotResponding == 0 {
		return false
	}
	h := t.health(n.Name)
	h.mu.Lock()
	last := h.renewed
	h.mu.Unlock()
	if last.Before(t.began) {
		last = t.began
	}
	return now.Sub(last) >= time.Duration(j.Lease)*time.Millisecond+leaseSkew
}

// leased tells whether any run has a lease: it keeps the one it was started with when JobLease is 0 by now.
func leased(view state.Viewer) bool {
	for j := range view.Active() {
		if j.Lease > 0 {
			return true
		}
	}
	return false
}
