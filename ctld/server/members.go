package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	grpcstatus "google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Ports of a controller whose place is given without them, as in grid.conf.
const (
	defaultPort     = 6817
	defaultRaftPort = 6816
)

// askTimeout bounds the question to a follower's leader; without an answer the follower answers by itself.
const askTimeout = 3 * time.Second

// Members changes who the controllers are. *replica.Replica implements it; all but Members work on the
// leader alone.
type Members interface {
	Members() []replica.Member
	AddLearner(ctx context.Context, name, raftAddr string) error
	Promote(ctx context.Context, name string) error
	Remove(ctx context.Context, name string, force bool) error
	TransferTo(ctx context.Context, name string) error
}

// ListControllers shows every member, and every controller that the file names, as the leader sees them;
// without a leader as this controller does.
func (s *Server) ListControllers(ctx context.Context, req *ctldpb.ListControllersRequest) (*ctldpb.ListControllersResponse, error) {
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if name, self := s.Log.Leader(); !self && name != "" && name != s.Name {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		if peer, err := s.Peers.Peer(name); err == nil {
			if resp, err := s.send(ask, peer, listControllers, req, c); err == nil {
				return resp.(*ctldpb.ListControllersResponse), nil
			}
		}
	}
	return s.controllersHere(ctx, req)
}

// controllersHere asks every controller side by side how it is.
func (s *Server) controllersHere(ctx context.Context, _ *ctldpb.ListControllersRequest) (*ctldpb.ListControllersResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	view, st := s.Log.View(), s.Log.Status()
	out := &ctldpb.ListControllersResponse{Feature: view.Feature(), Info: &ctldpb.ReadInfo{
		AgeMs: st.ContactMS, Index: view.Index(), Controller: s.Name, Leader: st.Leader, NowMs: s.Now().UnixMilli()}}
	for _, p := range s.places(view) {
		out.Controllers = append(out.Controllers, &ctldpb.ControllerInfo{Name: p.Name, Address: p.Address, Port: p.Port,
			RaftPort: p.RaftPort, UserPort: p.UserPort, Configured: s.Config().Controller(p.Name) != nil})
	}
	if s.Members != nil {
		for _, m := range s.Members.Members() {
			i := slices.IndexFunc(out.Controllers, func(c *ctldpb.ControllerInfo) bool { return c.Name == m.Name })
			if i < 0 {
				host, port := splitAddr(m.Addr)
				out.Controllers = append(out.Controllers, &ctldpb.ControllerInfo{Name: m.Name, Address: host, RaftPort: port})
				i = len(out.Controllers) - 1
			}
			out.Controllers[i].Voter = m.Voter
		}
	}
	var wg sync.WaitGroup
	for _, info := range out.Controllers {
		wg.Go(func() { s.askController(ctx, info) })
	}
	wg.Wait()
	head := st.LastIndex
	for _, c := range out.Controllers {
		if c.Name == st.Leader && c.Up {
			head = c.LastIndex
		}
	}
	for _, c := range out.Controllers {
		if c.Up && c.LastIndex < head {
			c.Lag = head - c.LastIndex
		}
	}
	return out, nil
}

// askController fills in what a controller says of itself.
func (s *Server) askController(ctx context.Context, info *ctldpb.ControllerInfo) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	st, err := s.statusOf(ctx, info.Name)
	if err != nil {
		info.Error = plain(err)
		return
	}
	info.Up, info.Role = true, roleOf(st)
	info.Applied, info.LastIndex, info.Version, info.FeatureMax = st.Applied, st.LastIndex, st.Version, st.FeatureMax
	info.ContactMs, info.UptimeMs, info.StateFree = st.ContactMs, st.UptimeMs, st.StateFree
}

// plain is what went wrong with a call to another controller, without the words of the layers between.
func plain(err error) string {
	text := grpcstatus.Convert(err).Message()
	if i := strings.LastIndex(text, `desc = "`); i >= 0 {
		text = strings.TrimSuffix(text[i+len(`desc = "`):], `"`)
	}
	return strings.TrimPrefix(text, "transport: ")
}

