package sched

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// randomSite lets things happen and plans after each. Whatever comes, a planner that remembers says what one without memory
// says; nothing is given twice; no limit is passed; components start together; reservations keep others out; who makes room
// helps, and for each job once; and a promised start does not move later.
func randomSite(t *rapid.T, counts map[string]int) {
	s, p := newSite(t), NewPlanner()
	pol := Policy{Promises: rapid.SampledFrom([]int{0, 1, 3, 100}).Draw(t, "promises"),
		Backfill: rapid.SampledFrom([]string{BackfillPriority, BackfillShortest, BackfillOff}).Draw(t, "backfill"),
		Preempt: Preemption{Type: rapid.SampledFrom([]string{"", PreemptPartition, PreemptPartition, PreemptQOS, PreemptQOS}).Draw(t, "preempt"),
			Mode:   rapid.SampledFrom([]string{EvictCancel, EvictRequeue, EvictSuspend, EvictSuspend}).Draw(t, "mode"),
			Exempt: int64(rapid.IntRange(0, 1).Draw(t, "exempt")) * 1500, Youngest: rapid.Bool().Draw(t, "youngest")}}
	late := rapid.IntRange(0, 3).Draw(t, "late") == 0
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		switch rapid.IntRange(0, 9).Draw(t, "what") {
		case 0, 1, 2, 3, 4:
			s.arrive()
		case 5:
			if len(s.runs) > 0 {
				s.end(rapid.IntRange(0, len(s.runs)-1).Draw(t, "run"))
			}
		case 6:
			s.reserve()
		default:
			s.pass(int64(rapid.IntRange(1, 4).Draw(t, "time"))*500, func() { s.plan(p, pol, late) })
		}
		s.plan(p, pol, late)
	}
	for what, n := range s.counts {
		counts[what] += n
	}
}

// end lets a run end, early or because its time has come.
func (s *site) end(i int) {
	r := s.runs[i]
	s.runs = slices.Delete(s.runs, i, i+1)
	s.rebuildFor(r)
	if r.how == EvictRequeue {
		j := *r.job
		j.Tasks, j.Promise, j.JobID, j.Accrue, j.Begin = nil, nil, r.JobID, s.now, s.now
		j.Run++
		s.queue(&j)
	}
}

// pass lets time pass, with a plan whenever something happens or the planner wanted one.
func (s *site) pass(ms int64, plan func()) {
	for until := s.now + ms; s.now < until; {
		next := until
		if s.wake > s.now {
			next = min(next, s.wake)
		}
		for _, r := range s.runs {
			if !r.Suspended && r.real > s.now {
				next = min(next, r.real)
			}
		}
		s.now = next
		for i := len(s.runs) - 1; i >= 0; i-- {
			if r := s.runs[i]; !r.Suspended && r.real <= s.now {
				s.end(i)
			}
		}
		plan()
	}
}

func (s *site) plan(p *Planner, pol Policy, late bool) {
	x := s.snapshot()
	d := p.Plan(x, s.now, pol)
	a, _ := json.Marshal(d)
	if b, _ := json.Marshal(Plan(x, s.now, pol)); string(a) != string(b) {
		s.t.Fatalf("with memory:    %s\nwithout memory: %s", a, b)
	}
	if len(d.Starts)+len(d.Promises)+len(d.Evicts) > 0 {
		x, _ := json.Marshal(d.Promises)
		y, _ := json.Marshal(d.Evicts)
		s.t.Logf("at %d: %s, promises %s, evicts %s", s.now, show(d), x, y)
	}
	s.wake = d.Wake
	s.take(d, late)
	s.promise(d, late)
	s.evict(d, pol)
	s.keepsBounds()
}

// take books the starts.
func (s *site) take(d *Decision, late bool) {
	groups := map[uint32]uint32{}
	for i := range d.Starts {
		st := &d.Starts[i]
		at := s.waiting(st.JobID)
		if at < 0 {
			s.t.Fatalf("job %d does not wait", st.JobID)
		}
		j := s.jobs[at]
		if j.Begin > s.now || j.Blocked != "" || st.TimeLimit != j.time || (j.Tasks == nil) != (st.Task < 0) || j.Tasks != nil && !j.Tasks.Contains(uint32(st.Task)) {
			s.t.Fatalf("job %d may not start: %+v", st.JobID, j.Waiting)
		}
		if first, ok := s.promised[st.JobID]; ok && s.now > first && !late {
			s.t.Fatalf("job %d was promised to start at %d and starts at %d", st.JobID, first, s.now)
		}
		if j.HetSize > 0 {
			groups[j.Het]++
		}
		s.admitted(j, st)
		s.begin(at, st, late)
	}
	for het, n := range groups {
		if n != 2 {
			s.t.Fatalf("%d components of heterogeneous job %d start", n, het)
		}
		s.counts["het"]++
	}
}

