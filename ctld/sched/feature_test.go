package sched

import (
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// kindOf adds a class as the scheduler's level makes them: one limit and rank for all.
func (s *Snapshot) class(key string, spec job.Spec, x job.Extra, minutes int64, ids ...uint32) *Class {
	c := &Class{Key: key, Spec: &spec, Extra: &x, Time: minutes * 60000, Count: len(ids), User: "bob", UID: 7}
	c.Waiting = func(yield func(Waiting) bool) {
		for _, id := range ids {
			if !yield(Waiting{JobID: id, Submit: int64(id), Limit: -1}) {
				return
			}
		}
	}
	s.Classes = append(s.Classes, c)
	return c
}

func reservation(name string, start, end int64, users string, nodes ...string) *partitions.Reservation {
	return &partitions.Reservation{Name: name, Start: start, End: end, Nodes: nodes, Users: []string{users}}
}

const hour = 3600000

func TestReservationKeepsOthersOut(t *testing.T) {
	s := cluster(2, 4, 0)
	s.Reservations = []*partitions.Reservation{reservation("maint", hour, 2*hour, "amy", "n1")}
	s.class("a", job.Spec{NTasks: 4}, job.Extra{}, 61, 1)
	s.class("b", job.Spec{NTasks: 4}, job.Extra{}, 60, 2)
	if got := show(Plan(s, 0, Policy{})); got != "1@n2:4/4 2@n1:4/4" {
		t.Errorf("%s: only a job that ends by then may start on n1", got)
	}
	s.Classes[1].Time = 61 * 60000
	d := Plan(s, 0, Policy{})
	if got := show(d); got != "1@n2:4/4" || d.Classes[0].Start != 61*60000 {
		t.Errorf("%s, %+v", got, d.Classes)
	}
}

func TestShortenedForReservation(t *testing.T) {
	s := cluster(1, 4, 0)
	s.Reservations = []*partitions.Reservation{reservation("maint", hour, 2*hour, "amy", "n1")}
	s.class("a", job.Spec{}, job.Extra{}, 120, 1).TimeMin = 10 * 60000
	d := Plan(s, 0, Policy{})
	if len(d.Starts) != 1 || d.Starts[0].TimeLimit != hour-logDelay {
		t.Errorf("%+v: it has to end before the reservation also when the plan takes a moment", d.Starts)
	}
	s.Reservations = []*partitions.Reservation{reservation("mine", 0, hour, "bob", "n1")}
	s.Classes[0].Extra = &job.Extra{Reservations: []string{"mine"}}
	if d = Plan(s, 0, Policy{}); len(d.Starts) != 1 || d.Starts[0].TimeLimit != hour-logDelay {
		t.Errorf("%+v: it has to end with its reservation", d.Starts)
	}
}

func TestJobInReservation(t *testing.T) {
	s := cluster(2, 4, 0)
	s.Reservations = []*partitions.Reservation{reservation("mine", hour, 3*hour, "bob", "n2")}
	s.class("a", job.Spec{}, job.Extra{Reservations: []string{"mine"}}, 60, 1)
	if d := Plan(s, 0, Policy{}); len(d.Starts) != 0 || d.Wake != hour || d.Classes[0].Start != hour {
		t.Errorf("before its time: %s, wake %d, %+v", show(d), d.Wake, d.Classes)
	}
	if got := show(Plan(s, hour, Policy{})); got != "1@n2:1/1" {
		t.Errorf("in its time: %q", got)
	}
	if got := show(Plan(s, 2*hour+1, Policy{})); got != "" {
		t.Errorf("too late to end in it: %q", got)
	}
	s.Classes[0].User = "eve"
	if d := Plan(s, hour, Policy{}); len(d.Starts) != 0 || d.Classes[0].Reason != job.ReasonReservation {
		t.Errorf("not admitted: %+v", d)
	}
}

func TestLicenses(t *testing.T) {
	s := cluster(2, 4, 0)
	s.Licenses = []License{{"matlab", 3}}
	s.run(9, 0, 1, 0, hour)
	s.Running[0].Licenses = []job.License{{Name: "matlab", Count: 1}}
	s.class("a", job.Spec{}, job.Extra{Licenses: []job.License{{Name: "matlab", Count: 2}}}, 60, 1, 2)
	d := Plan(s, 0, Policy{})
	if got := show(d); got != "1@n1:1/1" || d.Classes[0].Reason != job.ReasonLicenses || d.Classes[0].Start != hour {
		t.Errorf("%s, %+v", got, d.Classes)
	}
}

func TestHetStartsTogether(t *testing.T) {
	make := func(cpus uint32) *Snapshot {
		s := cluster(2, 4, 0)
		s.class("a", job.Spec{NTasks: 4}, job.Extra{}, 60, 1)
		s.class("b", job.Spec{NTasks: cpus}, job.Extra{}, 60, 2)
		for i, c := range s.Classes {
			c.Waiting = func(yield func(Waiting) bool) {
				yield(Waiting{JobID: uint32(i + 1), Limit: -1, Het: 1, HetSize: 2})
			}
		}
		return s
	}
	d := Plan(make(4), 0, Policy{})
	if got := show(d); got != "1@n1:4/4 2@n2:4/4" || d.Starts[0].Group != 1 || d.Starts[1].Group != 1 {
		t.Errorf("%s %+v", got, d.Starts)
	}
	s := make(4)
	s.run(9, 1, 1, 0, hour)
	s.class("c", job.Spec{NTasks: 4}, job.Extra{}, 60, 3)
	s.class("d", job.Spec{NTasks: 4}, job.Extra{}, 61, 4)
	d = Plan(s, 0, Policy{})
	if got := show(d); got != "3@n1:4/4" || d.Classes[0].Start != hour || d.Classes[1].Start != hour {
		t.Errorf("%s, %+v", got, d.Classes)
	}
	if got := show(Plan(make(5), 0, Policy{})); got != "" {
		t.Errorf("one component can not run: %q", got)
	}
}

func TestPreemption(t *testing.T) {
	s := cluster(2, 4, 0)
	s.Partitions = append(s.Partitions, &Partition{Name: "top", Up: true, Tier: 5, Nodes: []int{0, 1}, MaxTime: job.Unlimited})
	s.run(8, 0, 4, 0, 9*hour)
	s.run(9, 1, 4, 0, 9*hour)
	s.Running[0].Requeue = true
	s.class("a", job.Spec{Partition: "top", NTasks: 4}, job.Extra{}, 60, 1)
	s.class("b", job.Spec{NTasks: 4}, job.Extra{}, 60, 2)
	pol := Policy{Preempt: Preemption{Type: PreemptPartition, Mode: EvictRequeue}}
	d := Plan(s, 0, pol)
	if len(d.Evicts) != 1 || d.Evicts[0].By != 1 || len(d.Starts) != 0 {
		t.Fatalf("%+v", d)
	}
	v := s.Running[d.Evicts[0].JobID-8]
	v.Evicting, v.By, v.End = true, 1, 5000
	if d = Plan(s, 10, pol); len(d.Evicts) != 0 {
		t.Errorf("victims are on the way, but %+v", d.Evicts)
	}
	if d.Classes[0].Start != 5000 {
		t.Errorf("its start: %+v", d.Classes)
	}
}

func TestWorkBound(t *testing.T) {
	s := cluster(4, 4, 0)
	s.Partitions = append(s.Partitions, &Partition{Name: "q", Up: true, Nodes: []int{3}, MaxTime: job.Unlimited})
	s.Partitions[0].Nodes = []int{0, 1, 2}
	for n := range 3 {
		s.run(uint32(90+n), n, 4, 0, hour)
	}
	for i := range uint32(50) {
		s.class("a"+string(rune('0'+i)), job.Spec{NTasks: 1 + i%3}, job.Extra{}, 60, i+1)
	}
	s.class("z", job.Spec{Partition: "q"}, job.Extra{}, 60, 99)
	d := Plan(s, 0, Policy{PartWork: 10})
	if show(d) != "99@n4:1/1" || d.Wake != deferWake {
		t.Errorf("the other partition: %s, wake %d", show(d), d.Wake)
	}
	deferred := 0
	for _, c := range d.Classes {
		deferred += boolInt(c.Reason == job.ReasonSchedDefer)
	}
	if deferred < 40 {
		t.Errorf("%d classes are left for the next round", deferred)
	}
}

func TestDeadlineIsPromised(t *testing.T) {
	s := cluster(1, 4, 0)
	s.run(9, 0, 4, 0, hour)
	s.class("a", job.Spec{NTasks: 4}, job.Extra{}, 60, 1)
	s.class("b", job.Spec{NTasks: 4}, job.Extra{Deadline: 5 * hour}, 60, 2)
	d := Plan(s, 0, Policy{})
	if len(d.Promises) != 1 || d.Promises[0].JobID != 2 || d.Promises[0].Promise.Start != 2*hour {
		t.Errorf("promises %+v", d.Promises)
	}
}

func TestProbe(t *testing.T) {
	s := cluster(2, 4, 0)
	s.run(8, 0, 4, 0, hour)
	s.run(9, 1, 3, 0, 2*hour)
	s.class("a", job.Spec{NTasks: 4}, job.Extra{}, 60, 1, 2, 3)
	a := Probe(s, 0, Policy{}, Ask{JobID: 3})
	if !a.Found || a.Ahead != 2 || a.Queue != 3 || a.Start != 2*hour || a.Needs != "4 CPUs" || len(a.Nodes) == 0 || a.Never {
		t.Errorf("%+v", a)
	}
	if !strings.Contains(strings.Join(a.Lacks, ";"), "CPUs on 1 node") {
		t.Errorf("lacks %q", a.Lacks)
	}
	spec := job.Spec{NTasks: 1}
	now := Probe(s, 0, Policy{}, Ask{Class: &Class{Key: "test", Spec: &spec, Time: 60000}, Waiting: Waiting{Limit: -1}})
	if now.Start != 0 || now.Reason != job.ReasonNone || len(now.Nodes) != 1 {
		t.Errorf("a job that starts now: %+v", now)
	}
	big := job.Spec{CPUsPerTask: 5}
	if why, never := Never(s, &Class{Key: "big", Spec: &big}); !never || why == "" {
		t.Error("5 CPUs on a node of 4 can run")
	}
	if _, never := Never(s, s.Classes[0]); never {
		t.Error("a job that fits can never run")
	}
}

// An array that may run in two partitions and whose time has come starts its first task once.
func TestPromisedTaskStartsOnce(t *testing.T) {
	s := cluster(2, 4, 0)
	s.Partitions = append(s.Partitions, &Partition{Name: "q", Up: true, Nodes: []int{0, 1}, MaxTime: job.Unlimited})
	c := s.class("a", job.Spec{NTasks: 4, Partition: "p,q"}, job.Extra{}, 60, 1)
	w := Waiting{JobID: 1, Submit: 1, Limit: -1, Tasks: job.NewSet(0, 1), Promise: &Promise{Start: 1000, Partition: "p", Limit: hour,
		Nodes: []job.NodeAlloc{{Node: "n1", CPUs: 4, Mem: 4 << 30, Tasks: 4}}}}
	c.Waiting = func(yield func(Waiting) bool) { yield(w) }
	s.Promised = []Promised{{Class: "a", Waiting: w}}
	if got := show(Plan(s, 1000, Policy{Promises: 3})); got != "1.0@n1:4/4 1.1@n2:4/4" {
		t.Error(got)
	}
}

// A QOS that requires a reservation runs nothing outside of one; a job that would end after its reservation says so.
func TestReservationDemands(t *testing.T) {
	s := cluster(1, 4, 0)
	s.limited(t, "modify qos name=normal|flags=RequiresReservation")
	s.bobs("a", job.Spec{}, 60, 1)
	if d := Plan(s, 0, Policy{}); len(d.Starts) != 0 || d.Classes[0].Reason != job.ReasonReservation {
		t.Errorf("%s, %+v", show(d), d.Classes)
	}
	s.Reservations = []*partitions.Reservation{reservation("mine", 0, 2*hour, "bob", "n1")}
	s.Classes[0].Extra = &job.Extra{Reservations: []string{"mine"}}
	if got := show(Plan(s, 0, Policy{})); got != "1@n1:1/1" {
		t.Errorf("in its reservation: %q", got)
	}
	s.Classes[0].Time = 3 * hour
	d := Plan(s, 0, Policy{})
	if len(d.Starts) != 0 || d.Classes[0].Reason != job.ReasonReservation || d.Classes[0].Detail != "asks for 03:00:00; reservation mine has 02:00:00 left" {
		t.Errorf("%s, %+v", show(d), d.Classes)
	}
}
