package robust

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// gate is a script's body that waits for a file of the work folder and then ends with a code.
func (c *cluster) gate(file string, code int) string {
	return fmt.Sprintf("while [ ! -e %s ]; do /bin/sleep 0.5; done; (exit %d)", c.path("work", file), code)
}

// touch opens a gate.
func (c *cluster) touch(file string) { c.ok(os.WriteFile(c.path("work", file), nil, 0o644)) }

// running waits until all jobs of a prefix run, by the controllers' word and by what they wrote.
func (c *cluster) running(prefix string, n int, most time.Duration) map[string]*ctldpb.Job {
	c.t.Helper()
	var jobs map[string]*ctldpb.Job
	within(c.t, most, fmt.Sprintf("%d jobs %s run", n, prefix), func() error {
		jobs = c.allJobs()
		up := 0
		for name, j := range jobs {
			if strings.HasPrefix(name, prefix) && j.State == "RUNNING" && len(j.Flags) == 0 && len(c.events(name)) > 0 {
				up++
			}
		}
		if up < n {
			return fmt.Errorf("%d do", up)
		}
		return nil
	})
	return jobs
}

// wrote waits until n jobs have written a line of that kind in any run.
func (c *cluster) wrote(prefix, what string, n int, most time.Duration) {
	c.t.Helper()
	within(c.t, most, fmt.Sprintf("%d jobs %s wrote %q", n, prefix, what), func() error {
		have := 0
		for _, name := range c.ran() {
			for _, e := range c.events(name) {
				if strings.HasPrefix(name, prefix) && e.what == what {
					have++
					break
				}
			}
		}
		if have < n {
			return fmt.Errorf("%d did", have)
		}
		return nil
	})
}

// setNode changes a node as an admin; it repeats until a leader has taken it.
func (c *cluster) setNode(name string, set map[string]string) {
	c.t.Helper()
	within(c.t, 30*time.Second, "update of node "+name, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		res, err := c.user(0).any().UpdateNode(ctx, &ctldpb.UpdateNodeRequest{Names: name, Set: set})
		if err == nil && len(res.Results) > 0 && res.Results[0].Code != "" {
			err = fmt.Errorf("%s: %s", res.Results[0].Code, res.Results[0].Text)
		}
		return err
	})
}

// nodeNow is a node as the leader shows it.
func (c *cluster) nodeNow(name string) *ctldpb.Node {
	c.t.Helper()
	var n *ctldpb.Node
	within(c.t, 30*time.Second, "node "+name, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		res, err := c.user(0).any().ListNodes(ctx, &ctldpb.ListNodesRequest{Names: []string{name}})
		if err == nil && len(res.Nodes) != 1 {
			err = errNotYet
		}
		if err == nil {
			n = res.Nodes[0]
		}
		return err
	})
	return n
}

// TestNoLeader: no leader for 60 s while 200 jobs end; all have the right code soon after one is back.
func TestNoLeader(t *testing.T) {
	long(t)
	const jobs, away = 200, 60 * time.Second
	c := start(t, layout{controllers: 3, nodes: 10, cpus: 20})
	codes := map[string]int{}
	for i := range jobs {
		name := fmt.Sprintf("j%d", i)
		codes[name] = i % 4
		c.submit(c.spec(name, c.gate("end", codes[name])))
	}
	c.running("j", jobs, 2*time.Minute)
	for _, n := range c.names {
		c.proc[n].kill()
	}
	killed := time.Now()
	c.touch("end")
	c.wrote("j", "end", jobs, away)
	time.Sleep(time.Until(killed.Add(away)))
	for _, n := range c.names {
		c.run(n)
	}
	c.leader()
	back := time.Now()
	final := c.drained(30*time.Second, nil)
	took := time.Since(back)
	right := 0
	for name, want := range codes {
		state := "COMPLETED"
		if want != 0 {
			state = "FAILED"
		}
		if j := final[name]; j == nil || j.State != state || j.Exit.GetCode() != int32(want) || j.Run != 0 {
			t.Errorf("%s: want %s %d, is %v", name, state, want, j)
			continue
		}
		right++
	}
	c.checkRan(final)
	figure(t, "no_leader_right", float64(right), "jobs", jobs)
	most(t, "no_leader_reported", took.Seconds(), "s", 5)
}

