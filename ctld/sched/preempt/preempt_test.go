package preempt

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// scene is a small cluster with what runs there.
type scene struct {
	in    Input
	spec  job.Spec
	shape *place.Shape
}

func newScene(t testing.TB, nodes int, spec job.Spec, x job.Extra, victims ...Victim) *scene {
	t.Helper()
	s := &scene{spec: spec}
	c := &place.Candidates{}
	for i := range nodes {
		n := &place.Node{Name: fmt.Sprintf("n%d", i), CPUs: 4, Mem: 4 << 30, FreeCPUs: 4, FreeMem: 4 << 30, Up: true}
		c.Nodes, c.List = append(c.Nodes, n), append(c.List, i)
		s.in.Rooms = append(s.in.Rooms, place.WholeRoom(n))
	}
	at := func(name string) (int, bool) {
		i := slices.IndexFunc(c.Nodes, func(n *place.Node) bool { return n.Name == name })
		return i, i >= 0
	}
	shape, wrong := place.Compile(&spec, &x, place.Limits{}, nil, at)
	if wrong != "" {
		t.Fatal(wrong)
	}
	for i := range victims {
		v := &victims[i]
		for a, n := range v.Nodes {
			s.in.Rooms[n].Less(c.Nodes[n], &v.Allocs[a], place.Tenant{UID: 7})
		}
	}
	s.in.Shape, s.in.Candidates, s.in.Victims, s.in.Now = shape, c, victims, 1000
	return s
}

// on is a run with so many CPUs, and as many GiB, on each of the nodes.
func on(cpus uint32, nodes ...int) Victim {
	v := Victim{Nodes: nodes, Mode: Cancel}
	for _, n := range nodes {
		v.Allocs = append(v.Allocs, job.NodeAlloc{Node: fmt.Sprintf("n%d", n), CPUs: cpus, Mem: int64(cpus) << 30})
	}
	return v
}

func (v Victim) with(change func(*Victim)) Victim { change(&v); return v }

func cost(c int64) func(*Victim)     { return func(v *Victim) { v.Cost = c } }
func priority(p int64) func(*Victim) { return func(v *Victim) { v.Priority = p } }
func start(t int64) func(*Victim)    { return func(v *Victim) { v.Start = t } }
func gang(g uint32) func(*Victim)    { return func(v *Victim) { v.Gang = g } }
func mode(m string) func(*Victim)    { return func(v *Victim) { v.Mode = m } }

