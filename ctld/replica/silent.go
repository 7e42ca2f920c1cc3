package replica

import (
	"errors"

	"github.com/hashicorp/raft"
)

// silent is a transport that answers no call for a vote until the log holds the entry by which this replica, which
// came with an empty folder, was made a learner. Raft's library gives a vote on an empty log to
// everyone who asks.
type silent struct {
	*transport
	calls chan raft.RPC
	until uint64
	last  func() uint64 // the newest entry of the log; 0 while that is not known
}

var errSilent = errors.New("this controller has lost its disk and does not vote yet")

// silence wraps raft's transport if this replica must not vote yet.
func (r *Replica) silence(t *transport) raft.Transport {
	until, err := r.stores.stable.GetUint64(keySilent)
	if err != nil || until == 0 {
		return t
	}
	s := &silent{transport: t, calls: make(chan raft.RPC), until: until, last: func() uint64 {
		if ra := r.running(); ra != nil {
			return ra.LastIndex()
		}
		return 0
	}}
	go s.pass(r.stream.ctx.Done())
	return s
}

// Consumer implements raft.Transport.
func (s *silent) Consumer() <-chan raft.RPC { return s.calls }

// pass hands calls on until the connections are closed.
func (s *silent) pass(end <-chan struct{}) {
	for {
		select {
		case rpc := <-s.transport.Consumer():
			if s.refuse(rpc) {
				continue
			}
			select {
			case s.calls <- rpc:
			case <-end:
				return
			}
		case <-end:
			return
		}
	}
}

func (s *silent) refuse(rpc raft.RPC) bool {
	var resp any
	switch rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		resp = &raft.RequestVoteResponse{}
	case *raft.RequestPreVoteRequest:
		resp = &raft.RequestPreVoteResponse{}
	case *raft.TimeoutNowRequest:
		resp = &raft.TimeoutNowResponse{}
	default:
		return false
	}
	if s.last() >= s.until {
		return false
	}
	rpc.Respond(resp, errSilent)
	return true
}
