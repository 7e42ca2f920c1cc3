package sim

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// killDelay bounds how long a process lives on after its lease has run out, ms.
const killDelay = 1500

// runKey names one run of a job's batch step.
type runKey struct{ job, run uint32 }

// phase is how far a run has come on its host.
type phase uint8

const (
	starting  phase = iota // the launcher has the order
	live                   // it has processes
	reporting              // it has ended, its report is not acknowledged
)

// host is a machine with its agent, launcher and shepherds: the truth about what is alive.
type host struct {
	name string
	cpus uint32
	mem  int64
	gres string

	up    bool // it has power
	boot  int
	agent bool // the agent runs
	cut   bool // no controller is reached
	kept  bool // it stays off until an operator's word is in the log

	session *session
	runs    []*proc
	claims  map[runKey]bool            // the launcher's table of what it has started
	refused map[runKey]*logpb.Launched // what could not be started, as long as the agent lives
	done    map[runKey]bool            // reported and acknowledged
	renewed int64                      // from when leases count; 0 = not since the agent began
}

// proc is one run on its batch host.
type proc struct {
	key       runKey
	phase     phase
	allocs    []job.NodeAlloc
	devices   []device
	startAt   int64 // when the launcher comes to it
	begun     int64
	endAt     int64 // when it ends by itself
	limit     int64 // ms from its start; 0 = none
	lease     int64
	renewed   int64
	leaseOver bool
	dies      int64 // when the kill is carried out; 0 = nobody kills it
	why       job.Why
	exit      job.Exit
	oom       bool
	report    *logpb.Reported
	forgotten bool
	told      bool // a hello has said that it is here while it was starting
}

// device is one device by its place among all of its kind on the host.
type device struct {
	host, name string
	number     uint64
}

// fact is what an agent has said: it stays true whenever it is said again.
type fact struct{ cmd *logpb.Command }

// find gives a run on the host; nil when it is not there.
func (h *host) find(k runKey) *proc {
	for _, p := range h.runs {
		if p.key == k {
			return p
		}
	}
	return nil
}

func (h *host) drop(p *proc) {
	h.runs = slices.DeleteFunc(h.runs, func(q *proc) bool { return p == q })
}

// pass lets time go by and does what is due meanwhile on the hosts.
func (s *sim) pass() {
	step := s.dice.below(s.swarm.step)
	if s.swarm.jump > 0 && s.dice.in(s.swarm.jump) {
		step = s.dice.below(600_000)
	}
	s.now += int64(step)
	s.due()
}

func (s *sim) due() {
	for _, h := range s.hosts {
		for _, p := range slices.Clone(h.runs) {
			if p.phase == starting && s.now >= p.startAt {
				s.start(h, p)
			}
			if p.phase == live {
				s.age(h, p)
			}
		}
	}
}

// onLaunch is the agent taking an order to start a run.
func (s *sim) onLaunch(h *host, m *launch) {
	if h.done[m.key] {
		s.say(h, launched(h, m.key, false, job.CauseDuplicate, s.now))
		return
	}
	if p := h.find(m.key); p != nil {
		if p.phase != starting { // also a launcher that says so by itself has it
			s.say(h, launched(h, m.key, s.dice.in(2), job.CauseDuplicate, s.now))
		}
		return
	}
	if was := h.refused[m.key]; was != nil {
		s.say(h, message{cmd: &logpb.Command{Of: &logpb.Command_Launched{Launched: was}}, key: m.key})
		return
	}
	if s.happens("refuse") {
		s.refuse(h, m.key, pick(s, job.CauseNode, job.CauseProlog, job.CauseUser, job.CauseCredential, job.CauseNone))
		return
	}
	p := &proc{key: m.key, allocs: m.allocs, devices: m.devices, lease: m.lease, limit: m.limit, renewed: h.renewed, startAt: s.now + int64(s.dice.below(3000))}
	if p.renewed == 0 {
		p.renewed = s.now
	}
	if s.happens("slow") {
		p.startAt += int64(s.dice.below(120_000))
	}
	h.runs = append(h.runs, p)
}

func (s *sim) refuse(h *host, k runKey, cause job.Cause) {
	m := launched(h, k, false, cause, s.now)
	h.refused[k] = m.cmd.GetLaunched()
	s.say(h, m)
}

func launched(h *host, k runKey, ok bool, cause job.Cause, now int64) message {
	return message{key: k, cmd: &logpb.Command{Of: &logpb.Command_Launched{Launched: &logpb.Launched{
		JobId: k.job, Run: k.run, Node: h.name, Ok: ok, Cause: uint32(cause), StartMs: now, Error: "why"}}}}
}

