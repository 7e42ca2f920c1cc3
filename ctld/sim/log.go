package sim

import (
	"bytes"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// hashEvery is how many entries lie between those after which all replicas' states are compared.
const hashEvery = 64

// entry is one entry of the log, with what applying it gave. Entry i has index i+1.
type entry struct {
	data    []byte
	results []fsm.Result
	hash    [32]byte // of the state after it, of every hashEvery-th
}

// proposal is what waits to enter the log. done is told the results, nil when the outcome is not
// known to who proposed.
type proposal struct {
	cmds []*logpb.Command
	done func([]fsm.Result)
}

// propose puts commands on their way. Without a leader nobody takes them, which the proposer cannot
// tell from a lost answer.
func (s *sim) propose(done func([]fsm.Result), cmds ...*logpb.Command) {
	if done == nil {
		done = func([]fsm.Result) {}
	}
	if s.lead == nil {
		done(nil)
		return
	}
	s.did++
	s.pipe = append(s.pipe, &proposal{cmds, done})
}

// commit puts what waits first into one entry and tells who proposed it.
func (s *sim) commit(n int) {
	n = min(n, len(s.pipe))
	if n == 0 {
		return
	}
	s.did++
	batch := s.pipe[:n]
	s.pipe = s.pipe[n:]
	var cmds []*logpb.Command
	for _, p := range batch {
		cmds = append(cmds, p.cmds...)
	}
	results := s.append(cmds)
	if s.failure != nil {
		return
	}
	s.replicas[s.lead.at].apply(s, len(s.log))
	for _, p := range batch {
		p.done(results[:len(p.cmds):len(p.cmds)])
		results = results[len(p.cmds):]
	}
}

// lose ends the term: of what waits a part is in the log, and nobody is told.
func (s *sim) lose() {
	keep := s.dice.below(len(s.pipe) + 1)
	waiting := s.pipe
	s.pipe = nil
	for _, p := range waiting[:keep] {
		s.append(p.cmds)
	}
	for _, p := range waiting {
		p.done(nil)
	}
}

// append writes one entry and applies it to the truth.
func (s *sim) append(cmds []*logpb.Command) []fsm.Result {
	before := s.view
	data := encode(before.Feature(), s.stamp(), cmds)
	index := uint64(len(s.log) + 1)
	results, err := s.truth.ApplyEntry(index, data)
	if err != nil {
		s.fail("entry %d cannot be applied: %v\n%v", index, err, cmds)
		return make([]fsm.Result, len(cmds))
	}
	s.view = s.truth.View()
	e := entry{data: data, results: results}
	if index%hashEvery == 0 {
		e.hash = s.hash(s.view)
	}
	s.log = append(s.log, e)
	s.stats.Entries++
	s.deepest = len(cmds)
	if s.tracing {
		s.note("entry %d: %s", index, show(cmds, results))
	}
	s.follow(before, cmds, results)
	return results
}

// stamp is what the leader's wall clock shows. It may be set; while it is behind the state's time, that
// goes on at half speed. Now and then an entry has the wall clock as it is: the state must not go by it.
func (s *sim) stamp() int64 {
	if s.lead == nil {
		return s.now
	}
	wall := s.now + s.lead.ahead
	if last := s.view.Time(); wall < last && !(s.on("clock") && !s.quiesced && s.dice.in(8)) {
		wall = last + max(0, s.now-s.lead.stamped)/2
	}
	s.lead.stamped = s.now
	return wall
}

// encode writes an entry as the replica does.
func encode(version uint32, ms int64, cmds []*logpb.Command) []byte {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(version))
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(ms))
	var body []byte
	for _, c := range cmds {
		var err error
		if body, err = fsm.AppendCommand(body[:0], c); err != nil {
			panic(err)
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), body)
	}
	return b
}

// replica applies the log with delays, and is restarted.
type replica struct {
	name    int
	f       *fsm.FSM
	applied int // entries
	snap    []byte
	snapAt  int // entries in it
}

// apply takes the entries up to n and compares what they give with the truth.
func (r *replica) apply(s *sim, n int) {
	for ; r.applied < n && s.failure == nil; r.applied++ {
		s.did++
		e := &s.log[r.applied]
		index := uint64(r.applied + 1)
		results, err := r.f.ApplyEntry(index, e.data)
		switch {
		case err != nil:
			s.fail("replica %d cannot apply entry %d: %v", r.name, index, err)
		case !reflect.DeepEqual(results, e.results):
			s.fail("replica %d has other results of entry %d:\n%+v\n%+v", r.name, index, results, e.results)
		case index%hashEvery == 0:
			if s.hash(r.f.View()) != e.hash {
				s.fail("replica %d has another state after entry %d", r.name, index)
			}
		}
	}
}

// snapshot pins the replica's state.
func (r *replica) snapshot(s *sim) {
	var b bytes.Buffer
	if err := r.f.Snapshot().Write(&b); err != nil {
		s.fail("replica %d: %v", r.name, err)
	}
	r.snap, r.snapAt = b.Bytes(), r.applied
	s.did++
}

// restore puts a snapshot in the place of the replica's state. What it was made from is compared with
// what came of it.
func (r *replica) restore(s *sim, snap []byte, at int) {
	fresh := fsm.New(state.New())
	if at > 0 {
		if err := fresh.Restore(bytes.NewReader(snap)); err != nil {
			s.fail("replica %d: %v", r.name, err)
			return
		}
		var b bytes.Buffer
		if err := fresh.Snapshot().Write(&b); err != nil || !bytes.Equal(b.Bytes(), snap) {
			s.fail("replica %d: the snapshot of a restored state is another one (%v)", r.name, err)
		}
		if got := fresh.View().Index(); got != uint64(at) {
			s.fail("replica %d: a snapshot of entry %d says %d", r.name, at, got)
		}
	}
	r.f, r.applied = fresh, at
	s.stats.Restores++
	s.did++
}

func (s *sim) hash(v *state.View) [32]byte {
	sum, err := fsm.Hash(v)
	if err != nil {
		s.fail("hash: %v", err)
	}
	return sum
}
