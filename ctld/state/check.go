package state

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// maxProblems bounds what Check reports.
const maxProblems = 20

// checker rebuilds from the records alone what the indexes and nodes must say, and compares.
type checker struct {
	t        *tables
	p        *private
	problems []error
}

// Check verifies the invariants: every index and counter follows from the records, nodes hold
// exactly what runs hold, and nothing is given twice. It is for tests and after a restore.
func (s *Store) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &checker{t: &s.t, p: &s.private}
	c.records()
	c.usage()
	c.classes()
	c.blobsAndKeys()
	c.members()
	c.limits()
	return errors.Join(c.problems...)
}

func (c *checker) waitRank(j *Job) int64 { return c.t.waitRank(j) }

func (c *checker) fail(format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, fmt.Errorf(format, args...))
	}
}

// records rebuilds an empty store from the records and compares every index that follows from them.
func (c *checker) records() {
	fresh := newTables()
	priv := newPrivate()
	fresh.feature = c.t.feature
	fresh.cfg, fresh.time, fresh.parts, fresh.nodeAt = c.t.cfg, c.t.time, c.t.parts, map[string]uint32{}
	tx := &Tx{tables: &fresh, private: &priv, now: c.t.time, restoring: true}
	for j := range c.t.Jobs() {
		c.record(j)
		k := *j
		k.Class = ""
		tx.put(nil, &k)
		if k.Class != j.Class {
			c.fail("job %d: class %q, its shape has %q", j.ID, j.Class, k.Class)
		}
	}
	compare(c, "live", c.t.live.Keys(), fresh.live.Keys())
	compare(c, "active", c.t.active.Keys(), fresh.active.Keys())
	compare(c, "users", c.t.users.Keys(), fresh.users.Keys())
	compare(c, "tasks", c.t.tasks.Keys(), fresh.tasks.Keys())
	compare(c, "task records", c.t.tasks.Values(), fresh.tasks.Values())
	compare(c, "throttled", c.t.throttled.Keys(), fresh.throttled.Keys())
	compare(c, "promised", c.t.promised.Keys(), fresh.promised.Keys())
	compare(c, "due", c.t.due.Items(), fresh.due.Items())
	for _, r := range c.t.active.Values() {
		if c.t.Job(r.job.ID) != r.job {
			c.fail("job %d: the list of what holds nodes has an older record", r.job.ID)
		}
	}
	compare(c, "parted", c.t.parted.Keys(), fresh.parted.Keys())
	compare(c, "arrays", c.t.arrays.Keys(), fresh.arrays.Keys())
	compare(c, "array counts", c.t.arrays.Values(), fresh.arrays.Values())
	compare(c, "ended", c.p.ended.Items(), priv.ended.Items())
	if c.t.pending != fresh.pending || c.t.running != fresh.running || c.p.unstarted != priv.unstarted {
		c.fail("counters: %d pending %d running %d unstarted, the records have %d, %d, %d",
			c.t.pending, c.t.running, c.p.unstarted, fresh.pending, fresh.running, priv.unstarted)
	}
	if !reflect.DeepEqual(c.p.owned, priv.owned) {
		c.fail("jobs by user: %v, the records have %v", c.p.owned, priv.owned)
	}
	if len(c.p.dependents) != len(priv.dependents) || len(c.p.singles) != len(priv.singles) {
		c.fail("dependencies: %d watched ids and %d names, the records have %d and %d",
			len(c.p.dependents), len(c.p.singles), len(priv.dependents), len(priv.singles))
	}
	if !reflect.DeepEqual(c.p.edges, priv.edges) || len(c.p.watching) != len(priv.watching) || len(c.p.parsed) != len(priv.parsed) {
		c.fail("dependencies: %v jobs named by %d records in %d texts; the records have %v, %d, %d", c.p.edges,
			len(c.p.watching), len(c.p.parsed), priv.edges, len(priv.watching), len(priv.parsed))
	}
	if c.p.names != nil {
		live := 0
		for j := range fresh.Live() {
			if isLive(j) {
				live++
			}
		}
		if c.p.names.Len() != live {
			c.fail("%d names are noted for %d live records", c.p.names.Len(), live)
		}
	}
	if !reflect.DeepEqual(c.p.arrayStats, priv.arrayStats) {
		c.fail("the counts of arrays are not those of their records")
	}
	for id, set := range priv.dependents {
		if got := c.p.dependents[id]; got == nil {
			c.fail("nothing is noted to wait for job %d", id)
		} else {
			compare(c, fmt.Sprintf("dependents of %d", id), got.Keys(), set.Keys())
		}
	}
}

