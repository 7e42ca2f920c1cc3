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

// makeRoom has runs end or suspended for the lane's best job, if that lets it start before a time, and keeps their room for
// it. A job whose victims are on the way is given no new ones: it waits for their room. It is false when no room is made.
func (r *round) makeRoom(l *lane, before int64) bool {
	if r.pol.Preempt.Type == "" || l.head.HetSize > 1 {
		return false
	}
	if r.awaited[l.head.JobID] {
		return r.awaitRoom(l)
	}
	limit, _ := r.limit(l)
	if !r.mayPush(l, limit) {
		return false
	}
	p := r.newPush(before)
	if !p.add(l, limit) || len(p.victims) == 0 || !p.sooner() || r.elsewhere(l) || !p.keep() {
		return false
	}
	p.carryOut()
	return true
}

// elsewhere tells whether the lane's best job fits now in another partition that it asks for: nobody has to make room there.
func (r *round) elsewhere(l *lane) bool {
	for _, part := range r.partitionsOf(l.c.Spec) {
		o := &lane{class: l.class, c: l.c, part: part, extra: l.extra, head: l.head, late: true, looked: true}
		if part == l.part {
			continue
		}
		if _, ok := r.shut(part, l.c.Spec); !ok || !r.ready(o) {
			continue
		}
		if limit, ok := r.limit(o); ok && r.prepare(o, limit) == started && !o.fit.hopeless() {
			if picks, _ := r.choose(o, limit); picks != nil {
				return true
			}
		}
	}
	return false
}

// mayPush tells whether room may be made for a lane's best job in this round.
func (r *round) mayPush(l *lane, limit int64) bool {
	if r.pushed >= cmp.Or(r.pol.Preempt.Jobs, maxPushed) {
		return false
	}
	at, ok := r.licensed(l, r.now, limit)
	return ok && at <= r.now
}

// push is room that is made for one job, or for the components of one, beside each other.
type push struct {
	r       *round
	before  int64
	rooms   []place.Room // what is free when the victims are gone and the jobs before have taken theirs
	victims []*Running
	modes   []string
	mine    []pushed
	gone    int64 // when all are gone that are ended
}

// pushed is one job that room is made for.
type pushed struct {
	l     *lane
	limit int64
	by    uint32 // the job named for each victim
	picks []place.Pick
	given []job.NodeAlloc
	h     *hold
}

func (r *round) newPush(before int64) *push {
	return &push{r: r, before: before, rooms: slices.Clone(r.p.rooms), gone: r.now + 1}
}

// add finds what has to go for one more job; false when nothing helps.
func (p *push) add(l *lane, limit int64) bool {
	r := p.r
	var runs []*Running
	var victims []preempt.Victim
	longest := int64(0)
	for _, run := range r.s.Running {
		if run.Evicting || run.Suspended || r.victims[run.JobID] || slices.Contains(p.victims, run) || !r.preempts(l, run) {
			continue
		}
		v := r.victimOf(run)
		if v.Mode == EvictSuspend && r.standsOn(run, l.head.JobID) {
			continue
		}
		runs, victims = append(runs, run), append(victims, v)
		longest = max(longest, r.graceOf(run))
	}
	r.charge(l, len(l.fit.order)+len(victims))
	found, picks := preempt.Find(preempt.Input{Shape: l.fit.shape, Candidates: r.upOnly(l), Rooms: p.rooms,
		Fit: r.fitFor(l, endAfter(r.now+1+longest+r.s.KillWait, limit)), Victims: victims, Now: r.now,
		MinExemptPriority: r.pol.Preempt.MinExempt, YoungestFirst: r.pol.Preempt.Youngest})
	if picks == nil {
		return false
	}
	own := map[int]bool{} // rooms that are copies already
	room := func(n int) *place.Room {
		if !own[n] {
			p.rooms[n], own[n] = p.rooms[n].Clone(), true
		}
		return &p.rooms[n]
	}
	for _, i := range found {
		run, mode := runs[i], victims[i].Mode
		p.victims, p.modes = append(p.victims, run), append(p.modes, mode)
		if mode != EvictSuspend {
			p.gone = max(p.gone, r.now+r.graceOf(run)+r.s.KillWait)
		}
		for a, n := range victims[i].Nodes {
			back := run.Allocs[a]
			if mode == EvictSuspend { // it stays, with memory and devices
				room(n).CPUs = min(room(n).CPUs+back.CPUs, r.s.Nodes[n].CPUs)
				continue
			}
			room(n).More(r.s.Nodes[n], &back)
		}
	}
	x := pushed{l: l, limit: limit, by: l.head.JobID, picks: picks}
	for _, k := range picks {
		a := l.fit.shape.Demand(r.s.Nodes[k.Node], room(k.Node), k.Tasks)
		room(k.Node).Less(r.s.Nodes[k.Node], &a, l.tenant())
		x.given = append(x.given, a)
	}
	p.mine = append(p.mine, x)
	return true
}

// standsOn tells whether something counts on a run to end in its time: it must not be suspended, which makes it end later.
func (r *round) standsOn(run *Running, but uint32) bool {
	if len(run.Licenses) > 0 {
		return true
	}
	for a := range run.Allocs {
		n, ok := r.p.names[run.Allocs[a].Node]
		if !ok || len(r.blocks[n]) > 0 || slices.ContainsFunc(r.holds[n], func(h *hold) bool { return h.job != but }) {
			return true
		}
	}
	return false
}

