package server

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// errLeaseOver: the controllers may have given the run's job out again.
var errLeaseOver = errors.New("the run's lease ran out before it was started")

// leases are those of the starts that are under way. A prolog may take minutes, and an order may have
// waited in a queue: a run whose lease runs out meanwhile must not begin. From the start on its shepherd
// keeps the lease.
type leases struct {
	boot func() int64 // CLOCK_BOOTTIME, ms

	mu   sync.Mutex
	held map[launch.Key]*lease
}

// lease is one run's; times are ms.
type lease struct {
	length, renewed int64
	over            bool // it has run out: nothing brings it back
}

func newLeases(boot func() int64) *leases {
	return &leases{boot: boot, held: map[launch.Key]*lease{}}
}

// begin keeps the lease of a run that is to be started until end is called. A length of 0 is no lease.
func (s *leases) begin(k launch.Key, length, renewed int64) (end func()) {
	if length <= 0 {
		return func() {}
	}
	now := s.boot()
	if renewed <= 0 || renewed > now {
		renewed = now
	}
	one := &lease{length: length, renewed: renewed}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[k] != nil { // a second order for the same run: it is refused as such, the first one's counts
		return func() {}
	}
	s.held[k] = one
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.held, k)
	}
}

// renew renews a lease that has not run out.
func (s *leases) renew(r *launch.Renew) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.held[r.Key]; one != nil && one.lasts(s.boot()) {
		one.renewed = max(one.renewed, min(r.Boottime, s.boot()))
	}
}

// lasts tells whether the lease has not run out, now or before.
func (l *lease) lasts(now int64) bool {
	l.over = l.over || now-l.renewed > l.length
	return !l.over
}

// check gives from when the run's lease counts (0 without one), or says that it has run out.
func (s *leases) check(k launch.Key) (renewed int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.held[k]
	switch {
	case one == nil:
		return 0, nil
	case !one.lasts(s.boot()):
		return 0, blame(job.CauseCredential, errLeaseOver)
	}
	return one.renewed, nil
}

// boottime is CLOCK_BOOTTIME in ms: it goes on while the host sleeps, and nobody can set it.
func boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // the clock has been there since Linux 2.6.39
	}
	return ts.Nano() / int64(time.Millisecond)
}
