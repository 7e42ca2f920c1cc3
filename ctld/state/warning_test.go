package state_test

import (
	"slices"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// TestUserSignalOfGrace: with send_user_signal a run that has a signal of its own gets that at the begin of its grace,
// unless its time has come before.
func TestUserSignalOfGrace(t *testing.T) {
	const hour = 3600_000
	cont, term := state.Signal{Seq: 1, Number: 18, Full: true}, state.Signal{Seq: 2, Number: 15, Full: true}
	for _, c := range []struct {
		name, words, signal string
		limit, runs         int64
		want                state.Signal
	}{
		{"not asked for", "youngest_first", "USR1", hour, 0, term},
		{"no signal of its own", "send_user_signal", "", hour, 0, term},
		{"steps", "send_user_signal", "USR1", hour, 0, state.Signal{Seq: 2, Number: 10}},
		{"batch script", "SEND_USER_SIGNAL", "B:USR2@60", hour, 0, state.Signal{Seq: 2, Number: 12, BatchOnly: true}},
		{"no limit", "send_user_signal", "USR1@60", -1, 0, state.Signal{Seq: 2, Number: 10}},
		{"just before its time", "send_user_signal", "USR1@60", hour, hour - 62_000, state.Signal{Seq: 2, Number: 10}},
		{"its time has come", "send_user_signal", "USR1@60", hour, hour - 60_000, term},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld3(t, func(cfg *state.Config) { cfg.Sched.PreemptParameters = []string{c.words} })
			id := w.run(job.Spec{Signal: c.signal, TimeLimit: c.limit})
			j := w.job(id)
			w.now = j.Start + c.runs
			w.decide(&sched.Decision{Evicts: []sched.Evict{{JobID: id, Run: j.Run, How: sched.EvictCancel, By: 99, Grace: 10_000}}})
			if got := w.job(id).Signals; !slices.Equal(got, []state.Signal{cont, c.want}) {
				t.Fatalf("%+v, want %+v", got, c.want)
			}
		})
	}
}
