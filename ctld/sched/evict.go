package sched

import (
	"cmp"
	"slices"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/ctld/sched/preempt"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// maxPushed is for how many jobs of a round room is made when the policy does not say.
const maxPushed = 16

// maxLevels bounds how long a chain of QOS that preempt each other is followed.
const maxLevels = 8

// evictions notes for whom room is being made already, and which runs were suspended to make some.
func (r *round) evictions() {
	for _, run := range r.s.Running {
		switch {
		case run.Evicting && run.By != 0:
			r.awaited[run.By] = true
		case run.Suspended && run.BySched:
			r.resumes = append(r.resumes, run)
		}
	}
}

// preemptLevels gives each QOS its height among those that preempt each other: jobs of a higher one come first.
func (r *round) preemptLevels() map[string]int {
	levels := map[string]int{}
	if r.pol.Preempt.Type != PreemptQOS || r.s.Rules == nil || r.s.Rules.DB == nil {
		return levels
	}
	for range maxLevels {
		moved := false
		for q := range r.s.Rules.DB.AllQOS() {
			for _, name := range q.Preempt {
				if name != q.Name && levels[q.Name] <= levels[name] && levels[name] < maxLevels {
					levels[q.Name], moved = levels[name]+1, true
				}
			}
		}
		if !moved {
			break
		}
	}
	return levels
}

func (r *round) qos(name string) *accounting.QOS {
	if r.s.Rules == nil || r.s.Rules.DB == nil || name == "" {
		return nil
	}
	return r.s.Rules.DB.QOS(name)
}

// preempts tells whether the lane's best job may take the place of a run.
func (r *round) preempts(l *lane, run *Running) bool {
	switch r.pol.Preempt.Type {
	case PreemptPartition:
		return r.s.Partitions[l.part].Tier > run.Tier
	case PreemptQOS:
		if q := r.qos(l.c.QOS); q != nil && slices.Contains(q.Preempt, run.QOS) {
			return true
		}
		return r.pol.Preempt.WithinQOS && l.c.QOS == run.QOS && run.Priority > 0 && l.key.Score > float64(run.Priority)
	}
	return false
}

// victimOf is a run as a victim.
func (r *round) victimOf(run *Running) preempt.Victim {
	v := preempt.Victim{Allocs: run.Allocs, Gang: run.Het, Start: run.Start, Priority: run.Priority, Mode: r.modeOf(run)}
	since := max(run.Start, run.Checkpoint)
	for a := range run.Allocs {
		n, ok := r.p.names[run.Allocs[a].Node]
		if !ok {
			v.Mode = preempt.Off // it holds a node that is gone
			n = 0
		}
		v.Nodes = append(v.Nodes, n)
		v.Cost += int64(run.Allocs[a].CPUs) * max(r.now-since, 0)
	}
	exempt := r.pol.Preempt.Exempt
	if q := r.qos(run.QOS); q != nil && q.PreemptExempt >= 0 {
		exempt = q.PreemptExempt
	}
	if exempt > 0 {
		v.ExemptUntil = run.Start + exempt
		r.wakeAt(v.ExemptUntil)
	}
	return v
}

// modeOf is what would be done to a run: as its QOS says, its partition, or the cluster.
func (r *round) modeOf(run *Running) string {
	mode := ""
	if q := r.qos(run.QOS); q != nil && r.pol.Preempt.Type == PreemptQOS {
		mode = q.PreemptMode
	}
	if i := slices.IndexFunc(r.s.Partitions, func(p *Partition) bool { return p.Name == run.Partition }); i >= 0 {
		mode = cmp.Or(mode, r.s.Partitions[i].PreemptMode)
	}
	mode = cmp.Or(mode, r.pol.Preempt.Mode, EvictCancel)
	if mode == EvictRequeue && !run.Requeue {
		mode = EvictCancel
	}
	return mode
}

// graceOf is how long a run has from its warning to its end.
func (r *round) graceOf(run *Running) int64 {
	if q := r.qos(run.QOS); q != nil && q.Grace > 0 && r.pol.Preempt.Type == PreemptQOS {
		return q.Grace
	}
	if i := slices.IndexFunc(r.s.Partitions, func(p *Partition) bool { return p.Name == run.Partition }); i >= 0 {
		return r.s.Partitions[i].Grace
	}
	return 0
}

// makeRoom has runs end or suspended for the lane's best job, if that lets it start, and keeps their room for it. A job
// whose victims are on the way is given no new ones: it waits for their room. It is false when no room is made.
func (r *round) makeRoom(l *lane) bool {
	if r.pol.Preempt.Type == "" {
		return false
	}
	if r.awaited[l.head.JobID] {
		return r.awaitRoom(l)
	}
	if r.pushed >= cmp.Or(r.pol.Preempt.Jobs, maxPushed) || l.head.HetSize > 1 {
		return false
	}
	limit, _ := r.limit(l)
	if at, ok := r.licensed(l, r.now, limit); !ok || at > r.now {
		return false
	}
	var runs []*Running
	var victims []preempt.Victim
	for _, run := range r.s.Running {
		if !run.Evicting && !run.Suspended && !r.victims[run.JobID] && r.preempts(l, run) {
			runs, victims = append(runs, run), append(victims, r.victimOf(run))
		}
	}
	if len(victims) == 0 {
		return false
	}
	r.charge(l, len(l.fit.order)+len(victims))
	found, picks := preempt.Find(preempt.Input{Shape: l.fit.shape, Candidates: r.upOnly(l), Rooms: r.p.rooms, Fit: r.fitFor(l, limit),
		Victims: victims, Now: r.now, MinExemptPriority: r.pol.Preempt.MinExempt, YoungestFirst: r.pol.Preempt.Youngest})
	if picks == nil || len(found) == 0 {
		return false
	}
	r.push(l, limit, runs, victims, found, picks)
	return true
}

// upOnly is the candidates of a lane for preempt.Find: nodes that are up.
func (r *round) upOnly(l *lane) *place.Candidates {
	list := make([]int, 0, len(l.fit.order))
	for _, n := range l.fit.order {
		if r.s.Nodes[n].Up {
			list = append(list, n)
		}
	}
	return &place.Candidates{List: list, Nodes: r.s.Nodes, Topology: r.s.Topology}
}

// fitFor is how many tasks of the lane fit into a room that is made. Nodes on which a start is kept for another job while
// this one would run, or that a reservation keeps, are left out.
func (r *round) fitFor(l *lane, limit int64) func(n int, room *place.Room) uint32 {
	to := endAfter(r.now, limit)
	return func(n int, room *place.Room) uint32 {
		if !r.open(l.access, n, r.now, to) {
			return 0
		}
		for _, h := range r.holds[n] {
			if h.at < to && h.job != l.head.JobID {
				return 0
			}
		}
		return l.fit.shape.Fit(r.s.Nodes[n], room)
	}
}

// push adds the evictions to the plan and keeps their room for the job.
func (r *round) push(l *lane, limit int64, runs []*Running, victims []preempt.Victim, found []int, picks []place.Pick) {
	r.pushed++
	gone := r.now + 1
	rooms := map[int]*place.Room{}
	for _, k := range picks {
		room := r.p.rooms[k.Node].Clone()
		rooms[k.Node] = &room
	}
	for _, i := range found {
		run, mode := runs[i], victims[i].Mode
		grace := r.graceOf(run)
		r.victims[run.JobID] = true
		r.out.Evicts = append(r.out.Evicts, Evict{JobID: run.JobID, Run: run.Run, How: mode, By: l.head.JobID, Grace: grace})
		if mode != EvictSuspend {
			gone = max(gone, r.now+grace)
		}
		for a, n := range victims[i].Nodes {
			if room := rooms[n]; room != nil {
				back := run.Allocs[a]
				if mode == EvictSuspend {
					back = job.NodeAlloc{Node: back.Node, CPUs: back.CPUs}
					room.Runs++ // it stays
				}
				room.More(r.s.Nodes[n], &back)
			}
		}
	}
	h := &hold{job: l.head.JobID, part: l.part, at: gone, end: endAfter(gone, limit), by: l.tenant(), licenses: l.extra.Licenses}
	for _, k := range picks {
		h.nodes = append(h.nodes, k.Node)
		h.allocs = append(h.allocs, l.fit.shape.Demand(r.s.Nodes[k.Node], rooms[k.Node], k.Tasks))
	}
	r.keep(h)
	part := &r.parts[l.part]
	if part.blocked == 0 {
		part.blocked = l.head.JobID
	}
	r.note(l, verdict{rank: rankResources, reason: job.ReasonResources, start: gone,
		detail: plural(len(found), "job") + " of lower standing make room for it"})
}

// awaitRoom keeps for a job the room that its victims leave.
func (r *round) awaitRoom(l *lane) bool {
	part := &r.parts[l.part]
	if part.blocked == 0 {
		part.blocked = l.head.JobID
	}
	v := verdict{rank: rankResources, reason: job.ReasonResources, detail: "waits for the jobs that make room for it to be gone"}
	if h := r.book(l, afterward); h != nil {
		h.promised = false
		r.keep(h)
		r.told(&v, h)
	}
	r.note(l, v)
	return true
}

// resume lets runs go on that were suspended to make room, as far as their CPUs are free again, before the lane's job is
// looked at; those that it may preempt stay. What is free of their CPUs is kept for the others.
func (r *round) resume(l *lane) {
	if len(r.resumes) == 0 {
		return
	}
	left := r.resumes[:0:0]
	for _, run := range r.resumes {
		if l != nil && (r.preempts(l, run) || l.head.JobID == run.By) {
			left = append(left, run)
			continue
		}
		if len(r.held[run.By]) > 0 {
			continue // the job for which it was suspended has not begun
		}
		whole := true
		for a := range run.Allocs {
			whole = whole && r.freeOf(&run.Allocs[a]) == len(run.Allocs[a].CPUIDs)
		}
		for a := range run.Allocs {
			r.takeBack(&run.Allocs[a])
		}
		if whole {
			r.out.Evicts = append(r.out.Evicts, Evict{JobID: run.JobID, Run: run.Run, How: EvictResume, By: run.By})
		}
	}
	r.resumes = left
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

// takeBack takes the free CPUs of a suspended run's share out of the node's room.
func (r *round) takeBack(a *job.NodeAlloc) {
	n, ok := r.p.names[a.Node]
	if !ok {
		return
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
}
