package sched

import (
	"cmp"
	"slices"
	"sort"

	"github.com/tensorgrid/tensorgrid/ctld/sched/backfill"
	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Planner keeps what it worked out between rounds. Its answers are those of Plan, byte for byte: all that it keeps
// follows from the snapshot, and is worked out anew where the snapshot's parts are other pointers. It is for one
// goroutine.
type Planner struct {
	layout uint64
	nodes  []*place.Node
	parts  []*Partition
	names  map[string]int
	order  [][]int // by partition: its nodes, lowest weight first, then configuration order
	places [][]int32

	rooms   []place.Room // what is free; falls while a round places starts
	dirty   []bool       // by node: its runs or its room have changed since the last round
	touched []int        // nodes whose rooms the last round has lowered
	runs    [][]held     // by node
	running []*Running
	ends    []ending // by end, node, job
	owned   int      // nodes that one user has
	down    int      // nodes that take no work

	fits    map[fitKey]*fitted
	zeros   []uint32 // the vector of a shape that no node has room for
	like    likeness
	journal []int32 // nodes whose rooms have changed, for the vectors to catch up with
	noted   int     // entries of the journal that latest and like know of
	latest  []int32 // by node: place of its last entry in the journal
	statics []int32 // nodes that have changed otherwise
	idle    map[string]idle
	round   uint64
	scratch scratch
}

// held is one run's share of one node.
type held struct {
	end   int64 // never = no limit
	alloc *job.NodeAlloc
	run   *Running // nil: a start of this round
	by    place.Tenant
	part  int // of a start of this round
}

// ending is a run's share of a node that comes back at a time.
type ending struct {
	at    int64 // never = not known
	node  int32
	job   uint32
	alloc *job.NodeAlloc
}

func (e ending) compare(o ending) int {
	return cmp.Or(cmp.Compare(e.at, o.at), cmp.Compare(e.node, o.node), cmp.Compare(e.job, o.job))
}

// idle is a class of which nothing may start before a time, whatever is free.
type idle struct {
	version uint64
	until   int64 // 0 = nothing in it waits for a time
}

// scratch is memory that one search uses at a time.
type scratch struct {
	rooms []place.Room
	stamp []uint64
	turn  uint64
	cur   []uint32
	list  []int
	lines []backfill.Timeline
	drawn []uint64 // round in which lines was made
	cand  place.Candidates
	least place.Room

	holds   [][]*hold // a round's, by node
	blocks  [][]block
	started [][]held
	lanes   []*lane
	given   int // lanes that this round has taken
}

// lane gives an empty lane that lives as long as the round.
func (s *scratch) lane() *lane {
	if s.given == len(s.lanes) {
		s.lanes = append(s.lanes, new(lane))
	}
	l := s.lanes[s.given]
	s.given++
	*l = lane{}
	return l
}

// lists gives a round its lists by node, empty.
func (s *scratch) lists(nodes int) (holds [][]*hold, blocks [][]block, started [][]held) {
	s.given = 0
	if len(s.holds) != nodes {
		s.holds, s.blocks, s.started = make([][]*hold, nodes), make([][]block, nodes), make([][]held, nodes)
	} else {
		clear(s.holds)
		clear(s.blocks)
		clear(s.started)
	}
	return s.holds, s.blocks, s.started
}

// NewPlanner is a planner that remembers nothing yet.
func NewPlanner() *Planner { return &Planner{} }

// Plan says what should start now and why the rest waits. It changes nothing that s refers to.
func (p *Planner) Plan(s *Snapshot, now int64, pol Policy) *Decision {
	p.sync(s)
	r := newRound(p, s, now, pol)
	r.plan()
	return &r.out
}

// Plan is a Planner without memory.
func Plan(s *Snapshot, now int64, pol Policy) *Decision { return NewPlanner().Plan(s, now, pol) }

// sync brings what is kept up to the snapshot.
func (p *Planner) sync(s *Snapshot) {
	p.round++
	if !p.same(s) {
		p.reset(s)
	}
	p.follow(s)
	for _, n := range p.touched {
		p.dirty[n] = true
	}
	p.touched = p.touched[:0]
	for i, n := range s.Nodes {
		old := p.nodes[i]
		if old == n && !p.dirty[i] {
			continue
		}
		p.dirty[i] = false
		if old != n && old != nil {
			if !alike(old, n) {
				p.statics = append(p.statics, int32(i))
				p.like.setKind(i, n)
			}
			p.owned -= boolInt(old.Owner > 0)
			p.down -= boolInt(!old.Up)
		}
		if old != n {
			p.owned += boolInt(n.Owner > 0)
			p.down += boolInt(!n.Up)
		}
		p.nodes[i] = n
		p.refresh(i)
	}
	p.forget()
	p.like.trim()
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// refresh makes node i's room what the snapshot says.
func (p *Planner) refresh(i int) {
	n := p.nodes[i]
	free := place.FreeRoom(n)
	// Something runs there that no run accounts for: the node is not known to become empty.
	free.Runs = max(len(p.runs[i]), boolInt(n.Busy))
	p.rooms[i] = free
	p.journal = append(p.journal, int32(i))
}

// same tells whether what is kept by position still holds.
func (p *Planner) same(s *Snapshot) bool {
	if p.names == nil || s.Layout == 0 || s.Layout != p.layout || len(s.Nodes) != len(p.nodes) || !slices.Equal(s.Partitions, p.parts) {
		return false
	}
	for i, n := range s.Nodes {
		if p.nodes[i] != n && (p.nodes[i].Name != n.Name || p.nodes[i].Weight != n.Weight) {
			return false
		}
	}
	return true
}

// alike tells whether what does not change with runs is equal.
func alike(a, b *place.Node) bool {
	return a.Up == b.Up && a.CPUs == b.CPUs && a.Mem == b.Mem && a.TmpDisk == b.TmpDisk && a.Sockets == b.Sockets && a.Cores == b.Cores &&
		a.Threads == b.Threads && slices.Equal(a.Features, b.Features) && slices.EqualFunc(a.Gres, b.Gres, func(x, y place.Gres) bool {
		return x.Name == y.Name && x.Type == y.Type && x.Total == y.Total
	})
}

// reset forgets everything and takes the snapshot's nodes and partitions.
func (p *Planner) reset(s *Snapshot) {
	n := len(s.Nodes)
	*p = Planner{
		layout: s.Layout, nodes: make([]*place.Node, n), parts: s.Partitions, names: make(map[string]int, n), rooms: make([]place.Room, n),
		dirty: make([]bool, n), zeros: make([]uint32, n), latest: make([]int32, n), like: newLikeness(n, len(s.Partitions)), runs: make([][]held, n), fits: map[fitKey]*fitted{}, idle: map[string]idle{}, round: p.round,
		scratch: scratch{rooms: make([]place.Room, n), stamp: make([]uint64, n), cur: make([]uint32, n),
			lines: make([]backfill.Timeline, n), drawn: make([]uint64, n)},
	}
	for i := range s.Nodes {
		p.names[s.Nodes[i].Name] = i
		p.like.setKind(i, s.Nodes[i])
	}
	for _, part := range s.Partitions {
		order := slices.Clone(part.Nodes)
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.Nodes[a].Weight, s.Nodes[b].Weight) })
		p.order = append(p.order, order)
		p.places = append(p.places, placesOf(order, n))
	}
}

