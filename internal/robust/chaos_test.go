package robust

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// One seed of make robust.
const (
	seedTime   = 60 * time.Second // of troubles
	quietTime  = 3 * time.Minute  // in which all must be well again
	submitters = 3
	writers    = 4
	readers    = 3
	jobLife    = 40 // operations on one job whose history is checked
)

// storm is a cluster under load and troubles.
type storm struct {
	c    *cluster
	seed uint64
	h    history
	a    acks
	in   injected

	mu    sync.Mutex
	names map[string]uint32 // jobs whose history is recorded, by name
	hot   []string          // those of them that readers look at: the newest of each writer
	ops   atomic.Int64      // calls without a history of their own: requeues and cancels of load
}

// maxFailedSeeds ends a run: what made those fail is to be looked at first.
const maxFailedSeeds = 3

// TestRobust runs seed after seed until its time is over.
func TestRobust(t *testing.T) {
	long(t)
	first := *seed
	if first == 0 {
		first = uint64(time.Now().Unix())
	}
	end := time.Now().Add(*limit)
	all, checked := injected{n: map[string]int{}}, injected{n: map[string]int{}}
	seeds, fine := 0, 0
	bin(t) // programs that cannot be built are one failure, not one for each seed
	for s := first; seeds == 0 || time.Now().Add(seedTime+quietTime/3).Before(end) && seeds-fine < maxFailedSeeds; s++ {
		seeds++
		if t.Run(fmt.Sprintf("seed=%d", s), func(t *testing.T) { runStorm(t, s, seedTime, &all, &checked) }) {
			fine++
		}
	}
	fmt.Printf("seeds %d to %d\ninjected: %s\nchecked: %s\n", first, first+uint64(seeds)-1, countsText(all.n), countsText(checked.n))
	figure(t, "robust_seeds", float64(fine), "seeds", float64(seeds))
}

func countsText(n map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%s %d", k, n[k]))
	}
	return strings.Join(out, ", ")
}

func runStorm(t *testing.T, seed uint64, during time.Duration, all, checked *injected) {
	disks := map[string]int{"c1": 192, "c2": 192, "c3": 192}
	c := start(t, layout{controllers: 3, nodes: 4, cpus: 6, tmpfs: disks, partitions: []string{"PartitionName=batch Nodes=ALL Default=YES JobLease=5"},
		set: []string{"SlurmdTimeout=5", "MaxBatchRequeue=100000", "JobLease=5", "SnapshotSize=1", "StateReserve=1", "StateHashInterval=5"}})
	s := &storm{c: c, seed: seed, names: map[string]uint32{}, in: injected{n: map[string]int{}}}
	quit, calm := make(chan struct{}), make(chan struct{})
	var load, trouble sync.WaitGroup
	s.load(&load, quit)
	s.trouble(&trouble, calm)
	go c.watch(calm)
	time.Sleep(during)
	close(calm)
	trouble.Wait()
	time.Sleep(2 * time.Second)
	close(quit)
	load.Wait()
	s.quiesce()
	s.check(checked)
	all.count(s.in.n)
	t.Logf("seed %d injected: %s", seed, countsText(s.in.n))
}

// trouble starts a lane for the controllers and two for nodes, each with a stream of chance of its own.
func (s *storm) trouble(wg *sync.WaitGroup, quit <-chan struct{}) {
	c := s.c
	chances := ofControllers
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	_, err := c.user(0).any().ListControllers(ctx, &ctldpb.ListControllersRequest{})
	cancel()
	if status.Code(err) == codes.Unimplemented {
		chances = slices.DeleteFunc(slices.Clone(chances), func(x chance) bool { return x.what == "member" || x.what == "empty" || x.what == "transfer" })
	}
	lane := func(n uint64, chances []chance, targets, points []string) {
		rng := rand.New(rand.NewPCG(s.seed, n))
		wg.Go(func() {
			c.lane(targets[0], quit, func() trouble { return plan(rng, chances, targets, c.names, points) }, &s.in)
		})
	}
	lane(1, chances, c.names, controllerPoints)
	lane(2, ofNodes, []string{"n1", "n2"}, agentPoints)
	lane(3, ofNodes, []string{"n3"}, agentPoints)
	// n4 is left alone: some node can always run something.
}

