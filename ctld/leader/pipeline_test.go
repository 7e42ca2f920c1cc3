package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// orderedSlowly is a log that keeps the order of proposals and takes long to apply each. It notes how many were on their way at
// once, and which starts were proposed.
type orderedSlowly struct {
	*replicaOf
	takes time.Duration

	mu     sync.Mutex
	last   chan struct{} // closed when the last one begun is applied
	now    int
	most   int
	starts map[string]int
	fail   int // so many of the next proposals are not applied, and nothing is known of them
}

func newOrderedSlowly(r *replicaOf, takes time.Duration) *orderedSlowly {
	first := make(chan struct{})
	close(first)
	return &orderedSlowly{replicaOf: r, takes: takes, last: first, starts: map[string]int{}}
}

func (s *orderedSlowly) Begin(ctx context.Context, cmds ...*logpb.Command) func() ([]fsm.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, mine := s.last, make(chan struct{})
	s.last = mine
	s.now++
	s.most = max(s.most, s.now)
	lost := s.fail > 0
	if lost {
		s.fail--
	}
	for _, c := range cmds {
		for _, x := range c.GetPlan().GetStarts() {
			s.starts[fmt.Sprint(x.JobId, " ", x.Run, " ", x.ArrayTask)]++
		}
	}
	return func() ([]fsm.Result, error) {
		defer close(mine)
		defer func() { s.mu.Lock(); s.now--; s.mu.Unlock() }()
		time.Sleep(s.takes)
		<-before
		if lost {
			return nil, replica.ErrUnknown
		}
		return s.replicaOf.Propose(ctx, cmds...)
	}
}

// leadSlowly starts a leader over a slow log.
func (b *bench) leadSlowly(takes time.Duration) (*Leader, *orderedSlowly) {
	var slow *orderedSlowly
	b.deps = func(d *Deps) {
		slow = newOrderedSlowly(d.Log.(*replicaOf), takes)
		d.Log = slow
	}
	l, _ := b.lead("c1")
	return l, slow
}

func (s *orderedSlowly) twice() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for start, n := range s.starts {
		if n > 1 {
			list = append(list, start)
		}
	}
	return list
}

// Plans do not wait for the log, as many as maxFlights of them, and start nothing twice.
func TestPlansFollowEachOther(t *testing.T) {
	inBench(t, func(b *bench) {
		_, slow := b.leadSlowly(time.Second)
		b.connectBoth()
		var ids []uint32
		for range 8 { // one CPU each: all of them fit
			ids = append(ids, b.submit(&job.Spec{NTasks: 1})...)
			time.Sleep(150 * time.Millisecond)
		}
		ids = append(ids, b.submit(&job.Spec{Array: "0-3"})...)
		time.Sleep(5 * time.Second)
		for _, id := range ids[:8] {
			b.want(id, job.Running, job.Configuring)
		}
		slow.mu.Lock()
		most := slow.most
		slow.mu.Unlock()
		if most < 2 || most > maxFlights {
			t.Errorf("%d proposals at once, want 2 to %d", most, maxFlights)
		}
		if list := slow.twice(); len(list) > 0 {
			t.Errorf("proposed twice: %v", list)
		}
	})
}

// connectBoth connects both nodes' agents, which answer nothing.
func (b *bench) connectBoth() {
	b.connect(b.first, "n1").beat()
	b.connect(b.first, "n2").beat()
}

// When it is not known what became of a proposal, those on their way land first; then everything is planned afresh.
func TestLostPlanIsPlannedAfresh(t *testing.T) {
	inBench(t, func(b *bench) {
		_, slow := b.leadSlowly(200 * time.Millisecond)
		b.connectBoth()
		slow.mu.Lock()
		slow.fail = 2
		slow.mu.Unlock()
		ids := b.submit(&job.Spec{NTasks: 1}, &job.Spec{NTasks: 1})
		time.Sleep(50 * time.Millisecond)
		ids = append(ids, b.submit(&job.Spec{NTasks: 1})...)
		time.Sleep(10 * time.Second)
		for _, id := range ids {
			b.want(id, job.Running, job.Configuring)
		}
	})
}

// A plan on its way that is not taken (its node went meanwhile) is not planned again before that is known.
func TestStalePlanLandsFirst(t *testing.T) {
	inBench(t, func(b *bench) {
		_, slow := b.leadSlowly(time.Second)
		b.connectBoth()
		ids := b.submit(&job.Spec{NTasks: 4})
		time.Sleep(100 * time.Millisecond) // it is on its way
		for _, n := range []string{"n1", "n2"} {
			b.apply(&logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{
				Nodes: []string{n}, State: "DRAIN", Reason: "x", Caller: &logpb.Caller{User: "root", Operator: true}}}})
		}
		b.apply(&logpb.Command{Of: &logpb.Command_NodeUpdate{NodeUpdate: &logpb.NodeUpdate{
			Nodes: []string{"n2"}, State: "RESUME", Caller: &logpb.Caller{User: "root", Operator: true}}}})
		time.Sleep(500 * time.Millisecond)
		slow.mu.Lock()
		early := slow.starts[fmt.Sprint(ids[0], " 0 -1")]
		slow.mu.Unlock()
		if early != 1 {
			t.Errorf("proposed %d times while the first was on its way", early)
		}
		time.Sleep(10 * time.Second)
		b.want(ids[0], job.Running, job.Configuring)
	})
}

// The pipeline has a bound, and answers every offer.
func TestFlightsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newOrderedSlowly(newMemLog().replica("c1"), time.Second)
		slow.fail = maxFlights
		q := newPipeline(slow)
		var said []*offer
		for range maxFlights {
			if q.full() {
				t.Fatal("full too early")
			}
			o := &offer{done: make(chan error, 1)}
			said = append(said, o)
			q.send(t.Context(), &flight{said: []*offer{o}, before: slow.View()}, []*logpb.Command{reportedToLog("n1", &nodepb.Report{})})
		}
		if !q.full() {
			t.Error("not full at the limit")
		}
		for _, o := range said {
			if err := <-o.done; !errors.Is(err, replica.ErrUnknown) {
				t.Errorf("offer was answered %v", err)
			}
		}
		q.drain = true
		for i := range maxFlights {
			if last := q.land(<-q.landed); last != (i == maxFlights-1) || q.drain == last {
				t.Errorf("after %d: last %v, drain %v", i+1, last, q.drain)
			}
		}
	})
}
