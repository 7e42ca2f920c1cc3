package sim

import (
	"reflect"
	"slices"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// What the leader goes by, in ms: see ctld/leader.
const (
	quietSilent  = 32_000
	quietDown    = 120_000
	clusterLease = 600_000
	killWait     = 30_000
	limitMargin  = 30_000
)

// leaseSkew is what must pass beyond a lease for its run to count as dead.
func leaseSkew(lease int64) int64 { return 2000 + lease/100 }

// leader is a term of one replica: what only a leader knows.
type leader struct {
	at       int // replica
	term     int
	began    int64 // elapsed
	since    int64 // the state's time when it began
	ahead    int64 // what its wall clock is ahead of what has really elapsed
	stamped  int64
	view     *state.View // of a deposed one: the last that it saw
	old      *state.View // an earlier one, to plan on
	stale    *logpb.Command
	reasons  []sched.Reason // as last proposed
	classes  []sched.ClassReason
	health   map[string]*health
	sessions []*session
	limits   map[runKey]int64 // since when it has known a run that has a limit
}

// health is what a term knows of a host.
type health struct {
	heard, renewed int64
	sent, unsent   map[runKey]bool
}

func (l *leader) of(name string) *health {
	h := l.health[name]
	if h == nil {
		h = &health{sent: map[runKey]bool{}, unsent: map[runKey]bool{}}
		l.health[name] = h
	}
	return h
}

// session is one agent's stream with one leader.
type session struct {
	host     *host
	lead     *leader
	ready    bool // the agent has been welcomed
	over     bool // the agent has left it
	renews   bool // an acknowledgement that renews leases has gone out in it
	runs     []*sent
	toHost   []order
	toLeader []message
}

// sent is what a session knows of one run.
type sent struct {
	key      runKey
	when     int64 // launch; 0 = not in this session
	answered bool
	over     bool
	kills    int
	killed   int64
	why      job.Why
	seq      uint32
	signals  int
	limit    int64
}

// launch is an order to start a run, order anything that the leader sends, message what it is told.
type launch struct {
	key     runKey
	allocs  []job.NodeAlloc
	devices []device
	lease   int64
	limit   int64
}

type order struct {
	key    runKey
	launch *launch
	kill   job.Why
	signal bool
	ack    bool
	forget bool
	beat   int64 // answers the heartbeat that was asked then
	limit  *int64
}

type message struct {
	key       runKey
	cmd       *logpb.Command // Launched or Reported
	report    bool
	killed    bool
	signalled bool
	found     bool
}

func (ses *session) of(k runKey) *sent {
	for _, r := range ses.runs {
		if r.key == k {
			return r
		}
	}
	return nil
}

func (ses *session) send(o order) { ses.toHost = append(ses.toHost, o) }

// elect ends the term and begins the next at a replica that then has all of the log.
func (s *sim) elect() {
	if old := s.lead; old != nil {
		s.lose()
		old.view = s.replicas[old.at].f.View()
		if s.lead = nil; s.happens("zombie") {
			if s.zombie != nil {
				s.depose(s.zombie)
			}
			s.zombie = old
		} else {
			s.depose(old)
		}
	}
	if s.failure != nil {
		return
	}
	at := s.dice.below(len(s.replicas))
	if s.zombie != nil && s.zombie.at == at {
		s.depose(s.zombie)
		s.zombie = nil
	}
	s.replicas[at].apply(s, len(s.log))
	s.term++
	s.did++
	s.stats.Terms++
	s.lead = &leader{at: at, term: s.term, began: s.now, since: s.view.Time(), stamped: s.now, health: map[string]*health{}, limits: map[runKey]int64{}}
	if s.on("clock") {
		s.lead.ahead = int64(s.dice.below(7200_000)) - 3600_000
	}
	s.note("replica %d leads term %d", at, s.term)
}

// depose ends the sessions of a leader that has found out.
func (s *sim) depose(l *leader) {
	for _, h := range s.hosts {
		if h.session != nil && h.session.lead == l {
			s.hangUp(h)
		}
	}
}

// own is the state that a leader goes by: that of its replica, and of a deposed one the last that it saw.
func (s *sim) own(l *leader) *state.View {
	if l != s.lead {
		return l.view
	}
	return s.replicas[l.at].f.View()
}

// open begins a session of a host's agent: it says what it holds, and is welcome once the state knows.
func (s *sim) open(h *host) {
	if s.lead == nil || !h.up || !h.agent || h.cut || h.session != nil {
		return
	}
	l := s.lead
	n := s.own(l).Node(h.name)
	if n == nil {
		return
	}
	ses := &session{host: h, lead: l}
	for _, p := range h.runs {
		ses.runs = append(ses.runs, &sent{key: p.key, answered: true})
		p.told = p.told || p.phase == starting
	}
	h.session = ses
	s.did++
	l.sessions = append(slices.DeleteFunc(l.sessions, func(o *session) bool { return o.over && len(o.toLeader) == 0 }), ses)
	l.of(h.name).heard = s.now
	s.note("%s opens a session with %d runs", h.name, len(ses.runs))
	if n.State != node.Unknown && n.State != node.Down && n.Flags&node.NotResponding == 0 && n.BootID == boot(h) && agrees(s.own(l), n, ses) {
		s.welcome(ses)
		return
	}
	r := &logpb.RegisterNode{Node: h.name, BootId: boot(h), Cpus: h.cpus, Mem: h.mem, Gres: h.gres, AgentStartMs: s.now, Version: "2"}
	for _, k := range h.held() {
		r.HeldJob, r.HeldRun = append(r.HeldJob, k.JobID), append(r.HeldRun, k.Run)
	}
	s.propose(func(results []fsm.Result) {
		if results == nil {
			if h.session == ses {
				s.hangUp(h)
			}
			return
		}
		s.welcome(ses)
	}, &logpb.Command{Of: &logpb.Command_RegisterNode{RegisterNode: r}})
}

func boot(h *host) string {
	return h.name + "-" + string(rune('a'+h.boot%26)) + string(rune('a'+h.boot/26%26))
}

// welcome lets a session drive its host; the agent reports what waits.
func (s *sim) welcome(ses *session) {
	if ses.over {
		return
	}
	ses.ready = true
	for _, p := range ses.host.runs {
		if p.phase == reporting {
			s.sayReport(ses.host, p)
		}
	}
}

// agrees tells whether the runs that a node has confirmed are those that it holds.
func agrees(v *state.View, n *state.Node, ses *session) bool {
	for _, id := range n.Jobs {
		j := v.Job(id)
		if !batchHost(j, n.Name) {
			continue
		}
		if held := ses.of(runKey{j.ID, j.Run}) != nil; held != j.Confirmed[0] || j.Reason == job.ReasonFencing {
			return false
		}
	}
	return true
}

func batchHost(j *state.Job, name string) bool {
	return j != nil && j.HetOffset == 0 && len(j.Allocs) > 0 && j.Allocs[0].Node == name && !j.Done[0]
}

// drive sends what differs between the state and the agent. A deposed leader goes by the last that it saw.
func (s *sim) drive(ses *session) {
	l, h := ses.lead, ses.host
	v := s.own(l)
	n := v.Node(h.name)
	if n == nil {
		s.hangUp(h)
		return
	}
	before := len(ses.toHost)
	defer func() { s.did += len(ses.toHost) - before }()
	wanted := map[runKey]bool{}
	for _, id := range n.Jobs {
		j := v.Job(id)
		if !batchHost(j, n.Name) {
			continue
		}
		k := runKey{j.ID, j.Run}
		wanted[k] = true
		r := ses.of(k)
		switch {
		case j.Kill != job.WhyNone:
			if r == nil {
				r = &sent{key: k, answered: true}
				ses.runs = append(ses.runs, r)
			}
			if !r.over && (r.kills == 0 || s.now-r.killed > killWait) {
				r.kills, r.killed, r.why = r.kills+1, s.now, j.Kill
				ses.send(order{key: k, kill: j.Kill})
			}
		case r == nil || !r.answered && r.when == 0:
			if !j.State.Ended() && (j.Lease == 0 || ses.renews) && !l.of(n.Name).unsent[k] {
				l.of(n.Name).sent[k] = true
				ses.send(order{key: k, launch: &launch{key: k, allocs: j.Allocs, devices: devicesOf(v, j.Allocs), lease: j.Lease, limit: max(0, j.TimeLimit)}})
				if r == nil {
					r = &sent{key: k}
					ses.runs = append(ses.runs, r)
				}
				r.when, r.limit = s.now, j.TimeLimit
			}
		case r.answered && !r.over:
			s.steer(ses, j, r)
		case !r.answered && s.now-r.when > 60_000:
			r.when = 0 // not answered in time: sent again under the same run
		}
	}
	ses.runs = slices.DeleteFunc(ses.runs, func(r *sent) bool {
		if !wanted[r.key] && !r.over && l == s.lead {
			ses.send(order{key: r.key, forget: true})
		}
		return !wanted[r.key]
	})
}

func (s *sim) steer(ses *session, j *state.Job, r *sent) {
	for _, sig := range j.Signals {
		if sig.Seq > r.seq {
			r.seq, r.signals = sig.Seq, r.signals+1
			ses.send(order{key: r.key, signal: true})
		}
	}
	want := j.TimeLimit
	switch {
	case j.SuspendedAt > 0: // its time stands still
		want = 0
	case want > 0:
		want += j.Stopped
	}
	if r.limit != want {
		r.limit = want
		limit := max(0, want)
		ses.send(order{key: r.key, limit: &limit})
	}
}

// listen takes the next message of a session into the log. What an agent said before it left may still come.
func (s *sim) listen(ses *session) {
	s.did++
	m := ses.toLeader[0]
	ses.toLeader = ses.toLeader[1:]
	if ses.lead != s.lead {
		return
	}
	s.lead.of(ses.host.name).heard = s.now
	r := ses.of(m.key)
	if m.killed {
		s.onKilled(ses, m, r)
		return
	}
	if r != nil {
		r.answered = true
		if l := m.cmd.GetLaunched(); m.report || l != nil && !l.Ok && l.Cause != uint32(job.CauseDuplicate) {
			r.over = true
		}
	}
	cmds := []*logpb.Command{m.cmd}
	if m.report && s.happens("foresee") {
		cmds = append(cmds, s.foreseen(m.cmd.GetReported()))
	}
	s.propose(func(results []fsm.Result) {
		switch {
		case results == nil:
			if ses.host.session == ses {
				s.hangUp(ses.host)
			}
		case m.report:
			if j := s.view.Job(m.key.job); holding(j, m.key) {
				s.fail("the report of run %d of job %d is in the log, and the run is not over", m.key.run, m.key.job)
			}
			ses.send(order{key: m.key, ack: true})
		}
	}, cmds...)
}

// onKilled: what was to be ended and is not there is over.
func (s *sim) onKilled(ses *session, m message, r *sent) {
	switch {
	case r == nil:
	case m.signalled:
		if r.signals--; r.signals == 0 {
			s.propose(nil, timer(m.key, "signals_sent", r.seq))
		}
	case !m.found && r.kills > 0 && !r.over:
		r.over = true
		s.propose(nil, &logpb.Command{Of: &logpb.Command_Reported{Reported: &logpb.Reported{JobId: m.key.job, Run: m.key.run, Step: job.BatchStep,
			Node: ses.host.name, KilledFor: uint32(r.why), EndMs: s.now}}})
	}
}

func timer(k runKey, what string, seq uint32) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: k.job, Run: k.run, What: what, Seq: seq}}}
}

