package replica

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
)

var (
	daySeed = flag.Uint64("day-seed", 1, "seed of TestVirtualDay")
	dayTime = flag.Duration("day", 24*time.Hour, "virtual time of TestVirtualDay")
)

// day is a cluster that one fault after the other is done to, while somebody submits.
type day struct {
	*cluster
	t      *testing.T
	rng    *rand.Rand
	broken *breaker
	acked  []string
	heal   func()
	ended  map[string]int // by reason
	hashes int
}

// TestVirtualDay: a day of a three-member cluster with partitions, disks that hang, are slow or fail, changes
// of the leader, snapshots and state hashes. Nothing acknowledged is lost, no state differs, and there is
// always a leader again.
func TestVirtualDay(t *testing.T) {
	if testing.Short() {
		*dayTime = min(*dayTime, 2*time.Hour)
	}
	synctest.Test(t, func(t *testing.T) {
		d := &day{t: t, rng: rand.New(rand.NewPCG(*daySeed, 3)), broken: newBreaker(), heal: func() {}, ended: map[string]int{}}
		d.cluster = newCluster(t, 3, func(cfg *Config, l *ledger) {
			d.broken.tune(cfg, l)
			cfg.HeartbeatTimeout, cfg.SnapshotBytes, cfg.tail = 8*time.Second, 8<<10, 4<<10
			cfg.commit = 4 * time.Second
		})
		defer d.close()
		if _, err := d.leader().Propose(t.Context(), raise); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		faults, lastMark := 0, begin
		for next := begin; time.Since(begin) < *dayTime; {
			d.submitOne()
			d.revive()
			if time.Since(next) > 0 {
				d.heal()
				d.heal = func() {}
				if faults++; faults%2 == 1 {
					d.harm()
				}
				next = time.Now().Add(time.Duration(60+d.rng.IntN(540)) * time.Second)
			}
			if time.Since(lastMark) > 5*time.Minute {
				lastMark = time.Now()
				d.compare()
			}
			time.Sleep(time.Duration(1+d.rng.IntN(30)) * time.Second)
		}
		d.heal()
		time.Sleep(time.Minute)
		d.revive()
		time.Sleep(time.Minute)
		got := d.agree()
		for _, k := range d.acked {
			if !slices.Contains(got, k) {
				t.Errorf("acknowledged %s is lost", k)
			}
		}
		if len(d.acked) < int(*dayTime/time.Hour)*100 || d.hashes < int(*dayTime/time.Hour)*5 {
			t.Errorf("%d acknowledged, %d hashes compared: it does too little", len(d.acked), d.hashes)
		}
		d.compare()
		time.Sleep(time.Minute)
		d.revive()
		t.Logf("seed %d: %d faults, %d acknowledged, %d hashes compared, ends %v", *daySeed, faults, len(d.acked), d.hashes, d.ended)
	})
}

// current is the member that leads now, nil for none.
func (d *day) current() *member {
	for _, n := range d.names {
		if _, self := d.members[n].Leader(); self {
			return d.members[n]
		}
	}
	return nil
}

func (d *day) submitOne() {
	lead := d.current()
	if lead == nil {
		return
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	key := fmt.Sprintf("%d", d.rng.Uint64())
	_, err := lead.Propose(ctx, submit(key))
	switch {
	case err == nil:
		d.acked = append(d.acked, key)
	case errors.Is(err, ErrNotLeader), errors.Is(err, ErrUnknown), errors.Is(err, context.DeadlineExceeded):
	default:
		d.t.Errorf("propose: %v", err)
	}
}

// harm does something to one member. heal undoes it.
func (d *day) harm() {
	name := d.names[d.rng.IntN(len(d.names))]
	if lead := d.current(); lead != nil && d.rng.IntN(2) == 0 {
		name = lead.name
	}
	switch d.rng.IntN(5) {
	case 0:
		d.net.isolate(name, true)
		d.heal = func() { d.net.isolate(name, false) }
	case 1:
		rule, free := hang()
		d.broken.set(name, "replica.before-store", rule)
		d.heal = func() { d.broken.set(name, "replica.before-store", nil); free() }
		go func(long time.Duration) { time.Sleep(long); free() }(time.Duration(1+d.rng.IntN(30)) * time.Second)
	case 2:
		slow := time.Duration(100+d.rng.IntN(1500)) * time.Millisecond
		d.broken.set(name, "replica.before-store", func() error { time.Sleep(slow); return nil })
		d.heal = func() { d.broken.set(name, "replica.before-store", nil) }
	case 3:
		point := []string{"replica.before-store", "replica.after-store", "replica.before-vote"}[d.rng.IntN(3)]
		d.broken.set(name, point, func() error { return syscall.ENOSPC })
		d.heal = func() { d.broken.set(name, point, nil) }
	case 4:
		if lead := d.current(); lead != nil {
			_ = lead.Transfer(d.t.Context())
		}
	}
}

// revive starts members again that have ended. Only the disk may have been the reason.
func (d *day) revive() {
	for _, n := range d.names {
		select {
		case err := <-d.members[n].Fatal():
			switch {
			case errors.Is(err, ErrDiskHangs):
				d.ended["hung"]++
			case errors.Is(err, syscall.ENOSPC):
				d.ended["ENOSPC"]++
			default:
				d.t.Errorf("%s ended: %v", n, err)
			}
			d.heal() // what has hung comes back, or the process could not be ended here
			if err := d.members[n].Close(); err != nil {
				d.t.Fatalf("close %s: %v", n, err)
			}
			d.start(n, d.members[n].disk)
		default:
		}
	}
}

// compare is what a leader does about hashes, as far as it gets.
func (d *day) compare() {
	lead := d.current()
	if lead == nil {
		return
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), 20*time.Second)
	defer cancel()
	if _, err := lead.Propose(ctx, hashMark); err != nil {
		return
	}
	time.Sleep(time.Second)
	index, sum, ok := lead.LastHash()
	if !ok {
		return
	}
	check := &logpb.HashCheck{Index: index, Sha256: sum[:], Leader: lead.name}
	if _, err := lead.Propose(ctx, &logpb.Command{Of: &logpb.Command_HashCheck{HashCheck: check}}); err == nil {
		d.hashes++
	}
}
