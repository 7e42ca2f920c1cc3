package replica

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

var (
	churnSeeds = flag.Int("churn", 3, "how many seeds of random changes of the membership are run")
	churnSteps = flag.Int("churn-steps", 12, "how many changes each of them makes")
	churnSeed  = flag.Uint64("churn-seed", 1, "the first seed")
)

// TestChurn changes the membership at random while commands are proposed and replicas are cut off, crash, lose their disks
// and come back. At most one replica is away at a time, and one that lost its disk votes again before the next
// goes: that is what the promise covers.
func TestChurn(t *testing.T) {
	for i := range *churnSeeds {
		seed := *churnSeed + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { churn(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

type churner struct {
	*cluster
	rng  *rand.Rand
	next int // the number of the last name given
}

func churn(t *testing.T, rng *rand.Rand) {
	c := &churner{cluster: newCluster(t, 3, nil), rng: rng, next: 3}
	defer c.close()
	c.votes(c.names...)
	load := c.load()
	done := map[string]int{}
	for range *churnSteps {
		what := c.step()
		done[what]++
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
	}
	c.votes(c.names...)
	load.check()
	t.Logf("%v, %d acknowledged, at the end %v", done, len(load.acked), c.names)
}

func (c *churner) any() string { return c.names[c.rng.IntN(len(c.names))] }

// step makes one change.
func (c *churner) step() string {
	switch c.rng.IntN(8) {
	case 0, 1:
		if len(c.names) < 5 {
			c.add()
			return "add"
		}
		c.remove()
		return "remove"
	case 2:
		if len(c.names) > 3 {
			c.remove()
			return "remove"
		}
		c.add()
		return "add"
	case 3:
		_ = c.leader().TransferTo(c.t.Context(), c.any())
		return "transfer"
	case 4:
		c.away(func(name string) { c.net.isolate(name, false) }, false)
		return "partition"
	case 5:
		c.away(func(name string) { c.restart(name, c.members[name].disk) }, true)
		return "crash"
	default:
		c.away(func(name string) { c.restart(name, memoryDisk(c.t)) }, true)
		return "emptied"
	}
}

// away takes a replica off for up to five seconds, during which leadership may be moved too, and waits until it
// votes again.
func (c *churner) away(back func(string), crash bool) {
	name := c.any()
	if crash {
		c.crash(name)
	} else {
		c.net.isolate(name, true)
	}
	time.Sleep(time.Duration(c.rng.IntN(5000)) * time.Millisecond)
	if c.rng.IntN(2) == 0 {
		_ = c.leader(name).TransferTo(c.t.Context(), "")
	}
	back(name)
	c.votes(c.names...)
}

// add takes a new controller in, with another one cut off meanwhile as often as not.
func (c *churner) add() {
	c.next++
	name := fmt.Sprint("c", c.next)
	c.file = append(append([]string(nil), c.names...), name)
	heal := c.maybeCut()
	defer heal()
	c.grow(name)
}

func (c *churner) remove() {
	name := c.any()
	gone := c.members[name]
	heal := c.maybeCut()
	c.patient("remove "+name, ErrNoMember, func(m *member) error { return m.Remove(c.t.Context(), name, false) })
	heal()
	if err := gone.ended(c.t); !errors.Is(err, ErrRemoved) {
		c.t.Errorf("%s ended with %v", name, err)
	}
	c.names = without(c.names, name)
	c.file = c.names
	c.crash(name)
}

// maybeCut cuts one off, if that leaves a majority, until it is healed.
func (c *churner) maybeCut() (heal func()) {
	if len(c.names) < 4 || c.rng.IntN(2) == 0 {
		return func() {}
	}
	name := c.any()
	c.net.isolate(name, true)
	timer := time.AfterFunc(3*time.Second, func() { c.net.isolate(name, false) })
	return func() {
		timer.Stop()
		c.net.isolate(name, false)
	}
}
