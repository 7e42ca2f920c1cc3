package state

import (
	"slices"
	"strings"
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

// ExpectedStart is when the planner last expected the record's class to start; 0 when not known.
func (v *View) ExpectedStart(j *Job) int64 {
	if c, ok := v.classes.Get(j.Class); ok && v.head(c) == j.ID {
		return c.start
	}
	return 0
}

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

// schedCache keeps the costly half of a planner's snapshot over versions that do not change it.
type schedCache struct {
	mu    sync.Mutex
	usage uint64
	made  bool
	nodes []*sched.Node
	parts []*sched.Partition
	runs  []*sched.Running
}

// Sched is the planner's snapshot of this view.
func (v *View) Sched() *sched.Snapshot {
	v.once.Do(func() {
		s := &sched.Snapshot{Version: v.version, Capacity: v.capacity, Classes: v.schedClasses()}
		s.Nodes, s.Partitions, s.Running = v.cache.get(&v.tables)
		v.snap = s
	})
	return v.snap
}

func (c *schedCache) get(t *tables) ([]*sched.Node, []*sched.Partition, []*sched.Running) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made && c.usage == t.usage {
		return c.nodes, c.parts, c.runs
	}
	nodes, parts, runs := t.schedNodes(), t.schedPartitions(), t.schedRunning()
	if !c.made || c.usage < t.usage { // an old view must not push out a newer one's
		c.made, c.usage, c.nodes, c.parts, c.runs = true, t.usage, nodes, parts, runs
	}
	return nodes, parts, runs
}

func (t *tables) schedClasses() []*sched.Class {
	list := make([]*sched.Class, 0, t.classes.Len())
	t.classes.Scan(func(_ string, c *class) bool {
		number := c.number
		list = append(list, &sched.Class{
			Key: c.key, Mixed: true, Spec: c.spec, Avoid: c.avoid, Count: c.count,
			Waiting: func(yield func(sched.Waiting) bool) {
				t.eachWaiting(number, func(j *Job) bool { return yield(t.schedWaiting(j)) })
			},
		})
		return true
	})
	return list
}

func (t *tables) schedWaiting(j *Job) sched.Waiting {
	return sched.Waiting{
		JobID: j.ID, Run: j.Run, Revision: j.Revision, Held: j.Priority == 0, Priority: j.Priority, Submit: j.Submit, Begin: notBefore(j),
		Time: j.Spec.TimeLimit, TimeMin: j.Spec.TimeMin, Tasks: j.Waiting,
		Limit: t.arrayRoom(j), Blocked: t.blocked(j),
	}
}

func (t *tables) schedNodes() []*sched.Node {
	list := make([]*sched.Node, 0, t.nodes.Len())
	for n := range t.Nodes() {
		s := &sched.Node{
			Name: n.Name, Weight: n.Weight, Up: n.Usable(),
			CPUs: n.Config.CPUs, Mem: n.Config.Mem, TmpDisk: n.Config.TmpDisk, Features: n.Features,
			FreeCPUs: n.Config.CPUs - min(n.CPUsAlloc, n.Config.CPUs), FreeMem: max(0, n.Config.Mem-n.MemAlloc),
			CPUUsed: make([]bool, n.Config.CPUs), Busy: len(n.Jobs) > 0, Excl: n.Exclusive,
		}
		copy(s.CPUUsed, n.CPUsUsed)
		for _, g := range n.gres {
			r := sched.Gres{Name: g.name, Type: g.typ, Total: g.total}
			key := gresKey(g.name, g.typ)
			if g.devices {
				r.Used = make([]bool, g.total)
				r.Taken = uint64(count1(n.GresUsed[key]))
				copy(r.Used, n.GresUsed[key])
				if n.oldGres { // none is given until those in use are back
					r.Taken = g.total
					for i := range r.Used {
						r.Used[i] = true
					}
				}
			} else {
				r.Taken = n.GresCount[key]
			}
			s.Gres = append(s.Gres, r)
		}
		list = append(list, s)
	}
	return list
}

func count1(set []bool) (n int) {
	for _, on := range set {
		if on {
			n++
		}
	}
	return n
}

func (t *tables) schedPartitions() []*sched.Partition {
	list := make([]*sched.Partition, 0, len(t.parts.list))
	for i, p := range t.parts.list {
		list = append(list, &sched.Partition{
			Name: p.Name, Nodes: t.parts.nodes[i], Up: p.State == "UP" || p.State == "DRAIN", Tier: p.PriorityTier,
			MaxTime: p.MaxTime, DefaultTime: t.usualTime(p), MinNodes: p.MinNodes, MaxNodes: p.MaxNodes,
			DefMemPerNode: p.DefMemPerNode, DefMemPerCPU: p.DefMemPerCPU,
			MaxMemPerNode: p.MaxMemPerNode, MaxMemPerCPU: p.MaxMemPerCPU,
			Inactive: p.State == "INACTIVE", Default: p.Default, WholeNodes: strings.EqualFold(p.OverSubscribe, "EXCLUSIVE"),
		})
	}
	return list
}

func (t *tables) schedRunning() []*sched.Running {
	list := make([]*sched.Running, 0, t.active.Len())
	for j := range t.Active() {
		r := &sched.Running{JobID: j.ID, Partition: j.Partition, End: j.End, Exclusive: j.Alone, Allocs: j.Allocs}
		if slices.Contains(j.Done, true) {
			r.Allocs = nil
			for i := range j.Allocs {
				if holds(j, i) {
					r.Allocs = append(r.Allocs, j.Allocs[i])
				}
			}
		}
		list = append(list, r)
	}
	return list
}

// Usable tells whether the node may take new work: registered, responding, not drained or down.
func (n *Node) Usable() bool {
	return n.BootID != "" && !n.Removed && node.Usable(n.State, n.Flags)
}
