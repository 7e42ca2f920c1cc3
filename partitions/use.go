package partitions

import (
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
)

const minute = int64(60_000)

// Use is what an entity's jobs hold now. It is a value: Plus and Minus give a new one and change nothing in place.
type Use struct {
	Jobs, Submit int64           // running; running and waiting
	TRES         accounting.TRES // held
	EndTRES      accounting.TRES // of jobs with a time limit: sum of TRES times the minute of their end
	Endless      accounting.TRES // held by jobs without a time limit
	End          int64           // of jobs with a time limit: sum of the minutes of their ends
	EndlessJobs  int64           // running without a time limit
	Nodes        *NodeCount      // nil: distinct nodes are not counted for this entity
}

// Claim is what one job holds, or would hold.
type Claim struct {
	TRES    accounting.TRES // with billing
	PerNode accounting.TRES // the most on one of its nodes
	Nodes   []string
	Start   int64 // ms
	Limit   int64 // ms, -1 = none
}

// endMinute is the minute in which the claim's limit ends it.
func (c *Claim) endMinute() int64 { return (c.Start + c.Limit) / minute }

// Plus is the use with one more running job. Submit is left alone: the job was counted there when it was submitted.
func (u Use) Plus(c *Claim) Use {
	u.Jobs++
	u.TRES = u.TRES.Plus(c.TRES)
	if c.Limit < 0 {
		u.Endless = u.Endless.Plus(c.TRES)
		u.EndlessJobs++
	} else {
		u.End += c.endMinute()
		u.EndTRES = u.EndTRES.Plus(c.TRES.Times(c.endMinute()))
	}
	u.Nodes = u.Nodes.with(c.Nodes, 1)
	return u
}

// Minus takes back what Plus added for the same claim.
func (u Use) Minus(c *Claim) Use {
	u.Jobs = max(u.Jobs-1, 0)
	u.TRES = u.TRES.Minus(c.TRES)
	if c.Limit < 0 {
		u.Endless = u.Endless.Minus(c.TRES)
		u.EndlessJobs = max(u.EndlessJobs-1, 0)
	} else {
		u.End = max(u.End-c.endMinute(), 0)
		u.EndTRES = u.EndTRES.Minus(c.TRES.Times(c.endMinute()))
	}
	u.Nodes = u.Nodes.with(c.Nodes, -1)
	return u
}

// PlusSubmit is the use with n more submitted jobs; n may be negative.
func (u Use) PlusSubmit(n int64) Use {
	u.Submit = max(u.Submit+n, 0)
	return u
}

// RunMinutes is what the running jobs will still use of one resource until their limits, in TRES-minutes at time now in
// ms; endless tells that one of them has no limit.
func (u Use) RunMinutes(name string, now int64) (n int64, endless bool) {
	held, _ := u.TRES.Get(name)
	without, _ := u.Endless.Get(name)
	end, _ := u.EndTRES.Get(name)
	return max(end-(held-without)*(now/minute), 0), without > 0
}

// RunWall is how many minutes the running jobs will still run until their limits; endless tells that one has none.
func (u Use) RunWall(now int64) (n int64, endless bool) {
	return max(u.End-(u.Jobs-u.EndlessJobs)*(now/minute), 0), u.EndlessJobs > 0
}

// NodeCount counts how many jobs are on each node, so that a node with two of them is one node. It is immutable.
type NodeCount struct{ on []nodeJobs }

type nodeJobs struct {
	name string
	jobs int64
}

// NewNodeCount is an empty count. A Use without one does not keep nodes.
func NewNodeCount() *NodeCount { return &NodeCount{} }

// Len is the number of distinct nodes.
func (c *NodeCount) Len() int64 {
	if c == nil {
		return 0
	}
	return int64(len(c.on))
}

// Has tells whether a job that is counted is on the node.
func (c *NodeCount) Has(name string) bool {
	if c == nil {
		return false
	}
	_, found := c.find(name)
	return found
}

func (c *NodeCount) find(name string) (int, bool) {
	return slices.BinarySearchFunc(c.on, name, func(n nodeJobs, name string) int { return strings.Compare(n.name, name) })
}

// more is how many of these distinct nodes are not counted yet.
func (c *NodeCount) more(names []string) (n int64) {
	for i, name := range names {
		if _, found := c.find(name); !found && !slices.Contains(names[:i], name) {
			n++
		}
	}
	return n
}

// with is the count with one job more (by 1) or less (by -1) on each of the nodes. Nil stays nil.
func (c *NodeCount) with(names []string, by int64) *NodeCount {
	if c == nil || len(names) == 0 {
		return c
	}
	out := &NodeCount{slices.Clone(c.on)}
	for _, name := range names {
		i, found := out.find(name)
		switch {
		case !found && by > 0:
			out.on = slices.Insert(out.on, i, nodeJobs{name, by})
		case found && out.on[i].jobs+by <= 0:
			out.on = slices.Delete(out.on, i, i+1)
		case found:
			out.on[i].jobs += by
		}
	}
	return out
}
