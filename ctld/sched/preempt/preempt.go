// Package preempt finds the runs that have to make room for a job: it takes all that may be taken out
// of the picture, places the job, and puts back whatever it fits without. What stays out is the
// difference: a run whose end does not help is never among the victims. It is pure.
package preempt

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// What is done to a victim.
const (
	Cancel  = "CANCEL"
	Requeue = "REQUEUE"
	Suspend = "SUSPEND" // it gives its CPUs, and keeps memory and devices
	Off     = "OFF"     // it is no victim
)

// Victim is a run that might make room. Times are Unix ms.
type Victim struct {
	Nodes       []int // positions of the nodes of Allocs; the same length
	Allocs      []job.NodeAlloc
	Gang        uint32 // runs with the same number that is not 0 are taken together or not at all
	Start       int64
	Cost        int64 // work that would be lost, CPU x ms since the last checkpoint
	ExemptUntil int64 // it is no victim before then
	Priority    int64
	Mode        string
}

// Input is a job that can not start and what runs.
type Input struct {
	Shape      *place.Shape
	Candidates *place.Candidates                    // List, Nodes, Topology and AnySwitches are used
	Rooms      []place.Room                         // what is free, by node position; not changed
	Fit        func(node int, r *place.Room) uint32 // tasks that fit; nil = the shape's. More room never gives fewer
	Victims    []Victim
	May        func(victim int) bool // may the job take the place of this run; nil = of all
	Now        int64

	MinExemptPriority int64 // runs of this priority or more are no victims; 0 = none is exempt for it
	YoungestFirst     bool  // the runs that started last are taken first, whatever they cost
}

// unit is what is taken together: one run, or a gang.
type unit struct {
	victims  []int // ascending
	nodes    []int // ascending, each once
	cost     int64
	priority int64 // highest of its runs
	start    int64 // of its first run
	out      bool  // taken
}

// find is one search.
type find struct {
	in    *Input
	fit   func(node int, r *place.Room) uint32
	units []unit
	at    [][]int      // units by node
	rooms []place.Room // as of now
	list  []bool       // by node: it is a candidate
	own   []bool       // rooms[i] is a copy that may be changed
	c     place.Candidates
}

// Find gives the runs to take, as ascending positions in Victims, and the nodes that the job then
// gets. picks is nil when the job would not fit if all that may be taken were; victims is empty when it
// fits as it is.
//
// No victim can be left out: with any one of them (or of the gangs) put back the job does not fit. Where one
// run is enough for a job of one node, only one is taken, the one that costs least. In general victims
// are looked for on the nodes that need the fewest, and put back in the order of priority, cost and
// age, or beginning with those that free the least; of the two results the one with fewer runs, then
// the one that costs less, then the first. So no more runs are taken than refilling the chosen nodes
// in the order of priority and cost would leave out. With YoungestFirst age decides, whatever it costs.
func Find(in Input) (victims []int, picks []place.Pick) {
	f := &find{in: &in, fit: in.Fit, rooms: slices.Clone(in.Rooms), own: make([]bool, len(in.Rooms))}
	if f.fit == nil {
		f.fit = func(n int, r *place.Room) uint32 { return in.Shape.Fit(in.Candidates.Nodes[n], r) }
	}
	f.c = place.Candidates{List: in.Candidates.List, Nodes: in.Candidates.Nodes, Topology: in.Candidates.Topology,
		AnySwitches: in.Candidates.AnySwitches}
	f.c.Fit = func(n int) uint32 { return f.fit(n, &f.rooms[n]) }
	f.c.Free = func(n int) uint32 { return f.rooms[n].CPUs }
	if picks = in.Shape.Choose(&f.c); picks != nil {
		return nil, picks
	}
	f.group()
	units := f.best()
	if units == nil {
		return nil, nil
	}
	for u := range f.units {
		f.set(u, slices.Contains(units, u))
	}
	for _, u := range units {
		victims = append(victims, f.units[u].victims...)
	}
	slices.Sort(victims)
	f.c.List = in.Candidates.List
	return victims, in.Shape.Choose(&f.c)
}

