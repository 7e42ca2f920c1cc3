package replay

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/gsim/machine"
	"github.com/tensorgrid/tensorgrid/ctld/gsim/trace"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// partition is the one partition that a replay has.
const partition = "all"

// record is what became of one job. Its id is its index in the trace + 1.
type record struct {
	class   string
	start   int64
	end     int64 // of the run, known to the replay alone
	limit   int64 // when its limit ends it
	started bool
	back    bool // it was started ahead of jobs that rank before it
	given   bool // its resources were given back
	allocs  []job.NodeAlloc
	promise *sched.Promise
	first   int64 // first promised start; 0 = none
	late    int64 // how long after its first promise it started, ms
}

// world is the controller's state as far as the planner sees it.
type world struct {
	trace   *trace.Trace
	params  *priority.Params
	cluster priority.Cluster
	jobs    []record
	machine *machine.Machine
	parts   []*sched.Partition
	classes []*sched.Class // by key
	waiting map[string][]sched.Waiting
	running []*sched.Running // ascending by id
	queued  int
	version uint64
	room    uint64 // capacity version
	history map[string][]int64
}

func newWorld(t *trace.Trace, p *priority.Params) *world {
	w := &world{trace: t, params: p, jobs: make([]record, len(t.Jobs)), waiting: map[string][]sched.Waiting{}, history: map[string][]int64{}}
	part := &sched.Partition{Name: partition, Up: true, Default: true, Tier: 1, PriorityJob: 1, MaxTime: job.Unlimited, DefaultTime: job.Unlimited, MinNodes: 1}
	var mem int64
	var nodes []*place.Node
	for i, n := range t.Nodes {
		node := &place.Node{Name: n.Name, Weight: 1, Up: true, CPUs: n.CPUs, Mem: n.Mem, FreeCPUs: n.CPUs, FreeMem: n.Mem, CPUUsed: make([]bool, n.CPUs)}
		if n.GPUs > 0 {
			node.Gres = []place.Gres{{Name: "gpu", Type: n.Type, Total: uint64(n.GPUs), Used: make([]bool, n.GPUs)}}
		}
		nodes = append(nodes, node)
		part.Nodes = append(part.Nodes, i)
		mem += n.Mem
	}
	w.machine = machine.New(nodes)
	w.parts = []*sched.Partition{part}
	w.cluster = priority.Cluster{Nodes: uint32(len(t.Nodes)), CPUs: uint32(t.CPUs()), MaxPartition: 1, TRES: accounting.TRES{
		{Name: "cpu", N: int64(t.CPUs())}, {Name: "gres/gpu", N: int64(t.GPUs())}, {Name: "mem", N: mem >> 20}, {Name: "node", N: int64(len(t.Nodes))}}}
	return w
}

// submit puts a job into the queue.
func (w *world) submit(i int) {
	j := &w.trace.Jobs[i]
	key := fmt.Sprintf("%010d.%06d.%d.%d.%d", j.Tasks, j.CPUs, j.Mem, j.GPUs, j.Limit)
	if w.corrected() { // by each user's history
		key += "." + j.User
	}
	w.jobs[i].class = key
	id := uint32(i + 1)
	list := slices.Clone(w.waiting[key])
	list = append(list, sched.Waiting{JobID: id, Revision: 1, SubmitSeq: uint64(id), Submit: j.Submit, Accrue: max(j.Submit, 1), Limit: -1})
	w.setClass(key, j, list)
	w.queued++
}

func (w *world) corrected() bool { return w.params.Estimates == priority.CorrectedEstimates }

// setClass puts the class with these waiting jobs in the place of the one before.
func (w *world) setClass(key string, j *trace.Job, list []sched.Waiting) {
	w.version++
	w.waiting[key] = list
	k, found := slices.BinarySearchFunc(w.classes, key, func(c *sched.Class, key string) int { return cmp.Compare(c.Key, key) })
	if len(list) == 0 {
		w.classes = slices.Concat(w.classes[:k], w.classes[k+1:])
		delete(w.waiting, key)
		return
	}
	var c sched.Class
	if found {
		c = *w.classes[k]
	} else {
		spec := &job.Spec{Name: "job", Partition: partition, NTasks: j.Tasks, CPUsPerTask: j.CPUs, MinNodes: 1, TimeLimit: j.Limit, MemPerNode: j.Mem}
		if j.GPUs > 0 {
			spec.Gres = fmt.Sprintf("gpu:%d", j.GPUs)
		}
		if len(w.machine.Nodes) == 1 || j.Tasks == 1 {
			spec.MaxNodes = 1
		}
		c = sched.Class{Key: key, Shape: fmt.Sprintf("%d.%d.%d.%d", j.Tasks, j.CPUs, j.Mem, j.GPUs), Spec: spec, Time: j.Limit}
		if w.corrected() {
			c.User, c.Estimate = j.User, priority.Estimate(w.history[j.User], j.Limit)
		}
	}
	c.Version, c.Count, c.Waiting = w.version, len(list), slices.Values(list)
	if found {
		w.classes = slices.Clone(w.classes)
		w.classes[k] = &c
		return
	}
	w.classes = slices.Concat(w.classes[:k], []*sched.Class{&c}, w.classes[k:])
}

