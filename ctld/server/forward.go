package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/fault"
)

// Waits between tries while a leader is being elected.
const (
	firstWait = 20 * time.Millisecond
	lastWait  = 100 * time.Millisecond // an election takes about a second: longer waits would be most of a failover
)

// blankForward is how long a controller that takes no part yet looks for a leader: long enough for a first
// start, short enough that the caller soon asks another.
const blankForward = 3 * time.Second

func nextWait(d time.Duration) time.Duration { return min(2*d, lastWait) }

// sleep waits d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// route is one unary method that the leader answers. repeat tells whether it may be sent again when
// the outcome of the first try is not known: it carries a key, or doing it twice is doing it once.
type route struct {
	repeat func(req any) bool
	call   func(s *Server, ctx context.Context, req []byte) (in, out proto.Message, err error)
	local  func(req any) bool // answered here even on a follower; nil = never
}

func always(any) bool { return true }

// routes lists the methods that go to the leader, by full name.
var routes = map[string]route{
	authn.ControllerService + "Submit":          {repeat: always, call: via((*Server).Submit)},
	authn.ControllerService + "SubmitBatch":     {repeat: always, call: via((*Server).SubmitBatch)},
	authn.ControllerService + "PutBlob":         {repeat: always, call: via((*Server).PutBlob)},
	authn.ControllerService + "Cancel":          {repeat: endsJobs, call: via((*Server).Cancel)},
	authn.ControllerService + "Control":         {repeat: setsHold, call: via((*Server).Control)},
	authn.ControllerService + "UpdateJob":       {repeat: setsValues, call: via((*Server).UpdateJob)},
	authn.ControllerService + "UpdateNode":      {repeat: always, call: via((*Server).UpdateNode)},
	authn.ControllerService + "UpdatePartition": {repeat: always, call: via((*Server).UpdatePartition)},
	authn.ControllerService + "Reconfigure":     {repeat: always, call: via((*Server).Reconfigure)},
	// What is added or deleted a second time is refused, as if the first time had not been.
	authn.ControllerService + "ChangeAccounting":  {repeat: setsLimits, call: via((*Server).ChangeAccounting)},
	authn.ControllerService + "ChangeReservation": {repeat: once, call: via((*Server).ChangeReservation)},
	// Load and free memory are known to the leader alone.
	authn.ControllerService + "ListNodes": {repeat: always, call: via((*Server).ListNodes), local: staleNodes},
	// JobOutput is a stream for users; between controllers one chunk is one call.
	authn.ControllerService + "JobOutput": {repeat: always, call: via((*Server).outputOnce)},
	// A controller without a leader shows what it knows itself: ListControllers asks by itself.
	listControllers: {repeat: always, call: via((*Server).controllersHere), local: always},
	// What a change of the controllers has come to when its answer is lost is for people to look at.
	authn.ControllerService + "ChangeController": {repeat: once, call: via((*Server).ChangeController)},
	// A token whose answer was lost is known to nobody: another is made.
	authn.ControllerService + "CreateJoinToken": {repeat: always, call: via((*Server).CreateJoinToken)},
	authn.ControllerService + "ListJoinTokens":  {repeat: always, call: via((*Server).ListJoinTokens)},
	authn.ControllerService + "RevokeJoinToken": {repeat: always, call: via((*Server).RevokeJoinToken)},
	// Join is forwarded by the service itself: it is nobody's call.
	joinMethod: {repeat: once, call: via((*Server).join), local: always},
}

func once(any) bool { return false }

func endsJobs(req any) bool {
	r, ok := req.(*ctldpb.CancelRequest)
	return ok && r.Signal == ""
}

func setsHold(req any) bool {
	r, ok := req.(*ctldpb.ControlRequest)
	return ok && (r.Op == ctldpb.ControlRequest_HOLD || r.Op == ctldpb.ControlRequest_UHOLD || r.Op == ctldpb.ControlRequest_RELEASE)
}

// setsValues tells whether an update sets what it names. One that moves a time limit would move it twice.
func setsValues(req any) bool {
	r, ok := req.(*ctldpb.UpdateJobRequest)
	if !ok {
		return false
	}
	for key, value := range r.Set {
		if strings.EqualFold(key, "timelimit") && value != "-1" && strings.IndexAny(value, "+-") == 0 {
			return false
		}
	}
	return true
}

