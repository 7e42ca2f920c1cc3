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

// leaseOver tells whether the run's shepherd must have ended it by now: its node is silent, and no
// renewal that a leader gave can have kept it for longer. Earlier leaders' renewals were given
// before this term began.
func (l *Leader) leaseOver(t *term, view state.Viewer, j *state.Job, now time.Time, lease time.Duration) bool {
	silent := false
	var last time.Time
	for i := range j.Allocs {
		if i < len(j.Done) && j.Done[i] {
			continue
		}
		n := view.Node(j.Allocs[i].Node)
		if n == nil || n.State != node.Down && n.Flags&node.NotResponding == 0 {
			continue
		}
		silent = true
		h := t.health(n.Name)
		h.mu.Lock()
		if h.renewed.After(last) {
			last = h.renewed
		}
		h.mu.Unlock()
	}
	if last.Before(t.began) {
		last = t.began
	}
	return silent && now.Sub(last) >= lease+leaseSkew
}

// lease is how long a run outlives the last word of a leader; 0 = it is never ended by that.
func (l *Leader) lease(view state.Viewer, j *state.Job) time.Duration {
	if j.Spec.Requeue < 0 || j.Spec.Requeue == 0 && !view.Config().JobRequeue {
		return 0
	}
	return l.Config().JobLease
}
