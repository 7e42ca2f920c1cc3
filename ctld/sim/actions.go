package sim

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// action is one kind of thing that happens. Vital ones happen in every run: without them nothing moves.
type action struct {
	name   string
	weight int
	vital  bool
	do     func(*sim)
}

// actions is all that happens.
var actions = []action{
	{"submit", 40, true, (*sim).submit},
	{"plan", 40, true, (*sim).plan},
	{"commit", 120, true, func(s *sim) { s.commit(1 + s.dice.below(3)) }},
	{"replicate", 20, true, func(s *sim) {
		r := s.replicas[s.dice.below(len(s.replicas))]
		r.apply(s, min(len(s.log), r.applied+1+s.dice.below(30)))
	}},
	{"beat", 30, true, (*sim).beat},
	{"open", 30, true, func(s *sim) { s.open(s.someHost()) }},
	{"drive", 80, true, func(s *sim) {
		if ses := s.someSession(); ses != nil {
			s.drive(ses)
		}
	}},
	{"hear", 160, true, (*sim).hearOne},
	{"listen", 160, true, (*sim).listenOne},
	{"liveness", 10, true, (*sim).liveness},
	{"fence", 20, true, (*sim).fence},
	{"timers", 5, true, (*sim).timers},
	{"power", 10, true, func(s *sim) {
		h := s.someHost()
		switch {
		case h.kept:
		case !h.up:
			s.powerOn(h)
		case !h.agent:
			h.agent = true
			s.did++
		case h.cut:
			h.cut = false
			s.did++
		}
	}},
	{"notice", 5, true, func(s *sim) {
		if s.zombie != nil {
			s.did++
			s.depose(s.zombie)
			s.zombie = nil
		}
	}},
	{"purge", 4, false, (*sim).purge},
	{"again", 10, false, (*sim).again},
	{"cancel", 6, false, (*sim).cancel},
	{"signal", 3, false, (*sim).signal},
	{"requeue", 4, false, func(s *sim) { s.control(state.OpRequeue, state.OpRequeueHold) }},
	{"steer", 6, false, func(s *sim) { s.control(state.OpHold, state.OpUHold, state.OpRelease, state.OpRelease, state.OpTop) }},
	{"update", 6, false, (*sim).update},
	{"putblob", 4, false, (*sim).blob},
	{"drain", 2, false, func(s *sim) { s.nodeUpdate("DRAIN") }},
	{"resume", 4, true, func(s *sim) { s.nodeUpdate(pick(s, "RESUME", "UNDRAIN", "IDLE")) }},
	{"down", 1, false, func(s *sim) { s.nodeUpdate("DOWN") }},
	{"nodeset", 2, false, func(s *sim) { s.nodeUpdate("") }},
	{"fenced", 1, false, (*sim).fenced},
	{"config", 2, false, func(s *sim) { s.propose(nil, s.config(!s.dice.in(3))) }},
	{"partition", 2, false, (*sim).partition},
	{"token", 4, false, (*sim).token},
	{"controller", 1, false, (*sim).controller},
	{"feature", 1, false, func(s *sim) { s.propose(nil, raise(s.view.Feature()+1), s.config(false)) }},
	{"het", 4, false, (*sim).het},
	{"suspend", 4, false, (*sim).suspend},
	{"account", 4, false, (*sim).account},
	{"reserve", 2, false, (*sim).reserve},
	{"elect", 3, false, (*sim).elect},
	{"cut", 4, false, func(s *sim) {
		if h := s.someHost(); !h.cut {
			h.cut = true
			s.did++
			s.hangUp(h)
			s.note("%s is cut off", h.name)
		}
	}},
	{"hangup", 4, false, func(s *sim) { s.hangUp(s.someHost()) }},
	{"crash", 3, false, func(s *sim) {
		if h := s.someHost(); h.up && h.agent {
			s.note("agent of %s crashes", h.name)
			s.crash(h)
		}
	}},
	{"off", 3, false, func(s *sim) {
		if h := s.someHost(); h.up {
			s.note("%s loses power", h.name)
			s.off(h)
		}
	}},
	{"repeat", 8, false, func(s *sim) {
		if len(s.late) > 0 {
			s.propose(nil, s.late[s.dice.below(len(s.late))].cmd)
		}
	}},
	{"snapshot", 4, false, func(s *sim) { s.replicas[s.dice.below(len(s.replicas))].snapshot(s) }},
	{"restart", 4, false, (*sim).restart},
}

// traits are what may be true of a run besides: how often in so many chances.
var traits = []struct {
	name  string
	often int
}{
	{"stale", 3}, {"zombie", 2}, {"clock", 1}, {"refuse", 15}, {"slow", 6}, {"oom", 2}, {"badend", 12}, {"drop", 12}, {"late", 4},
	{"foresee", 2}, {"fenceprogram", 3}, {"gres", 3}, {"memory", 3}, {"choosy", 4}, {"parts", 2}, {"array", 4}, {"later", 8},
	{"hold", 12}, {"depend", 3}, {"blob", 2}, {"longago", 1}, {"jumps", 1}, {"deadline", 6}, {"licenses", 5},
	{"kill-invalid", 1}, {"limits", 1}, {"qos", 3}, {"inside", 6},
}

// Kinds names all that Options.Off may turn off.
func Kinds() (names []string) {
	for _, a := range actions {
		if !a.vital {
			names = append(names, a.name)
		}
	}
	for _, t := range traits {
		names = append(names, t.name)
	}
	return names
}