// load is what users do meanwhile.
func (s *storm) load(wg *sync.WaitGroup, quit <-chan struct{}) {
	number := 0
	client := func(work func(*client, *rand.Rand, func() bool)) {
		number++
		cl := &client{number: number, user: s.c.user(userUID), h: &s.h, try: 4 * time.Second}
		rng := rand.New(rand.NewPCG(s.seed, 100+uint64(number)))
		wg.Go(func() {
			work(cl, rng, func() bool {
				select {
				case <-quit:
					return false
				default:
					return true
				}
			})
		})
	}
	for range submitters {
		client(s.submitJobs)
	}
	for range writers {
		client(s.writeJobs)
	}
	for range readers {
		client(s.readJobs)
	}
	client(s.steerJobs)
}

// until repeats a call at one controller after the other until its outcome is known, or it is too late.
func (s *storm) until(rng *rand.Rand, f func(at string) op) (o op) {
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		o = f(pick(rng, s.c.names))
		if o.outcome == done || o.outcome == refused && !nothingDone[refusalOf(o.text)] {
			return o
		}
	}
	s.c.t.Errorf("%s of %s: no answer in 90 s: %s", o.kind, o.name, o.text)
	return o
}

// submitJobs submits short jobs, each until it is acknowledged.
func (s *storm) submitJobs(cl *client, rng *rand.Rand, more func() bool) {
	bodies := []string{":", "/bin/sleep 0.3", "/bin/sleep 2", "/bin/sleep 6", "exit 3"}
	for i := 0; more(); i++ {
		spec := s.c.spec(fmt.Sprintf("s%d-%d", cl.number, i), pick(rng, bodies))
		spec.Requeue = int32(rng.IntN(3) - 1)
		o := s.until(rng, func(at string) op { return cl.submit(at, spec) })
		if o.outcome == done {
			s.a.add(o)
		} else {
			s.c.t.Errorf("%s: %s", spec.Name, o.text)
		}
		time.Sleep(between(rng, 20*time.Millisecond, 200*time.Millisecond))
	}
}

// writeJobs keeps one held job and writes counted comments into it, holds and releases it, and cancels it in
// the end. One whose outcomes are too often unknown is left for the next: its history would take for ever.
func (s *storm) writeJobs(cl *client, rng *rand.Rand, more func() bool) {
	for i := 0; more(); i++ {
		name := fmt.Sprintf("w%d-%d", cl.number, i)
		spec := s.c.spec(name, ":")
		spec.Hold = true
		s.watchJob(cl.number, name)
		o := s.until(rng, func(at string) op { return cl.submit(at, spec) })
		if o.outcome != done {
			s.c.t.Errorf("%s: %s", name, o.text)
			continue
		}
		s.a.add(o)
		lost := 0
		for n := 1; n < jobLife && lost < 3 && more(); n++ {
			var w op
			switch at := pick(rng, s.c.names); {
			case n%8 == 5:
				w = cl.control(at, name, o.id, doHold)
			default:
				w = cl.comment(at, name, o.id, fmt.Sprintf("v%d", n))
			}
			if w.outcome == unknown {
				lost++
			}
			time.Sleep(between(rng, 0, 60*time.Millisecond))
		}
		if rng.IntN(2) == 0 {
			cl.control(pick(rng, s.c.names), name, o.id, doRelease)
		} else {
			cl.cancel(pick(rng, s.c.names), name, o.id)
		}
	}
}

// watchJob makes a writer's newest job the one that readers look at.
func (s *storm) watchJob(writer int, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	prefix := fmt.Sprintf("w%d-", writer)
	s.hot = slices.DeleteFunc(s.hot, func(n string) bool { return strings.HasPrefix(n, prefix) })
	s.hot = append(s.hot, name)
}

// readJobs reads what the writers write, anywhere; one in three reads may be stale.
func (s *storm) readJobs(cl *client, rng *rand.Rand, more func() bool) {
	for more() {
		s.mu.Lock()
		names := slices.Clone(s.hot)
		s.mu.Unlock()
		if len(names) > 0 {
			cl.read(pick(rng, s.c.names), rng.IntN(3) == 0, names...)
		}
		time.Sleep(between(rng, 10*time.Millisecond, 60*time.Millisecond))
	}
}

