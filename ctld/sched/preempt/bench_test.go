package preempt

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// BenchmarkFind looks for room on 10,000 full nodes with 40,000 runs.
func BenchmarkFind(b *testing.B) {
	for _, bb := range []struct {
		name string
		spec job.Spec
	}{
		{"one node", job.Spec{NTasks: 3, MinNodes: 1, MaxNodes: 1}},
		{"one CPU", job.Spec{}},
		{"64 whole nodes", job.Spec{MinNodes: 64, MaxNodes: 64, Exclusive: true}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			var victims []Victim
			for i := range 40000 {
				victims = append(victims, on(1, i/4).with(cost(int64(i*7919%1000))))
			}
			s := newScene(b, 10000, bb.spec, job.Extra{}, victims...)
			for b.Loop() {
				if _, picks := Find(s.in); picks == nil {
					b.Fatal("nothing found")
				}
			}
		})
	}
}