// placesOf turns an order into the place of each node in it; -1 = it is not in it.
func placesOf(order []int, nodes int) []int32 {
	places := make([]int32, nodes)
	for i := range places {
		places[i] = -1
	}
	for at, n := range order {
		places[n] = int32(at)
	}
	return places
}

// follow brings runs and ends up to the snapshot, and marks the nodes whose runs have changed.
func (p *Planner) follow(s *Snapshot) {
	var gone, come []*Running
	old, now := p.running, s.Running
	for len(old)+len(now) > 0 {
		switch {
		case len(old) > 0 && len(now) > 0 && old[0] == now[0]: // nearly all are: they are not looked into
			old, now = old[1:], now[1:]
		case len(now) == 0, len(old) > 0 && old[0].JobID < now[0].JobID:
			gone, old = append(gone, old[0]), old[1:]
		case len(old) == 0, now[0].JobID < old[0].JobID:
			come, now = append(come, now[0]), now[1:]
		default:
			gone, come = append(gone, old[0]), append(come, now[0])
			old, now = old[1:], now[1:]
		}
	}
	p.running = s.Running
	if len(gone)+len(come) > 64 {
		p.ends = p.ends[:0]
		for _, r := range gone {
			p.unhold(r, nil)
		}
		for _, r := range come {
			p.hold(r, nil)
		}
		p.allEnds()
		return
	}
	for _, r := range gone {
		p.unhold(r, func(e ending) {
			if i, found := slices.BinarySearchFunc(p.ends, e, ending.compare); found {
				p.ends = slices.Delete(p.ends, i, i+1)
			}
		})
	}
	for _, r := range come {
		p.hold(r, func(e ending) {
			i, _ := slices.BinarySearchFunc(p.ends, e, ending.compare)
			p.ends = slices.Insert(p.ends, i, e)
		})
	}
}

