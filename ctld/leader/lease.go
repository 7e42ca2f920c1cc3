package leader

import (
	"time"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// Leases. A run with a lease is ended by its shepherd when no renewal has reached it for the lease's
// length, counted on the node's CLOCK_BOOTTIME from when the agent asked for the renewal. Asking is a
// heartbeat, the renewal its acknowledgement. Here the same time is counted from when a heartbeat was
// acknowledged, which is later, or from when this term began, which is later than whatever an earlier
// leader acknowledged: so what is over here was over there before. Between the two stand
//
//   - proveLoop: only a leader that a majority has confirmed since the heartbeat came acknowledges it;
//   - mayLaunch: a run with a lease is sent only behind such an acknowledgement in the same stream, so
//     that the agent has a moment to count the lease from before there is a shepherd;
//   - the launcher, which starts no run whose lease has run out on the way;
//   - leaseSkew, for what is not exact.

// leaseSkew is what must pass beyond a lease for its run to count as dead. Two seconds are for the kill
// itself: the shepherd has to be scheduled on a busy host, and the kernel to take the processes down.
// A hundredth of the lease is for clocks: the kernel's elapsed time is steered by at most 500 ppm on
// each side, a twentieth of that. A process that the kernel cannot kill (it hangs in a file system's
// call) outlives any margin; a fence program is for those.
func leaseSkew(lease time.Duration) time.Duration { return 2*time.Second + lease/100 }

// leastBeats is how many heartbeats a lease holds at least, whatever a partition says.
const leastBeats = 3

// leaseOf gives a start's lease, 0 for none. A partition's rule is for every job in it that may be
// requeued, which the state checks; the cluster's is for jobs that asked for that themselves.
func (l *Leader) leaseOf(view state.Viewer, s *sched.Start) time.Duration {
	j, c := view.Job(s.JobID), l.Config()
	var lease time.Duration
	switch p := view.Partition(s.Partition); {
	case p != nil && p.JobLease < 0:
	case p != nil && p.JobLease > 0:
		lease = time.Duration(p.JobLease) * time.Millisecond
	case j != nil && j.Spec.Requeue > 0:
		lease = c.JobLease
	}
	if lease > 0 {
		lease = max(lease, leastBeats*c.HeartbeatInterval)
	}
	return lease
}

// leases tells whether runs that start now may have leases.
func (l *Leader) leases(view state.Viewer) bool {
	if l.Config().JobLease > 0 {
		return true
	}
	for p := range view.Partitions() {
		if p.JobLease > 0 {
			return true
		}
	}
	return false
}

// proveEvery is how often at most a majority is asked: acknowledgements of many agents go together.
const proveEvery = 20 * time.Millisecond

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
		sure := l.confirmed(t)
		for _, s := range waiting {
			s.mu.Lock()
			asked := s.checked
			if s.checked = nil; sure && asked != nil {
				s.beat, s.proven = asked, true
			}
			s.mu.Unlock()
			if sure && asked != nil {
				s.renewed()
				s.wake()
			}
		}
		if !l.pause(t.ctx, proveEvery) {
			return
		}
	}
}

// confirmed tells whether a majority says that this term lasts.
func (l *Leader) confirmed(t *term) bool {
	_, err := l.proven(t.ctx, t)
	return err == nil
}

// renewed notes that leases on the node are being renewed.
func (s *session) renewed() {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	s.health.renewed = s.l.instant()
}

// acknowledged notes that an acknowledgement has gone out, and what it was worth.
func (s *session) acknowledged(proven bool) {
	s.mu.Lock()
	news := proven && !s.renews
	s.renews = proven
	s.mu.Unlock()
	if news {
		s.wake()
	}
}

// mayLaunch tells whether a run's launch may go out now, and notes that it does. s.mu is held.
func (s *session) mayLaunch(j *state.Job, k runKey) bool {
	if j.Lease > 0 && !s.renews {
		return false // acknowledged wakes us
	}
	// A view may hold what a successor has put into the log: then we lead no more.
	if _, self := s.l.Log.Leader(); !self {
		return false
	}
	return s.health.send(k)
}

// leaseOver tells whether the run's shepherd must have ended it by now: its node, the first of the
// run, is silent, and no renewal that a leader gave can have kept it for longer. Earlier leaders'
// renewals were given before this term began.
func (l *Leader) leaseOver(t *term, n *state.Node, j *state.Job, now time.Time) bool {
	if j.Lease <= 0 || !silent(n) {
		return false
	}
	h := t.health(n.Name)
	h.mu.Lock()
	last := h.renewed
	h.mu.Unlock()
	if last.Before(t.began) {
		last = t.began
	}
	lease := time.Duration(j.Lease) * time.Millisecond
	return now.Sub(last) >= lease+leaseSkew(lease)
}

// silent tells whether the state thinks that the node is not heard.
func silent(n *state.Node) bool { return n.State == node.Down || n.Flags&node.NotResponding != 0 }

// leased tells whether any run has a lease: it keeps the one it was started with when JobLease is 0 by now.
func leased(view state.Viewer) bool {
	for j := range view.Active() {
		if j.Lease > 0 {
			return true
		}
	}
	return false
}
