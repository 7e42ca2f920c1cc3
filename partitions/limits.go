package partitions

import (
	"fmt"
	"math"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Wait is a limit that keeps a job from starting now. Value, Use and Asked are in the limit's unit: jobs, TRES, TRES-minutes,
// or ms.
type Wait struct {
	Reason            job.Reason // Slurm's word
	Limit, Of         string     // GrpTRES=cpu; user alice in account physics
	Value, Use, Asked int64
	Text              string // one sentence with all of it
}

// ledger reads use and usage, and keeps the last of each: checks of one entity follow each other.
type ledger struct {
	from     Lookup
	use      Use
	usage    accounting.Usage
	useOf    Entity
	usageOf  Entity
	hasUse   bool
	hasUsage bool
}

func (l *ledger) useFor(e Entity) *Use {
	if !l.hasUse || l.useOf != e {
		l.use, l.useOf, l.hasUse = l.from.Use(e), e, true
	}
	return &l.use
}

func (l *ledger) usageFor(e Entity) *accounting.Usage {
	if !l.hasUsage || l.usageOf != e {
		l.usage, l.usageOf, l.hasUsage = l.from.Usage(e), e, true
	}
	return &l.usage
}

// MayStart is nil when no limit keeps the job from starting at time now (ms), else the first that does. A job of a
// chain without limits costs no look-up. A claim without Nodes is held against limits of distinct nodes as if it shared all it
// can: before a start it must be asked again with them.
func (c *Chain) MayStart(l Lookup, cl *Claim, now int64) *Wait {
	if len(c.starts) == 0 {
		return nil
	}
	book := ledger{from: l}
	for i := range c.starts {
		ch := &c.starts[i]
		use, asked, over := ch.ask(&book, cl, now, c.safe)
		if over {
			return ch.wait(use, asked)
		}
	}
	return nil
}

// ask tells whether the claim would break the limit, with what is in use and what is asked.
func (ch *check) ask(book *ledger, cl *Claim, now int64, safe bool) (use, asked int64, over bool) {
	switch ch.kind {
	case boundJobs:
		use, asked = book.useFor(ch.entity).Jobs, 1
	case boundHeld:
		u := book.useFor(ch.entity)
		if ch.tres == "node" && u.Nodes != nil && len(cl.Nodes) > 0 {
			use, asked = u.Nodes.Len(), u.Nodes.more(cl.Nodes)
			break
		}
		use, _ = u.TRES.Get(ch.tres)
		asked, _ = cl.TRES.Get(ch.tres)
		if asked == 0 {
			return use, 0, false // what it does not ask for, it does not wait for
		}
		if ch.tres == "node" && u.Nodes != nil {
			use = u.Nodes.Len()
			asked = max(asked-use, 0) // at best it shares those that are counted
		}
	case boundMinutes:
		use, asked, over = ch.askMinutes(book, cl, now, safe)
		return use, asked, over
	case boundWall:
		return ch.askWall(book, cl, now, safe)
	case boundRunMinutes:
		if asked = ch.own(cl.TRES, cl.Limit, false); asked == 0 {
			return 0, 0, false
		}
		var endless bool
		if use, endless = book.useFor(ch.entity).RunMinutes(ch.tres, now); endless {
			use = math.MaxInt64
		}
	default:
		return ch.askJob(cl.TRES, cl.PerNode, cl.Limit)
	}
	return use, asked, use > ch.value-asked
}

// askJob holds the job alone against the limit.
func (ch *check) askJob(ask, perNode accounting.TRES, limit int64) (use, asked int64, over bool) {
	switch ch.kind {
	case boundJob:
		asked, _ = ask.Get(ch.tres)
	case boundJobNode:
		asked, _ = perNode.Get(ch.tres)
	case boundJobMinutes:
		asked = ch.own(ask, limit, true)
	case boundJobWall:
		if asked = limit; limit < 0 {
			asked = math.MaxInt64
		}
	case boundJobLeast:
		asked, _ = ask.Get(ch.tres)
		return 0, asked, asked < ch.value
	}
	return 0, asked, asked > ch.value
}

// own is what the job itself may use until its limit, in TRES-minutes; factored by UsageFactor where the QOS says so.
func (ch *check) own(ask accounting.TRES, limit int64, factored bool) int64 {
	n, _ := ask.Get(ch.tres)
	if n == 0 || factored && ch.factor == 0 {
		return 0
	}
	if limit < 0 {
		return math.MaxInt64
	}
	minutes := (limit + minute - 1) / minute
	n = accounting.Multiply(n, minutes)
	if factored {
		n = scaleUp(n, ch.factor)
	}
	return n
}

// scaleUp is n times a factor, rounded up: what is begun counts.
func scaleUp(n, factor int64) int64 {
	down := accounting.Scale(n, factor)
	if down < math.MaxInt64 && accounting.Scale(n%wholeFactor, factor)*wholeFactor != n%wholeFactor*factor {
		down++
	}
	return down
}

// ownWall is what a job of that limit may add to the wall time, in ms.
func (ch *check) ownWall(limit int64) int64 {
	switch {
	case ch.factor == 0:
		return 0
	case limit < 0:
		return math.MaxInt64
	}
	return accounting.Scale(limit, ch.factor)
}

// askMinutes: used TRES-minutes must be below the limit; safe: with what running jobs and this one may still use, not over it.
func (ch *check) askMinutes(book *ledger, cl *Claim, now int64, safe bool) (use, asked int64, over bool) {
	if held, _ := cl.TRES.Get(ch.tres); held == 0 {
		return 0, 0, false
	}
	use = book.usageFor(ch.entity).Minutes(ch.tres)
	if !safe {
		return use, 0, use >= ch.value
	}
	still, endless := book.useFor(ch.entity).RunMinutes(ch.tres, now)
	if endless {
		still = math.MaxInt64
	}
	use, asked = accounting.Add(use, still), ch.own(cl.TRES, cl.Limit, true)
	return use, asked, use >= ch.value || use > ch.value-asked
}

// askWall: used wall time in ms, likewise.
func (ch *check) askWall(book *ledger, cl *Claim, now int64, safe bool) (use, asked int64, over bool) {
	use = book.usageFor(ch.entity).Wall
	if !safe {
		return use, 0, use >= ch.value
	}
	still, endless := book.useFor(ch.entity).RunWall(now)
	if endless {
		still = math.MaxInt64 / minute
	}
	use, asked = accounting.Add(use, still*minute), ch.ownWall(cl.Limit)
	return use, asked, use >= ch.value || use > ch.value-asked
}

// MaySubmit holds a job against the limits of submission, and against those that it could never keep to: what one job may
// have, and what it alone would take of a group's, a user's or an account's limit. limit is its time limit in ms (-1 = none,
// 0 = not known yet), perNode the least it takes of each node, tasks how many jobs it counts for (of an array).
func (c *Chain) MaySubmit(l Lookup, ask, perNode accounting.TRES, limit, tasks int64) *Refusal {
	for i := range c.submits {
		ch := &c.submits[i]
		if use := l.Use(ch.entity).Submit; use > ch.value-tasks {
			return ch.refuse(use, tasks)
		}
	}
	for i := range c.starts {
		ch := &c.starts[i]
		if asked, never := ch.never(ask, perNode, limit, c.safe); never {
			return ch.refuse(0, asked)
		}
	}
	return nil
}

// never tells that the job would break the limit with nothing else running.
func (ch *check) never(ask, perNode accounting.TRES, limit int64, safe bool) (asked int64, over bool) {
	switch ch.kind {
	case boundJobs:
		return 1, ch.value < 1
	case boundHeld:
		asked, _ = ask.Get(ch.tres)
		return asked, asked > ch.value
	case boundRunMinutes, boundMinutes:
		if limit == 0 || ch.kind == boundMinutes && !safe {
			return 0, false
		}
		asked = ch.own(ask, limit, ch.kind == boundMinutes)
		return asked, asked > ch.value
	case boundWall:
		if limit == 0 || !safe {
			return 0, false
		}
		asked = ch.ownWall(limit)
		return asked, asked > ch.value
	case boundJobLeast:
		if asked, _ = ask.Get(ch.tres); ch.tres == "mem" && asked == 0 {
			return 0, false // a share of the node's, or all of it: not known before it starts
		}
	case boundJobMinutes, boundJobWall:
		if limit == 0 {
			return 0, false
		}
	}
	_, asked, over = ch.askJob(ask, perNode, limit)
	return asked, over
}

// MaxTime is the MaxWall that holds for the job in ms, and whose it is; accounting.Unset when there is none.
func (c *Chain) MaxTime() (ms int64, which string) {
	if c.wall == nil {
		return accounting.Unset, ""
	}
	return c.wall.value, c.wall.limit + " of " + c.wall.of
}

// name is the limit with its resource.
func (ch *check) name() string {
	if ch.tres == "" {
		return ch.limit
	}
	return ch.limit + "=" + ch.tres
}

// format writes a number of the limit's unit.
func (ch *check) format(n int64) string {
	switch {
	case n == math.MaxInt64:
		return "without end"
	case ch.kind == boundWall || ch.kind == boundJobWall:
		return job.FormatDuration(n)
	case ch.tres != "":
		return accounting.FormatAmount(ch.tres, n)
	}
	return fmt.Sprint(n)
}

func (ch *check) unit() string {
	switch ch.kind {
	case boundMinutes, boundRunMinutes, boundJobMinutes:
		return " minutes"
	case boundJobs, boundSubmit:
		return " jobs"
	}
	return ""
}

// sentence names the limit, its value, what is in use and what was asked.
func (ch *check) sentence(use, asked int64) string {
	text := fmt.Sprintf("%s of %s is %s%s", ch.name(), ch.of, ch.format(ch.value), ch.unit())
	switch ch.kind {
	case boundJobs, boundSubmit, boundHeld:
		return fmt.Sprintf("%s: %s in use, %s asked", text, ch.format(use), ch.format(asked))
	case boundMinutes, boundWall, boundRunMinutes:
		if asked == 0 {
			return fmt.Sprintf("%s: %s used", text, ch.format(use))
		}
		return fmt.Sprintf("%s: %s used or bound, %s asked", text, ch.format(use), ch.format(asked))
	}
	return fmt.Sprintf("%s: %s asked", text, ch.format(asked))
}

func (ch *check) wait(use, asked int64) *Wait {
	return &Wait{Reason: ch.reason, Limit: ch.name(), Of: ch.of, Value: ch.value, Use: use, Asked: asked, Text: ch.sentence(use, asked)}
}

func (ch *check) refuse(use, asked int64) *Refusal {
	return refuse("ESLURM_ACCOUNTING_POLICY", textPolicy, "%s: %s", ch.reason, ch.sentence(use, asked))
}