func compare[T comparable](c *checker, what string, got, want []T) {
	if !slices.Equal(got, want) {
		c.fail("index %s: %v, the records have %v", what, clip(got), clip(want))
	}
}

func clip[T any](list []T) []T { return list[:min(len(list), 50)] }

// record checks one record by itself.
func (c *checker) record(j *Job) {
	phase := job.PhaseOf(j.State, j.Flags)
	held := holdsAny(j)
	switch {
	case j.ID == 0 || j.ID >= c.t.nextID:
		c.fail("job %d: not below the next id %d", j.ID, c.t.nextID)
	case phase.HoldsNodes() && !held && !isComponent(j):
		c.fail("job %d: %s with %v, but it holds nothing", j.ID, j.State, j.Flags.Names())
	case !phase.HoldsNodes() && held:
		c.fail("job %d: %s with %v, but it holds nodes", j.ID, j.State, j.Flags.Names())
	case isWaiting(j) && (len(j.Allocs) > 0 || j.Start != 0 || j.End != 0 || j.Kill != job.WhyNone):
		c.fail("job %d: waits with what belongs to a run", j.ID)
	case isWaiting(j) && (j.HeldBy != HoldNone) != (j.Priority == 0):
		c.fail("job %d: held by %d with priority %d", j.ID, j.HeldBy, j.Priority)
	case j.Waiting != nil && (j.ArrayTask >= 0 || j.ArrayID == 0 || j.Waiting.Len() == 0):
		c.fail("job %d: a waiting array record of task %d, array %d, %d tasks", j.ID, j.ArrayTask, j.ArrayID, j.Waiting.Len())
	case len(j.Done) != len(j.Allocs) || len(j.Confirmed) != len(j.Allocs):
		c.fail("job %d: %d nodes, %d done, %d confirmed", j.ID, len(j.Allocs), len(j.Done), len(j.Confirmed))
	case len(j.Signals) > MaxSignals || len(j.Avoid) > MaxAvoid:
		c.fail("job %d: %d signals, %d avoided nodes", j.ID, len(j.Signals), len(j.Avoid))
	}
	confirmed := uint32(0)
	for _, ok := range j.Confirmed {
		if ok {
			confirmed++
		}
	}
	if confirmed != j.Launched {
		c.fail("job %d: %d nodes confirmed, %d counted", j.ID, confirmed, j.Launched)
	}
}

