package replica

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var emptiedSeeds = flag.Int("emptied", 6, "how many seeds of emptied folders under partitions are run, from -churn-seed on")

// TestEmptiedUnderPartitions: of five, replicas crash, are cut off one from another and lose their disks at random, a second
// one also while the first has not come back. At most two have lost what they promised at any time: then
// nothing that was acknowledged is lost, and in the end all vote again.
func TestEmptiedUnderPartitions(t *testing.T) {
	for i := range *emptiedSeeds {
		seed := *churnSeed + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &emptier{cluster: newCluster(t, 5, nil), rng: rand.New(rand.NewPCG(seed, 7)),
					disks: map[string]*stores{}, down: map[string]bool{}, emptied: map[string]bool{}}
				defer c.close()
				c.leader()
				for _, name := range c.names {
					c.disks[name] = c.members[name].disk
				}
				for range 60 {
					c.putAll()
					c.recovered()
					c.harm()
					time.Sleep(time.Duration(c.rng.IntN(1500)) * time.Millisecond)
				}
				c.check()
			})
		})
	}
}

type emptier struct {
	*cluster
	rng     *rand.Rand
	disks   map[string]*stores
	down    map[string]bool
	emptied map[string]bool // and not known to vote again
	next    int
	acked   []string
}

// leading are those that take themselves for the leader: more than one while they are cut off.
func (c *emptier) leading() (list []*member) {
	for _, name := range c.names {
		if _, self := c.members[name].Leader(); self && !c.down[name] {
			list = append(list, c.members[name])
		}
	}
	return list
}

// putAll proposes at whoever leads.
func (c *emptier) putAll() {
	for _, m := range c.leading() {
		key := fmt.Sprint("k", c.next)
		c.next++
		ctx, cancel := context.WithTimeout(c.t.Context(), 300*time.Millisecond)
		if _, err := m.Propose(ctx, submit(key)); err == nil {
			c.acked = append(c.acked, key)
		}
		cancel()
	}
}

// recovered notes who votes again and has the log, by the word of a leader that a majority has confirmed.
func (c *emptier) recovered() {
	for _, lead := range c.leading() {
		ctx, cancel := context.WithTimeout(c.t.Context(), 500*time.Millisecond)
		_, err := lead.Read(ctx)
		cancel()
		if err != nil {
			continue
		}
		for _, m := range lead.Members() {
			s := c.members[m.Name].Status()
			if m.Voter && s.Role != RoleWaiting && s.LastIndex+1 >= lead.Status().LastIndex {
				delete(c.emptied, m.Name)
			}
		}
	}
}

// harm breaks something, or mends it.
func (c *emptier) harm() {
	name, other := c.names[c.rng.IntN(len(c.names))], c.names[c.rng.IntN(len(c.names))]
	switch c.rng.IntN(9) {
	case 0:
		if !c.down[name] {
			c.crash(name)
			c.down[name] = true
		}
	case 1, 2:
		if c.down[name] {
			c.restart(name, c.disks[name])
			delete(c.down, name)
		}
	case 3:
		if len(c.emptied) > 1 || c.emptied[name] || len(c.down) > 1 {
			return
		}
		if !c.down[name] {
			c.crash(name)
		}
		c.disks[name] = memoryDisk(c.t)
		c.restart(name, c.disks[name])
		delete(c.down, name)
		c.emptied[name] = true
	case 4:
		if name != other {
			c.net.split([]string{name}, []string{other}, c.rng.IntN(3) == 0)
		}
	case 5:
		c.net.isolate(name, c.rng.IntN(3) == 0)
	case 6:
		c.worst()
	}
}

// worst has entries acknowledged by three, empties one or two of those and brings them together with the two that
// lack the entries, while the leader is cut off: at random moments of all that.
func (c *emptier) worst() {
	lead := c.leading()
	if len(lead) != 1 || len(c.emptied) > 0 || len(c.down) > 0 {
		return
	}
	rest := without(c.names, lead[0].name)
	c.rng.Shuffle(len(rest), func(i, k int) { rest[i], rest[k] = rest[k], rest[i] })
	far, near := rest[:2], rest[2:]
	wait := func(ms int) { time.Sleep(time.Duration(c.rng.IntN(ms)) * time.Millisecond) }
	c.net.split(far, append(near, lead[0].name), true)
	wait(500)
	c.putAll()
	for _, name := range near[:1+c.rng.IntN(2)] {
		c.crash(name)
		c.disks[name] = memoryDisk(c.t)
		c.emptied[name] = true
	}
	c.net.isolate(lead[0].name, true)
	c.net.split(far, near, false)
	wait(500)
	for name := range c.emptied {
		c.restart(name, c.disks[name])
		c.net.split([]string{name}, []string{lead[0].name}, true)
	}
	wait(5000)
	c.putAll()
	c.net.isolate(lead[0].name, false)
	c.recovered()
}

// check mends everything and looks for what was acknowledged.
func (c *emptier) check() {
	for _, name := range c.names {
		c.net.isolate(name, false)
		if c.down[name] {
			c.restart(name, c.disks[name])
		}
	}
	c.votes(c.names...)
	lead := c.leader()
	lead.put(c.t, "end")
	have := c.agree()
	for _, key := range c.acked {
		if !slices.Contains(have, key) {
			c.t.Errorf("%s of %d acknowledged is lost", key, len(c.acked))
		}
	}
	if len(c.acked) == 0 {
		c.t.Error("nothing was acknowledged")
	}
}
