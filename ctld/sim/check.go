package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// follow checks what an entry has changed: it is called after each, and costs what has changed.
func (s *sim) follow(before *state.View, cmds []*logpb.Command, results []fsm.Result) {
	if s.view.Time() < before.Time() {
		s.fail("the state's time ran back from %d to %d", before.Time(), s.view.Time())
	}
	purges, requeues := false, false
	for i, c := range cmds {
		switch {
		case c.GetSubmit() != nil:
			s.submitted(c.GetSubmit(), &results[i])
		case c.GetPurge() != nil:
			purges = true
		case i == 0 && c.GetPlan().GetBase() == before.Version() && results[i].Taken < singles(before, c.GetPlan()) && !s.on("clock"):
			s.fail("of a plan on this very state %d of %d starts are taken: %v", results[i].Taken, len(c.GetPlan().GetStarts()), c)
		case c.GetControl() != nil:
			requeues = true
		}
	}
	s.compare(before, purges, requeues)
	s.keepPromises(before, cmds)
	if p := cmds[0].GetPlan(); p != nil && p.Base == before.Version() {
		s.victims(before, p)
	}
	s.evicted(before, cmds)
	s.within(before, cmds)
	s.settle(before, cmds)
	s.aliveHeld()
}

// singles counts the starts of a plan that are of no array: records of one array share its limit, which the
// planner does not know of. Where something is reserved a run that begins a little later may not end in time.
func singles(v *state.View, p *logpb.Plan) (n int) {
	if len(v.Reservations()) > 0 {
		return 0
	}
	for _, start := range p.GetStarts() {
		if j := v.Job(start.JobId); j != nil && j.ArrayID == 0 {
			n++
		}
	}
	return n
}

// submitted holds the answer to a submission against what the key gave before.
func (s *sim) submitted(m *logpb.Submit, r *fsm.Result) {
	k := userKey{m.Spec.Uid, m.Key}
	was, known := s.users.keys[k]
	if m.Key == "" {
		known = false
	}
	other := known && string(m.Digest) != was.digest
	switch {
	case other && s.keyStands(was):
		if r.Refused == nil || r.Refused.Code != "ESLURM_DUPLICATE_KEY" {
			s.fail("key %v made job %d, and another request with it was not refused: %+v", k, was.id, *r)
		}
	case r.Refused != nil:
		if known && s.keyStands(was) {
			s.fail("key %v made job %d, and the same request again was refused: %+v", k, was.id, *r.Refused)
		}
	case known && s.keyStands(was) && (r.JobID != was.id || !r.Duplicate):
		s.fail("key %v made job %d and then job %d, told as a duplicate: %t", k, was.id, r.JobID, r.Duplicate)
	case r.Duplicate && (!known || was.id != r.JobID):
		s.fail("key %v gave job %d as a duplicate, it was never used for that", k, r.JobID)
	case !r.Duplicate:
		if r.JobID <= s.newest {
			s.fail("id %d was given, %d had been before", r.JobID, s.newest)
		}
		if m.Key != "" {
			s.users.keys[k] = given{r.JobID, s.view.Time(), string(m.Digest)}
		}
		s.stats.Jobs++
	}
}

// keyStands tells whether a key must still be known: a day long, and while a record of its job is in memory.
func (s *sim) keyStands(g given) bool {
	return s.view.Job(g.id) != nil || s.view.Time()-g.time < state.KeyAge || len(s.view.ArrayTasks(g.id)) > 0
}

// compare walks over the records that an entry has changed.
func (s *sim) compare(before *state.View, purges, requeues bool) {
	next := walk(s.view)
	j := next()
	for old := range before.Jobs() {
		for ; j != nil && j.ID < old.ID; j = next() {
			s.fail("job %d is new below job %d", j.ID, old.ID)
		}
		switch {
		case j == nil || j.ID > old.ID:
			// An entry may end it and then let it go.
			if over := old.State.Ended() && old.Flags&job.Completing == 0; !purges || !over && s.deepest == 1 {
				s.fail("job %d has left: it was %s with %v", old.ID, old.State, old.Flags.Names())
			}
			continue
		case j != old:
			s.changed(old, j, requeues)
		}
		j = next()
	}
	for ; j != nil; j = next() {
		if j.ID <= s.newest {
			s.fail("job %d is new, job %d was before", j.ID, s.newest)
		}
		s.newest = j.ID
	}
}

// walk gives the records of a view one by one; nil at the end.
func walk(v *state.View) func() *state.Job {
	list := slices.Collect(v.Jobs())
	return func() (j *state.Job) {
		if len(list) > 0 {
			j, list = list[0], list[1:]
		}
		return j
	}
}