// best gives the units to take; nil when taking all of them does not help.
func (f *find) best() []int {
	alone := f.one()
	if alone >= 0 && len(f.units[alone].victims) == 1 {
		return []int{alone}
	}
	units := f.several()
	if alone >= 0 && !f.less(units, []int{alone}) {
		return []int{alone}
	}
	return units
}

// group makes units of the runs that may be taken and hold something on a candidate.
func (f *find) group() {
	f.list = make([]bool, len(f.rooms))
	for _, n := range f.in.Candidates.List {
		f.list[n] = true
	}
	gangs := map[uint32]int{}
	var barred []bool // by unit
	for i := range f.in.Victims {
		v := &f.in.Victims[i]
		u, known := gangs[v.Gang]
		if v.Gang == 0 || !known {
			u = len(f.units)
			f.units, barred = append(f.units, unit{start: v.Start}), append(barred, false)
			if v.Gang != 0 {
				gangs[v.Gang] = u
			}
		}
		x := &f.units[u]
		x.victims, x.nodes = append(x.victims, i), append(x.nodes, v.Nodes...)
		x.cost = add(x.cost, v.Cost)
		x.priority, x.start = max(x.priority, v.Priority), min(x.start, v.Start)
		barred[u] = barred[u] || !f.may(i)
	}
	kept := f.units[:0]
	for u := range f.units {
		x := f.units[u]
		helps := slices.ContainsFunc(x.nodes, func(n int) bool { return f.list[n] })
		if barred[u] || !helps {
			continue
		}
		slices.Sort(x.nodes)
		x.nodes = slices.Compact(x.nodes)
		kept = append(kept, x)
	}
	f.units = kept
	f.at = make([][]int, len(f.rooms))
	for u := range f.units {
		for _, n := range f.units[u].nodes {
			f.at[n] = append(f.at[n], u)
		}
	}
}

// may tells whether a run may be taken.
func (f *find) may(i int) bool {
	v := &f.in.Victims[i]
	if v.Mode == Off || v.ExemptUntil > f.in.Now {
		return false
	}
	if f.in.MinExemptPriority > 0 && v.Priority >= f.in.MinExemptPriority {
		return false
	}
	return f.in.May == nil || f.in.May(i)
}

// set takes a unit, or puts it back. Rooms are made anew from those given, so that the order in which
// units come and go does not matter.
func (f *find) set(u int, out bool) {
	if f.units[u].out == out {
		return
	}
	f.units[u].out = out
	for _, n := range f.units[u].nodes {
		f.remake(n)
	}
}

// remake works out what is free on a node with the units that are out.
func (f *find) remake(n int) {
	r := &f.rooms[n]
	if !f.own[n] {
		*r, f.own[n] = f.in.Rooms[n].Clone(), true
	} else {
		r.Copy(&f.in.Rooms[n])
	}
	for _, u := range f.at[n] {
		if !f.units[u].out {
			continue
		}
		for _, i := range f.units[u].victims {
			v := &f.in.Victims[i]
			for a := range v.Nodes {
				if v.Nodes[a] == n {
					f.free(n, r, &v.Allocs[a], v.Mode)
				}
			}
		}
	}
}

// free gives back what a victim gives on a node.
func (f *find) free(n int, r *place.Room, a *job.NodeAlloc, mode string) {
	node := f.in.Candidates.Nodes[n]
	if mode == Suspend {
		r.CPUs = min(r.CPUs+a.CPUs, node.CPUs)
		return
	}
	r.More(node, a)
}

// fits tells whether the job can be placed as things are.
func (f *find) fits() bool { return f.in.Shape.Choose(&f.c) != nil }

// add is a sum that does not overflow.
func add(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return 1<<63 - 1
}