// steerJobs cancels and requeues jobs of the load that it finds running.
func (s *storm) steerJobs(cl *client, rng *rand.Rand, more func() bool) {
	for more() {
		time.Sleep(between(rng, 100*time.Millisecond, 500*time.Millisecond))
		ctx, cancel := context.WithTimeout(context.Background(), cl.try)
		list, err := cl.user.jobs(ctx, pick(rng, s.c.names), &ctldpb.ListJobsRequest{States: []string{"RUNNING"}})
		cancel()
		if err != nil || len(list.Jobs) == 0 {
			continue
		}
		j := pick(rng, list.Jobs)
		if strings.HasPrefix(j.Spec.Name, "w") {
			continue
		}
		s.ops.Add(1)
		if rng.IntN(2) == 0 {
			cl.cancel(pick(rng, s.c.names), j.Spec.Name, j.JobId)
		} else {
			cl.control(pick(rng, s.c.names), j.Spec.Name, j.JobId, doRequeue)
		}
	}
}

// quiesce makes everything good and waits until the cluster is.
func (s *storm) quiesce() {
	c := s.c
	c.heal()
	for _, n := range slices.Sorted(maps.Keys(c.proc)) {
		p := c.proc[n]
		p.noFaults()
		p.cont()
		if !p.alive() {
			c.t.Errorf("%s ended by itself; the end of its log:\n%s", n, p.tail())
			c.ok(p.start())
		}
	}
	c.waitUp(quietTime)
	c.caughtUp()
}

// waitUp is waitReady for a cluster that may have drained nodes of broken launches: those are resumed.
func (c *cluster) waitUp(most time.Duration) {
	c.t.Helper()
	resumed := map[string]bool{}
	within(c.t, most, "all nodes take jobs again", func() error {
		var left []string
		for i := range c.nodes {
			n := c.nodeNow(node(i))
			if slices.Contains(n.Flags, "DRAIN") && !resumed[n.Name] {
				resumed[n.Name] = true
				c.tell("%s was drained: %s", n.Name, n.Reason)
				c.setNode(n.Name, map[string]string{"State": "RESUME"})
			}
			if n.State == "DOWN" || n.State == "UNKNOWN" || slices.Contains(n.Flags, "NOT_RESPONDING") || slices.Contains(n.Flags, "DRAIN") {
				left = append(left, fmt.Sprintf("%s is %s %v %s", n.Name, n.State, n.Flags, n.Reason))
			}
		}
		if len(left) > 0 {
			return errors.New(strings.Join(left, "; "))
		}
		return nil
	})
}

// check holds everything against the promises.
func (s *storm) check(sum *injected) {
	c := s.c
	jobs := c.drained(quietTime, func(j *ctldpb.Job) bool { return j.State == "PENDING" && j.Priority == 0 })
	lost, doubled, reused := c.lost(&s.a, jobs)
	ran := c.checkRan(jobs)
	ops := c.checkHistory(&s.h)
	reads := c.checkStale(&s.h)
	c.sameEverywhere()
	sum.count(map[string]int{"acknowledged submissions": s.a.count(), "operations by porcupine": ops, "reads as prefixes": reads,
		"starts of jobs": ran.starts, "ends of jobs": ran.ends})
	c.t.Logf("seed %d checked: %d acknowledged (%d lost, %d doubled, %d ids reused), %d operations by porcupine, %d reads as prefixes, %+v; calls %v",
		s.seed, s.a.count(), lost, doubled, reused, ops, reads, ran, s.h.count())
}

// sameEverywhere compares what each controller shows when all is quiet.
func (c *cluster) sameEverywhere() {
	c.t.Helper()
	within(c.t, 30*time.Second, "all controllers show the same jobs", func() error {
		lists := map[string]string{}
		for _, n := range c.names {
			if !c.proc[n].alive() {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			list, err := c.user(0).jobs(ctx, n, &ctldpb.ListJobsRequest{Read: &ctldpb.ReadOptions{Stale: true}, States: []string{"all"}})
			cancel()
			if err != nil {
				return err
			}
			var b strings.Builder
			for _, j := range list.Jobs {
				fmt.Fprintln(&b, j.JobId, j.Spec.Name, j.State, j.Flags, j.Run, j.Restarts, j.SubmitMs, j.StartMs, j.EndMs, j.Exit, j.NodeList, j.Priority, j.Spec.Comment, j.TimeLimitMs)
			}
			lists[n] = b.String()
		}
		first := ""
		for n, l := range lists {
			if first == "" {
				first = n
			}
			if l != lists[first] {
				return fmt.Errorf("%s shows\n%.500s\n%s shows\n%.500s", first, lists[first], n, l)
			}
		}
		return nil
	})
}
