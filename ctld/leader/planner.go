package leader

import (
	"cmp"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

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

// planner is the plan loop's own: what it has planned on, and when it is to plan again.
type planner struct {
	l      *Leader
	t      *term
	brain  *sched.Planner // what planning remembers; begun anew when it is not known what became of a plan
	memory planMemory
	clock  replica.Clock // as the entries' is

	config *state.Config // of which policy is
	policy sched.Policy

	fresh   bool      // plan whatever the capacity is
	planned uint64    // capacity version of the last plan
	next    int64     // the state's time, Unix ms, at which a job may start that waits for it; 0 = none does
	again   time.Time // instant at which to plan although nothing has changed; zero = never
	rest    time.Time // instant before which no plan is made, unless an agent has said something
	breath  time.Time // nor before this one, when sessions put it into the log by themselves

	pipe pipeline
}

func newPlanner(l *Leader, t *term) *planner {
	p := &planner{l: l, t: t, fresh: true, brain: sched.NewPlanner(), pipe: newPipeline(l.Log)}
	p.memory.forget()
	return p
}

// planLoop plans when something has changed that could let a job start, or a begin time has come. The
// next plan is made while the last ones are on their way into the log, on the state as it will be when they
// are in it (see pipeline). What agents say goes through its hands: reports and the plan that they make
// possible are one proposal.
func (l *Leader) planLoop(t *term) {
	p := newPlanner(l, t)
	wake := time.NewTimer(0)
	defer wake.Stop()
	for t.ctx.Err() == nil {
		p.collect()
		if p.pipe.full() {
			select {
			case <-t.ctx.Done():
			case f := <-p.pipe.landed:
				p.outcome(f)
			}
			continue
		}
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
		case f := <-p.pipe.landed:
			p.outcome(f)
		case <-changed:
		case <-t.intake.wake:
		case <-wake.C:
		}
	}
}

// collect takes what has landed.
func (p *planner) collect() {
	for {
		select {
		case f := <-p.pipe.landed:
			p.outcome(f)
		default:
			return
		}
	}
}

// round puts what agents said, and a plan when one is due, into the log. It tells whether there is
// more to do now, else how long nothing is if nothing changes.
func (p *planner) round(view state.Viewer, said []*offer) (again bool, wait time.Duration) {
	began, now := p.l.instant(), p.clock.At(p.l.Now().UnixMilli(), view.Time(), p.l.Elapsed())
	f := &flight{said: said, reports: reportsOf(said), before: view}
	if f.guess = p.pipe.foresee(view, now, f.reports); f.guess == nil {
		// A plan on its way will not be taken as it was meant: nothing is planned until it is known what is.
		p.pipe.drain = true
		f.guess = view
	}
	capacity := capacityOf(f.guess)
	due := p.fresh || capacity != p.planned || p.next > 0 && now >= p.next || !p.again.IsZero() && !began.Before(p.again)
	if left := p.rest.Sub(began); due && left > 0 && len(said) == 0 {
		return false, left
	}
	cmds := commandsOf(said)
	if due && !p.pipe.drain {
		p.planned = capacity
		cmds = append(cmds, p.plan(f, now, began)...)
	}
	if len(cmds) > 0 {
		p.pipe.send(p.t.ctx, f, cmds)
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

// plan plans on the flight's guess and gives the commands. What of the decision goes into the log is the
// flight's.
func (p *planner) plan(f *flight, now int64, began time.Time) []*logpb.Command {
	d := p.brain.Plan(f.guess.Sched(), now, p.policyOf(f.guess))
	p.next, p.again, p.fresh = d.Wake, time.Time{}, false
	for i := range d.Starts {
		d.Starts[i].Lease = p.l.leaseOf(f.guess, &d.Starts[i]).Milliseconds()
	}
	news := *d // the planner keeps its own
	hold := oversize(&news)
	if len(hold) > 0 {
		p.l.Logger.Warn("jobs are held: their starts are over MaxCommand", "jobs", len(hold)/2)
	}
	p.memory.compare(f.guess)
	if p.memory.filter(&news, began) {
		p.by(began.Add(reasonQuiet))
	}
	f.d = &news
	p.pace(began, len(news.Starts)+len(news.Evicts))
	return append(planCommands(&news), hold...)
}

// policyOf is what the replicated configuration says of planning.
func (p *planner) policyOf(view state.Viewer) sched.Policy {
	if c := view.Config(); c != p.config {
		p.config, p.policy = c, view.Policy()
	}
	return p.policy
}

// by makes sure that the next plan is not later than the instant.
func (p *planner) by(instant time.Time) {
	if p.again.IsZero() || instant.Before(p.again) {
		p.again = instant
	}
}

// pace lets a plan that changes nothing be followed by a rest, and turns agents' words away from the
// loop while plans take long: reports must not wait for them.
func (p *planner) pace(began time.Time, moves int) {
	took := p.l.instant().Sub(began)
	p.t.intake.open(took <= slowPlan)
	p.rest, p.breath = time.Time{}, time.Time{}
	if moves == 0 {
		p.rest = began.Add(took + min(took*idleShare, maxIdle))
		p.breath = began.Add(took + min(took, maxIdle))
	}
}

// outcome notes what became of a proposal.
func (p *planner) outcome(f *flight) {
	last := p.pipe.land(f)
	if f.err != nil {
		p.memory.forget()
		p.brain = sched.NewPlanner()
		p.fresh, p.pipe.drain = true, !last
		p.l.pause(p.t.ctx, retryDelay)
		return
	}
	d := f.d
	if d == nil {
		return
	}
	taken := takenOf(f.results)
	if taken < len(d.Starts) {
		p.l.Logger.Info("starts not taken", "planned", len(d.Starts), "taken", taken, "base", d.Base)
		// More may fit where a part of the plan was stale. What was planned on top of it is let land first.
		p.pipe.drain = !last
		if p.fresh = p.fresh || taken > 0; !p.fresh {
			p.by(p.l.instant().Add(staleDelay))
		}
		return
	}
	// The guess was right when this entry, and no other, came on top of what it was made from, and
	// gave what it gave. Otherwise the plan has to be looked at again.
	after := p.l.Log.View()
	exact := after.Version() == f.version && capacityOf(after) == capacityOf(f.guess)
	switch {
	case taken > 0 && (!exact || taken >= cmp.Or(p.policy.MaxStarts, sched.MaxStarts)):
		p.fresh = true
	case taken > 0: // what a plan leaves does not fit; once things are quiet it is looked at again
		p.by(p.l.instant().Add(confirmPlan))
	case !exact && f.guess != f.before:
		p.fresh = true
	}
}