// begin makes a run of a waiting job.
func (s *site) begin(at int, st *Start, late bool) {
	j := s.jobs[at]
	began := *j // as it comes back to the queue
	id := st.JobID
	changed := *j
	changed.Promise = nil
	s.jobs[at] = &changed
	if j.Tasks != nil {
		id += 1 + uint32(st.Task)
		changed.Tasks, changed.Limit = j.Tasks.Without(uint32(st.Task)), j.Limit-1
	}
	if j.Tasks == nil || changed.Tasks.Len() == 0 {
		s.jobs = slices.Delete(s.jobs, at, at+1)
	}
	s.touch(j)
	delete(s.promised, st.JobID)
	delete(s.pushes, st.JobID)
	took := []int64{st.TimeLimit, st.TimeLimit, st.TimeLimit / 2}
	if late {
		took = append(took, st.TimeLimit+1500)
	}
	r := &siteRun{job: &began, limit: st.TimeLimit, real: s.now + rapid.SampledFrom(took).Draw(s.t, "takes")}
	r.Running = Running{JobID: id, Run: j.Run, Partition: st.Partition, Start: s.now, End: s.now + st.TimeLimit, Allocs: st.Nodes, Exclusive: j.spec.Exclusive,
		UID: j.spec.UID, User: j.user, Account: j.account, QOS: j.qos, Licenses: j.extra.Licenses, Requeue: true, Het: j.Het}
	if st.Partition == "q" {
		r.Tier = s.parts[1].Tier
	}
	for _, name := range j.extra.Reservations {
		if x := s.res[slices.IndexFunc(s.res, func(x *partitions.Reservation) bool { return x.Name == name })]; r.Reservation == "" && s.inside(x, st) {
			r.Reservation = name
			s.counts["reservation"]++
		}
	}
	s.runs = append(s.runs, r)
	slices.SortFunc(s.runs, func(a, b *siteRun) int { return cmp.Compare(a.JobID, b.JobID) })
	s.rebuildFor(r)
	s.counts["start"]++
}

// inside tells whether a start lies in a reservation's nodes and time.
func (s *site) inside(r *partitions.Reservation, st *Start) bool {
	from, to, ok := r.At(s.now)
	return ok && (r.Has("FLEX") || from <= s.now && s.now+st.TimeLimit <= to &&
		!slices.ContainsFunc(st.Nodes, func(a job.NodeAlloc) bool { return !slices.Contains(r.Nodes, a.Node) }))
}

// admitted fails when a start is where a reservation does not let it be.
func (s *site) admitted(j *siteJob, st *Start) {
	in := len(j.extra.Reservations) == 0
	for _, r := range s.res {
		named := slices.Contains(j.extra.Reservations, r.Name)
		in = in || named && s.inside(r, st)
		from, to, ok := r.At(s.now)
		if !ok || from >= s.now+st.TimeLimit || to <= s.now || named ||
			len(j.extra.Reservations) == 0 && r.Has("MAGNETIC") && r.Admits(j.spec.UID, j.user, nil, j.account, j.qos) {
			continue
		}
		for i := range st.Nodes {
			if slices.Contains(r.Nodes, st.Nodes[i].Node) {
				s.t.Fatalf("job %d starts on %s at %d until %d, reserved from %d to %d by %s", st.JobID, st.Nodes[i].Node, s.now, s.now+st.TimeLimit, from, to, r.Name)
			}
		}
	}
	if !in {
		s.t.Fatalf("job %d starts outside of its reservations %v", st.JobID, j.extra.Reservations)
	}
}

// promise takes promises. One that moves later, or is taken back, fails, unless a limit is in its job's way.
func (s *site) promise(d *Decision, late bool) {
	for _, c := range d.Promises {
		at := s.waiting(c.JobID)
		if at < 0 {
			continue
		}
		j := *s.jobs[at]
		first, ok := s.promised[c.JobID]
		switch {
		case c.Promise == nil:
			if ok && !late {
				s.t.Fatalf("the promise of job %d is taken back: %s", c.JobID, s.show(d))
			}
			delete(s.promised, c.JobID)
		case ok && c.Promise.Start > first && !late:
			s.t.Fatalf("job %d was promised %d and is now promised %d", c.JobID, first, c.Promise.Start)
		default:
			s.promised[c.JobID] = c.Promise.Start
			s.counts["promise"]++
		}
		j.Promise = c.Promise
		s.jobs[at] = &j
		s.touch(&j)
	}
}

