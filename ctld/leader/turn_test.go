package leader

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// slowLog takes proposals at once and applies them later, in their order, also when their proposers have
// gone: the pipe between a session and the log.
type slowLog struct {
	*replicaOf
	mu      sync.Mutex
	waiting []func()
	slow    bool
	still   bool // what a stopped leader sees: nothing of what others put into the log
	old     state.Viewer
}

func (s *slowLog) Propose(ctx context.Context, cmds ...*logpb.Command) ([]fsm.Result, error) {
	s.mu.Lock()
	if !s.slow {
		s.mu.Unlock()
		return s.replicaOf.Propose(ctx, cmds...)
	}
	type outcome struct {
		results []fsm.Result
		err     error
	}
	done := make(chan outcome, 1)
	s.waiting = append(s.waiting, func() {
		results, err := s.replicaOf.Propose(context.Background(), cmds...)
		done <- outcome{results, err}
	})
	s.mu.Unlock()
	select {
	case o := <-done:
		return o.results, o.err
	case <-ctx.Done():
		return nil, replica.ErrUnknown
	}
}

// hold makes proposals wait; flow lets those that wait into the log, and what comes from then on at once.
func (s *slowLog) hold() {
	s.mu.Lock()
	s.slow = true
	s.mu.Unlock()
}

func (s *slowLog) flow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.waiting {
		f()
	}
	s.waiting, s.slow = nil, false
}

func (s *slowLog) View() state.Viewer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.still {
		return s.old
	}
	return s.replicaOf.View()
}

func (s *slowLog) Changed(index uint64) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.still {
		return nil
	}
	return s.replicaOf.Changed(index)
}

// Leader is what the replica believes itself.
func (s *slowLog) Leader() (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.still {
		return s.name, true
	}
	return s.replicaOf.Leader()
}

// Read needs the others.
func (s *slowLog) Read(ctx context.Context) (state.Viewer, error) { return s.replicaOf.Read(ctx) }

// stop makes the replica see and believe what it does now.
func (s *slowLog) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.still, s.old = true, s.replicaOf.View()
}

// slowly starts a controller that leads, over a slowLog.
func (b *bench) slowly(name string) (*Leader, *slowLog) {
	var log *slowLog
	b.deps = func(d *Deps) {
		log = &slowLog{replicaOf: d.Log.(*replicaOf)}
		d.Log = log
	}
	defer func() { b.deps = nil }()
	l, r := b.leader(name)
	r.win(b.ctx)
	synctest.Wait()
	return l, log
}

func (a *agent) refuse(k *nodepb.StepKey) {
	a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Launched{Launched: &nodepb.LaunchResults{Results: []*nodepb.LaunchResult{
		{Key: k, Error: "no room", Cause: nodepb.LaunchResult_NODE}}}}})
	synctest.Wait()
}

// TestOldRefusalEndsNoNewStart: what an agent said in its last session is in the log, or will never be,
// before the next session sends anything. Otherwise an agent that has forgotten its refusal starts the
// run, and the refusal, which comes after, has the job started once more elsewhere.
func TestOldRefusalEndsNoNewStart(t *testing.T) {
	for name, leave := range map[string]func(b *bench, l *Leader, a *agent) *agent{
		"replaced": func(b *bench, l *Leader, a *agent) *agent { return b.connect(l, "n1") },
		"gone": func(b *bench, l *Leader, a *agent) *agent {
			a.cancel()
			synctest.Wait()
			return b.connect(l, "n1")
		},
	} {
		for _, shut := range []bool{false, true} { // through the plan loop, or by itself
			t.Run(name, func(t *testing.T) {
				inBench(t, func(b *bench) {
					l, log := b.slowly("c1")
					first := b.connect(l, "n1")
					ids := b.submit(&job.Spec{NodeList: "n1", Requeue: 1})
					list := first.launches()
					if len(list) != 1 {
						t.Fatalf("%d launches", len(list))
					}
					l.current().intake.open(!shut)
					log.hold()
					first.refuse(list[0].Key)
					again := leave(b, l, first)
					time.Sleep(time.Second)
					if n := len(again.launches()); n != 0 {
						t.Errorf("%d launches while a refusal is on its way", n)
					}
					log.flow()
					time.Sleep(time.Second)
					for _, x := range again.launches() {
						if x.Key.Run == list[0].Key.Run {
							t.Error("the run is sent that was refused")
						}
					}
					if j := b.job(ids[0]); j.Run != 1 {
						t.Errorf("run %d: the refusal was lost", j.Run)
					}
				})
			})
		}
	}
}

// TestWithdrawnWords: an offer whose session has ended does not stay with the plan loop.
func TestWithdrawnWords(t *testing.T) {
	q := newIntake()
	a, b, c := &offer{}, &offer{}, &offer{}
	for _, o := range []*offer{a, b, c} {
		q.add(o)
	}
	if !q.withdraw(b) || q.withdraw(b) {
		t.Error("not withdrawn once")
	}
	if got, _ := q.take(); len(got) != 2 || got[0] != a || got[1] != c || q.withdraw(a) {
		t.Errorf("taken: %v", got)
	}
}

// TestDeposedForgetsNothing: a controller that stood still and thinks that it leads calls no run unknown
// that its successor has started, and sends none that is over; the agent is told to look elsewhere.
func TestDeposedForgetsNothing(t *testing.T) {
	inBench(t, func(b *bench) {
		old, log := b.slowly("c1")
		b.connect(old, "n1").cancel()
		waiting := b.submit(&job.Spec{NodeList: "n1"})
		synctest.Wait()
		log.stop()
		next, _ := b.lead("c2")
		a := b.connect(next, "n1")
		a.started(a.launches())
		b.want(waiting[0], job.Running, 0)
		ids := b.submit(&job.Spec{NodeList: "n1"})
		a.started(a.launches())
		b.want(ids[0], job.Running, 0)
		a.cancel()
		lured := b.connect(old, "n1", batch(ids[0], 0))
		time.Sleep(time.Minute)
		away := false
		for _, m := range lured.take() {
			if m.GetForget() != nil || m.GetLaunch() != nil || m.GetWelcome() != nil {
				t.Errorf("a deposed leader says %v", m)
			}
			away = away || m.GetNotLeader() != nil
		}
		if !away {
			t.Error("the agent is kept")
		}
	})
}
