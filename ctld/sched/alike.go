package sched

import (
	"encoding/binary"
	"slices"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
)

// likeness numbers what nodes have in common, so that a shape is held against each kind of node and each amount of room
// once, however many nodes have it.
type likeness struct {
	kind  []int32 // by node: number of its kind; nodes of a kind differ only in place, name, weight and load
	kinds map[string]int32
	first []*place.Node // by kind: a node of it
	of    [][]int32     // by partition: the kinds of its nodes, ascending; nil = not known

	room  []int32 // by node: number of its kind together with what is free; -1 = to be worked out
	rooms map[string]int32

	key   []byte
	suits []bool  // by kind, of the shape that is looked at
	fits  []fitOf // by room, of the shape that is looked at
	turn  uint64
}

// fitOf is how many tasks of the shape that is looked at a room carries, or what it lacks.
type fitOf struct {
	turn  uint64
	tasks uint32
	lack  place.Lack
}

func newLikeness(nodes, parts int) likeness {
	return likeness{kind: make([]int32, nodes), kinds: map[string]int32{}, of: make([][]int32, parts),
		room: make([]int32, nodes), rooms: map[string]int32{}}
}

// number32 gives what k names its number: a new one where it has none.
func number32(m map[string]int32, k []byte) int32 {
	if n, ok := m[string(k)]; ok {
		return n
	}
	n := int32(len(m))
	m[string(k)] = n
	return n
}

func text(k []byte, s string) []byte {
	return append(binary.AppendUvarint(k, uint64(len(s))), s...)
}

// setKind numbers the kind of node i.
func (a *likeness) setKind(i int, n *place.Node) {
	k := a.key[:0]
	for _, v := range [...]uint64{uint64(n.CPUs), uint64(n.Mem), uint64(n.TmpDisk), uint64(n.Sockets), uint64(n.Cores), uint64(n.Threads)} {
		k = binary.AppendUvarint(k, v)
	}
	k = binary.AppendUvarint(k, uint64(len(n.Features)))
	for _, f := range n.Features {
		k = text(k, f)
	}
	for g := range n.Gres {
		k = binary.AppendUvarint(text(text(k, n.Gres[g].Name), n.Gres[g].Type), n.Gres[g].Total)
	}
	a.key = k
	kind := number32(a.kinds, k)
	if len(a.first) < len(a.kinds) {
		a.first = append(a.first, n)
	}
	if kind != a.kind[i] {
		a.kind[i] = kind
		clear(a.of)
	}
}

// setRoom numbers what node i has free, as far as a shape's fit depends on it. Whose runs are there is left out: shapes
// that mind it are held against each node.
func (a *likeness) setRoom(i int, n *place.Node, r *place.Room) {
	k := binary.AppendUvarint(a.key[:0], uint64(a.kind[i]))
	k = append(k, byte(boolInt(n.Up)|boolInt(r.Shut)<<1|boolInt(r.Runs > 0)<<2))
	k = binary.AppendUvarint(binary.AppendUvarint(k, uint64(r.CPUs)), uint64(r.Mem))
	k = binary.AppendUvarint(k, uint64(r.Owner))
	for _, g := range r.Gres {
		k = binary.AppendUvarint(k, g)
	}
	a.key = k
	a.room[i] = number32(a.rooms, k)
}

// kindsOf gives the kinds of a partition's nodes.
func (a *likeness) kindsOf(part int, nodes []int) []int32 {
	if a.of[part] == nil {
		seen := make([]bool, len(a.kinds))
		list := make([]int32, 0, 8)
		for _, n := range nodes {
			if k := a.kind[n]; !seen[k] {
				seen[k] = true
				list = append(list, k)
			}
		}
		slices.Sort(list)
		a.of[part] = list
	}
	return a.of[part]
}

// suitsAll tells whether all nodes of a partition suit a shape that minds no places, and else which kinds do.
func (p *Planner) suitsAll(s *place.Shape, part int) ([]bool, bool) {
	a, all := &p.like, true
	a.suits = append(a.suits[:0], make([]bool, len(a.kinds))...)
	for _, k := range a.kindsOf(part, p.order[part]) {
		a.suits[k] = s.Suits(0, a.first[k])
		all = all && a.suits[k]
	}
	return a.suits, all
}

// note reads on in the journal of nodes whose rooms have changed.
func (p *Planner) note() {
	for ; p.noted < len(p.journal); p.noted++ {
		n := p.journal[p.noted]
		p.like.room[n], p.latest[n] = -1, int32(p.noted)
	}
}

// ask begins a turn in which a shape asks one node of each kind and room.
func (p *Planner) ask() {
	p.note()
	p.like.turn++
}

// fewChanges is how many nodes are looked at one by one.
const fewChanges = 8

// roomFor is how many of the shape's tasks node n has room for now; other nodes with the same room are not asked again
// in the same turn. Shapes that mind whose runs are on a node ask each.
func (p *Planner) roomFor(f *fitted, n int) uint32 {
	if f.each {
		return p.fit(f, n, &p.rooms[n])
	}
	known, first := p.known(n)
	if first {
		known.tasks = p.fit(f, n, &p.rooms[n])
	}
	return known.tasks
}

// lacking is what node n lacks now for a shape, asked once a turn like roomFor.
func (p *Planner) lacking(f *fitted, n int) place.Lack {
	if f.each || f.shape.Named() {
		return f.shape.Lacks(n, p.nodes[n], &p.rooms[n])
	}
	known, first := p.known(n)
	if first {
		known.lack = f.shape.Lacks(n, p.nodes[n], &p.rooms[n])
	}
	return known.lack
}

// known is what is known of nodes with the room of node n, and whether nothing is yet in this turn.
func (p *Planner) known(n int) (known *fitOf, first bool) {
	a := &p.like
	if a.room[n] < 0 {
		a.setRoom(n, p.nodes[n], &p.rooms[n])
	}
	k := int(a.room[n])
	if k >= len(a.fits) {
		a.fits = append(a.fits, make([]fitOf, len(a.rooms)+64-len(a.fits))...)
	}
	known = &a.fits[k]
	first = known.turn != a.turn
	known.turn = a.turn
	return known, first
}

// trim forgets the numbers of rooms when they are many more than nodes.
func (a *likeness) trim() {
	if len(a.rooms) > 4*len(a.room)+1024 {
		clear(a.rooms)
		for i := range a.room {
			a.room[i] = -1
		}
	}
}
