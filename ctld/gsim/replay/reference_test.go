package replay

import (
	"cmp"
	"math"
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// reference is the textbook planner of a machine of equal processors, written for itself: what the real one is held
// against. It knows CPUs of one node and nothing else.
type reference struct {
	s    *sched.Snapshot
	now  int64
	pol  sched.Policy
	d    *sched.Decision
	free int
	prof profile
	busy []bool
}

// refJob is a waiting job with what ranks it.
type refJob struct {
	w     sched.Waiting
	n     int
	limit int64
	run   float64
	key   priority.Key
	gone  bool
}

// profile is how many CPUs are free from each time on.
type profile struct {
	at   []int64
	free []int
}

func (p *profile) cut(t int64) int {
	i, found := slices.BinarySearch(p.at, t)
	if !found {
		p.at, p.free = slices.Insert(p.at, i, t), slices.Insert(p.free, i, p.free[i-1])
	}
	return i
}

func (p *profile) add(from, to int64, n int) {
	if to <= from {
		return
	}
	i := p.cut(from)
	for j := p.cut(to); i < j; i++ {
		p.free[i] += n
	}
}

// earliest is when n CPUs are free for so long.
func (p *profile) earliest(length int64, n int) int64 {
next:
	for i := 0; i < len(p.at); i++ {
		for k := i; k < len(p.at) && p.at[k] < p.at[i]+length; k++ {
			if p.free[k] < n {
				continue next
			}
		}
		return p.at[i]
	}
	return math.MaxInt64
}

func (r reference) Plan(s *sched.Snapshot, now int64, pol sched.Policy) *sched.Decision {
	r.s, r.now, r.pol, r.d = s, now, pol, &sched.Decision{Base: s.Version}
	node := s.Nodes[0]
	r.free, r.busy = int(node.FreeCPUs), slices.Clone(node.CPUUsed)
	queue := r.rank()
	r.prof = profile{[]int64{now}, []int{int(node.CPUs)}}
	for _, x := range s.Running {
		r.prof.add(now, max(x.End, now+1), -int(x.Allocs[0].CPUs))
	}
	if pol.Promises > 0 {
		r.promised(queue)
	} else {
		r.open(queue)
	}
	return r.d
}

func (r *reference) rank() []*refJob {
	var queue []*refJob
	for _, c := range r.s.Classes {
		part := r.s.Priority.Part(&r.s.Cluster, &priority.Job{CPUs: c.Spec.NTasks, Limit: c.Time, Estimate: c.Estimate, Nodes: 1})
		for w := range c.Waiting {
			queue = append(queue, &refJob{w: w, n: int(c.Spec.NTasks), limit: c.Time, run: part.Run(), key: part.Key(w.Submit, w.Accrue, r.now)})
		}
	}
	slices.SortFunc(queue, func(a, b *refJob) int {
		return cmp.Or(priority.Compare(a.key, b.key), cmp.Compare(a.w.Submit, b.w.Submit), cmp.Compare(a.w.JobID, b.w.JobID))
	})
	return queue
}

// behind is the order in which jobs behind a waiting one are looked at.
func (r *reference) behind(queue []*refJob) []*refJob {
	list := slices.Clone(queue)
	switch r.pol.Backfill {
	case sched.BackfillOff:
		return nil
	case "submission":
		slices.SortStableFunc(list, func(a, b *refJob) int {
			return cmp.Or(cmp.Compare(a.w.Submit, b.w.Submit), cmp.Compare(a.w.JobID, b.w.JobID))
		})
	case sched.BackfillShortest:
		slices.SortStableFunc(list, func(a, b *refJob) int { return cmp.Compare(a.run, b.run) })
	}
	return list
}

func (r *reference) start(j *refJob) {
	a := job.NodeAlloc{Node: r.s.Nodes[0].Name, CPUs: uint32(j.n), Tasks: uint32(j.n)}
	for i := 0; len(a.CPUIDs) < j.n; i++ {
		if !r.busy[i] {
			r.busy[i] = true
			a.CPUIDs = append(a.CPUIDs, uint32(i))
		}
	}
	r.free -= j.n
	j.gone = true
	r.prof.add(r.now, r.now+j.limit, -j.n)
	r.d.Starts = append(r.d.Starts, sched.Start{JobID: j.w.JobID, Task: -1, Partition: partition, Nodes: []job.NodeAlloc{a}, TimeLimit: j.limit})
}

// open starts in order, reserves for the first that must wait, and lets others go ahead that do not delay it.
func (r *reference) open(queue []*refJob) {
	if r.pol.StickyHead {
		if i := slices.IndexFunc(queue, func(j *refJob) bool { return j.w.Promise != nil }); i > 0 {
			head := queue[i]
			queue = slices.Insert(slices.Delete(queue, i, i+1), 0, head)
		}
	}
	for len(queue) > 0 && queue[0].n <= r.free {
		r.start(queue[0])
		queue = queue[1:]
	}
	if len(queue) == 0 {
		return
	}
	head := queue[0]
	shadow := r.prof.earliest(1, head.n)
	spare := r.prof.free[r.prof.cut(shadow)] - head.n
	if r.pol.StickyHead {
		if head.w.Promise != nil {
			shadow = head.w.Promise.Start
		} else {
			r.d.Promises = append(r.d.Promises, sched.PromiseChange{JobID: head.w.JobID, Promise: &sched.Promise{Start: shadow}})
		}
	}
	for _, j := range r.behind(queue[1:]) {
		end := r.now + j.limit
		in := end < shadow || end == shadow && !r.pol.StrictEnd
		switch {
		case j.n > r.free:
		case in:
			r.start(j)
		case !r.pol.NoSpare && j.n <= spare:
			spare -= j.n
			r.start(j)
		}
	}
}

// promised keeps every promise, moves only the best job's forward, and lets others start where they break none.
func (r *reference) promised(queue []*refJob) {
	plan := map[uint32]int64{}
	hold := func(j *refJob, sign int) { r.prof.add(plan[j.w.JobID], plan[j.w.JobID]+j.limit, sign*j.n) }
	for _, j := range queue {
		if j.w.Promise != nil {
			plan[j.w.JobID] = max(j.w.Promise.Start, r.now)
			hold(j, -1)
		}
	}
	for _, j := range queue { // the best one that waits
		if j.w.Promise == nil {
			continue
		}
		hold(j, 1)
		at := r.prof.earliest(j.limit, j.n)
		if at == r.now {
			r.start(j)
			continue
		}
		plan[j.w.JobID] = at
		hold(j, -1)
		if at != j.w.Promise.Start {
			r.d.Promises = append(r.d.Promises, sched.PromiseChange{JobID: j.w.JobID, Promise: &sched.Promise{Start: at}})
		}
		break
	}
	now := func(j *refJob) bool { return r.prof.earliest(j.limit, j.n) == r.now }
	for _, j := range r.behind(queue) {
		if j.gone || j.w.Promise == nil {
			continue
		}
		if hold(j, 1); now(j) {
			r.start(j)
		} else {
			hold(j, -1)
		}
	}
	for i, j := range queue {
		if j.gone || j.w.Promise != nil {
			continue
		}
		switch {
		case now(j):
			r.start(j)
		case i < r.pol.Promises && r.waits(queue, plan) < r.pol.Promises:
			plan[j.w.JobID] = r.prof.earliest(j.limit, j.n)
			hold(j, -1)
			r.d.Promises = append(r.d.Promises, sched.PromiseChange{JobID: j.w.JobID, Promise: &sched.Promise{Start: plan[j.w.JobID]}})
		}
	}
	for _, j := range r.behind(queue) {
		if _, held := plan[j.w.JobID]; !j.gone && !held && now(j) {
			r.start(j)
		}
	}
	r.wake(queue, plan)
}

// waits counts the promised jobs that still wait.
func (r *reference) waits(queue []*refJob, plan map[uint32]int64) (n int) {
	for _, j := range queue {
		if _, held := plan[j.w.JobID]; held && !j.gone {
			n++
		}
	}
	return n
}

// wake asks for a plan when the next promise is due.
func (r *reference) wake(queue []*refJob, plan map[uint32]int64) {
	for _, j := range queue {
		if at, held := plan[j.w.JobID]; held && !j.gone && at > r.now && (r.d.Wake == 0 || at < r.d.Wake) {
			r.d.Wake = at
		}
	}
}
