package sched

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched/priority"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// The terms that are shown are what the plan ranks by: of two jobs for the only place the one of higher priority gets it.
func TestTerms(t *testing.T) {
	s := cluster(1, 4, 0)
	s.Priority = &priority.Params{Type: priority.Multifactor, Age: 1000, JobSize: 100, MaxAge: 100_000}
	s.Cluster = priority.Cluster{Nodes: 1, CPUs: 4}
	s.class("a", job.Spec{NTasks: 4}, job.Extra{}, 60, 1)
	s.class("b", job.Spec{NTasks: 4, Nice: -200}, job.Extra{}, 60, 2)
	terms := func(c *Class) priority.Terms {
		for w := range c.Waiting {
			w.Accrue = 1
			return s.Terms(c, &w, s.Partitions[0], 50_001)
		}
		panic("nobody waits")
	}
	a, b := terms(s.Classes[0]), terms(s.Classes[1])
	if a.Age != 500 || b.Priority != a.Priority+200 {
		t.Errorf("%+v\n%+v", a, b)
	}
	if d := Plan(s, 50_001, Policy{}); len(d.Starts) != 1 || d.Starts[0].JobID != 2 {
		t.Errorf("starts %s", show(d))
	}
	s.Classes[0].Extra = nil
	if again := terms(s.Classes[0]); again.Priority != a.Priority {
		t.Errorf("without options read before: %+v", again)
	}
}

// A bid counts by how far it is above the posted price of the configuration, and not at all where none is posted.
func TestBidAbovePostedPrice(t *testing.T) {
	s := cluster(1, 4, 0)
	for price, want := range map[string]float64{"": 0, "posted_price=1000000": 500, "posted_price=4000000": 0} {
		p, err := priority.Parse(priority.Config{Age: 1000, Bid: 1000, SchedulerParameters: []string{price}})
		if err != nil {
			t.Fatal(err)
		}
		s.Priority, s.Cluster = p, priority.Cluster{Nodes: 1, CPUs: 4}
		got := s.Terms(&Class{Spec: &job.Spec{NTasks: 1}, Extra: &job.Extra{Bid: 4_000_000}}, &Waiting{}, s.Partitions[0], 0).Bid
		if got != want {
			t.Errorf("%q: the bid counts %v, want %v", price, got, want)
		}
	}
	if _, err := priority.Parse(priority.Config{SchedulerParameters: []string{"posted_price=0"}}); err == nil {
		t.Error("posted_price=0 was taken")
	}
}