// allEnds sorts the ends of all runs anew.
func (p *Planner) allEnds() {
	for _, r := range p.running {
		for a := range r.Allocs {
			if n, ok := p.names[r.Allocs[a].Node]; ok {
				p.ends = append(p.ends, ending{endOf(r), int32(n), r.JobID, shareOf(r, a)})
			}
		}
	}
	slices.SortFunc(p.ends, ending.compare)
}

// endOf is when a run's limit ends it; never when it has none.
func endOf(r *Running) int64 {
	if r.End == 0 || r.Suspended { // the time limit stands still
		return never
	}
	return r.End
}

// shareOf is what a run gives back of one node when it ends: a suspended one has given its CPUs.
func shareOf(r *Running, a int) *job.NodeAlloc {
	if !r.Suspended {
		return &r.Allocs[a]
	}
	share := r.Allocs[a]
	share.CPUs, share.CPUIDs = 0, nil
	return &share
}

func (p *Planner) hold(r *Running, each func(ending)) {
	for a := range r.Allocs {
		n, ok := p.names[r.Allocs[a].Node]
		if !ok {
			continue
		}
		h := held{end: endOf(r), alloc: shareOf(r, a), run: r}
		at := sort.Search(len(p.runs[n]), func(i int) bool { return p.runs[n][i].run.JobID > r.JobID })
		p.runs[n] = slices.Insert(p.runs[n], at, h)
		p.dirty[n] = true
		if each != nil {
			each(ending{h.end, int32(n), r.JobID, h.alloc})
		}
	}
}

func (p *Planner) unhold(r *Running, each func(ending)) {
	for a := range r.Allocs {
		n, ok := p.names[r.Allocs[a].Node]
		if !ok {
			continue
		}
		p.runs[n] = slices.DeleteFunc(p.runs[n], func(h held) bool { return h.run == r })
		p.dirty[n] = true
		if each != nil {
			each(ending{endOf(r), int32(n), r.JobID, &r.Allocs[a]})
		}
	}
}

// forget drops what was not used for a while, and the journals when all have caught up or they have become long.
func (p *Planner) forget() {
	if len(p.journal)+len(p.statics) > 4*len(p.nodes)+1024 {
		for _, f := range p.fits {
			f.stale = f.stale || f.at < len(p.journal)
			f.redo = f.redo || f.seen < len(p.statics)
			f.at, f.seen = 0, 0
		}
		p.note()
		p.journal, p.statics, p.noted = p.journal[:0], p.statics[:0], 0
	}
	if p.round%64 != 0 {
		return
	}
	for k, f := range p.fits {
		if f.used+64 < p.round {
			delete(p.fits, k)
		}
	}
	clear(p.idle)
}
