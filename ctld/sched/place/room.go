package place

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// severalUsers is Room.User where runs of more than one user are.
const severalUsers = -1

// Room is what is free on one node at one moment. The zero value is a node without anything.
type Room struct {
	CPUs  uint32
	Mem   int64    // bytes
	Gres  []uint64 // by place in Node.Gres
	Runs  int      // runs that hold something
	Shut  bool     // an exclusive run holds the node
	Owner int64    // uid+1 of the user who has the node by exclusive=user; 0 or less: nobody
	User  int64    // whose runs are there: 0 nobody's, uid+1 one user's, -1 several users'
}

// Tenant is for whom and how something is taken from a Room.
type Tenant struct {
	UID       uint32
	Exclusive bool // nobody else's run may share the node
	User      bool // only runs of the same user may share the node
}

// FreeRoom is what a node has free now.
func FreeRoom(n *Node) Room {
	r := Room{CPUs: n.FreeCPUs, Mem: n.FreeMem, Shut: n.Excl, Owner: max(n.Owner, 0)}
	switch {
	case len(n.Users) == 1:
		r.User = int64(n.Users[0]) + 1
	case len(n.Users) > 1, n.Busy:
		r.User = severalUsers
	}
	if r.Runs = n.Runs; n.Busy {
		r.Runs = max(r.Runs, 1)
	}
	if len(n.Gres) > 0 {
		r.Gres = make([]uint64, len(n.Gres))
		for i := range n.Gres {
			r.Gres[i] = n.Gres[i].Total - min(n.Gres[i].Taken, n.Gres[i].Total)
		}
	}
	return r
}

// WholeRoom is what a node has when nothing runs on it.
func WholeRoom(n *Node) Room {
	r := Room{CPUs: n.CPUs, Mem: n.Mem}
	if len(n.Gres) > 0 {
		r.Gres = make([]uint64, len(n.Gres))
		for i := range n.Gres {
			r.Gres[i] = n.Gres[i].Total
		}
	}
	return r
}

// Clone is a copy that shares nothing.
func (r *Room) Clone() Room {
	c := *r
	c.Gres = slices.Clone(r.Gres)
	return c
}

// Copy makes r equal to o, in the memory that r has.
func (r *Room) Copy(o *Room) {
	kept := append(r.Gres[:0], o.Gres...)
	*r = *o
	r.Gres = kept
}

// Less takes what a run of t holds out of the room. What is not there stays at nothing.
func (r *Room) Less(n *Node, a *job.NodeAlloc, t Tenant) {
	r.CPUs -= min(a.CPUs, r.CPUs)
	r.Mem = max(r.Mem-a.Mem, 0)
	uid := int64(t.UID) + 1
	switch {
	case r.Runs == 0:
		r.User = uid
	case r.User != uid:
		r.User = severalUsers
	}
	if t.User {
		r.Owner = uid
	}
	r.Runs++
	r.Shut = r.Shut || t.Exclusive
	for g := range a.Gres {
		if i := GresAt(n, &a.Gres[g]); i >= 0 {
			r.Gres[i] -= min(a.Gres[g].Count, r.Gres[i])
		}
	}
}

// More gives back what a run held. A node that several users share is free of users only when its
// last run has ended.
func (r *Room) More(n *Node, a *job.NodeAlloc) {
	r.CPUs = min(r.CPUs+a.CPUs, n.CPUs)
	r.Mem = min(r.Mem+a.Mem, n.Mem)
	if r.Runs--; r.Runs <= 0 {
		r.Runs, r.Shut, r.Owner, r.User = 0, false, 0, 0
	}
	for g := range a.Gres {
		if i := GresAt(n, &a.Gres[g]); i >= 0 {
			r.Gres[i] = min(r.Gres[i]+a.Gres[g].Count, n.Gres[i].Total)
		}
	}
}

// GresAt finds the node's resource that an allocation is of; -1 when it has none such.
func GresAt(n *Node, a *job.GresAlloc) int {
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
func (s *Shape) gresFit(n *Node, r *Room) bool {
	var fixed [maxGres]uint64
	left := append(fixed[:0], r.Gres...)
	for k := range s.gres {
		item := &s.gres[k]
		want := item.Count
		for i := range left {
			g := &n.Gres[i]
			if g.Name != item.Name || item.Type != "" && g.Type != item.Type {
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
func (s *Shape) gresTake(n *Node, r *Room) []job.GresAlloc {
	if len(n.Gres) == 0 || len(s.gres) == 0 && !s.exclusive {
		return nil
	}
	var fixed [maxGres]uint64
	left := append(fixed[:0], r.Gres...)
	if s.exclusive {
		clear(left)
	} else {
		for _, item := range s.gres {
			want := item.Count
			for i := range left {
				if n.Gres[i].Name != item.Name || item.Type != "" && n.Gres[i].Type != item.Type {
					continue
				}
				got := min(want, left[i])
				left[i] -= got
				want -= got
			}
		}
	}
	var out []job.GresAlloc
	for i := range left {
		if taken := r.Gres[i] - left[i]; taken > 0 {
			out = append(out, job.GresAlloc{Name: n.Gres[i].Name, Type: n.Gres[i].Type, Count: taken})
		}
	}
	return out
}