// start is the launcher starting a run: once in its life, and not behind its lease.
func (s *sim) start(h *host, p *proc) {
	switch {
	case p.leaseOver || p.lease > 0 && p.startAt-p.renewed > p.lease:
		s.refuse(h, p.key, job.CauseCredential)
		if !p.told || p.forgotten {
			h.drop(p)
			return
		}
		// The state was told that the run is here and takes no such answer any more: it gets a report too.
		p.phase = reporting
		p.report = &logpb.Reported{JobId: p.key.job, Run: p.key.run, Step: job.BatchStep, Node: h.name, Error: "why", Cause: uint32(job.CauseCredential), StartMs: s.now, EndMs: s.now}
		s.sayReport(h, p)
		return
	case h.claims[p.key]:
		h.drop(p)
		s.say(h, launched(h, p.key, false, job.CauseDuplicate, s.now))
		return
	}
	h.claims[p.key] = true
	if s.started[p.key] {
		s.fail("run %d of job %d is started a second time, on %s", p.key.run, p.key.job, h.name)
	}
	s.started[p.key] = true
	p.phase, p.begun = live, p.startAt
	p.endAt = p.begun + int64(1+s.dice.below(pick(s, 100, 20_000, 300_000)))
	s.stats.Runs++
	switch s.dice.below(8) {
	case 0:
		p.exit.Code = int32(1 + s.dice.below(3))
	case 1:
		p.exit.Signal = 11
	case 2:
		p.oom = s.happens("oom")
	}
	s.note("%s starts run %d of job %d", h.name, p.key.run, p.key.job)
	s.alive(h, p)
	s.say(h, launched(h, p.key, true, job.CauseNone, s.now))
}

// age ends a run whose time has come: of itself, by its limit, by its lease, or because it was killed.
func (s *sim) age(h *host, p *proc) {
	end, why := p.endAt, p.why
	if p.dies > 0 && p.dies < end {
		end = p.dies
	}
	if limit := p.begun + p.limit; p.limit > 0 && limit < end && why == job.WhyNone {
		end, why = limit, job.WhyTimeLimit
	}
	if p.lease > 0 {
		if over := p.renewed + p.lease; s.now > over && !p.leaseOver {
			p.leaseOver = true
			if at := over + int64(s.dice.below(killDelay)); p.dies == 0 || at < p.dies {
				if p.dies, p.why = at, job.WhyStale; at < end {
					end, why = at, p.why
				}
			}
		}
	}
	if s.now >= end {
		s.end(h, p, end, why)
	}
}

// end is the end of a run's processes; the shepherd writes it down.
func (s *sim) end(h *host, p *proc, at int64, why job.Why) {
	p.phase = reporting
	if p.forgotten {
		h.drop(p)
		return
	}
	r := &logpb.Reported{JobId: p.key.job, Run: p.key.run, Step: job.BatchStep, Node: h.name, StartMs: p.begun, EndMs: at,
		ExitCode: p.exit.Code, Signal: p.exit.Signal, Oom: p.oom, KilledFor: uint32(why), UserUs: 1000, SysUs: 10, MaxRss: 1 << 20}
	if why != job.WhyNone {
		r.Signal, r.ExitCode, r.Oom = 15, 0, false
	}
	if s.happens("badend") {
		switch s.dice.below(3) {
		case 0:
			r.EpilogError = "exit 1"
		case 1:
			r.StdoutError = "no such directory"
		default:
			r.Error, r.Cause = "cannot", uint32(pick(s, job.CauseUser, job.CauseProlog, job.CauseNode))
		}
	}
	p.report = r
	s.note("%s: run %d of job %d has ended, %v", h.name, p.key.run, p.key.job, why)
	s.sayReport(h, p)
}

// sayReport sends a run's report when there is a session to send it in; a new session sends it again.
func (s *sim) sayReport(h *host, p *proc) {
	s.say(h, message{cmd: &logpb.Command{Of: &logpb.Command_Reported{Reported: p.report}}, key: p.key, report: true})
}

// say puts a message on its way to the leader.
func (s *sim) say(h *host, m message) {
	if s.happens("late") && len(s.late) < 200 {
		s.late = append(s.late, fact{m.cmd})
	}
	if !m.report && s.happens("drop") {
		return // answers to launches are not kept: the order comes again
	}
	if ses := h.session; ses != nil && ses.ready && h.agent {
		ses.toLeader = append(ses.toLeader, m)
	}
}