// changed checks one record's step from one entry to the next.
func (s *sim) changed(old, j *state.Job, requeues bool) {
	switch {
	case j.Run < old.Run || j.Restarts < old.Restarts || j.Revision < old.Revision:
		s.fail("job %d went back: run %d to %d, restarts %d to %d, revision %d to %d", j.ID, old.Run, j.Run, old.Restarts, j.Restarts, old.Revision, j.Revision)
	case j.Submit != old.Submit || j.SubmitSeq != old.SubmitSeq || j.ArrayID != old.ArrayID || j.Spec.UID != old.Spec.UID:
		s.fail("job %d changed in what never changes", j.ID)
	case old.State.Ended() && old.Flags&job.Completing == 0 && !requeues && (j.State != old.State || j.Run != old.Run || j.End != old.End || j.Exit != old.Exit):
		s.fail("job %d had ended %s and is %s now", j.ID, old.State, j.State)
	case j.Run > old.Run+uint32(s.deepest):
		s.fail("job %d went from run %d to %d in one entry", j.ID, old.Run, j.Run)
	case !reachable(phased{old.State, old.Flags}, phased{j.State, j.Flags}, 3*s.deepest):
		s.fail("job %d went from %s %v to %s %v, which no events do", j.ID, old.State, old.Flags.Names(), j.State, j.Flags.Names())
	case j.Run == old.Run && len(old.Allocs) > 0 && len(j.Allocs) > 0 && &old.Allocs[0] != &j.Allocs[0]:
		s.fail("job %d: run %d moved to other nodes", j.ID, j.Run)
	}
}

// phased is where a job stands in the table of its life.
type phased struct {
	state job.State
	flags job.Flags
}

// reachable tells whether a way of at most so many events of the lifecycle table leads from a to b.
func reachable(a, b phased, steps int) bool {
	seen := map[phased]bool{a: true}
	list := []phased{a}
	for range steps {
		if seen[b] {
			return true
		}
		var more []phased
		for _, p := range list {
			for e := job.EventStart; e <= job.EventReservationGone; e++ {
				st, fl, ok := job.Next(p.state, p.flags, e)
				if n := (phased{st, fl}); ok && !seen[n] {
					seen[n] = true
					more = append(more, n)
				}
			}
		}
		list = more
	}
	return seen[b]
}

// holding tells whether the record's run k still holds its batch host.
func holding(j *state.Job, k runKey) bool {
	return j != nil && j.Run == k.run && len(j.Allocs) > 0 && !j.Done[0] && job.PhaseOf(j.State, j.Flags).HoldsNodes()
}

// aliveHeld: what is alive anywhere is held in the state. So nothing of it can be given out again, and
// no other run of its job can be alive.
func (s *sim) aliveHeld() {
	for _, h := range s.hosts {
		for _, p := range h.runs {
			if p.phase == live && !p.forgotten && !holding(s.view.Job(p.key.job), p.key) {
				s.fail("run %d of job %d is alive on %s, and the state has given up its nodes", p.key.run, p.key.job, h.name)
			}
		}
	}
}

// alive checks a run that has just come to life against everything else that is alive: by the hosts'
// own word, whatever the state says.
func (s *sim) alive(on *host, fresh *proc) {
	cpus, mem, devices, numbers := map[string]uint32{}, map[string]int64{}, map[device]runKey{}, map[device]runKey{}
	for _, h := range s.hosts {
		for _, p := range h.runs {
			if p.phase != live {
				continue
			}
			if p != fresh && p.key.job == fresh.key.job {
				s.fail("runs %d and %d of job %d are alive at once, on %s and %s", p.key.run, fresh.key.run, p.key.job, h.name, on.name)
			}
			j := s.view.Job(p.key.job)
			for i := range p.allocs {
				// Processes are on the first node. Another that has lost its part is free, whatever becomes of them.
				if i > 0 && (!holding(j, p.key) || j.Done[i]) {
					continue
				}
				a := &p.allocs[i]
				mem[a.Node] += a.Mem
				if holding(j, p.key) && j.SuspendedAt > 0 {
					continue // its CPUs are others'
				}
				cpus[a.Node] += a.CPUs
				for _, x := range a.CPUIDs {
					s.owns(numbers, device{a.Node, "cpu", uint64(x)}, p)
				}
			}
			for _, d := range p.devices {
				if d.host == h.name {
					s.owns(devices, d, p)
				}
			}
		}
	}
	for _, h := range s.hosts {
		if cpus[h.name] > h.cpus || mem[h.name] > h.mem {
			s.fail("%s is over-allocated: %d of %d CPUs, %d of %d bytes", h.name, cpus[h.name], h.cpus, mem[h.name], h.mem)
		}
	}
}

func (s *sim) owns(owners map[device]runKey, d device, p *proc) {
	if other, twice := owners[d]; twice {
		s.fail("%s %d of %s is used by job %d and job %d", d.name, d.number, d.host, other.job, p.key.job)
	}
	owners[d] = p.key
}

