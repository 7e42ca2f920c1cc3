package fsm_test

import (
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// schedCommand makes commands of feature level 3. The level is raised by the first; below it they are refused now and then.
func schedCommand(g *generator) *logpb.Command {
	if g.a.View().Feature() < 3 && g.pick("raise", 4) > 0 {
		return &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 3}}}
	}
	switch g.pick("kind", 10) {
	case 0, 1:
		return accountingCommand(g)
	case 2:
		return reservationCommand(g)
	case 3:
		return &logpb.Command{Of: &logpb.Command_UsageTick{UsageTick: &logpb.UsageTick{}}}
	case 4:
		return hetCommand(g)
	case 5, 6:
		return schedPlan(g)
	case 7:
		j := g.someJob()
		what := one(g, "what", "deadline", "grace_over")
		return &logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: j.ID, Run: g.run(j), What: what}}}
	case 8:
		set := one(g, "set", map[string]string{"Reservation": "maint"}, map[string]string{"Licenses": "matlab:2"}, map[string]string{"Deadline": "now+1hour"},
			map[string]string{"Account": "lab"}, map[string]string{"QOS": "high"}, map[string]string{"Checkpoint": "now"}, map[string]string{"Reservation": ""})
		return &logpb.Command{Of: &logpb.Command_UpdateJob{UpdateJob: &logpb.UpdateJob{Job: g.ref(), Set: set, Caller: g.caller()}}}
	}
	s := g.submission()
	schedSpec(g, s.GetSubmit().Spec)
	return s
}

// schedSpec gives a specification options of feature level 3.
func schedSpec(g *generator, s *logpb.JobSpec) {
	s.User, s.Account, s.Qos = one(g, "user", "alice", "bob", "u"), one(g, "account", "", "", "lab", "none"), one(g, "qos", "", "", "high", "normal", "none")
	rare := map[string]string{}
	if g.pick("licenses", 3) == 0 {
		rare[job.OptLicenses] = one(g, "n", "matlab", "matlab:2", "matlab:9", "none:1")
	}
	if g.pick("reservation", 3) == 0 {
		rare[job.OptReservation] = one(g, "name", "maint", "maint,alice_1", "none")
	}
	if g.pick("deadline", 4) == 0 {
		rare[job.OptDeadline] = fmt.Sprint(g.now + int64(g.pick("at", 500_000)) - 1000)
	}
	for i := 0; i+1 < len(s.Rare); i += 2 {
		rare[s.Rare[i]] = s.Rare[i+1]
	}
	s.Rare = nil
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for k := range rare {
			if !yield(k) {
				return
			}
		}
	}) {
		s.Rare = append(s.Rare, name, rare[name])
	}
}

func accountingCommand(g *generator) *logpb.Command {
	c := &logpb.AccountingChange{Verb: one(g, "verb", "add", "add", "add", "modify", "modify", "delete"), Caller: g.caller()}
	if g.pick("coordinator", 4) == 0 {
		c.Caller = &logpb.Caller{Uid: 1, User: "alice"}
	}
	limits := func() []string {
		return one(g, "limits", []string{"grptres", "=", "cpu=2"}, []string{"maxjobs", "=", "1"}, []string{"grpsubmitjobs", "=", "3"}, []string{"grptres", "=", "node=1"},
			[]string{"grptresmins", "=", "cpu=100"}, []string{"maxwalldurationperjob", "=", "30"}, []string{"grpjobs", "=", "-1"}, []string{"fairshare", "=", "5"}, []string{"nonsense", "=", "x"})
	}
	switch c.Entity = one(g, "entity", "account", "account", "user", "user", "qos", "coordinator"); c.Entity {
	case "account":
		c.Where, c.Set = []string{"name", "=", one(g, "account", "lab", "sub")}, []string{"parent", "=", one(g, "parent", "root", "lab")}
		if c.Verb == "modify" {
			c.Set = limits()
		}
	case "user":
		c.Where, c.Set = []string{"name", "=", one(g, "user", "alice", "bob", "u")}, []string{"account", "=", one(g, "account", "lab", "sub", "root")}
		if c.Verb == "modify" {
			c.Where, c.Set = append(c.Where, "account", "=", "lab"), limits()
		}
	case "qos":
		c.Where = []string{"name", "=", one(g, "qos", "high", "low")}
		if c.Verb != "delete" {
			c.Set = one(g, "set", []string{"priority", "=", "10"}, []string{"maxtresperuser", "=", "cpu=1"}, []string{"flags", "=", "DenyOnLimit"}, []string{"usagefactor", "=", "2.5"},
				[]string{"flags", "=", "NoDecay"}, []string{"grpjobs", "=", "1"})
		}
	case "coordinator":
		c.Where = []string{"name", "=", "alice", "account", "=", "lab"}
	}
	if c.Verb == "add" { // words of an addition say what is, not where
		c.Set = append(c.Where, c.Set...)
		c.Where = nil
	}
	if c.Verb == "delete" {
		c.Set = nil
	}
	return &logpb.Command{Of: &logpb.Command_AccountingChange{AccountingChange: c}}
}

