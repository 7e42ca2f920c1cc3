package replica

import (
	"sync"
	"time"
)

// Clock gives the time that the state goes by. It is the wall clock as long as that is not behind the
// state. When the wall clock is (it was set back, after entries were made, or by another controller than
// the last leader), the state's time goes on at half the speed of elapsed time until the wall clock has
// caught up: standing still for as long as the clock was off, nothing that waits for a moment would come.
// The zero value is ready.
type Clock struct {
	mu    sync.Mutex
	base  int64         // a time that the state had, Unix ms
	since time.Duration // elapsed time at which it had it
}

// At is the time, Unix ms: wall is the wall clock, floor the state's time, elapsed a clock that does not
// jump. It is never before floor, and never runs back as long as wall does not.
func (c *Clock) At(wall, floor int64, elapsed time.Duration) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	slow := c.base + (elapsed-c.since).Milliseconds()/2
	if slow < floor || c.base == 0 {
		c.base, c.since, slow = floor, elapsed, floor
	}
	return max(wall, slow)
}
