package sched

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// promise gives a job of a class the start that it was promised on one node.
func (s *Snapshot) promise(c *Class, id uint32, start int64, node string, cpus uint32) {
	p := &Promise{Start: start, Partition: "p", Limit: c.Time,
		Nodes: []job.NodeAlloc{{Node: node, CPUs: cpus, Mem: int64(cpus) << 30, Tasks: cpus}}}
	w := Waiting{JobID: id, Submit: int64(id), Limit: -1, Promise: p}
	c.Waiting = func(yield func(Waiting) bool) { yield(w) }
	s.Promised = append(s.Promised, Promised{Class: c.Key, Waiting: w})
}

// Two starts on one node, one after the other, have both become late: the one that was to be first starts.
func TestLateStartsDoNotBlockEachOther(t *testing.T) {
	s := cluster(1, 4, 0)
	for i, key := range []string{"a", "b"} {
		s.promise(s.class(key, job.Spec{NTasks: 4}, job.Extra{}, 1, uint32(i+1)), uint32(i+1), int64(i+1)*60000, "n1", 4)
	}
	d := Plan(s, 10*60000, Policy{Promises: 10})
	if got := show(d); got != "1@n1:4/4" || len(d.Promises) != 0 {
		t.Errorf("starts %q, promises %+v", got, d.Promises)
	}
}

// The same where it is licenses that both want.
func TestLateLicensesDoNotBlockEachOther(t *testing.T) {
	s := cluster(2, 4, 0)
	s.Licenses = []License{{"foo", 3}}
	for i, key := range []string{"a", "b"} {
		c := s.class(key, job.Spec{NTasks: 4}, job.Extra{Licenses: []job.License{{Name: "foo", Count: 2}}}, 1, uint32(i+1))
		s.promise(c, uint32(i+1), int64(i+1)*60000, []string{"n1", "n2"}[i], 4)
	}
	if got := show(Plan(s, 90000, Policy{Promises: 10})); got != "1@n1:4/4" {
		t.Errorf("half a minute late: starts %q", got)
	}
	if got := show(Plan(s, 10*60000, Policy{Promises: 10})); got != "1@n1:4/4" {
		t.Errorf("both are late: starts %q", got)
	}
}

// A start that is late does not break the promise behind it, which stands until its own time comes.
func TestLateStartBreaksNoPromise(t *testing.T) {
	s := cluster(1, 4, 0)
	s.run(9, 0, 4, 0, 60000)
	s.promise(s.class("a", job.Spec{NTasks: 4}, job.Extra{}, 10, 1), 1, 60000, "n1", 4)
	s.promise(s.class("b", job.Spec{NTasks: 4}, job.Extra{}, 1, 2), 2, 11*60000, "n1", 4)
	if d := Plan(s, 5*60000, Policy{Promises: 10}); len(d.Starts) != 0 || len(d.Promises) != 0 {
		t.Errorf("%s, %+v", show(d), d.Promises)
	}
}

// What can never be kept any more is given up: the node was made smaller, the cluster has fewer licenses.
func TestLatePromiseOfWhatIsGone(t *testing.T) {
	for _, few := range []bool{false, true} {
		s := cluster(1, 4, 0)
		s.Licenses = []License{{"foo", 1}}
		var x job.Extra
		cpus := uint32(8)
		if few {
			x.Licenses, cpus = []job.License{{Name: "foo", Count: 2}}, 4
		}
		s.promise(s.class("a", job.Spec{NTasks: cpus}, x, 1, 1), 1, 60000, "n1", cpus)
		s.class("b", job.Spec{NTasks: 2}, job.Extra{}, 60, 2)
		d := Plan(s, 60000, Policy{Promises: 10})
		if got := show(d); got != "2@n1:2/2" || len(d.Promises) != 1 || d.Promises[0].JobID != 1 || d.Promises[0].Promise != nil {
			t.Errorf("fewer licenses %t: starts %q, promises %+v", few, got, d.Promises)
		}
	}
}

// A job that something other than resources keeps back, as the limit of its array, loses its promise: it is not kept for it.
func TestBlockedLosesPromise(t *testing.T) {
	s := cluster(1, 4, 0)
	s.run(9, 0, 4, 0, 60000)
	s.promise(s.class("a", job.Spec{NTasks: 4}, job.Extra{}, 1, 1), 1, 60000, "n1", 4)
	s.Promised[0].Blocked = job.ReasonArrayLimit
	w := s.Promised[0].Waiting
	s.Classes[0].Waiting = func(yield func(Waiting) bool) { yield(w) }
	if d := Plan(s, 0, Policy{Promises: 10}); len(d.Promises) != 1 || d.Promises[0].JobID != 1 || d.Promises[0].Promise != nil {
		t.Errorf("%+v", d.Promises)
	}
}

// A start that is so late that it reaches into the next one still comes first: nothing stays idle until then.
func TestLateGoesBeforeNext(t *testing.T) {
	s := cluster(1, 4, 0)
	s.promise(s.class("a", job.Spec{NTasks: 4}, job.Extra{}, 10, 1), 1, 60000, "n1", 4)
	s.promise(s.class("b", job.Spec{NTasks: 4}, job.Extra{}, 10, 2), 2, 32*60000, "n1", 4)
	if got := show(Plan(s, 30*60000, Policy{Promises: 10})); got != "1@n1:4/4" {
		t.Errorf("starts %q", got)
	}
}

// What goes before others because it is late takes what was kept for it: on other nodes, or with more of one, it would be in
// their way for longer than it is late.
func TestLateTakesWhatWasKept(t *testing.T) {
	s := cluster(2, 4, 0)
	s.run(9, 0, 2, 0, 31*60000)
	a := s.class("a", job.Spec{NTasks: 5}, job.Extra{}, 10, 1)
	s.promise(a, 1, 60000, "n1", 1)
	p := s.Promised[0].Promise
	p.Nodes = append(p.Nodes, job.NodeAlloc{Node: "n2", CPUs: 4, Mem: 4 << 30, Tasks: 4})
	s.promise(s.class("b", job.Spec{NTasks: 4}, job.Extra{}, 10, 2), 2, 32*60000, "n1", 4)
	if got := show(Plan(s, 30*60000, Policy{Promises: 10})); got != "1@n1:1/1+n2:4/4" {
		t.Errorf("starts %q", got)
	}
}
