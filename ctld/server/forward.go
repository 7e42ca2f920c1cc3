package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Waits between tries while a leader is being elected.
const (
	firstWait = 20 * time.Millisecond
	lastWait  = 500 * time.Millisecond
)

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
	call   func(s *Server, ctx context.Context, req []byte) (proto.Message, error)
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
	// Load and free memory are known to the leader alone.
	authn.ControllerService + "ListNodes": {repeat: always, call: via((*Server).ListNodes), local: staleNodes},
	// JobOutput is a stream for users; between controllers one chunk is one call.
	authn.ControllerService + "JobOutput": {repeat: always, call: via((*Server).outputOnce)},
}

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

func staleNodes(req any) bool {
	r, ok := req.(*ctldpb.ListNodesRequest)
	return ok && r.Read.GetStale()
}

// via makes a handler for encoded requests out of a method.
func via[Req any, Resp proto.Message, PReq interface {
	*Req
	proto.Message
}](method func(*Server, context.Context, PReq) (Resp, error)) func(*Server, context.Context, []byte) (proto.Message, error) {
	return func(s *Server, ctx context.Context, data []byte) (proto.Message, error) {
		req := PReq(new(Req))
		if err := proto.Unmarshal(data, req); err != nil {
			return nil, grpcstatus.Error(codes.InvalidArgument, "the forwarded request cannot be decoded")
		}
		return method(s, ctx, req)
	}
}

// Forwarding is the interceptor that sends what the leader must answer to the leader. It stands
// behind authentication.
func (s *Server) Forwarding() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		r, ok := routes[info.FullMethod]
		if !ok || r.local != nil && r.local(req) {
			return next(ctx, req)
		}
		if err := s.giveKeys(req); err != nil {
			return nil, err
		}
		return s.atLeader(ctx, r.repeat(req), func(ctx context.Context) (any, error) {
			return next(ctx, req)
		}, func(ctx context.Context, peer peerpb.PeerClient, c authn.Caller) (any, error) {
			return s.send(ctx, peer, info.FullMethod, req.(proto.Message), c)
		})
	}
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
	if _, self := s.Log.Leader(); self {
		// The common case costs no timer.
		if resp, err := here(ctx); err == nil || !again(err, repeat) {
			return resp, err
		}
	}
	c, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	// The deadline bounds the search for a leader; a call that a leader has taken on keeps its own.
	search, cancel := context.WithTimeout(ctx, MaxForward)
	defer cancel()
	last := refuse(codeNoLeader, fmt.Sprintf("none was found within %s", MaxForward))
	for wait := firstWait; ; wait = nextWait(wait) {
		name, self := s.Log.Leader()
		var resp any
		switch {
		case self:
			resp, err = here(ctx)
		case name != "" && name != s.Name:
			var peer peerpb.PeerClient
			if peer, err = s.Peers.Peer(name); err == nil {
				resp, err = there(ctx, peer, c)
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
	switch method[len(authn.ControllerService):] {
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
	c := s.Auth.Person(req.Caller.Uid, req.Caller.Gid, 0)
	if err := s.Auth.Authorise(req.Method, c); err != nil {
		return nil, err
	}
	// A forwarded call is never forwarded again: leadership that moves sends it back to its origin.
	if _, self := s.Log.Leader(); !self {
		return nil, refuse(codeNotLeader, "")
	}
	return r.call(s, authn.NewContext(ctx, c), req.Request)
}
