package state

import (
	"fmt"
	"iter"
	"maps"
	"slices"
)

// Limits of the controllers that joined at run time.
const (
	MaxControllers = 16
	maxPort        = 65535
)

// Feature levels. The state begins at FeatureFirst, which is all that the first release knows.
const (
	FeatureFirst uint32 = 1
	// FeatureMembers: controllers that join at run time, join tokens, hashes of the state, JobLease of partitions.
	FeatureMembers uint32 = 2
	// FeatureSched: accounts, limits, usage, reservations, licenses, promises, preemption, suspended and heterogeneous jobs.
	FeatureSched uint32 = 3
)

// Controller is where a controller is reached that joined at run time. The configuration's
// ControllerName lines win over it.
type Controller struct {
	Name     string
	Address  string // host
	Port     uint32
	RaftPort uint32
	UserPort uint32 // 0 = closed
}

// Feature is the level that entries and snapshots are written with: what all voters know.
func (t *tables) Feature() uint32 { return t.feature }

// Controllers walks the controllers that joined at run time, by name.
func (t *tables) Controllers() iter.Seq[Controller] {
	return func(yield func(Controller) bool) {
		for _, name := range slices.Sorted(maps.Keys(t.members)) {
			if !yield(t.members[name]) {
				return
			}
		}
	}
}

// RaiseFeature raises the level; it never falls. What waits only by what the first release does not know
// better may start then.
func (t *Tx) RaiseFeature(level uint32) {
	before := t.feature
	t.feature = max(t.feature, level)
	if before < FeatureSched && t.feature >= FeatureSched {
		t.beginSched()
		t.reclassify()
		t.reorderSingles()
		t.judgeWatching()
	}
	if before >= FeatureMembers || t.feature < FeatureMembers {
		return
	}
	for _, p := range t.parts.list {
		if t.usualTime(p) != p.DefaultTime {
			t.usage++
			t.layout++
			t.capacity++
		}
	}
	t.judgeWatching()
}

// judgeWatching judges all dependencies again, by the rules of a new level.
func (t *Tx) judgeWatching() {
	for _, id := range slices.Sorted(maps.Keys(t.watching)) {
		t.judgeAgain(wakeup{id: id, task: -1})
	}
}

// SetController keeps or forgets where a controller is reached.
func (t *Tx) SetController(c Controller, remove bool) *Refusal {
	if r := checkController(&c, remove); r != nil {
		return r
	}
	if _, known := t.members[c.Name]; !known && !remove && len(t.members) >= MaxControllers {
		return badController(fmt.Sprintf("the limit is MaxControllers=%d that joined at run time", MaxControllers))
	}
	next := maps.Clone(t.members)
	if next == nil {
		next = map[string]Controller{}
	}
	if delete(next, c.Name); !remove {
		next[c.Name] = c
	}
	t.members = next
	return nil
}

func checkController(c *Controller, remove bool) *Refusal {
	switch {
	case c.Name == "" || len(c.Name) > maxHostName:
		return badController(fmt.Sprintf("a name has 1 to %d bytes, this one %d", maxHostName, len(c.Name)))
	case remove:
		return nil
	case c.Address == "" || len(c.Address) > maxHostName:
		return badController(fmt.Sprintf("controller %q: an address has 1 to %d bytes, this one %d", c.Name, maxHostName, len(c.Address)))
	case max(c.Port, c.RaftPort, c.UserPort) > maxPort:
		return badController(fmt.Sprintf("controller %q: ports %d, %d and %d, the highest is %d", c.Name, c.Port, c.RaftPort, c.UserPort, maxPort))
	}
	return nil
}

func badController(why string) *Refusal {
	return refuse("ESLURM_INVALID_CONTROLLER", "Invalid controller", why)
}
