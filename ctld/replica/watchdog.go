package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// Errors of a replica that ends because of its disk. They are wrapped by what Fatal delivers.
var (
	// ErrDiskHangs: a write of the log has not come back.
	ErrDiskHangs = errors.New("the disk does not answer")
	// ErrNoSpace: less than Reserve is free where the log is.
	ErrNoSpace = errors.New("too little free space")
)

// When the watchdogs act. Raft's heartbeats do not depend on the disk: a leader whose disk hangs would
// stay leader for ever.
const (
	watchEvery  = 500 * time.Millisecond
	stallAside  = 2 * time.Second  // a write takes longer: leadership goes to another
	stallEnd    = 10 * time.Second // ... : the replica ends
	spaceEvery  = time.Second
	spaceGrace  = 10 * time.Second // for free space to come back before the replica ends
	lagEvery    = 2 * time.Second
	lagAfter    = 10 * time.Second // without progress a follower counts as stuck
	lagPause    = time.Minute      // between two changes of the leader because of one; twice that after each that did not help
	lagDoubles  = 6                // as often at most, which is an hour
	quietFor    = 24 * time.Hour   // the timeout of a replica that must not be elected
	askTimeout  = time.Second
	sendStalled = time.Minute // a snapshot of which nothing was sent for so long is not on its way
)

// dogs is what the watchdogs know: first what only watch uses, then what only watchSpaces does.
type dogs struct {
	tuning sync.Mutex // raft's settings are read and written under it

	aside  atomic.Bool   // this replica has given its term up while its disk hung
	write  uint64        // the write that is watched
	waited time.Duration // how long that has been seen under way
	ticked time.Time     // when it was last looked at
	told   bool          // leadership was handed over because of it

	low    time.Time // since when too little is free; zero = enough is
	quiet  bool      // raft does not stand for election
	handed time.Time // when leadership was last handed over for lack of space
	blind  bool      // that the free space is not known was logged

	lag      map[string]standstill
	lagMoved time.Time   // when leadership came here, or was last moved away because of lag
	lagOf    string      // who was the reason, and has not been seen to move since
	lagMoves int         // how often leadership was moved away from here because of it
	asking   atomic.Bool // a round of lag is under way
	lagMu    sync.Mutex  // lag to lagMoves
}

// standstill is a follower that is behind and does not move: the index it stands at, and since when.
type standstill struct {
	index uint64
	since time.Time
}

// watch runs the watchdogs until raft is down.
func (r *Replica) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	go r.watchSpaces()
	var lag time.Time
	var led *term
	for {
		select {
		case <-tick.C:
		case <-r.raftDown:
			return
		}
		now := time.Now()
		if r.watchStall(now) {
			continue
		}
		if t := r.lead.Load(); t != led {
			led = t
			r.dogs.lagMu.Lock()
			r.dogs.lag, r.dogs.lagMoved = nil, now
			r.dogs.lagMu.Unlock()
		}
		if now.Sub(lag) >= lagEvery && r.lead.Load() != nil && r.dogs.asking.CompareAndSwap(false, true) {
			lag = now
			if !r.task(func() { defer r.dogs.asking.Store(false); r.watchLag() }) {
				r.dogs.asking.Store(false)
			}
		}
	}
}

// watchSpaces looks at the free space, until raft is down. Nobody waits for it: the look itself may hang.
func (r *Replica) watchSpaces() {
	tick := time.NewTicker(spaceEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			r.watchSpace(now)
		case <-r.raftDown:
			return
		}
	}
}

// watchStall looks at the write that is under way for the longest.
func (r *Replica) watchStall(now time.Time) (stalled bool) {
	w, ok := r.disk.oldest()
	took := r.dogs.see(w, ok, now)
	if took < stallAside {
		r.resume()
		return false
	}
	if took >= stallEnd {
		r.halt(fmt.Errorf("raft log %s: %s has been under way for %v: %w", r.disk.path, w.what, took.Round(time.Second), ErrDiskHangs))
		return true
	}
	if !r.dogs.told {
		r.dogs.told = true
		r.log.Warn("a write to the raft log takes long", "what", w.what, "path", r.disk.path, "took", took)
		if r.raft.State() == raft.Leader {
			r.task(r.stepAside)
		}
	}
	return true
}

