package daemon

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
	"time"
)

// The collector's share of a submission is a third when the heap is small, since it then runs many
// times a second, and on a small machine its helpers take the other controllers' processors. It is
// given room to be lazy, in bytes and not in percent, so that a large state does not need three
// times its size. What is garbage at rest leaves anyhow: the runtime collects every two minutes.
const (
	gcRoom     = 512 << 20 // most bytes of garbage that are fine
	gcShare    = 16        // and of the machine's memory only one part in so many
	gcLeast    = 100       // percent, the runtime's own default
	gcMost     = 12800
	gcLeastEst = gcRoom / (gcMost / 100) // a heap said to be smaller is taken for this
	gcEvery    = time.Second
	liveBytes  = "/gc/heap/live:bytes"
)

// gcPercent is the collector's target for a live heap when room bytes of garbage are fine.
func gcPercent(live, room uint64) int {
	live = max(live, gcLeastEst)
	return int(min(max(room*100/live, gcLeast), gcMost))
}

// garbageRoom is how much garbage is fine on a machine with that much memory.
func garbageRoom(memory uint64) uint64 { return min(gcRoom, memory/gcShare) }

// machineMemory is the machine's memory in bytes; 0 when it is not known.
func machineMemory() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

// tuneGC follows the heap until ctx ends. A GOGC in the environment is the site's own choice.
func tuneGC(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	room := garbageRoom(machineMemory())
	sample := []metrics.Sample{{Name: liveBytes}}
	for last := 0; ; {
		metrics.Read(sample)
		var live uint64
		if sample[0].Value.Kind() == metrics.KindUint64 {
			live = sample[0].Value.Uint64()
		}
		if p := gcPercent(live, room); p != last {
			debug.SetGCPercent(p)
			last = p
		}
		if !rest(ctx, gcEvery) {
			return
		}
	}
}
