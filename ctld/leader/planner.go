package leader

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
)

// maxPlanBytes is how large one Plan command gets: below the log's limit, with room for the frame.
const maxPlanBytes = replica.MaxCommand - 64<<10

// reasonQuiet is how long a verdict's words may lag behind: only its numbers have changed. A new
// reason is proposed at once.
const reasonQuiet = 5 * time.Second

// A plan that starts nothing is followed by a pause of idleShare times its length: while submissions
// pour into a full cluster, looking again at each of them must not take the machine from the log.
const (
	idleShare = 4
	maxIdle   = 100 * time.Millisecond
)

// staleDelay is the pause after a plan of which nothing was taken, unless something changes before.
const staleDelay = time.Second

// takenOf counts the starts that the state has taken.
func takenOf(results []fsm.Result) (n int) {
	for _, r := range results {
		n += r.Taken
	}
	return n
}

// told is a verdict that the state has.
type told struct {
	sched.ClassReason
	at time.Time
}

// planMemory is what the plan loop remembers of its term.
type planMemory struct {
	classes map[string]told
	jobs    map[uint32]sched.Reason
}

// planLoop plans when something has changed that could let a job start, or a begin time has come.
// It waits for one plan to be applied before it makes the next: no start is proposed twice, and
// whatever came meanwhile goes into one plan.
func (l *Leader) planLoop(t *term) {
	memory := &planMemory{classes: map[string]told{}, jobs: map[uint32]sched.Reason{}}
	wake := time.NewTimer(0)
	defer wake.Stop()
	var planned uint64
	fresh, next := true, int64(0)
	for t.ctx.Err() == nil {
		view := l.Log.View()
		changed := l.Log.Changed(view.Index())
		snapshot := view.Sched()
		now := max(l.Now().UnixMilli(), view.Time())
		if fresh || snapshot.Capacity != planned || next > 0 && now >= next {
			began := l.Now()
			d := sched.Plan(snapshot, now, l.Policy)
			if took := l.Now().Sub(began); len(d.Starts) == 0 && took > 0 {
				l.pause(t.ctx, min(took*idleShare, maxIdle))
			}
			planned, next, fresh = snapshot.Capacity, d.Wake, false
			cmds, later := memory.commands(d, l.Now())
			if later && (next == 0 || next > now+reasonQuiet.Milliseconds()) {
				next = now + reasonQuiet.Milliseconds()
			}
			if len(cmds) > 0 {
				results, err := l.propose(t.ctx, cmds...)
				if err != nil {
					memory.forget()
					fresh = true
					l.pause(t.ctx, retryDelay)
					continue
				}
				// More may fit where a plan was full, or where a part of it was stale.
				taken := takenOf(results)
				fresh = taken > 0
				if taken < len(d.Starts) {
					l.Logger.Info("starts not taken", "planned", len(d.Starts), "taken", taken, "base", d.Base)
					if !fresh {
						next = now + staleDelay.Milliseconds()
					}
				}
				continue
			}
		}
		if next > 0 {
			wake.Reset(time.Duration(max(next-now, 1)) * time.Millisecond)
		} else {
			wake.Reset(time.Hour)
		}
		select {
		case <-t.ctx.Done():
		case <-changed:
		case <-wake.C:
		}
	}
}

// commands turns a decision into Plan commands: all starts, and the reasons that have changed.
// later tells that verdicts wait whose numbers alone have changed.
func (m *planMemory) commands(d *sched.Decision, now time.Time) (cmds []*logpb.Command, later bool) {
	plan := &logpb.Plan{Base: d.Base}
	size := 0
	flush := func() {
		if len(plan.Starts)+len(plan.Reasons)+len(plan.Classes) > 0 {
			cmds = append(cmds, &logpb.Command{Of: &logpb.Command_Plan{Plan: plan}})
			plan, size = &logpb.Plan{Base: d.Base}, 0
		}
	}
	grow := func(part proto.Message) {
		n := proto.Size(part) + 8
		if size += n; size > maxPlanBytes {
			flush()
			size = n
		}
	}
	for i := range d.Starts {
		start := startToLog(&d.Starts[i])
		grow(start)
		plan.Starts = append(plan.Starts, start)
	}
	jobs := make(map[uint32]sched.Reason, len(d.Reasons))
	for _, r := range d.Reasons {
		if jobs[r.JobID] = r; m.jobs[r.JobID] == r {
			continue
		}
		change := &logpb.ReasonChange{JobId: r.JobID, Reason: string(r.Reason), Detail: r.Detail, StartMs: r.Start}
		grow(change)
		plan.Reasons = append(plan.Reasons, change)
	}
	m.jobs = jobs
	classes := make(map[string]told, len(d.Classes))
	for _, c := range d.Classes {
		was, known := m.classes[c.Class]
		switch {
		case known && was.ClassReason == c:
			classes[c.Class] = was
			continue
		case known && was.Reason == c.Reason && now.Sub(was.at) < reasonQuiet:
			classes[c.Class], later = was, true
			continue
		}
		classes[c.Class] = told{c, now}
		verdict := &logpb.ClassReason{Class: c.Class, Reason: string(c.Reason), Detail: c.Detail, StartMs: c.Start}
		grow(verdict)
		plan.Classes = append(plan.Classes, verdict)
	}
	m.classes = classes
	flush()
	return cmds, later
}

// forget makes the next plan tell everything again: it is not known what the state has.
func (m *planMemory) forget() {
	m.classes, m.jobs = map[string]told{}, map[uint32]sched.Reason{}
}
