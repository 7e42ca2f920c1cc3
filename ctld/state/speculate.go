package state

import (
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Capacity is the version of what could let a waiting job start: a plan made at it need not be made again.
func (v *View) Capacity() uint64 { return v.capacity }

// Foresee gives the view as it would be if these reports were taken at time now (Unix ms), for a
// plan that goes into the log together with them. It is a guess: only reports that end a run in the
// ordinary way count, and nobody is woken that waited for its end. Whoever plans on it must compare
// Capacity afterwards with that of the state. Nothing of v changes, nor of the store.
func (v *View) Foresee(now int64, reports []*Reported) *View {
	return v.ForeseePlan(now, reports, nil)
}

// ForeseePlan gives the view as it would be if these reports were taken, and after them these plans, at time now: what
// a leader plans on whose last plan is still on its way into the log. As with Foresee it is a guess.
func (v *View) ForeseePlan(now int64, reports []*Reported, plans []*sched.Decision) *View {
	v.mu.Lock() // a copy marks what it was made from
	f := &View{tables: v.tables.copy(), cache: v.cache.fork()}
	v.mu.Unlock()
	p := newPrivate()
	p.classNums = trialClasses
	f.time = max(f.time, now)
	t := &Tx{tables: &f.tables, private: &p, now: f.time}
	for _, r := range reports {
		if t.ordinary(r) {
			t.Reported(r)
		}
	}
	for _, d := range plans {
		f.version++ // each is an entry of its own
		t.Plan(d)
	}
	return f
}

// fork gives a trial a cache of its own that begins with what this one has: of what the trial does not change the
// planner gets the same pointers.
func (c *schedCache) fork() *schedCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &schedCache{made: c.made, usage: trialUsage, key: c.key, nodes: c.nodes, forms: c.forms, runs: c.runs, fixed: c.fixed,
		shares: c.shares, versions: c.versions}
}

// trialUsage is no version of any store's usage: a trial counts its own on, so that equal numbers mean nothing.
const trialUsage = ^uint64(0)

// trialClasses is where the numbers of classes begin that a trial makes: those of the store are below.
const trialClasses = 1 << 31

// ordinary tells whether a report ends a run of its own accord, so that nothing follows from it but
// free resources. What may queue the job again, or drain the node, is left to Apply.
func (t *Tx) ordinary(r *Reported) bool {
	j, i := t.onNode(r.JobID, r.Run, r.Node)
	return j != nil && i == 0 && r.Step == job.BatchStep && isRunning(j) && j.Kill == job.WhyNone &&
		r.KilledFor == job.WhyNone && !r.Lost && r.Error == "" && r.EpilogError == "" && r.StdoutError == ""
}