// setsLimits tells whether a change of accounting sets what it names, or only says what it would change.
func setsLimits(req any) bool {
	r, ok := req.(*ctldpb.ChangeAccountingRequest)
	return ok && (r.DryRun || r.Verb == verbModify)
}

func staleNodes(req any) bool {
	r, ok := req.(*ctldpb.ListNodesRequest)
	return ok && r.Read.GetStale()
}

// via makes a handler for encoded requests out of a method.
func via[Req any, Resp proto.Message, PReq interface {
	*Req
	proto.Message
}](method func(*Server, context.Context, PReq) (Resp, error)) func(*Server, context.Context, []byte) (in, out proto.Message, err error) {
	return func(s *Server, ctx context.Context, data []byte) (in, out proto.Message, err error) {
		req := PReq(new(Req))
		if err := proto.Unmarshal(data, req); err != nil {
			return nil, nil, grpcstatus.Error(codes.InvalidArgument, "the forwarded request cannot be decoded")
		}
		out, err = method(s, ctx, req)
		return req, out, err
	}
}

// Forwarding is the interceptor that sends what the leader must answer to the leader, and writes down
// what is decided here. It stands behind authentication.
func (s *Server) Forwarding() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		here := func(ctx context.Context) (any, error) {
			resp, err := decide(info.FullMethod, func() (any, error) { return next(ctx, req) })
			c, _ := authn.FromContext(ctx)
			s.record(ctx, info.FullMethod, c, "", req, resp, err)
			return resp, err
		}
		r, ok := routes[info.FullMethod]
		if info.FullMethod == joinMethod {
			return next(ctx, req) // its lines are written where the leader is known
		}
		if !ok || r.local != nil && r.local(req) {
			return here(ctx)
		}
		if err := s.giveKeys(req); err != nil {
			return nil, err
		}
		return s.atLeader(ctx, r.repeat(req), here, func(ctx context.Context, peer peerpb.PeerClient, c authn.Caller) (any, error) {
			return s.send(ctx, peer, info.FullMethod, req.(proto.Message), c)
		})
	}
}

// decide runs a call that changes something between the points where tests break the program: before it is
// proposed, and when it is done and not answered yet.
func decide[T any](method string, call func() (T, error)) (out T, err error) {
	if !audited[method] {
		return call()
	}
	if err = fault.Point("server.before-propose"); err != nil {
		return out, refuse(codeNoLeader, err.Error())
	}
	if out, err = call(); err != nil {
		return out, err
	}
	if err = fault.Point("server.before-reply"); err != nil {
		return out, refuse(codeUnknown, err.Error())
	}
	return out, nil
}

// giveKeys makes repeating safe for submissions that came without a key.
func (s *Server) giveKeys(req any) (err error) {
	switch r := req.(type) {
	case *ctldpb.SubmitRequest:
		if r.Key == "" {
			r.Key, err = s.newKey()
		}
	case *ctldpb.SubmitBatchRequest:
		for _, one := range r.Requests {
			if one != nil && one.Key == "" && err == nil {
				one.Key, err = s.newKey()
			}
		}
	}
	return err
}

// atLeader runs one call here or at the leader, and again while leadership changes, for at most
// MaxForward. A call whose outcome is not known is repeated only when repeat says that it may be.
func (s *Server) atLeader(ctx context.Context, repeat bool,
	here func(context.Context) (any, error),
	there func(context.Context, peerpb.PeerClient, authn.Caller) (any, error),
) (any, error) {
	c, err := visitor(ctx)
	if err != nil {
		return nil, err
	}
	return s.atLeaderAs(ctx, c, repeat, here, there)
}

