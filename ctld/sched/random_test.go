package sched

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// world is a cluster that random things happen to, and that takes what is planned: a small state machine.
type world struct {
	nodes    []*place.Node
	parts    []*Partition
	running  []*Running
	waiting  map[string]*kind
	now      int64
	next     uint32
	version  uint64
	promised map[uint32]int64 // first promise of a job
	promises map[uint32]*Promise
}

// kind is the waiting jobs of one class.
type kind struct {
	spec    job.Spec
	time    int64
	jobs    []Waiting
	version uint64
}

const mib = 1 << 20

func newWorld(t *rapid.T) *world {
	w := &world{waiting: map[string]*kind{}, now: 1000, next: 1, promised: map[uint32]int64{}, promises: map[uint32]*Promise{}}
	cpus := uint32(rapid.IntRange(1, 4).Draw(t, "cpus"))
	p := &Partition{Name: "p", Up: true, Default: true, MaxTime: 100_000}
	q := &Partition{Name: "q", Up: true, Tier: uint32(rapid.IntRange(0, 1).Draw(t, "tier")), MaxTime: 100_000}
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		n := &place.Node{Name: fmt.Sprint("n", i), Weight: 1, Up: true, CPUs: cpus, FreeCPUs: cpus, Mem: int64(cpus) * 1024 * mib,
			FreeMem: int64(cpus) * 1024 * mib, CPUUsed: make([]bool, cpus)}
		if rapid.Bool().Draw(t, "gpus") {
			n.Gres = []place.Gres{{Name: "gpu", Total: 2, Used: make([]bool, 2)}}
		}
		w.nodes = append(w.nodes, n)
		p.Nodes = append(p.Nodes, i)
	}
	q.Nodes = p.Nodes[:1+len(p.Nodes)/2]
	w.parts = []*Partition{p, q}
	return w
}

// arrive lets a job be submitted.
func (w *world) arrive(t *rapid.T) {
	spec := job.Spec{NTasks: uint32(rapid.IntRange(0, 5).Draw(t, "tasks")), CPUsPerTask: uint32(rapid.IntRange(0, 2).Draw(t, "cpus per task")),
		Partition: rapid.SampledFrom([]string{"p", "p", "q", "p,q"}).Draw(t, "partition"), Exclusive: rapid.IntRange(0, 5).Draw(t, "exclusive") == 0,
		Gres: rapid.SampledFrom([]string{"", "", "gpu:1", "gpu:2"}).Draw(t, "gres"), MinNodes: uint32(rapid.IntRange(0, 2).Draw(t, "nodes"))}
	limit := int64(rapid.IntRange(1, 8).Draw(t, "limit")) * 1000
	key := fmt.Sprintf("%d.%d.%s.%v.%s.%d.%d", spec.NTasks, spec.CPUsPerTask, spec.Partition, spec.Exclusive, spec.Gres, spec.MinNodes, limit)
	k := w.waiting[key]
	if k == nil {
		k = &kind{spec: spec, time: limit}
		w.waiting[key] = k
	}
	k.jobs = append(k.jobs, Waiting{JobID: w.next, Submit: w.now, Accrue: w.now, Limit: -1,
		Begin: w.now + int64(rapid.SampledFrom([]int{0, 0, 0, 2500}).Draw(t, "begin"))})
	if rapid.IntRange(0, 4).Draw(t, "array") == 0 {
		x := &k.jobs[len(k.jobs)-1]
		x.Tasks, x.Limit = job.NewSet(0, 1, 2), rapid.IntRange(1, 3).Draw(t, "at once")
	}
	w.next += 10
	w.version++
	k.version = w.version
}

