package daemon

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The collector's share of a submission is a third when the heap is small, since it then runs many
// times a second. It is given room to be lazy, in bytes and not in percent, so that a large state
// does not need three times its size.
const (
	gcRoom    = 512 << 20 // bytes of garbage that are fine
	gcLeast   = 100       // percent, the runtime's own default
	gcMost    = 400
	gcEvery   = 5 * time.Second
	liveBytes = "/gc/heap/live:bytes"
)

// gcPercent is the collector's target for a live heap.
func gcPercent(live uint64) int {
	if live == 0 {
		return gcMost
	}
	return int(min(max(gcRoom*100/live, gcLeast), gcMost))
}

// tuneGC follows the heap until ctx ends. A GOGC in the environment is the site's own choice.
func tuneGC(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	sample := []metrics.Sample{{Name: liveBytes}}
	for last := 0; ; {
		metrics.Read(sample)
		var live uint64
		if sample[0].Value.Kind() == metrics.KindUint64 {
			live = sample[0].Value.Uint64()
		}
		if p := gcPercent(live); p != last {
			debug.SetGCPercent(p)
			last = p
		}
		if !rest(ctx, gcEvery) {
			return
		}
	}
}