func reservationCommand(g *generator) *logpb.Command {
	c := &logpb.ReservationChange{Verb: one(g, "verb", "create", "create", "update", "delete"), Name: one(g, "name", "maint", "maint", "", "other"), Caller: &logpb.Caller{User: "root", Operator: true}}
	if g.pick("user", 6) == 0 {
		c.Caller = g.caller()
	}
	start := g.now + one[int64](g, "start", 0, -1000, 100_000, 400_000)
	c.Set = []string{"starttime", "=", fmt.Sprint(max(start, 1_000_000_000)), "duration", "=", one(g, "duration", "1", "5", "60"), "users", "=", one(g, "users", "alice", "alice,bob", "-u")}
	switch g.pick("what", 4) {
	case 0:
		c.Set = append(c.Set, "nodecnt", "=", "1")
	case 1:
		c.Set = append(c.Set, "licenses", "=", "matlab:2", "flags", "=", "ANY_NODES")
	default:
		c.Set = append(c.Set, "nodes", "=", one(g, "nodes", "n1", "n2", "n[1-2]", "n9"))
	}
	if flags := one(g, "flags", "", "MAINT", "IGNORE_JOBS,OVERLAP", "MAINT,IGNORE_JOBS", "FLEX", "MAGNETIC", "NO_HOLD_JOBS_AFTER", "DAILY", "PURGE_COMP=60"); flags != "" {
		c.Set = append(c.Set, "flags", "+=", flags)
	}
	if c.Verb == "update" && g.pick("some", 2) == 0 {
		c.Set = one(g, "set", []string{"duration", "=", "2"}, []string{"users", "+=", "u"}, []string{"flags", "-=", "MAINT"})
	}
	if c.Verb == "delete" {
		c.Set = nil
	}
	return &logpb.Command{Of: &logpb.Command_ReservationChange{ReservationChange: c}}
}

func hetCommand(g *generator) *logpb.Command {
	c := &logpb.SubmitHet{Key: one(g, "key", "", "het1", "het2"), Digest: make([]byte, 32)}
	for range g.pick("components", 3) + 1 {
		s := g.submission().GetSubmit().Spec
		s.Uid, s.Array = 1, ""
		if g.pick("more", 3) == 0 {
			schedSpec(g, s)
		}
		c.Specs = append(c.Specs, s)
	}
	return &logpb.Command{Of: &logpb.Command_SubmitHet{SubmitHet: c}}
}

// schedPlan makes a plan with evictions, promises and groups.
func schedPlan(g *generator) *logpb.Command {
	p := &logpb.Plan{Base: g.a.View().Version()}
	for j := range g.a.View().Jobs() {
		switch {
		case len(p.Evicts)+len(p.Promises)+len(p.Starts) > 4:
		case (j.State == job.Running || j.State == job.Suspended) && g.pick("evict", 2) == 0:
			p.Evicts = append(p.Evicts, &logpb.Evict{JobId: j.ID, Run: g.run(j), How: one(g, "how", "CANCEL", "REQUEUE", "SUSPEND", "RESUME"), By: 1, GraceMs: one[int64](g, "grace", 0, 30_000)})
		case j.State == job.Pending && j.Het != 0 && g.pick("group", 2) == 0:
			p.Starts = append(p.Starts, &logpb.Start{JobId: j.ID, ArrayTask: -1, Run: j.Run, Revision: j.Revision, Partition: "p", TimeLimitMs: 60_000, Group: j.Het, Backfilled: true,
				Nodes: []*logpb.NodeAlloc{{Node: one(g, "node", "n1", "n2"), Cpus: 1, Tasks: 1}}})
		case j.State == job.Pending && g.pick("promise", 2) == 0:
			p.Promises = append(p.Promises, &logpb.Promise{JobId: j.ID, Revision: j.Revision, StartMs: one[int64](g, "at", 0, g.now+60_000, g.now+600_000), Partition: "p", TimeLimitMs: 60_000,
				Nodes: []*logpb.NodeAlloc{{Node: "n1", Cpus: 1, Tasks: 1}}})
		}
	}
	for c := range g.a.View().Verdicts() {
		p.Classes = append(p.Classes, &logpb.ClassReason{Class: c.Key, Reason: "Resources", StartMs: g.now, Promised: g.pick("promised", 2) == 0})
	}
	return &logpb.Command{Of: &logpb.Command_Plan{Plan: p}}
}

