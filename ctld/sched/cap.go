package sched

import (
	"math"

	"github.com/tensorgrid/tensorgrid/ctld/sched/place"
)

// capOf is how many CPUs of a node the runs of the lane's partition may have together; 0 = no bound. A run that has its nodes
// to itself shares them with nobody.
func (r *round) capOf(l *lane) uint32 {
	most := r.s.Partitions[l.part].MaxCPUsPerNode
	if most == 0 || l.fit.shape.Exclusive() {
		return 0
	}
	return most
}

// capRoom leaves of a room the CPUs that the partition's other runs leave of their bound, from a time to another.
func (r *round) capRoom(l *lane, n int, from, to int64, room *place.Room) {
	most := r.capOf(l)
	if most == 0 {
		return
	}
	held := uint32(0)
	for i := range r.p.runs[n] {
		if h := &r.p.runs[n][i]; r.endOf(h.end) > from && h.run.Partition == r.s.Partitions[l.part].Name {
			held += h.alloc.CPUs
		}
	}
	for i := range r.started[n] {
		if h := &r.started[n][i]; h.part == l.part && h.end > from {
			held += h.alloc.CPUs
		}
	}
	for _, h := range r.holds[n] {
		if h.part == l.part && h.at < to && h.end > from {
			for i, at := range h.nodes {
				if at == n {
					held += h.allocs[i].CPUs
				}
			}
		}
	}
	room.CPUs = min(room.CPUs, most-min(most, held))
}

// capped is how many tasks the partition's bound on a node lets start there until a time.
func (r *round) capped(l *lane, n int, to int64) uint32 {
	if r.capOf(l) == 0 {
		return math.MaxUint32
	}
	room := &r.p.scratch.least
	room.Copy(&r.p.rooms[n])
	r.capRoom(l, n, r.now, to, room)
	return r.p.fit(l.fit, n, room)
}
