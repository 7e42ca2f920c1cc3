package robust

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestStopped: agents, and launchers with them, stand still for random times (SIGSTOP) while jobs with a
// lease of 5 s run and come; what lay in their sockets and queues meanwhile is read when they go on. Never
// are two copies of a job alive.
func TestStopped(t *testing.T) {
	long(t)
	c := start(t, layout{controllers: 3, nodes: 3, cpus: 8, set: []string{"SlurmdTimeout=5", "MaxBatchRequeue=1000", "JobLease=5"},
		partitions: []string{"PartitionName=batch Nodes=ALL Default=YES JobLease=5"}})
	rng := rand.New(rand.NewPCG(7, *seed))
	jobs := 0
	submit := func(n int) {
		for range n {
			spec := c.spec(fmt.Sprintf("j%d", jobs), c.gate("end", 0))
			spec.Requeue = 1
			c.submit(spec)
			jobs++
		}
	}
	submit(6)
	c.running("j", 6, time.Minute)
	for round := range 6 {
		victim := node(rng.IntN(3))
		halted := []string{victim}
		if round%2 == 1 {
			halted = append(halted, launcher(victim))
		}
		for _, p := range halted {
			c.proc[p].stop()
		}
		submit(2) // some of them are sent to who does not read
		time.Sleep(2*time.Second + time.Duration(rng.Int64N(int64(14*time.Second))))
		for _, p := range halted {
			c.proc[p].cont()
		}
		within(t, time.Minute, victim+" is back", func() error {
			if n := c.nodeNow(victim); n.State == "DOWN" || len(n.Flags) > 0 {
				return fmt.Errorf("it is %s %v %s", n.State, n.Flags, n.Reason)
			}
			return nil
		})
	}
	c.running("j", jobs, time.Minute)
	c.touch("end")
	final := c.drained(2*time.Minute, nil)
	n := c.checkRan(final)
	for name, j := range final {
		if j.State != "COMPLETED" {
			t.Errorf("%s is %s %s", name, j.State, j.Reason)
		}
	}
	t.Logf("%+v", n)
	figure(t, "stopped_completed", float64(len(final)), "jobs", float64(jobs))
}
