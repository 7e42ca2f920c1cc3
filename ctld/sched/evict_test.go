package sched

import (
	"fmt"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// tiers gives a cluster a partition whose jobs take the place of those of p.
func (s *Snapshot) tiers() {
	all := s.Partitions[0].Nodes
	s.Partitions = append(s.Partitions, &Partition{Name: "top", Up: true, Tier: 5, Nodes: all, MaxTime: job.Unlimited})
}

func evicts(d *Decision) (text string) {
	for _, e := range d.Evicts {
		text += fmt.Sprintf("%s %d for %d; ", e.How, e.JobID, e.By)
	}
	return text
}

var byTier = Policy{Promises: 3, Preempt: Preemption{Type: PreemptPartition, Mode: EvictCancel}}

// The room that is made is told as a promise, and counts how long runs take to be gone; what comes first then leaves it.
func TestRoomStaysThePreemptors(t *testing.T) {
	s := cluster(1, 4, 0)
	s.tiers()
	s.Partitions[0].Grace, s.KillWait = 2000, 500
	s.run(9, 0, 4, 0, hour)
	s.class("a", job.Spec{Partition: "top", NTasks: 4}, job.Extra{}, 30, 1)
	d := Plan(s, 0, byTier)
	if evicts(d) != "CANCEL 9 for 1; " || len(d.Promises) != 1 || d.Promises[0].Promise.Start != 2500 || d.Wake != 2500 {
		t.Fatalf("%s, %+v, wake %d", evicts(d), d.Promises, d.Wake)
	}
	later := cluster(1, 4, 0) // the run is gone, and another job holds a promise for later
	later.tiers()
	later.promise(later.class("a", job.Spec{Partition: "top", NTasks: 4}, job.Extra{}, 30, 1), 1, 2500, "n1", 4)
	later.Promised[0].Promise.Partition = "top"
	later.promise(later.class("b", job.Spec{NTasks: 4}, job.Extra{}, 60, 2), 2, hour, "n1", 4)
	if got := show(Plan(later, 2500, byTier)); got != "1@n1:4/4" {
		t.Errorf("starts %q", got)
	}
}

// Nobody is sent away where it gains nothing: the room would be promised to another, come no sooner, or not be needed.
func TestNobodyIsSentAwayInVain(t *testing.T) {
	promised := func(start int64) func(*Snapshot) {
		return func(s *Snapshot) { s.promise(s.class("A", job.Spec{NTasks: 4}, job.Extra{}, 60, 2), 2, start, "n1", 4) }
	}
	for _, tt := range []struct {
		name string
		make func(s *Snapshot)
		part string
		want string
	}{
		{"as it is", func(*Snapshot) {}, "top", "CANCEL 9 for 1; "},
		{"promised to another while it would run", func(s *Snapshot) { promised(hour)(s); s.Partitions[1].DefaultTime = 2 * hour }, "top", ""},
		{"promised to another after it", promised(hour), "top", "CANCEL 9 for 1; "},
		{"the run ends sooner by itself", func(s *Snapshot) { s.Running[0].End, s.Partitions[0].Grace = 5000, 6000 }, "top", ""},
		{"it fits in another partition", func(s *Snapshot) {
			s.Partitions[1].Nodes = []int{0}
			s.Nodes = append(s.Nodes, cluster(2, 4, 0).Nodes[1])
			s.Partitions[0].Nodes = []int{0, 1}
		}, "p,top", ""},
	} {
		s := cluster(1, 4, 0)
		s.tiers()
		s.run(9, 0, 4, 0, hour)
		s.Nodes[0].Runs = 1
		tt.make(s)
		c := s.class("a", job.Spec{Partition: tt.part, NTasks: 4}, job.Extra{}, 30, 1)
		if s.Partitions[1].DefaultTime > 0 {
			c.Time = 0
		}
		if got := evicts(Plan(s, 0, byTier)); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Room is made for all components of a heterogeneous job, beside each other, and kept for all.
func TestRoomForComponents(t *testing.T) {
	s := cluster(2, 4, 0)
	s.tiers()
	s.run(8, 0, 4, 0, hour)
	s.run(9, 1, 4, 0, hour)
	for i, key := range []string{"a", "b"} {
		c := s.class(key, job.Spec{Partition: "top", NTasks: 4}, job.Extra{}, 30, uint32(i+1))
		c.Waiting = func(yield func(Waiting) bool) {
			yield(Waiting{JobID: uint32(i + 1), Limit: -1, Het: 1, HetSize: 2})
		}
	}
	d := Plan(s, 0, byTier)
	if evicts(d) != "CANCEL 8 for 1; CANCEL 9 for 1; " || len(d.Promises) != 2 || d.Promises[0].Promise.Nodes[0].Node == d.Promises[1].Promise.Nodes[0].Node {
		t.Errorf("%s, %+v", evicts(d), d.Promises)
	}
	s.Running[1].Tier = 9 // one of them may not be sent away: then none is
	if d = Plan(s, 0, byTier); evicts(d) != "" {
		t.Errorf("%s", evicts(d))
	}
}

// A run is suspended for a job of a QOS that may take its place, stays while that runs, has its CPUs kept, and goes on behind it.
func TestSuspendAndResume(t *testing.T) {
	pol := Policy{Promises: 3, Preempt: Preemption{Type: PreemptQOS, Mode: EvictSuspend}}
	s := cluster(1, 4, 0)
	s.run(9, 0, 4, 0, hour)
	s.Running[0].Allocs[0].Mem, s.Nodes[0].FreeMem, s.Nodes[0].Runs = 1<<30, 3<<30, 1
	s.limited(t)
	s.Rules.Limits = false
	s.bobs("a", job.Spec{NTasks: 4, MemPerNode: 1 << 30}, 30, 1).QOS = "high"
	d := Plan(s, 0, pol)
	if evicts(d) != "SUSPEND 9 for 1; " || len(d.Promises) != 1 {
		t.Fatalf("%s, %+v", evicts(d), d.Promises)
	}
	v := s.Running[0] // it is suspended: its CPUs are free
	v.Suspended, v.BySched, v.By = true, true, 1
	s.Nodes[0].FreeCPUs, s.Nodes[0].CPUUsed = 4, make([]bool, 4)
	s.bobs("b", job.Spec{NTasks: 4, MemPerNode: 1 << 30}, 60, 2)
	if d = Plan(s, 1, pol); show(d) != "1@n1:4/4" || evicts(d) != "" {
		t.Fatalf("starts %q, %s", show(d), evicts(d))
	}
	for _, c := range d.Classes {
		if c.Class == "b" && c.Start != 0 {
			t.Errorf("job 2 is told to start at %d, on CPUs that the suspended run goes on with", c.Start)
		}
	}
	s.Classes = s.Classes[1:] // job 1 has come and gone
	if d = Plan(s, hour/2, pol); evicts(d) != "RESUME 9 for 1; " || show(d) != "" {
		t.Errorf("%s, starts %q", evicts(d), show(d))
	}
	// A run on which something counts is not suspended: it would end later.
	s = cluster(1, 4, 0)
	s.run(9, 0, 4, 0, hour)
	s.Running[0].Allocs[0].Mem, s.Nodes[0].FreeMem = 1<<30, 3<<30
	s.limited(t)
	s.Rules.Limits = false
	s.promise(s.class("b", job.Spec{NTasks: 4}, job.Extra{}, 60, 2), 2, hour, "n1", 4)
	s.bobs("c", job.Spec{NTasks: 4, MemPerNode: 1 << 30}, 30, 3).QOS = "high"
	if d = Plan(s, 0, pol); evicts(d) != "" {
		t.Errorf("the promise of job 2 stands on its end: %s", evicts(d))
	}
}