// see counts how long a write is under way. Time in which this process did not run, because it was stopped or its
// machine was, is not the disk's: a look counts for two at most.
func (d *dogs) see(w pendingWrite, ok bool, now time.Time) time.Duration {
	switch {
	case !ok:
		d.write, d.waited = 0, 0
	case d.write != w.id:
		d.write, d.told, d.waited = w.id, false, min(now.Sub(w.since), watchEvery)
	default:
		d.waited += min(now.Sub(d.ticked), 2*watchEvery)
	}
	d.ticked = now
	return d.waited
}

// stepAside gives leadership up while raft's own loop waits for the disk and can be told nothing: this
// replica's part ends here, and another is asked to stand for election at once. It wins if it has what a
// majority has; this replica sees the new term when its disk answers, or ends before.
func (r *Replica) stepAside() {
	r.dogs.aside.Store(true)
	r.endTerm()
	latest := r.raft.GetConfiguration().Configuration()
	if len(voters(latest)) < 2 {
		return
	}
	for _, p := range r.others(latest) {
		if !p.answers {
			continue
		}
		req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
			ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(r.cfg.Name), Addr: r.transport.EncodePeer(raft.ServerID(r.cfg.Name), r.transport.LocalAddr())}}
		err := r.transport.TimeoutNow(p.server.ID, p.server.Address, req, new(raft.TimeoutNowResponse))
		if err == nil {
			r.log.Warn("leadership handed over because the disk hangs", "to", string(p.server.ID))
			return
		}
		r.log.Warn("leadership not taken", "by", string(p.server.ID), "error", err)
	}
}

// resume takes the term up again that stepAside gave up, if nobody else has taken it and the disk answers.
func (r *Replica) resume() {
	if !r.dogs.aside.Load() {
		return
	}
	if r.raft.State() == raft.Leader {
		r.leadMu.Lock()
		idle := r.pending == nil
		r.leadMu.Unlock()
		if idle {
			r.beginTerm()
		}
		if r.raft.State() != raft.Leader { // raft's notice of that may have come before the term began
			r.endTerm()
		}
	}
	r.dogs.aside.Store(false)
}

// checkSpace refuses to begin with less than Reserve.
func (r *Replica) checkSpace() error {
	if r.cfg.Reserve == 0 || r.cfg.room == nil {
		return nil
	}
	free, err := r.cfg.room()
	if err != nil {
		return err
	}
	r.free.Store(free)
	if free < r.cfg.Reserve {
		return r.noSpace(free)
	}
	return nil
}

func (r *Replica) noSpace(free int64) error {
	return fmt.Errorf("%w: %d MiB are free at %s, StateReserve is %d MiB: make room or lower StateReserve",
		ErrNoSpace, free>>20, r.cfg.Dir, r.cfg.Reserve>>20)
}

// watchSpace hands leadership over while less than Reserve is free, does not stand for election, and
// ends the replica before the disk is full.
func (r *Replica) watchSpace(now time.Time) {
	if r.cfg.room == nil {
		return
	}
	free, err := r.cfg.room()
	if err != nil {
		if !r.dogs.blind {
			r.log.Error("free space is not known", "path", r.cfg.Dir, "error", err)
		}
		r.dogs.blind = true
		return
	}
	r.dogs.blind = false
	r.free.Store(free)
	leads := r.raft.State() == raft.Leader
	switch {
	case r.cfg.Reserve == 0 || free >= r.cfg.Reserve:
		if !r.dogs.low.IsZero() {
			r.log.Warn("enough space is free again", "path", r.cfg.Dir, "free", free)
			r.dogs.low = time.Time{}
		}
		r.setQuiet(false)
	case r.dogs.low.IsZero():
		r.dogs.low = now
		r.log.Error("too little free space", "path", r.cfg.Dir, "free", free, "reserve", r.cfg.Reserve)
		fallthrough
	case now.Sub(r.dogs.low) < spaceGrace:
		if !leads {
			r.setQuiet(true)
			return
		}
		r.setQuiet(false) // a leader's heartbeats go by the same setting
		if now.Sub(r.dogs.handed) >= 2*time.Second {
			r.dogs.handed = now
			r.task(func() {
				if err := r.Transfer(r.ctx); err != nil {
					r.log.Warn("leadership not handed over", "error", err)
				}
			})
		}
	default:
		r.halt(r.noSpace(free))
	}
}

