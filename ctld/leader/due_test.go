package leader

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// raise brings the state to the scheduler's level.
func (b *bench) raise() {
	b.Helper()
	b.apply(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: state.FeatureSched}}})
	synctest.Wait()
}

func (b *bench) plan(d *logpb.Plan) {
	b.Helper()
	b.apply(&logpb.Command{Of: &logpb.Command_Plan{Plan: d}})
	synctest.Wait()
}

func isTick(c *logpb.Command) bool { return c.GetUsageTick() != nil }

// Usage is counted every PriorityCalcPeriod, and at the beginning of a term when that is due.
func TestUsageTicks(t *testing.T) {
	inBench(t, func(b *bench) {
		b.cfg.PriorityCalcPeriod = 10 * time.Minute.Milliseconds()
		_, r := b.lead("c1")
		b.raise()
		b.apply(&logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: SetConfig(b.cfg)}})
		time.Sleep(time.Hour + time.Second)
		if n := b.log.count(isTick); n != 6 {
			t.Errorf("%d ticks in an hour, want 6", n)
		}
		r.lose()
		time.Sleep(time.Hour)
		before := b.log.count(isTick)
		b.lead("c2")
		time.Sleep(time.Second)
		if n := b.log.count(isTick) - before; n != 1 {
			t.Errorf("%d ticks at the beginning of a term, want 1", n)
		}
	})
}

// A deadline ends a job at its moment.
func TestDeadline(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		b.raise()
		b.connect(l, "n1").beat()
		b.connect(l, "n2").beat()
		at := time.Now().Add(10 * time.Minute)
		spec := &job.Spec{NTasks: 1, TimeLimit: time.Minute.Milliseconds(), Hold: true}
		spec.Rare = []job.Option{{Name: job.OptDeadline, Value: fmt.Sprint(at.UnixMilli())}}
		ids := b.submit(spec)
		time.Sleep(10*time.Minute - time.Second)
		b.want(ids[0], job.Pending, 0)
		time.Sleep(1100 * time.Millisecond)
		b.want(ids[0], job.Deadline, 0)
	})
}

// A run that makes room gets CONT and TERM at once, and is ended after its grace.
func TestGrace(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		b.raise()
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{NTasks: 1, NodeList: "n1"})
		a.started(a.launches())
		b.plan(&logpb.Plan{Evicts: []*logpb.Evict{fsm.EvictToLog(&sched.Evict{JobID: ids[0], How: sched.EvictCancel, Grace: 60_000})}})
		var signals []int32
		for _, k := range a.kills() {
			signals = append(signals, k.Signal)
			a.killResult(k.Key, true)
		}
		if fmt.Sprint(signals) != "[18 15]" {
			t.Errorf("signals %v, want CONT and TERM", signals)
		}
		time.Sleep(59 * time.Second)
		if k := a.kills(); len(k) != 0 {
			t.Errorf("ended before its grace was over: %v", k)
		}
		time.Sleep(2 * time.Second)
		k := a.kills()
		if len(k) != 1 || k[0].How != nodepb.Kill_TERMINATE || k[0].Why != nodepb.Kill_PREEMPT {
			t.Errorf("after the grace: %v", k)
		}
	})
}

func (a *agent) suspends() (list []string) {
	for _, m := range a.take() {
		for _, l := range m.GetLimits().GetLimits() {
			list = append(list, fmt.Sprint("limit ", l.TimeLimitMs))
		}
		for _, s := range m.GetSuspend().GetSuspends() {
			list = append(list, fmt.Sprint(s.Key.JobId, " ", s.On))
		}
	}
	return list
}

// The agent hears who is to stand still and who goes on, the new limit first; in a new session again.
func TestSuspend(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		b.raise()
		a := b.connect(l, "n1")
		a.beat()
		ids := b.submit(&job.Spec{NTasks: 1, NodeList: "n1", TimeLimit: 60_000})
		a.started(a.launches())
		control := func(op state.Op) {
			b.apply(&logpb.Command{Of: &logpb.Command_Control{Control: &logpb.Control{Op: uint32(op),
				Jobs: []*logpb.JobRef{{JobId: ids[0]}}, Caller: &logpb.Caller{User: "root", Operator: true}}}})
		}
		say := func(what, want string) {
			t.Helper()
			if got := strings.Join(a.suspends(), ", "); got != want {
				t.Errorf("%s: the agent hears %q, want %q", what, got, want)
			}
		}
		say("before", "")
		control(state.OpSuspend)
		say("suspended", "1 true")
		time.Sleep(10 * time.Second)
		say("nothing new", "")
		a.cancel()
		synctest.Wait()
		a = b.connect(l, "n1", batch(ids[0], 0))
		a.beat()
		say("in a new session", "limit 60000, 1 true")
		control(state.OpResume)
		say("resumed", "limit 70000, 1 false")
		a.cancel()
		synctest.Wait()
		a = b.connect(l, "n1", batch(ids[0], 0))
		say("and in the next", "limit 70000, 1 false")
	})
}