// TestBlackHoleAgent: one of ten agents takes connections and never answers; 50 jobs on the others end
// within seconds, and what was meant for it ends too once it is back.
func TestBlackHoleAgent(t *testing.T) {
	long(t)
	for _, how := range []string{"stopped", "swallowed"} {
		t.Run(how, func(t *testing.T) {
			c := start(t, layout{controllers: 3, nodes: 10, cpus: 8})
			if how == "stopped" {
				c.proc["n1"].stop()
			} else {
				// It goes on talking, and what it is asked to start stays with it.
				c.proc["n1"].fault(t, "agent.before-claim", "sleep 1h")
			}
			begin := time.Now()
			const jobs = 58 // no more than 8 can be given to n1
			for i := range jobs {
				c.submit(c.spec(fmt.Sprintf("j%d", i), "/bin/sleep 1"))
			}
			within(t, 30*time.Second, "50 jobs on the others are over", func() error {
				n := 0
				for _, j := range c.allJobs() {
					if j.State == "COMPLETED" && j.NodeList != "n1" {
						n++
					}
				}
				if n < 50 {
					return fmt.Errorf("%d are", n)
				}
				return nil
			})
			most(t, "black_hole_"+how, time.Since(begin).Seconds(), "s", 10)
			if how == "stopped" {
				time.Sleep(5 * time.Second)
				c.proc["n1"].cont()
			} else {
				c.proc["n1"].noFaults()
				c.proc["n1"].kill()
				c.run("n1")
			}
			final := c.drained(3*time.Minute, nil)
			n := c.checkRan(final)
			for name, j := range final {
				if j.State != "COMPLETED" {
					t.Errorf("%s is %s %s", name, j.State, j.Reason)
				}
			}
			t.Logf("%+v", n)
		})
	}
}

// TestReadOnlySpool: a node whose spool cannot be written drains with the errno; its 20 jobs run elsewhere,
// and it comes back by itself.
func TestReadOnlySpool(t *testing.T) {
	long(t)
	c := start(t, layout{controllers: 3, nodes: 2, cpus: 20, tmpfs: map[string]int{"n1": 16}})
	c.setNode("n2", map[string]string{"State": "DRAIN", "Reason": "later"})
	within(t, 10*time.Second, "the spool is read-only", func() error { return remount(c.path("spool", "n1"), true) })
	for i := range 20 {
		c.submit(c.spec(fmt.Sprintf("j%d", i), ":"))
	}
	var reason string
	within(t, 30*time.Second, "n1 drains", func() error {
		n := c.nodeNow("n1")
		reason = n.Reason
		for _, f := range n.Flags {
			if f == "DRAIN" {
				return nil
			}
		}
		return fmt.Errorf("it is %s %v %q", n.State, n.Flags, n.Reason)
	})
	if !strings.Contains(reason, "read-only file system") {
		t.Errorf("n1 drains with the reason %q, want the errno's text", reason)
	}
	t.Logf("n1 drains: %s", reason)
	c.setNode("n2", map[string]string{"State": "RESUME"})
	final := c.drained(2*time.Minute, nil)
	elsewhere := 0
	for name, j := range final {
		ev := c.events(name)
		if j.State != "COMPLETED" || j.NodeList != "n2" || len(ev) != 2 {
			t.Errorf("%s is %s on %q: %+v", name, j.State, j.NodeList, ev)
			continue
		}
		elsewhere++
	}
	c.checkRan(final)
	figure(t, "read_only_spool_elsewhere", float64(elsewhere), "jobs", 20)
	c.ok(remount(c.path("spool", "n1"), false))
	within(t, time.Minute, "n1 is back by itself", func() error {
		if n := c.nodeNow("n1"); n.State != "IDLE" || len(n.Flags) > 0 {
			return fmt.Errorf("it is %s %v %q", n.State, n.Flags, n.Reason)
		}
		return nil
	})
}

