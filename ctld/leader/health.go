package leader

import (
	"maps"
	"sync"
	"time"
)

// launchStrikes is how many launches in a row an agent may leave unanswered before its node is drained.
const launchStrikes = 3

// maxCoolDown bounds how long an agent that does not answer launches gets no new ones.
const maxCoolDown = 5 * time.Minute

// health is what the leader knows of one agent in this term beyond the replicated state. Heartbeats
// are kept here only. It outlives sessions.
type health struct {
	mu        sync.Mutex
	heard     time.Time // last message, an instant; zero = none in this term
	seen      time.Time // the same by the wall clock, for people
	renewed   time.Time // instant of the last heartbeat that was acknowledged: leases count from before it
	ahead     int64     // what the node's wall clock is ahead of our instants, ms
	clocked   bool      // ahead is known
	load      float64
	freeMem   int64
	steps     uint32
	problem   string
	missing   []string
	connected bool
	strikes   int       // launches in a row that were not answered
	coolUntil time.Time // instant before which no new launches go there
	drained   bool      // the strikes have been acted upon
	refusals  int       // launches in a row whose credential the node did not believe

	// What has become of the launches that this term has to send: sent to the agent, or given up. One that
	// was given up does not go out from then on.
	sent, unsent map[runKey]bool
	dead         map[runKey]bool // of unsent: nothing of it can be alive, which the state is to be told
}

// NodeInfo is what is known of a node beyond the replicated state.
type NodeInfo struct {
	Load          float64
	FreeMem       int64 // bytes
	Steps         uint32
	LastSeen      time.Time // zero = not in this term
	Connected     bool
	Problem       string   // why the agent cannot take jobs; "" when it can
	LimitsMissing []string // limits that the node cannot enforce
}

// NodeInfo tells what the leader knows of a node; ok is false while this controller does not lead.
func (l *Leader) NodeInfo(name string) (info NodeInfo, ok bool) {
	t := l.current()
	if t == nil {
		return NodeInfo{}, false
	}
	h := t.health(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	return NodeInfo{Load: h.load, FreeMem: h.freeMem, Steps: h.steps, LastSeen: h.seen, Connected: h.connected,
		Problem: h.problem, LimitsMissing: h.missing}, true
}

// health gives the record of a node, a new one when it has none.
func (t *term) health(name string) *health {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.nodes[name]
	if h == nil {
		h = &health{}
		t.nodes[name] = h
	}
	return h
}

// lastHeard is the instant at which the node was last heard, not before the term began: a new leader
// gives every node a full window. So does one that stood still: what the nodes said meanwhile waits to
// be read.
func (t *term) lastHeard(name string) time.Time {
	t.mu.Lock()
	awake := t.awake
	t.mu.Unlock()
	h := t.health(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.heard
	if last.Before(t.began) {
		last = t.began
	}
	if last.Before(awake) {
		last = awake
	}
	return last
}

// strike counts a launch that was not answered in time. It tells whether the node is to be drained now.
func (h *health) strike(now time.Time, timeout time.Duration) (drain bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.strikes++
	h.coolUntil = now.Add(min(timeout<<min(h.strikes-1, 10), maxCoolDown))
	if h.strikes < launchStrikes || h.drained {
		return false
	}
	h.drained = true
	return true
}

// refused counts a launch whose credential the node did not believe; those that come while the node is
// left alone already do not count. It tells whether the node is to be drained now. The agent is there,
// so this is no silence that a fence would be for.
func (h *health) refused(now time.Time, pause time.Duration) (counted, drain bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.coolUntil) {
		return false, false
	}
	h.refusals++
	h.coolUntil = now.Add(min(pause<<min(h.refusals-1, 10), maxCoolDown))
	return true, h.refusals == launchStrikes
}

// clock notes what the node's wall clock showed at that instant; 0 = it did not say.
func (h *health) clock(ms int64, at time.Time) {
	if ms > 0 {
		h.ahead, h.clocked = ms-at.UnixMilli(), true
	}
}

// nodeClock is what the node's wall clock shows now, as far as the node has said; else it is ours. The
// node judges by its own clock until when a credential is valid.
func (l *Leader) nodeClock(name string) time.Time {
	if t := l.current(); t != nil {
		h := t.health(name)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.clocked {
			return time.UnixMilli(l.instant().UnixMilli() + h.ahead)
		}
	}
	return l.Now()
}

// send tells whether a launch may go out, and notes that it does: it may not when the run was given up.
func (h *health) send(k runKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unsent[k] {
		return false
	}
	if h.sent == nil {
		h.sent = map[runKey]bool{}
	}
	h.sent[k] = true
	return true
}

// giveUp tells whether the agent has surely not got the launch from this term, and sees to it that it
// never will.
func (h *health) giveUp(k runKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sent[k] {
		return false
	}
	if h.unsent == nil {
		h.unsent = map[runKey]bool{}
	}
	h.unsent[k] = true
	return true
}

// forbid sees to it that no launch of the run goes out any more, sent or not. Whoever says that a run is dead
// must not send it while that is on its way into the log: the node may be back by then, with a new lease.
func (h *health) forbid(k runKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unsent == nil {
		h.unsent = map[runKey]bool{}
	}
	if h.dead == nil {
		h.dead = map[runKey]bool{}
	}
	h.unsent[k], h.dead[k] = true, true
}

// verdict tells whether the launch of a run was given up, and whether because nothing of it can be alive.
func (h *health) verdict(k runKey) (gone, dead bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unsent[k], h.dead[k]
}

// owes tells whether launches were given up of which the state may not know yet.
func (h *health) owes() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.unsent) > 0
}

// prune forgets launches whose runs are over.
func (h *health) prune(over func(runKey) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	gone := func(k runKey, _ bool) bool { return over(k) }
	maps.DeleteFunc(h.sent, gone)
	maps.DeleteFunc(h.unsent, gone)
	maps.DeleteFunc(h.dead, gone)
}

// struck tells whether the agent has left so many launches unanswered that its node was drained for that.
func (h *health) struck() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.drained
}

// answered ends the row of unanswered launches.
func (h *health) answered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.strikes, h.refusals, h.coolUntil, h.drained = 0, 0, time.Time{}, false
}

// cooling tells until when no new launches go to the node; zero when they may.
func (h *health) cooling(now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.coolUntil) {
		return h.coolUntil
	}
	return time.Time{}
}