// change puts one waiting record anew, or takes it out (nil).
func (w *world) change(id uint32, f func(*sched.Waiting)) error {
	if id == 0 || int(id) > len(w.jobs) {
		return fmt.Errorf("the planner speaks of job %d, which is not in the trace", id)
	}
	key := w.jobs[id-1].class
	list := slices.Clone(w.waiting[key])
	k := slices.IndexFunc(list, func(x sched.Waiting) bool { return x.JobID == id })
	if k < 0 {
		return fmt.Errorf("the planner speaks of job %d, which does not wait", id)
	}
	if f == nil {
		list = slices.Delete(list, k, k+1)
	} else {
		f(&list[k])
	}
	w.setClass(key, nil, list)
	return nil
}

// promise notes what the planner promised, or took back.
func (w *world) promise(c *sched.PromiseChange) error {
	if err := w.change(c.JobID, func(x *sched.Waiting) { x.Promise = c.Promise }); err != nil {
		return err
	}
	r := &w.jobs[c.JobID-1]
	r.promise = c.Promise
	if r.first == 0 && c.Promise != nil {
		r.first = c.Promise.Start
	}
	return nil
}

// start takes the planner at its word, and makes sure that what it gives is free.
func (w *world) start(s *sched.Start, now int64) error {
	if err := w.change(s.JobID, nil); err != nil {
		return err
	}
	i := int(s.JobID - 1)
	r, j := &w.jobs[i], &w.trace.Jobs[i]
	r.started, r.start, r.end, r.limit, r.allocs, r.back = true, now, now+j.Run, now+j.Limit, s.Nodes, s.Backfilled
	if r.first > 0 {
		r.late = max(0, now-r.first)
	}
	w.queued--
	tasks := uint32(0)
	for k := range s.Nodes {
		if err := w.machine.Take(&s.Nodes[k]); err != nil {
			return fmt.Errorf("job %d: %w", s.JobID, err)
		}
		tasks += s.Nodes[k].Tasks
	}
	if tasks != j.Tasks {
		return fmt.Errorf("job %d got room for %d tasks; it has %d", s.JobID, tasks, j.Tasks)
	}
	run := &sched.Running{JobID: s.JobID, Partition: partition, Start: now, End: r.limit, Allocs: s.Nodes, Tier: 1}
	k, _ := slices.BinarySearchFunc(w.running, s.JobID, byJob)
	w.running = slices.Concat(w.running[:k], []*sched.Running{run}, w.running[k:])
	return nil
}

func byJob(r *sched.Running, id uint32) int { return cmp.Compare(r.JobID, id) }

// release gives back what a run holds, once.
func (w *world) release(i int) {
	r := &w.jobs[i]
	if r.given {
		return
	}
	r.given = true
	w.version++
	w.room++
	for k := range r.allocs {
		_ = w.machine.Give(&r.allocs[k]) // what was taken can be given back
	}
	k, _ := slices.BinarySearchFunc(w.running, uint32(i+1), byJob)
	w.running = slices.Concat(w.running[:k], w.running[k+1:])
}

// ended notes the run time, and what the user's waiting jobs are now expected to take.
func (w *world) ended(i int) {
	j := &w.trace.Jobs[i]
	h := append(w.history[j.User], j.Run)
	w.history[j.User] = h[max(0, len(h)-2):]
	if !w.corrected() {
		return
	}
	w.classes = slices.Clone(w.classes)
	for k, c := range w.classes {
		if c.User == j.User {
			w.version++
			next := *c
			next.Version, next.Estimate = w.version, priority.Estimate(w.history[j.User], c.Time)
			w.classes[k] = &next
		}
	}
}

// snapshot is what the planner works on.
func (w *world) snapshot() *sched.Snapshot {
	s := &sched.Snapshot{Version: w.version, Capacity: w.room, Layout: 1, Nodes: w.machine.Nodes, Partitions: w.parts, Classes: w.classes,
		Running: w.running, Priority: w.params, Cluster: w.cluster}
	for _, c := range w.classes {
		for x := range c.Waiting {
			if x.Promise != nil {
				s.Promised = append(s.Promised, sched.Promised{Class: c.Key, Waiting: x})
			}
		}
	}
	slices.SortFunc(s.Promised, func(a, b sched.Promised) int { return cmp.Compare(a.JobID, b.JobID) })
	return s
}