// statusOf asks one controller, this one included.
func (s *Server) statusOf(ctx context.Context, name string) (*peerpb.StatusResponse, error) {
	req := &peerpb.StatusRequest{Asker: s.Name}
	if name == s.Name {
		if s.Status != nil {
			return s.Status(ctx, req)
		}
		st := s.Log.Status()
		return &peerpb.StatusResponse{Name: st.Name, Role: st.Role, Leader: st.Leader, Term: st.Term, Applied: st.Applied,
			LastIndex: st.LastIndex, Version: s.Version, Cluster: s.Config().ClusterName, UptimeMs: s.Now().Sub(s.started).Milliseconds(), ContactMs: st.ContactMS}, nil
	}
	peer, err := s.Peers.Peer(name)
	if err != nil {
		return nil, err
	}
	return peer.Status(ctx, req)
}

// places lists where controllers are reached: this controller's file first, then those that joined at run time.
func (s *Server) places(view state.Viewer) []state.Controller {
	var out []state.Controller
	for _, c := range s.Config().Controllers {
		out = append(out, state.Controller{Name: c.Name, Address: c.Address, Port: c.Port, RaftPort: c.RaftPort, UserPort: c.UserPort})
	}
	for c := range view.Controllers() {
		if s.Config().Controller(c.Name) == nil {
			out = append(out, c)
		}
	}
	return out
}

func splitAddr(addr string) (host string, port uint32) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return host, 0
	}
	return host, uint32(n)
}

func raftAddr(c state.Controller) string {
	return net.JoinHostPort(c.Address, strconv.FormatUint(uint64(c.RaftPort), 10))
}

func peerAddr(c state.Controller) string {
	return net.JoinHostPort(c.Address, strconv.FormatUint(uint64(c.Port), 10))
}

// placeOf finds where a controller is to be reached: what the request says, else its ControllerName line
// in the file here, else what the log has of it.
func (s *Server) placeOf(view state.Viewer, req *ctldpb.ChangeControllerRequest) (state.Controller, error) {
	place := state.Controller{Name: req.Name, Port: defaultPort, RaftPort: defaultRaftPort}
	for _, p := range s.places(view) {
		if p.Name == req.Name {
			place = p
		}
	}
	if req.Address != "" {
		place.Address = req.Address
	}
	for _, p := range []struct {
		to   *uint32
		from uint32
	}{{&place.Port, req.Port}, {&place.RaftPort, req.RaftPort}, {&place.UserPort, req.UserPort}} {
		if p.from != 0 {
			*p.to = p.from
		}
	}
	if place.Address == "" {
		return place, badController(fmt.Sprintf("nothing says where %s is: give Address=HOST (and Port, RaftPort), or write a ControllerName=%s line into %s and reconfigure",
			req.Name, req.Name, s.Config().Source))
	}
	if err := goodPlace(place); err != nil {
		return place, err
	}
	for _, other := range s.places(view) {
		if other.Name == place.Name || !strings.EqualFold(other.Address, place.Address) {
			continue
		}
		for _, port := range []uint32{place.Port, place.RaftPort, place.UserPort} {
			if port != 0 && (port == other.Port || port == other.RaftPort || port == other.UserPort) {
				return place, badController(fmt.Sprintf("%s:%d is where controller %s listens", place.Address, port, other.Name))
			}
		}
	}
	return place, nil
}

// maxName bounds the names that certificates carry.
const maxName = 64

func goodPlace(p state.Controller) error {
	switch {
	case p.Name == "" || len(p.Name) > maxName || strings.Trim(p.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "":
		return badController(fmt.Sprintf("%q is no name of a controller: letters, digits, '.', '-' and '_', and at most %d of them", clipWord(p.Name), maxName))
	case strings.ContainsAny(p.Address, "/ \t\n[]@%?#\""):
		return badController(fmt.Sprintf("Address=%s: a host name or an IP address was expected", clipWord(p.Address)))
	case p.Port == p.RaftPort || p.UserPort != 0 && (p.UserPort == p.Port || p.UserPort == p.RaftPort):
		return badController(fmt.Sprintf("Port=%d, RaftPort=%d and UserPort=%d must differ", p.Port, p.RaftPort, p.UserPort))
	case max(p.Port, p.RaftPort, p.UserPort) > 65535:
		return badController(fmt.Sprintf("Port=%d, RaftPort=%d, UserPort=%d: a port is at most 65535", p.Port, p.RaftPort, p.UserPort))
	}
	return nil
}

func badController(why string) error { return refuse("ESLURM_INVALID_CONTROLLER", why) }
