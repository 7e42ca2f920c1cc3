package state

import (
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// resetUsage forgets what associations, with all below them, and QOS have used up to now; from what is above the
// associations theirs is taken off.
func (t *Tx) resetUsage(associations, qos []uint32) {
	t.countUsage()
	gone := make(map[uint32]bool, len(associations))
	for _, id := range associations {
		gone[id] = true
	}
	for _, id := range associations {
		chain := t.db.Chain(t.db.Association(id))
		if anyOf(chain[min(1, len(chain)):], gone) {
			continue // it goes with the one above it
		}
		was := lookup{t.tables}.Usage(partitions.Entity{Kind: partitions.OfAssociation, ID: id})
		for _, above := range chain[min(1, len(chain)):] {
			t.takeOff(partitions.Entity{Kind: partitions.OfAssociation, ID: above.ID}, was)
		}
	}
	var list []entityUsage
	t.charges.Scan(func(u entityUsage) bool {
		if u.of.Kind == partitions.OfAssociation && anyOf(t.db.Chain(t.db.Association(u.of.ID)), gone) {
			list = append(list, u)
		}
		return true
	})
	for _, id := range qos {
		list = append(list, entityUsage{of: partitions.Entity{Kind: partitions.OfQOS, ID: id}})
	}
	for _, u := range list {
		t.charges.Delete(u)
	}
	t.chargeVersion++
	t.capacity++
}

func anyOf(chain []*accounting.Association, ids map[uint32]bool) bool {
	for _, a := range chain {
		if ids[a.ID] {
			return true
		}
	}
	return false
}

// takeOff takes a part of an entity's usage away.
func (t *Tx) takeOff(e partitions.Entity, part accounting.Usage) {
	u, known := t.charges.Get(entityUsage{of: e})
	if !known {
		return
	}
	u.usage = accounting.Usage{TRES: u.usage.TRES.Minus(part.TRES), Raw: max(0, u.usage.Raw-part.Raw), Wall: max(0, u.usage.Wall-part.Wall)}
	if spent(u.usage) {
		t.charges.Delete(u)
		return
	}
	t.charges.Set(u)
}

// resetNow tells whether a configuration begins to say PriorityUsageResetPeriod=NOW: that forgets all usage once.
func resetNow(was, is *SchedConfig) bool {
	return strings.EqualFold(is.UsageReset, "NOW") && !strings.EqualFold(was.UsageReset, "NOW")
}

// forgetUsage forgets all usage up to now.
func (t *Tx) forgetUsage() {
	t.charges, t.usageAt = newUsages(), t.now
	t.chargeVersion++
	t.capacity++
}
