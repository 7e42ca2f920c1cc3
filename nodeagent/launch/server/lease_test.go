package server

import (
	"errors"
	"testing"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// TestLeasesOfStarts: a run whose lease ran out on the way is not started, whatever is said of it later.
func TestLeasesOfStarts(t *testing.T) {
	now := int64(100_000)
	s := newLeases(func() int64 { return now })
	k := launch.Key{Job: 1}
	renewed := func(want int64) {
		t.Helper()
		if got, err := s.check(k); err != nil || got != want {
			t.Errorf("at %d: renewed %d (%v), want %d", now, got, err, want)
		}
	}
	s.begin(k, 0, 1)() // no lease
	renewed(0)
	end := s.begin(k, 5000, 99_000)
	renewed(99_000)
	s.begin(k, 5000, 100_000)() // a second order for the same run changes nothing, its end neither
	renewed(99_000)
	now = 104_000
	renewed(99_000)
	s.renew(&launch.Renew{Key: k, Boottime: 103_000})
	s.renew(&launch.Renew{Key: k, Boottime: 101_000})               // an older one
	s.renew(&launch.Renew{Key: launch.Key{Job: 2}, Boottime: 9999}) // of nobody
	renewed(103_000)
	s.renew(&launch.Renew{Key: k, Boottime: 999_000}) // from the future
	renewed(104_000)
	now = 109_001
	s.renew(&launch.Renew{Key: k, Boottime: 109_000}) // too late
	if _, err := s.check(k); !errors.Is(err, errLeaseOver) {
		t.Errorf("after its end: %v", err)
	}
	now = 0
	if _, err := s.check(k); !errors.Is(err, errLeaseOver) {
		t.Errorf("it is back: %v", err)
	}
	end()
	renewed(0)
	if len(s.held) != 0 {
		t.Errorf("left: %v", s.held)
	}
	now = 200_000
	s.begin(k, 5000, 900_000)
	renewed(200_000)
}
