package leader

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// peers is what the members know.
type peers struct {
	mu    sync.Mutex
	known map[string]uint32
	err   error
}

func (p *peers) FeatureMax(context.Context) (map[string]uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known, p.err
}

func (p *peers) set(known map[string]uint32, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.err = known, err
}

// TestFeatureIsRaised: when every member knows more, and not before; what the state could not take of
// the configuration comes then.
func TestFeatureIsRaised(t *testing.T) {
	inBench(t, func(b *bench) {
		p := &peers{}
		b.deps = func(d *Deps) { d.Peers = p }
		b.cfg.Partitions[0].JobLease = conf.Lease(5000)
		l, _ := b.lead("c1")
		level := func() uint32 { return l.Log.View().Feature() }
		for _, tt := range []struct {
			name  string
			known map[string]uint32
			err   error
		}{
			{"nobody known", nil, nil},
			{"an old one", map[string]uint32{"c1": fsm.Version, "c2": 1, "c3": fsm.Version}, nil},
			{"one that does not answer", map[string]uint32{"c1": fsm.Version, "c2": 0, "c3": fsm.Version}, nil},
			{"members not known", map[string]uint32{"c1": fsm.Version}, errors.New("no leader")},
		} {
			p.set(tt.known, tt.err)
			time.Sleep(3 * featureInterval)
			if level() != state.FeatureFirst {
				t.Fatalf("%s: level %d", tt.name, level())
			}
		}
		if l.Log.View().Partition("main").JobLease != 0 {
			t.Error("the first level knows of leases")
		}
		p.set(map[string]uint32{"c1": fsm.Version, "c2": fsm.Version + 7}, nil)
		time.Sleep(2 * featureInterval)
		if level() != fsm.Version {
			t.Errorf("all know more: level %d", level())
		}
		if lease := l.Log.View().Partition("main").JobLease; lease != 5000 {
			t.Errorf("JobLease of the partition is %d", lease)
		}
		time.Sleep(time.Minute)
		if n := b.log.count(func(c *logpb.Command) bool { return c.GetRaiseFeature() != nil }); n != int(fsm.Version-state.FeatureFirst) {
			t.Errorf("raised %d times", n)
		}
	})
}

// TestSuccessorCompletesTheLevel: a leader that raised the level and ended before it put the configuration in
// again leaves that to its successor; else the leases of partitions would not count until somebody reconfigures.
func TestSuccessorCompletesTheLevel(t *testing.T) {
	inBench(t, func(b *bench) {
		b.deps = func(d *Deps) { d.Peers = &peers{} }
		b.cfg.Partitions[0].JobLease = conf.Lease(5000)
		b.cfg.Partitions[0].LLN, b.cfg.PriorityWeightAge, b.cfg.Licenses = true, 1000, []string{"matlab:3"}
		l, r := b.lead("c1")
		b.apply(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: fsm.Version}}})
		r.lose()
		if lease := l.Log.View().Partition("main").JobLease; lease != 0 {
			t.Fatalf("JobLease of the partition is %d before anybody put it in", lease)
		}
		l, r = b.lead("c2")
		time.Sleep(2 * featureInterval)
		if lease := l.Log.View().Partition("main").JobLease; lease != 5000 {
			t.Errorf("JobLease of the partition is %d", lease)
		}
		if v := l.Log.View(); !v.Partition("main").LLN || v.Config().Sched.WeightAge != 1000 || len(v.Config().Sched.Licenses) != 1 {
			t.Errorf("what level 3 brought is not in the state: %+v", v.Config().Sched)
		}
		configs := func() int {
			return b.log.count(func(c *logpb.Command) bool { return c.GetSetConfig() != nil })
		}
		n := configs()
		r.lose()
		b.lead("c3") // nothing is missing any more
		time.Sleep(2 * featureInterval)
		if more := configs() - n; more != 0 {
			t.Errorf("%d configurations too many", more)
		}
	})
}

// hashes is a replica that hashes its marks at once.
type hashes struct {
	*memLog
	ready bool
}

func (h *hashes) LastHash() (index uint64, sum [32]byte, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.cmds {
		if c.GetHashMark() != nil {
			index++
		}
	}
	return index, [32]byte{byte(index)}, h.ready && index > 0
}

// TestStatesAreCompared: a mark each interval, and a check behind each.
func TestStatesAreCompared(t *testing.T) {
	inBench(t, func(b *bench) {
		h := &hashes{memLog: b.log}
		b.deps = func(d *Deps) { d.Hashes = h }
		b.cfg.StateHashInterval = time.Minute
		b.lead("c1")
		counts := func() (marks, checks int) {
			return b.log.count(func(c *logpb.Command) bool { return c.GetHashMark() != nil }),
				b.log.count(func(c *logpb.Command) bool { return c.GetHashCheck() != nil })
		}
		time.Sleep(5 * time.Minute)
		if m, c := counts(); m+c != 0 {
			t.Errorf("%d marks, %d checks at the first level", m, c)
		}
		b.apply(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: state.FeatureMembers}}})
		time.Sleep(2 * time.Minute)
		if m, c := counts(); m != 1 || c != 0 {
			t.Errorf("%d marks, %d checks while the hash is not ready", m, c)
		}
		b.log.mu.Lock()
		h.ready = true
		b.log.mu.Unlock()
		time.Sleep(10 * time.Minute)
		m, c := counts()
		if m < 9 || m > 12 || c != m {
			t.Errorf("%d marks, %d checks", m, c)
		}
		last := func(c *logpb.Command) bool {
			return c.GetHashCheck().GetLeader() == "c1" && c.GetHashCheck().GetSha256()[0] == byte(c.GetHashCheck().GetIndex())
		}
		if n := b.log.count(last); n != c {
			t.Errorf("%d checks of %d name leader and hash", n, c)
		}
	})
	inBench(t, func(b *bench) { // switched off
		b.deps = func(d *Deps) { d.Hashes = &hashes{memLog: b.log, ready: true} }
		b.apply(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: state.FeatureMembers}}})
		b.lead("c1")
		time.Sleep(time.Hour)
		if n := b.log.count(func(c *logpb.Command) bool { return c.GetHashMark() != nil }); n != 0 {
			t.Errorf("%d marks", n)
		}
	})
}
