package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// Rejoined is what a controller with an empty folder is told when it is a learner.
type Rejoined struct {
	Voter bool   // it was a voter
	Term  uint64 // it must take no leader of an earlier term,
	Index uint64 // and not vote before it holds this entry
}

// Rejoin makes a member whose folder is empty a learner, and tells whether it was a voter (it asks to be
// promoted itself when it has caught up). It comes back without an error only when the other voters have agreed:
// from then on nobody counts what that controller promised before it lost its disk. Its folder is looked
// at again: a controller with a history is refused with ErrIsMember.
func (r *Replica) Rejoin(ctx context.Context, name, addr string) (out Rejoined, err error) {
	err = r.change(ctx, func(ctx context.Context, config raft.Configuration) error {
		out, err = r.rejoin(ctx, config, name, addr)
		return err
	})
	return out, err
}

func (r *Replica) rejoin(ctx context.Context, config raft.Configuration, name, addr string) (out Rejoined, err error) {
	member, voter := suffrage(config, name)
	if !member {
		return out, fmt.Errorf("%w: %s", ErrNoMember, name)
	}
	if name == r.cfg.Name || addr == "" {
		return out, fmt.Errorf("%w: %s (raft address %q)", ErrIsMember, name, addr)
	}
	if st, err := r.ask(ctx, name); err != nil {
		return out, fmt.Errorf("%s asks to be taken back and does not answer itself: %w", name, err)
	} else if !st.GetBlank() {
		return out, fmt.Errorf("%w: %s, and its folder is not empty", ErrIsMember, name)
	}
	// One entry, so that no crash can leave the controller outside for good. A learner gets one too: that it
	// is one may not be agreed on yet.
	if voter {
		if out.Index, err = r.learner(ctx, name, func() raft.IndexFuture {
			return r.raft.DemoteVoter(raft.ServerID(name), 0, changeTimeout)
		}); err != nil {
			return out, err
		}
		r.returning.Store(name, true)
	}
	if !voter || string(memberAddr(config, name)) != addr {
		if out.Index, err = r.learner(ctx, name, func() raft.IndexFuture {
			return r.raft.AddNonvoter(raft.ServerID(name), raft.ServerAddress(addr), 0, changeTimeout)
		}); err != nil {
			return out, err
		}
	}
	_, was := r.returning.Load(name)
	out.Voter, out.Term = voter || was, r.raft.CurrentTerm()
	return out, nil
}

// learner makes a change after which name must be a learner by what a majority has agreed on.
func (r *Replica) learner(ctx context.Context, name string, start func() raft.IndexFuture) (index uint64, err error) {
	if index, err = r.await(ctx, start); err != nil {
		return 0, err
	}
	now := r.agreed.Load()
	if now == nil || now.index < index {
		return 0, fmt.Errorf("%w: the change is not applied here", ErrUnknown)
	}
	if member, votes := suffrage(now.config, name); !member || votes {
		return 0, fmt.Errorf("%w: %s was changed by another at the same time", ErrChanging, name)
	}
	return index, nil
}

// Rejoin implements peerpb.PeerServer; only the leader does it. Whoever serves it must have made sure that the
// caller is the controller of that name.
func (s *PeerService) Rejoin(ctx context.Context, req *peerpb.RejoinRequest) (*peerpb.RejoinResponse, error) {
	if req.GetReady() {
		if err := s.replica.Promote(ctx, req.GetName()); err != nil {
			return nil, toRPC(err)
		}
		s.replica.returning.Delete(req.GetName())
		return &peerpb.RejoinResponse{Voter: true}, nil
	}
	addr := req.GetAddress()
	if p := req.GetRaftPort(); p != 0 {
		addr = net.JoinHostPort(addr, strconv.FormatUint(uint64(p), 10))
	}
	out, err := s.replica.Rejoin(ctx, req.GetName(), addr)
	if err != nil {
		return nil, toRPC(err)
	}
	return &peerpb.RejoinResponse{Voter: out.Voter, Term: out.Term, Index: out.Index}, nil
}

// toRPC and fromRPC carry the errors that a caller branches on.
func toRPC(err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, ErrNoMember):
		code = codes.NotFound
	case errors.Is(err, ErrIsMember):
		code = codes.AlreadyExists
	case errors.Is(err, ErrNotLeader), errors.Is(err, ErrLagging):
		code = codes.FailedPrecondition
	}
	return status.Error(code, err.Error())
}

func fromRPC(err error) error {
	switch status.Code(err) {
	case codes.NotFound:
		return fmt.Errorf("%w (%w)", ErrNoMember, err)
	case codes.AlreadyExists:
		return fmt.Errorf("%w (%w)", ErrIsMember, err)
	}
	return err
}

// watchMembership looks after this replica's own place in the cluster, until it is closed or removed.
func (r *Replica) watchMembership() {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.raftDown:
			return
		case <-r.ctx.Done():
			return
		}
		if r.raft.State() == raft.Shutdown {
			continue // watchLeadership sees to it
		}
		if r.lost() && r.removedBy() != "" {
			r.markRemoved()
			r.halt(ErrRemoved)
			return
		}
		r.returnToVote()
	}
}

// lost tells whether this replica has reason to ask whether it was removed: it has heard no leader
// for some time, or its own log leaves it out.
func (r *Replica) lost() bool {
	if r.raft.State() == raft.Leader {
		return false
	}
	if config := r.latest(); len(config.Servers) > 0 {
		if member, _ := suffrage(config, r.cfg.Name); !member {
			return true
		}
	}
	return time.Since(r.raft.LastContact()) > 4*r.cfg.HeartbeatTimeout
}

// removedBy asks all controllers that are known of, and gives the name of the leader that does not know this
// one, "" when there is none. The leader must prove that it is one, after it was asked.
func (r *Replica) removedBy() string {
	names := r.cfg.others()
	for _, s := range r.latest().Servers {
		if n := string(s.ID); n != r.cfg.Name && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, 3*peerTimeout)
	defer cancel()
	for _, name := range r.poll(ctx, names).leaders() {
		client, err := r.cfg.Peers(name)
		if err != nil {
			continue
		}
		if _, err := client.ReadIndex(ctx, &peerpb.ReadIndexRequest{}); err != nil {
			continue
		}
		if st, err := r.ask(ctx, name); err == nil && st.GetRole() == raft.Leader.String() && st.GetFeatureMax() > 0 && !st.GetMember() {
			return name
		}
	}
	return ""
}

// markRemoved writes down that this replica was taken out, for the next start.
func (r *Replica) markRemoved() {
	if err := r.stores.stable.Set(keyRemoved, []byte{1}); err != nil {
		r.log.Error("that this controller was removed could not be written down", "error", err)
	}
}

// returnToVote asks the leader to make this replica a voter again that it was before its folder was emptied. Only
// the leader knows whether that is done: this one's own log still goes through the times when it was a voter.
func (r *Replica) returnToVote() {
	if !marked(r.stores.stable, keyReturning) {
		return
	}
	name, _ := r.Leader()
	if name == "" || name == r.cfg.Name {
		return
	}
	client, err := r.cfg.Peers(name)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, rejoinFor)
	defer cancel()
	if _, err := client.Rejoin(ctx, r.rejoinRequest(true)); err != nil && !errors.Is(fromRPC(err), ErrIsMember) {
		r.log.Debug("not a voter again yet", "error", err)
		return
	}
	if err := r.stores.stable.Set(keyReturning, nil); err != nil {
		r.log.Error("that this controller votes again could not be written down", "error", err)
	}
}
