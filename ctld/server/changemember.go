package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

const (
	listControllers = authn.ControllerService + "ListControllers"
	rejoinMethod    = authn.PeerService + "Rejoin"
)

// changeTimeout bounds one change of the members.
const changeTimeout = 30 * time.Second

// notYet is why commands of level 2 wait.
const notYet = "the controllers do not all run a version that knows this yet"

// ChangeController changes who the controllers are, one change at a time. It runs on the leader.
func (s *Server) ChangeController(ctx context.Context, req *ctldpb.ChangeControllerRequest) (*ctldpb.ChangeControllerResponse, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	if s.Members == nil {
		return nil, refuse("ESLURM_NOT_SUPPORTED", "this controller has no replica")
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	case <-ctx.Done():
		return nil, refuse(codeBusy, "another change of the controllers is under way")
	}
	// What changed just before must be known: who leads, who is a member, where they are.
	view, err := s.Log.Read(ctx)
	if err != nil {
		return nil, logError(err)
	}
	if _, self := s.Log.Leader(); !self {
		return nil, refuse(codeNotLeader, "")
	}
	var text string
	switch req.Op {
	case ctldpb.ChangeControllerRequest_ADD:
		text, err = s.addController(ctx, view, req)
	case ctldpb.ChangeControllerRequest_PROMOTE:
		text, err = s.promoteController(ctx, req)
	case ctldpb.ChangeControllerRequest_REMOVE:
		text, err = s.removeController(ctx, view, req)
	case ctldpb.ChangeControllerRequest_TRANSFER:
		text, err = s.transferTo(ctx, req)
	default:
		return nil, refuse(codeInvalid, fmt.Sprintf("operation %d is none of ADD, PROMOTE, REMOVE and TRANSFER", req.Op))
	}
	if err != nil {
		return nil, s.memberError(req.Name, err)
	}
	s.Logger.Info("controllers changed", "change", text)
	return &ctldpb.ChangeControllerResponse{Text: text}, nil
}

