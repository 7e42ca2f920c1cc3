package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// resume lets runs go on that were suspended to make room, as far as their CPUs are free again, before the lane's job is
// looked at; those that it may preempt stay. The CPUs of those that do not go on yet are kept for them.
func (r *round) resume(l *lane) {
	if len(r.resumes) == 0 {
		return
	}
	var left, ready []*Running
	for _, run := range r.resumes {
		if l != nil && (r.preempts(l, run) || l.head.JobID == run.By) {
			left = append(left, run)
		} else {
			ready = append(ready, run)
		}
	}
	r.resumes = left
	for i, run := range ready {
		if run.Het == 0 || slices.IndexFunc(ready, func(o *Running) bool { return o.Het == run.Het }) == i {
			r.goOnTogether(ready, run)
		}
	}
}

// goOnTogether resumes a run, with the other components of its heterogeneous job, or keeps what they will need.
func (r *round) goOnTogether(ready []*Running, first *Running) {
	gang := []*Running{first}
	if first.Het != 0 {
		gang = slices.DeleteFunc(slices.Clone(ready), func(o *Running) bool { return o.Het != first.Het })
	}
	whole := !slices.ContainsFunc(r.resumes, func(o *Running) bool { return first.Het != 0 && o.Het == first.Het })
	taken := false // the job for which it was suspended has not begun: the CPUs are kept for that one
	for _, run := range gang {
		taken = taken || len(r.held[run.By]) > 0
		for a := range run.Allocs {
			whole = whole && r.freeOf(&run.Allocs[a]) == len(run.Allocs[a].CPUIDs) && r.roomFor(run, a)
		}
	}
	for _, run := range gang {
		rest := make([]job.NodeAlloc, len(run.Allocs))
		for a := range run.Allocs {
			rest[a] = job.NodeAlloc{Node: run.Allocs[a].Node, CPUs: run.Allocs[a].CPUs}
			if !taken {
				rest[a].CPUs -= r.takeBack(&run.Allocs[a])
			}
		}
		if whole && !taken {
			r.out.Evicts = append(r.out.Evicts, Evict{JobID: run.JobID, Run: run.Run, How: EvictResume, By: run.By})
			continue
		}
		r.keepRest(run, rest)
	}
}

// roomFor tells whether nothing is kept for others of a suspended run's CPUs on one of its nodes, from now on.
func (r *round) roomFor(run *Running, a int) bool {
	n, ok := r.p.names[run.Allocs[a].Node]
	return ok && r.roomAt(n, r.now, afterward).CPUs >= run.Allocs[a].CPUs
}

// keepRest keeps the CPUs that a suspended run does not have back from when they are free on, so that nobody is promised them.
func (r *round) keepRest(run *Running, rest []job.NodeAlloc) {
	for a := range rest {
		n, ok := r.p.names[rest[a].Node]
		if !ok || rest[a].CPUs == 0 {
			continue
		}
		at, ok := r.line(n).Earliest(r.now, never, func(room *place.Room) bool { return room.CPUs >= rest[a].CPUs })
		if !ok {
			continue
		}
		h := &hold{job: run.JobID, at: at, end: afterward, nodes: []int{n}, allocs: rest[a : a+1],
			by: place.Tenant{UID: run.UID, Exclusive: run.Exclusive}, wide: true}
		r.keep(h)
	}
}

// numbers are the CPU numbers in use on a node.
func (r *round) numbers(n int) []bool {
	if r.cpus[n] == nil {
		used := make([]bool, r.s.Nodes[n].CPUs)
		copy(used, r.s.Nodes[n].CPUUsed)
		r.cpus[n] = used
	}
	return r.cpus[n]
}

// freeOf is how many CPUs of a suspended run's share of a node are free.
func (r *round) freeOf(a *job.NodeAlloc) int {
	n, ok := r.p.names[a.Node]
	if !ok || !r.s.Nodes[n].Up {
		return 0
	}
	free := 0
	for _, c := range a.CPUIDs {
		if used := r.numbers(n); int(c) < len(used) && !used[c] {
			free++
		}
	}
	return free
}

// takeBack takes the free CPUs of a suspended run's share out of the node's room and tells how many they are.
func (r *round) takeBack(a *job.NodeAlloc) uint32 {
	n, ok := r.p.names[a.Node]
	if !ok {
		return 0
	}
	got := job.NodeAlloc{Node: a.Node}
	for _, c := range a.CPUIDs {
		if used := r.numbers(n); int(c) < len(used) && !used[c] {
			used[c] = true
			got.CPUs++
		}
	}
	if got.CPUs > 0 {
		room := &r.p.rooms[n]
		room.CPUs -= min(room.CPUs, got.CPUs)
		r.p.touched = append(r.p.touched, n)
		r.p.journal = append(r.p.journal, int32(n))
		r.p.scratch.drawn[n] = 0
	}
	return got.CPUs
}