// setQuiet keeps raft from standing for election, or lets it again.
func (r *Replica) setQuiet(on bool) {
	if r.dogs.quiet == on {
		return
	}
	timeout := r.cfg.HeartbeatTimeout
	if on {
		timeout = quietFor
	}
	err := r.tune(func(c *raft.ReloadableConfig) { c.HeartbeatTimeout, c.ElectionTimeout = timeout, timeout })
	if err != nil {
		r.log.Error("raft's timeouts are not changed", "error", err)
		return
	}
	r.dogs.quiet = on
}

// peerState is what another voter answers.
type peerState struct {
	server  raft.Server
	answers bool
	last    uint64
}

// others asks the other voters how far their logs are; those that are farthest come first.
func (r *Replica) others(c raft.Configuration) []peerState {
	var list []peerState
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter && string(s.ID) != r.cfg.Name {
			list = append(list, peerState{server: s})
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, askTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i := range list {
		wg.Go(func() {
			client, err := r.cfg.Peers(string(list[i].server.ID))
			if err != nil {
				return
			}
			resp, err := client.Status(ctx, &peerpb.StatusRequest{Asker: r.cfg.Name})
			list[i].answers, list[i].last = err == nil, resp.GetLastIndex()
		})
	}
	wg.Wait()
	slices.SortStableFunc(list, func(a, b peerState) int { return cmp.Compare(b.last, a.last) })
	return list
}

// watchLag moves leadership when a voter that answers gets no further: after a stall the library may
// never replicate to it again until the leader changes.
func (r *Replica) watchLag() {
	mine := r.raft.LastIndex()
	peers := r.others(r.raft.GetConfiguration().Configuration())
	stuck, next := r.judge(time.Now(), mine, peers)
	if stuck == "" || r.lead.Load() == nil {
		return
	}
	r.log.Warn("a controller gets no further; leadership moves", "controller", stuck, "to", string(next.server.ID))
	err := r.raft.LeadershipTransferToServer(next.server.ID, next.server.Address).Error()
	if err != nil {
		r.log.Warn("leadership not handed over", "error", err)
	}
}

// judge keeps count of who stands still and names one that has for too long, with whom to hand over to.
// A voter that a snapshot is being sent to does not count. One that no change of the leader helps must not have
// every agent look for a new leader each minute.
func (r *Replica) judge(now time.Time, mine uint64, peers []peerState) (stuck string, next *peerState) {
	r.dogs.lagMu.Lock()
	defer r.dogs.lagMu.Unlock()
	seen := map[string]standstill{}
	for i, p := range peers {
		name := string(p.server.ID)
		if !p.answers {
			continue
		}
		s, known := r.dogs.lag[name]
		if name == r.dogs.lagOf && (p.last >= mine || known && s.index != p.last) {
			r.dogs.lagOf = ""
		}
		if p.last >= mine || s.index != p.last || s.since.IsZero() || r.transport.sending(p.server.ID, now) {
			s = standstill{p.last, now}
		}
		if p.last < mine {
			seen[name] = s
		}
		if now.Sub(s.since) >= lagAfter {
			stuck = name
		} else if next == nil {
			next = &peers[i]
		}
	}
	r.dogs.lag = seen
	if stuck == "" || next == nil {
		return "", nil
	}
	if stuck != r.dogs.lagOf {
		r.dogs.lagMoves = 0
	}
	if pause := lagPause << min(r.dogs.lagMoves, lagDoubles); !r.dogs.lagMoved.IsZero() && now.Sub(r.dogs.lagMoved) < pause {
		return "", nil
	}
	r.dogs.lagMoved, r.dogs.lagOf, r.dogs.lagMoves = now, stuck, r.dogs.lagMoves+1
	return stuck, next
}

// freeSpace is what is free for this user where dir is, or will be, in bytes.
func freeSpace(dir string) (int64, error) {
	var st syscall.Statfs_t
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		err := syscall.Statfs(at, &st)
		if errors.Is(err, syscall.ENOENT) && at != filepath.Dir(at) {
			continue
		}
		if err != nil {
			return 0, &os.PathError{Op: "statfs", Path: at, Err: err}
		}
		return int64(min(st.Bavail, math.MaxInt64/uint64(st.Bsize))) * st.Bsize, nil
	}
}
