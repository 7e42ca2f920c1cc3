package sched

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// A question is answered as the plan has it: what the plan starts now starts now, and what holds a promise keeps it or
// gets a sooner start.
func TestProbeAgreesWithPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(1, 15).Draw(t, "steps") {
			for range rapid.IntRange(1, 3).Draw(t, "jobs") {
				w.arrive(t)
			}
			s, pol := w.snapshot(), Policy{Promises: 32}
			d := Plan(s, w.now, pol)
			starts := map[uint32]bool{}
			for i := range d.Starts {
				starts[d.Starts[i].JobID] = true
			}
			promised := map[uint32]int64{}
			for _, p := range d.Promises {
				promised[p.JobID] = p.Promise.Start
			}
			for _, c := range s.Classes {
				for x := range c.Waiting {
					if x.Begin > w.now || x.Tasks != nil {
						continue
					}
					a := Probe(s, w.now, pol, Ask{JobID: x.JobID})
					if now := a.Start == w.now && a.Reason == job.ReasonNone; now != starts[x.JobID] {
						t.Fatalf("job %d starts now: the plan says %v, the answer %+v", x.JobID, starts[x.JobID], a)
					}
					if at, ok := promised[x.JobID]; ok && a.Start != at {
						t.Fatalf("job %d was promised %d, the answer is %+v", x.JobID, at, a)
					}
				}
			}
			w.do(t, d)
			w.pass(int64(rapid.IntRange(0, 3).Draw(t, "time"))*500, func() { w.do(t, Plan(w.snapshot(), w.now, pol)) })
		}
	})
}

// Behind more starts than a round makes, a question looks at a class's jobs one behind the other; it still finds what is
// left, and when more comes back.
func TestProbeBehindManyStarts(t *testing.T) {
	s := cluster(100, 64, 0)
	for c := range 5 {
		list := make([]uint32, 1000)
		for i := range list {
			list[i] = uint32(1 + c*1000 + i)
		}
		s.class("k"+string(rune('a'+c)), job.Spec{NTasks: 1, CPUsPerTask: 1}, job.Extra{}, 10, list...)
	}
	ask := func(cpus uint32) *Answer {
		spec := job.Spec{CPUsPerTask: cpus}
		return Probe(s, 1000, Policy{Promises: 32}, Ask{Class: &Class{Key: "asked", Spec: &spec, Extra: &job.Extra{}, Time: 60000},
			Waiting: Waiting{Submit: 1 << 40, Accrue: 1 << 40, Limit: -1}})
	}
	if a := ask(16); a.Start != 1000 || a.Reason != job.ReasonNone || a.Ahead != 5000 || a.Queue != 5001 {
		t.Errorf("1,400 CPUs are left of 6,400: %+v", a)
	}
	s = cluster(70, 64, 0)
	for c := range 5 {
		list := make([]uint32, 1000)
		for i := range list {
			list[i] = uint32(1 + c*1000 + i)
		}
		s.class("k"+string(rune('a'+c)), job.Spec{NTasks: 1, CPUsPerTask: 1}, job.Extra{}, 10, list...)
	}
	if a := ask(1); a.Start != 1000+2*600000 && a.Start != 1000+600000 || a.Reason == job.ReasonNone {
		t.Errorf("4,480 CPUs are there for 5,001 jobs: %+v", a)
	}
}