// atLeaderAs is atLeader for a caller that may be nobody.
func (s *Server) atLeaderAs(ctx context.Context, c authn.Caller, repeat bool,
	here func(context.Context) (any, error),
	there func(context.Context, peerpb.PeerClient, authn.Caller) (any, error),
) (any, error) {
	if _, self := s.Log.Leader(); self {
		// The common case costs no timer.
		if resp, err := here(ctx); err == nil || !again(err, repeat) {
			return resp, err
		}
	}
	var err error
	// The deadline bounds the search for a leader; a call that a leader has taken on keeps its own.
	limit, why := MaxForward, fmt.Sprintf("none was found within %s", MaxForward)
	if s.Log.Status().Role == replica.RoleWaiting {
		limit, why = blankForward, s.Name+" has an empty folder and takes no part yet"
	}
	search, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := refuse(codeNoLeader, why)
	for wait := firstWait; ; wait = nextWait(wait) {
		name, self := s.Log.Leader()
		var resp any
		switch {
		case self:
			resp, err = here(ctx)
		case name != "" && name != s.Name:
			var peer peerpb.PeerClient
			if peer, err = s.Peers.Peer(name); err == nil {
				resp, err = s.whileLeads(ctx, name, func(ctx context.Context) (any, error) { return there(ctx, peer, c) })
			} else {
				// It joined at run time, and this controller has not come so far in the log. Nothing was done.
				err = refuse(codeNoLeader, err.Error())
			}
		default:
			err = last
		}
		if err == nil {
			return resp, nil
		}
		if !again(err, repeat) {
			return nil, err
		}
		last = err
		if sleep(search, wait) != nil {
			return nil, last
		}
	}
}

// movedEvery is how often a call that a leader has taken on looks whether it leads still.
const movedEvery = 250 * time.Millisecond

// errMoved ends a call to a controller that leads no more.
var errMoved = errors.New("leadership moved on")

// whileLeads runs a call to the leader, and ends it when another leads: a cut link would hold it for as
// long as its caller waits. Its outcome is not known then.
func (s *Server) whileLeads(ctx context.Context, name string, call func(context.Context) (any, error)) (any, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var look func()
	look = func() {
		if now, _ := s.Log.Leader(); now != "" && now != name {
			cancel(errMoved)
		} else if ctx.Err() == nil {
			time.AfterFunc(movedEvery, look)
		}
	}
	first := time.AfterFunc(movedEvery, look)
	defer first.Stop()
	resp, err := call(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errMoved) {
		return nil, refuse(codeUnknown, name+" leads no more and has not answered")
	}
	return resp, err
}

// again tells whether a call may be tried once more after err.
func again(err error, repeat bool) bool {
	if r := RefusalOf(err); r != nil {
		return r.Code == codeNotLeader || r.Code == codeNoLeader || r.Code == codeUnknown && repeat
	}
	// A connection that broke may have delivered the request.
	return grpcstatus.Code(err) == codes.Unavailable && repeat
}

// send carries one encoded call to another controller.
func (s *Server) send(ctx context.Context, peer peerpb.PeerClient, method string, req proto.Message, c authn.Caller) (any, error) {
	data, err := proto.Marshal(req)
	if err != nil {
		return nil, grpcstatus.Error(codes.Internal, err.Error())
	}
	out, err := peer.Forward(ctx, &peerpb.ForwardRequest{Method: method, Request: data, Caller: &peerpb.Caller{
		Uid: c.UID, Gid: c.GID, User: c.User, Role: string(c.Role), Host: s.Name,
		Via: c.Via, Login: c.Login, Wallet: c.Wallet, Class: string(c.Class),
	}})
	if err != nil {
		return nil, err
	}
	if out.StatusCode != 0 {
		st := grpcstatus.New(codes.Code(out.StatusCode), out.StatusMessage).Proto()
		full := grpcstatus.New(codes.OK, "").Proto()
		if len(out.StatusDetails) > 0 && proto.Unmarshal(out.StatusDetails, full) == nil {
			st = full
		}
		return nil, grpcstatus.ErrorProto(st)
	}
	resp := newResponse(method)
	if resp == nil {
		return nil, grpcstatus.Error(codes.Unimplemented, "no such method: "+method)
	}
	if err := proto.Unmarshal(out.Response, resp); err != nil {
		return nil, grpcstatus.Error(codes.Internal, "the leader's answer cannot be decoded")
	}
	return resp, nil
}