// snapshot is the world's, with new pointers only where something has changed.
func (w *world) snapshot() *Snapshot {
	s := &Snapshot{Version: w.version, Layout: 1, Nodes: slices.Clone(w.nodes), Partitions: w.parts, Running: slices.Clone(w.running)}
	for key, k := range w.waiting {
		if len(k.jobs) == 0 {
			continue
		}
		jobs := slices.Clone(k.jobs)
		spec := k.spec
		s.Classes = append(s.Classes, &Class{Key: key, Version: k.version, Spec: &spec, Extra: &job.Extra{}, Time: k.time,
			Waiting: slices.Values(jobs), Count: len(jobs)})
		for _, x := range jobs {
			if x.Promise != nil {
				s.Promised = append(s.Promised, Promised{Class: key, Waiting: x})
			}
		}
	}
	slices.SortFunc(s.Classes, func(a, b *Class) int { return cmp.Compare(a.Key, b.Key) })
	slices.SortFunc(s.Promised, func(a, b Promised) int { return cmp.Compare(a.JobID, b.JobID) })
	return s
}

func (w *world) node(name string) int {
	return slices.IndexFunc(w.nodes, func(n *place.Node) bool { return n.Name == name })
}

// fresh is a copy of a node that may be changed.
func (w *world) fresh(i int) *place.Node {
	n := *w.nodes[i]
	n.CPUUsed = slices.Clone(n.CPUUsed)
	n.Gres = slices.Clone(n.Gres)
	for g := range n.Gres {
		n.Gres[g].Used = slices.Clone(n.Gres[g].Used)
	}
	w.nodes[i] = &n
	return &n
}

// take books a start and fails where something is not there.
func (w *world) take(t *rapid.T, st *Start) {
	var k *kind
	at := -1
	for _, x := range w.waiting {
		if i := slices.IndexFunc(x.jobs, func(j Waiting) bool { return j.JobID == st.JobID }); i >= 0 {
			k, at = x, i
		}
	}
	if k == nil || k.jobs[at].Begin > w.now || st.TimeLimit != k.time || (k.jobs[at].Tasks == nil) != (st.Task < 0) {
		t.Fatalf("job %d may not start: %+v", st.JobID, st)
	}
	if first, ok := w.promised[st.JobID]; ok && w.now > first {
		t.Fatalf("job %d was promised to start at %d and starts at %d", st.JobID, first, w.now)
	}
	for i := range st.Nodes {
		w.use(t, &st.Nodes[i], k.spec.Exclusive)
	}
	delete(w.promised, st.JobID)
	w.version++
	k.version = w.version
	id := st.JobID
	if x := &k.jobs[at]; x.Tasks != nil {
		id += 1 + uint32(st.Task)
		x.Tasks, x.Promise, x.Limit = x.Tasks.Without(uint32(st.Task)), nil, x.Limit-1
		if x.Tasks.Len() == 0 {
			k.jobs = slices.Delete(k.jobs, at, at+1)
		}
	} else {
		k.jobs = slices.Delete(k.jobs, at, at+1)
	}
	w.running = append(w.running, &Running{JobID: id, Partition: st.Partition, Start: w.now, End: w.now + st.TimeLimit, Allocs: st.Nodes, Exclusive: k.spec.Exclusive})
	slices.SortFunc(w.running, func(a, b *Running) int { return cmp.Compare(a.JobID, b.JobID) })
}

// use takes an allocation out of a node.
func (w *world) use(t *rapid.T, a *job.NodeAlloc, exclusive bool) {
	n := w.fresh(w.node(a.Node))
	if !n.Up || n.Excl || exclusive && n.Busy || a.CPUs == 0 || a.CPUs > n.FreeCPUs || a.Mem > n.FreeMem || int(a.CPUs) != len(a.CPUIDs) {
		t.Fatalf("%+v does not fit on %+v", a, n)
	}
	n.FreeCPUs, n.FreeMem, n.Busy, n.Excl = n.FreeCPUs-a.CPUs, n.FreeMem-a.Mem, true, exclusive
	n.Runs++
	for _, c := range a.CPUIDs {
		if n.CPUUsed[c] {
			t.Fatalf("CPU %d of %s is given twice", c, n.Name)
		}
		n.CPUUsed[c] = true
	}
	for _, g := range a.Gres {
		for _, x := range g.Index {
			if n.Gres[0].Used[x] {
				t.Fatalf("device %d of %s is given twice", x, n.Name)
			}
			n.Gres[0].Used[x] = true
			n.Gres[0].Taken++
		}
	}
}

