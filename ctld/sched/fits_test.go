package sched

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// What is remembered of a shape is what each node says when it is asked: which nodes suit it, and how many tasks they have
// room for, however nodes and runs change.
func TestFittedNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, p := newWorld(t), NewPlanner()
		for i, n := range w.nodes {
			n.Features = rapid.SampledFrom([][]string{nil, {"a"}, {"a", "b"}}).Draw(t, "features")
			n.Mem, n.FreeMem = n.Mem<<(i%2), n.FreeMem<<(i%2)
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			w.arrive(t)
			for _, k := range w.waiting {
				if rapid.IntRange(0, 9).Draw(t, "picky") == 0 {
					k.spec.Exclude = w.nodes[0].Name
				}
			}
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if len(w.running) > 0 {
					w.end(rapid.IntRange(0, len(w.running)-1).Draw(t, "run"))
				}
			case 1:
				n := w.fresh(rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node"))
				n.Up = !n.Up
			case 2:
				n := w.fresh(rapid.IntRange(0, len(w.nodes)-1).Draw(t, "node"))
				n.Features = []string{"b"}
			}
			s := w.snapshot()
			d := p.Plan(s, w.now, Policy{})
			checkFits(t, p, s)
			for i := range d.Starts {
				w.take(t, &d.Starts[i])
			}
		}
	})
}

// checkFits holds each vector against its nodes.
func checkFits(t *rapid.T, p *Planner, s *Snapshot) {
	asked := 0
	for _, c := range s.Classes {
		for part := range s.Partitions {
			f := p.fitted(c, &job.Extra{}, part, false)
			var order []int
			count, sum := 0, uint64(0)
			for _, n := range p.order[part] {
				if !f.shape.Suits(n, p.nodes[n]) {
					continue
				}
				order = append(order, n)
				tasks := p.fit(f, n, &p.rooms[n])
				if f.fits[n] != tasks {
					t.Fatalf("class %s: node %d is noted with %d tasks, it has room for %d", c.Key, n, f.fits[n], tasks)
				}
				count, sum = count+boolInt(tasks > 0), sum+uint64(tasks)
				asked++
			}
			if !slices.Equal(order, f.order) || f.count != count || f.sum != sum {
				t.Fatal(fmt.Sprint(c.Key, ": ", f.order, f.count, f.sum, " are noted; ", order, count, sum))
			}
		}
	}
	for n, tasks := range p.zeros {
		if tasks != 0 {
			t.Fatalf("the vector of nothing says %d for node %d after %d nodes were asked", tasks, n, asked)
		}
	}
}