// costly checks what walks over everything.
func (s *sim) costly() {
	if err := s.truth.Store().Check(); err != nil {
		s.fail("the state is not consistent: %v", err)
		return
	}
	for _, h := range s.hosts {
		for _, p := range h.runs {
			if p.phase == live {
				s.alive(h, p)
			}
		}
	}
	s.keysStand()
	s.samePlan()
}

// keysStand: each key that must be known leads to the job that it made.
func (s *sim) keysStand() {
	sorted := slices.SortedFunc(maps.Keys(s.users.keys), func(a, b userKey) int { return cmp.Or(cmp.Compare(a.uid, b.uid), cmp.Compare(a.key, b.key)) })
	for _, k := range sorted {
		g := s.users.keys[k]
		id, _, ok := s.view.Key(k.uid, k.key)
		if s.keyStands(g) && (!ok || id != g.id) {
			s.fail("key %v made job %d; it leads to job %d, %t", k, g.id, id, ok)
			return
		}
		if !s.keyStands(g) && !ok {
			delete(s.users.keys, k)
		}
	}
}

// samePlan: the plan of a state at a time is the same bytes, whenever and wherever it is made.
func (s *sim) samePlan() {
	r := s.replicas[s.dice.below(len(s.replicas))]
	r.apply(s, len(s.log))
	if s.failure != nil {
		return
	}
	if err := r.f.Store().Check(); err != nil {
		s.fail("replica %d is not consistent: %v", r.name, err)
	}
	if s.hash(r.f.View()) != s.hash(s.view) {
		s.fail("replica %d has another state after entry %d", r.name, len(s.log))
		return
	}
	s.sameRecords(r)
	now := s.view.Time() + int64(s.dice.below(100_000))
	first := planBytes(s.view, now, s.policy(s.view))
	for _, v := range []*state.View{s.view, r.f.View()} {
		if again := planBytes(v, now, s.policy(v)); !bytes.Equal(first, again) {
			s.fail("two plans of one state differ: %q, %q", first, again)
		}
	}
	if a, b := s.view.Capacity(), r.f.View().Capacity(); a != b {
		s.fail("replica %d counts capacity %d, not %d", r.name, b, a)
	}
}

// sameRecords: a replica that came by a snapshot has each field of each record, also those that a snapshot,
// and so the hash, may have left out.
func (s *sim) sameRecords(r *replica) {
	v := r.f.View()
	next := walk(v)
	for j := range s.view.Jobs() {
		if other := next(); !same(j, other) {
			s.fail("job %d of replica %d is another one:\n%+v %+v\n%+v %+v", j.ID, r.name, *j, *j.Spec, *other, *other.Spec)
			return
		}
	}
	for n := range s.view.Nodes() {
		if other := v.Node(n.Name); !same(n, other) {
			s.fail("node %s of replica %d is another one:\n%+v\n%+v", n.Name, r.name, *n, *other)
		}
	}
	for p := range s.view.Partitions() {
		if other := v.Partition(p.Name); !same(p, other) {
			s.fail("partition %s of replica %d is another one:\n%+v\n%+v", p.Name, r.name, *p, *other)
		}
	}
}

// same tells whether two records are: an empty list is as good as none.
func same[T any](a, b *T) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	x, y := *a, *b
	if p, ok := any(&x).(*state.Job); ok {
		q := any(&y).(*state.Job)
		if fmt.Sprintf("%+v %v", *p.Spec, p.Waiting) != fmt.Sprintf("%+v %v", *q.Spec, q.Waiting) {
			return false
		}
		p.Spec, p.Waiting, q.Spec, q.Waiting = nil, nil, nil, nil
	}
	return fmt.Sprintf("%+v", x) == fmt.Sprintf("%+v", y)
}

func planBytes(v *state.View, now int64, p sched.Policy) []byte {
	d := sched.Plan(v.Sched(), now, p)
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(planToLog(d))
	if err != nil {
		panic(err)
	}
	return fmt.Append(data, d.Wake)
}

// show is an entry for people.
func show(cmds []*logpb.Command, results []fsm.Result) string {
	var b strings.Builder
	for i, c := range cmds {
		text := strings.Join(strings.Fields(c.String()), " ")
		if len(text) > 600 {
			text = text[:600] + "..."
		}
		fmt.Fprintf(&b, "%s", text)
		if r := results[i]; r.JobID > 0 || r.Taken > 0 {
			fmt.Fprintf(&b, " -> job %d, taken %d", r.JobID, r.Taken)
		} else if r.Refused != nil {
			fmt.Fprintf(&b, " -> %s: %s", r.Refused.Code, r.Refused.Why)
		}
		for _, j := range results[i].Jobs {
			if j.Refused != nil {
				fmt.Fprintf(&b, " -> %s: %s", j.Job, j.Refused.Why)
			}
		}
		b.WriteString("; ")
	}
	return b.String()
}