// hear is the agent taking the next message of its session.
func (s *sim) hear(h *host, m order) {
	s.did++
	p := h.find(m.key)
	switch {
	case m.launch != nil:
		s.onLaunch(h, m.launch)
	case m.ack:
		if p != nil && p.phase == reporting {
			h.drop(p)
			h.done[m.key] = true
		}
	case m.beat > 0:
		s.renew(h, m.beat)
	case m.forget:
		s.onForget(h, p)
	case m.limit != nil:
		if p != nil {
			p.limit = *m.limit
		}
	case m.kill != job.WhyNone:
		found := p != nil
		if found && p.phase != reporting && (p.dies == 0 || p.dies > s.now+2000) {
			p.dies, p.why = s.now+1+int64(s.dice.below(20_000)), m.kill
			p.dies = max(p.dies, p.startAt+1)
		}
		if ses := h.session; ses != nil && !s.happens("drop") {
			ses.toLeader = append(ses.toLeader, message{key: m.key, killed: true, found: found})
		}
	case m.signal:
		if ses := h.session; ses != nil {
			ses.toLeader = append(ses.toLeader, message{key: m.key, killed: true, signalled: true, found: found(p)})
		}
	}
}

func found(p *proc) bool { return p != nil }

func (s *sim) onForget(h *host, p *proc) {
	switch {
	case p == nil:
	case p.phase == reporting:
		h.drop(p)
		h.done[p.key] = true
	default:
		if j := s.view.Job(p.key.job); holding(j, p.key) && j.Kill == job.WhyNone {
			s.fail("run %d of job %d is ended on %s as not known, and it is wanted", p.key.run, p.key.job, h.name)
		}
		p.forgotten, p.why = true, job.WhyStale
		p.dies = max(s.now, p.startAt) + 1
	}
}

// renew takes the answer to a heartbeat, which was asked for at that time.
func (s *sim) renew(h *host, asked int64) {
	h.renewed = max(h.renewed, asked)
	for _, p := range h.runs {
		switch {
		case p.phase == live && !p.leaseOver:
			p.renewed = max(p.renewed, asked)
		case p.phase == starting && p.lease > 0 && !p.leaseOver:
			if p.leaseOver = s.now-p.renewed > p.lease; !p.leaseOver {
				p.renewed = max(p.renewed, asked)
			}
		}
	}
}

// held lists the runs that the host has.
func (h *host) held() (list []state.RunKey) {
	for _, p := range h.runs {
		list = append(list, state.RunKey{JobID: p.key.job, Run: p.key.run})
	}
	return list
}

// crash ends the agent. Shepherds go on; of orders that wait the launcher has some.
func (s *sim) crash(h *host) {
	s.hangUp(h)
	s.did++
	h.agent, h.refused, h.done, h.renewed = false, map[runKey]*logpb.Launched{}, map[runKey]bool{}, 0
	for _, p := range slices.Clone(h.runs) {
		if p.phase != starting {
			continue
		}
		if s.dice.in(2) && !h.claims[p.key] {
			p.startAt = s.now
			s.start(h, p)
		} else {
			h.drop(p)
		}
	}
}

// off takes the host's power: nothing on it is alive any more. Some records of what ended are lost.
func (s *sim) off(h *host) {
	s.hangUp(h)
	s.did++
	h.up, h.agent, h.refused, h.done, h.renewed = false, false, map[runKey]*logpb.Launched{}, map[runKey]bool{}, 0
	for _, p := range slices.Clone(h.runs) {
		was := p.phase
		if p.phase = reporting; s.dice.in(2) || was == starting {
			h.drop(p)
		} else if was == live {
			p.report = &logpb.Reported{JobId: p.key.job, Run: p.key.run, Step: job.BatchStep, Node: h.name, Lost: true, StartMs: p.begun, EndMs: s.now}
		}
	}
}

func (s *sim) powerOn(h *host) {
	s.did++
	h.up, h.agent = true, true
	h.boot++
}

// hangUp ends the host's session. What is on its way to the leader may still arrive.
func (s *sim) hangUp(h *host) {
	if ses := h.session; ses != nil {
		s.did++
		ses.over = true
		ses.toHost = nil
		if s.dice.in(2) {
			ses.toLeader = nil
		}
		h.session = nil
	}
}

// devicesOf tells which devices of its hosts an allocation means, by the lists that the state has.
func devicesOf(v *state.View, allocs []job.NodeAlloc) (list []device) {
	for i := range allocs {
		n := v.Node(allocs[i].Node)
		if n == nil || len(allocs[i].Gres) == 0 {
			continue
		}
		inventory, _ := gres.ParseInventory(n.Config.Gres)
		for _, g := range allocs[i].Gres {
			before := uint64(0)
			for _, item := range gres.Items(inventory) {
				if item.Name != g.Name {
					continue
				}
				if item.Type == g.Type {
					break
				}
				before += item.Count
			}
			for _, x := range g.Index {
				list = append(list, device{n.Name, g.Name, before + uint64(x)})
			}
		}
	}
	return list
}
