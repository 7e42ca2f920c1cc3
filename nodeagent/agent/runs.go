package agent

import (
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// phase is how far a run has come on this node. It only grows.
type phase uint8

const (
	starting  phase = iota // asked for at the launcher; whether it runs is not known
	live                   // runs, as far as is known
	ended                  // its end is known; the epilog is on its way
	reporting              // the report waits for the controller's acknowledgement
	leaving                // acknowledged or forgotten; its folder is being removed
)

// run is one run that lives on this node or whose report waits. Agent.mu guards all of it.
//
// Invariant: until a run is leaving, its folder (with the record, once there is one) is on disk, so
// that an agent that starts anew finds it there.
type run struct {
	key   launch.Key
	phase phase
	start int64 // Unix ms, 0 = not known

	conn    *shepherdConn // nil while its shepherd is not connected
	alone   time.Time     // since when it is nil
	looking bool          // somebody is finding out whether the shepherd lives

	todo      []*nodepb.Kill // signals that came before the start was known
	endAt     time.Time      // when the launcher is asked to end it although its start is not known; zero = not at all
	cut       bool           // the launcher has been asked so
	limit     *int64         // newest time limit
	still     *bool          // whether its processes are to stand still; nil: nothing was said of it
	term      *shepherd.Terminate
	termAt    time.Time
	byForce   bool  // the launcher has been asked to end it
	lease     int64 // ms, 0 = none or not known: only of runs that this agent launched
	renewed   int64 // CLOCK_BOOTTIME, ms, from which the lease counts as far as this agent knows
	leaseOver bool  // it ran out before the run was started: it is not renewed any more
	forgotten bool  // the controller does not know it: nothing is reported
	told      bool  // a hello has said that it is here, when that was not known yet

	report *nodepb.Report
	sentAt time.Time // when it last went out; zero = never
}

// maxTodo bounds the signals that wait for a run to start.
const maxTodo = 16

// maxDone bounds the memory of runs that are over: a launch that comes late is known by it.
const maxDone = 65536

// doneRing remembers the newest runs that have left.
type doneRing struct {
	keys map[launch.Key]bool
	ring []launch.Key
	next int
}

func (d *doneRing) add(k launch.Key) {
	if d.keys == nil {
		d.keys = make(map[launch.Key]bool)
	}
	if d.keys[k] {
		return
	}
	if len(d.ring) < maxDone {
		d.ring = append(d.ring, k)
	} else {
		delete(d.keys, d.ring[d.next])
		d.ring[d.next] = k
		d.next = (d.next + 1) % maxDone
	}
	d.keys[k] = true
}

func (d *doneRing) has(k launch.Key) bool { return d.keys[k] }

// maxRefused bounds the memory of runs that were refused. It is more than the answers that wait for a
// session (maxAnswers): as long as a refusal may go out its run is known.
const maxRefused = 2 * maxAnswers

// maxRefusal bounds the text of a refusal that is kept, bytes.
const maxRefusal = 256

// refusals remembers the newest runs that were refused: a run is answered once, started or refused, and
// the same again however often it comes. What a restart forgets the controller keeps apart: it sends a
// run in a new session only when what was said of it in an earlier one has been applied or dropped.
type refusals struct {
	answers map[launch.Key]*nodepb.LaunchResult
	ring    []launch.Key
	next    int
}

func (f *refusals) add(k launch.Key, res *nodepb.LaunchResult) {
	if f.answers == nil {
		f.answers = make(map[launch.Key]*nodepb.LaunchResult)
	}
	if f.answers[k] != nil {
		return
	}
	if len(f.ring) < maxRefused {
		f.ring = append(f.ring, k)
	} else {
		delete(f.answers, f.ring[f.next])
		f.ring[f.next] = k
		f.next = (f.next + 1) % maxRefused
	}
	f.answers[k] = failure(k, clipTo(res.GetError(), maxRefusal), res.GetCause())
}

// refuseLocked answers a launch with a refusal, which is the answer from then on.
func (a *Agent) refuseLocked(res *nodepb.LaunchResult) {
	a.denied.add(keyFromPB(res.GetKey()), res)
	a.out.addResult(res)
}

// held lists the runs that live here or whose report waits. One that is still being started counts:
// nobody may think that this node is free of it.
func (a *Agent) held() []*nodepb.StepKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	var keys []*nodepb.StepKey
	for k, r := range a.runs {
		if r.phase < leaving {
			keys = append(keys, keyToPB(k))
			r.told = r.told || r.phase == starting
		}
	}
	return keys
}

// living counts the runs that hold resources.
func (a *Agent) living() uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	var n uint32
	for _, r := range a.runs {
		if r.phase < reporting {
			n++
		}
	}
	return n
}

// drop takes a run that never started, or is over, off the table.
func (a *Agent) drop(r *run) {
	a.mu.Lock()
	delete(a.runs, r.key)
	if r.phase == leaving {
		a.done.add(r.key)
	}
	a.mu.Unlock()
}
