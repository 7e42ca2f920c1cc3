package state

import (
	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// This file is what a view answers about requests that are not made.

// NextID is the id that the next job gets.
func (t *tables) NextID() uint32 { return t.nextID }

// TryAccounting says what a command of gacctmgr would change, or that it would be refused. Nothing of v changes.
func (v *View) TryAccounting(c accounting.Change, by Caller) (accounting.Outcome, *Refusal) {
	p := newPrivate()
	shallow := v.tables // replaced as a whole, not changed
	t := &Tx{tables: &shallow, private: &p, now: v.time}
	if r := t.needsSched("accounts"); r != nil {
		return accounting.Outcome{}, r
	}
	if r := t.mayChange(&c, by); r != nil {
		return accounting.Outcome{}, r
	}
	next, out, refused := t.db.Change(c)
	if refused != nil {
		return accounting.Outcome{}, (*Refusal)(refused)
	}
	if r := tooMany(next); r != nil {
		return accounting.Outcome{}, r
	}
	if c.Verb == "delete" {
		if r := t.stillUsed(next); r != nil {
			return accounting.Outcome{}, r
		}
	}
	return out, nil
}

// askedKey is the key of a class that a request would be.
const askedKey = "asked"

// Asked gives what a job of a specification would be to the planner if it were submitted now: a class of its own, with
// it as the only one that waits, behind all that wait already. MaySubmit must have filled in the defaults.
func (v *View) Asked(s *job.Spec) (*sched.Class, sched.Waiting) {
	t := &v.tables
	j := &Job{ID: t.nextID, Spec: s, ArrayTask: -1, State: job.Pending, SubmitSeq: t.submits, Submit: t.time, Begin: s.Begin, Partition: s.Partition}
	j.Priority = max(1, basePriority-int64(j.SubmitSeq)-int64(s.Nice))
	j.Eligible = max(t.time, s.Begin)
	c := &class{key: askedKey, spec: s, count: 1, sched: new(schedClass)}
	if t.feature >= FeatureSched {
		c.shape = shapeKey(appendPlace(nil, j))
	}
	lean := &tables{waiting: newTables().waiting}
	asked, w := t.schedClass(c, lean), t.schedWaiting(j)
	asked.Waiting = func(yield func(sched.Waiting) bool) { yield(w) }
	return asked, w
}

// Policy is what the configuration says of planning. Words that cannot be read were told of when it was loaded, and
// leave all of their kind as they are by default.
func (t *tables) Policy() sched.Policy {
	cfg := &t.cfg.Sched
	p, _ := sched.ParsePolicy(cfg.Parameters)
	if t.feature < FeatureSched {
		p.Promises = 0 // there is no place for them
	}
	p.Preempt, _ = sched.ParsePreemption(cfg.PreemptType, cfg.PreemptMode, cfg.PreemptExempt, cfg.PreemptParameters)
	return p
}
