package state

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// entityUse is what the live records of one entity take of its limits.
type entityUse struct {
	of  partitions.Entity
	use partitions.Use
}

// entityUsage is the decayed usage of one entity.
type entityUsage struct {
	of    partitions.Entity
	usage accounting.Usage
}

func compareEntity(a, b partitions.Entity) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Sub, b.Sub))
}

func newUses() *btree.BTreeG[entityUse] {
	return btree.NewBTreeGOptions(func(a, b entityUse) bool { return compareEntity(a.of, b.of) < 0 }, btree.Options{NoLocks: true})
}

func newUsages() *btree.BTreeG[entityUsage] {
	return btree.NewBTreeGOptions(func(a, b entityUsage) bool { return compareEntity(a.of, b.of) < 0 }, btree.Options{NoLocks: true})
}

// lookup is what limits are compared with. It implements partitions.Lookup.
type lookup struct{ t *tables }

func (l lookup) Use(e partitions.Entity) partitions.Use {
	u, _ := l.t.uses.Get(entityUse{of: e})
	return u.use
}

func (l lookup) Usage(e partitions.Entity) accounting.Usage {
	u, _ := l.t.charges.Get(entityUsage{of: e})
	return u.usage
}

// Limits is what the jobs of each entity take of its limits, and its decayed usage.
func (t *tables) Limits() partitions.Lookup { return lookup{t} }

// Rules is what accounts, limits and QOS demand; nil below FeatureSched.
func (t *tables) Rules() *partitions.Rules { return t.rules }

// counts tells whether limits are enforced, so that what jobs take of them is kept.
func (t *tables) counts() bool { return t.rules != nil && t.rules.Limits }

// enforces tells whether a job needs an account or a QOS that it may use.
func (t *tables) enforces() bool {
	return t.rules != nil && (t.rules.Associations || t.rules.Limits || t.rules.QOS)
}

// maxChains bounds the chains that are remembered. What is forgotten is worked out again.
const maxChains = 1 << 16

// chain gives what limits a job of a specification in a partition; a refusal when it may not be there at all.
func (t *tables) chain(s *job.Spec, partition string) (*partitions.Chain, *Refusal) {
	return t.rules.Chain(t.policyJob(s, partition))
}

func (t *tables) policyJob(s *job.Spec, partition string) partitions.Job {
	j := partitions.Job{UID: s.UID, User: s.User, Account: s.Account, Partition: partition, QOS: s.QOS}
	if p := t.Partition(partition); p != nil {
		j.PartQOS = p.QOS
	}
	return j
}

// knownChain is chain, remembered; nil where there is a refusal.
func (t *Tx) knownChain(s *job.Spec, partition string) *partitions.Chain {
	key := t.policyJob(s, partition)
	if c, ok := t.chains[key]; ok {
		return c
	}
	if len(t.chains) >= maxChains {
		clear(t.chains)
	}
	c, _ := t.rules.Chain(key)
	t.chains[key] = c
	return c
}

// countedChain is what a record is counted for and charged to, remembered: also one that may not be there any more, since
// an account or a QOS was taken from its user, still takes what it takes.
func (t *Tx) countedChain(s *job.Spec, partition string) *partitions.Chain {
	key := t.policyJob(s, partition)
	if c, ok := t.counted[key]; ok {
		return c
	}
	if len(t.counted) >= maxChains {
		clear(t.counted)
		t.forgot = true
	}
	c, _ := t.counting.Chain(key) // nothing is enforced, so that nothing is refused
	t.counted[key] = c
	return c
}

// countedIn is the partition that a record counts in: where it runs, or the first that it asked for.
func countedIn(j *Job) string {
	if isRunning(j) {
		return j.Partition
	}
	return firstName(j.Spec.Partition)
}

// submits is how many jobs a record counts for in limits on submission.
func submits(j *Job) int64 {
	switch {
	case j == nil || j.State.Ended():
		return 0
	case j.Waiting != nil:
		return int64(j.Waiting.Len())
	}
	return 1
}

// sameUse tells whether two records take the same of their limits.
func sameUse(old, j *Job) bool {
	switch {
	case old == nil || j == nil:
		return submits(old) == 0 && submits(j) == 0
	case submits(old) != submits(j) || isRunning(old) != isRunning(j):
		return false
	case submits(j) == 0:
		return true
	}
	if a, b := old.Spec, j.Spec; a != b && (a.UID != b.UID || a.User != b.User || a.Account != b.Account || a.QOS != b.QOS) {
		return false
	}
	return countedIn(old) == countedIn(j) && (!isRunning(j) ||
		sameRun(old, j) && old.Start == j.Start && old.End == j.End && old.TimeLimit == j.TimeLimit)
}

// indexUse moves what a record takes of its limits from old to j.
func (t *Tx) indexUse(old, j *Job) {
	if !t.counts() || t.restoring || sameUse(old, j) {
		return
	}
	t.countUse(old, -1)
	t.countUse(j, 1)
}

