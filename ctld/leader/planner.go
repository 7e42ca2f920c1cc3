package leader

import (
	"cmp"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// maxPlanBytes is how large one Plan command gets: below the log's limit, with room for the frame.
const maxPlanBytes = replica.MaxCommand - 64<<10

// reasonQuiet is how long a verdict's words may lag behind: only its numbers have changed. A new
// reason is proposed at once.
const reasonQuiet = 5 * time.Second

// A plan that starts nothing is followed by a pause of idleShare times its length: while submissions
// pour into a full cluster, looking again at each of them must not take the machine from the log.
const (
	idleShare = 4
	maxIdle   = 100 * time.Millisecond
)

// slowPlan is how long a plan may take for reports to wait for it.
const slowPlan = 5 * time.Millisecond

// staleDelay is the pause after a plan of which nothing was taken, unless something changes before.
const staleDelay = time.Second

// lookAtClock is how often the wall clock is looked at while a job waits for its time.
const lookAtClock = time.Minute

// confirmPlan is when a plan that left nothing open is made again, although nothing has changed.
const confirmPlan = 100 * time.Millisecond

// takenOf counts the starts that the state has taken.
func takenOf(results []fsm.Result) (n int) {
	for _, r := range results {
		n += r.Taken
	}
	return n
}

// told is a verdict that the state has.
type told struct {
	sched.ClassReason
	at time.Time // instant
}

// planMemory is what the plan loop remembers of its term.
type planMemory struct {
	classes map[string]told
	jobs    map[uint32]sched.Reason
}

// planner is the plan loop's own: what it has planned on, and when it is to plan again.
type planner struct {
	l      *Leader
	t      *term
	memory planMemory
	clock  replica.Clock // as the entries' is

	fresh   bool      // plan whatever the capacity is
	planned uint64    // capacity version of the last plan
	next    int64     // the state's time, Unix ms, at which a job may start that waits for it; 0 = none does
	again   time.Time // instant at which to plan although nothing has changed; zero = never
	rest    time.Time // instant before which no plan is made, unless an agent has said something
	breath  time.Time // nor before this one, when sessions put it into the log by themselves
}

// planLoop plans when something has changed that could let a job start, or a begin time has come.
// It waits for one plan to be in the log before it makes the next: no start is proposed twice, and
// whatever came meanwhile goes into one plan. What agents say goes through its hands: reports and
// the plan that they make possible are one proposal.
func (l *Leader) planLoop(t *term) {
	p := &planner{l: l, t: t, fresh: true}
	p.memory.forget()
	wake := time.NewTimer(0)
	defer wake.Stop()
	for t.ctx.Err() == nil {
		view := l.Log.View()
		changed := l.Log.Changed(view.Index())
		said, passed := t.intake.take()
		if passed {
			p.rest = p.breath
		}
		again, wait := p.round(view, said)
		if again {
			continue
		}
		wake.Reset(wait)
		select {
		case <-t.ctx.Done():
		case <-changed:
		case <-t.intake.wake:
		case <-wake.C:
		}
	}
}

// round puts what agents said, and a plan when one is due, into the log. It tells whether there is
// more to do now, else how long nothing is if nothing changes.
func (p *planner) round(view state.Viewer, said []*offer) (again bool, wait time.Duration) {
	began, now := p.l.instant(), p.clock.At(p.l.Now().UnixMilli(), view.Time(), p.l.Elapsed())
	guess := foresee(view, now, said)
	capacity := capacityOf(guess)
	due := p.fresh || capacity != p.planned || p.next > 0 && now >= p.next || !p.again.IsZero() && !began.Before(p.again)
	if left := p.rest.Sub(began); due && left > 0 && len(said) == 0 {
		return false, left
	}
	cmds := commandsOf(said)
	var d *sched.Decision
	if due {
		d = sched.Plan(guess.Sched(), now, p.l.Policy)
		p.planned, p.next, p.again, p.fresh = capacity, d.Wake, time.Time{}, false
		for i := range d.Starts {
			d.Starts[i].Lease = p.l.leaseOf(guess, &d.Starts[i]).Milliseconds()
		}
		hold := oversize(d)
		if len(hold) > 0 {
			p.l.Logger.Warn("jobs are held: their starts are over MaxCommand", "jobs", len(hold)/2)
		}
		p.memory.compare(guess)
		reasons, later := p.memory.commands(d, began)
		if later {
			p.by(began.Add(reasonQuiet))
		}
		cmds = append(append(cmds, reasons...), hold...)
		p.pace(began, len(d.Starts))
	}
	if len(cmds) > 0 {
		results, err := p.l.propose(p.t.ctx, cmds...)
		settle(said, err)
		p.outcome(view, guess, d, results, err)
		return true, 0
	}
	wait = time.Hour
	if p.next > 0 { // by the wall clock, which may be set meanwhile
		wait = min(lookAtClock, time.Duration(max(p.next-now, 1))*time.Millisecond)
	}
	if !p.again.IsZero() {
		wait = min(wait, max(p.again.Sub(began), time.Millisecond))
	}
	return false, wait
}

// by makes sure that the next plan is not later than the instant.
func (p *planner) by(instant time.Time) {
	if p.again.IsZero() || instant.Before(p.again) {
		p.again = instant
	}
}

// pace lets a plan that starts nothing be followed by a rest, and turns agents' words away from the
// loop while plans take long: reports must not wait for them.
func (p *planner) pace(began time.Time, starts int) {
	took := p.l.instant().Sub(began)
	p.t.intake.open(took <= slowPlan)
	p.rest, p.breath = time.Time{}, time.Time{}
	if starts == 0 {
		p.rest = began.Add(took + min(took*idleShare, maxIdle))
		p.breath = began.Add(took + min(took, maxIdle))
	}
}

// outcome notes what became of a round's proposal. d is nil when there was no plan in it.
func (p *planner) outcome(before, guess state.Viewer, d *sched.Decision, results []fsm.Result, err error) {
	if err != nil {
		p.memory.forget()
		p.fresh = true
		p.l.pause(p.t.ctx, retryDelay)
		return
	}
	if d == nil {
		return
	}
	taken := takenOf(results)
	if taken < len(d.Starts) {
		p.l.Logger.Info("starts not taken", "planned", len(d.Starts), "taken", taken, "base", d.Base)
		// More may fit where a part of the plan was stale.
		if p.fresh = taken > 0; !p.fresh {
			p.by(p.l.instant().Add(staleDelay))
		}
		return
	}
	// The guess was right when this entry, and no other, came on top of what it was made from, and
	// gave what it gave. Otherwise the plan has to be looked at again.
	after := p.l.Log.View()
	exact := after.Version() == before.Version()+1 && capacityOf(after) == capacityOf(guess)
	switch {
	case taken > 0 && (!exact || taken >= cmp.Or(p.l.Policy.MaxStarts, sched.MaxStarts)):
		p.fresh = true
	case taken > 0: // what a plan leaves does not fit; once things are quiet it is looked at again
		p.by(p.l.instant().Add(confirmPlan))
	case !exact && guess != before:
		p.fresh = true
	}
}

// commands turns a decision into Plan commands: all starts, and the reasons that have changed.
// later tells that verdicts wait whose numbers alone have changed.
func (m *planMemory) commands(d *sched.Decision, now time.Time) (cmds []*logpb.Command, later bool) {
	plan := &logpb.Plan{Base: d.Base}
	size := 0
	flush := func() {
		if len(plan.Starts)+len(plan.Reasons)+len(plan.Classes) > 0 {
			cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Plan{Plan: plan}})
			plan, size = &logpb.Plan{Base: d.Base}, 0
		}
	}
	grow := func(part proto.Message) {
		n := proto.Size(part) + 8
		if size += n; size > maxPlanBytes {
			flush()
			size = n
		}
	}
	for i := range d.Starts {
		start := fsm.StartToLog(&d.Starts[i])
		grow(start)
		plan.Starts = append(plan.Starts, start)
	}
	jobs := make(map[uint32]sched.Reason, len(d.Reasons))
	for _, r := range d.Reasons {
		if jobs[r.JobID] = r; m.jobs[r.JobID] == r {
			continue
		}
		change := &logpb.ReasonChange{JobId: r.JobID, Reason: string(r.Reason), Detail: r.Detail, StartMs: r.Start}
		grow(change)
		plan.Reasons = append(plan.Reasons, change)
	}
	m.jobs = jobs
	classes := make(map[string]told, len(d.Classes))
	for _, c := range d.Classes {
		was, known := m.classes[c.Class]
		switch {
		case known && was.ClassReason == c:
			classes[c.Class] = was
			continue
		case known && was.Reason == c.Reason && now.Sub(was.at) < reasonQuiet:
			classes[c.Class], later = was, true
			continue
		}
		classes[c.Class] = told{c, now}
		verdict := &logpb.ClassReason{Class: c.Class, Reason: string(c.Reason), Detail: c.Detail, StartMs: c.Start}
		grow(verdict)
		plan.Classes = append(plan.Classes, verdict)
	}
	m.classes = classes
	flush()
	return cmds, later
}

// verdicts is what a view must offer to tell which of the planner's words the state still has.
type verdicts interface {
	// Verdict gives the planner's last word on a class, "" when there is none; ok is false when
	// nothing of the class waits.
	Verdict(class string) (r job.Reason, ok bool)
}

// compare forgets what the state has dropped since it was told: the class left and came back, or a
// job was changed.
func (m *planMemory) compare(view state.Viewer) {
	if v, ok := view.(verdicts); ok {
		maps.DeleteFunc(m.classes, func(class string, was told) bool {
			r, ok := v.Verdict(class)
			return ok && r == "" && was.Reason != job.ReasonNone
		})
	}
	maps.DeleteFunc(m.jobs, func(id uint32, was sched.Reason) bool {
		j := view.Job(id)
		return j != nil && j.Reason == "" && was.Reason != job.ReasonNone
	})
}

// forget makes the next plan tell everything again: it is not known what the state has.
func (m *planMemory) forget() {
	m.classes, m.jobs = map[string]told{}, map[uint32]sched.Reason{}
}
