package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// newSchedFixture is a fixture whose cluster knows accounts, reservations and priorities.
func newSchedFixture(t testing.TB, more string) *fixture {
	t.Helper()
	f := newFixture(t, more)
	f.propose(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: state.FeatureSched}}})
	cfg, err := conf.Load(f.conf)
	if err != nil {
		t.Fatal(err)
	}
	f.propose(&logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: encode(cfg)}})
	return f
}

// encodeSched is the tests' own small version of what the leader package does with the scheduler's keys.
func encodeSched(c *conf.Config) *logpb.ConfigSched {
	return &logpb.ConfigSched{
		PriorityType: c.PriorityType, WeightAge: c.PriorityWeightAge, WeightFairShare: c.PriorityWeightFairshare, WeightJobSize: c.PriorityWeightJobSize,
		WeightPartition: c.PriorityWeightPartition, WeightQos: c.PriorityWeightQOS, WeightTres: c.PriorityWeightTRES, MaxAgeMs: c.PriorityMaxAge,
		HalfLifeMs: c.PriorityDecayHalfLife, CalcPeriodMs: c.PriorityCalcPeriod, FavorSmall: c.PriorityFavorSmall, PriorityFlags: c.PriorityFlags,
		UsageReset: c.PriorityUsageResetPeriod, Dampening: c.FairShareDampeningFactor, Enforce: c.AccountingStorageEnforce,
		PreemptType: strings.TrimPrefix(c.PreemptType, "preempt/"), SchedulerParameters: c.SchedulerParameters, Licenses: c.Licenses,
	}
}

// clauses writes conditions as the commands do: "name=physics".
func clauses(words ...string) []*ctldpb.Clause {
	var out []*ctldpb.Clause
	for _, w := range words {
		name, value, given := strings.Cut(w, "=")
		c := &ctldpb.Clause{Name: name, Value: value}
		if given {
			c.Op = "="
			if last := name[len(name)-1]; last == '+' || last == '-' {
				c.Name, c.Op = name[:len(name)-1], name[len(name)-1:]+"="
			}
		}
		out = append(out, c)
	}
	return out
}

// account changes accounting as an operator, and expects that it is taken.
func (f *fixture) account(verb, entity string, where, set []*ctldpb.Clause) *ctldpb.ChangeAccountingResponse {
	f.t.Helper()
	resp, err := f.srv.ChangeAccounting(f.as(olga), &ctldpb.ChangeAccountingRequest{Verb: verb, Entity: entity, Where: where, Set: set})
	if err != nil {
		f.t.Fatalf("%s %s %v %v: %v", verb, entity, where, set, err)
	}
	return resp
}

// reserve makes a reservation as an operator.
func (f *fixture) reserve(name string, words ...string) {
	f.t.Helper()
	if _, err := f.srv.ChangeReservation(f.as(olga), &ctldpb.ChangeReservationRequest{Verb: "create", Name: name, Set: clauses(words...)}); err != nil {
		f.t.Fatalf("reservation %s %v: %v", name, words, err)
	}
}

// plan runs one round of the planner and puts what it decides into the log. It gives the ids of the jobs that started.
func (f *fixture) plan() []uint32 {
	f.t.Helper()
	view := f.log.View()
	d := sched.Plan(view.Sched(), f.now.UnixMilli(), view.Policy())
	p := &logpb.Plan{Base: d.Base}
	var ids []uint32
	for i := range d.Starts {
		p.Starts, ids = append(p.Starts, fsm.StartToLog(&d.Starts[i])), append(ids, d.Starts[i].JobID)
	}
	for i := range d.Promises {
		p.Promises = append(p.Promises, fsm.PromiseToLog(&d.Promises[i]))
	}
	for _, c := range d.Classes {
		p.Classes = append(p.Classes, &logpb.ClassReason{Class: c.Class, Reason: string(c.Reason), Detail: c.Detail, StartMs: c.Start, Promised: c.Promised})
	}
	for _, r := range d.Reasons {
		p.Reasons = append(p.Reasons, &logpb.ReasonChange{JobId: r.JobID, Reason: string(r.Reason), Detail: r.Detail, StartMs: r.Start})
	}
	res, err := f.log.Propose(context.Background(), &logpb.Command{Of: &logpb.Command_Plan{Plan: p}})
	if err != nil || res[0].Taken != len(d.Starts) {
		f.t.Fatalf("plan: %v; %d of %d starts were taken", err, res[0].Taken, len(d.Starts))
	}
	return ids
}

// pass lets time go by.
func (f *fixture) pass(d time.Duration) { f.now = f.now.Add(d) }
