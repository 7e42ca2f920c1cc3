package daemon

import (
	"flag"
	"fmt"
	"testing"
)

var benchDepth = flag.Int("bench-depth", 1_000_000, "the deepest queue of the measurements, jobs")

// depthFall is how much the rate may fall from the shallowest queue to any deeper one, percent.
const depthFall = 10.0

// depthJobs is how many jobs a second each measurement is laid out for.
const depthJobs = 4_000

// byDepth measures the rate with ever deeper queues, three times each, of which the best counts, since what else the
// machine does only ever takes from it: each measurement starts the same number of jobs, and so many as its depth are
// still queued when it ends. The figure is the largest fall from the shallowest queue to any of the others.
func (c *simCluster) byDepth(t *testing.T, name string, depths ...int) {
	t.Helper()
	jobs, first, worst := depthJobs**benchSeconds, 0.0, 0.0
	c.submit(jobs, 100)
	c.rate(jobs) // everything has been done once before it counts
	for _, depth := range depths {
		depth = min(depth, *benchDepth)
		rate, held := 0.0, 0.0
		for range 3 {
			_, queued, _ := c.log.View().Counts()
			c.submit(depth+jobs-queued, 100)
			held = heap() // what the submissions left is not to be collected in the measurement
			rate = max(rate, c.rate(jobs))
		}
		fmt.Printf("figure %s_%d_starts %.0f 1/s\nfigure %s_%d_memory %.0f MiB\n", name, depth, rate, name, depth, held)
		if first == 0 {
			first = rate
		}
		worst = max(worst, 100*(1-rate/first))
	}
	schedFigure(t, name+"_fall", worst, "%", "<=", depthFall)
}

// TestBenchDepth measures the rate with up to a million jobs queued, on one replica.
func TestBenchDepth(t *testing.T) {
	if !*benchSched {
		t.Skip("only with -bench-sched (make bench-sched)")
	}
	newSimCluster(t, simSetup{nodes: simNodes}).byDepth(t, "depth", 2_000, 16_000, 128_000, 1_000_000)
}

// TestBenchReplicas measures the rate with up to 64,000 jobs queued, on three replicas: raft by mutual TLS, and each
// syncs its own log to the disk that they share. The memory is that of all three.
func TestBenchReplicas(t *testing.T) {
	if !*benchSched {
		t.Skip("only with -bench-sched (make bench-sched)")
	}
	c := newSimCluster(t, simSetup{nodes: simNodes, replicas: 3})
	c.byDepth(t, "replicas", 2_000, 16_000, 64_000)
}
