// Package whatif says when the waiting jobs of a live cluster would start: as things are, and as they would be under
// another policy or with other nodes. It plans on in virtual time from a snapshot, every run lasting until its limit.
package whatif

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/machine"
	"github.com/tensorgrid/tensorgrid/ctld/gsim/replay"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Bounds of one forecast.
const (
	MaxPlans = 1 << 20
	Horizon  = 366 * 24 * 3600 * 1000 // ms; what would start later is not told
)

// Change is how things would be otherwise.
type Change struct {
	Policy *replay.Policy // nil = as it is
	Down   []string       // nodes that take no new work
	Like   string         // node that Add more are like
	Add    int
}

// Job is what is foreseen for one waiting record. Times are Unix ms, 0 = not foreseen.
type Job struct {
	ID     uint32
	Tasks  int // that wait; 1 for what is no array
	First  int64
	Last   int64 // start of the last task that starts
	Starts int
	Reason job.Reason // why it does not start, at the end
	Detail string
}

// Apply gives the snapshot with the change. The old one stays as it is.
func Apply(s *sched.Snapshot, c *Change) (*sched.Snapshot, error) {
	n := *s
	n.Layout++
	n.Version++
	n.Capacity++
	n.Nodes = slices.Clone(s.Nodes)
	if c.Policy != nil {
		if s.Priority == nil {
			return nil, errors.New("the snapshot is of a cluster below the feature level at which policies rank jobs; another order cannot be tried on it")
		}
		n.Priority = c.Policy.Priority
		n.Classes, n.Promised = unpromised(s)
	}
	index := func(name string) int {
		return slices.IndexFunc(n.Nodes, func(x *place.Node) bool { return x.Name == name })
	}
	for _, name := range c.Down {
		i := index(name)
		if i < 0 {
			return nil, fmt.Errorf("there is no node %s", name)
		}
		down := *n.Nodes[i]
		down.Up = false
		n.Nodes[i] = &down
	}
	if c.Add == 0 {
		return &n, nil
	}
	like := index(c.Like)
	if like < 0 {
		return nil, fmt.Errorf("there is no node %s to be like", c.Like)
	}
	addNodes(&n, like, c.Add)
	return &n, nil
}

// unpromised is the classes without their promises: they were given under another policy.
func unpromised(s *sched.Snapshot) ([]*sched.Class, []sched.Promised) {
	list := slices.Clone(s.Classes)
	for i, c := range list {
		plain := *c
		plain.Version++
		plain.Waiting = func(yield func(sched.Waiting) bool) {
			for w := range c.Waiting {
				w.Promise = nil
				if !yield(w) {
					return
				}
			}
		}
		list[i] = &plain
	}
	return list, nil
}

// addNodes adds empty copies of a node to the cluster and to the partitions that have it.
func addNodes(s *sched.Snapshot, like, count int) {
	s.Partitions = slices.Clone(s.Partitions)
	first := len(s.Nodes)
	for k := range count {
		n := *s.Nodes[like]
		n.Name = fmt.Sprintf("%s+%d", n.Name, k+1)
		n.Up, n.Busy, n.Excl, n.Owner, n.Users, n.Runs = true, false, false, 0, nil, 0
		n.FreeCPUs, n.FreeMem, n.CPUUsed = n.CPUs, n.Mem, make([]bool, len(n.CPUUsed))
		n.Gres = slices.Clone(n.Gres)
		for g := range n.Gres {
			n.Gres[g].Taken = 0
			if n.Gres[g].Used != nil {
				n.Gres[g].Used = make([]bool, len(n.Gres[g].Used))
			}
		}
		s.Nodes = append(s.Nodes, &n)
	}
	for i, p := range s.Partitions {
		if !slices.Contains(p.Nodes, like) {
			continue
		}
		more := *p
		more.Nodes = slices.Clone(p.Nodes)
		for k := range count {
			more.Nodes = append(more.Nodes, first+k)
		}
		s.Partitions[i] = &more
	}
	s.Cluster.Nodes += uint32(count)
	s.Cluster.CPUs += uint32(count) * s.Nodes[like].CPUs
}