// show tells what runs and why jobs wait.
func (s *site) show(d *Decision) (text string) {
	for _, r := range s.runs {
		for i := range r.Allocs {
			text += fmt.Sprintf("run %d of %s (%s) on %s until %d; ", r.JobID, r.User, r.QOS, r.Allocs[i].Node, r.real)
		}
	}
	for _, c := range d.Classes {
		text += fmt.Sprintf("%s: %s; ", c.Reason, c.Detail)
	}
	return text
}

// evict sends runs away, suspends and resumes them.
func (s *site) evict(d *Decision, pol Policy) {
	pushed, awaited := map[uint32]bool{}, map[uint32]bool{}
	for _, r := range s.runs {
		awaited[r.By] = awaited[r.By] || r.Evicting
	}
	for i := range d.Evicts {
		e := &d.Evicts[i]
		at := s.running(e.JobID)
		if at < 0 || s.runs[at].Run != e.Run || s.runs[at].Evicting {
			s.t.Fatalf("%+v: no such run, or it is on its way", e)
		}
		s.counts[e.How]++
		r := s.runs[at]
		if e.How == EvictResume {
			if !r.Suspended || !r.BySched {
				s.t.Fatalf("%+v: it was not suspended to make room", e)
			}
			s.change(at, func(r *siteRun) {
				r.Suspended, r.BySched, r.By, r.End, r.real = false, false, 0, s.now+r.left, s.now+r.real
			})
			continue
		}
		if awaited[e.By] {
			s.t.Fatalf("%+v: others are on their way for it already", e)
		}
		s.mayPush(e, r, pol)
		pushed[e.By] = true
		s.change(at, func(r *siteRun) {
			r.By = e.By
			if e.How == EvictSuspend {
				r.Suspended, r.BySched, r.left, r.real = true, true, max(r.End-s.now, 1), max(r.real-s.now, 1)
				return
			}
			r.Evicting, r.how, r.End = true, e.How, s.now+e.Grace+500
			r.real = s.now + rapid.SampledFrom([]int64{1, e.Grace + 1, e.Grace + 500}).Draw(s.t, "gone")
		})
	}
	for by := range pushed {
		if s.pushes[by]++; s.pushes[by] > 3 {
			s.t.Fatalf("room is made for job %d again and again", by)
		}
	}
}

// mayPush fails when a run may not be sent away for the job named.
func (s *site) mayPush(e *Evict, r *siteRun, pol Policy) {
	at := s.waiting(e.By)
	if at < 0 || r.Suspended {
		s.t.Fatalf("%+v: nobody waits for it, or it is suspended", e)
	}
	j := s.jobs[at]
	if j.Begin > s.now || j.Blocked != "" {
		s.t.Fatalf("%+v: the job may not start yet", e)
	}
	if pol.Preempt.Exempt > 0 && r.Start+pol.Preempt.Exempt > s.now {
		s.t.Fatalf("%+v: it is exempt until %d", e, r.Start+pol.Preempt.Exempt)
	}
	ok := false
	for _, o := range s.jobs {
		if o.JobID == j.JobID || j.Het > 0 && o.Het == j.Het {
			ok = ok || pol.Preempt.Type == PreemptQOS && o.qos == "high" && r.QOS == "normal" ||
				pol.Preempt.Type == PreemptPartition && s.parts[1].Tier > 0 && o.spec.Partition != "p" && r.Tier == 0
		}
	}
	if !ok {
		s.t.Fatalf("%+v: job %d may not take its place", e, e.By)
	}
}

// keepsBounds counts all limits anew.
func (s *site) keepsBounds() {
	for _, b := range s.bounds {
		n, nodes := 0, map[string]bool{}
		for _, r := range s.runs {
			if !b.of(r) {
				continue
			}
			for i := range r.Allocs {
				switch b.what {
				case "cpu":
					n += int(r.Allocs[i].CPUs)
				case "gpu":
					for _, g := range r.Allocs[i].Gres {
						n += int(g.Count)
					}
				}
				nodes[r.Allocs[i].Node] = true
			}
			n += boolInt(b.what == "jobs")
		}
		if b.what == "node" {
			n = len(nodes)
		}
		if n > b.most {
			s.t.Fatalf("%s: %d is over %d", b.name, n, b.most)
		}
	}
	for _, l := range s.licenses {
		n := uint64(0)
		for _, r := range s.runs {
			for _, x := range r.Licenses {
				n += x.Count
			}
		}
		if n > l.Total {
			s.t.Fatalf("%d of %d licenses are in use", n, l.Total)
		}
	}
}
