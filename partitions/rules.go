package partitions

import (
	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Lookup gives what is used now and what was used, decayed.
type Lookup interface {
	Use(Entity) Use
	Usage(Entity) accounting.Usage
}

// Rules say what of accounting is enforced. Nil rules enforce nothing.
type Rules struct {
	DB           *accounting.DB
	Associations bool // a job needs an association
	Limits       bool // limits of associations and QOS hold
	QOS          bool // a job needs a QOS that its association may use
	Safe         bool // a job starts only when it can end within TRES-minute limits
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
	Uses        *Rules
	entities    []Entity
}

// Wait is a limit that keeps a job from starting now.
type Wait struct {
	Reason            job.Reason // Slurm's word
	Limit, Of         string     // GrpTRES=cpu; association alice of account physics
	Value, Use, Asked int64
	Text              string // one sentence with all of it
}

// Chain resolves account, association and QOS of a job. It is refused when it has no association or may not use its QOS,
// where that is enforced.
func (r *Rules) Chain(j Job) (*Chain, *Refusal) {
	return &Chain{Account: j.Account, QOS: j.QOS, Uses: r}, nil
}

// Entities are all that the job is counted for, in fixed order, also where nothing is enforced.
func (c *Chain) Entities() []Entity { return c.entities }

// CountsNodes tells whether a limit of the chain is one of distinct nodes: then Use.Nodes must be kept for its entities.
func (c *Chain) CountsNodes() bool { return false }

// MaySubmit holds a job against the limits of submission and against those that it alone would break. tasks is how many
// jobs it counts for (array tasks), limit its time limit in ms (-1 = none), perNode the least it takes of a node.
func (c *Chain) MaySubmit(l Lookup, ask, perNode accounting.TRES, limit, tasks int64) *Refusal {
	return nil
}

// MayStart is nil when no limit keeps the job from starting at time now (ms), else the first that does.
func (c *Chain) MayStart(l Lookup, cl *Claim, now int64) *Wait { return nil }

// MaxTime is the shortest MaxWall that holds for the job in ms, and whose it is; accounting.Unset when there is none.
func (c *Chain) MaxTime() (ms int64, which string) { return accounting.Unset, "" }