// sooner tells whether the room is there before the time given, and before the jobs would start without it: else nobody is
// sent away.
func (p *push) sooner() bool {
	if p.gone >= p.before {
		return false
	}
	if len(p.mine) > 1 {
		return true
	}
	h := p.r.book(p.mine[0].l, p.gone+1)
	return h == nil
}

// keep keeps the room for the jobs. It is false, and nothing is kept, when a limit will be in their way.
func (p *push) keep() bool {
	r := p.r
	for i := range p.mine {
		x := &p.mine[i]
		l := x.l
		x.h = &hold{job: l.head.JobID, part: l.part, at: p.gone, end: endAfter(p.gone, x.limit), since: p.gone, by: l.tenant(),
			licenses: l.extra.Licenses, promised: r.pol.Promises > 0 || l.extra.Deadline > 0, wide: l.extra.Deadline > 0}
		for k := range x.picks {
			x.h.nodes, x.h.allocs = append(x.h.nodes, x.picks[k].Node), append(x.h.allocs, x.given[k])
		}
		r.keep(r.counted(l, x.h, x.limit))
	}
	for i := range p.mine {
		if v, ok := r.mayKeep(p.mine[i].l, p.mine[i].h); !ok {
			for k := range p.mine {
				r.release(p.mine[k].h)
			}
			r.note(p.mine[i].l, v)
			return false
		}
	}
	return true
}

// carryOut adds the evictions to the plan. The start that is kept is told to the state as a promise, so that whatever comes
// first when the victims are gone leaves their room to the jobs.
func (p *push) carryOut() {
	r := p.r
	r.pushed++
	for i, run := range p.victims {
		r.victims[run.JobID] = true
		grace := r.graceOf(run)
		if p.modes[i] == EvictSuspend {
			grace = 0
		}
		r.out.Evicts = append(r.out.Evicts, Evict{JobID: run.JobID, Run: run.Run, How: p.modes[i], By: p.mine[0].by, Grace: grace})
	}
	for _, x := range p.mine {
		l := x.l
		part := &r.parts[l.part]
		if !x.h.wide {
			part.promises++
		}
		if part.blocked == 0 {
			part.blocked = l.head.JobID
		}
		r.tell(l, x.h)
		v := verdict{rank: rankResources, reason: job.ReasonResources, detail: plural(len(p.victims), "job") + " of lower standing " +
			verb(len(p.victims), "makes", "make") + " room for it"}
		r.told(&v, x.h)
		r.note(l, v)
	}
	p.shut()
}

// shut keeps the nodes of the victims from all others for the rest of the round: what they will have is known when the
// victims are on their way.
func (p *push) shut() {
	r := p.r
	for _, run := range p.victims {
		for a := range run.Allocs {
			n, ok := r.p.names[run.Allocs[a].Node]
			if !ok {
				continue
			}
			node := r.s.Nodes[n]
			h := &hold{job: p.mine[0].by, at: r.now, end: afterward, nodes: []int{n}, by: place.Tenant{Exclusive: true},
				allocs: []job.NodeAlloc{{Node: node.Name, CPUs: node.CPUs, Mem: node.Mem}}}
			if len(r.holds[n])+len(r.blocks[n]) == 0 {
				r.marked = append(r.marked, n)
			}
			r.holds[n] = append(r.holds[n], h)
			r.p.scratch.drawn[n] = 0
		}
	}
}

// upOnly is the candidates of a lane for preempt.Find: nodes that are up.
func (r *round) upOnly(l *lane) *place.Candidates {
	list := make([]int, 0, len(l.fit.order))
	for _, n := range l.fit.order {
		if r.s.Nodes[n].Up {
			list = append(list, n)
		}
	}
	return &place.Candidates{List: list, Nodes: r.s.Nodes, Topology: r.s.Topology, AnySwitches: r.anySwitches(l, r.now)}
}

// fitFor is how many tasks of the lane fit into a room that is made, until a time. Nodes on which a start is kept for another
// job before then, or that a reservation keeps, are left out.
func (r *round) fitFor(l *lane, to int64) func(n int, room *place.Room) uint32 {
	return func(n int, room *place.Room) uint32 {
		if !r.open(l.access, n, r.now, to) {
			return 0
		}
		for _, h := range r.holds[n] {
			if h.at < to && h.job != l.head.JobID {
				return 0
			}
		}
		if most := r.capOf(l); most > 0 {
			capped := room.Clone()
			r.capRoom(l, n, r.now, to, &capped)
			room = &capped
		}
		return l.fit.shape.Fit(r.s.Nodes[n], room)
	}
}

// awaitRoom keeps for a job the room that its victims leave, where nothing is kept for it already.
func (r *round) awaitRoom(l *lane) bool {
	part := &r.parts[l.part]
	if part.blocked == 0 {
		part.blocked = l.head.JobID
	}
	v := verdict{rank: rankResources, reason: job.ReasonResources, detail: "waits for the jobs that make room for it to be gone"}
	if h := r.book(l, afterward); h != nil {
		r.keep(h)
		if !h.wide {
			part.promises++
		}
		r.tell(l, h)
		r.told(&v, h)
	}
	r.note(l, v)
	return true
}

// verb is the form of a verb for so many.
func verb(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}
