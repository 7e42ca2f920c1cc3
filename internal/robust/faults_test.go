package robust

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// trouble is one thing that goes wrong, and how it is made good again. All that chance decides is in it
// before it begins, so a seed gives the same troubles in the same order.
type trouble struct {
	what   string
	target string
	other  string
	arg    string
	mode   mode
	hold   time.Duration // until it is made good
	pause  time.Duration // until the next
}

func (t trouble) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s %v", t.what, t.target, t.other, t.arg, t.hold)), " ")
}

// chance is a kind of trouble with its weight.
type chance struct {
	what   string
	weight int
}

// Troubles of controllers, one at a time: no more than a minority is broken. And those of nodes.
var (
	ofControllers = []chance{{"kill", 20}, {"stop", 12}, {"link", 8}, {"pair", 6}, {"isolate", 8}, {"slow", 6}, {"killed-at", 20}, {"error-at", 8},
		{"sleep-at", 6}, {"full-disk", 6}, {"clock", 8}, {"transfer", 8}, {"kill-all", 3}, {"member", 4}, {"empty", 3}}
	ofNodes = []chance{{"kill", 20}, {"kill-launcher", 10}, {"stop", 10}, {"isolate", 20}, {"slow", 6}, {"killed-at", 20}, {"launcher-killed-at", 8},
		{"sleep-at", 6}, {"reboot", 6}, {"clock", 6}, {"kill-both", 8}}
)

// Points where processes are killed, stand still or get errors.
var (
	controllerPoints = strings.Fields("replica.before-store replica.after-store replica.before-vote replica.after-vote replica.before-apply replica.after-apply " +
		"replica.snapshot-begin replica.snapshot-end server.before-propose server.before-reply leader.before-launch leader.before-report-ack")
	storePoints    = strings.Fields("replica.before-store replica.after-store")
	agentPoints    = strings.Fields("agent.before-claim agent.before-launch agent.after-launch agent.before-spool agent.after-spool agent.before-report agent.before-ack-drop")
	launcherPoints = strings.Fields("launch.before-claim launch.after-claim launch.after-start")
)

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

func weighted(rng *rand.Rand, list []chance) string {
	total := 0
	for _, c := range list {
		total += c.weight
	}
	n := rng.IntN(total)
	for _, c := range list {
		if n -= c.weight; n < 0 {
			return c.what
		}
	}
	return ""
}

func between(rng *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(rng.Int64N(int64(high-low)))
}

// plan makes a lane's next trouble. others are who the target may lose a link to.
func plan(rng *rand.Rand, chances []chance, targets, others, points []string) trouble {
	t := trouble{what: weighted(rng, chances), target: pick(rng, targets), hold: between(rng, 100*time.Millisecond, 4*time.Second),
		pause: between(rng, 200*time.Millisecond, 2*time.Second), mode: pick(rng, []mode{blackHole, cut, halfOpen})}
	point, nth := pick(rng, points), 1+rng.IntN(6)
	t.other = pick(rng, others)
	jump := time.Duration(rng.Int64N(int64(10*time.Hour))) - 5*time.Hour
	far := between(rng, time.Second, 15*time.Second)
	switch t.what {
	case "stop":
		t.hold = far
	case "isolate", "link", "pair":
		t.hold = far
		t.arg = t.mode.String()
	case "killed-at":
		t.arg, t.hold = fmt.Sprintf("%s kill %d", point, nth), 5*time.Second
	case "launcher-killed-at":
		t.arg, t.hold = fmt.Sprintf("%s kill %d", pick(rng, launcherPoints), 1+nth%3), 5*time.Second
	case "error-at":
		t.arg, t.hold = fmt.Sprintf("%s error %s 1", pick(rng, storePoints), pick(rng, []string{"ENOSPC", "EIO", "EROFS"})), 3*time.Second
	case "sleep-at":
		t.arg = fmt.Sprintf("%s sleep %dms", point, 100+rng.IntN(3000))
	case "clock":
		t.arg, t.hold = jump.Round(time.Second).String(), far
		if jump > 0 {
			t.arg = "+" + t.arg
		}
	}
	if t.what != "link" && t.what != "pair" {
		t.other = ""
	}
	return t
}

// injected counts what was done, by kind.
type injected struct {
	mu sync.Mutex
	n  map[string]int
}

func (i *injected) add(what string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.n[what]++
}