// beat lets every host with a session send a heartbeat; a leader that a majority follows answers it.
func (s *sim) beat() {
	for _, h := range s.hosts {
		ses := h.session
		if ses == nil || !ses.ready || h.cut || s.happens("drop") {
			continue
		}
		s.did++
		asked := s.now - int64(s.dice.below(3000))
		ses.lead.of(h.name).heard = s.now
		if ses.lead == s.lead {
			ses.lead.of(h.name).renewed, ses.renews = s.now, true
			ses.send(order{beat: asked})
		}
	}
}

// plan proposes what the planner decides, now and then on a state of before.
func (s *sim) plan() {
	if s.lead == nil {
		return
	}
	v := s.own(s.lead)
	if s.happens("stale") {
		if s.lead.stale != nil && s.dice.in(2) {
			s.propose(nil, s.lead.stale)
			return
		}
		if s.lead.old != nil {
			v = s.lead.old
		}
	}
	if s.lead.old == nil || s.dice.in(4) {
		s.lead.old = s.own(s.lead)
	}
	d := s.decide(v, s.stamp())
	if len(d.Starts) == 0 && reflect.DeepEqual(d.Reasons, s.lead.reasons) && reflect.DeepEqual(d.Classes, s.lead.classes) && !s.dice.in(8) {
		return // the state has been told
	}
	s.lead.reasons, s.lead.classes = d.Reasons, d.Classes
	cmd := &logpb.Command{Of: &logpb.Command_Plan{Plan: planToLog(d)}}
	if s.dice.in(3) {
		s.lead.stale = cmd
	}
	s.propose(nil, cmd)
}

