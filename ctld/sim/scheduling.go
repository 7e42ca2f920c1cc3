package sim

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// schedules tells whether the state knows what the scheduler's level brought.
func (s *sim) schedules() bool { return s.view.Feature() >= state.FeatureSched }

// policy is what a view says of planning, with the bounds of this run.
func (s *sim) policy(v *state.View) sched.Policy {
	p := v.Policy()
	p.MaxStarts, p.Depth = s.swarm.policy.MaxStarts, s.swarm.policy.Depth
	return p
}

// licenses is how many licenses foo there are.
const licenses = 3

// schedConfig is what a configuration says of ranking, limits and preemption.
func (s *sim) schedConfig() state.SchedConfig {
	c := state.SchedConfig{
		PriorityType: s.swarm.order, WeightAge: 1000, WeightShare: 1000, WeightPart: 10, WeightQOS: 100, MaxAge: 600_000, HalfLife: s.swarm.halfLife,
		CalcPeriod: 60_000, PreemptType: s.swarm.preempt, PreemptMode: s.swarm.preemptMode, Licenses: []string{fmt.Sprint("foo:", licenses)},
		Parameters: []string{fmt.Sprint("promises=", s.swarm.promises)},
	}
	if s.on("kill-invalid") {
		c.Dependencies = []string{"kill_invalid_depend"}
	}
	if s.on("limits") && !s.quiesced {
		c.Enforce = []string{"limits", "qos"}
	}
	return c
}

// het submits a heterogeneous job.
func (s *sim) het() {
	if all, _, _ := s.view.Counts(); all > maxJobs || !s.schedules() {
		return
	}
	var specs []*logpb.JobSpec
	first := s.spec()
	for range 2 + s.dice.below(2) {
		c := s.spec()
		c.Array, c.Uid, c.User, c.Dependency, c.BeginMs, c.Hold = "", first.Uid, first.User, first.Dependency, first.BeginMs, first.Hold
		c.Requeue = first.Requeue
		specs = append(specs, c)
	}
	s.users.next++
	sum := sha256.Sum256([]byte(fmt.Sprint(s.users.next)))
	s.propose(nil, &logpb.Command{Of: &logpb.Command_SubmitHet{SubmitHet: &logpb.SubmitHet{Digest: sum[:], Specs: specs}}})
}

// suspend is an operator who stops a job, or lets one go on.
func (s *sim) suspend() {
	j := s.someJob()
	if j == nil {
		return
	}
	op := pick(s, state.OpSuspend, state.OpResume)
	s.propose(nil, &logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: uint32(op), Jobs: []*logpb.JobRef{s.ref(j)}, Caller: caller(true, 0)}}})
}

// account changes accounts, users and their limits.
func (s *sim) account() {
	if !s.schedules() {
		return
	}
	c := &logpb.AccountingChange{Caller: caller(true, 0)}
	user := fmt.Sprint("u", 1+s.dice.below(3))
	switch s.dice.below(9) {
	case 0:
		c.Verb, c.Entity, c.Set = "add", "account", []string{"name", "=", pick(s, "a", "b")}
	case 1:
		c.Verb, c.Entity, c.Set = "add", "user", []string{"name", "=", user, "account", "=", pick(s, "a", "b"), "fairshare", "=", "10"}
	case 2:
		c.Verb, c.Entity = "modify", "user"
		c.Where, c.Set = []string{"name", "=", user}, []string{"maxjobs", "=", pick(s, "-1", "2", "5")}
	case 3:
		c.Verb, c.Entity = "modify", "account"
		c.Where, c.Set = []string{"name", "=", pick(s, "a", "b")}, []string{"grptres", "=", pick(s, "cpu=-1", "cpu=4", "cpu=8,node=2")}
	case 4:
		c.Verb, c.Entity, c.Set = "add", "qos", []string{"name", "=", "hi", "priority", "=", "100", "preempt", "=", "normal"}
	case 5:
		c.Verb, c.Entity = "modify", "account"
		c.Where, c.Set = []string{"name", "=", "root"}, []string{"qos", "=", "normal,hi"}
	case 6:
		c.Verb, c.Entity = "modify", "qos"
		c.Where, c.Set = []string{"name", "=", pick(s, "normal", "hi")}, pick(s, []string{"maxtresperuser", "=", pick(s, "cpu=-1", "cpu=6")},
			[]string{"grpjobs", "=", pick(s, "-1", "3")}, []string{"maxjobsperuser", "=", pick(s, "-1", "2")}, []string{"grptres", "=", pick(s, "cpu=-1", "cpu=8")})
	default:
		s.propose(nil, &logpb.Command{Of: &logpb.Command_UsageTick{UsageTick: &logpb.UsageTick{}}})
		return
	}
	s.propose(nil, &logpb.Command{Of: &logpb.Command_AccountingChange{AccountingChange: c}})
}