// TestStaleReport: the report of a run that ended on a node that was cut off comes when the next run runs
// elsewhere; it changes nothing.
func TestStaleReport(t *testing.T) {
	long(t)
	c := start(t, layout{controllers: 3, nodes: 2, set: []string{"SlurmdTimeout=5"}})
	c.setNode("n2", map[string]string{"State": "DRAIN", "Reason": "later"})
	spec := c.spec("j", c.gate("end-$GRID_JOB_RUN", 3))
	spec.Requeue = 1
	id := c.submit(spec)
	c.running("j", 1, 30*time.Second)
	c.isolate("n1", cut)
	c.touch("end-0")
	c.wrote("j", "end", 1, 10*time.Second)
	within(t, 30*time.Second, "n1 is down", func() error {
		if n := c.nodeNow("n1"); n.State != "DOWN" {
			return fmt.Errorf("it is %s %v", n.State, n.Flags)
		}
		return nil
	})
	c.setNode("n2", map[string]string{"State": "RESUME"})
	if out, err := c.admin("gctl", "node", "fenced", "n1"); err != nil {
		t.Fatalf("%s %v", out, err)
	}
	within(t, 30*time.Second, "the second run", func() error {
		if e := c.events("j"); len(e) != 3 || e[2].run != 1 {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	c.heal()
	within(t, 30*time.Second, "n1 is back", func() error {
		if n := c.nodeNow("n1"); n.State != "IDLE" {
			return fmt.Errorf("it is %s %v %s", n.State, n.Flags, n.Reason)
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	if j := c.allJobs()["j"]; j.State != "RUNNING" || j.Run != 1 || j.NodeList != "n2" {
		t.Errorf("after the report of run 0 job %d is %s in run %d on %s", id, j.State, j.Run, j.NodeList)
	}
	c.touch("end-1")
	final := c.drained(30*time.Second, nil)
	if j := final["j"]; j.State != "FAILED" || j.Exit.GetCode() != 3 || j.Run != 1 {
		t.Errorf("%s %v in run %d", j.State, j.Exit, j.Run)
	}
	c.checkRan(final)
}

// TestStaleCancel: orders to end earlier runs reach a node late and more than once, from one leader after
// the other; the run that is there goes on until it is meant.
func TestStaleCancel(t *testing.T) {
	long(t)
	c := start(t, layout{controllers: 3, nodes: 1, set: []string{"MaxBatchRequeue=100"}})
	spec := c.spec("j", c.gate("end", 0))
	spec.Requeue = 1
	id := c.submit(spec)
	cl := &client{user: c.user(userUID), h: &history{}, try: 10 * time.Second}
	for pair, ls := range c.links {
		if pair[0] == "n1" {
			for _, l := range ls {
				l.slow(100*time.Millisecond, 400*time.Millisecond)
			}
		}
	}
	for run := range uint32(6) {
		within(t, time.Minute, fmt.Sprintf("run %d", run), func() error {
			e := c.events("j")
			if len(e) == 0 || e[len(e)-1].run != run {
				return fmt.Errorf("%+v", e)
			}
			return nil
		})
		// A run that an earlier one's orders reach would end by itself within this.
		time.Sleep(1500 * time.Millisecond)
		if j := c.allJobs()["j"]; j.Run != run || j.State != "RUNNING" {
			t.Fatalf("job %d is %s in run %d, want run %d running", id, j.State, j.Run, run)
		}
		if run == 5 {
			break
		}
		if run%2 == 1 {
			lead := c.leader()
			cl.control(lead, "j", id, doRequeue)
			c.proc[lead].kill()
			c.run(lead)
			continue
		}
		within(t, 30*time.Second, "requeue", func() error {
			if j := c.allJobs()["j"]; j.Run > run {
				return nil
			}
			if o := cl.control(c.leader(), "j", id, doRequeue); o.outcome != done {
				return fmt.Errorf("%s", o.text)
			}
			return nil
		})
	}
	c.touch("end")
	final := c.drained(time.Minute, nil)
	if j := final["j"]; j.State != "COMPLETED" || j.Run != 5 {
		t.Errorf("%s in run %d", j.State, j.Run)
	}
	c.checkRan(final)
}

// TestReboot: a node comes up with another boot id: nothing of it lives, its job starts again at once.
func TestReboot(t *testing.T) {
	smoke(t)
	c := start(t, layout{controllers: 3, nodes: 2})
	c.setNode("n2", map[string]string{"State": "DRAIN", "Reason": "the job is to run on n1"})
	spec := c.spec("j", c.gate("end", 0))
	spec.Requeue = 1
	c.submit(spec)
	c.running("j", 1, 30*time.Second)
	c.powerOff("n1")
	for _, p := range []string{"n1", launcher("n1")} {
		c.proc[p].fault(t, "bootid", "00000000-0000-4000-8000-00000000000b")
		c.run(p)
	}
	up := time.Now()
	within(t, time.Minute, "the second run", func() error {
		if e := c.events("j"); len(e) != 2 || e[1].run != 1 || e[1].what != "start" {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	most(t, "reboot_restart", time.Since(up).Seconds(), "s", 5)
	c.touch("end")
	c.checkRan(c.drained(time.Minute, nil))
}

// cuts are how often a node is cut off from all controllers, in lanes that do not share nodes.
const (
	cuts  = 20
	lanes = 4
)

// TestCutOff: nodes lose all controllers at random moments, half of them after their agent was killed;
// their jobs start elsewhere, and never are two copies alive. JobLease is 5 s.
func TestCutOff(t *testing.T) {
	long(t)
	c := start(t, layout{controllers: 3, nodes: 2 * lanes, cpus: 8, set: []string{"SlurmdTimeout=5", "MaxBatchRequeue=1000"},
		partitions: []string{"PartitionName=batch Nodes=ALL Default=YES JobLease=5"}})
	const jobs = 16
	for i := range jobs {
		spec := c.spec(fmt.Sprintf("j%d", i), c.gate("end", 0))
		spec.Requeue = int32(i % 2) // half ask for it, half only may be
		c.submit(spec)
	}
	c.running("j", jobs, time.Minute)
	var left atomic.Int64
	left.Store(cuts)
	var mu sync.Mutex
	var moved []time.Duration
	var wg sync.WaitGroup
	for lane := range lanes {
		rng := rand.New(rand.NewPCG(uint64(lane), *seed))
		wg.Go(func() {
			for {
				n := left.Add(-1)
				if n < 0 {
					return
				}
				victim := node(2*lane + rng.IntN(2))
				d := c.cutOff(victim, n%2 == 0, rng)
				mu.Lock()
				moved = append(moved, d...)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	c.touch("end")
	final := c.drained(2*time.Minute, nil)
	n := c.checkRan(final)
	for name, j := range final {
		if j.State != "COMPLETED" {
			t.Errorf("%s is %s %s", name, j.State, j.Reason)
		}
	}
	t.Logf("%d cuts, %d jobs moved, %+v; the slowest move took %v", cuts, len(moved), n, slowest(moved))
	figure(t, "cut_off_moved", float64(len(moved)), "jobs", 5)
	most(t, "cut_off_restart_median", median(moved).Seconds(), "s", 25)
}

func slowest(d []time.Duration) (most time.Duration) {
	for _, x := range d {
		most = max(most, x)
	}
	return most
}

// cutOff takes a node away from all controllers for a random time and gives how long its jobs took to
// start elsewhere, those that did.
func (c *cluster) cutOff(victim string, killAgent bool, rng *rand.Rand) (moved []time.Duration) {
	time.Sleep(time.Duration(rng.Int64N(int64(5 * time.Second))))
	on := map[string]uint32{}
	for name, j := range c.allJobs() {
		if j.State == "RUNNING" && j.NodeList == victim {
			on[name] = j.Run
		}
	}
	if killAgent {
		c.proc[victim].kill()
	}
	how := []mode{cut, blackHole, halfOpen}[rng.IntN(3)]
	c.isolate(victim, how)
	at := time.Now()
	away := 4*time.Second + time.Duration(rng.Int64N(int64(26*time.Second)))
	for time.Since(at) < away {
		time.Sleep(100 * time.Millisecond)
		for name, run := range on {
			for _, e := range c.events(name) {
				if e.what == "start" && e.run > run {
					moved = append(moved, time.Since(at))
					delete(on, name)
					break
				}
			}
		}
	}
	c.isolate(victim, passing)
	if killAgent {
		if err := c.proc[victim].start(); err != nil {
			c.t.Error(err)
		}
	}
	within(c.t, time.Minute, victim+" is back", func() error {
		if n := c.nodeNow(victim); n.State == "DOWN" || len(n.Flags) > 0 {
			return fmt.Errorf("it is %s %v %s", n.State, n.Flags, n.Reason)
		}
		return nil
	})
	return moved
}