// decide plans, and gives the starts their leases.
func (s *sim) decide(v *state.View, now int64) *sched.Decision {
	d := sched.Plan(v.Sched(), now, s.policy(v))
	for i := range d.Starts {
		start := &d.Starts[i]
		j := v.Job(start.JobID)
		switch p := v.Partition(start.Partition); {
		case p != nil && p.JobLease < 0:
		case p != nil && p.JobLease > 0:
			start.Lease = p.JobLease
		case j != nil && j.Spec.Requeue > 0:
			start.Lease = clusterLease
		}
	}
	return d
}

// foreseen is the plan that goes into the log together with a report.
func (s *sim) foreseen(r *logpb.Reported) *logpb.Command {
	guess := s.own(s.lead).Foresee(s.stamp(), []*state.Reported{{JobID: r.JobId, Run: r.Run, Step: r.Step, Node: r.Node,
		Exit: job.Exit{Code: r.ExitCode, Signal: r.Signal}, OOM: r.Oom, Start: r.StartMs, End: r.EndMs, KilledFor: job.Why(r.KilledFor),
		Error: r.Error, Cause: job.Cause(r.Cause), StdoutError: r.StdoutError, EpilogError: r.EpilogError, Lost: r.Lost}})
	return &logpb.Command{Of: &logpb.Command_Plan{Plan: planToLog(s.decide(guess, s.stamp()))}}
}