// addController makes a learner: it gets the log and no vote.
func (s *Server) addController(ctx context.Context, view state.Viewer, req *ctldpb.ChangeControllerRequest) (string, error) {
	if view.Feature() < state.FeatureMembers {
		return "", refuse("ESLURM_DISABLED", notYet)
	}
	place, err := s.placeOf(view, req)
	if err != nil {
		return "", err
	}
	if m, ok := s.member(req.Name); ok {
		why := fmt.Sprintf("%s is a %s already", req.Name, suffrage(m))
		if !m.Voter { // an add that was broken off, said again
			why += "; when it has caught up, gctl controller promote " + req.Name + " makes it a voter"
		}
		return "", badController(why)
	}
	if err := s.meet(ctx, place, view.Feature()); err != nil {
		return "", err
	}
	// The record comes first: whoever hears of the member must be able to reach it.
	if err := s.setController(ctx, &logpb.SetController{Name: place.Name, Address: place.Address, Port: place.Port,
		RaftPort: place.RaftPort, UserPort: place.UserPort}); err != nil {
		return "", err
	}
	if err := s.Members.AddLearner(ctx, place.Name, raftAddr(place)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s was added as a learner; when it has caught up, gctl controller promote %s makes it a voter", place.Name, place.Name), nil
}

// meet asks a newcomer who it is: one that has a history of its own, or cannot read this cluster's log,
// would halt or worse.
func (s *Server) meet(ctx context.Context, place state.Controller, level uint32) error {
	if s.Probe == nil {
		return nil
	}
	ask, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	st, err := s.Probe(ask, place.Name, peerAddr(place))
	switch {
	case err != nil:
		return badController(fmt.Sprintf("%s does not answer at %s (%s): start it there first, with gctld --join --name %s", place.Name, peerAddr(place), plain(err), place.Name))
	case !st.Blank && st.Cluster != "" && st.Cluster != s.Config().ClusterName:
		return badController(fmt.Sprintf("%s is of cluster %s, this is %s", place.Name, st.Cluster, s.Config().ClusterName))
	case !st.Blank && st.LastIndex > 0:
		return badController(fmt.Sprintf("%s has a log of its own (%d entries): empty its StateDir and start it with gctld --join", place.Name, st.LastIndex))
	case st.FeatureMax < level:
		return badController(fmt.Sprintf("%s runs version %s, which knows level %d; the cluster is at %d", place.Name, st.Version, st.FeatureMax, level))
	}
	return nil
}

func (s *Server) setController(ctx context.Context, set *logpb.SetController) error {
	res, err := s.Log.Propose(ctx, &logpb.Command{Of: &logpb.Command_SetController{SetController: set}})
	if err != nil {
		return err
	}
	if r := res[0].Refused; r != nil {
		return refusalError(fromFSM(r))
	}
	return nil
}

func (s *Server) promoteController(ctx context.Context, req *ctldpb.ChangeControllerRequest) (string, error) {
	m, ok := s.member(req.Name)
	switch {
	case !ok:
		return "", replica.ErrNoMember
	case m.Voter:
		return "", badController(req.Name + " is a voter already")
	}
	if err := s.Members.Promote(ctx, req.Name); err != nil {
		return "", err
	}
	return req.Name + " is a voter", nil
}

// removeController takes a member out and forgets where it was. A leader that is to go hands over first
// and lets its successor do it.
func (s *Server) removeController(ctx context.Context, view state.Viewer, req *ctldpb.ChangeControllerRequest) (string, error) {
	recorded := false
	for c := range view.Controllers() {
		recorded = recorded || c.Name == req.Name
	}
	_, ok := s.member(req.Name)
	if !ok && !recorded {
		return "", replica.ErrNoMember
	}
	if ok && req.Name == s.Name && s.voters() > 1 {
		if err := s.Members.TransferTo(ctx, ""); err != nil {
			return "", err
		}
		return "", replica.ErrNotLeader
	}
	if ok {
		if err := s.Members.Remove(ctx, req.Name, req.Force); err != nil {
			return "", err
		}
	}
	if recorded {
		if err := s.setController(ctx, &logpb.SetController{Name: req.Name, Remove: true}); err != nil {
			return "", fmt.Errorf("%s was removed, but where it was is still recorded; repeat the command: %w", req.Name, err)
		}
	}
	return req.Name + " was removed; its process ends by itself", nil
}

func (s *Server) transferTo(ctx context.Context, req *ctldpb.ChangeControllerRequest) (string, error) {
	if req.Name != "" {
		m, ok := s.member(req.Name)
		switch {
		case !ok:
			return "", replica.ErrNoMember
		case !m.Voter:
			return "", badController(req.Name + " is a learner: only a voter can lead")
		case m.Name == s.Name:
			return req.Name + " leads already", nil
		}
	}
	if err := s.Members.TransferTo(ctx, req.Name); err != nil {
		return "", err
	}
	if req.Name == "" {
		return s.Name + " has handed leadership over", nil
	}
	return req.Name + " leads", nil
}

func (s *Server) member(name string) (replica.Member, bool) {
	list := s.Members.Members()
	i := slices.IndexFunc(list, func(m replica.Member) bool { return m.Name == name })
	if i < 0 {
		return replica.Member{}, false
	}
	return list[i], true
}

func (s *Server) voters() (n int) {
	for _, m := range s.Members.Members() {
		if m.Voter {
			n++
		}
	}
	return n
}

func suffrage(m replica.Member) string {
	if m.Voter {
		return "voter"
	}
	return "learner"
}

// memberError says in words why the controllers were not changed.
func (s *Server) memberError(name string, err error) error {
	var names []string
	for _, m := range s.Members.Members() {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	switch {
	case RefusalOf(err) != nil:
		return err
	case errors.Is(err, replica.ErrNoMember):
		return badController(fmt.Sprintf("%q is no member; the members are %s", clipWord(name), strings.Join(names, ", ")))
	case errors.Is(err, replica.ErrIsMember):
		return badController(name + " is a member already")
	case errors.Is(err, replica.ErrChanging):
		return refuse(codeBusy, err.Error())
	case errors.Is(err, replica.ErrNoMajority):
		return refuse("ESLURM_DISABLED", err.Error()+"; bring one of them back first, or remove it by force and know that the cluster may stand still")
	case errors.Is(err, replica.ErrLagging), errors.Is(err, replica.ErrLastVoter), errors.Is(err, replica.ErrLearner), errors.Is(err, replica.ErrTooManyVoters):
		return refuse("ESLURM_DISABLED", err.Error())
	}
	return logError(err)
}

// Rejoin stands before the replica's part of Peer.Rejoin: a controller that has lost its disk asks to be
// taken in again, for itself alone.
func (s *Server) Rejoin(ctx context.Context, req *peerpb.RejoinRequest,
	next func(context.Context, *peerpb.RejoinRequest) (*peerpb.RejoinResponse, error),
) (*peerpb.RejoinResponse, error) {
	from, ok := authn.FromContext(ctx)
	if !ok || from.Role != authn.RoleCtld || from.Name != req.Name {
		err := refuse("ESLURM_ACCESS_DENIED", "a controller asks for nobody but itself")
		s.record(ctx, rejoinMethod, from, "", req, nil, err)
		return nil, err
	}
	resp, err := next(ctx, req)
	if err == nil { // it is asked again each second until it is: that is no news
		s.record(ctx, rejoinMethod, from, "", req, resp, nil)
	}
	return resp, err
}
