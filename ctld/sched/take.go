package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// take gives the picks to a job of the lane and adds its start to the plan, unless a limit of what it is counted for is
// in the way.
func (r *round) take(l *lane, picks []place.Pick, task, limit int64) outcome {
	allocs := make([]job.NodeAlloc, len(picks))
	for i, k := range picks {
		allocs[i] = l.fit.shape.Demand(r.s.Nodes[k.Node], r.roomToTake(l, k, endAfter(r.now, limit)), k.Tasks)
	}
	var claim *partitions.Claim
	if l.chain != nil {
		claim = r.claim(l, allocs, limit)
		if v, ok := r.underLimits(l, claim, endAfter(r.now, limit)); !ok {
			r.note(l, v)
			return limited
		}
		r.limits.plus(l.chain, claim)
	}
	end := endAfter(r.now, limit)
	by := l.tenant()
	for i, k := range picks {
		r.hand(&allocs[i], k.Node, l.part, end, by)
	}
	r.useLicenses(l.extra.Licenses, r.now, end)
	w := &l.head
	r.out.Starts = append(r.out.Starts, Start{
		JobID: w.JobID, Task: task, Run: w.Run, Revision: w.Revision, Partition: r.s.Partitions[l.part].Name,
		Nodes: allocs, TimeLimit: limit, Group: r.groupOf(w), Backfilled: r.parts[l.part].blocked != 0 && r.parts[l.part].blocked != w.JobID,
	})
	if l.taken != nil {
		l.taken[w.JobID]++
	}
	return started
}

// roomToTake is the room of a pick's node that a start until to takes from. Of devices that will do alike it gets those that
// nobody was promised meanwhile: what is free now may be what a promise rests on.
func (r *round) roomToTake(l *lane, k place.Pick, to int64) *place.Room {
	now := &r.p.rooms[k.Node]
	if len(now.Gres) < 2 || len(r.holds[k.Node]) == 0 {
		return now
	}
	if l.slot > 0 {
		to = min(to, l.slot)
	}
	room := r.roomAt(k.Node, r.now, to)
	for i := range room.Gres {
		room.Gres[i] = min(room.Gres[i], now.Gres[i]) // a promise that is late may count on what has not come back
	}
	if r.p.fit(l.fit, k.Node, room) >= k.Tasks {
		return room
	}
	return now
}

// hand takes an allocation out of a node's room and numbers its CPUs and devices.
func (r *round) hand(a *job.NodeAlloc, n, part int, end int64, by place.Tenant) {
	if r.ask == nil || len(r.resumes) > 0 { // an answer names no CPUs and devices
		a.CPUIDs = r.takeCPUs(n, a.CPUs)
		for g := range a.Gres {
			a.Gres[g].Index = r.takeDevices(n, &a.Gres[g])
		}
	}
	r.lower(a, n, by)
	if t := r.drawn(n); t != nil {
		t.Take(a, by, r.now, min(end, never))
	}
	at := min(end, never)
	r.started[n] = append(r.started[n], held{end: at, alloc: a, by: by, part: part})
	r.fresh = append(r.fresh, ending{at: at, node: int32(n), job: uint32(len(r.out.Starts)), alloc: a})
}

// lower takes an allocation out of a node's room.
func (r *round) lower(a *job.NodeAlloc, n int, by place.Tenant) {
	r.p.rooms[n].Less(r.s.Nodes[n], a, by)
	r.p.touched = append(r.p.touched, n)
	r.p.journal = append(r.p.journal, int32(n))
}

// claim is what a start counts for in limits.
func (r *round) claim(l *lane, allocs []job.NodeAlloc, limit int64) *partitions.Claim {
	tres := accounting.AllocTRES(allocs, l.extra.Licenses)
	c := &partitions.Claim{TRES: r.billed(l, tres), PerNode: accounting.PerNode(allocs), Start: r.now, Limit: limit}
	for i := range allocs {
		c.Nodes = append(c.Nodes, allocs[i].Node)
	}
	return c
}

// billed adds the partition's billing units to a vector.
func (r *round) billed(l *lane, t accounting.TRES) accounting.TRES {
	n := r.s.Partitions[l.part].Billing.Billing(t, r.s.MaxTRES, r.s.MaxTRESGres)
	return t.Plus(accounting.TRES{{Name: "billing", N: n}})
}

// takeCPUs marks the lowest free CPU numbers of a node as used.
func (r *round) takeCPUs(n int, count uint32) []uint32 {
	return lowest(r.numbers(n), uint64(count))
}

// takeDevices marks the lowest free devices of a node's resource as used; nil for a resource without devices.
func (r *round) takeDevices(n int, a *job.GresAlloc) []uint32 {
	node := r.s.Nodes[n]
	i := place.GresAt(node, a)
	if i < 0 || node.Gres[i].Used == nil {
		return nil
	}
	if r.gres[n] == nil {
		r.gres[n] = make([][]bool, len(node.Gres))
	}
	if r.gres[n][i] == nil {
		r.gres[n][i] = slices.Clone(node.Gres[i].Used)
	}
	return lowest(r.gres[n][i], a.Count)
}

// lowest marks the first count unmarked places and gives their numbers.
func lowest(used []bool, count uint64) []uint32 {
	out := make([]uint32, 0, count)
	for i := range used {
		if uint64(len(out)) == count {
			break
		}
		if !used[i] {
			used[i] = true
			out = append(out, uint32(i))
		}
	}
	return out
}
