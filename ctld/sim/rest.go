package sim

import (
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// Limits of the way to rest: rounds, and those in which nothing changes before what waits is judged.
const (
	maxRounds   = 3000
	quietRounds = 12
)

// rest stops all faults and lets the world come to rest: every job must end. What can never run is
// cancelled, what is held is released; nothing may wait that fits.
func (s *sim) rest() {
	s.quiesced = true
	s.swarm.policy.Depth = 0 // classes that can never run must not stand before the others for ever
	s.note("faults stop")
	if s.zombie != nil {
		s.depose(s.zombie)
		s.zombie = nil
	}
	s.elect()
	if s.lead != nil {
		s.lead.ahead = 0
	}
	s.repair()
	quiet := 0
	for range maxRounds {
		version := s.view.Capacity()
		s.round()
		if s.failure != nil || s.idle() {
			return
		}
		if quiet++; version != s.view.Capacity() || s.busy() {
			quiet = 0
		}
		if quiet >= quietRounds {
			quiet = 0
			if s.judge(); s.failure != nil {
				return
			}
		}
	}
	s.fail("the world does not come to rest: %s", s.stuck())
}

// repair brings everything back into service.
func (s *sim) repair() {
	s.propose(nil, raise(s.view.Feature()+1))
	s.propose(nil, s.config(false))
	for _, p := range []string{"p", "q", "r"} {
		s.propose(nil, &logpb.Command{Of: &logpb.Command_PartitionUpdate{PartitionUpdate: &logpb.PartitionUpdate{Name: p, Set: map[string]string{"State": "UP"}, Caller: caller(true, 0)}}})
	}
	for _, h := range s.hosts {
		if h.kept, h.cut = false, false; !h.up {
			s.powerOn(h)
		}
		h.agent = true
	}
	s.commit(len(s.pipe))
	s.resume()
	s.unreserve()
}

// resume lifts what keeps nodes out of service.
func (s *sim) resume() {
	for n := range s.view.Nodes() {
		if n.State == node.Down || n.Flags&(node.Drain|node.Fail) != 0 {
			s.propose(nil, &logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{Nodes: []string{n.Name}, State: "RESUME", Caller: caller(true, 0)}}})
		}
	}
}

// round lets everything that can happen happen once.
func (s *sim) round() {
	s.event++
	s.now += 1 + int64(s.dice.below(20_000))
	s.due()
	s.everything()
	s.resume()
	s.unreserve()
	for _, h := range s.hosts {
		s.open(h)
	}
	s.everything()
	s.beat()
	s.liveness()
	s.fence()
	s.timers()
	s.plan()
	s.everything()
	for _, h := range s.hosts {
		if ses := h.session; ses != nil && ses.ready {
			s.drive(ses)
		}
	}
	s.everything()
	if s.failure == nil && s.event%s.o.Every == 0 {
		s.costly()
	}
}

// everything delivers all messages and puts all that waits into the log.
func (s *sim) everything() {
	for range 50 {
		moved := len(s.pipe) > 0
		s.commit(len(s.pipe))
		for _, ses := range s.lead.sessions {
			for len(ses.toLeader) > 0 {
				s.listen(ses)
				moved = true
			}
		}
		for _, h := range s.hosts {
			for ses := h.session; ses != nil && h.session == ses && ses.ready && len(ses.toHost) > 0; moved = true {
				m := ses.toHost[0]
				ses.toHost = ses.toHost[1:]
				s.hear(h, m)
			}
		}
		if !moved || s.failure != nil {
			return
		}
	}
}

func (s *sim) idle() bool {
	for j := range s.view.Live() {
		_ = j
		return false
	}
	return true
}

// busy tells whether something is alive: time brings it to its end.
func (s *sim) busy() bool {
	for _, h := range s.hosts {
		for _, p := range h.runs {
			if p.phase != reporting {
				return true
			}
		}
	}
	return false
}

