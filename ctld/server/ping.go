package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/conf"
)

// Ping tells how this controller is and, asked side by side within a second each, how the others are.
func (s *Server) Ping(ctx context.Context, _ *ctldpb.PingRequest) (*ctldpb.PingResponse, error) {
	who, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	st, cfg := s.Log.Status(), s.Config()
	out := &ctldpb.PingResponse{
		Controller: s.Name, Role: strings.ToLower(st.Role), Leader: st.Leader, Term: st.Term, Applied: st.Applied, LastIndex: st.LastIndex,
		Version: s.Version, Cluster: cfg.ClusterName, UptimeMs: s.Now().Sub(s.started).Milliseconds(), LeaderContactMs: st.ContactMS,
		Peers: make([]*ctldpb.PeerStatus, len(cfg.Controllers)), NowMs: s.Now().UnixMilli(),
		Caller: &ctldpb.CallerInfo{User: who.User, Uid: who.UID, Role: string(who.Role), Via: who.Via, Login: who.Login,
			Wallet: who.Wallet, Class: string(who.Class)},
	}
	var wg sync.WaitGroup
	for i := range cfg.Controllers {
		c := &cfg.Controllers[i]
		out.Peers[i] = &ctldpb.PeerStatus{Name: c.Name, Address: fmt.Sprintf("%s:%d", c.Address, c.Port)}
		if c.Name == s.Name {
			out.Peers[i].Role, out.Peers[i].Up = strings.ToLower(st.Role), true
			continue
		}
		wg.Go(func() { s.pingPeer(ctx, c, out.Peers[i]) })
	}
	wg.Wait()
	return out, nil
}

func (s *Server) pingPeer(ctx context.Context, c *conf.Controller, out *ctldpb.PeerStatus) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	begin := time.Now()
	peer, err := s.Peers.Peer(c.Name)
	if err == nil {
		var st *peerpb.StatusResponse
		if st, err = peer.Status(ctx, &peerpb.StatusRequest{}); err == nil {
			out.Role, out.Up, out.LatencyUs = strings.ToLower(st.Role), true, time.Since(begin).Microseconds()
			return
		}
	}
	out.Error = err.Error()
}