// usage: each node holds exactly the sum of the shares of the runs on it, no CPU or device twice.
func (c *checker) usage() {
	want := map[string]*Node{}
	for n := range c.t.Nodes() {
		want[n.Name] = &Node{Name: n.Name}
	}
	for j := range c.t.Jobs() {
		for i := range j.Allocs {
			if !holds(j, i) {
				continue
			}
			a := &j.Allocs[i]
			n := want[a.Node]
			if n == nil {
				c.fail("job %d holds node %q, which is not known", j.ID, a.Node)
				continue
			}
			c.given(n, j, a)
		}
	}
	for n := range c.t.Nodes() {
		w := want[n.Name]
		if n.CPUsAlloc != w.CPUsAlloc || n.MemAlloc != w.MemAlloc || n.Exclusive != w.Exclusive || n.Stopped != w.Stopped ||
			!slices.Equal(n.Jobs, w.Jobs) || !slices.Equal(n.CPUsUsed, w.CPUsUsed) ||
			!sameMap(n.GresCount, w.GresCount, func(a, b uint64) bool { return a == b }) ||
			!sameMap(n.GresUsed, w.GresUsed, slices.Equal[[]bool]) {
			c.fail("node %s: it says %d CPUs, %d bytes, jobs %v, CPUs %v, gres %v %v; the runs hold %d, %d, %v, %v, %v %v", n.Name,
				n.CPUsAlloc, n.MemAlloc, n.Jobs, n.CPUsUsed, n.GresUsed, n.GresCount,
				w.CPUsAlloc, w.MemAlloc, w.Jobs, w.CPUsUsed, w.GresUsed, w.GresCount)
		}
		if !sameDevices(n.gres, n.gres, n.GresUsed) {
			c.fail("node %s: devices %v are in use, it is configured with %q", n.Name, n.GresUsed, n.Config.Gres)
		}
		if at, ok := c.t.nodeAt[n.Name]; !ok || c.t.Node(n.Name) != n {
			c.fail("node %s is not found by its name (%d)", n.Name, at)
		}
	}
	if len(c.t.nodeAt) != c.t.nodes.Len() {
		c.fail("%d node names for %d nodes", len(c.t.nodeAt), c.t.nodes.Len())
	}
}

func sameMap[V any](a, b map[string]V, same func(V, V) bool) bool {
	for k, v := range a {
		if w, ok := b[k]; !ok || !same(v, w) {
			return false
		}
	}
	return len(a) == len(b)
}

// given adds one share to what a node must hold.
func (c *checker) given(n *Node, j *Job, a *job.NodeAlloc) {
	if _, twice := indexOf(n.Jobs, j.ID); twice {
		c.fail("job %d has node %s twice", j.ID, a.Node)
	}
	cpus := keepsCPUs(j)
	if cpus && (n.Exclusive || j.Alone && len(n.Jobs) > int(n.Stopped)) {
		c.fail("job %d shares node %s with an exclusive run", j.ID, a.Node)
	}
	n.MemAlloc += a.Mem
	n.Jobs = insertID(n.Jobs, j.ID)
	if !cpus {
		n.Stopped++
	}
	for _, x := range a.CPUIDs {
		if cpus && int(x) < len(n.CPUsUsed) && n.CPUsUsed[x] {
			c.fail("CPU %d of node %s is given twice, the second time to job %d", x, a.Node, j.ID)
		}
	}
	for _, g := range a.Gres {
		for _, x := range g.Index {
			if used := n.GresUsed[gresKey(g.Name, g.Type)]; int(x) < len(used) && used[x] {
				c.fail("%s %d of node %s is given twice, the second time to job %d", g.Name, x, a.Node, j.ID)
			}
		}
	}
	if cpus {
		n.bookCPUs(a, j.Alone, true)
	}
	n.bookGres(a.Gres, true)
}

// classes: the waiting index holds exactly the waiting records, each in the class of its shape.
func (c *checker) classes() {
	counts := map[uint32]int{}
	for _, k := range c.t.waiting.Items() {
		counts[k.class]++
		j := c.t.Job(k.id)
		if j == nil || !isWaiting(j) || c.waitRank(j) != k.priority || j.SubmitSeq != k.submit {
			c.fail("waiting index: job %d in class %d is not as it says", k.id, k.class)
			continue
		}
		if cl, ok := c.t.classes.Get(j.Class); !ok || cl.number != k.class {
			c.fail("waiting index: job %d stands in class %d, its class %q does not", k.id, k.class, j.Class)
		}
	}
	waiting := 0
	for j := range c.t.Jobs() {
		if isWaiting(j) {
			waiting++
		} else if j.Class != "" {
			c.fail("job %d does not wait and has a class", j.ID)
		}
	}
	if c.t.waiting.Len() != waiting {
		c.fail("waiting index: %d entries for %d waiting records", c.t.waiting.Len(), waiting)
	}
	if len(c.p.shapes) != c.t.classes.Len() {
		c.fail("%d shapes for %d classes", len(c.p.shapes), c.t.classes.Len())
	}
	c.t.classes.Scan(func(key string, cl *class) bool {
		if cl.count != counts[cl.number] || cl.count == 0 || cl.key != key {
			c.fail("class %q: it says %d records, the index has %d", key, cl.count, counts[cl.number])
		}
		return true
	})
}

