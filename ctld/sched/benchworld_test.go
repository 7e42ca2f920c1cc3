package sched

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

const benchShapes = 1000

// benchQueue is a queue of so many jobs, of 1,000 shapes and limits.
func benchQueue(pending int) (list []*Class) {
	for c := range benchShapes {
		count := pending / benchShapes
		w := make([]Waiting, count)
		for i := range w {
			w[i] = Waiting{JobID: uint32(c*count + i + 1), Submit: int64(i), Accrue: int64(i), Limit: -1}
		}
		spec := job.Spec{CPUsPerTask: uint32(1 + c%16), Gres: fmt.Sprintf("gpu:%d", 1+c/16%4), MinNodes: uint32(1 + c/64%8), MemPerCPU: int64(1+c/512) << 28}
		list = append(list, &Class{Key: fmt.Sprintf("%04d", c), Version: 1, Spec: &spec, Extra: &job.Extra{}, Time: int64(1+c%600) * 60000,
			Waiting: slices.Values(w), Count: count})
	}
	return list
}

// streamQueue is a queue of 100,000 small jobs of 1,000 shapes, some of two nodes.
func streamQueue() []*Class {
	list := benchQueue(100_000)
	for c := range list {
		list[c].Spec = &job.Spec{CPUsPerTask: uint32(1 + c%4), MemPerCPU: int64(1+c) << 19, MinNodes: uint32(1 + c%8/7)}
		if c%5 == 0 {
			list[c].Spec.Gres = "gpu:1"
		}
	}
	return list
}

// benchCluster is a full cluster: four runs on each node that end at different times, and so many jobs waiting, of 1,000
// shapes.
func benchCluster(nodes, pending int) *Snapshot {
	s := cluster(nodes, 64, 8)
	s.Layout = 1
	s.Partitions[0].MaxTime = 48 * 3600000
	for n := range s.Nodes {
		for k := range 4 {
			s.run(uint32(1_000_000+4*n+k), n, 16, 2, int64(1+(n*7+k*13)%2880)*60000)
		}
		s.Nodes[n].Runs = 4
	}
	s.Classes = benchQueue(pending)
	return s
}

// benchWorld is a snapshot to which what is planned happens.
type benchWorld struct {
	*Snapshot
	node  map[string]int
	class map[uint32]int // of each waiting job
	next  uint32
}

func newBenchWorld(s *Snapshot) *benchWorld {
	w := &benchWorld{Snapshot: s, node: map[string]int{}, class: map[uint32]int{}, next: 2_000_000}
	for i, n := range s.Nodes {
		w.node[n.Name] = i
	}
	for i, c := range s.Classes {
		for x := range c.Waiting {
			w.class[x.JobID] = i
		}
	}
	return w
}

// begin gives the next snapshot, in which lists may be changed.
func (w *benchWorld) begin() {
	s := *w.Snapshot
	s.Version++
	s.Nodes, s.Running, s.Classes, s.Promised = slices.Clone(s.Nodes), slices.Clone(s.Running), slices.Clone(s.Classes), slices.Clone(s.Promised)
	w.Snapshot = &s
}

// give adds what a run holds to its nodes, or takes it off them (sign -1).
func (w *benchWorld) give(allocs []job.NodeAlloc, sign int) {
	for a := range allocs {
		i := w.node[allocs[a].Node]
		n := *w.Nodes[i]
		n.CPUUsed, n.Gres = slices.Clone(n.CPUUsed), slices.Clone(n.Gres)
		n.FreeCPUs -= uint32(sign) * allocs[a].CPUs
		n.FreeMem -= int64(sign) * allocs[a].Mem
		n.Runs += sign
		n.Busy = n.Runs > 0
		for _, c := range allocs[a].CPUIDs {
			n.CPUUsed[c] = sign > 0
		}
		for _, g := range allocs[a].Gres {
			n.Gres[0].Used = slices.Clone(n.Gres[0].Used)
			n.Gres[0].Taken += uint64(sign) * g.Count
			for _, d := range g.Index {
				n.Gres[0].Used[d] = sign > 0
			}
		}
		w.Nodes[i] = &n
	}
}

// end ends the run at a place of the list.
func (w *benchWorld) end(at int) {
	w.give(w.Running[at].Allocs, -1)
	w.Running = slices.Delete(w.Running, at, at+1)
}

// change replaces the list of the class that a job waits in.
func (w *benchWorld) change(id uint32, f func(list []Waiting, at int) []Waiting) {
	c := *w.Classes[w.class[id]]
	list := slices.Collect(c.Waiting)
	list = f(list, slices.IndexFunc(list, func(x Waiting) bool { return x.JobID == id }))
	c.Waiting, c.Count, c.Version = slices.Values(list), len(list), w.Version
	w.Classes[w.class[id]] = &c
}

// do takes a plan.
func (w *benchWorld) do(d *Decision, now int64) {
	for i := range d.Starts {
		st := &d.Starts[i]
		w.change(st.JobID, func(list []Waiting, at int) []Waiting { return slices.Delete(list, at, at+1) })
		w.promise(st.JobID, nil)
		w.give(st.Nodes, 1)
		w.next++
		w.Running = append(w.Running, &Running{JobID: w.next, Partition: "p", Start: now, End: now + st.TimeLimit, Allocs: st.Nodes})
	}
	for _, p := range d.Promises {
		w.promise(p.JobID, p.Promise)
	}
}

// promise notes what a job was promised.
func (w *benchWorld) promise(id uint32, p *Promise) {
	w.Promised = slices.DeleteFunc(w.Promised, func(x Promised) bool { return x.JobID == id })
	if p == nil {
		return
	}
	w.change(id, func(list []Waiting, at int) []Waiting {
		list[at].Promise = p
		w.Promised = append(w.Promised, Promised{Class: w.Classes[w.class[id]].Key, Waiting: list[at]})
		return list
	})
	slices.SortFunc(w.Promised, func(a, b Promised) int { return cmp.Compare(a.JobID, b.JobID) })
}

// idleCluster is empty nodes of a few kinds of load: so many CPUs of each are taken by a run for a day.
func idleCluster(nodes int, queue []*Class) *Snapshot {
	s := cluster(nodes, 64, 8)
	s.Layout = 1
	s.Partitions[0].MaxTime = 48 * 3600000
	for n := range s.Nodes {
		if n%8 == 0 {
			s.run(uint32(1_000_000+n), n, uint32(1+n%23), n%3, 24*3600000)
			s.Nodes[n].Runs = 1
		}
	}
	s.Classes = queue
	return s
}
