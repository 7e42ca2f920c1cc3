package launch_test

import (
	"os"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// TestSuspendedStepStandsStill takes steps through each driver that this machine has: they stand still, go on, and can
// be ended while they stand still, those they made included.
func TestSuspendedStepStandsStill(t *testing.T) {
	const script = "#!/bin/bash\n(while :; do echo b >>child; sleep 0.02; done) &\nwhile :; do echo a >>out2; sleep 0.02; done"
	for _, driver := range []string{cgroup.Hybrid, cgroup.V1, cgroup.Track, cgroup.None} {
		t.Run(driver, func(t *testing.T) {
			n := newNode(t, "cgroup_driver="+driver)
			if got := n.ask(launch.Request{List: true}).Driver; got != driver {
				t.Skipf("this machine gives %s", got)
			}
			size := func() int { return len(n.read("out2")) + len(n.read("child")) }
			grows := func() bool {
				was := size()
				time.Sleep(200 * time.Millisecond)
				return size() > was
			}
			soon := func(what string, want bool) {
				t.Helper()
				for range 50 {
					if grows() == want {
						return
					}
				}
				t.Fatalf("the step never %s", what)
			}
			on, off := true, false
			k := n.start(n.order(script))
			n.waitFor("out2", "a")
			n.waitFor("child", "b")
			n.tell(k, shepherd.Down{Suspend: &on})
			soon("stood still", false)
			n.tell(k, shepherd.Down{Suspend: &off})
			soon("went on", true)
			n.tell(k, shepherd.Down{Suspend: &on})
			soon("stood still again", false)
			n.tell(k, shepherd.Down{Terminate: &shepherd.Terminate{Why: uint8(job.WhyCancel), KillWait: 30000}})
			if r := n.wait(k); r.Signal != 15 || job.Why(r.Why) != job.WhyCancel || r.End-r.Start > 25000 {
				t.Errorf("ended as %+v, want it by TERM at once", *r)
			}
			n.release(k)
			os.Remove(n.dir + "/home/out2")
			k = n.start(n.order(script))
			n.waitFor("out2", "a")
			if r := n.ask(launch.Request{Freeze: &launch.Freeze{Key: k, On: true}}); r.Err != "" {
				t.Error(r.Err)
			}
			if r := n.ask(launch.Request{Kill: &k}); r.Err != "" {
				t.Error(r.Err)
			}
			if r := n.wait(k); r.Signal != 9 {
				t.Errorf("killed while it stood still: %+v", *r)
			}
			n.release(k)
		})
	}
}
