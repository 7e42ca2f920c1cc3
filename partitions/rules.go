package partitions

import (
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
)

// Lookup gives what is used now and what was used, decayed.
type Lookup interface {
	Use(Entity) Use
	Usage(Entity) accounting.Usage
}

// Rules say what of accounting is enforced. Nil rules, or rules without a DB, enforce nothing.
type Rules struct {
	DB           *accounting.DB
	Associations bool // a job needs an association
	Limits       bool // limits of associations and QOS hold
	QOS          bool // a job needs a QOS that its association may use
	Safe         bool // a job starts only when it can end within TRES-minute limits
}

// Enforce reads AccountingStorageEnforce: associations, limits, qos, safe, all; each but none includes associations, and
// safe includes limits. Other words have no effect here.
func Enforce(db *accounting.DB, words []string) *Rules {
	r := &Rules{DB: db}
	for _, w := range words {
		switch strings.ToLower(w) {
		case "associations":
			r.Associations = true
		case "limits":
			r.Associations, r.Limits = true, true
		case "safe":
			r.Associations, r.Limits, r.Safe = true, true, true
		case "qos":
			r.Associations, r.QOS = true, true
		case "all":
			r.Associations, r.Limits, r.QOS, r.Safe = true, true, true, true
		}
	}
	return r
}

// Job is who wants to run where; names as the user gave them, "" where none was given.
type Job struct {
	UID           uint32
	User, Account string
	Partition     string
	QOS, PartQOS  string
}

// Chain is what a job is counted for and limited by. It is immutable; it holds for one DB.
type Chain struct {
	Account     string                  // resolved
	QOS         string                  // resolved, "" = none
	Association *accounting.Association // nil: the job has none, and needs none
	JobQOS      *accounting.QOS         // nil: none
	PartQOS     *accounting.QOS         // nil: none
	entities    []Entity
	starts      []check // in the order in which they are asked
	submits     []check
	wall        *check // MaxWall that holds
	countsNodes bool
	safe        bool
}

const (
	textAccount = "Invalid account or account/partition combination specified"
	textQOS     = "Invalid qos specification"
	textPolicy  = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)

// Chain resolves account, association and QOS of a job. It is refused when it has no association or may not use its QOS,
// where that is enforced.
func (r *Rules) Chain(j Job) (*Chain, *Refusal) {
	c := &Chain{Account: strings.ToLower(j.Account), QOS: strings.ToLower(j.QOS)}
	if r == nil || r.DB == nil {
		return c, nil
	}
	c.safe = r.Safe
	if refusal := r.resolve(c, j); refusal != nil {
		return nil, refusal
	}
	c.count(r.DB, j.UID)
	if r.Limits {
		c.compile(r.DB, j.UID)
	}
	return c, nil
}

