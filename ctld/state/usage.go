package state

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// gresKey is how a node's tables name one resource: "gpu:a100", or "gpu" without a type.
func gresKey(name, typ string) string {
	if typ == "" {
		return name
	}
	return name + ":" + typ
}

// claim books what record j holds on node i of its allocation.
func (t *Tx) claim(j *Job, i int) { t.book(j, i, true) }

// release gives back what record j held on node i of its allocation.
func (t *Tx) release(j *Job, i int) { t.book(j, i, false) }

// book changes one node's usage by one record's share. The share was checked before it was taken.
func (t *Tx) book(j *Job, i int, take bool) {
	a := &j.Allocs[i]
	at, ok := t.nodeAt[a.Node]
	if !ok {
		return
	}
	old, _ := t.nodes.Get(at)
	n := *old
	if take {
		n.MemAlloc += a.Mem
		n.Jobs = insertID(n.Jobs, j.ID)
	} else {
		n.MemAlloc -= a.Mem
		n.Jobs = removeID(n.Jobs, j.ID)
	}
	switch {
	case keepsCPUs(j):
		n.bookCPUs(a, j.Alone, take)
	case take:
		n.Stopped++
	default:
		n.Stopped--
	}
	if len(a.Gres) > 0 {
		n.bookGres(a.Gres, take)
	}
	if !take {
		t.adoptGres(&n, at)
	}
	if !t.restoring {
		n.LastBusy = t.now
	}
	t.nodes.Set(at, &n)
	t.usage++
	if !take {
		t.capacity++
		t.forgetRemoved(&n)
	}
}

// bookCPUs changes the CPUs that a share holds on n, and whether it has the node to itself.
func (n *Node) bookCPUs(a *job.NodeAlloc, alone, take bool) {
	if take {
		n.CPUsAlloc += a.CPUs
		n.Exclusive = n.Exclusive || alone
	} else {
		n.CPUsAlloc -= a.CPUs
		n.Exclusive = n.Exclusive && !alone
	}
	if len(a.CPUIDs) > 0 {
		n.CPUsUsed = markBools(n.CPUsUsed, a.CPUIDs, take)
	}
}

// bookCPUs gives back the CPUs of a run that is suspended, or takes them again when it goes on.
func (t *Tx) bookCPUs(j *Job, i int, take bool) {
	at, ok := t.nodeAt[j.Allocs[i].Node]
	if !ok {
		return
	}
	old, _ := t.nodes.Get(at)
	n := *old
	n.bookCPUs(&j.Allocs[i], j.Alone, take)
	if take {
		n.Stopped--
	} else {
		n.Stopped++
		t.capacity++
	}
	if !t.restoring {
		n.LastBusy = t.now
	}
	t.nodes.Set(at, &n)
	t.usage++
}

// bookGres changes the use of generic resources on n, whose maps may be shared with older records.
func (n *Node) bookGres(list []job.GresAlloc, take bool) {
	used, counts := n.GresUsed, n.GresCount
	n.GresUsed, n.GresCount = make(map[string][]bool, len(used)+1), make(map[string]uint64, len(counts)+1)
	for k, v := range used {
		n.GresUsed[k] = v
	}
	for k, v := range counts {
		n.GresCount[k] = v
	}
	for _, g := range list {
		key := gresKey(g.Name, g.Type)
		if len(g.Index) > 0 {
			if n.GresUsed[key] = markBools(n.GresUsed[key], g.Index, take); !slices.Contains(n.GresUsed[key], true) {
				delete(n.GresUsed, key)
			}
			continue
		}
		if take {
			n.GresCount[key] += g.Count
		} else if n.GresCount[key] -= min(g.Count, n.GresCount[key]); n.GresCount[key] == 0 {
			delete(n.GresCount, key)
		}
	}
}

// markBools gives a copy of set with the numbers of list set to on; it grows as needed and has
// no false tail, so that the same use always looks the same.
func markBools(set []bool, list []uint32, on bool) []bool {
	size := len(set)
	for _, i := range list {
		size = max(size, int(i)+1)
	}
	c := make([]bool, size)
	copy(c, set)
	for _, i := range list {
		c[i] = on
	}
	for len(c) > 0 && !c[len(c)-1] {
		c = c[:len(c)-1]
	}
	return c
}

// indexOf finds an id, or where it would be, in an ascending list.
func indexOf(list []uint32, id uint32) (int, bool) { return slices.BinarySearch(list, id) }

func insertID(list []uint32, id uint32) []uint32 {
	i, found := indexOf(list, id)
	if found {
		return list
	}
	c := make([]uint32, 0, len(list)+1)
	c = append(c, list[:i]...)
	c = append(c, id)
	return append(c, list[i:]...)
}

func removeID(list []uint32, id uint32) []uint32 {
	i, found := indexOf(list, id)
	if !found {
		return list
	}
	c := make([]uint32, 0, len(list)-1)
	c = append(c, list[:i]...)
	return append(c, list[i+1:]...)
}
