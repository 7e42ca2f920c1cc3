package leader

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// maxPlanBytes is how large one Plan command gets: below the log's limit, with room for the frame. Starts that
// belong together go into one command even where that makes it larger.
const maxPlanBytes = replica.MaxCommand - 64<<10

// reasonQuiet is how long a verdict's words may lag behind: only its numbers have changed. A new
// reason is proposed at once.
const reasonQuiet = 5 * time.Second

// told is a verdict that the state has.
type told struct {
	sched.ClassReason
	at time.Time // instant
}

// planMemory is what the plan loop has told the state in its term.
type planMemory struct {
	classes map[string]told
	jobs    map[uint32]sched.Reason
}

// filter leaves of a decision what the state has not been told. later tells that verdicts wait whose
// numbers alone have changed. The lists of d are not changed, but replaced.
func (m *planMemory) filter(d *sched.Decision, now time.Time) (later bool) {
	jobs, news := make(map[uint32]sched.Reason, len(d.Reasons)), []sched.Reason(nil)
	for _, r := range d.Reasons {
		if jobs[r.JobID] = r; m.jobs[r.JobID] != r {
			news = append(news, r)
		}
	}
	m.jobs, d.Reasons = jobs, news
	classes, changed := make(map[string]told, len(d.Classes)), []sched.ClassReason(nil)
	for _, c := range d.Classes {
		was, known := m.classes[c.Class]
		switch {
		case known && was.ClassReason == c:
			classes[c.Class] = was
		case known && was.Reason == c.Reason && was.Promised == c.Promised && now.Sub(was.at) < reasonQuiet:
			classes[c.Class], later = was, true
		default:
			classes[c.Class] = told{c, now}
			changed = append(changed, c)
		}
	}
	m.classes, d.Classes = classes, changed
	return later
}

// verdicts is what a view must offer to tell which of the planner's words the state still has.
type verdicts interface {
	// Verdict gives the planner's last word on a class, "" when there is none; ok is false when
	// nothing of the class waits.
	Verdict(class string) (r job.Reason, ok bool)
}

// compare forgets what the state has dropped since it was told: the class left and came back, or a
// job was changed.
func (m *planMemory) compare(view state.Viewer) {
	if v, ok := view.(verdicts); ok {
		maps.DeleteFunc(m.classes, func(class string, was told) bool {
			r, ok := v.Verdict(class)
			return ok && r == "" && was.Reason != job.ReasonNone
		})
	}
	maps.DeleteFunc(m.jobs, func(id uint32, was sched.Reason) bool {
		j := view.Job(id)
		return j != nil && j.Reason == "" && was.Reason != job.ReasonNone
	})
}

// forget makes the next plan tell everything again: it is not known what the state has.
func (m *planMemory) forget() {
	m.classes, m.jobs = map[string]told{}, map[uint32]sched.Reason{}
}

// planCommands turns a decision into Plan commands. Evictions come first: what starts may need their room.
func planCommands(d *sched.Decision) (cmds []*logpb.Command) {
	plan, size := &logpb.Plan{Base: d.Base}, 0
	flush := func() {
		if size > 0 {
			cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Plan{Plan: plan}})
			plan, size = &logpb.Plan{Base: d.Base}, 0
		}
	}
	grow := func(n int) {
		if size > 0 && size+n > maxPlanBytes {
			flush()
		}
		size += n
	}
	for i := range d.Evicts {
		evict := fsm.EvictToLog(&d.Evicts[i])
		grow(proto.Size(evict) + partFrame)
		plan.Evicts = append(plan.Evicts, evict)
	}
	for list := d.Starts; len(list) > 0; {
		group := startsTogether(list)
		list = list[len(group):]
		starts, n := startsToLog(group)
		grow(n)
		plan.Starts = append(plan.Starts, starts...)
	}
	for i := range d.Promises {
		promise := fsm.PromiseToLog(&d.Promises[i])
		grow(proto.Size(promise) + partFrame)
		plan.Promises = append(plan.Promises, promise)
	}
	for _, r := range d.Reasons {
		change := &logpb.ReasonChange{JobId: r.JobID, Reason: string(r.Reason), Detail: r.Detail, StartMs: r.Start}
		grow(proto.Size(change) + partFrame)
		plan.Reasons = append(plan.Reasons, change)
	}
	for _, c := range d.Classes {
		verdict := &logpb.ClassReason{Class: c.Class, Reason: string(c.Reason), Detail: c.Detail, StartMs: c.Start, Promised: c.Promised}
		grow(proto.Size(verdict) + partFrame)
		plan.Classes = append(plan.Classes, verdict)
	}
	flush()
	return cmds
}

// partFrame is what one part of a plan takes in its command beside itself, at most.
const partFrame = 8

// startsToLog gives starts as they go into a command, and what they take there.
func startsToLog(list []sched.Start) (starts []*logpb.Start, size int) {
	for i := range list {
		s := fsm.StartToLog(&list[i])
		starts, size = append(starts, s), size+proto.Size(s)+partFrame
	}
	return starts, size
}

// startsTogether gives the first of some starts and those that are taken only with it.
func startsTogether(list []sched.Start) []sched.Start {
	if list[0].Group == 0 {
		return list[:1]
	}
	if n := slices.IndexFunc(list, func(s sched.Start) bool { return s.Group != list[0].Group }); n > 0 {
		return list[:n]
	}
	return list
}