// countUse adds what a record takes to each entity that it counts for, or takes it off.
func (t *Tx) countUse(j *Job, by int64) {
	n := submits(j)
	if n == 0 {
		return
	}
	c := t.countedChain(j.Spec, countedIn(j))
	var claim *partitions.Claim
	if isRunning(j) {
		claim = t.claimOf(j, c)
	}
	for _, e := range c.Entities() {
		old, known := t.uses.Get(entityUse{of: e})
		if !known && t.rules.CountsNodes(e) {
			old.use.Nodes = partitions.NewNodeCount()
		}
		u := old.use.PlusSubmit(by * n)
		switch {
		case claim != nil && by > 0:
			u = u.Plus(claim)
		case claim != nil:
			u = u.Minus(claim)
		}
		if u.Jobs == 0 && u.Submit == 0 {
			t.uses.Delete(entityUse{of: e})
			continue
		}
		t.uses.Set(entityUse{e, u})
	}
}

// claimOf is what a running record takes.
func (t *Tx) claimOf(j *Job, c *partitions.Chain) *partitions.Claim {
	start := j.Start
	if j.TimeLimit > 0 && j.End > 0 {
		start = j.End - j.TimeLimit // its limit stood still while it was suspended
	}
	return t.newClaim(j.Spec, j.Partition, j.Allocs, start, j.TimeLimit, c)
}

// newClaim is what a run takes with these shares of nodes.
func (t *tables) newClaim(s *job.Spec, partition string, allocs []job.NodeAlloc, start, limit int64, c *partitions.Chain) *partitions.Claim {
	tres := accounting.AllocTRES(allocs, licensesOf(s))
	claim := &partitions.Claim{
		TRES: tres.With("billing", t.billing(partition, tres)), PerNode: accounting.PerNode(allocs), Start: start, Limit: limit,
	}
	if c.CountsNodes() {
		claim.Nodes = make([]string, len(allocs))
		for i := range allocs {
			claim.Nodes[i] = allocs[i].Node
		}
	}
	return claim
}

// billing is what a vector costs in a partition.
func (t *tables) billing(partition string, tres accounting.TRES) int64 {
	return t.weights[partition].Billing(tres, t.maxTRES, t.maxTRESGres)
}

// recountChanged is recount after the accounts alone have changed: limits do not change what records take, so that
// mostly it is enough to look at what they are counted for.
func (t *Tx) recountChanged() {
	if t.forgot || !t.counts() || len(t.counted) > t.live.Len() {
		t.recount()
		return
	}
	clear(t.chains)
	fresh := make(map[partitions.Job]*partitions.Chain, len(t.counted))
	for key, old := range t.counted { // each by itself: the order does not matter
		c, _ := t.counting.Chain(key)
		if fresh[key] = c; !slices.Equal(old.Entities(), c.Entities()) || old.CountsNodes() != c.CountsNodes() || t.nodesCounted(c) {
			t.recount()
			return
		}
	}
	t.counted = fresh
}

// nodesCounted tells whether an entity of a chain begins to count nodes, or does no more.
func (t *Tx) nodesCounted(c *partitions.Chain) bool {
	for _, e := range c.Entities() {
		if u, known := t.uses.Get(entityUse{of: e}); known && (u.use.Nodes != nil) != t.rules.CountsNodes(e) {
			return true
		}
	}
	return false
}

// recount works out what all records take anew, after accounts, rules or partitions have changed.
func (t *Tx) recount() {
	clear(t.chains)
	clear(t.counted)
	t.forgot = false
	t.uses = newUses()
	if !t.counts() || t.restoring {
		return
	}
	for j := range t.Live() {
		t.countUse(j, 1)
	}
}

func equalUse(a, b *partitions.Use) bool {
	return a.Jobs == b.Jobs && a.Submit == b.Submit && a.End == b.End && a.EndlessJobs == b.EndlessJobs && slices.Equal(a.TRES, b.TRES) &&
		slices.Equal(a.EndTRES, b.EndTRES) && slices.Equal(a.Endless, b.Endless) && a.Nodes.Len() == b.Nodes.Len()
}

// limits: what is counted is what the records say.
func (c *checker) limits() {
	if c.t.feature < FeatureSched {
		if c.t.db != nil || c.t.rules != nil || c.t.uses.Len()+c.t.charges.Len()+c.t.history.Len()+len(c.t.reserved.list) > 0 {
			c.fail("accounts, limits or reservations at feature level %d", c.t.feature)
		}
		return
	}
	fresh, priv := *c.t, newPrivate()
	tx := &Tx{tables: &fresh, private: &priv, now: c.t.time}
	tx.recount()
	for _, want := range fresh.uses.Items() {
		if got, _ := c.t.uses.Get(want); !equalUse(&got.use, &want.use) {
			c.fail("use of %+v: %+v, the records have %+v", want.of, got.use, want.use)
		}
	}
	if c.t.uses.Len() != fresh.uses.Len() {
		c.fail("use of %d entities, the records have %d", c.t.uses.Len(), fresh.uses.Len())
	}
	c.usages()
	c.reservations()
}
