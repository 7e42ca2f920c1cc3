package state

import (
	"sync"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// View is the state as of one entry. It is immutable and safe for any number of readers.
type View struct {
	tables
	cache *schedCache
	once  sync.Once
	snap  *sched.Snapshot

	mu    sync.Mutex
	heads map[uint32]uint32 // class number -> first record that could start; 0 when none can
}

var _ Viewer = (*View)(nil)

// Reason is what a waiting or ended record shows. Of a class only the first that could start
// shows the planner's verdict: those behind it wait for Priority.
func (v *View) Reason(j *Job) (job.Reason, string) {
	if !isWaiting(j) {
		return reasonOr(j.Reason), j.Detail
	}
	if r := v.blocked(j); r != "" {
		return r, j.Detail
	}
	if notBefore(j) > v.time {
		return job.ReasonBeginTime, ""
	}
	if j.Reason != "" {
		return j.Reason, j.Detail
	}
	c, ok := v.classes.Get(j.Class)
	if !ok || c.reason == "" {
		return job.ReasonNone, ""
	}
	if v.head(c) != j.ID {
		return job.ReasonPriority, ""
	}
	return c.reason, c.detail
}

// ExpectedStart is when the planner last expected the record's class to start; 0 when not known. A record whose time to
// begin is ahead starts then at the earliest.
func (v *View) ExpectedStart(j *Job) int64 {
	if isWaiting(j) && v.blocked(j) != "" {
		return 0 // whatever was promised
	}
	if begin := notBefore(j); isWaiting(j) && begin > v.time && j.Promise == nil {
		return begin
	}
	if j.Promise != nil {
		return j.Promise.Start
	}
	if c, ok := v.classes.Get(j.Class); ok && v.head(c) == j.ID {
		return c.start
	}
	return 0
}

// Promised tells whether a record was promised a start.
func (v *View) Promised(j *Job) bool { return j.Promise != nil }

func reasonOr(r job.Reason) job.Reason {
	if r == "" {
		return job.ReasonNone
	}
	return r
}

// head finds the first record of a class that nothing but resources keeps.
func (v *View) head(c *class) uint32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if id, ok := v.heads[c.number]; ok {
		return id
	}
	var head uint32
	v.eachWaiting(c.number, func(j *Job) bool {
		if v.blocked(j) == "" && notBefore(j) <= v.time {
			head = j.ID
		}
		return head == 0
	})
	if v.heads == nil {
		v.heads = map[uint32]uint32{}
	}
	v.heads[c.number] = head
	return head
}

// eachWaiting walks one class, best first.
func (t *tables) eachWaiting(number uint32, f func(*Job) bool) {
	t.waiting.Ascend(waitKey{class: number, priority: 1<<63 - 1}, func(k waitKey) bool {
		return k.class == number && f(t.Job(k.id))
	})
}

// Usable tells whether the node may take new work: registered, responding, not drained or down.
func (n *Node) Usable() bool {
	return n.BootID != "" && !n.Removed && node.Usable(n.State, n.Flags)
}
