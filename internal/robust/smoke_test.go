package robust

import (
	"fmt"
	"testing"
	"time"
)

// TestSmoke: a cluster of processes comes up behind its relays, runs jobs, loses its leader and goes on.
func TestSmoke(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster; not with -short")
	}
	c := start(t, layout{controllers: 3, nodes: 2})
	for i := range 20 {
		c.submit(c.spec(fmt.Sprintf("a%d", i), "/bin/sleep 0.2"))
	}
	c.proc[c.leader()].kill()
	for i := range 20 {
		c.submit(c.spec(fmt.Sprintf("b%d", i), "/bin/sleep 0.2"))
	}
	jobs := c.drained(time.Minute, nil)
	if len(jobs) != 40 {
		t.Errorf("%d jobs, want 40", len(jobs))
	}
	for name, j := range jobs {
		if j.State != "COMPLETED" || j.Run != 0 {
			t.Errorf("%s is %s in run %d", name, j.State, j.Run)
		}
	}
	t.Logf("%+v", c.checkRan(jobs))
}
