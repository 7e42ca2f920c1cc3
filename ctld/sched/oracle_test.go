package sched

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// drawBusy makes a small cluster with runs, one waiting job of any layout, and some with promises.
func drawBusy(t *rapid.T, layouts bool) (*Snapshot, *Class) {
	s := cluster(rapid.IntRange(1, 5).Draw(t, "nodes"), uint32(rapid.IntRange(1, 4).Draw(t, "cpus")), 0)
	for i, n := range s.Nodes {
		for n.FreeCPUs > 0 && rapid.IntRange(0, 2).Draw(t, "run") > 0 {
			s.run(uint32(100+len(s.Running)), i, uint32(rapid.IntRange(1, int(n.FreeCPUs)).Draw(t, "held")), 0, int64(rapid.IntRange(1, 6).Draw(t, "end"))*60000)
			n.Runs++
		}
	}
	cpus := s.Nodes[0].CPUs
	for i := range rapid.IntRange(0, 2).Draw(t, "promised") {
		n := s.Nodes[rapid.IntRange(0, len(s.Nodes)-1).Draw(t, "on")]
		c := s.class(string(rune('a'+i)), job.Spec{NTasks: cpus}, job.Extra{}, int64(rapid.IntRange(1, 3).Draw(t, "for")), uint32(i+1))
		s.promise(c, uint32(i+1), int64(7+3*i)*60000, n.Name, cpus)
		w := s.Promised[i].Waiting
		w.Begin = w.Promise.Start // it can not be moved forward
		s.Promised[i].Waiting, c.Waiting = w, slices.Values([]Waiting{w})
	}
	spec := job.Spec{NTasks: uint32(rapid.IntRange(1, 8).Draw(t, "tasks")), MinNodes: uint32(rapid.IntRange(0, 3).Draw(t, "least")), Exclusive: rapid.IntRange(0, 4).Draw(t, "exclusive") == 0}
	x := job.Extra{}
	if layouts {
		x.Contiguous = true
	}
	return s, s.class("z", spec, x, int64(rapid.IntRange(1, 5).Draw(t, "limit")), 50)
}

// soonestByHand tries each moment at which something changes, and gives the first at which the job fits until its limit ends.
func soonestByHand(s *Snapshot, c *Class) (int64, bool) {
	shape, wrong := place.Compile(c.Spec, c.Extra, place.Limits{}, nil, func(name string) (int, bool) {
		for i, n := range s.Nodes {
			if n.Name == name {
				return i, true
			}
		}
		return 0, false
	})
	if wrong != "" {
		return 0, false
	}
	for at := int64(0); at <= 40*60000; at += 60000 {
		rooms := make([]place.Room, len(s.Nodes))
		for i, n := range s.Nodes {
			rooms[i] = place.WholeRoom(n)
			for moment := at; moment < at+c.Time; moment += 60000 { // the least of what is free at each moment
				room := place.WholeRoom(n)
				for _, r := range s.Running {
					if r.End > moment && r.Allocs[0].Node == n.Name {
						room.Less(n, &r.Allocs[0], place.Tenant{})
					}
				}
				for _, p := range s.Promised {
					if a := &p.Promise.Nodes[0]; a.Node == n.Name && p.Promise.Start <= moment && moment < p.Promise.Start+p.Promise.Limit {
						room.Less(n, a, place.Tenant{})
					}
				}
				rooms[i].CPUs, rooms[i].Mem = min(rooms[i].CPUs, room.CPUs), min(rooms[i].Mem, room.Mem)
				rooms[i].Runs, rooms[i].Shut = max(rooms[i].Runs, room.Runs), rooms[i].Shut || room.Shut
			}
		}
		cand := &place.Candidates{Nodes: s.Nodes, Fit: func(n int) uint32 { return shape.Fit(s.Nodes[n], &rooms[n]) }}
		for i := range s.Nodes {
			if cand.Fit(i) > 0 {
				cand.List = append(cand.List, i)
			}
		}
		if len(cand.List) > 0 && shape.Choose(cand) != nil {
			return at, true
		}
	}
	return 0, false
}

// soonestPlanned is when the planner starts the job, or promises it to start.
func soonestPlanned(s *Snapshot) (int64, bool) {
	d := Plan(s, 0, Policy{Promises: 100})
	for _, st := range d.Starts {
		if st.JobID == 50 {
			return 0, true
		}
	}
	for _, c := range d.Promises {
		if c.JobID == 50 && c.Promise != nil {
			return c.Promise.Start, true
		}
	}
	return 0, false
}

// A promise is the earliest start there is, around all runs and promises.
func TestPromiseIsTheEarliestStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, c := drawBusy(t, false)
		want, ok := soonestByHand(s, c)
		if got, found := soonestPlanned(s); found != ok || got != want {
			t.Fatalf("promised %d (%v), the earliest is %d (%v)", got, found, want, ok)
		}
	})
}

// For nodes side by side it is never too early, and seldom later: a shape that does not fit although there is room is not
// tried at each end.
func TestPromiseOfNodesSideBySide(t *testing.T) {
	later, all := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s, c := drawBusy(t, true)
		want, ok := soonestByHand(s, c)
		got, found := soonestPlanned(s)
		if found != ok || got < want {
			t.Fatalf("promised %d (%v), the earliest is %d (%v)", got, found, want, ok)
		}
		all++
		later += boolInt(got > want)
	})
	t.Logf("%d of %d are later than the earliest", later, all)
}
