package sim_test

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/ctld/sim"
)

var (
	seeds   = flag.Int("seeds", 8, "TestSeeds: how many seeds")
	events  = flag.Int("events", 1500, "TestSeeds, TestSim: events of each")
	seed    = flag.Uint64("seed", 1, "TestSeeds: the first of them")
	every   = flag.Int("every", 0, "TestSeeds: events between the costly checks (0 = as usual)")
	off     = flag.String("off", "", "TestSeeds: kinds of actions that do not happen, with commas")
	last    = flag.Int("last", 40, "how many of the last events a failure tells")
	shrink  = flag.Bool("shrink", true, "look for a smaller run that fails")
	simTime = flag.Duration("sim-time", 0, "TestSim: how long fresh seeds are run")
)

func kinds() []string {
	if *off == "" {
		return nil
	}
	return strings.Split(*off, ",")
}

// TestSeeds runs a few seeds, always the same unless told otherwise.
func TestSeeds(t *testing.T) {
	var sum sim.Stats
	defer func() { t.Logf("%+v", sum) }()
	for i := range *seeds {
		if t.Failed() {
			return
		}
		sum.Add(report(t, sim.Options{Seed: *seed + uint64(i), Events: *events, Every: *every, Off: kinds()}))
	}
}

func report(t *testing.T, o sim.Options) sim.Stats {
	stats, f := sim.Run(o)
	if f != nil {
		small := f
		if *shrink {
			small = sim.Shrink(f)
		}
		small.Last = small.Last[max(0, len(small.Last)-*last):]
		t.Errorf("%s\nthe smallest that fails: %s\nits last events:\n%s", f.Error(), small.Error(), strings.Join(small.Last, "\n"))
	}
	return stats
}

// TestReplay: a run is a function of its options.
func TestReplay(t *testing.T) {
	o := sim.Options{Seed: 7, Events: 1000}
	a, err := sim.Fingerprint(o)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := sim.Fingerprint(o); err != nil || a != b {
		t.Fatalf("%x and %x (%v)", a, b, err)
	}
	o.Seed++
	if b, err := sim.Fingerprint(o); err != nil || a == b {
		t.Fatalf("another seed ends in the same state (%v)", err)
	}
}

// TestSim runs fresh seeds for a while, one for each core at a time (make sim).
func TestSim(t *testing.T) {
	if *simTime == 0 {
		t.Skip("runs with -sim-time")
	}
	const target = 1_000_000
	begin := time.Now()
	first := uint64(begin.UnixNano())
	var mu sync.Mutex
	var sum sim.Stats
	var runs uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for time.Since(begin) < *simTime && !t.Failed() {
				mu.Lock()
				mine := first + runs
				runs++
				mu.Unlock()
				stats := report(t, sim.Options{Seed: mine, Events: 2 * *events})
				mu.Lock()
				sum.Add(stats)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	took := time.Since(begin).Seconds()
	verdict := "ok"
	if sum.Events < target {
		verdict = "short"
		t.Errorf("%d events", sum.Events)
	}
	fmt.Printf("seeds %d to %d: %d log entries, %d jobs, %d runs, %d restores, %d terms\n", first, first+runs-1, sum.Entries, sum.Jobs, sum.Runs, sum.Restores, sum.Terms)
	fmt.Printf("figure sim-events-per-second %.0f 1/s\n", float64(sum.Events)/took)
	fmt.Printf("figure sim-events %d events (target >= %d) %s\n", sum.Events, target, verdict)
}
