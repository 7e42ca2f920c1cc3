package leader

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// whole is a job that takes all of n1.
func whole() *job.Spec { return &job.Spec{NTasks: 4, NodeList: "n1"} }

// halt makes proposals wait; what it returns lets them go.
func (b *bench) halt() (release func()) {
	gate := make(chan struct{})
	b.log.mu.Lock()
	defer b.log.mu.Unlock()
	b.log.gate = gate
	return func() {
		b.log.mu.Lock()
		b.log.gate = nil
		b.log.mu.Unlock()
		close(gate)
		synctest.Wait()
	}
}

func (b *bench) applied() uint64 {
	b.log.mu.Lock()
	defer b.log.mu.Unlock()
	return b.log.index
}

// sound checks the state, and that n1 gives no more than it has.
func (b *bench) sound() {
	b.Helper()
	if err := b.log.store.Check(); err != nil {
		b.Error(err)
	}
	if n := b.log.store.View().Node("n1"); n.CPUsAlloc > 4 {
		b.Errorf("n1 gives %d CPUs of 4", n.CPUsAlloc)
	}
}

// busy leads with n1 full of one confirmed job, and others behind it.
func busy(b *bench, behind int) (*Leader, *replicaOf, *agent, []uint32, *nodepb.Launch) {
	l, r := b.lead("c1")
	a := b.connect(l, "n1")
	a.beat()
	ids := b.submit(whole())
	for range behind {
		ids = append(ids, b.submit(whole())...)
	}
	list := a.launches()
	if len(list) != 1 {
		b.Fatalf("%d launches, the node has room for one", len(list))
	}
	a.started(list)
	time.Sleep(time.Second) // quiet
	return l, r, a, ids, list[0]
}

// A slot that becomes free and the job that takes it are one entry, the confirmation of the run that
// has ended included.
func TestReportAndPlanAreOneEntry(t *testing.T) {
	inBench(t, func(b *bench) {
		_, _, a, ids, first := busy(b, 3)
		before := b.applied()
		a.report(&nodepb.Report{Key: first.Key})
		if got := b.applied() - before; got != 1 {
			t.Errorf("%d entries, want 1", got)
		}
		b.want(ids[0], job.Completed, 0)
		b.want(ids[1], job.Running, job.Configuring)
		next := a.launches()
		if len(next) != 1 || next[0].Key.JobId != ids[1] {
			t.Fatalf("launches %v", next)
		}
		before = b.applied()
		a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: &nodepb.LaunchResults{Results: []*nodepb.LaunchResult{{Key: next[0].Key, Ok: true}}}}})
		a.report(&nodepb.Report{Key: next[0].Key})
		if got := b.applied() - before; got != 1 {
			t.Errorf("a run that began and ended made %d entries, want 1", got)
		}
		b.want(ids[1], job.Completed, 0)
		if len(a.launches()) != 1 {
			t.Error("the third was not launched")
		}
		b.sound()
	})
}

// The plan was made on a state that did not come: somebody else took the node while it was on its way.
func TestStaleGuessStartsNothingTwice(t *testing.T) {
	inBench(t, func(b *bench) {
		_, _, a, ids, first := busy(b, 2)
		release := b.halt()
		a.report(&nodepb.Report{Key: first.Key})
		b.apply(reportedToLog("n1", &nodepb.Report{Key: first.Key}))
		b.apply(&logpb.Command{Of: &logpb.Command_Plan{Plan: &logpb.Plan{Starts: []*logpb.Start{{JobId: ids[2], ArrayTask: -1, Partition: "main",
			Nodes: []*logpb.NodeAlloc{{Node: "n1", Cpus: 4, Mem: 4 << 30, Tasks: 4}}}}}}})
		b.want(ids[2], job.Running, job.Configuring)
		release()
		b.sound()
		b.want(ids[1], job.Pending, 0)
		list := a.launches()
		if len(list) != 1 || list[0].Key.JobId != ids[2] {
			t.Fatalf("launches %v", list)
		}
		a.started(list)
		a.report(&nodepb.Report{Key: list[0].Key})
		b.want(ids[1], job.Running, job.Configuring)
		if list = a.launches(); len(list) != 1 || list[0].Key.JobId != ids[1] {
			t.Errorf("launches %v", list)
		}
		b.sound()
	})
}

