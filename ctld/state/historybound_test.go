package state

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// TestMaxHistory: the run times of MaxHistory users are kept; for one more another user's leave, the next uid's.
func TestMaxHistory(t *testing.T) {
	s := New()
	s.Apply(1, 1000, func(tx *Tx) {
		tx.RaiseFeature(FeatureSched)
		ended := func(uid uint32) {
			old := &Job{Spec: &job.Spec{UID: uid}, State: job.Running, Start: 1}
			tx.remember(old, &Job{Spec: old.Spec, State: job.Completed, Start: 1, End: 501})
		}
		for uid := range uint32(MaxHistory) {
			ended(10 + 2*uid)
		}
		if n := tx.history.Len(); n != MaxHistory {
			t.Fatalf("run times of %d users", n)
		}
		ended(10) // known: nobody leaves
		ended(101)
		if n := tx.history.Len(); n != MaxHistory || tx.History(101) != (RunTimes{500, 0}) || tx.History(102) != (RunTimes{}) || tx.History(10) != (RunTimes{500, 500}) {
			t.Fatalf("%d users, %v %v %v", n, tx.History(101), tx.History(102), tx.History(10))
		}
		last := uint32(10 + 2*MaxHistory)
		ended(last + 1) // behind the last one the hand goes round
		if tx.history.Len() != MaxHistory || tx.History(10) != (RunTimes{}) {
			t.Fatalf("%v", tx.History(10))
		}
	})
}