// swarm is what this seed has of all that: a random part of it, in random shares. Bugs hide from runs
// in which everything happens all the time.
type swarm struct {
	weights []int // by action
	total   int
	often   map[string]int // of traits; 0 = never

	hosts    int
	step     int // ms between two events, at most
	jump     int // once in so many events much time goes by; 0 = never
	level    uint32
	requeues uint32
	service  uint32
	lease    int64
	share    string
	policy   sched.Policy

	order       string // PriorityType
	preempt     string // PreemptType
	preemptMode string
	promises    int
	halfLife    int64 // of usage, in ms; 0 = it does not decay
}

func newSwarm(s *sim) swarm {
	w := swarm{often: map[string]int{}}
	for _, a := range actions {
		weight := a.weight * (2 + s.dice.below(6))
		if on := !s.dice.in(3); !a.vital && (!on || slices.Contains(s.o.Off, a.name)) {
			weight = 0
		}
		w.weights = append(w.weights, weight)
		w.total += weight
	}
	for _, t := range traits {
		often := t.often
		if on := !s.dice.in(3); !on || slices.Contains(s.o.Off, t.name) {
			often = 0
		}
		w.often[t.name] = often
	}
	w.hosts = 2 + s.dice.below(5)
	w.step = pick(s, 50, 200, 1000)
	if jump := 50 + s.dice.below(500); w.often["jumps"] > 0 {
		w.jump = jump
	}
	w.level = uint32(1 + s.dice.below(int(fsm.Version)))
	w.requeues = uint32(s.dice.below(3) * 3)
	w.service = uint32(s.dice.below(3))
	w.lease = pick(s, int64(0), 5000, 60_000)
	w.share = pick(s, "NO", "EXCLUSIVE")
	w.policy = sched.Policy{MaxStarts: pick(s, 0, 0, 1, 3), Depth: pick(s, 0, 0, 2)}
	w.order, w.promises = pick(s, "multifactor", "multifactor", "expansion", "fcfs"), pick(s, 0, 3, 10)
	w.preempt, w.preemptMode = pick(s, "none", "partition_prio", "partition_prio", "qos"), pick(s, "CANCEL", "REQUEUE", "SUSPEND")
	w.halfLife = pick(s, int64(0), 0, 600_000)
	return w
}

// on tells whether a trait is part of this run.
func (s *sim) on(name string) bool { return s.swarm.often[name] > 0 }

// happens draws whether a trait shows now. Faults do not any more once the world comes to rest.
func (s *sim) happens(name string) bool {
	often, known := s.swarm.often[name]
	if !known {
		panic("no trait " + name)
	}
	return often > 0 && !s.quiesced && s.dice.in(often)
}

// tries is how often another action is drawn when one came to nothing.
const tries = 50

// act lets one thing happen: an action that came to nothing does not count.
func (s *sim) act() {
	before := s.did
	for range tries {
		if s.one(); s.did != before || s.failure != nil {
			return
		}
	}
}

func (s *sim) one() {
	at := s.dice.below(s.swarm.total)
	for i, w := range s.swarm.weights {
		if at -= w; at < 0 {
			actions[i].do(s)
			return
		}
	}
}

// someSession draws the session of a host, also with a deposed leader; nil when it has none.
func (s *sim) someSession() *session {
	ses := s.someHost().session
	if ses == nil || !ses.ready || ses.host.cut {
		return nil
	}
	return ses
}

// hearOne delivers the next message to a host, or loses the connection.
func (s *sim) hearOne() {
	h := s.someHost()
	ses := h.session
	if ses == nil || !ses.ready || h.cut || !h.agent || len(ses.toHost) == 0 {
		return
	}
	for range 1 + s.dice.below(3) {
		if h.session == ses && len(ses.toHost) > 0 {
			m := ses.toHost[0]
			ses.toHost = ses.toHost[1:]
			s.hear(h, m)
		}
	}
}

// listenOne takes what some session's agent said, in its order. A session that the agent has left may
// still have something.
func (s *sim) listenOne() {
	if s.lead == nil || len(s.lead.sessions) == 0 {
		return
	}
	at := s.dice.below(len(s.lead.sessions))
	for i := range s.lead.sessions {
		ses := s.lead.sessions[(at+i)%len(s.lead.sessions)]
		if len(ses.toLeader) > 0 && s.first(ses) {
			s.listen(ses)
			return
		}
	}
}

// first tells whether no earlier session of the same host has anything left: its words come first.
func (s *sim) first(ses *session) bool {
	for _, o := range s.lead.sessions {
		if o == ses {
			return true
		}
		if o.host == ses.host && len(o.toLeader) > 0 {
			return false
		}
	}
	return true
}

// restart lets a replica begin again from its snapshot, or from another's that has more, or from nothing.
func (s *sim) restart() {
	r := s.replicas[s.dice.below(len(s.replicas))]
	if s.lead != nil && s.replicas[s.lead.at] == r {
		s.elect()
		if s.failure != nil || s.replicas[s.lead.at] == r {
			return
		}
	}
	snap, at := r.snap, r.snapAt
	switch o := s.replicas[s.dice.below(len(s.replicas))]; {
	case o.snapAt > r.applied:
		snap, at = o.snap, o.snapAt
	case s.dice.in(20) && len(s.log) < 2000:
		snap, at = nil, 0
	case at == 0:
		r.snapshot(s)
		snap, at = r.snap, r.snapAt
	}
	if s.zombie != nil && s.replicas[s.zombie.at] == r {
		s.depose(s.zombie)
		s.zombie = nil
	}
	s.note("replica %d begins again at entry %d of %d", r.name, at, r.applied)
	r.restore(s, snap, at)
}