func newResponse(method string) proto.Message {
	if method == joinMethod {
		return &nodepb.JoinResponse{}
	}
	switch method[len(authn.ControllerService):] {
	case "ListControllers":
		return &ctldpb.ListControllersResponse{}
	case "ChangeController":
		return &ctldpb.ChangeControllerResponse{}
	case "CreateJoinToken":
		return &ctldpb.CreateJoinTokenResponse{}
	case "ListJoinTokens":
		return &ctldpb.ListJoinTokensResponse{}
	case "RevokeJoinToken":
		return &ctldpb.RevokeJoinTokenResponse{}
	case "Submit":
		return &ctldpb.SubmitResponse{}
	case "SubmitBatch":
		return &ctldpb.SubmitBatchResponse{}
	case "PutBlob":
		return &ctldpb.PutBlobResponse{}
	case "Cancel", "Control", "UpdateJob":
		return &ctldpb.JobResults{}
	case "UpdateNode":
		return &ctldpb.UpdateNodeResponse{}
	case "UpdatePartition":
		return &ctldpb.UpdatePartitionResponse{}
	case "Reconfigure":
		return &ctldpb.ReconfigureResponse{}
	case "ChangeAccounting":
		return &ctldpb.ChangeAccountingResponse{}
	case "ChangeReservation":
		return &ctldpb.ChangeReservationResponse{}
	case "ListNodes":
		return &ctldpb.ListNodesResponse{}
	case "JobOutput":
		return &ctldpb.JobOutputResponse{}
	}
	return nil
}

// Forward answers a call that another controller sends on. Only controllers may call it (the method
// table); what the person may do is decided here again, from the uid that the other controller's
// kernel vouched for: the role and name it states are not taken.
func (s *Server) Forward(ctx context.Context, req *peerpb.ForwardRequest) (*peerpb.ForwardResponse, error) {
	from, ok := authn.FromContext(ctx)
	if !ok || from.Role != authn.RoleCtld || req.Caller == nil {
		return nil, refuse("ESLURM_ACCESS_DENIED", "only controllers forward calls")
	}
	resp, err := s.forwarded(ctx, req)
	if err != nil {
		st := grpcstatus.Convert(err)
		details, merr := proto.Marshal(st.Proto())
		if merr != nil {
			details = nil
		}
		return &peerpb.ForwardResponse{StatusCode: uint32(st.Code()), StatusMessage: st.Message(), StatusDetails: details}, nil
	}
	data, err := proto.Marshal(resp)
	if err != nil {
		return nil, grpcstatus.Error(codes.Internal, err.Error())
	}
	return &peerpb.ForwardResponse{Response: data}, nil
}

func (s *Server) forwarded(ctx context.Context, req *peerpb.ForwardRequest) (proto.Message, error) {
	r, ok := routes[req.Method]
	if !ok {
		return nil, grpcstatus.Error(codes.Unimplemented, "not a method that is forwarded: "+req.Method)
	}
	from, _ := authn.FromContext(ctx)
	c, err := s.original(req)
	switch {
	case err != nil:
		err = grpcstatus.Error(codes.Unauthenticated, err.Error())
	case authn.WhyNot(req.Method, c) != "":
		err = denied(req.Method, c)
	}
	if err != nil {
		s.record(ctx, req.Method, c, from.Name, nil, nil, err)
		return nil, err
	}
	// A forwarded call is never forwarded again: leadership that moves sends it back to its origin.
	if _, self := s.Log.Leader(); !self {
		return nil, refuse(codeNotLeader, "")
	}
	var in proto.Message
	out, err := decide(req.Method, func() (out proto.Message, err error) {
		in, out, err = r.call(s, authn.NewContext(ctx, c), req.Request)
		return out, err
	})
	if req.Method != outputMethod { // its stream has a line where the user is
		s.record(ctx, req.Method, c, from.Name, in, out, err)
	}
	return out, err
}

// original is the person who called the other controller. What that person may do is decided here, from
// the uid or wallet alone.
func (s *Server) original(req *peerpb.ForwardRequest) (authn.Caller, error) {
	if req.Method == joinMethod {
		return authn.Caller{Role: authn.RoleNobody}, nil
	}
	p := req.Caller
	return s.Auth.Forwarded(p.Uid, p.Gid, p.Via, p.Login, p.Wallet, authn.Class(p.Class))
}