// liveness tells the state which nodes are silent, and which are back.
func (s *sim) liveness() {
	if s.lead == nil {
		return
	}
	for n := range s.own(s.lead).Nodes() {
		if n.State == node.Future {
			continue
		}
		quiet := s.now - max(s.lead.of(n.Name).heard, s.lead.began)
		flagged := n.Flags&node.NotResponding != 0
		c := &logpb.NodeSilent{Node: n.Name, Silent: true, Reason: "Not responding"}
		switch {
		case quiet >= quietDown:
			if n.State == node.Down {
				continue
			}
			c.Down = true
		case quiet >= quietSilent:
			if flagged {
				continue
			}
		case flagged && s.connected(n.Name):
			if n.State == node.Down {
				s.hangUp(s.host(n.Name))
				continue
			}
			c = &logpb.NodeSilent{Node: n.Name}
		default:
			continue
		}
		s.propose(nil, &logpb.Command{Of: &logpb.Command_NodeSilent{NodeSilent: c}})
	}
}

func (s *sim) connected(name string) bool {
	h := s.host(name)
	return h != nil && h.session != nil && h.session.lead == s.lead
}

func (s *sim) host(name string) *host {
	for _, h := range s.hosts {
		if h.name == name {
			return h
		}
	}
	return nil
}

// fence looks for proof that runs on nodes that are not heard are dead.
func (s *sim) fence() {
	l := s.lead
	if l == nil {
		return
	}
	for n := range s.own(s.lead).Nodes() {
		if n.State != node.Down && n.Flags&node.NotResponding == 0 {
			continue
		}
		h := l.of(n.Name)
		waits := false
		for _, id := range n.Jobs {
			j := s.own(l).Job(id)
			if !batchHost(j, n.Name) {
				continue
			}
			k := runKey{j.ID, j.Run}
			switch {
			case j.Lease > 0 && s.now-max(h.renewed, l.began) >= j.Lease+leaseSkew(j.Lease):
				h.unsent[k] = true
				s.propose(nil, timer(k, "lease_over", 0))
			case !j.Confirmed[0] && j.State == job.Running && j.Start > l.since && !h.sent[k]:
				h.unsent[k] = true
				s.propose(nil, launchedUnsent(n.Name, k))
			case n.State == node.Down && n.Flags&node.NotResponding != 0:
				waits = true
			}
		}
		if waits && s.happens("fenceprogram") {
			s.fenceProgram(n)
		}
	}
}

func launchedUnsent(name string, k runKey) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{JobId: k.job, Run: k.run, Node: name,
		Error: "its agent does not answer", Cause: uint32(job.CauseCredential)}}}
}

// fenceProgram takes a host's power. The runs that are dead when it has worked are those that were there
// before; the host may be back before the log has it.
func (s *sim) fenceProgram(n *state.Node) {
	h := s.host(n.Name)
	if h == nil {
		return
	}
	var cmds []*logpb.Command
	for _, id := range n.Jobs {
		if j := s.own(s.lead).Job(id); batchHost(j, n.Name) {
			s.lead.of(n.Name).unsent[runKey{j.ID, j.Run}] = true
			cmds = append(cmds, timer(runKey{j.ID, j.Run}, "lease_over", 0))
		}
	}
	s.note("fence program: %s", n.Name)
	if s.off(h); s.dice.in(2) {
		s.powerOn(h)
	}
	if len(cmds) > 0 {
		s.propose(nil, cmds...)
	}
}

// timers is the leader's backup of time limits, by elapsed time.
func (s *sim) timers() {
	l := s.lead
	if l == nil {
		return
	}
	known := map[runKey]int64{}
	for j := range s.own(l).Active() {
		if j.State != job.Running || j.Kill != job.WhyNone || j.TimeLimit <= 0 {
			continue
		}
		k := runKey{j.ID, j.Run}
		since, ok := l.limits[k]
		if !ok {
			since = s.now
		}
		if known[k] = since; s.now-since >= j.TimeLimit+killWait+limitMargin {
			s.propose(nil, timer(k, "time_limit", 0))
		}
	}
	l.limits = known
	for _, t := range s.own(l).Timers(s.stamp()) {
		s.propose(nil, timer(runKey{t.JobID, t.Run}, t.What, 0))
	}
}
