package server

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// Ping tells how this controller is and, asked side by side within a second each, how the others are.
func (s *Server) Ping(ctx context.Context, _ *ctldpb.PingRequest) (*ctldpb.PingResponse, error) {
	who, err := visitor(ctx)
	if err != nil {
		return nil, err
	}
	st, places := s.Log.Status(), s.places(s.Log.View())
	out := &ctldpb.PingResponse{
		Controller: s.Name, Role: strings.ToLower(st.Role), Leader: st.Leader, Term: st.Term, Applied: st.Applied, LastIndex: st.LastIndex,
		Version: s.Version, Cluster: s.Config().ClusterName, UptimeMs: s.Now().Sub(s.started).Milliseconds(), LeaderContactMs: st.ContactMS,
		Peers: make([]*ctldpb.PeerStatus, len(places)), NowMs: s.Now().UnixMilli(),
		Caller: &ctldpb.CallerInfo{User: who.User, Uid: who.UID, Role: string(who.Role), Via: who.Via, Login: who.Login,
			Wallet: who.Wallet, Class: string(who.Class)},
	}
	var wg sync.WaitGroup
	for i, p := range places {
		out.Peers[i] = &ctldpb.PeerStatus{Name: p.Name, Address: peerAddr(p)}
		wg.Go(func() { s.pingPeer(ctx, out.Peers[i]) })
	}
	wg.Wait()
	return out, nil
}

func (s *Server) pingPeer(ctx context.Context, out *ctldpb.PeerStatus) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	begin := time.Now()
	st, err := s.statusOf(ctx, out.Name)
	if err != nil {
		out.Error = plain(err)
		return
	}
	out.Role, out.Up, out.LatencyUs = roleOf(st), true, time.Since(begin).Microseconds()
}

// roleOf is what a controller is, in a word for people: raft knows learners as followers without a vote.
func roleOf(st *peerpb.StatusResponse) string {
	role := strings.ToLower(st.Role)
	switch {
	case st.Blank:
		return "blank"
	case role == "follower" && st.FeatureMax > 0 && !st.Voter: // the first release does not tell who votes
		return "learner"
	}
	return role
}
