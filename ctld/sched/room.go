package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// room is what is free on one node at one moment.
type room struct {
	cpus uint32
	mem  int64
	gres []uint64 // by place in Node.Gres
	runs int      // runs that hold something
	shut bool     // an exclusive run holds the node
}

// freeRoom is what a node has free now.
func freeRoom(n *Node) room {
	r := room{cpus: n.FreeCPUs, mem: n.FreeMem, shut: n.Excl}
	if len(n.Gres) > 0 {
		r.gres = make([]uint64, len(n.Gres))
		for i := range n.Gres {
			r.gres[i] = n.Gres[i].Total - min(n.Gres[i].Taken, n.Gres[i].Total)
		}
	}
	return r
}

// wholeRoom is what a node has when nothing runs on it.
func wholeRoom(n *Node) room {
	r := room{cpus: n.CPUs, mem: n.Mem}
	if len(n.Gres) > 0 {
		r.gres = make([]uint64, len(n.Gres))
		for i := range n.Gres {
			r.gres[i] = n.Gres[i].Total
		}
	}
	return r
}

func (r *room) clone() room {
	c := *r
	c.gres = slices.Clone(r.gres)
	return c
}

// less takes what a run holds out of the room. What is not there stays at nothing.
func (r *room) less(n *Node, a *job.NodeAlloc, exclusive bool) {
	r.cpus -= min(a.CPUs, r.cpus)
	r.mem = max(r.mem-a.Mem, 0)
	r.runs++
	r.shut = r.shut || exclusive
	for g := range a.Gres {
		if i := gresAt(n, &a.Gres[g]); i >= 0 {
			r.gres[i] -= min(a.Gres[g].Count, r.gres[i])
		}
	}
}

// more gives back what a run held.
func (r *room) more(n *Node, a *job.NodeAlloc) {
	r.cpus = min(r.cpus+a.CPUs, n.CPUs)
	r.mem = min(r.mem+a.Mem, n.Mem)
	if r.runs--; r.runs <= 0 {
		r.runs, r.shut = 0, false
	}
	for g := range a.Gres {
		if i := gresAt(n, &a.Gres[g]); i >= 0 {
			r.gres[i] = min(r.gres[i]+a.Gres[g].Count, n.Gres[i].Total)
		}
	}
}

// gresAt finds the node's resource that an allocation is of; -1 when it has none such.
func gresAt(n *Node, a *job.GresAlloc) int {
	for i := range n.Gres {
		if n.Gres[i].Name == a.Name && n.Gres[i].Type == a.Type {
			return i
		}
	}
	return -1
}

// maxGres is how many resources of a node are handled without an allocation.
const maxGres = 16

// gresFit tells whether the room has the generic resources that the shape wants on each node.
func (s *shape) gresFit(n *Node, r *room) bool {
	var fixed [maxGres]uint64
	left := append(fixed[:0], r.gres...)
	for _, item := range s.gres {
		want := item.Count
		for i := range n.Gres {
			if n.Gres[i].Name != item.Name || item.Type != "" && n.Gres[i].Type != item.Type {
				continue
			}
			got := min(want, left[i])
			left[i] -= got
			if want -= got; want == 0 {
				break
			}
		}
		if want > 0 {
			return false
		}
	}
	return true
}

// gresTake gives what the shape gets of each resource, without device numbers.
func (s *shape) gresTake(n *Node, r *room) []job.GresAlloc {
	var out []job.GresAlloc
	taken := make([]uint64, len(n.Gres))
	if s.exclusive {
		copy(taken, r.gres)
	} else {
		for _, item := range s.gres {
			want := item.Count
			for i := range n.Gres {
				if n.Gres[i].Name != item.Name || item.Type != "" && n.Gres[i].Type != item.Type {
					continue
				}
				got := min(want, r.gres[i]-taken[i])
				taken[i] += got
				want -= got
			}
		}
	}
	for i := range n.Gres {
		if taken[i] > 0 {
			out = append(out, job.GresAlloc{Name: n.Gres[i].Name, Type: n.Gres[i].Type, Count: taken[i]})
		}
	}
	return out
}
