package partitions

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// checkKind is what a limit bounds.
type checkKind uint8

const (
	boundJobs       checkKind = iota // jobs that run
	boundSubmit                      // jobs that run and wait
	boundHeld                        // TRES that are held
	boundMinutes                     // TRES-minutes used, decayed
	boundWall                        // ms used, decayed
	boundRunMinutes                  // TRES-minutes that running jobs will still use
	boundJob                         // TRES of the job
	boundJobNode                     // TRES of the job on one node
	boundJobMinutes                  // TRES-minutes of the job
	boundJobWall                     // time limit of the job
	boundJobLeast                    // least TRES of the job
)

// check is one limit in force.
type check struct {
	kind   checkKind
	entity Entity // whose use counts; not for limits of the job alone
	tres   string
	value  int64
	factor int64 // what the job's own minutes count, 10^-6; of limits in time only
	limit  string
	of     string
	reason job.Reason
}

// source is one step of the hierarchy.
type source struct {
	limits        *accounting.Limits
	qos           bool
	of            string
	entity        Entity
	user, account Entity // a QOS's
	factor        int64  // LimitFactor on an association's TRES, 10^-6
	usageFactor   int64  // what a job's own minutes count, 10^-6
}

func (s *source) prefix() string {
	if s.qos {
		return "QOS"
	}
	return "Assoc"
}

// sources lists the hierarchy: partition QOS, job QOS (the other way round with OverPartQOS), association, accounts, root.
func (c *Chain) sources(db *accounting.DB, uid uint32) []source {
	order := []*accounting.QOS{c.PartQOS, c.JobQOS}
	if c.JobQOS != nil && c.JobQOS.Has("OverPartQOS") || c.PartQOS == c.JobQOS {
		order = []*accounting.QOS{c.JobQOS, c.PartQOS}
	}
	var list []source
	account := db.AccountID(c.Account)
	factor, usageFactor := accounting.Unset, c.usageFactor()
	for i, q := range order {
		if q == nil || i == 1 && q == order[0] {
			continue
		}
		if factor == accounting.Unset {
			factor = q.LimitFactor
		}
		s := source{limits: &q.Limits, qos: true, of: "QOS " + q.Name, entity: Entity{OfQOS, q.ID, 0},
			user: Entity{OfQOSUser, q.ID, uid}, account: Entity{OfQOSAccount, q.ID, account}, usageFactor: usageFactor}
		list = append(list, s)
	}
	for _, a := range db.Chain(c.Association) {
		list = append(list, source{limits: &a.Limits, of: nameOf(a), entity: Entity{Kind: OfAssociation, ID: a.ID}, factor: factor, usageFactor: usageFactor})
	}
	return list
}

// wholeFactor is a factor of 1.
const wholeFactor = 1_000_000

// usageFactor is what a minute of the job counts where it is held against limits ahead of time: the UsageFactor of its own
// QOS, by which it is charged everywhere, if that has the flag UsageFactorSafe.
func (c *Chain) usageFactor() int64 {
	if c.JobQOS != nil && c.JobQOS.Has("UsageFactorSafe") {
		return c.JobQOS.UsageFactor
	}
	return wholeFactor
}

// compiler turns the hierarchy into checks.
type compiler struct {
	c    *Chain
	from []source
}

// compile lists the checks in the order in which Slurm asks: counts and times first, then TRES. Of what bounds a job, a
// user or an account the first source that defines it holds; group limits hold at every level.
func (c *Chain) compile(db *accounting.DB, uid uint32) {
	k := compiler{c, c.sources(db, uid)}
	k.counts()
	k.times()
	k.groups()
	k.jobs()
	k.persons()
}

// counts are the limits in numbers of jobs.
func (k *compiler) counts() {
	type L = accounting.Limits
	c := k.c
	for i := range k.from {
		s := &k.from[i]
		if n := s.limits.GrpJobs; n != accounting.Unset {
			c.starts = append(c.starts, check{kind: boundJobs, entity: s.entity, value: n, limit: "GrpJobs", of: s.of, reason: job.LimitReason(s.prefix(), "GrpJobsLimit")})
		}
		if n := s.limits.GrpSubmitJobs; n != accounting.Unset {
			c.submits = append(c.submits, check{kind: boundSubmit, entity: s.entity, value: n, limit: "GrpSubmitJobs", of: s.of, reason: job.LimitReason(s.prefix(), "GrpSubmitJobsLimit")})
		}
	}
	if s, n := k.first(func(l *L) int64 { return l.MaxJobs }, false); s != nil {
		limit, reason := "MaxJobs", job.Reason("AssocMaxJobsLimit")
		if s.qos {
			limit, reason = "MaxJobsPerUser", "QOSMaxJobsPerUserLimit"
		}
		c.starts = append(c.starts, check{kind: boundJobs, entity: k.person(s), value: n, limit: limit, of: s.of, reason: reason})
	}
	if s, n := k.first(func(l *L) int64 { return l.MaxSubmitJobs }, false); s != nil {
		limit, reason := "MaxSubmitJobs", job.Reason("AssocMaxSubmitJobLimit")
		if s.qos {
			limit, reason = "MaxSubmitJobsPerUser", "QOSMaxSubmitJobPerUserLimit"
		}
		c.submits = append(c.submits, check{kind: boundSubmit, entity: k.person(s), value: n, limit: limit, of: s.of, reason: reason})
	}
	if s, n := k.first(func(l *L) int64 { return l.MaxJobsPerAccount }, true); s != nil {
		c.starts = append(c.starts, check{kind: boundJobs, entity: s.account, value: n, limit: "MaxJobsPerAccount", of: s.of, reason: "MaxJobsPerAccount"})
	}
	if s, n := k.first(func(l *L) int64 { return l.MaxSubmitJobsPerAccount }, true); s != nil {
		c.submits = append(c.submits, check{kind: boundSubmit, entity: s.account, value: n, limit: "MaxSubmitJobsPerAccount", of: s.of, reason: "MaxSubmitJobsPerAccount"})
	}
}

