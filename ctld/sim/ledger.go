package sim

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// ledger is what runs have used, added up from their records alone: each moment of each run once. It is kept in runs
// in which usage does not decay.
type ledger struct {
	used map[uint32]int64 // CPU-ms by association
	from map[uint32]int64 // by job: since when its run is not in used yet
}

// runs tells whether a record has a run, one that is suspended too.
func runs(j *state.Job) bool {
	return j != nil && (j.State == job.Running || j.State == job.Suspended)
}

// sameRun tells whether two records are of one run.
func sameRun(a, b *state.Job) bool { return runs(a) && runs(b) && a.Run == b.Run && a.Start == b.Start }

// cpus is how many CPUs a run was given.
func cpus(j *state.Job) (n int64) {
	for i := range j.Allocs {
		n += int64(j.Allocs[i].CPUs)
	}
	return n
}

// associations are the association of a run's user, and all above it.
func associations(db *accounting.DB, j *state.Job) []*accounting.Association {
	account := j.Spec.Account
	if account == "" {
		account = db.DefaultAccount(j.Spec.User)
	}
	a := db.Find(j.Spec.User, account, j.Partition)
	if a == nil {
		return nil
	}
	return db.Chain(a)
}

// settle brings the ledger to the state after an entry, and holds it against what the state says was used.
func (s *sim) settle(before *state.View, cmds []*logpb.Command) {
	if !s.schedules() || s.swarm.halfLife != 0 || s.on("clock") {
		return
	}
	now, l := s.view.Time(), &s.ledger
	if l.used == nil {
		l.used, l.from = map[uint32]int64{}, map[uint32]int64{}
	}
	unsure := false
	timed := slices.ContainsFunc(cmds, func(c *logpb.Command) bool { return c.GetJobTimer() != nil })
	for old := range before.Active() {
		if old.State != job.Running {
			continue
		}
		j := s.view.Job(old.ID)
		if sameRun(old, j) && j.State == job.Running {
			continue
		}
		until := now
		switch {
		case j != nil && j.State.Ended() && j.End > 0 && j.Run == old.Run:
			if until = min(j.End, now); timed && j.Kill == job.WhyTimeLimit {
				until = now // it held its nodes until its limit ended it; that it had ended before was said behind that
			}
		case !sameRun(old, j): // queued again: it may have ended when it was last heard of
			unsure = true
		}
		s.charge(old, until)
		delete(l.from, old.ID)
	}
	tick := slices.ContainsFunc(cmds, func(c *logpb.Command) bool { return c.GetUsageTick() != nil })
	for j := range s.view.Active() {
		if j.State != job.Running {
			continue
		}
		if _, known := l.from[j.ID]; !known {
			l.from[j.ID] = now
		}
		if tick {
			s.charge(j, now)
		}
	}
	if rebooked(before, s.view, cmds) {
		s.rebook()
		return
	}
	s.balance(unsure)
	if unsure {
		s.rebook()
	}
}

// charge adds what a run has used since it was last added, to the association of its user and to those above.
func (s *sim) charge(j *state.Job, until int64) {
	from, known := s.ledger.from[j.ID]
	if !known || until <= from {
		return
	}
	s.ledger.from[j.ID] = until
	for _, a := range associations(s.view.Accounting(), j) {
		s.ledger.used[a.ID] += cpus(j) * (until - from)
	}
}

// rebooked tells whether an entry changed what counts for whom, or did several things of which one was to count all
// that runs: the ledger then goes on from what the state says.
func rebooked(before, after *state.View, cmds []*logpb.Command) bool {
	if before.Accounting() != after.Accounting() {
		return true
	}
	for i, c := range cmds {
		if c.GetSetConfig() != nil || c.GetPartitionUpdate() != nil || c.GetRaiseFeature() != nil || c.GetUpdateJob() != nil || c.GetUsageTick() != nil && i+1 < len(cmds) {
			return true
		}
	}
	return len(cmds) > 1 && cmds[len(cmds)-1].GetUsageTick() != nil
}

// rebook takes what the state says.
func (s *sim) rebook() {
	clear(s.ledger.used)
	for a := range s.view.Accounting().Associations() {
		s.ledger.used[a.ID] = s.charged(a)
	}
	for j := range s.view.Active() {
		if j.State == job.Running {
			s.ledger.from[j.ID] = max(s.ledger.from[j.ID], j.Start)
		}
	}
}

// charged is what the state says that an association has used, in CPU-ms.
func (s *sim) charged(a *accounting.Association) int64 {
	return s.view.Limits().Usage(partitions.Entity{Kind: partitions.OfAssociation, ID: a.ID}).Raw
}

// balance holds the ledger against the state; unsure: not more is charged than it has.
func (s *sim) balance(unsure bool) {
	for a := range s.view.Accounting().Associations() {
		if got, want := s.charged(a), s.ledger.used[a.ID]; got > want || got < want && !unsure {
			s.fail("usage of account %q user %q: %d CPU-ms are charged, its runs had %d", a.Account, a.User, got, want)
			return
		}
	}
}