// resolve finds the association and the QOS.
func (r *Rules) resolve(c *Chain, j Job) *Refusal {
	db := r.DB
	if c.Account == "" {
		c.Account = db.DefaultAccount(j.User)
	}
	c.Association = db.Find(j.User, c.Account, j.Partition)
	if c.Association == nil && r.Associations {
		return r.noAssociation(j, c.Account)
	}
	if c.QOS == "" {
		if c.Association != nil {
			c.QOS = db.DefaultQOSOf(c.Association)
		} else if db.QOS("normal") != nil {
			c.QOS = "normal"
		}
	}
	c.JobQOS, c.PartQOS = db.QOS(c.QOS), db.QOS(j.PartQOS)
	switch {
	case c.QOS == "" && r.QOS:
		return refuse("ESLURM_INVALID_QOS", textQOS, "association %s has no default QOS; name one of %s with --qos", nameOf(c.Association), list(db.QOSOf(c.Association)))
	case c.JobQOS == nil && c.QOS != "" && r.Associations:
		return refuse("ESLURM_INVALID_QOS", textQOS, "there is no QOS %q", c.QOS)
	case r.QOS && !slices.Contains(db.QOSOf(c.Association), c.QOS):
		return refuse("ESLURM_INVALID_QOS", textQOS, "QOS %q is not among those of association %s: %s", c.QOS, nameOf(c.Association), list(db.QOSOf(c.Association)))
	}
	return nil
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// noAssociation words the refusal of a job without one.
func (r *Rules) noAssociation(j Job, account string) *Refusal {
	const code = "ESLURM_INVALID_ACCOUNT"
	var has []string
	for a := range r.DB.OfUser(j.User) {
		if !slices.Contains(has, a.Account) {
			has = append(has, a.Account)
		}
	}
	switch {
	case r.DB.User(j.User) == nil:
		return refuse(code, textAccount, "user %s is in no account; an administrator can add one: gacctmgr add user %s account=NAME", j.User, j.User)
	case account == "":
		return refuse(code, textAccount, "user %s has no default account; name one of %s with --account", j.User, list(has))
	case r.DB.Account(account) == nil:
		return refuse(code, textAccount, "there is no account %q; user %s is in %s", account, j.User, list(has))
	case slices.Contains(has, account):
		return refuse(code, textAccount, "user %s is in account %s for other partitions than %s only", j.User, account, j.Partition)
	}
	return refuse(code, textAccount, "user %s is not in account %q, but in %s", j.User, account, list(has))
}

// nameOf is how an association is called in texts.
func nameOf(a *accounting.Association) string {
	switch {
	case a == nil:
		return "none"
	case a.User == "":
		return "account " + a.Account
	case a.Partition != "":
		return "user " + a.User + " in account " + a.Account + ", partition " + a.Partition
	}
	return "user " + a.User + " in account " + a.Account
}

// count lists the entities: the association and those above it, then the QOS of the job and of the partition.
func (c *Chain) count(db *accounting.DB, uid uint32) {
	for _, a := range db.Chain(c.Association) {
		c.entities = append(c.entities, Entity{Kind: OfAssociation, ID: a.ID})
	}
	account := db.AccountID(c.Account)
	for i, q := range []*accounting.QOS{c.JobQOS, c.PartQOS} {
		if q == nil || i == 1 && q == c.JobQOS {
			continue
		}
		c.entities = append(c.entities, Entity{OfQOS, q.ID, 0}, Entity{OfQOSUser, q.ID, uid}, Entity{OfQOSAccount, q.ID, account})
	}
}

// Entities are all that the job is counted for, in fixed order, also where nothing is enforced. It is not to be changed.
func (c *Chain) Entities() []Entity { return c.entities }

// CountsNodes tells whether a limit of the chain is one of distinct nodes: then Use.Nodes must be kept for its entities.
func (c *Chain) CountsNodes() bool { return c.countsNodes }

// Limited tells whether some limit is asked before a job of the chain starts.
func (c *Chain) Limited() bool { return len(c.starts) > 0 }

// NeedsReservation tells whether the job's QOS takes only jobs with a reservation (flag RequiresReservation).
func (c *Chain) NeedsReservation() bool { return c.has("RequiresReservation") }

// NoReserve tells whether the job gets no reservation ahead of time (QOS flag NoReserve).
func (c *Chain) NoReserve() bool { return c.has("NoReserve") }

func (c *Chain) has(flag string) bool {
	return c.JobQOS != nil && c.JobQOS.Has(flag) || c.PartQOS != nil && c.PartQOS.Has(flag)
}

// CountsNodes tells whether an entity has a limit of distinct nodes: its Use then begins with NewNodeCount.
func (r *Rules) CountsNodes(e Entity) bool {
	if r == nil || r.DB == nil || !r.Limits {
		return false
	}
	limited := func(t accounting.TRES) bool { _, has := t.Get("node"); return has }
	if e.Kind == OfAssociation {
		a := r.DB.Association(e.ID)
		return a != nil && limited(a.Limits.GrpTRES)
	}
	q := r.DB.QOSByID(e.ID)
	switch {
	case q == nil:
		return false
	case e.Kind == OfQOS:
		return limited(q.Limits.GrpTRES)
	case e.Kind == OfQOSUser:
		return limited(q.Limits.MaxTRESPerUser)
	}
	return limited(q.Limits.MaxTRESPerAccount)
}
