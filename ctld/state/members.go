package state

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// MaxControllers bounds the controllers that joined at run time.
const MaxControllers = 16

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

// RaiseFeature raises the level; it never falls.
func (t *Tx) RaiseFeature(level uint32) { t.feature = max(t.feature, level) }

// SetController keeps or forgets where a controller is reached.
func (t *Tx) SetController(c Controller, remove bool) *Refusal {
	if c.Name == "" {
		return refuse("ESLURM_INVALID_NODE_NAME", "Invalid controller name", "it is empty")
	}
	if _, known := t.members[c.Name]; !known && !remove && len(t.members) >= MaxControllers {
		return refuse("ESLURM_ACCESS_DENIED", "Too many controllers", fmt.Sprintf("the limit is MaxControllers=%d", MaxControllers))
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

// JoinToken lets daemons without a certificate get one, each name once. A stored one never changes.
type JoinToken struct {
	ID      string
	Secret  [32]byte // SHA-256 of the secret half
	Role    string   // node or login
	Names   string   // hostlist of the names that it is for
	Expires int64    // Unix ms
	Created int64
	Uses    uint32 // how many names may use it
	UsedBy  []string
	Revoked bool
	UID     uint32 // who made it
	User    string
}

// JoinTokens walks the tokens that have not been forgotten, oldest first.
func (t *tables) JoinTokens() iter.Seq[*JoinToken] {
	list := slices.SortedFunc(maps.Values(t.tokens), func(a, b *JoinToken) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.ID, b.ID))
	})
	return slices.Values(list)
}
