// Package sim runs the state machine, the planner and the log's encoding through years of bad luck
// in virtual time: one thread and one seed, so that a run is played again bit for bit. See DESIGN.md.
package sim

import (
	"fmt"
	"runtime/debug"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Options says what is run. The same options give the same run.
type Options struct {
	Seed   uint64
	Events int
	Off    []string // kinds of actions that do not happen
	Every  int      // events between the costly checks; 0 = costlyEvery
}

// costlyEvery is how many events go by between the checks that walk over everything.
const costlyEvery = 200

// maxLast bounds the events that a failure tells.
const maxLast = 400

// Stats counts what a run has done.
type Stats struct {
	Events, Entries, Jobs, Runs, Restores, Terms int
}

// Add counts another run's as well.
func (s *Stats) Add(o Stats) {
	s.Events += o.Events
	s.Entries += o.Entries
	s.Jobs += o.Jobs
	s.Runs += o.Runs
	s.Restores += o.Restores
	s.Terms += o.Terms
}

// Failure is an invariant that did not hold.
type Failure struct {
	Options
	Event int    // that it was found after; above Events while the world comes to rest
	Kind  string // which invariant
	Why   string // what did not hold
	Last  []string
}

// Error is one line: what failed and how to see it again.
func (f *Failure) Error() string {
	return fmt.Sprintf("event %d: %s (%s)", f.Event, f.Why, f.Command())
}

// Command is the command line that runs it again.
func (f *Failure) Command() string {
	line := fmt.Sprintf("go test ./ctld/sim -run TestSeeds -seeds 1 -seed %d -events %d", f.Seed, f.Options.Events)
	if f.Every > 0 {
		line += fmt.Sprintf(" -every %d", f.Every)
	}
	for i, off := range f.Off {
		line += []string{" -off ", ","}[min(i, 1)] + off
	}
	return line
}

// Run plays one seed and gives the first failure, nil when all held. A run that fails is played a
// second time to tell its last events.
func Run(o Options) (Stats, *Failure) {
	s := play(o, false)
	if s.failure == nil {
		return s.stats, nil
	}
	again := play(o, true)
	if again.failure == nil || again.failure.Event != s.failure.Event || again.failure.Why != s.failure.Why {
		s.failure.Why = fmt.Sprintf("%s; played again: %v: THE RUN IS NOT DETERMINISTIC", s.failure.Why, again.failure)
		return s.stats, s.failure
	}
	again.failure.Last = again.last
	return again.stats, again.failure
}

// Fingerprint is the hash of the state at the end of a run.
func Fingerprint(o Options) ([32]byte, error) {
	s := play(o, false)
	if s.failure != nil {
		return [32]byte{}, s.failure
	}
	return fsm.Hash(s.view)
}

// sim is the world of one run.
type sim struct {
	waits   int // times that the end waited for a promised start
	o       Options
	dice    dice
	now     int64 // what has really elapsed, as Unix ms
	event   int
	stats   Stats
	failure *Failure
	tracing bool
	last    []string
	swarm   swarm

	log      []entry
	truth    *fsm.FSM    // applies each entry at once and is never restarted
	view     *state.View // of truth
	replicas []*replica
	pipe     []*proposal

	lead   *leader
	zombie *leader // led before and does not know yet that it does not any more
	term   int

	hosts   []*host
	started map[runKey]bool
	late    []fact // what agents said once, to be said again much later

	users    users
	promises promised
	ledger   ledger
	newest   uint32 // highest id that a record has had
	deepest  int    // commands of the entry in hand
	quiesced bool   // faults have stopped
	did      int    // things that have happened, to tell when an action came to nothing
}

func play(o Options, tracing bool) *sim {
	s := &sim{o: o, dice: dice{o.Seed}, now: 1_800_000_000_000, tracing: tracing, started: map[runKey]bool{}}
	if s.o.Every == 0 {
		s.o.Every = costlyEvery
	}
	s.run()
	s.stats.Events = s.event
	return s
}

func (s *sim) run() {
	defer func() {
		if r := recover(); r != nil {
			s.fail("panic: %v\n%s", r, debug.Stack())
		}
	}()
	s.begin()
	for s.event = 1; s.event <= s.o.Events && s.failure == nil; s.event++ {
		s.pass()
		s.act()
		if s.failure == nil && s.event%s.o.Every == 0 {
			s.costly()
		}
	}
	if s.failure == nil {
		s.rest()
	}
	if s.failure == nil {
		s.costly()
	}
	s.event--
}

// fail notes what does not hold; only the first counts.
func (s *sim) fail(format string, args ...any) {
	if s.failure == nil {
		s.failure = &Failure{Options: s.o, Event: s.event, Kind: format, Why: fmt.Sprintf(format, args...)}
		if s.o.Every == costlyEvery {
			s.failure.Every = 0
		}
	}
}

// note remembers what happened, for people.
func (s *sim) note(format string, args ...any) {
	if !s.tracing || s.failure != nil {
		return
	}
	if len(s.last) == maxLast {
		s.last = s.last[1:]
	}
	s.last = append(s.last, fmt.Sprintf("%6d +%ds ", s.event, (s.now-1_800_000_000_000)/1000)+fmt.Sprintf(format, args...))
}

// dice is a small generator of numbers (splitmix64), so that a seed means the same for ever.
type dice struct{ x uint64 }

func (d *dice) next() uint64 {
	d.x += 0x9e3779b97f4a7c15
	z := d.x
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below draws a number below n; 0 when n is not positive.
func (d *dice) below(n int) int {
	if n <= 1 {
		return 0
	}
	return int(d.next() % uint64(n))
}

// in is true once in n.
func (d *dice) in(n int) bool { return d.below(n) == 0 }

// pick draws one of a list.
func pick[T any](s *sim, list ...T) T { return list[s.dice.below(len(list))] }
