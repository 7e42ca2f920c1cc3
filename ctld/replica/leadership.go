package replica

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/api/logpb"
)

// barrierRetry is the pause before a barrier that was refused is tried again.
const barrierRetry = 20 * time.Millisecond

// term is one won election. number is known when the barrier is applied.
type term struct {
	number uint64
	ctx    context.Context
	cancel context.CancelFunc
}

// Leadership implements Log. Only the newest context is kept for a reader that comes late.
func (r *Replica) Leadership() <-chan context.Context { return r.leadership }

// watchLeadership takes raft's notices, always at once because raft waits for it, until raft is down.
// The tick finds a raft that has ended by itself, of which there may be no notice: this controller
// was removed from the cluster.
func (r *Replica) watchLeadership() {
	tick := time.NewTicker(r.cfg.HeartbeatTimeout)
	defer tick.Stop()
	for {
		select {
		case won := <-r.notify:
			r.endTerm()
			if won {
				r.beginTerm()
			}
		case <-tick.C:
			if r.raft.State() == raft.Shutdown {
				r.ended()
			}
		case <-r.raftDown:
			return
		}
	}
}

// ended reports a raft that has stopped while nobody closed the replica. By itself it does so only as a
// leader that was taken out and has seen a majority agree.
func (r *Replica) ended() {
	if r.isClosing() {
		return
	}
	r.endTerm()
	r.batch.close()
	r.batch.abandon()
	r.progress.stop(ErrStopped)
	if !r.halted.CompareAndSwap(false, true) {
		return // for another reason, which has been told; a list without this replica may not be agreed on
	}
	if member, _ := suffrage(r.latest(), r.cfg.Name); !member {
		r.markRemoved()
	}
	go r.shutdownRaft() // for its connections; it waits for this goroutine to take a notice
	r.fatal <- ErrRemoved
}

func (r *Replica) beginTerm() {
	t := &term{}
	t.ctx, t.cancel = context.WithCancel(r.ctx)
	r.leadMu.Lock()
	r.pending = t
	r.leadMu.Unlock()
	if !r.task(func() { r.passBarrier(t) }) {
		t.cancel()
	}
}

// endTerm takes leadership from everyone who relies on it; without a term it does nothing.
func (r *Replica) endTerm() {
	r.leadMu.Lock()
	defer r.leadMu.Unlock()
	if r.pending != nil {
		r.pending.cancel()
		r.pending = nil
	}
	r.lead.Store(nil)
}

// passBarrier proposes an empty command and waits until it is applied here: everything that
// former leaders acknowledged is then in this replica's state. Raft's own barrier would do, but
// its entry is not shown to the state machine, and a read index could then point at an index that
// no replica is ever seen to reach.
func (r *Replica) passBarrier(t *term) {
	var noop proposal
	_, err := noop.append(&logpb.Command{Of: &logpb.Command_Noop{Noop: &logpb.Noop{}}})
	for err == nil && t.ctx.Err() == nil {
		before := r.raft.CurrentTerm()
		f := r.raft.Apply(r.entry([][]byte{noop.fields}, len(noop.fields)), 0)
		failed := f.Error()
		if failed == nil {
			if o, ok := f.Response().(*outcome); ok && o.err == nil && r.raft.CurrentTerm() == before {
				r.publish(t, before)
			}
			return
		}
		r.log.Debug("barrier refused", "error", failed)
		pause(t.ctx, barrierRetry)
	}
}

// publish makes the term known, unless it was lost meanwhile.
func (r *Replica) publish(t *term, number uint64) {
	r.leadMu.Lock()
	defer r.leadMu.Unlock()
	if r.pending != t {
		return
	}
	t.number = number
	r.lead.Store(t)
	select {
	case <-r.leadership: // of a lost term that nobody has taken
	default:
	}
	r.leadership <- t.ctx
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
