package launch_test

import (
	"os"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// TestEachDriver takes a step that ends, one that must be killed and one that leaves something
// behind through each driver that this machine has.
func TestEachDriver(t *testing.T) {
	for _, driver := range []string{cgroup.Hybrid, cgroup.V1, cgroup.Track, cgroup.None} {
		t.Run(driver, func(t *testing.T) {
			n := newNode(t, "cgroup_driver="+driver, "pids_max=100", "constrain_cores=yes")
			if got := n.ask(launch.Request{List: true}).Driver; got != driver {
				t.Skipf("this machine gives %s", got)
			}
			share := func(l *cred.Launch) { l.Alloc.Mem, l.Alloc.CPUIDs = 256<<20, []uint32{0} }
			k := n.start(n.order("#!/bin/bash\nexit 3", share))
			if r := n.wait(k); r.ExitCode != 3 || r.Signal != 0 {
				t.Errorf("got %+v, want 3:0", *r)
			}
			n.release(k)
			os.Remove(n.dir + "/home/out")
			k = n.start(n.order("#!/bin/bash\ntrap '' TERM\nsetsid sleep 1000 &\necho up\nwhile :; do sleep 100; done", share,
				func(l *cred.Launch) { l.TimeLimit, l.KillWait = 400, 200 }))
			n.waitFor("out", "up")
			if r := n.ask(launch.Request{Release: &launch.Release{Key: k}}); r.Err == "" {
				t.Error("released while it lives")
			}
			if r := n.wait(k); r.Signal != 9 || job.Why(r.Why) != job.WhyTimeLimit {
				t.Errorf("got %+v, want 0:9 for its time", *r)
			}
			n.release(k)
			k = n.start(n.order("#!/bin/bash\n(setsid sleep 1001 </dev/null >/dev/null 2>&1 &)\nexit 5", share))
			if r := n.wait(k); r.ExitCode != 5 || r.Why != 0 {
				t.Errorf("got %+v, want 5:0", *r)
			}
			n.release(k)
		})
	}
}