// person is the entity that counts a user's jobs for a source: an account's MaxJobs is that of each user below it.
func (k *compiler) person(s *source) Entity {
	if s.qos {
		return s.user
	}
	return Entity{Kind: OfAssociation, ID: k.c.Association.ID}
}

// first is the source that defines a number first.
func (k *compiler) first(at func(*accounting.Limits) int64, onlyQOS bool) (*source, int64) {
	for i := range k.from {
		s := &k.from[i]
		if n := at(s.limits); n != accounting.Unset && (s.qos || !onlyQOS) {
			return s, n
		}
	}
	return nil, accounting.Unset
}

// times are the limits in wall time.
func (k *compiler) times() {
	c := k.c
	for i := range k.from {
		s := &k.from[i]
		if n := s.limits.GrpWall; n != accounting.Unset {
			c.starts = append(c.starts, check{kind: boundWall, entity: s.entity, value: n, factor: s.usageFactor, limit: "GrpWall", of: s.of, reason: job.LimitReason(s.prefix(), "GrpWallLimit")})
		}
	}
	if s, n := k.first(func(l *accounting.Limits) int64 { return l.MaxWallDurationPerJob }, false); s != nil {
		ch := check{kind: boundJobWall, value: n, limit: "MaxWall", of: s.of, reason: job.LimitReason(s.prefix(), "MaxWallDurationPerJobLimit")}
		c.wall = &ch
		c.starts = append(c.starts, ch)
	}
}

// groups are the Grp limits on TRES: at every level.
func (k *compiler) groups() {
	for i := range k.from {
		s := &k.from[i]
		for _, a := range s.limits.GrpTRES {
			k.add(s, boundHeld, s.entity, "GrpTRES", a, s.scaled(a.N))
			k.c.countsNodes = k.c.countsNodes || a.Name == "node"
		}
		for _, a := range s.limits.GrpTRESMins {
			k.add(s, boundMinutes, s.entity, "GrpTRESMins", a, a.N)
		}
		for _, a := range s.limits.GrpTRESRunMins {
			k.add(s, boundRunMinutes, s.entity, "GrpTRESRunMins", a, a.N)
		}
	}
}

// scaled is an association's limit times the LimitFactor of the QOS.
func (s *source) scaled(n int64) int64 {
	if s.qos || s.factor == accounting.Unset || n < 0 {
		return n
	}
	return accounting.Scale(n, s.factor)
}

// jobs are the limits on one job's TRES.
func (k *compiler) jobs() {
	type L = accounting.Limits
	k.vector(boundJob, "MaxTRESPerJob", false, true, nil, func(l *L) accounting.TRES { return l.MaxTRESPerJob })
	k.vector(boundJobNode, "MaxTRESPerNode", false, true, nil, func(l *L) accounting.TRES { return l.MaxTRESPerNode })
	k.vector(boundJobMinutes, "MaxTRESMinsPerJob", false, false, nil, func(l *L) accounting.TRES { return l.MaxTRESMinsPerJob })
	k.vector(boundJobLeast, "MinTRESPerJob", true, false, nil, func(l *L) accounting.TRES { return l.MinTRESPerJob })
}

// persons are the limits of a QOS on each user and each account.
func (k *compiler) persons() {
	type L = accounting.Limits
	user := func(s *source) Entity { return s.user }
	account := func(s *source) Entity { return s.account }
	k.vector(boundHeld, "MaxTRESPerUser", true, false, user, func(l *L) accounting.TRES { return l.MaxTRESPerUser })
	k.vector(boundHeld, "MaxTRESPerAccount", true, false, account, func(l *L) accounting.TRES { return l.MaxTRESPerAccount })
	k.vector(boundRunMinutes, "MaxTRESRunMinsPerUser", true, false, user, func(l *L) accounting.TRES { return l.MaxTRESRunMinsPerUser })
	k.vector(boundRunMinutes, "MaxTRESRunMinsPerAccount", true, false, account, func(l *L) accounting.TRES { return l.MaxTRESRunMinsPerAccount })
}

// vector adds, for each resource, the limit of the source that defines it first.
func (k *compiler) vector(kind checkKind, limit string, onlyQOS, scales bool, entity func(*source) Entity, at func(*accounting.Limits) accounting.TRES) {
	var have []string
	for i := range k.from {
		s := &k.from[i]
		if onlyQOS && !s.qos {
			continue
		}
		for _, a := range at(s.limits) {
			if slices.Contains(have, a.Name) {
				continue
			}
			have = append(have, a.Name)
			e, n := s.entity, a.N
			if entity != nil {
				e = entity(s)
			}
			if scales {
				n = s.scaled(n)
			}
			k.add(s, kind, e, limit, a, n)
			k.c.countsNodes = k.c.countsNodes || kind == boundHeld && a.Name == "node"
		}
	}
}

func (k *compiler) add(s *source, kind checkKind, e Entity, limit string, a accounting.Amount, n int64) {
	k.c.starts = append(k.c.starts, check{kind: kind, entity: e, tres: a.Name, value: n, factor: s.usageFactor, limit: limit, of: s.of,
		reason: tresReason(s.prefix(), limit, a.Name)})
}
