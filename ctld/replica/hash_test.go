package replica

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
)

var (
	raise    = &logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 2}}}
	hashMark = &logpb.Command{Of: &logpb.Command_HashMark{HashMark: &logpb.HashMark{}}}
)

// compareStates does what a leader does: a mark, and a check when its own hash is ready.
func compareStates(t *testing.T, lead *member) {
	t.Helper()
	before, _, _ := lead.LastHash()
	if _, err := lead.Propose(t.Context(), hashMark); err != nil {
		t.Fatal(err)
	}
	for {
		index, sum, ok := lead.LastHash()
		if ok && index != before {
			check := &logpb.HashCheck{Index: index, Sha256: sum[:], Leader: lead.name}
			if _, err := lead.Propose(t.Context(), &logpb.Command{Of: &logpb.Command_HashCheck{HashCheck: check}}); err != nil {
				t.Fatal(err)
			}
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestFeatureGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead := c.leader()
		for _, cmd := range []*logpb.Command{
			hashMark,
			{Of: &logpb.Command_HashCheck{HashCheck: &logpb.HashCheck{}}},
			{Of: &logpb.Command_SetController{SetController: &logpb.SetController{}}},
			{Of: &logpb.Command_CreateJoinToken{CreateJoinToken: &logpb.CreateJoinToken{}}},
			{Of: &logpb.Command_UseJoinToken{UseJoinToken: &logpb.UseJoinToken{}}},
			{Of: &logpb.Command_RevokeJoinToken{RevokeJoinToken: &logpb.RevokeJoinToken{}}},
		} {
			if _, err := lead.Propose(t.Context(), submit("x"), cmd); !errors.Is(err, ErrFeature) {
				t.Errorf("%T below level 2: %v", cmd.Of, err)
			}
		}
		if got := c.agree(); len(got) != 0 {
			t.Errorf("refused and applied: %v", got)
		}
		if _, err := lead.Propose(t.Context(), raise); err != nil {
			t.Fatal(err)
		}
		compareStates(t, lead)
	})
}

// TestEqualStates: marks and checks under load, with snapshots and a restarted member, end nobody.
func TestEqualStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(cfg *Config, l *ledger) {
			cfg.SnapshotBytes = 16 << 10
			l.write = func() { time.Sleep(7 * time.Millisecond) } // hashing takes its time
		})
		defer c.close()
		if _, err := c.leader().Propose(t.Context(), raise); err != nil {
			t.Fatal(err)
		}
		for round := range 12 {
			lead := c.leader()
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() { _, _ = lead.Propose(t.Context(), submit(fmt.Sprintf("%d/%d", round, i))) })
			}
			compareStates(t, lead)
			wg.Wait()
			if round == 5 {
				far := c.followers()[0]
				if err := far.Close(); err != nil {
					t.Fatal(err)
				}
				c.start(far.name, far.disk)
			}
			if round == 8 {
				if err := lead.Transfer(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(time.Second)
		for _, n := range c.names {
			select {
			case err := <-c.members[n].Fatal():
				t.Errorf("%s ended: %v", n, err)
			default:
			}
			if _, _, ok := c.members[n].LastHash(); !ok {
				t.Errorf("%s has no hash", n)
			}
		}
	})
}

// TestDivergedFollower changes one follower's state behind its back: it halts, and the others go on.
func TestDivergedFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		defer c.close()
		lead, bad := c.leader(), c.followers()[1]
		if _, err := lead.Propose(t.Context(), raise, submit("a"), submit("b")); err != nil {
			t.Fatal(err)
		}
		compareStates(t, lead)
		c.agree()
		flipped := *bad.ledger.state()
		flipped.Order = slices.Clone(flipped.Order)
		flipped.Order[1] = "c"
		bad.ledger.now.Store(&flipped)
		compareStates(t, lead)
		err := fatalOf(t, bad, time.Second)
		if !errors.Is(err, ErrDiverged) {
			t.Fatalf("ended with %v", err)
		}
		index, sum, _ := lead.LastHash()
		_, own, _ := bad.LastHash()
		mention(t, err, fmt.Sprintf("%x", sum), fmt.Sprintf("%x", own), fmt.Sprint("log entry ", index), lead.name, "move ")
		if _, err := lead.Propose(t.Context(), submit("after")); err != nil {
			t.Error(err)
		}
		for _, n := range c.names {
			if n == bad.name {
				continue
			}
			select {
			case err := <-c.members[n].Fatal():
				t.Errorf("%s ended as well: %v", n, err)
			default:
			}
		}
	})
}

// TestHashBounds: only the newest marks are remembered, checks of others are not made, and one that comes
// before the hash is ready waits for it.
func TestHashBounds(t *testing.T) {
	l := newLedger()
	var told []error
	var work []func()
	h := &hasher{pin: l.Snapshot, start: func(f func()) bool { work = append(work, f); return true },
		stopped: func() bool { return false }, differs: func(err error) { told = append(told, err) }}
	for i := range uint64(10) {
		h.applied(i+1, []fsm.Result{{}, {Mark: true}, {Mark: true}})
	}
	if len(h.marks) != marksKept || h.marks[0].index != 7 || len(work) != 1 {
		t.Fatalf("%d marks, %d workers", len(h.marks), len(work))
	}
	h.applied(11, []fsm.Result{{Check: &fsm.HashCheck{Index: 3}}, {Check: &fsm.HashCheck{Index: 9}}})
	if len(told) != 0 {
		t.Fatal("told before the hash was ready")
	}
	work[0]()
	if len(told) != 1 {
		t.Fatalf("%d told", len(told))
	}
	_, sum, ok := (&Replica{hashes: hasher{marks: h.marks}}).LastHash()
	if !ok || sum == [sha256.Size]byte{} {
		t.Error("no hash")
	}
	h.applied(12, []fsm.Result{{Check: &fsm.HashCheck{Index: 10, SHA256: sum}}})
	if len(told) != 1 {
		t.Error("equal hashes differ")
	}
}
