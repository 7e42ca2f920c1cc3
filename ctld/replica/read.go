package replica

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// readGroup lets all reads that come while a check of leadership is under way share the next one.
type readGroup struct {
	fetch func() (uint64, error)
	start func(func()) bool // runs work as a goroutine; false when the replica is closing
	stop  func() bool       // tells that it is

	mu   sync.Mutex
	next *readBatch
	busy bool
}

// readBatch is the reads that share one check. index and err are set when done is closed.
type readBatch struct {
	done  chan struct{}
	index uint64
	err   error
}

// join gives the batch whose check has not begun yet; lone tells that the caller must start work.
func (g *readGroup) join() (b *readBatch, lone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		g.next = &readBatch{done: make(chan struct{})}
	}
	lone = !g.busy
	g.busy = true
	return g.next, lone
}

// index gives an index that a read which began before this call must have applied.
func (g *readGroup) index(ctx context.Context) (uint64, error) {
	b, lone := g.join()
	if lone && !g.start(g.work) {
		g.fail(ErrStopped)
	}
	select {
	case <-b.done:
		return b.index, b.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// work serves batches until no read waits.
func (g *readGroup) work() {
	for {
		if g.stop() {
			g.fail(ErrStopped)
			return
		}
		g.mu.Lock()
		b := g.next
		g.next = nil
		g.busy = b != nil
		g.mu.Unlock()
		if b == nil {
			return
		}
		b.index, b.err = g.fetch()
		close(b.done)
	}
}

// fail answers the reads that wait when work cannot be started.
func (g *readGroup) fail(err error) {
	g.mu.Lock()
	b := g.next
	g.next, g.busy = nil, false
	g.mu.Unlock()
	if b != nil {
		b.err = err
		close(b.done)
	}
}

// Read implements Log. It fails with ErrNoLeader when none can be asked; the caller decides
// whether to try again.
func (r *Replica) Read(ctx context.Context) (state.Viewer, error) {
	group := &r.asked
	if r.lead.Load() != nil {
		group = &r.verified
	}
	index, err := group.index(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.progress.wait(ctx, index); err != nil {
		return nil, err
	}
	return r.machine.View(), nil
}

// askLeader is a follower's check: the leader's.
func (r *Replica) askLeader() (uint64, error) {
	name, _ := r.Leader()
	if name == "" || name == r.cfg.Name {
		return 0, ErrNoLeader
	}
	client, err := r.cfg.Peers(name)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	ctx, cancel := context.WithTimeout(r.ctx, 2*r.cfg.HeartbeatTimeout)
	defer cancel()
	resp, err := client.ReadIndex(ctx, &peerpb.ReadIndexRequest{})
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrNoLeader, name, err)
	}
	return resp.GetIndex(), nil
}

// verifyIndex is a leader's check. It gives the commit index after a majority has confirmed that this replica leads.
// The term is compared before and after: a leader that lost and regained leadership in between
// may have taken an index that lacks what the one between acknowledged.
func (r *Replica) verifyIndex() (uint64, error) {
	t := r.lead.Load()
	if t == nil || r.raft.CurrentTerm() != t.number {
		return 0, ErrNoLeader
	}
	index := r.raft.CommitIndex()
	if err := r.raft.VerifyLeader().Error(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	if r.raft.CurrentTerm() != t.number {
		return 0, ErrNoLeader
	}
	return index, nil
}

// PeerService is the part of api/peerpb's Peer service that a replica answers. The server embeds
// it and adds Forward.
type PeerService struct {
	peerpb.UnimplementedPeerServer
	replica *Replica
	version string
}

// NewPeerService serves r; version is the program's, for people.
func NewPeerService(r *Replica, version string) *PeerService {
	return &PeerService{replica: r, version: version}
}

// ReadIndex implements peerpb.PeerServer; only a leader answers, else the code is FailedPrecondition.
// A follower's question joins those of this leader's own readers.
func (s *PeerService) ReadIndex(ctx context.Context, _ *peerpb.ReadIndexRequest) (*peerpb.ReadIndexResponse, error) {
	t := s.replica.lead.Load()
	if t == nil {
		return nil, status.Error(codes.FailedPrecondition, ErrNotLeader.Error())
	}
	index, err := s.replica.verified.index(ctx)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &peerpb.ReadIndexResponse{Index: index, Term: t.number}, nil
}

// Status implements peerpb.PeerServer; it answers also while the replica waits to take part.
func (s *PeerService) Status(_ context.Context, req *peerpb.StatusRequest) (*peerpb.StatusResponse, error) {
	r := s.replica
	st := r.Status()
	resp := &peerpb.StatusResponse{
		Name: st.Name, Role: st.Role, Leader: st.Leader, Term: st.Term,
		Applied: st.Applied, LastIndex: st.LastIndex,
		Version: s.version, UptimeMs: time.Since(r.born).Milliseconds(),
		Blank: r.blank(), FeatureMax: fsm.Version, Feature: r.machine.View().Feature(),
		Cluster: r.cfg.Cluster, ContactMs: st.ContactMS, StateFree: r.free.Load(),
	}
	latest := r.latest()
	_, resp.Voter = suffrage(latest, r.cfg.Name)
	// Nobody is told that it was removed by what is not agreed on.
	resp.Member, _ = suffrage(latest, req.GetAsker())
	if agreed := r.agreed.Load(); agreed == nil {
		resp.Member = true
	} else if !resp.Member {
		resp.Member, _ = suffrage(agreed.config, req.GetAsker())
	}
	if agreed := r.agreed.Load(); agreed != nil {
		_, resp.AskerVotes = suffrage(agreed.config, req.GetAsker())
	}
	return resp, nil
}
