package replica

import (
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	const hour = int64(time.Hour / time.Millisecond)
	var c Clock
	var elapsed time.Duration
	state := int64(0)
	at := func(wall, want int64) {
		t.Helper()
		got := c.At(wall, state, elapsed)
		if got != want {
			t.Errorf("wall %d, state %d: %d, want %d", wall, state, got, want)
		}
		if got < state {
			t.Errorf("before the state's time")
		}
		state = got // an entry was made
	}
	at(100*hour, 100*hour)
	elapsed += time.Hour
	at(101*hour, 101*hour)
	at(104*hour, 104*hour) // set forward by three hours
	at(101*hour, 104*hour) // and back
	elapsed += time.Minute
	at(101*hour+60_000, 104*hour+30_000) // half as fast
	elapsed += time.Minute
	at(101*hour+120_000, 104*hour+60_000)
	elapsed += 6 * time.Hour // until the wall clock has caught up
	at(107*hour+120_000, 107*hour+120_000)
	elapsed += time.Second
	at(107*hour+121_000, 107*hour+121_000)

	// Without entries time goes on too.
	state = 200 * hour
	idle := c.At(0, state, elapsed)
	elapsed += 10 * time.Minute
	if got := c.At(0, state, elapsed); got != idle+5*60_000 {
		t.Errorf("idle: %d after %d", got, idle)
	}
	var fresh Clock
	if got := fresh.At(5, 0, time.Hour); got != 5 {
		t.Errorf("fresh: %d", got)
	}
}
