package state

import (
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// charged tells whether usage grows with what a record holds.
func charged(j *Job) bool { return j != nil && j.State == job.Running }

// account charges what the run of old has used when it stops using: it ends, goes back to the queue, or is suspended. It
// comes before j takes the place of old, and notes in j from when on it is charged again.
func (t *Tx) account(old, j *Job) {
	if t.feature < FeatureSched || t.restoring || old == nil || j == nil || !isRunning(old) {
		return
	}
	goes := isRunning(j) && sameRun(old, j)
	if charged(old) && !(goes && charged(j)) {
		t.chargeRun(old, t.endOf(old, j))
	}
	switch {
	case !goes:
		t.remember(old, j)
	case old.State != j.State:
		j.Charged = t.now
	}
}

// endOf is until when a run that stops is charged.
func (t *Tx) endOf(old, j *Job) int64 {
	if j.State.Ended() && j.End > 0 && j.Run == old.Run {
		return min(j.End, t.now)
	}
	return t.now
}

// chargedFrom is from when on a run is not charged yet.
func (t *tables) chargedFrom(j *Job) int64 { return max(j.Start, j.Charged, t.usageAt) }

// chargeRun adds what a run has used until a time to all that it is counted for. While there is nobody in the accounts
// nothing is kept that nobody asks for.
func (t *Tx) chargeRun(j *Job, until int64) {
	ms := until - t.chargedFrom(j)
	if ms <= 0 || t.plain {
		return
	}
	c := t.countedChain(j.Spec, j.Partition)
	if len(c.Entities()) == 0 {
		return
	}
	tres, billing := t.used(j)
	for _, e := range c.Entities() {
		if !hasUsage(e) {
			continue
		}
		old, _ := t.charges.Get(entityUsage{of: e})
		t.charges.Set(entityUsage{e, old.usage.Charge(tres, billing, ms, t.usageFactor(j.Spec.QOS))})
		t.chargeVersion++
	}
}

// used is what a run uses each second, and what that costs.
func (t *tables) used(j *Job) (accounting.TRES, int64) {
	tres := accounting.AllocTRES(j.Allocs, licensesOf(j.Spec))
	billing := t.billing(j.Partition, tres)
	return tres.With("billing", billing), billing
}

// hasUsage: usage is kept of associations and QOS. Of one user in a QOS no limit asks for it.
func hasUsage(e partitions.Entity) bool {
	return e.Kind == partitions.OfAssociation || e.Kind == partitions.OfQOS
}

// usageFactor is that of a QOS in 10^-6.
func (t *tables) usageFactor(qos string) int64 {
	if q := t.db.QOS(qos); q != nil {
		return q.UsageFactor
	}
	return oneFactor
}

const oneFactor = 1_000_000

// UsageTick brings usage to the time of the entry: it decays, and what runs is charged up to then.
func (t *Tx) UsageTick() *Refusal {
	if r := t.needsSched("usage of accounts"); r != nil {
		return r
	}
	t.countUsage()
	return nil
}

// countUsage brings usage to the time of the entry.
func (t *Tx) countUsage() {
	elapsed := t.now - t.usageAt
	if elapsed <= 0 {
		return
	}
	had := t.charges.Len()
	sums := t.decayed(elapsed)
	for j := range t.Active() {
		if charged(j) {
			t.addRun(sums, j)
		}
	}
	t.charges = newUsages()
	for _, u := range sums.list {
		if !spent(u.usage) {
			t.charges.Set(u)
		}
	}
	t.usageAt = t.now
	if had+len(sums.list) > 0 {
		t.chargeVersion++
		t.capacity++ // usage that has decayed may be below a limit again, and ranks have changed
	}
}

// sums is usage being added up: the list by entity, in the order of their first appearance.
type sums struct {
	list []entityUsage
	at   map[partitions.Entity]int
}

// decayed is all usage after elapsed ms without what was used in them; none when the period that usage is kept for is over.
func (t *Tx) decayed(elapsed int64) *sums {
	s := &sums{list: make([]entityUsage, 0, t.charges.Len()), at: make(map[partitions.Entity]int, t.charges.Len())}
	if resets(t.cfg.Sched.UsageReset, t.usageAt, t.now) {
		return s
	}
	half := t.cfg.Sched.HalfLife
	t.charges.Scan(func(u entityUsage) bool {
		if !t.keepsUsage(u.of) {
			u.usage = u.usage.Decay(elapsed, half)
		}
		s.at[u.of] = len(s.list)
		s.list = append(s.list, u)
		return true
	})
	return s
}

// keepsUsage: a QOS with NoDecay.
func (t *Tx) keepsUsage(e partitions.Entity) bool {
	if e.Kind != partitions.OfQOS {
		return false
	}
	q := t.db.QOSByID(e.ID)
	return q != nil && q.Has("NoDecay")
}

// addRun adds what a run has used since it was charged last.
func (t *Tx) addRun(s *sums, j *Job) {
	ms := t.now - t.chargedFrom(j)
	if ms <= 0 || t.plain {
		return
	}
	c := t.countedChain(j.Spec, j.Partition)
	if len(c.Entities()) == 0 {
		return
	}
	tres, billing := t.used(j)
	factor := t.usageFactor(j.Spec.QOS)
	for _, e := range c.Entities() {
		if !hasUsage(e) {
			continue
		}
		i, known := s.at[e]
		if !known {
			i = len(s.list)
			s.at[e] = i
			s.list = append(s.list, entityUsage{of: e})
		}
		s.list[i].usage = s.list[i].usage.Charge(tres, billing, ms, factor)
	}
}

// spent: nothing is left of a usage.
func spent(u accounting.Usage) bool {
	for _, a := range u.TRES {
		if a.N != 0 {
			return false
		}
	}
	return u.Raw == 0 && u.Wall == 0
}

// resets tells whether a period of PriorityUsageResetPeriod begins after from and not after to, in UTC: replicas have no
// time zone in common.
func resets(period string, from, to int64) bool {
	return from > 0 && periodOf(period, from) != periodOf(period, to)
}

// periodOf numbers the period that a moment is in.
func periodOf(period string, ms int64) int {
	at := time.UnixMilli(ms).UTC()
	switch strings.ToUpper(period) {
	case "DAILY":
		return at.Year()*1000 + at.YearDay()
	case "WEEKLY":
		days := int(ms / (24 * 3600_000)) // 1 January 1970 was a Thursday; a week begins on Sunday
		return (days + 4) / 7
	case "MONTHLY":
		return at.Year()*12 + int(at.Month())
	case "QUARTERLY":
		return at.Year()*4 + (int(at.Month())-1)/3
	case "YEARLY":
		return at.Year()
	}
	return 0
}

// dropUsage forgets the usage of what is not there any more.
func (t *Tx) dropUsage() {
	var gone []entityUsage
	t.charges.Scan(func(u entityUsage) bool {
		if !t.exists(u.of) {
			gone = append(gone, u)
		}
		return true
	})
	for _, u := range gone {
		t.charges.Delete(u)
	}
	if len(gone) > 0 {
		t.chargeVersion++
	}
}

func (t *tables) exists(e partitions.Entity) bool {
	if e.Kind == partitions.OfQOS {
		return t.db.QOSByID(e.ID) != nil
	}
	return t.db.Association(e.ID) != nil
}

// usages checks the kept usage.
func (c *checker) usages() {
	c.t.charges.Scan(func(u entityUsage) bool {
		if !hasUsage(u.of) || !c.t.exists(u.of) || u.usage.Raw < 0 || u.usage.Wall < 0 {
			c.fail("usage of %+v: %+v", u.of, u.usage)
		}
		return true
	})
	if c.t.usageAt > c.t.time {
		c.fail("usage is counted up to %d, it is %d", c.t.usageAt, c.t.time)
	}
	if c.t.history.Len() > MaxHistory {
		c.fail("run times of %d users are kept", c.t.history.Len())
	}
}
