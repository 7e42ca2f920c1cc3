package state_test

import (
	"fmt"
	"testing"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// BenchmarkChangeAccounting is one change of an account's limit, and one more user, with 100,000 jobs of 200 users waiting
// and limits enforced: it looks at what they are counted for, not at them.
func BenchmarkChangeAccounting(b *testing.B) {
	w := enforced(b)
	for i := range 200 {
		w.must("add", "user", nil, []string{fmt.Sprintf("name=u%03d", i), "account=lab"})
	}
	w.index++
	w.s.Apply(w.index, w.now, func(t *state.Tx) {
		for i := range 100_000 {
			s := job.Spec{UID: uint32(5000 + i%200), User: fmt.Sprintf("u%03d", i%200)}
			if _, _, r := t.Submit("", nil, &s); r != nil {
				b.Fatal(r)
			}
		}
	})
	change := func(c accounting.Change) {
		w.index++
		w.s.Apply(w.index, w.now, func(t *state.Tx) {
			if _, r := t.ChangeAccounting(c, root); r != nil {
				b.Fatal(r)
			}
		})
	}
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		change(accounting.Change{Verb: "modify", Entity: "account", Where: clausesOf("name=lab"), Set: clausesOf(fmt.Sprint("grptres=cpu=", 10+i%1000))})
		change(accounting.Change{Verb: "add", Entity: "user", Set: clausesOf(fmt.Sprint("name=n", i), "account=lab")})
	}
}
