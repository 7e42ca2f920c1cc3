package raftbench

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Load runs the shape's callers against call, which submits PerCall commands and returns when
// they are durable. seq is different for each call, so that no two submissions are alike.
func Load(ctx context.Context, s Shape, call func(ctx context.Context, caller int, seq uint64) error) *Figures {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		all     []time.Duration
		total   int
		errs    int
		last    string
		counted atomic.Bool
		stop    atomic.Bool
		seq     atomic.Uint64
	)
	perCall := max(1, s.PerCall)
	for caller := range s.Callers {
		wg.Go(func() {
			var mine []time.Duration
			done := 0
			for !stop.Load() && ctx.Err() == nil {
				began := time.Now()
				from := counted.Load()
				err := call(ctx, caller, seq.Add(1))
				if err == nil {
					done++
				}
				if err != nil {
					mu.Lock()
					errs, last = errs+1, err.Error()
					mu.Unlock()
					time.Sleep(10 * time.Millisecond)
				} else if from && !stop.Load() {
					mine = append(mine, time.Since(began))
				}
			}
			mu.Lock()
			all, total = append(all, mine...), total+done
			mu.Unlock()
		})
	}
	sleep(ctx, s.Warmup)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, began := cpuTime(), time.Now()
	counted.Store(true)
	sleep(ctx, s.Duration)
	stop.Store(true)
	took, used := time.Since(began), cpuTime()-cpu
	runtime.ReadMemStats(&after)
	wg.Wait()
	f := &Figures{Count: len(all) * perCall, Total: total * perCall, Errors: errs, LastError: last}
	if len(all) == 0 {
		return f
	}
	slices.Sort(all)
	f.PerSecond = float64(f.Count) / took.Seconds()
	f.P50, f.P99 = all[len(all)/2], all[len(all)*99/100]
	f.CPU = used / time.Duration(f.Count)
	f.Allocs = float64(after.Mallocs-before.Mallocs) / float64(f.Count)
	f.AllocSize = float64(after.TotalAlloc-before.TotalAlloc) / float64(f.Count)
	return f
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