// forecast is one look ahead.
type forecast struct {
	s       *sched.Snapshot
	machine *machine.Machine
	pol     sched.Policy
	planner replay.Planner
	now     int64
	jobs    map[uint32]*Job
	waiting map[string][]sched.Waiting
	wake    int64
	use     *use
}

// Forecast plans on from s at now until nothing more can start, or until the horizon. Nothing arrives, and nobody is
// preempted; what waits for a hold or another job's end goes on waiting. The jobs come by id.
func Forecast(s *sched.Snapshot, now int64, pol sched.Policy, p replay.Planner) ([]Job, error) {
	copied := *s
	f := &forecast{s: &copied, machine: machine.New(s.Nodes), pol: pol, planner: p, now: now, jobs: map[uint32]*Job{}, waiting: map[string][]sched.Waiting{}, use: newUse(s)}
	f.pol.Preempt = sched.Preemption{}
	f.pol.MaxStarts, f.pol.Work, f.pol.PartWork = 1<<20, 0, 0
	if f.s.Use != nil {
		f.s.Use = f.use
	}
	for _, c := range s.Classes {
		f.waiting[c.Key] = slices.Collect(c.Waiting)
		for _, w := range f.waiting[c.Key] {
			j := &Job{ID: w.JobID, Tasks: 1, Reason: w.Blocked}
			if w.Tasks != nil {
				j.Tasks = w.Tasks.Len()
			}
			f.jobs[w.JobID] = j
		}
	}
	for range MaxPlans {
		if err := f.plan(); err != nil {
			return nil, err
		}
		if !f.advance() || f.now > now+Horizon {
			return f.list(), nil
		}
	}
	return nil, fmt.Errorf("%d plans, and still not at the end", MaxPlans)
}