// schedConfig fills what feature level 3 brought to a configuration.
func schedConfig(g *generator, s *logpb.SetConfig) {
	if g.pick("sched", 2) == 0 {
		return
	}
	s.Sched = &logpb.ConfigSched{
		PriorityType: one(g, "type", "multifactor", "expansion", "fcfs"), WeightAge: 1, WeightAssoc: 2, WeightFairShare: 3, WeightJobSize: 4, WeightPartition: 5,
		WeightQos: 6, WeightTres: []string{"cpu=10"}, WeightBid: 7, MaxAgeMs: 1000, HalfLifeMs: one[int64](g, "half", 0, 600_000), CalcPeriodMs: 300_000, FavorSmall: true,
		PriorityFlags: []string{"MAX_TRES"}, UsageReset: one(g, "reset", "NONE", "DAILY"), Dampening: 2, Enforce: one(g, "enforce", nil, nil, nil, []string{"limits"}, []string{"associations"}, []string{"limits", "qos", "safe"}),
		PreemptType: "qos", PreemptMode: "REQUEUE", PreemptExemptMs: 5, PreemptParameters: []string{"youngest_first"}, SchedulerParameters: []string{"bf_window=10"},
		Licenses: []string{one(g, "licenses", "matlab:3", "matlab:1")}, DependencyParameters: []string{"kill_invalid_depend"}, Topology: one(g, "topology", "", "tree"),
		Switches: []*logpb.ConfigSwitch{{Name: "s1", Nodes: []string{"n1", "n2"}}, {Name: "top", Switches: []string{"s1"}}}, BlockSizes: []uint32{1},
	}
	for _, p := range s.Partitions {
		p.Qos, p.DenyQos, p.PreemptMode, p.GraceMs, p.TresBillingWeights = one(g, "qos", "", "", "high"), []string{"low"}, "CANCEL", 1000, []string{"CPU=2.0", "GRES/gpu=5"}
		p.ExclusiveUser, p.Lln, p.MaxCpusPerNode = g.pick("exclusive", 4) == 0, true, uint32(g.pick("cpus", 2))*4
		p.ReqResv = g.pick("reservation", 12) == 0
	}
}

// schedSamples has one of each command of feature level 3.
func schedSamples() []*logpb.Command {
	admin := &logpb.Caller{User: "root", Operator: true}
	account := func(verb, entity string, set ...string) *logpb.Command {
		return &logpb.Command{Of: &logpb.Command_AccountingChange{AccountingChange: &logpb.AccountingChange{Verb: verb, Entity: entity, Set: set, Caller: admin}}}
	}
	return []*logpb.Command{
		{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 3}}},
		account("add", "account", "name", "=", "lab"), account("add", "user", "name", "=", "alice", "account", "=", "lab"),
		account("add", "qos", "name", "=", "high", "priority", "=", "5"),
		{Of: &logpb.Command_ReservationChange{ReservationChange: &logpb.ReservationChange{Verb: "create", Name: "maint", Caller: admin,
			Set: []string{"starttime", "=", "2000000000", "duration", "=", "60", "nodes", "=", "n1", "users", "=", "alice"}}}},
		{Of: &logpb.Command_UsageTick{UsageTick: &logpb.UsageTick{}}},
		{Of: &logpb.Command_SubmitHet{SubmitHet: &logpb.SubmitHet{Key: "het", Digest: make([]byte, 32), Specs: []*logpb.JobSpec{{Name: "a", User: "alice"}, {Name: "b", User: "alice"}}}}},
		{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Promises: []*logpb.Promise{{JobId: 2, Revision: 1, StartMs: 5000, Partition: "p", Nodes: []*logpb.NodeAlloc{{Node: "n1", Cpus: 1}}}},
			Evicts: []*logpb.Evict{{JobId: 1, How: "SUSPEND", By: 2, GraceMs: 10}}}}},
	}
}