// reserve makes and deletes reservations.
func (s *sim) reserve() {
	if !s.schedules() {
		return
	}
	c := &logpb.ReservationChange{Verb: pick(s, "create", "create", "delete"), Name: pick(s, "r1", "r2"), Caller: caller(true, 0)}
	if c.Verb == "create" {
		start := s.view.Time() + int64(s.dice.below(120_000))
		c.Set = []string{"starttime", "=", fmt.Sprint(start), "duration", "=", pick(s, "1", "3"), "users", "=", pick(s, "u1", "u2"),
			"nodes", "=", s.someHost().name, "flags", "=", pick(s, "IGNORE_JOBS", "IGNORE_JOBS,MAINT")}
	}
	s.propose(nil, &logpb.Command{Of: &logpb.Command_ReservationChange{ReservationChange: c}})
}

// unreserve lets the world come to rest: nothing is reserved, what operators suspended goes on.
func (s *sim) unreserve() {
	if !s.schedules() {
		return
	}
	for _, r := range s.view.Reservations() {
		s.propose(nil, &logpb.Command{Of: &logpb.Command_ReservationChange{ReservationChange: &logpb.ReservationChange{Verb: "delete", Name: r.Name, Caller: caller(true, 0)}}})
	}
	for j := range s.view.Active() {
		if j.State == job.Suspended && !j.SuspendedByPlan && j.HetOffset == 0 {
			s.propose(nil, &logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: uint32(state.OpResume), Jobs: []*logpb.JobRef{{JobId: j.ID}}, Caller: caller(true, 0)}}})
		}
	}
}

// given promises: the start that each waiting record holds since nothing has happened that may move it.
type promised map[promiseOf]int64

// promiseOf is what a promise is made to: a run of a job, or the next task of an array.
type promiseOf struct {
	job, run uint32
	left     int // tasks that wait
}

// keepPromises checks that a promise moves to a later time only where an operator, a node or a reservation came between.
func (s *sim) keepPromises(before *state.View, cmds []*logpb.Command) {
	stale := late(before, s.view.Time()) || late(s.view, s.view.Time())
	if stale {
		clear(s.promises)
	}
	for i, c := range cmds {
		// A plan that was made on another state may give what that one cannot keep.
		if p := c.GetPlan(); mayMove(c) || p != nil && (i > 0 || p.Base != before.Version()) {
			clear(s.promises)
			stale = stale || p != nil
		}
	}
	if s.on("clock") {
		return
	}
	reviewed := !stale && len(cmds) > 0 && cmds[0].GetPlan() != nil // what stands now is what a plan on this very state left
	now := promised{}
	for _, p := range s.view.Sched().Promised {
		of := promiseOf{job: p.JobID, run: p.Run}
		if p.Tasks != nil {
			of.left = p.Tasks.Len()
		}
		start, was := p.Promise.Start, s.promises[of]
		if was > 0 && start > was && was > s.view.Time() {
			s.fail("job %d was promised to start at %d, and then at %d, later", p.JobID, was, start)
		}
		if reviewed || was > 0 && !stale {
			now[of] = start
		}
	}
	s.promises = now
}

// lateness is how much later than it should a run may end, or start, before promises behind it may move.
const lateness = 5 * 60_000

// late tells whether something is later than that.
func late(v *state.View, now int64) bool {
	snap := v.Sched()
	return slices.ContainsFunc(snap.Promised, func(p sched.Promised) bool { return p.Promise.Start+lateness < now }) ||
		slices.ContainsFunc(snap.Running, func(r *sched.Running) bool { return r.End > 0 && r.End+lateness < now })
}

// mayMove tells whether a command may move promises: it changes nodes, limits, or what runs hold.
func mayMove(c *logpb.Command) bool {
	switch c := c.Of.(type) {
	case *logpb.Command_Plan:
		for _, e := range c.Plan.Evicts {
			if e.How == sched.EvictResume || e.How == sched.EvictSuspend {
				return true // a suspended run holds what it will have when it goes on
			}
		}
		return false
	case *logpb.Command_Submit, *logpb.Command_SubmitHet, *logpb.Command_PutBlob, *logpb.Command_Noop, *logpb.Command_Purge, *logpb.Command_Cancel:
		return false
	case *logpb.Command_Launched:
		return !c.Launched.Ok
	case *logpb.Command_Reported:
		r := c.Reported
		return r.Error != "" || r.EpilogError != "" || r.Lost
	}
	return true
}

// planToLog is the command of a decision.
func planToLog(d *sched.Decision) *logpb.Plan {
	m := &logpb.Plan{Base: d.Base}
	for i := range d.Starts {
		m.Starts = append(m.Starts, fsm.StartToLog(&d.Starts[i]))
	}
	for i := range d.Evicts {
		m.Evicts = append(m.Evicts, fsm.EvictToLog(&d.Evicts[i]))
	}
	for i := range d.Promises {
		m.Promises = append(m.Promises, fsm.PromiseToLog(&d.Promises[i]))
	}
	for _, r := range d.Reasons {
		m.Reasons = append(m.Reasons, &logpb.ReasonChange{JobId: r.JobID, Reason: string(r.Reason), Detail: r.Detail, StartMs: r.Start})
	}
	for _, c := range d.Classes {
		m.Classes = append(m.Classes, &logpb.ClassReason{Class: c.Class, Reason: string(c.Reason), Detail: c.Detail, StartMs: c.Start})
	}
	return m
}
