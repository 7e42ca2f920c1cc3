package sched

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

var benchSched = flag.Bool("bench-sched", false, "measure the planner's rounds and hold them against their targets")

const benchShapes = 1000

// benchCluster is a full cluster: four runs on each node that end at different times, and so many jobs waiting, of 1,000
// shapes.
func benchCluster(nodes, pending int) *Snapshot {
	s := cluster(nodes, 64, 8)
	s.Layout = 1
	s.Partitions[0].MaxTime = 48 * 3600000
	for n := range s.Nodes {
		for k := range 4 {
			s.run(uint32(1_000_000+4*n+k), n, 16, 2, int64(1+(n*7+k*13)%2880)*60000)
		}
		s.Nodes[n].Runs = 4
	}
	for c := range benchShapes {
		count := pending / benchShapes
		w := make([]Waiting, count)
		for i := range w {
			w[i] = Waiting{JobID: uint32(c*count + i + 1), Submit: int64(i), Accrue: int64(i), Limit: -1}
		}
		spec := job.Spec{CPUsPerTask: uint32(1 + c%16), Gres: fmt.Sprintf("gpu:%d", 1+c/16%4), MinNodes: uint32(1 + c/64%8), MemPerCPU: int64(1+c/512) << 28}
		s.Classes = append(s.Classes, &Class{Key: fmt.Sprintf("%04d", c), Version: 1, Spec: &spec, Extra: &job.Extra{}, Time: int64(1+c%600) * 60000,
			Waiting: slices.Values(w), Count: count})
	}
	return s
}

// endOne is the snapshot after the end of its first run.
func endOne(s *Snapshot) *Snapshot {
	out := *s
	out.Version++
	r := s.Running[0]
	out.Running = slices.Clone(s.Running[1:])
	out.Nodes = slices.Clone(s.Nodes)
	for a := range r.Allocs {
		i := slices.IndexFunc(s.Nodes, func(n *place.Node) bool { return n.Name == r.Allocs[a].Node })
		n := *s.Nodes[i]
		n.CPUUsed, n.Gres = slices.Clone(n.CPUUsed), slices.Clone(n.Gres)
		n.Gres[0].Used = slices.Clone(n.Gres[0].Used)
		n.FreeCPUs, n.FreeMem, n.Runs = n.FreeCPUs+r.Allocs[a].CPUs, n.FreeMem+r.Allocs[a].Mem, n.Runs-1
		for _, c := range r.Allocs[a].CPUIDs {
			n.CPUUsed[c] = false
		}
		for _, g := range r.Allocs[a].Gres {
			n.Gres[0].Taken -= g.Count
			for _, d := range g.Index {
				n.Gres[0].Used[d] = false
			}
		}
		n.Busy = n.Runs > 0
		out.Nodes[i] = &n
	}
	return &out
}

// timed is the median time of some calls.
func timed(times int, f func()) time.Duration {
	took := make([]time.Duration, times)
	for i := range took {
		began := time.Now()
		f()
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[times/2]
}

// figure prints a measured figure; it fails the test when it is over its target (0 = none).
func figure(t *testing.T, name string, ms, target float64) {
	t.Helper()
	switch {
	case target == 0:
		fmt.Fprintf(os.Stdout, "figure %s %.3f ms\n", name, ms)
	case ms <= target:
		fmt.Fprintf(os.Stdout, "figure %s %.3f ms (target <= %g) ok\n", name, ms, target)
	default:
		fmt.Fprintf(os.Stdout, "figure %s %.3f ms (target <= %g) short\n", name, ms, target)
		t.Errorf("%s: %.3f ms, target %g", name, ms, target)
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// TestBench is the planner's part of make bench-sched.
func TestBench(t *testing.T) {
	if !*benchSched {
		t.Skip("runs with -bench-sched")
	}
	for _, nodes := range []int{1000, 10000} {
		for _, pending := range []int{1000, 10000, 100000} {
			s := benchCluster(nodes, pending)
			name := fmt.Sprintf("sched-%dk-pending-%dk-nodes", pending/1000, nodes/1000)
			full, once := 0.0, 0.0
			if pending == 100000 && nodes == 10000 {
				full, once = 2000, 20
			}
			figure(t, name+"-full", millis(timed(3, func() { Plan(s, 0, Policy{}) })), full)
			p := NewPlanner()
			p.Plan(s, 0, Policy{})
			figure(t, name+"-after-one-end", millis(timed(9, func() {
				s = endOne(s)
				p.Plan(s, 0, Policy{})
			})), once)
			if pending == 100000 {
				figure(t, name+"-100-promises-full", millis(timed(1, func() { Plan(s, 0, Policy{Promises: 100}) })), 0)
			}
		}
	}
	benchArray(t)
}

// benchArray compares a job with an array of a million tasks.
func benchArray(t *testing.T) {
	base := benchCluster(1000, 10000)
	with := func(tasks int) *Snapshot {
		s := *base
		spec := job.Spec{CPUsPerTask: 2}
		w := Waiting{JobID: 900_000, Limit: -1}
		if tasks > 1 {
			var err error
			if w.Tasks, _, err = job.ParseArray(fmt.Sprintf("0-%d", tasks-1), uint32(tasks)); err != nil {
				t.Fatal(err)
			}
		}
		s.Classes = append(slices.Clone(s.Classes), &Class{Key: "array", Version: 1, Spec: &spec, Extra: &job.Extra{}, Time: 60000,
			Waiting: slices.Values([]Waiting{w}), Count: 1})
		return &s
	}
	single, array := with(1), with(1_000_000)
	one, million := time.Hour, time.Hour
	for range 9 { // in turn, the best of each: other load on the machine meets both
		one = min(one, timed(1, func() { Plan(single, 0, Policy{}) }))
		million = min(million, timed(1, func() { Plan(array, 0, Policy{}) }))
	}
	figure(t, "sched-one-job-round", millis(one), 0)
	figure(t, "sched-million-task-array-round", millis(million), 1.1*millis(one))
}
