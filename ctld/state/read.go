package state

import (
	"cmp"
	"iter"
	"slices"

	"github.com/tidwall/btree"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Index is the raft index of the last entry applied.
func (t *tables) Index() uint64 { return t.index }

// Version counts the entries applied.
func (t *tables) Version() uint64 { return t.version }

// Time is the state's clock, Unix ms.
func (t *tables) Time() int64 { return t.time }

// Config is the configuration in force; never nil.
func (t *tables) Config() *Config { return t.cfg }

// Job gives one record by its own id; nil when unknown.
func (t *tables) Job(id uint32) *Job {
	j, _ := t.jobs.Get(id)
	return j
}

// ArrayTask finds the record of one task that started, or that was cut out of the array's waiting
// record; nil when it waits there or is unknown.
func (t *tables) ArrayTask(base uint32, task int64) *Job {
	if task < 0 || task > int64(^uint32(0)) {
		return nil
	}
	if id, ok := t.tasks.Get(pair(base, uint32(task))); ok {
		return t.Job(id)
	}
	for _, j := range t.waitingParts(base) {
		if j.ID != base && j.Waiting.Contains(uint32(task)) {
			return j
		}
	}
	return nil
}

// ArrayTasks gives the records of an array besides its waiting one, ascending by id: tasks that
// started, and waiting tasks that were cut out.
func (t *tables) ArrayTasks(base uint32) []*Job {
	var list []*Job
	t.tasks.Ascend(pair(base, 0), func(k uint64, id uint32) bool {
		if uint32(k>>32) != base {
			return false
		}
		list = append(list, t.Job(id))
		return true
	})
	for _, j := range t.waitingParts(base) {
		if j.ID != base {
			list = append(list, j)
		}
	}
	slices.SortFunc(list, func(a, b *Job) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Jobs walks all records, ascending by id.
func (t *tables) Jobs() iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		t.jobs.Scan(func(_ uint32, j *Job) bool { return yield(j) })
	}
}

func (t *tables) those(set *btree.Map[uint32, none]) iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		set.Scan(func(id uint32, _ none) bool { return yield(t.Job(id)) })
	}
}

// Live walks the records that have not ended or are still completing, ascending by id.
func (t *tables) Live() iter.Seq[*Job] { return t.those(t.live) }

// Promises walks the waiting records that hold a promise, ascending by id.
func (t *tables) Promises() iter.Seq[*Job] { return t.those(t.promised) }

// Active walks the records that hold resources, ascending by id.
func (t *tables) Active() iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		t.active.Scan(func(_ uint32, r *activeRun) bool { return yield(r.job) })
	}
}

// OfUser walks the live records of one user, ascending by id.
func (t *tables) OfUser(uid uint32) iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		t.users.Ascend(pair(uid, 0), func(k uint64, _ none) bool {
			return uint32(k>>32) == uid && yield(t.Job(uint32(k)))
		})
	}
}

// Node gives one node; nil when unknown.
func (t *tables) Node(name string) *Node {
	at, ok := t.nodeAt[name]
	if !ok {
		return nil
	}
	n, _ := t.nodes.Get(at)
	return n
}

// Nodes walks the nodes in configuration order.
func (t *tables) Nodes() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		t.nodes.Scan(func(_ uint32, n *Node) bool { return yield(n) })
	}
}

// Partition gives one partition; nil when unknown.
func (t *tables) Partition(name string) *Partition { return t.parts.byName[name] }

// Partitions walks the partitions in configuration order.
func (t *tables) Partitions() iter.Seq[*Partition] { return slices.Values(t.parts.list) }

// DefaultPartition is where jobs go that name none; nil when there is no such.
func (t *tables) DefaultPartition() *Partition {
	for _, p := range t.parts.list {
		if p.Default {
			return p
		}
	}
	return nil
}

// Blob gives a whole blob by its SHA-256.
func (t *tables) Blob(hash []byte) ([]byte, bool) {
	b, ok := t.blobs.Get(string(hash))
	if !ok || !b.whole {
		return nil, false
	}
	return b.data, true
}

// Counts gives the numbers of all records, of pending and of running or suspended ones.
func (t *tables) Counts() (all, pending, running int) {
	return t.jobs.Len(), t.pending, t.running
}

// arrayRoom is how many more tasks of an array may start now; -1 = no limit.
func (t *tables) arrayRoom(j *Job) int {
	if j.ArrayID == 0 || j.ArrayLimit == 0 {
		return -1
	}
	n, _ := t.arrays.Get(j.ArrayID)
	return int(j.ArrayLimit) - int(min(n, j.ArrayLimit))
}

// blocked is what keeps a waiting record besides resources and time; "" when nothing does.
func (t *tables) blocked(j *Job) job.Reason {
	switch {
	case j.Priority == 0:
		return holdReason(j)
	case j.Dep == DepNever:
		return job.ReasonDependencyNever
	case j.Dep == DepWaits:
		return job.ReasonDependency
	case t.arrayRoom(j) == 0:
		return job.ReasonArrayLimit
	}
	return ""
}

// holdReason says who holds the record, or what made it held.
func holdReason(j *Job) job.Reason {
	switch {
	case j.Reason == job.ReasonMaxRequeue || j.Reason == job.ReasonProlog || j.Reason == job.ReasonLaunchFailure:
		return j.Reason
	case j.Flags&job.ResvDelHold != 0:
		return job.ReasonReservationDeleted
	case j.HeldBy == HoldUser:
		return job.ReasonHeldUser
	}
	return job.ReasonHeldAdmin
}

// notBefore is the earliest time a record may start; 0 = any.
func notBefore(j *Job) int64 { return max(j.Begin, j.EligibleAt) }