// Only the sessions that a change concerns are woken.
func TestConcerns(t *testing.T) {
	inBench(t, func(b *bench) {
		b.lead("c1")
		var c concerns
		look := func(what string, all bool, want string) {
			t.Helper()
			gotAll, names := c.next(b.log.store.View())
			var list []string
			for _, n := range []string{"n1", "n2"} {
				if names[n] {
					list = append(list, n)
				}
			}
			if got := strings.Join(list, " "); gotAll != all || got != want {
				t.Errorf("%s: all %v, %q; want %v, %q", what, gotAll, got, all, want)
			}
		}
		look("first", true, "n1 n2")
		look("nothing", false, "")
		a := b.connect(b.first, "n1")
		look("registered", false, "n1")
		ids := b.submit(&job.Spec{NTasks: 1, NodeList: "n1"})
		synctest.Wait()
		look("started", false, "n1")
		b.submit(&job.Spec{Hold: true})
		look("a job that waits", false, "")
		a.started(a.launches())
		look("confirmed", false, "n1")
		b.apply(&logpb.Command{Of: &logpb.Command_Cancel{Cancel: &logpb.Cancel{Jobs: []*logpb.JobRef{{JobId: ids[0]}}, Signal: 10,
			Caller: &logpb.Caller{User: "root", Operator: true}}}})
		look("signalled", false, "n1")
		b.cfg.KillWait = time.Minute
		b.apply(&logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: SetConfig(b.cfg)}})
		gotAll, _ := c.next(b.log.store.View())
		if !gotAll {
			t.Error("a new configuration concerns all")
		}
	})
}

// What starts together stays in one command, whatever comes before; what is too large for one is held, all of it.
func TestGroupsStayTogether(t *testing.T) {
	start := func(id, group uint32, nodes int) sched.Start {
		s := sched.Start{JobID: id, Task: -1, Partition: "main", Group: group}
		for n := range nodes {
			a := job.NodeAlloc{Node: fmt.Sprint("node", n), CPUs: 64}
			for c := range uint32(64) {
				a.CPUIDs = append(a.CPUIDs, c)
			}
			s.Nodes = append(s.Nodes, a)
		}
		return s
	}
	d := &sched.Decision{}
	for id := range uint32(300) {
		d.Starts = append(d.Starts, start(3*id+1, 0, 7), start(3*id+2, id+1, 50), start(3*id+3, id+1, 50))
	}
	if hold := oversize(d); len(hold) != 0 || len(d.Starts) != 900 {
		t.Fatalf("%d commands hold jobs that are not too large", len(hold))
	}
	cmds := planCommands(d)
	if len(cmds) < 2 {
		t.Fatal("one command")
	}
	seen := map[uint32]int{}
	for i, c := range cmds {
		for _, s := range c.GetPlan().GetStarts() {
			if at, ok := seen[s.Group]; ok && s.Group != 0 && at != i {
				t.Errorf("group %d is in commands %d and %d", s.Group, at, i)
			}
			seen[s.Group] = i
		}
	}
	d = &sched.Decision{Starts: []sched.Start{start(1, 0, 1), start(2, 1, 9000), start(3, 1, 9000), start(4, 2, 1)}}
	if n := sizeOf(d.Starts[1:3]); n <= replica.MaxCommand {
		t.Fatalf("the group takes %d bytes only", n)
	}
	hold := oversize(d)
	if len(hold) != 4 || len(d.Starts) != 2 || d.Starts[1].JobID != 4 || hold[2].GetControl().GetJobs()[0].JobId != 3 {
		t.Errorf("%d commands, starts %v", len(hold), d.Starts)
	}
}