// end ends a run.
func (w *world) end(i int) {
	r := w.running[i]
	w.running = slices.Delete(w.running, i, i+1)
	w.version++
	for a := range r.Allocs {
		n, x := w.fresh(w.node(r.Allocs[a].Node)), &r.Allocs[a]
		n.FreeCPUs, n.FreeMem = n.FreeCPUs+x.CPUs, n.FreeMem+x.Mem
		n.Runs--
		n.Busy = n.Runs > 0
		n.Excl = n.Excl && n.Busy
		for _, c := range x.CPUIDs {
			n.CPUUsed[c] = false
		}
		for _, g := range x.Gres {
			for _, d := range g.Index {
				n.Gres[0].Used[d] = false
				n.Gres[0].Taken--
			}
		}
	}
}

// do takes a decision: starts and promises. A promise that moves later fails.
func (w *world) do(t *rapid.T, d *Decision) {
	for i := range d.Starts {
		w.take(t, &d.Starts[i])
	}
	for _, c := range d.Promises {
		for _, k := range w.waiting {
			for i := range k.jobs {
				x := &k.jobs[i]
				if x.JobID != c.JobID {
					continue
				}
				if c.Promise == nil {
					t.Fatalf("the promise of job %d is taken back", c.JobID)
				}
				if first, ok := w.promised[c.JobID]; ok && c.Promise.Start > first {
					t.Fatalf("job %d was promised %d and is now promised %d", c.JobID, first, c.Promise.Start)
				}
				w.promised[c.JobID], x.Promise = c.Promise.Start, c.Promise
				w.version++
				k.version = w.version
			}
		}
	}
}

// Whatever arrives and however early runs end: a planner that remembers says what one without memory says, nothing is
// given twice, nothing starts before its time, and a promised start never moves later.
func TestRandomWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, p := newWorld(t), NewPlanner()
		pol := Policy{Promises: rapid.SampledFrom([]int{0, 1, 3, 100}).Draw(t, "promises"),
			Backfill: rapid.SampledFrom([]string{BackfillPriority, BackfillShortest, BackfillOff}).Draw(t, "backfill")}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				w.arrive(t)
			case 2:
				if len(w.running) > 0 {
					w.end(rapid.IntRange(0, len(w.running)-1).Draw(t, "run"))
				}
			case 3:
				w.pass(int64(rapid.IntRange(1, 4).Draw(t, "time"))*500, func() { w.plan(t, p, pol) })
			}
			w.plan(t, p, pol)
		}
	})
}

// pass lets time pass; runs end when their limits do, and each time there is a plan.
func (w *world) pass(ms int64, plan func()) {
	for until := w.now + ms; w.now < until; {
		next := until
		for _, r := range w.running {
			next = min(next, r.End)
		}
		for _, k := range w.waiting {
			for i := range k.jobs {
				if at := w.promised[k.jobs[i].JobID]; at > w.now {
					next = min(next, at)
				}
			}
		}
		w.now = next
		for i := len(w.running) - 1; i >= 0; i-- {
			if w.running[i].End <= w.now {
				w.end(i)
			}
		}
		plan()
	}
}

func (w *world) plan(t *rapid.T, p *Planner, pol Policy) {
	s := w.snapshot()
	before, _ := json.Marshal(s.Nodes)
	d := p.Plan(s, w.now, pol)
	if after, _ := json.Marshal(s.Nodes); string(after) != string(before) {
		t.Fatal("the plan changed its snapshot")
	}
	a, _ := json.Marshal(d)
	b, _ := json.Marshal(Plan(s, w.now, pol))
	if string(a) != string(b) {
		t.Fatalf("with memory:    %s\nwithout memory: %s", a, b)
	}
	if len(d.Starts)+len(d.Promises) > 0 {
		x, _ := json.Marshal(d.Promises)
		t.Logf("at %d: %s, promises %s", w.now, show(d), x)
	}
	w.do(t, d)
}