// maxWaits is how often a seed's end may wait for a promised start with nothing running.
const maxWaits = 100

// judge looks at what waits while nothing runs and nothing changes: it is held, waits for its time, can
// never start, or the planner is wrong.
func (s *sim) judge() {
	moved := false
	move := func(c *logpb.Command) {
		moved = true
		s.propose(nil, c)
	}
	for j := range s.view.Live() {
		if j.State != job.Pending || j.Flags&job.Completing != 0 {
			s.fail("job %d is %s %v for ever, nothing of it is alive; run %d on %s, done %v, confirmed %v, to be ended: %d", j.ID, j.State, j.Flags.Names(),
				j.Run, j.Allocs[0].Node, j.Done, j.Confirmed, j.Kill)
			return
		}
		ref := []*logpb.JobRef{{JobId: j.ID}}
		switch begin := max(j.Begin, j.EligibleAt); {
		case j.Priority == 0:
			move(&logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: uint32(state.OpRelease), Jobs: ref, Caller: caller(true, 0)}}})
		case j.Dep == state.DepNever || s.never(j) || j.Spec.RareValue(job.OptReservation) != "": // nothing is reserved any more
			move(&logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: ref, Caller: caller(true, 0)}}})
		case j.Dep == state.DepMet && begin > s.view.Time():
			moved = true
			s.now += begin - s.view.Time()
		case j.Dep == state.DepMet && j.Het != 0: // each component could run, which does not tell that all can at once
			move(&logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: ref, Caller: caller(true, 0)}}})
		}
	}
	s.everything()
	if moved || s.failure != nil {
		return
	}
	// What was promised while more ran may stand in each other's way until its time comes.
	d := sched.Plan(s.view.Sched(), s.view.Time(), s.view.Policy())
	if s.waits++; s.waits <= maxWaits && d.Wake > s.view.Time() {
		s.now += d.Wake - s.view.Time()
		return
	}
	s.fail("nothing runs, and this waits for ever: %s", s.stuck())
}

// stuck lists what has not ended.
func (s *sim) stuck() string {
	var list []string
	for j := range s.view.Live() {
		reason, detail := s.view.Reason(j)
		list = append(list, fmt.Sprintf("%s %s %s %s dependency %q partition %s nodes %d-%d %q not %q tasks %d of %d a node %d features %q gres %q limit %d-%d", j.Name(), j.State, reason, detail,
			j.Spec.Dependency, j.Spec.Partition, j.Spec.MinNodes, j.Spec.MaxNodes, j.Spec.NodeList, j.Spec.Exclude, j.Spec.NTasks, j.Spec.CPUsPerTask, j.Spec.NTasksPerNode, j.Spec.Constraint, j.Spec.Gres, j.Spec.TimeMin, j.Spec.TimeLimit))
	}
	return strings.Join(list, "; ")
}

// never tells whether no partition that it names could ever run the job, by the rules that a submission
// is judged by and not by the planner.
func (s *sim) never(j *state.Job) bool {
	for name := range strings.SplitSeq(j.Spec.Partition, ",") {
		p := s.view.Partition(name)
		if p == nil || p.State != "UP" {
			continue
		}
		var nodes []partitions.Capacity
		for _, n := range p.Nodes {
			if c := s.view.Node(n); c != nil && !c.Removed {
				nodes = append(nodes, partitions.Capacity{Name: n, CPUs: c.Config.CPUs, Mem: c.Config.Mem, TmpDisk: c.Config.TmpDisk,
					Sockets: c.Config.Sockets, Cores: c.Config.CoresPerSocket, Threads: c.Config.ThreadsPerCore, Features: c.Features, Gres: c.Config.Gres, Usable: c.Usable()})
			}
		}
		if partitions.Admit(p, j.Spec, partitions.Who{UID: j.Spec.UID}, nodes) == nil {
			return false
		}
	}
	return true
}