// blobsAndKeys: references are counted right, and what waits for its time is listed as such.
func (c *checker) blobsAndKeys() {
	refs := map[string]uint32{}
	for j := range c.t.Jobs() {
		for _, hash := range [][]byte{j.Spec.ScriptHash, j.Spec.EnvHash} {
			if len(hash) > 0 {
				refs[string(hash)]++
			}
		}
	}
	open, bytes, shares := 0, 0, map[uint32]blobShare{}
	c.t.blobs.Scan(func(hash string, b *blob) bool {
		s := shares[b.uid]
		if !b.whole {
			open++
		}
		if !b.used {
			bytes += len(b.data)
			s.bytes += len(b.data)
			if !b.whole {
				s.open++
			}
			if s != (blobShare{}) {
				shares[b.uid] = s
			}
		}
		_, free := c.p.freeBlobs.Get(hash)
		if b.refs != refs[hash] || free != (b.refs == 0) || b.whole != (uint64(len(b.data)) == b.total) {
			c.fail("blob %x: %d references, the records have %d; listed as free: %t", hash, b.refs, refs[hash], free)
		}
		delete(refs, hash)
		return true
	})
	for hash := range refs {
		c.fail("blob %x is referred to and not here", hash)
	}
	if bytes != c.p.newBytes || !maps.Equal(shares, c.p.newBlobs) {
		c.fail("blobs that no job has named: %d bytes, by user %v; counted are %d, %v", bytes, shares, c.p.newBytes, c.p.newBlobs)
	}
	if open != c.p.openBlobs {
		c.fail("%d unfinished blobs, counted are %d", open, c.p.openBlobs)
	}
	c.t.keys.Scan(func(id uint32, k keyRecord) bool {
		_, orphan := c.p.orphanKeys.Get(endKey{k.time, id})
		if orphan != (c.t.Job(id) == nil) {
			c.fail("key of job %d: listed as outliving it: %t", id, orphan)
		}
		if found, _, ok := c.t.keyed(k.uid, k.key); !ok || found != id {
			c.fail("key of job %d: it leads to job %d, %t", id, found, ok)
		}
		return true
	})
	listed := len(c.t.keyIndex.jobs)
	for _, more := range c.t.keyIndex.twins {
		listed += len(more)
	}
	if listed != c.t.keys.Len() {
		c.fail("%d keys, %d of them can be found", c.t.keys.Len(), listed)
	}
}

// members: what joined at run time, and the tokens for joining, are within their limits.
func (c *checker) members() {
	if c.t.feature < FeatureFirst {
		c.fail("feature level %d", c.t.feature)
	}
	if len(c.t.members) > MaxControllers || len(c.t.tokens) > MaxJoinTokens {
		c.fail("%d controllers joined at run time, %d join tokens", len(c.t.members), len(c.t.tokens))
	}
	for m := range c.t.Controllers() {
		if r := checkController(&m, false); r != nil || c.t.members[m.Name] != m {
			c.fail("controller %q: %v", m.Name, r)
		}
	}
	for k := range c.t.JoinTokens() {
		if err := k.whole(); err != nil || c.t.JoinToken(k.ID) != k {
			c.fail("join token %q: %v", k.ID, err)
		}
	}
	for i := range c.t.file.parts {
		if p := &c.t.file.parts[i]; p.JobLease < job.Unlimited || p.JobLease != 0 && c.t.feature < FeatureMembers {
			c.fail("partition %q: JobLease %d at feature level %d", p.Name, p.JobLease, c.t.feature)
		}
	}
}
