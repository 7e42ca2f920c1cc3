package robust

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// clients of make robust-failover.
const clients = 8

// acks notes when submissions were acknowledged, for the time from a kill to the next.
type acks struct {
	mu   sync.Mutex
	list []op
}

func (a *acks) add(o op) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, o)
}

func (a *acks) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.list)
}

// next is how long after the kill the first submission was acknowledged that was asked for once the leader
// was gone.
func (a *acks) next(killed, gone int64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	best := int64(-1)
	for _, o := range a.list {
		if o.call >= gone && (best < 0 || o.ret < best) {
			best = o.ret
		}
	}
	if best < 0 {
		return -1
	}
	return time.Duration(best - killed)
}

// keep is one in how many submissions starts at once; the others wait held and are cancelled in the end.
const keep = 10

// load submits n jobs, each under its key until it is acknowledged, from all clients at once.
func (c *cluster) load(h *history, a *acks, prefix string, n int) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for k := range clients {
		cl := &client{number: k, user: c.user(userUID), h: h, try: 5 * time.Second}
		wg.Go(func() {
			for turn := k; ; {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				spec := c.spec(fmt.Sprintf("%s-%d", prefix, i), ":")
				spec.Hold = i%keep != 0
				for end := time.Now().Add(2 * time.Minute); !c.t.Failed(); turn++ {
					up := c.up()
					o := cl.submit(up[turn%len(up)], spec)
					if o.outcome == done {
						a.add(o)
						break
					}
					if o.outcome == refused && !nothingDone[refusalOf(o.text)] {
						c.t.Errorf("%s was refused: %s", spec.Name, o.text)
						break
					}
					if time.Now().After(end) {
						c.t.Errorf("%s was not acknowledged in two minutes: %s", spec.Name, o.text)
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
}

// refusalOf finds the code in a call's text; refusals of the log's state are few.
func refusalOf(text string) string {
	for code, line := range map[string]string{"NOT_LEADER": "is not the leader", "NO_LEADER": "no controller leads", "BUSY": "too many requests wait"} {
		if strings.Contains(text, line) {
			return code
		}
	}
	return ""
}

// long jobs run through all rounds.
const longJobs = 100

func (c *cluster) startLong(n int) map[string]*ctldpb.Job {
	c.t.Helper()
	for i := range n {
		c.submit(c.spec(fmt.Sprintf("long-%d", i), "while [ ! -e "+c.path("work", "go-home")+" ]; do /bin/sleep 1; done"))
	}
	var jobs map[string]*ctldpb.Job
	within(c.t, time.Minute, "the long jobs run", func() error {
		jobs = c.allJobs()
		n := 0
		for name, j := range jobs {
			if strings.HasPrefix(name, "long-") && (j.State != "RUNNING" || len(j.Flags) > 0 || len(c.events(name)) == 0) {
				n++
			}
		}
		if n > 0 {
			return fmt.Errorf("%d do not run yet", n)
		}
		return nil
	})
	return jobs
}

// undisturbed compares running jobs with what they were: the same run, start, limit and node.
func (c *cluster) undisturbed(before, after map[string]*ctldpb.Job, n int) (disturbed int) {
	c.t.Helper()
	for i := range n {
		name := fmt.Sprintf("long-%d", i)
		was, is := before[name], after[name]
		switch {
		case is == nil:
			c.t.Errorf("%s is gone", name)
		case is.State != "RUNNING" || len(is.Flags) > 0 || is.Run != was.Run || is.Restarts != was.Restarts:
			c.t.Errorf("%s was %s in run %d and is %s %v in run %d", name, was.State, was.Run, is.State, is.Flags, is.Run)
		case is.StartMs != was.StartMs || is.TimeLimitMs != was.TimeLimitMs || is.EndMs != was.EndMs || is.NodeList != was.NodeList:
			c.t.Errorf("%s: start %d, limit %d, end %d on %s; was %d, %d, %d on %s", name, is.StartMs, is.TimeLimitMs, is.EndMs, is.NodeList, was.StartMs, was.TimeLimitMs, was.EndMs, was.NodeList)
		case len(c.events(name)) != 1:
			c.t.Errorf("%s: %+v", name, c.events(name))
		default:
			continue
		}
		disturbed++
	}
	return disturbed
}

// lost counts acknowledged submissions that are not there, or under another id, and ids given twice.
func (c *cluster) lost(a *acks, jobs map[string]*ctldpb.Job) (lost, doubled, reused int) {
	c.t.Helper()
	owner := map[uint32]string{}
	for name, j := range jobs {
		if other, ok := owner[j.JobId]; ok {
			reused++
			c.t.Errorf("id %d is that of %s and of %s", j.JobId, name, other)
		}
		owner[j.JobId] = name
	}
	told := map[uint32]string{}
	for _, o := range a.list {
		switch j := jobs[o.name]; {
		case j == nil:
			lost++
			c.t.Errorf("%s was acknowledged as %d and is not there", o.name, o.id)
		case j.JobId != o.id:
			doubled++
			c.t.Errorf("%s was acknowledged as %d and is %d", o.name, o.id, j.JobId)
		}
		if other, ok := told[o.id]; ok && other != o.name {
			reused++
			c.t.Errorf("id %d was told for %s and for %s", o.id, o.name, other)
		}
		told[o.id] = o.name
	}
	return lost, doubled, reused
}

// failover runs rounds of submissions; kill breaks the leader in the middle of each.
type failover struct {
	c      *cluster
	h      history
	a      acks
	times  []time.Duration
	before map[string]*ctldpb.Job
	total  int
}

func newFailover(t *testing.T, long int) *failover {
	c := start(t, layout{controllers: 3, nodes: 4, cpus: 40})
	return &failover{c: c, before: c.startLong(long)}
}

// round submits n jobs. In the middle kill ends the leader: it comes back when that is gone.
func (f *failover) round(name string, n int, kill func(leader *process)) {
	c := f.c
	lead := c.leader()
	var wg sync.WaitGroup
	wg.Go(func() { c.load(&f.h, &f.a, name, n) })
	for f.a.count() < f.total+n/3 {
		time.Sleep(time.Millisecond)
		if c.t.Failed() {
			break
		}
	}
	killed := since()
	kill(c.proc[lead])
	gone := since()
	wg.Wait()
	f.total += n
	if d := f.a.next(killed, gone); d < 0 {
		c.t.Logf("%s: %s was gone after the last submission", name, lead)
	} else {
		f.times = append(f.times, d)
		c.t.Logf("%s: %s killed, next submission acknowledged after %v", name, lead, d.Round(time.Millisecond))
	}
	c.proc[lead].noFaults()
	if !c.proc[lead].alive() {
		c.run(lead)
	}
	c.caughtUp()
}

// caughtUp waits until all running controllers have what the leader has.
func (c *cluster) caughtUp() {
	c.t.Helper()
	within(c.t, time.Minute, "all controllers have caught up", func() error {
		var top uint64
		applied := map[string]uint64{}
		for _, n := range c.names {
			if !c.proc[n].alive() {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			res, err := c.user(0).at(n).Ping(ctx, &ctldpb.PingRequest{})
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", n, err)
			}
			applied[n] = res.Applied
			top = max(top, res.LastIndex)
		}
		for n, a := range applied {
			if a+50 < top {
				return fmt.Errorf("%s has applied %d of %d", n, a, top)
			}
		}
		return nil
	})
}

// finish checks all that was promised, and prints what the suite measures.
func (f *failover) finish(prefix string, long int) {
	c := f.c
	jobs := c.allJobs()
	disturbed := c.undisturbed(f.before, jobs, long)
	lost, doubled, reused := c.lost(&f.a, jobs)
	most(c.t, prefix+"_lost", float64(lost), "jobs", 0)
	most(c.t, prefix+"_doubled", float64(doubled), "jobs", 0)
	most(c.t, prefix+"_ids_reused", float64(reused), "ids", 0)
	most(c.t, prefix+"_disturbed", float64(disturbed), "jobs", 0)
	c.goHome()
	jobs = c.drained(5*time.Minute, func(j *ctldpb.Job) bool { return j.State == "PENDING" && j.Priority == 0 })
	ran := c.checkRan(jobs)
	checked := c.checkHistory(&f.h)
	c.t.Logf("acknowledged %d, calls %v, checked by porcupine %d, ran %+v", f.a.count(), f.h.count(), checked, ran)
}

// goHome lets the long jobs end.
func (c *cluster) goHome() {
	if _, err := output(c.shell("touch " + c.path("work", "go-home"))); err != nil {
		c.t.Error(err)
	}
}

// TestFailover is the first line that this suite has to show.
func TestFailover(t *testing.T) {
	long(t)
	f := newFailover(t, longJobs)
	for i := range *rounds {
		f.round(fmt.Sprintf("r%d", i), *perKill, func(p *process) { p.kill() })
	}
	most(t, "failover_median", median(f.times).Seconds(), "s", 1.5)
	f.finish("failover", longJobs)
}

// TestFailoverAtPoints: the same with the leader killed right before or after a durable step.
func TestFailoverAtPoints(t *testing.T) {
	long(t)
	f := newFailover(t, 10)
	for _, point := range []string{"replica.before-store", "replica.after-store", "replica.before-apply", "replica.after-apply", "server.before-propose", "server.before-reply", "leader.before-launch", "leader.before-report-ack"} {
		f.round(strings.ReplaceAll(point, ".", "-"), max(200, *perKill/4), func(p *process) {
			p.fault(t, point, "kill")
			if _, err := p.waitEnd(20 * time.Second); err != nil {
				t.Errorf("%s: %v", point, err)
				p.kill()
			}
		})
	}
	most(t, "failover_points_median", median(f.times).Seconds(), "s", 1.5)
	f.finish("failover_points", 10)
}

// TestAllKilled: all three are killed at once under load and started again.
func TestAllKilled(t *testing.T) {
	long(t)
	f := newFailover(t, longJobs)
	f.allKilled("all", *perKill, 3)
	f.finish("all_killed", longJobs)
}

func (f *failover) allKilled(name string, n, times int) {
	c := f.c
	var wg sync.WaitGroup
	wg.Go(func() { c.load(&f.h, &f.a, name, n) })
	for i := range times {
		for f.a.count() < f.total+n*(i+1)/(times+1) {
			time.Sleep(time.Millisecond)
			if c.t.Failed() {
				break
			}
		}
		for _, p := range c.names {
			go c.proc[p].kill()
		}
		for _, p := range c.names {
			c.proc[p].kill()
		}
		acked := f.a.count()
		c.t.Logf("%s: all killed with %d acknowledged", name, acked)
		for _, p := range c.names {
			c.run(p)
		}
	}
	wg.Wait()
	f.total += n
	c.caughtUp()
}
