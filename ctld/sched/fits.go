package sched

import (
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// fitKey names a shape in a partition. uid is only told apart where nodes may be one user's.
type fitKey struct {
	shape string
	part  int
	uid   int64
}

// fitted is a shape in a partition with how many of its tasks each node has room for now: the verdict on the shape,
// kept over rounds and brought up to date for the nodes that have changed.
type fitted struct {
	shape  *place.Shape
	wrong  string
	least  int // nodes
	most   int
	single bool
	tasks  uint64
	order  []int    // nodes that suit, in the order in which they are tried
	places []int32  // by node: place in order; -1 = does not suit
	fits   []uint32 // by node; the planner's zeros as long as none has room
	count  int      // nodes with room
	sum    uint64   // tasks that they have room for
	from   int      // places before it have no room
	at     int      // of the journal
	seen   int      // of statics
	stale  bool
	redo   bool // which nodes suit is to be found anew
	mine   bool // fits is its own
	each   bool // whose runs are on a node matters
	used   uint64

	settled bool    // the verdict on empty nodes was made
	verdict verdict // rankNone = it fits on them
}

// fitted gives the shape of a class in a partition, up to date.
func (p *Planner) fitted(c *Class, x *job.Extra, part int, owners bool) *fitted {
	key := fitKey{shape: c.Shape, part: part}
	if key.shape == "" {
		key.shape = c.Key
	}
	if owners {
		key.uid = int64(c.UID) + 1
	}
	f := p.fits[key]
	if f == nil {
		f = p.compile(c, x, part)
		p.fits[key] = f
	}
	f.used = p.round
	if f.wrong == "" {
		p.catchUp(f, part, len(c.Avoid) > 0)
	}
	return f
}

// compile works out a shape and where it could ever run.
func (p *Planner) compile(c *Class, x *job.Extra, part int) *fitted {
	q := p.parts[part]
	lim := place.Limits{MinNodes: q.MinNodes, MaxNodes: q.MaxNodes, DefMemPerNode: q.DefMemPerNode, DefMemPerCPU: q.DefMemPerCPU,
		MaxMemPerNode: q.MaxMemPerNode, MaxMemPerCPU: q.MaxMemPerCPU, WholeNodes: q.WholeNodes, ExclusiveUser: q.ExclusiveUser,
		LLN: q.LLN, MaxCPUsPerNode: q.MaxCPUsPerNode}
	f := &fitted{stale: true}
	f.shape, f.wrong = place.Compile(c.Spec, x, lim, c.Avoid, func(name string) (int, bool) {
		n, ok := p.names[name]
		return n, ok
	})
	if f.wrong != "" {
		return f
	}
	f.least, f.most = f.shape.Nodes()
	f.tasks, f.each = uint64(c.Spec.NTasks), f.shape.Tenant().User
	p.suit(f, part, len(c.Avoid) > 0)
	return f
}

// suit finds the nodes that could ever run the shape. Shapes that all nodes of a partition suit share its order.
func (p *Planner) suit(f *fitted, part int, avoids bool) {
	f.settled = false
	f.stale = true
	same := false
	switch {
	case avoids:
		f.order = f.shape.Order(p.nodes, p.parts[part].Nodes)
		same = slices.Equal(f.order, p.order[part])
	default: // the partition's order is by weight already
		f.order, same = p.suiting(f.shape, part)
	}
	if same {
		f.order, f.places = p.order[part], p.places[part]
	} else {
		f.places = placesOf(f.order, len(p.nodes))
	}
	f.single = f.shape.Single() || len(f.order) == 1
}

// suiting lists the nodes of a partition that could ever run a shape, in the partition's order, and tells whether all do.
func (p *Planner) suiting(s *place.Shape, part int) ([]int, bool) {
	all := p.order[part]
	fits := func(n int) bool { return s.Suits(n, p.nodes[n]) }
	if !s.Named() {
		suits, every := p.suitsAll(s, part)
		if every {
			return all, true
		}
		fits = func(n int) bool { return suits[p.like.kind[n]] }
	}
	order := make([]int, 0, len(all))
	for _, n := range all {
		if fits(n) {
			order = append(order, n)
		}
	}
	return order, len(order) == len(all)
}

// catchUp brings the vector up to date.
func (p *Planner) catchUp(f *fitted, part int, avoids bool) {
	if f.redo {
		f.redo = false
		p.suit(f, part, avoids)
	}
	for ; f.seen < len(p.statics); f.seen++ {
		f.settled = false
		if n := int(p.statics[f.seen]); f.shape.Suits(n, p.nodes[n]) != (f.places[n] >= 0) && slices.Contains(p.parts[part].Nodes, n) {
			f.seen = len(p.statics)
			p.suit(f, part, avoids)
			break
		}
	}
	p.note()
	behind := len(p.journal) - f.at
	if f.stale || behind > len(f.order) {
		p.draw(f)
		return
	}
	p.ask()
	for ; f.at < len(p.journal); f.at++ {
		n := int(p.journal[f.at])
		if f.places[n] < 0 || int(p.latest[n]) != f.at {
			continue
		}
		var t uint32
		if behind < fewChanges {
			t = p.fit(f, n, &p.rooms[n])
		} else {
			t = p.roomFor(f, n)
		}
		was := f.fits[n]
		if was == t {
			continue
		}
		p.own(f)
		f.fits[n] = t
		f.count += boolInt(t > 0) - boolInt(was > 0)
		f.sum += uint64(t) - uint64(was)
		if t > 0 {
			f.from = min(f.from, int(f.places[n]))
		}
	}
}

// draw makes a vector anew.
func (p *Planner) draw(f *fitted) {
	f.stale, f.at, f.count, f.sum, f.from = false, len(p.journal), 0, 0, 0
	if f.mine {
		clear(f.fits)
	} else {
		f.fits = p.zeros
	}
	p.ask()
	a := &p.like
	for at := len(f.order) - 1; at >= 0; at-- {
		n := f.order[at]
		var t uint32
		if k := a.room[n]; !f.each && uint(k) < uint(len(a.fits)) && a.fits[k].turn == a.turn { // roomFor's usual answer
			t = a.fits[k].tasks
		} else {
			t = p.roomFor(f, n)
		}
		if t > 0 {
			p.own(f)
			f.fits[n], f.count, f.sum, f.from = t, f.count+1, f.sum+uint64(t), at
		}
	}
}

// own makes sure that a vector may be written.
func (p *Planner) own(f *fitted) {
	if !f.mine {
		f.mine, f.fits = true, make([]uint32, len(p.nodes))
	}
}

// fit is how many tasks a node that suits has room for.
func (p *Planner) fit(f *fitted, n int, room *place.Room) uint32 {
	if !p.nodes[n].Up {
		return 0
	}
	return f.shape.Fit(p.nodes[n], room)
}

// named is the nodes that come into question where one node does: the one that was named, or all that suit.
func (f *fitted) named() []int {
	if list := f.shape.Required(); len(list) > 0 && len(list) >= f.most {
		return list
	}
	return f.order
}

// hopeless tells at once that the shape does not fit now.
func (f *fitted) hopeless() bool { return f.count < max(f.least, 1) || f.sum < f.tasks }

// headLength is how many nodes with room are tried before all of them are listed.
const headLength = 32

// head gives the first nodes with room, in the order in which they are tried, in the planner's scratch.
func (p *Planner) head(f *fitted) []int { return p.firstOf(f, max(headLength, 2*f.least)) }

// list gives the nodes with room, in the order in which they are tried, in the planner's scratch.
func (p *Planner) list(f *fitted) []int { return p.firstOf(f, f.count) }

func (p *Planner) firstOf(f *fitted, most int) []int {
	most = min(most, f.count)
	for f.from < len(f.order) && f.fits[f.order[f.from]] == 0 {
		f.from++
	}
	out := p.scratch.list[:0]
	for _, n := range f.order[min(f.from, len(f.order)):] {
		if f.fits[n] > 0 {
			if out = append(out, n); len(out) == most {
				break
			}
		}
	}
	p.scratch.list = out
	return out
}
