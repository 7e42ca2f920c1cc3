package sim

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// within checks the runs that an entry has begun against limits, licenses and reservations, by a count over the records
// of all that runs. What was there before a limit was lowered may go on above it.
func (s *sim) within(before *state.View, cmds []*logpb.Command) {
	if !s.schedules() {
		return
	}
	var fresh []*state.Job
	for j := range s.view.Active() {
		if runs(j) && !sameRun(before.Job(j.ID), j) {
			fresh = append(fresh, j)
		}
	}
	if len(fresh) == 0 {
		return
	}
	s.hetStarts(fresh)
	if !slices.ContainsFunc(cmds, func(c *logpb.Command) bool { return c.GetPlan() == nil && mayMove(c) }) {
		s.licensed(fresh)
		for _, j := range fresh {
			s.limited(before, fresh, j)
			s.reservedFor(before, j)
		}
	}
}

// hetStarts: the components of a heterogeneous job start together.
func (s *sim) hetStarts(fresh []*state.Job) {
	for _, j := range fresh {
		for id := j.Het; j.Het != 0 && id < j.Het+j.HetSize(); id++ {
			if part := s.view.Job(id); !runs(part) || part.Start != j.Start {
				s.fail("job %d, of heterogeneous job %d, has started and job %d has not", j.ID, j.Het, id)
			}
		}
	}
}

// licensed: no more licenses are held than there are, where one that has begun has some.
func (s *sim) licensed(fresh []*state.Job) {
	if !slices.ContainsFunc(fresh, func(j *state.Job) bool { return j.Spec.RareValue(job.OptLicenses) != "" }) {
		return
	}
	held := map[string]uint64{}
	for j := range s.view.Active() {
		if list, err := job.ParseLicenses(j.Spec.RareValue(job.OptLicenses)); err == nil && runs(j) {
			for _, l := range list {
				held[l.Name] += l.Count
			}
		}
	}
	if held["foo"] > licenses {
		s.fail("%d licenses foo are held, there are %d", held["foo"], licenses)
	}
}

// total is what some runs take together.
type total struct {
	jobs, cpus, mem int64
	nodes           map[string]bool
}

// sum adds up the runs of which a function holds.
func (s *sim) sum(of func(*state.Job) bool) total {
	t := total{nodes: map[string]bool{}}
	for j := range s.view.Active() {
		if !runs(j) || !of(j) {
			continue
		}
		t.jobs++
		t.cpus += cpus(j)
		for i := range j.Allocs {
			t.mem += j.Allocs[i].Mem
			t.nodes[j.Allocs[i].Node] = true
		}
	}
	return t
}

// above checks a total against limits on resources, but those that a QOS replaces.
func (s *sim) above(what, name string, t total, limits, but accounting.TRES) {
	for _, l := range limits {
		use := map[string]int64{"cpu": t.cpus, "mem": t.mem, "node": int64(len(t.nodes))}[l.Name]
		if _, replaced := but.Get(l.Name); l.N >= 0 && use > l.N && !replaced {
			s.fail("%s of %s: %s %d of %d are taken", what, name, l.Name, use, l.N)
		}
	}
}

// limited checks a run that has begun against the limits of its user, of the accounts above, and of its QOS. Runs of
// another QOS that began in the same entry are left out: its limits may replace these, and they may have come after it.
func (s *sim) limited(before *state.View, fresh []*state.Job, j *state.Job) {
	if before.Config() != s.view.Config() || !slices.Contains(s.view.Config().Sched.Enforce, "limits") {
		return
	}
	db := s.view.Accounting()
	chain := associations(db, j)
	if chain == nil {
		s.fail("job %d has started, its user is in no account", j.ID)
		return
	}
	q := db.QOS(j.Spec.QOS)
	none := accounting.NoLimits()
	by := &none
	if q != nil {
		by = &q.Limits
	}
	for i, a := range chain {
		t := s.sum(func(o *state.Job) bool {
			return slices.Contains(associations(db, o), a) && (o.Spec.QOS == j.Spec.QOS || !slices.Contains(fresh, o))
		})
		s.above("GrpTRES", "account "+a.Account, t, a.Limits.GrpTRES, by.GrpTRES)
		if m := a.Limits.GrpJobs; m >= 0 && t.jobs > m && by.GrpJobs < 0 {
			s.fail("GrpJobs of account %s: %d of %d run", a.Account, t.jobs, m)
		}
		if m := a.Limits.MaxJobs; i == 0 && m >= 0 && t.jobs > m && by.MaxJobs < 0 {
			s.fail("MaxJobs of user %s: %d of %d run", a.User, t.jobs, m)
		}
	}
	if q == nil {
		return
	}
	same := func(o *state.Job) bool { return db.QOS(o.Spec.QOS) == q }
	all, mine := s.sum(same), s.sum(func(o *state.Job) bool { return same(o) && o.Spec.UID == j.Spec.UID })
	s.above("GrpTRES", "QOS "+q.Name, all, by.GrpTRES, nil)
	s.above("MaxTRESPerUser", "QOS "+q.Name, mine, by.MaxTRESPerUser, nil)
	if m := by.GrpJobs; m >= 0 && all.jobs > m {
		s.fail("GrpJobs of QOS %s: %d of %d run", q.Name, all.jobs, m)
	}
	if m := by.MaxJobs; m >= 0 && mine.jobs > m {
		s.fail("MaxJobsPerUser of QOS %s: %d of %d run", q.Name, mine.jobs, m)
	}
}

// reservedFor checks a run that has begun against reservations that were there before: it is in one that admits it, in its
// time, or on no node that one keeps while it runs.
func (s *sim) reservedFor(before *state.View, j *state.Job) {
	end := j.End
	if end == 0 {
		end = 1 << 62
	}
	inside := j.Reservation == ""
	for _, r := range s.view.Reservations() {
		if !slices.ContainsFunc(before.Reservations(), func(o *partitions.Reservation) bool { return o.Name == r.Name }) {
			continue
		}
		on := slices.ContainsFunc(j.Allocs, func(a job.NodeAlloc) bool { return slices.Contains(r.Nodes, a.Node) })
		switch {
		case r.Name == j.Reservation:
			if inside = true; !slices.Contains(r.Users, j.Spec.User) || j.Start < r.Start || j.Start >= r.End {
				s.fail("job %d of %s runs in reservation %s from %d to %d, of %v", j.ID, j.Spec.User, r.Name, r.Start, r.End, r.Users)
			}
			if slices.ContainsFunc(j.Allocs, func(a job.NodeAlloc) bool { return !slices.Contains(r.Nodes, a.Node) }) {
				s.fail("job %d runs in reservation %s, of nodes %v, and on others", j.ID, r.Name, r.Nodes)
			}
		case on && j.Start < r.End && end > r.Start:
			s.fail("job %d runs from %d to %d on nodes that reservation %s keeps from %d to %d", j.ID, j.Start, end, r.Name, r.Start, r.End)
		}
	}
	if !inside {
		s.fail("job %d runs in reservation %s, which is not there", j.ID, j.Reservation)
	}
}
