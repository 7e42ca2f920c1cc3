package robust

import (
	"fmt"
	"testing"
	"time"
)

// TestSmoke: a cluster of processes comes up behind its relays, runs jobs, loses its leader and goes on.
func TestSmoke(t *testing.T) {
	smoke(t)
	c := start(t, layout{controllers: 3, nodes: 2})
	for i := range 20 {
		c.submit(c.spec(fmt.Sprintf("a%d", i), "/bin/sleep 0.2"))
	}
	c.proc[c.leader()].kill()
	for i := range 20 {
		c.submit(c.spec(fmt.Sprintf("b%d", i), "/bin/sleep 0.2"))
	}
	if out, err := c.command("sbatch", "-J", "real-client", "-o", "/dev/null", "--wrap", string(c.script(":"))); err != nil {
		t.Errorf("%s %v", out, err)
	}
	jobs := c.drained(time.Minute, nil)
	if len(jobs) != 41 {
		t.Errorf("%d jobs, want 41", len(jobs))
	}
	for name, j := range jobs {
		if j.State != "COMPLETED" || j.Run != 0 {
			t.Errorf("%s is %s in run %d", name, j.State, j.Run)
		}
	}
	c.checkRan(jobs)
}

// TestSmokeFailover is the small form of make robust-failover: kills by signal and at points, then of all.
func TestSmokeFailover(t *testing.T) {
	smoke(t)
	f := newFailover(t, 10)
	f.round("signal", 100, func(p *process) { p.kill() })
	f.round("point", 100, func(p *process) {
		p.fault(t, "replica.after-store", "kill 3")
		if _, err := p.waitEnd(20 * time.Second); err != nil {
			t.Error(err)
			p.kill()
		}
	})
	f.allKilled("all", 100, 1)
	f.finish("smoke_failover", 10)
}