func (f *forecast) list() []Job {
	var list []Job
	for _, j := range f.jobs {
		list = append(list, *j)
	}
	slices.SortFunc(list, func(a, b Job) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// plan asks the planner and does what it says.
func (f *forecast) plan() error {
	f.s.Version++
	f.s.Nodes = f.machine.Nodes
	d := f.planner.Plan(f.s, f.now, f.pol)
	for i := range d.Starts {
		if err := f.start(&d.Starts[i]); err != nil {
			return fmt.Errorf("job %d: %w", d.Starts[i].JobID, err)
		}
	}
	for _, c := range d.Promises {
		if err := f.edit(c.JobID, func(w *sched.Waiting) bool { w.Promise = c.Promise; return true }); err != nil {
			return err
		}
	}
	for _, r := range d.Reasons {
		if j := f.jobs[r.JobID]; j != nil && j.Starts < j.Tasks {
			j.Reason, j.Detail = r.Reason, r.Detail
		}
	}
	f.wake = d.Wake
	f.reclaim(d)
	f.promised()
	return nil
}

// reclaim tells the first waiting job of each class why it waits.
func (f *forecast) reclaim(d *sched.Decision) {
	for _, r := range d.Classes {
		if list := f.waiting[r.Class]; len(list) > 0 {
			j := f.jobs[list[0].JobID]
			j.Reason, j.Detail = r.Reason, r.Detail
		}
	}
}

// promised lists who holds a promise, as the planner wants it.
func (f *forecast) promised() {
	f.s.Promised = nil
	for _, c := range f.s.Classes {
		for _, w := range f.waiting[c.Key] {
			if w.Promise != nil {
				f.s.Promised = append(f.s.Promised, sched.Promised{Class: c.Key, Waiting: w})
			}
		}
	}
	slices.SortFunc(f.s.Promised, func(a, b sched.Promised) int { return cmp.Compare(a.JobID, b.JobID) })
}

// find gives the place of a waiting record.
func (f *forecast) find(id uint32) (class, at int, err error) {
	for k, c := range f.s.Classes {
		if i := slices.IndexFunc(f.waiting[c.Key], func(w sched.Waiting) bool { return w.JobID == id }); i >= 0 {
			return k, i, nil
		}
	}
	return 0, 0, fmt.Errorf("job %d does not wait", id)
}

// edit changes a waiting record, or takes it out of the queue where keep says no.
func (f *forecast) edit(id uint32, keep func(*sched.Waiting) bool) error {
	k, i, err := f.find(id)
	if err != nil {
		return err
	}
	c := *f.s.Classes[k]
	list := slices.Clone(f.waiting[c.Key])
	if !keep(&list[i]) {
		list = slices.Delete(list, i, i+1)
	}
	f.waiting[c.Key] = list
	f.s.Classes = slices.Clone(f.s.Classes)
	if len(list) == 0 {
		f.s.Classes = slices.Delete(f.s.Classes, k, k+1)
		return nil
	}
	c.Version++
	c.Count, c.Waiting = len(list), slices.Values(list)
	f.s.Classes[k] = &c
	return nil
}

// runIDs of what starts in a forecast are above those of jobs: a task has no id of its own yet.
const runIDs = 1 << 31

// start takes the planner at its word.
func (f *forecast) start(s *sched.Start) error {
	k, at, err := f.find(s.JobID)
	if err != nil {
		return err
	}
	c, was := f.s.Classes[k], f.waiting[f.s.Classes[k].Key][at]
	j := f.jobs[s.JobID]
	if j.Starts == 0 {
		j.First = f.now
	}
	j.Starts, j.Last = j.Starts+1, f.now
	if j.Starts == j.Tasks {
		j.Reason, j.Detail = "", ""
	}
	run := &sched.Running{JobID: s.JobID, Run: s.Run, Partition: s.Partition, Start: f.now, Allocs: s.Nodes, UID: c.UID, User: c.User,
		Account: c.Account, QOS: c.QOS, Exclusive: c.Spec.Exclusive, Het: was.Het}
	if s.Task >= 0 {
		run.JobID = runIDs + uint32(len(f.s.Running))
		for f.running(run.JobID) >= 0 {
			run.JobID++
		}
	}
	if c.Extra != nil {
		run.Licenses = c.Extra.Licenses
	}
	if s.TimeLimit > 0 {
		run.End = f.now + s.TimeLimit
	}
	for i := range s.Nodes {
		if err := f.machine.Take(&s.Nodes[i]); err != nil {
			return err
		}
	}
	f.use.start(f.s, run)
	i, _ := slices.BinarySearchFunc(f.s.Running, run.JobID, byID)
	f.s.Running = slices.Insert(slices.Clone(f.s.Running), i, run)
	return f.edit(s.JobID, func(w *sched.Waiting) bool {
		if s.Task < 0 || w.Tasks == nil {
			return false
		}
		w.Tasks = w.Tasks.Without(uint32(s.Task))
		w.Promise = nil
		if w.Limit > 0 {
			w.Limit--
		}
		return w.Tasks.Len() > 0
	})
}

func byID(r *sched.Running, id uint32) int { return cmp.Compare(r.JobID, id) }

func (f *forecast) running(id uint32) int {
	i, found := slices.BinarySearchFunc(f.s.Running, id, byID)
	if !found {
		return -1
	}
	return i
}

// advance goes on to the next end of a run, or to when the planner wants to be asked. It is false when nothing comes.
func (f *forecast) advance() bool {
	if len(f.s.Classes) == 0 {
		return false
	}
	next := int64(0)
	for _, r := range f.s.Running {
		if end := max(r.End, f.now+1); r.End > 0 && (next == 0 || end < next) {
			next = end
		}
	}
	if f.wake > f.now && (next == 0 || f.wake < next) {
		f.now = f.wake
		return true
	}
	if next == 0 {
		return false
	}
	f.now = next
	f.s.Capacity++
	var left []*sched.Running
	for _, r := range f.s.Running {
		if r.End == 0 || r.End > f.now {
			left = append(left, r)
			continue
		}
		for i := range r.Allocs {
			_ = f.machine.Give(&r.Allocs[i]) // what a node that is gone held does not come back
		}
		f.use.end(f.s, r)
	}
	f.s.Running = left
	return true
}
