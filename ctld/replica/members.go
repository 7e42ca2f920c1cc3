package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// Errors of changes to the membership.
var (
	// ErrNoMember: no controller of that name belongs to the cluster.
	ErrNoMember = errors.New("no such controller in the cluster")
	// ErrIsMember: a controller of that name belongs to the cluster already.
	ErrIsMember = errors.New("this controller belongs to the cluster already")
	// ErrLagging: the learner has not caught up, does not answer, or runs a version that is too old.
	ErrLagging = errors.New("this controller is not ready to vote")
	// ErrLearner: leadership was to be moved to a controller that does not vote.
	ErrLearner = errors.New("this controller does not vote yet")
	// ErrLastVoter: the cluster would be left without a voter, or has no second one to hand over to.
	ErrLastVoter = errors.New("this is the only controller that votes")
	// ErrNoMajority: too few of the voters that would be left answer.
	ErrNoMajority = errors.New("too few of the controllers that would be left answer")
	// ErrTooManyVoters: MaxVoters vote already.
	ErrTooManyVoters = fmt.Errorf("%d controllers vote already, which is the limit", MaxVoters)
	// ErrChanging: another change of the membership has not been agreed on yet.
	ErrChanging = errors.New("another change of the controllers is under way")
)

// What a learner may lack when it becomes a voter, and how long peers may take to answer.
const (
	maxLagEntries = 512
	maxLagTime    = 5 * time.Second
	peerTimeout   = time.Second
	changeTimeout = 5 * time.Second // for an earlier change to be agreed on
)

// Member is one controller of the cluster.
type Member struct {
	Name, Addr    string // Addr of its raft port
	Voter, Leader bool
}

// membership is the newest configuration that a majority has agreed on, as this replica has applied it.
type membership struct {
	index  uint64
	config raft.Configuration
}

// suffrage tells whether a configuration has a name, and whether that votes.
func suffrage(c raft.Configuration, name string) (member, voter bool) {
	for _, s := range c.Servers {
		if string(s.ID) == name {
			return true, s.Suffrage == raft.Voter
		}
	}
	return false, false
}

// voters are the names that vote.
func voters(c raft.Configuration) (names []string) {
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			names = append(names, string(s.ID))
		}
	}
	return names
}

// latest is the configuration that raft goes by; it may not be agreed on yet. It is empty while raft
// does not run.
func (r *Replica) latest() raft.Configuration {
	ra := r.running()
	if ra == nil {
		return raft.Configuration{}
	}
	return ra.GetConfiguration().Configuration()
}