// count adds many.
func (i *injected) count(more map[string]int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for k, n := range more {
		i.n[k] += n
	}
}

// lane does one trouble after the other until quit; each is made good before the next.
func (c *cluster) lane(name string, quit <-chan struct{}, next func() trouble, in *injected) {
	for {
		t := next()
		select {
		case <-quit:
			return
		default:
		}
		c.tell("%s: %s", name, t)
		if err := c.do(t); err != nil {
			c.tell("%s: %s: %v", name, t, err)
			in.add(t.what + " (not done)")
		} else {
			in.add(t.what)
		}
		select {
		case <-quit:
			return
		case <-time.After(t.pause):
		}
	}
}

// tell writes the diary of what was injected, which is kept with the logs.
func (c *cluster) tell(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.OpenFile(c.path("log", "injected.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "%s %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// do breaks something, waits, and makes it good. A process is running when it comes back.
func (c *cluster) do(t trouble) error {
	p := c.proc[t.target]
	switch t.what {
	case "kill":
		return c.downFor(t.hold, t.target)
	case "kill-launcher":
		return c.downFor(t.hold, launcher(t.target))
	case "kill-both":
		return c.downFor(t.hold, launcher(t.target), t.target)
	case "kill-all":
		return c.downFor(t.hold/4, c.names[:c.controllers]...)
	case "stop":
		p.stop()
		defer p.cont()
	case "link":
		if t.other == t.target {
			return nil
		}
		c.link(t.target, t.other, t.mode)
		defer c.link(t.target, t.other, passing)
	case "pair":
		if t.other == t.target {
			return nil
		}
		c.both(t.target, t.other, t.mode)
		defer c.both(t.target, t.other, passing)
	case "isolate":
		c.isolate(t.target, t.mode)
		defer c.isolate(t.target, passing)
	case "slow":
		c.slow(t.target, 40*time.Millisecond, 160*time.Millisecond)
		defer c.slow(t.target, 0, 0)
	case "killed-at", "error-at":
		return c.at(p, t)
	case "launcher-killed-at":
		return c.at(c.proc[launcher(t.target)], t)
	case "sleep-at":
		point, order, _ := strings.Cut(t.arg, " ")
		p.fault(c.t, point, order)
		defer p.fault(c.t, point, "")
	case "full-disk":
		return c.fullDisk(t.target, t.hold)
	case "clock":
		// A host has one clock: agent and launcher see the same.
		host := []*process{p}
		if l := c.proc[launcher(t.target)]; l != nil {
			host = append(host, l)
		}
		for _, h := range host {
			h.fault(c.t, "clock", t.arg)
			defer h.fault(c.t, "clock", "")
		}
	case "transfer":
		return c.change(10*time.Second, &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_TRANSFER})
	case "member":
		return c.removeAndAdd(t.target)
	case "empty":
		return c.emptied(t.target)
	case "reboot":
		return c.reboot(t.target)
	}
	time.Sleep(t.hold)
	return nil
}

// downFor kills processes at once and starts them again.
func (c *cluster) downFor(hold time.Duration, names ...string) error {
	for _, n := range names {
		c.proc[n].breakIt(true)
		c.proc[n].signal(syscall.SIGKILL)
	}
	for _, n := range names {
		c.proc[n].kill()
	}
	time.Sleep(hold)
	return c.backUp(names...)
}

// backUp starts what is down, without its orders.
func (c *cluster) backUp(names ...string) (err error) {
	for _, n := range names {
		p := c.proc[n]
		p.noFaults()
		if !p.alive() {
			err = errors.Join(err, p.start())
		}
		p.breakIt(false)
	}
	return err
}

// at waits until a process has met its fault, and makes it good.
func (c *cluster) at(p *process, t trouble) error {
	point, order, _ := strings.Cut(t.arg, " ")
	p.breakIt(true)
	p.fault(c.t, point, order)
	_, err := p.waitEnd(t.hold)
	if err != nil {
		err = errors.New("the point was not passed so often")
	}
	// Between the order's end and the look whether it is alive it must not be about to die.
	p.fault(c.t, point, "")
	time.Sleep(100 * time.Millisecond)
	return errors.Join(err, c.backUp(p.name))
}

// slow sets the delay of all links of one process.
func (c *cluster) slow(name string, delay, jitter time.Duration) {
	for pair, ls := range c.links {
		if pair[0] == name || pair[1] == name {
			for _, l := range ls {
				l.slow(delay, jitter)
			}
		}
	}
}

// fullDisk fills the file system of a controller's state, and empties it again. The controller may end.
func (c *cluster) fullDisk(name string, hold time.Duration) error {
	if _, ok := c.tmpfs[name]; !ok {
		return errors.New("its state is on the big disk")
	}
	c.proc[name].breakIt(true)
	path := c.path("state", name, "ballast")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	for size := 1 << 20; size >= 4096; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	f.Close()
	time.Sleep(hold + 2*time.Second)
	err = os.Remove(path)
	time.Sleep(200 * time.Millisecond)
	return errors.Join(err, c.backUp(name))
}

// change is one call about the controllers; it is repeated while there is no leader.
func (c *cluster) change(most time.Duration, req *ctldpb.ChangeControllerRequest) error {
	return poll(most, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), most)
		defer cancel()
		_, err := c.user(0).any().ChangeController(ctx, req)
		return err
	})
}

