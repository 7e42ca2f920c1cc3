package server

import (
	"log/slog"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
)

func newPair(t *testing.T, uses int) *pair {
	t.Helper()
	orders, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { orders.Close(); theirs.Close() })
	return &pair{orders: orders, uses: uses}
}

func closed(p *pair) bool { return p.orders.SetDeadline(time.Time{}) != nil }

func TestPoolIsBounded(t *testing.T) {
	var p pool
	worn := newPair(t, maxUses)
	if p.put(worn); !closed(worn) || len(p.idle) != 0 {
		t.Error("a pair that is worn out is kept")
	}
	for range maxIdle() {
		p.put(newPair(t, maxUses-1))
	}
	over := newPair(t, 0)
	if p.put(over); !closed(over) || len(p.idle) != maxIdle() {
		t.Errorf("%d idle, limit %d", len(p.idle), maxIdle())
	}
	last := p.idle[len(p.idle)-1]
	if got := p.take(); got != last || closed(got) {
		t.Error("not the one that was used last")
	}
	old := p.idle[0]
	old.since = time.Now().Add(-time.Hour)
	if p.shrink(time.Now().Add(-time.Minute)); !closed(old) || len(p.idle) != maxIdle()-2 {
		t.Errorf("%d idle after one has grown old", len(p.idle))
	}
	if p.shrink(time.Time{}); len(p.idle) != 0 || p.take() != nil {
		t.Error("some are left at the end")
	}
}

// TestSweeperIsBounded adds more than may wait: the last is removed by the caller.
func TestSweeperIsBounded(t *testing.T) {
	w := newSweeper(slog.New(slog.DiscardHandler))
	for i := range uint32(maxSweep + 1) {
		w.add(runKey{job: i}, &cgroup.Group{Driver: cgroup.None})
	}
	if len(w.todo) != maxSweep || !w.has(runKey{job: maxSweep - 1}) || w.has(runKey{job: maxSweep}) {
		t.Errorf("%d wait", len(w.todo))
	}
	waited := make(chan struct{})
	go func() { w.wait(runKey{job: 3}); close(waited) }()
	for range maxSweep {
		w.remove(<-w.todo)
	}
	<-waited
}