// Members gives the controllers of the cluster by name, learners included; nil while this one does
// not take part yet.
func (r *Replica) Members() []Member {
	config := r.latest()
	lead, _ := r.Leader()
	var out []Member
	for _, s := range config.Servers {
		m := Member{Name: string(s.ID), Addr: string(s.Address), Voter: s.Suffrage == raft.Voter}
		if a, ok := r.knownAddr(m.Name); ok {
			m.Addr = a
		}
		m.Leader = m.Name == lead
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// knownAddr gives the raft address by the file, else by the state's records.
func (r *Replica) knownAddr(name string) (string, bool) {
	if a, ok := r.cfg.addr(name); ok {
		return a, true
	}
	if r.cfg.Address != nil {
		if a := r.cfg.Address(name); a != "" {
			return a, true
		}
	}
	return "", false
}

// ServerAddr implements raft.ServerAddressProvider: the file's addresses win over those that were given
// at run time, and both over those in the log, so that a controller may move to another address
// by an edit and a restart.
func (r *Replica) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if a, ok := r.knownAddr(string(id)); ok {
		return raft.ServerAddress(a), nil
	}
	for _, s := range r.latest().Servers {
		if s.ID == id {
			return s.Address, nil
		}
	}
	return "", fmt.Errorf("no address is known of controller %q", id)
}

// AddLearner takes a controller in that gets the log and does not vote. Its folder must be empty: it asks
// for the log itself as soon as it belongs to the cluster. Only the leader can (ErrNotLeader).
func (r *Replica) AddLearner(ctx context.Context, name, addr string) error {
	return r.change(ctx, func(ctx context.Context, config raft.Configuration) error {
		if member, _ := suffrage(config, name); member {
			return fmt.Errorf("%w: %s", ErrIsMember, name)
		}
		if name == "" || addr == "" {
			return fmt.Errorf("a controller needs a name and a raft address, not %q and %q", name, addr)
		}
		_, err := r.await(ctx, func() raft.IndexFuture {
			return r.raft.AddNonvoter(raft.ServerID(name), raft.ServerAddress(addr), 0, changeTimeout)
		})
		return err
	})
}

// Promote makes a learner a voter. It refuses with ErrLagging one that is more than 512 entries or 5 s
// behind, does not answer, or runs a version that does not know the state's feature level.
func (r *Replica) Promote(ctx context.Context, name string) error {
	return r.change(ctx, func(ctx context.Context, config raft.Configuration) error {
		return r.promote(ctx, config, name)
	})
}

func (r *Replica) promote(ctx context.Context, config raft.Configuration, name string) error {
	member, voter := suffrage(config, name)
	switch {
	case !member:
		return fmt.Errorf("%w: %s", ErrNoMember, name)
	case voter:
		return fmt.Errorf("%w: %s votes", ErrIsMember, name)
	case len(voters(config)) >= MaxVoters:
		return ErrTooManyVoters
	}
	if err := r.ready(ctx, name); err != nil {
		return err
	}
	if err := r.majority(ctx, append(voters(config), name)); err != nil {
		return err
	}
	addr := memberAddr(config, name)
	_, err := r.await(ctx, func() raft.IndexFuture {
		return r.raft.AddVoter(raft.ServerID(name), addr, 0, changeTimeout)
	})
	return err
}

func memberAddr(c raft.Configuration, name string) raft.ServerAddress {
	for _, s := range c.Servers {
		if string(s.ID) == name {
			return s.Address
		}
	}
	return ""
}

// ready tells whether a learner has caught up.
func (r *Replica) ready(ctx context.Context, name string) error {
	st, err := r.ask(ctx, name)
	if err != nil {
		return fmt.Errorf("%w: %s does not answer: %w", ErrLagging, name, err)
	}
	last := r.raft.LastIndex()
	known := max(st.GetFeatureMax(), 1) // the first release does not tell
	switch level := r.machine.View().Feature(); {
	case st.GetBlank() || st.GetLastIndex() == 0:
		return fmt.Errorf("%w: %s has no entry of the log yet", ErrLagging, name)
	case st.GetLastIndex()+maxLagEntries < last:
		return fmt.Errorf("%w: %s is %d entries behind (limit %d)", ErrLagging, name, last-st.GetLastIndex(), maxLagEntries)
	case st.GetContactMs() > maxLagTime.Milliseconds():
		return fmt.Errorf("%w: %s heard the leader %d ms ago (limit %d)", ErrLagging, name, st.GetContactMs(), maxLagTime.Milliseconds())
	case known < level:
		return fmt.Errorf("%w: version %s of %s knows feature level %d, the state has %d", ErrLagging, st.GetVersion(), name, known, level)
	}
	return nil
}

// Remove takes a controller out, a learner or a voter; it finds out and ends with ErrRemoved. The leader
// may be taken out too: it ends as soon as the others have agreed. When too few of the voters that are left
// answer, the cluster could not agree on anything any more: that is refused with ErrNoMajority unless
// force is set.
func (r *Replica) Remove(ctx context.Context, name string, force bool) error {
	return r.change(ctx, func(ctx context.Context, config raft.Configuration) error {
		member, voter := suffrage(config, name)
		if !member {
			return fmt.Errorf("%w: %s", ErrNoMember, name)
		}
		if voter {
			left := slices.DeleteFunc(voters(config), func(v string) bool { return v == name })
			if len(left) == 0 {
				return fmt.Errorf("%w: %s", ErrLastVoter, name)
			}
			if err := r.majority(ctx, left); err != nil && !force {
				return err
			}
		}
		_, err := r.await(ctx, func() raft.IndexFuture {
			return r.raft.RemoveServer(raft.ServerID(name), 0, changeTimeout)
		})
		if err == nil {
			r.returning.Delete(name) // if it is taken in again, that is as a learner
		}
		return err
	})
}

// majority tells whether enough of these voters take part at present.
func (r *Replica) majority(ctx context.Context, names []string) error {
	var mu sync.Mutex
	var silent []string
	var wg sync.WaitGroup
	for _, name := range names {
		if name == r.cfg.Name {
			continue
		}
		wg.Go(func() {
			st, err := r.ask(ctx, name)
			if err != nil || st.GetBlank() || st.GetContactMs() > maxLagTime.Milliseconds() {
				mu.Lock()
				silent = append(silent, name)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if need := len(names)/2 + 1; len(names)-len(silent) < need {
		slices.Sort(silent)
		return fmt.Errorf("%w: %d of %d voters are needed, and no answer came from %s", ErrNoMajority, need, len(names), strings.Join(silent, ", "))
	}
	return nil
}

// ask gives a peer's status, within peerTimeout.
func (r *Replica) ask(ctx context.Context, name string) (*peerpb.StatusResponse, error) {
	client, err := r.cfg.Peers(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	return client.Status(ctx, &peerpb.StatusRequest{Asker: r.cfg.Name})
}

// TransferTo hands leadership to a voter, "" to the most advanced one. It returns when that has happened or
// failed; nothing is done when the leader itself is named.
func (r *Replica) TransferTo(ctx context.Context, name string) error {
	if r.lead.Load() == nil {
		return ErrNotLeader
	}
	config := r.latest()
	if name == "" {
		if len(voters(config)) < 2 {
			return ErrLastVoter
		}
		return r.handOver(ctx, r.raft.LeadershipTransfer)
	}
	member, voter := suffrage(config, name)
	switch {
	case !member:
		return fmt.Errorf("%w: %s", ErrNoMember, name)
	case !voter:
		return fmt.Errorf("%w: %s", ErrLearner, name)
	case name == r.cfg.Name:
		return nil
	}
	addr := memberAddr(config, name)
	return r.handOver(ctx, func() raft.Future {
		return r.raft.LeadershipTransferToServer(raft.ServerID(name), addr)
	})
}

// handOver waits for a transfer of leadership.
func (r *Replica) handOver(ctx context.Context, start func() raft.Future) error {
	done := make(chan error, 1)
	if !r.task(func() { done <- start().Error() }) {
		return ErrStopped
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("hand over leadership: %w", err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// change runs one change of the membership at a time, on the leader, with the configuration that it is
// to be made to.
func (r *Replica) change(ctx context.Context, f func(context.Context, raft.Configuration) error) error {
	select {
	case r.changing <- struct{}{}:
		defer func() { <-r.changing }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrChanging, ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return err // who asked for it has gone, and may have asked again
	}
	if r.lead.Load() == nil {
		return ErrNotLeader
	}
	return f(ctx, r.latest())
}

// await starts a change and waits until it is agreed on and applied here. When ctx ends before, the outcome is
// unknown.
func (r *Replica) await(ctx context.Context, start func() raft.IndexFuture) (index uint64, err error) {
	done := make(chan raft.IndexFuture, 1)
	ok := r.task(func() {
		f := start()
		_ = f.Error() // waits; it is asked again below
		done <- f
	})
	if !ok {
		return 0, ErrStopped
	}
	select {
	case f := <-done:
		if err = f.Error(); err == nil {
			return f.Index(), nil
		}
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	}
	switch {
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return 0, ErrChanging
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return 0, settle(err)
	}
	return 0, fmt.Errorf("change the controllers: %w", err)
}

// snapshotOf tells what a snapshot is of, nil when its reader does not know.
func snapshotOf(rc io.ReadCloser) *raft.SnapshotMeta {
	for {
		switch r := rc.(type) {
		case interface{ snapshotMeta() *raft.SnapshotMeta }:
			return r.snapshotMeta()
		case raft.ReadCloserWrapper:
			rc = r.WrappedReadCloser()
		default:
			return nil
		}
	}
}