func TestFind(t *testing.T) {
	for _, tt := range []struct {
		name    string
		nodes   int
		spec    job.Spec
		extra   job.Extra
		victims []Victim
		change  func(*Input)
		want    string // victims, then nodes
	}{
		{"it fits as it is", 2, job.Spec{}, job.Extra{}, []Victim{on(4, 0)}, nil, "[] [1]"},
		{"one has to go", 1, job.Spec{}, job.Extra{}, []Victim{on(4, 0)}, nil, "[0] [0]"},
		{"nothing helps", 1, job.Spec{MinNodes: 2, MaxNodes: 2}, job.Extra{}, []Victim{on(4, 0)}, nil, "none"},
		{"the cheapest", 3, job.Spec{}, job.Extra{},
			[]Victim{on(4, 0).with(cost(9)), on(4, 1).with(cost(2)), on(4, 2).with(cost(5))}, nil, "[1] [1]"},
		{"the checkpointed one of equal runs", 1, job.Spec{NTasks: 2, MinNodes: 1, MaxNodes: 1}, job.Extra{},
			[]Victim{on(2, 0).with(cost(9000)), on(2, 0).with(cost(10))}, nil, "[1] [0]"},
		{"one large run rather than two small ones", 2, job.Spec{Exclusive: true}, job.Extra{},
			[]Victim{on(1, 0).with(cost(1)), on(1, 0).with(cost(1)), on(4, 1).with(cost(100))}, nil, "[2] [1]"},
		{"a bystander on the node stays", 1, job.Spec{NTasks: 2, MinNodes: 1, MaxNodes: 1}, job.Extra{},
			[]Victim{on(1, 0), on(1, 0), on(2, 0)}, nil, "[2] [0]"},
		{"a free node and one that is cleared", 2, job.Spec{MinNodes: 2, MaxNodes: 2}, job.Extra{},
			[]Victim{on(4, 0)}, nil, "[0] [0 1]"},
		{"a gang goes as a whole", 2, job.Spec{}, job.Extra{},
			[]Victim{on(4, 0).with(gang(5)), on(4, 1).with(gang(5))}, nil, "[0 1] [0]"},
		{"rather one run than a gang", 3, job.Spec{}, job.Extra{},
			[]Victim{on(4, 0).with(gang(5)), on(4, 1).with(gang(5)), on(4, 2).with(cost(1 << 40))}, nil, "[2] [2]"},
		{"a gang of which one run may not be taken", 2, job.Spec{}, job.Extra{},
			[]Victim{on(4, 0).with(gang(5)), on(4, 1).with(gang(5)).with(mode(Off))}, nil, "none"},
		{"preemption is off", 1, job.Spec{}, job.Extra{}, []Victim{on(4, 0).with(mode(Off))}, nil, "none"},
		{"exempt for a while", 1, job.Spec{}, job.Extra{},
			[]Victim{on(4, 0).with(func(v *Victim) { v.ExemptUntil = 1001 })}, nil, "none"},
		{"exempt until now", 1, job.Spec{}, job.Extra{},
			[]Victim{on(4, 0).with(func(v *Victim) { v.ExemptUntil = 1000 })}, nil, "[0] [0]"},
		{"exempt by priority", 2, job.Spec{}, job.Extra{}, []Victim{on(4, 0).with(priority(10)), on(4, 1).with(priority(9))},
			func(in *Input) { in.MinExemptPriority = 10 }, "[1] [1]"},
		{"only whom it may", 2, job.Spec{}, job.Extra{}, []Victim{on(4, 0), on(4, 1).with(cost(50))},
			func(in *Input) { in.May = func(v int) bool { return v == 1 } }, "[1] [1]"},
		{"the youngest, whatever it costs", 3, job.Spec{}, job.Extra{},
			[]Victim{on(4, 0).with(start(5)), on(4, 1).with(start(9)).with(cost(99)), on(4, 2).with(start(1))},
			func(in *Input) { in.YoungestFirst = true }, "[1] [1]"},
		{"a suspended run keeps its memory", 2, job.Spec{MemPerNode: 2 << 30}, job.Extra{},
			[]Victim{on(4, 0).with(mode(Suspend)), on(4, 1).with(cost(77))}, nil, "[1] [1]"},
		{"a suspended run gives its CPUs", 1, job.Spec{MemPerNode: 1 << 30}, job.Extra{},
			[]Victim{func() Victim { v := on(4, 0).with(mode(Suspend)); v.Allocs[0].Mem = 1 << 30; return v }()}, nil, "[0] [0]"},
		{"the caller's own bound", 2, job.Spec{}, job.Extra{}, []Victim{on(4, 0), on(4, 1).with(cost(3))},
			func(in *Input) {
				in.Fit = func(n int, r *place.Room) uint32 {
					if n == 0 {
						return 0 // promised to another job
					}
					return in.Shape.Fit(in.Candidates.Nodes[n], r)
				}
			}, "[1] [1]"},
		{"the others' run shares the node of a user", 1, job.Spec{UID: 7}, job.Extra{Exclusive: "user"},
			[]Victim{on(4, 0)}, nil, "[0] [0]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t, tt.nodes, tt.spec, tt.extra, tt.victims...)
			if tt.change != nil {
				tt.change(&s.in)
			}
			victims, picks := Find(s.in)
			got := "none"
			if picks != nil {
				var nodes []int
				for _, p := range picks {
					nodes = append(nodes, p.Node)
				}
				got = fmt.Sprint(victims, " ", nodes)
			}
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// after is what is free when the units of the mask are gone, worked out from empty nodes.
func (s *scene) after(gone func(i int) bool) []place.Room {
	rooms := make([]place.Room, len(s.in.Rooms))
	for n := range rooms {
		rooms[n] = place.WholeRoom(s.in.Candidates.Nodes[n])
	}
	for i := range s.in.Victims {
		v := &s.in.Victims[i]
		for a, n := range v.Nodes {
			alloc := v.Allocs[a]
			switch {
			case gone(i) && v.Mode == Suspend:
				alloc.CPUs = 0
			case gone(i):
				continue
			}
			rooms[n].Less(s.in.Candidates.Nodes[n], &alloc, place.Tenant{UID: 7})
		}
	}
	return rooms
}

func (s *scene) fits(rooms []place.Room) bool {
	c := &place.Candidates{List: s.in.Candidates.List, Nodes: s.in.Candidates.Nodes}
	c.Fit = func(n int) uint32 { return s.shape.Fit(c.Nodes[n], &rooms[n]) }
	return s.shape.Choose(c) != nil
}

// units gives the eligible runs, gangs together.
func (s *scene) units() [][]int {
	var out [][]int
	gangs := map[uint32][]int{}
	for i, v := range s.in.Victims {
		if v.Gang != 0 {
			gangs[v.Gang] = append(gangs[v.Gang], i)
		} else if v.Mode != Off {
			out = append(out, []int{i})
		}
	}
	for _, g := range []uint32{1, 2} {
		if members := gangs[g]; len(members) > 0 &&
			!slices.ContainsFunc(members, func(i int) bool { return s.in.Victims[i].Mode == Off }) {
			out = append(out, members)
		}
	}
	return out
}

func drawScene(t *rapid.T, tb testing.TB) *scene {
	nodes := rapid.IntRange(1, 4).Draw(t, "nodes")
	free := make([]uint32, nodes)
	for i := range free {
		free[i] = 4
	}
	var victims []Victim
	for range rapid.IntRange(0, 6).Draw(t, "runs") {
		cpus := uint32(rapid.IntRange(1, 4).Draw(t, "cpus"))
		var at []int
		for n := range nodes {
			if free[n] >= cpus && rapid.Bool().Draw(t, "here") {
				free[n] -= cpus
				at = append(at, n)
			}
		}
		if len(at) == 0 {
			continue
		}
		victims = append(victims, on(cpus, at...).with(func(v *Victim) {
			v.Cost, v.Start = rapid.Int64Range(0, 5).Draw(t, "cost"), rapid.Int64Range(0, 5).Draw(t, "start")
			v.Priority = rapid.Int64Range(0, 2).Draw(t, "priority")
			v.Gang = uint32(max(rapid.IntRange(-3, 2).Draw(t, "gang"), 0))
			v.Mode = rapid.SampledFrom([]string{Cancel, Cancel, Requeue, Suspend, Off}).Draw(t, "mode")
		}))
	}
	spec := job.Spec{NTasks: uint32(rapid.IntRange(0, 6).Draw(t, "tasks")), CPUsPerTask: uint32(rapid.IntRange(1, 3).Draw(t, "per task"))}
	if spec.MinNodes = uint32(rapid.IntRange(0, 3).Draw(t, "N")); spec.MinNodes > 0 {
		spec.MaxNodes = spec.MinNodes
	}
	spec.Exclusive = rapid.IntRange(0, 4).Draw(t, "exclusive") == 0
	if rapid.Bool().Draw(t, "mem") {
		spec.MemPerNode = int64(rapid.IntRange(1, 4).Draw(t, "GiB")) << 30
	}
	s := newScene(tb, nodes, spec, job.Extra{}, victims...)
	s.shape = s.in.Shape
	s.in.YoungestFirst = rapid.IntRange(0, 3).Draw(t, "youngest") == 0
	return s
}

// TestFindOracle compares with all subsets of what may be taken.
func TestFindOracle(t *testing.T) {
	var found, best int
	rapid.Check(t, func(rt *rapid.T) {
		s := drawScene(rt, t)
		before := fmt.Sprint(s.in.Rooms)
		victims, picks := Find(s.in)
		if again, p := Find(s.in); !slices.Equal(again, victims) || !slices.Equal(p, picks) || fmt.Sprint(s.in.Rooms) != before {
			rt.Fatal("not the same a second time")
		}
		units := s.units()
		taken, least, oneCost := 0, 99, int64(-1)
		for mask := range 1 << len(units) {
			runs, spent := 0, int64(0)
			gone := map[int]bool{}
			for u, members := range units {
				if mask>>u&1 == 1 {
					runs += len(members)
					for _, i := range members {
						gone[i] = true
						spent += s.in.Victims[i].Cost
					}
				}
			}
			if !s.fits(s.after(func(i int) bool { return gone[i] })) {
				continue
			}
			least = min(least, runs)
			if runs == 1 && (oneCost < 0 || spent < oneCost) {
				oneCost = spent
			}
			if proper(gone, victims) && picks != nil {
				rt.Fatalf("%v are taken, %v would do", victims, gone)
			}
		}
		if (picks != nil) != (least < 99) {
			rt.Fatalf("%v %v, but the fewest are %d", victims, picks, least)
		}
		if picks == nil {
			return
		}
		rooms := s.after(func(i int) bool { return slices.Contains(victims, i) })
		for _, p := range picks {
			if s.shape.Fit(s.in.Candidates.Nodes[p.Node], &rooms[p.Node]) < p.Tasks {
				rt.Fatalf("%v do not fit", picks)
			}
		}
		for _, i := range victims {
			taken += int(s.in.Victims[i].Cost)
			if s.in.Victims[i].Mode == Off {
				rt.Fatalf("run %d may not be taken", i)
			}
		}
		if s.shape.Single() && least == 1 && !s.in.YoungestFirst && (len(victims) != 1 || int64(taken) != oneCost) {
			rt.Fatalf("%v are taken, one of cost %d would do", victims, oneCost)
		}
		if len(victims) > 0 && !s.in.YoungestFirst {
			found++
			if len(victims) == least {
				best++
			}
		}
	})
	t.Logf("%d of %d have the fewest runs possible", best, found)
}

// proper tells whether gone is a proper subset of the victims.
func proper(gone map[int]bool, victims []int) bool {
	for i := range gone {
		if !slices.Contains(victims, i) {
			return false
		}
	}
	return len(gone) < len(victims)
}
