package state_test

import (
	"fmt"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// The planner's snapshot after the end of one run: 100,000 jobs of 1,000 classes wait, 40,000 run on 10,000 nodes.
func BenchmarkSnapshotAfterOneEnd(b *testing.B) {
	benchAfterOneEnd(b, func(v *state.View, _ int64) { v.Sched() })
}

// The same, and the round that plans on it.
func BenchmarkPlanAfterOneEnd(b *testing.B) {
	p := sched.NewPlanner()
	benchAfterOneEnd(b, func(v *state.View, now int64) { p.Plan(v.Sched(), now, v.Policy()) })
}

// benchAfterOneEnd measures what is done with a view after the end of one run.
func benchAfterOneEnd(b *testing.B, do func(v *state.View, now int64)) {
	const nodes, running, waiting, classes = 10_000, 40_000, 100_000, 1000
	s, index, now := state.New(), uint64(0), int64(1_000_000)
	apply := func(f func(*state.Tx)) {
		index++
		now++
		s.Apply(index, now, f)
	}
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("n%05d", i)
	}
	w := &world{TB: b}
	apply(func(t *state.Tx) { t.RaiseFeature(state.FeatureSched) })
	apply(func(t *state.Tx) { t.SetConfig(state.Config{FirstJobID: 1}, nodesOf(names...), partsOf(names...)) })
	apply(func(t *state.Tx) {
		for _, name := range names {
			t.RegisterNode(w.registration(name, "boot"))
		}
	})
	for i := range running {
		apply(func(t *state.Tx) {
			id, _, _ := t.Submit("", nil, &job.Spec{UID: 1})
			t.Plan(&sched.Decision{Starts: []sched.Start{{JobID: id, Task: -1, Partition: "p", Nodes: []job.NodeAlloc{cpus(names[i%nodes], uint32(i/nodes))}}}})
		})
	}
	apply(func(t *state.Tx) {
		for i := range waiting {
			t.Submit("", nil, &job.Spec{UID: uint32(i % classes)})
		}
	})
	if n := len(s.View().Sched().Running); n != running {
		b.Fatalf("%d run", n)
	}
	do(s.View(), now)
	id := uint32(0)
	for b.Loop() {
		b.StopTimer()
		id++
		apply(func(t *state.Tx) {
			t.Reported(&state.Reported{JobID: id, Step: job.BatchStep, Node: names[int(id-1)%nodes]})
		})
		v := s.View()
		b.StartTimer()
		do(v, now)
	}
}