// A job that waits for the end of another is not in the guess; it starts all the same, at once.
func TestGuessThatLeavesOutADependent(t *testing.T) {
	inBench(t, func(b *bench) {
		_, _, a, _, first := busy(b, 0)
		after := whole()
		after.Dependency = "afterok:1"
		ids := b.submit(after)
		time.Sleep(time.Second)
		a.report(&nodepb.Report{Key: first.Key})
		b.want(ids[0], job.Running, job.Configuring)
	})
}

// The leader is lost while report and plan are on their way; what the log holds of them decides.
func TestFailoverAroundOneEntry(t *testing.T) {
	for _, held := range []bool{false, true} {
		inBench(t, func(b *bench) {
			_, r, a, ids, first := busy(b, 2)
			release := b.halt()
			b.log.mu.Lock()
			b.log.lost = held // the entry is taken, its proposer is not told
			b.log.mu.Unlock()
			a.report(&nodepb.Report{Key: first.Key})
			if !held {
				b.log.mu.Lock()
				b.log.leader = ""
				b.log.mu.Unlock()
			}
			release()
			r.lose()
			synctest.Wait()
			b.log.mu.Lock()
			b.log.lost = false
			b.log.mu.Unlock()
			if acks := acked(a); acks != 0 {
				t.Errorf("held %v: %d reports acknowledged by a leader that was not told", held, acks)
			}
			early := a.launches()
			a.cancel()
			l2, _ := b.lead("c2")
			a2 := b.connect(l2, "n1", first.Key) // its report waits
			a2.beat()
			a2.report(&nodepb.Report{Key: first.Key})
			time.Sleep(time.Second)
			b.want(ids[0], job.Completed, 0)
			b.want(ids[1], job.Running, job.Configuring)
			b.want(ids[2], job.Pending, 0)
			for _, x := range append(early, a2.launches()...) {
				if x.Key.JobId != ids[1] || x.Key.Run != 0 {
					t.Errorf("held %v: launch of %v", held, x.Key)
				}
			}
			b.sound()
		})
	}
}

func acked(a *agent) (n int) {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.got {
		n += len(m.GetAcks().GetKeys())
	}
	return n
}

// While plans take long sessions put into the log by themselves what agents say.
func TestSlowPlansHoldNoReportUp(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _, a, ids, first := busy(b, 1)
		l.current().intake.open(false)
		a.report(&nodepb.Report{Key: first.Key})
		b.want(ids[0], job.Completed, 0)
		b.want(ids[1], job.Running, job.Configuring)
		if !l.current().intake.add(&offer{done: make(chan error, 1)}) {
			t.Error("a quick plan did not open the way again")
		}
	})
}

func TestIntakeGivesOneEntrysWorth(t *testing.T) {
	q := newIntake()
	for range 3 {
		q.add(&offer{cmds: make([]*logpb.Command, replica.MaxEntryCommands/2), done: make(chan error, 1)})
	}
	for want := range 3 {
		select {
		case <-q.wake:
		default:
			t.Fatalf("after %d offers nobody is woken", want)
		}
		said, _ := q.take()
		if len(said) != 1 { // two would leave no room for the plan
			t.Fatalf("%d offers taken", len(said))
		}
		settle(said, replica.ErrBusy)
		if err := <-said[0].done; !errors.Is(err, replica.ErrBusy) {
			t.Error(err)
		}
	}
	if said, passed := q.take(); len(said) != 0 || passed {
		t.Error("more than was given")
	}
	if q.pass(); len(q.wake) != 1 {
		t.Error("nobody is woken")
	}
	if _, passed := q.take(); !passed {
		t.Error("what passed by is not told")
	}
}

// A rest after a plan that started nothing is for submissions: what agents say ends it.
func TestRestEndsWhenAgentsSpeak(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _, _, _, first := busy(b, 1)
		p := newPlanner(l, l.current())
		p.rest, p.breath = l.instant().Add(time.Minute), l.instant()
		view := l.Log.View()
		if again, wait := p.round(view, nil); again || wait != time.Minute {
			t.Errorf("a submission: again %v, wait %v", again, wait)
		}
		o := &offer{cmds: []*logpb.Command{reportedToLog("n1", &nodepb.Report{Key: first.Key})}, done: make(chan error, 1)}
		if again, _ := p.round(view, []*offer{o}); !again || <-o.done != nil || !p.rest.IsZero() {
			t.Error("a report waited for the rest to end")
		}
		synctest.Wait()
		if _, pending, running := l.Log.View().Counts(); pending != 0 || running != 1 {
			t.Errorf("%d pending, %d running", pending, running)
		}
	})
}
