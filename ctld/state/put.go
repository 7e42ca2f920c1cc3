package state

import (
	"github.com/tidwall/btree"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// put stores j in the place of old (nil for a new record) and brings every index, counter and
// node along. It is the only way a record enters or changes, so that the indexes cannot disagree
// with the tables. j must not be changed afterwards.
func (t *Tx) put(old, j *Job) {
	t.account(old, j)
	keepPromise(old, j)
	if isWaiting(j) {
		t.classify(old, j)
	} else {
		j.Class = ""
	}
	if old == nil {
		t.jobs.Load(j.ID, j) // as Set, and mostly the last one
	} else {
		t.jobs.Set(j.ID, j)
	}
	t.reindex(old, j)
	if j.Het == j.ID {
		t.follow(j)
	}
	t.wake()
}

// drop removes an ended record that holds nothing.
func (t *Tx) drop(j *Job) {
	t.jobs.Delete(j.ID)
	t.reindex(j, nil)
	t.wake()
}

// edit gives a copy of j to change and put.
func edit(j *Job) *Job {
	c := *j
	return &c
}

// reindex moves all that follows from a record from old to j; either may be nil.
func (t *Tx) reindex(old, j *Job) {
	t.indexLive(old, j)
	t.indexWaiting(old, j)
	t.indexArray(old, j)
	t.indexThrottled(old, j)
	t.indexHolding(old, j)
	t.indexEnded(old, j)
	t.indexDue(old, j)
	t.indexPromise(old, j)
	t.indexDependency(old, j)
	t.indexBlobs(old, j)
	t.indexUse(old, j)
	t.indexLicenses(old, j)
	t.indexReservations(old, j)
	t.pending += count(j, isPending) - count(old, isPending)
	t.running += count(j, isRunning) - count(old, isRunning)
}

func count(j *Job, is func(*Job) bool) int {
	if j != nil && is(j) {
		return 1
	}
	return 0
}

func isPending(j *Job) bool { return j.State == job.Pending }
func isRunning(j *Job) bool { return j.State == job.Running || j.State == job.Suspended }

// isLive: not ended, or a node still cleans up after it.
func isLive(j *Job) bool { return !j.State.Ended() || j.Flags&job.Completing != 0 }

// isWaiting: the planner may look at it.
func isWaiting(j *Job) bool { return j.State == job.Pending && j.Flags&job.Completing == 0 }

// holds tells whether node i of the allocation is still taken by the record.
func holds(j *Job, i int) bool {
	return (isRunning(j) || j.Flags&job.Completing != 0) && !(i < len(j.Done) && j.Done[i])
}

// holdsAny tells whether the record holds resources anywhere.
func holdsAny(j *Job) bool {
	for i := range j.Allocs {
		if holds(j, i) {
			return true
		}
	}
	return false
}

// weight is how many jobs a record counts for in a user's limit: each waiting task is one.
func weight(j *Job) uint32 {
	switch {
	case j == nil || !isLive(j):
		return 0
	case j.Waiting != nil:
		return uint32(j.Waiting.Len())
	}
	return 1
}

func (t *Tx) indexLive(old, j *Job) {
	was, is := old != nil && isLive(old), j != nil && isLive(j)
	if is && !was {
		t.live.Load(j.ID, none{})
		t.users.Set(pair(j.Spec.UID, j.ID), none{})
	}
	if was && !is {
		t.live.Delete(old.ID)
		t.users.Delete(pair(old.Spec.UID, old.ID))
	}
	if before, after := weight(old), weight(j); before != after {
		uid := either(old, j).Spec.UID
		if n := t.owned[uid] + after - before; n == 0 {
			delete(t.owned, uid)
		} else {
			t.owned[uid] = n
		}
	}
}

func either(old, j *Job) *Job {
	if j != nil {
		return j
	}
	return old
}

// classify gives j its class, which it keeps while its specification and avoided nodes stand.
func (t *Tx) classify(old, j *Job) {
	if old != nil && old.Class != "" && old.Spec == j.Spec && len(old.Avoid) == len(j.Avoid) && fixedPriority(old) == fixedPriority(j) {
		j.Class = old.Class
		return
	}
	t.scratch = appendShape(t.scratch[:0], j.Spec, j.Avoid)
	ranked := t.feature >= FeatureSched
	if ranked {
		t.scratch = appendRanked(t.scratch[:0], j)
	}
	if key, ok := t.shapes[string(t.scratch)]; ok {
		j.Class = key
		return
	}
	form, key := string(t.scratch), shapeKey(t.scratch)
	j.Class = key
	t.shapes[form] = key
	if _, known := t.classes.Get(key); known {
		return // in a trial, which begins without the forms
	}
	t.classNums++
	c := &class{key: key, form: form, number: t.classNums, spec: j.Spec, avoid: j.Avoid, born: t.entry, sched: new(schedClass)}
	if ranked {
		c.shape, c.fixed = shapeKey(appendPlace(t.scratch[:0], j)), fixedPriority(j)
	}
	t.classes.Set(key, c)
}

// mayStartSooner tells whether a waiting record has become, or may have become, easier to start:
// it is new to the queue, or anything but the planner's words and its started tasks has changed.
func mayStartSooner(old, j *Job) bool {
	if !couldStart(j) {
		return false
	}
	return old == nil || !isWaiting(old) || old.Spec != j.Spec || old.Priority != j.Priority || old.Dep != j.Dep ||
		old.Begin != j.Begin || old.EligibleAt != j.EligibleAt || old.ArrayLimit != j.ArrayLimit
}

// couldStart: nothing but resources keeps it, its begin time apart. The planner keeps nodes for the
// first such record of a partition.
func couldStart(j *Job) bool {
	return j != nil && isWaiting(j) && j.Priority > 0 && j.Dep == DepMet
}

// givesWay tells whether a record no longer stands before others: it has left the queue and does not run.
func givesWay(old, j *Job) bool {
	return couldStart(old) && !couldStart(j) && (j == nil || !isRunning(j))
}

func (t *Tx) indexWaiting(old, j *Job) {
	if mayStartSooner(old, j) || givesWay(old, j) {
		t.capacity++
	}
	was, is := old != nil && old.Class != "", j != nil && j.Class != ""
	same := was && is && old.Class == j.Class
	if same && t.waitRank(old) == t.waitRank(j) && old.SubmitSeq == j.SubmitSeq {
		c, _ := t.classes.Get(j.Class)
		t.countClass(c, 0)
		return
	}
	if was {
		c, _ := t.classes.Get(old.Class)
		t.waiting.Delete(waitKey{c.number, old.ID, t.waitRank(old), old.SubmitSeq})
		if !same {
			t.countClass(c, -1)
		}
	}
	if is {
		c, _ := t.classes.Get(j.Class)
		t.waiting.Set(waitKey{c.number, j.ID, t.waitRank(j), j.SubmitSeq})
		by := 1
		if same {
			by = 0
		}
		t.countClass(c, by)
	}
}

// countClass changes how many records a class has, or tells (by 0) that one of them has changed; an empty class leaves
// with its verdict.
func (t *Tx) countClass(c *class, by int) {
	if c.count+by == 0 {
		t.classes.Delete(c.key)
		delete(t.shapes, c.form)
		return
	}
	if c.born == t.entry && t.entry != 0 {
		c.count += by
		return
	}
	n := *c
	n.count, n.born, n.sched = n.count+by, t.entry, new(schedClass)
	t.classes.Set(c.key, &n)
}

func (t *Tx) indexArray(old, j *Job) {
	if o := old; o != nil && o.ArrayTask >= 0 && (j == nil || j.ArrayTask != o.ArrayTask) {
		t.tasks.Delete(pair(o.ArrayID, uint32(o.ArrayTask)))
	}
	if j != nil && j.ArrayTask >= 0 && (old == nil || old.ArrayTask != j.ArrayTask) {
		t.tasks.Set(pair(j.ArrayID, uint32(j.ArrayTask)), j.ID)
	}
	was, is := old != nil && isParted(old), j != nil && isParted(j)
	if was && !is {
		t.parted.Delete(pair(old.ArrayID, old.ID))
	}
	if is && !was {
		t.parted.Set(pair(j.ArrayID, j.ID), none{})
	}
	t.unstarted += unstarted(j) - unstarted(old)
}

// isParted: waiting tasks that were cut out of the array's own record.
func isParted(j *Job) bool { return j.Waiting != nil && j.ID != j.ArrayID }

// unstarted is how many more records the waiting tasks of a record will need.
func unstarted(j *Job) int {
	if j == nil || j.Waiting == nil || j.State != job.Pending {
		return 0
	}
	return j.Waiting.Len() - 1
}

func (t *Tx) indexHolding(old, j *Job) {
	was, is := old != nil && holdsAny(old), j != nil && holdsAny(j)
	if old != nil {
		for i := range old.Allocs {
			if holds(old, i) && !(is && sameRun(old, j) && holds(j, i)) {
				t.release(old, i)
			} else if holds(old, i) && keepsCPUs(old) && !keepsCPUs(j) {
				t.bookCPUs(j, i, false)
			}
		}
	}
	if j != nil {
		for i := range j.Allocs {
			if holds(j, i) && !(was && sameRun(old, j) && holds(old, i)) {
				t.claim(j, i)
			} else if holds(j, i) && keepsCPUs(j) && !keepsCPUs(old) {
				t.bookCPUs(j, i, true)
			}
		}
	}
	if is {
		t.noteRun(old, j)
	}
	if was == is {
		return
	}
	by := uint32(1)
	if !is {
		t.active.Delete(old.ID)
		by = ^uint32(0)
	}
	if base := either(old, j).ArrayID; base != 0 {
		if n, _ := t.arrays.Get(base); n+by == 0 {
			t.arrays.Delete(base)
		} else {
			t.arrays.Set(base, n+by)
		}
		t.touchThrottled(base)
	}
}

// isThrottled: how many more of its array may start depends on how many run.
func isThrottled(j *Job) bool { return j.ArrayID != 0 && j.ArrayLimit > 0 && isWaiting(j) }

// indexThrottled keeps the waiting records of arrays with a limit of their own.
func (t *Tx) indexThrottled(old, j *Job) {
	was, is := old != nil && isThrottled(old), j != nil && isThrottled(j)
	switch {
	case is && !was:
		t.throttled.Set(pair(j.ArrayID, j.ID), none{})
	case was && !is:
		t.throttled.Delete(pair(old.ArrayID, old.ID))
	}
}

// touchThrottled: how many tasks of an array may start has changed, and so have the classes of those that wait.
func (t *Tx) touchThrottled(base uint32) {
	t.throttled.Ascend(pair(base, 0), func(k uint64, _ none) bool {
		if uint32(k>>32) != base {
			return false
		}
		if c, ok := t.classes.Get(t.Job(uint32(k)).Class); ok {
			t.countClass(c, 0)
		}
		return true
	})
}

// sameRun: both records speak of the same allocation.
func sameRun(a, b *Job) bool { return a.Run == b.Run && len(a.Allocs) == len(b.Allocs) }

func (t *Tx) indexEnded(old, j *Job) {
	was, is := old != nil && !isLive(old), j != nil && !isLive(j)
	if was && (!is || old.End != j.End) {
		t.ended.Delete(endKey{old.End, old.ID})
	}
	if is && (!was || old.End != j.End) {
		t.ended.Set(endKey{j.End, j.ID})
	}
}

func (t *Tx) indexBlobs(old, j *Job) {
	if old == nil {
		t.refer(j.Spec.ScriptHash, 1)
		t.refer(j.Spec.EnvHash, 1)
	}
	if j == nil {
		t.refer(old.Spec.ScriptHash, -1)
		t.refer(old.Spec.EnvHash, -1)
	}
}

// addTo and removeFrom keep sets that live in plain maps, and leave no empty ones behind.
func addTo[K comparable, I uint32 | uint64](m map[K]*btree.Map[I, none], key K, id I) {
	set := m[key]
	if set == nil {
		set = btree.NewMap[I, none](4)
		m[key] = set
	}
	set.Set(id, none{})
}

func removeFrom[K comparable, I uint32 | uint64](m map[K]*btree.Map[I, none], key K, id I) {
	if set := m[key]; set != nil {
		if set.Delete(id); set.Len() == 0 {
			delete(m, key)
		}
	}
}