// removeAndAdd takes a controller out of the cluster, and lets it join again with an empty folder.
func (c *cluster) removeAndAdd(name string) error {
	p := c.proc[name]
	p.breakIt(true)
	defer p.breakIt(false)
	if err := c.change(20*time.Second, &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_REMOVE, Name: name}); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	code, err := p.waitEnd(20 * time.Second)
	if err != nil || code != 0 {
		c.t.Errorf("%s was removed and ended with code %d %v\n%s", name, code, err, p.tail())
	}
	p.kill()
	if err := c.clear(name); err != nil {
		return err
	}
	p.extra = []string{"--join"}
	defer func() { p.extra = nil }()
	if err := p.start(); err != nil {
		return err
	}
	add := &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_ADD, Name: name}
	if err := c.change(30*time.Second, add); err != nil && !strings.Contains(err.Error(), "already") {
		return fmt.Errorf("add: %w", err)
	}
	if err := c.change(60*time.Second, &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_PROMOTE, Name: name}); err != nil && !strings.Contains(err.Error(), "already") {
		return fmt.Errorf("promote: %w", err)
	}
	return nil
}

// clear empties a controller's folder.
func (c *cluster) clear(name string) error {
	files, err := filepath.Glob(c.path("state", name, "*"))
	for _, f := range files {
		err = errors.Join(err, os.RemoveAll(f))
	}
	return err
}

// emptied kills a controller, empties its disk and starts it again: it has to come back by itself.
func (c *cluster) emptied(name string) error {
	p := c.proc[name]
	p.breakIt(true)
	defer p.breakIt(false)
	p.kill()
	if err := c.clear(name); err != nil {
		return err
	}
	if err := p.start(); err != nil {
		return err
	}
	return poll(60*time.Second, func() error { return c.isVoter(name) })
}

// isVoter tells whether the leader counts a controller's vote, and it takes part. One whose disk was emptied a
// moment ago is still a voter by the leader's list.
func (c *cluster) isVoter(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	list, err := c.user(0).any().ListControllers(ctx, &ctldpb.ListControllersRequest{})
	if err != nil {
		return err
	}
	for _, m := range list.Controllers {
		if m.Name == name && m.Voter && m.Up && m.LastIndex > 0 && (m.Role == "leader" || m.Role == "follower") {
			return nil
		}
	}
	return fmt.Errorf("%s is no voter: %v", name, list.Controllers)
}

// reboot ends all that a node runs and starts it under another boot id.
func (c *cluster) reboot(name string) error {
	for _, p := range []string{name, launcher(name)} {
		c.proc[p].breakIt(true)
	}
	c.powerOff(name)
	id := fmt.Sprintf("00000000-0000-4000-8000-%012x", rand.Uint32())
	for _, p := range []string{name, launcher(name)} {
		c.proc[p].noFaults()
		c.proc[p].fault(c.t, "bootid", id)
		if err := c.proc[p].start(); err != nil {
			return err
		}
		c.proc[p].breakIt(false)
	}
	return nil
}

// watch looks for processes that end though nothing was done to them, until quit.
func (c *cluster) watch(quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-time.After(100 * time.Millisecond):
		}
		for _, n := range slices.Sorted(maps.Keys(c.proc)) {
			p := c.proc[n]
			if p.surprise() {
				c.t.Errorf("%s ended by itself; the end of its log:\n%s", n, p.tail())
				if err := p.start(); err != nil {
					c.t.Error(err)
				}
			}
		}
	}
}
