package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// follower is the log of a replica that does not lead; its state is the leader's.
type follower struct {
	*soloLog
	leads func() string
}

func (l follower) Leader() (string, bool)                         { return l.leads(), false }
func (l follower) Read(ctx context.Context) (state.Viewer, error) { return l.soloLog.View(), nil }

// direct is the connection of one controller to another, without a wire but with its encoding.
type direct struct {
	peerpb.PeerClient
	to    *Server
	as    authn.Caller
	mu    sync.Mutex
	calls int
	fail  []error
	after []error // the call is carried out, the answer is lost
}

func (d *direct) Forward(ctx context.Context, req *peerpb.ForwardRequest, _ ...grpc.CallOption) (*peerpb.ForwardResponse, error) {
	d.mu.Lock()
	d.calls++
	var fail error
	if len(d.fail) > 0 {
		fail, d.fail = d.fail[0], d.fail[1:]
	}
	d.mu.Unlock()
	if fail != nil {
		return nil, fail
	}
	resp, err := d.to.Forward(authn.NewContext(ctx, d.as), proto.Clone(req).(*peerpb.ForwardRequest))
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.after) > 0 {
		lost := d.after[0]
		d.after = d.after[1:]
		return nil, lost
	}
	return resp, err
}

func (d *direct) Peer(name string) (peerpb.PeerClient, error) {
	if name != "c1" {
		return nil, fmt.Errorf("no controller %q", name)
	}
	return d, nil
}

// pair is a leader and a follower of one state.
func pair(t *testing.T) (*fixture, *Server, *direct) {
	f := newFixture(t, "")
	link := &direct{to: f.srv, as: authn.Caller{Role: authn.RoleCtld, Name: "c2"}}
	deps := f.srv.Deps
	deps.Log, deps.Name, deps.Peers = follower{f.log, func() string { return "c1" }}, "c2", link
	return f, New(deps), link
}

// call runs a unary method through the follower's interceptor.
func call(ctx context.Context, s *Server, method string, req any, local grpc.UnaryHandler) (any, error) {
	return s.Forwarding()(ctx, req, &grpc.UnaryServerInfo{FullMethod: authn.ControllerService + method}, local)
}

func notHere(context.Context, any) (any, error) {
	return nil, errors.New("the follower answered by itself")
}

func TestForwardKeepsIdentity(t *testing.T) {
	f, s, _ := pair(t)
	resp, err := call(f.as(bob), s, "Submit", &ctldpb.SubmitRequest{Spec: script()}, notHere)
	if err != nil {
		t.Fatal(err)
	}
	id := resp.(*ctldpb.SubmitResponse).JobId
	if got := f.log.View().Job(id).Spec.User; got != "bob" {
		t.Errorf("the job is %q's", got)
	}
	// A refusal comes back whole.
	bad := script()
	bad.Partition = "nosuch"
	_, err = call(f.as(bob), s, "Submit", &ctldpb.SubmitRequest{Spec: bad}, notHere)
	wantRefusal(t, err, "ESLURM_INVALID_PARTITION_NAME", "nosuch")
	// What is the leader's to decide is decided there: bob may not touch ann's job.
	other := f.submit(ann, nil)
	resp, err = call(f.as(bob), s, "Cancel", &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(other)}}}, notHere)
	if err != nil || resp.(*ctldpb.JobResults).Results[0].Code != "ESLURM_ACCESS_DENIED" {
		t.Errorf("cancel of another's: %v %v", resp, err)
	}
	// The other forwarded methods have an answer type each.
	for method, req := range map[string]any{
		"SubmitBatch": &ctldpb.SubmitBatchRequest{}, "PutBlob": &ctldpb.PutBlobRequest{Data: []byte("x")},
		"Control":   &ctldpb.ControlRequest{Op: ctldpb.ControlRequest_HOLD, JobIds: []string{"1"}},
		"UpdateJob": &ctldpb.UpdateJobRequest{JobIds: []string{"1"}, Set: map[string]string{"Comment": "x"}},
		"ListNodes": &ctldpb.ListNodesRequest{},
	} {
		if _, err := call(f.as(ann), s, method, req, notHere); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	for method := range routes {
		if newResponse(method) == nil {
			t.Errorf("%s has no answer type", method)
		}
	}
}

func TestForwardIsAuthorisedAgain(t *testing.T) {
	f, _, link := pair(t)
	req, err := proto.Marshal(&ctldpb.UpdateNodeRequest{Names: "n1", Set: map[string]string{"Comment": "mine"}})
	if err != nil {
		t.Fatal(err)
	}
	forward := func(as authn.Caller, method string, uid uint32, role authn.Role) error {
		link.as = as
		out, err := link.Forward(context.Background(), &peerpb.ForwardRequest{Method: method, Request: req,
			Caller: &peerpb.Caller{Uid: uid, Role: string(role), User: "root"}})
		if err != nil {
			return err
		}
		if out.StatusCode != 0 {
			return status.Error(codes.Code(out.StatusCode), out.StatusMessage)
		}
		return nil
	}
	ctld := authn.Caller{Role: authn.RoleCtld, Name: "c2"}
	update := authn.ControllerService + "UpdateNode"
	tests := []struct {
		name   string
		as     authn.Caller
		method string
		uid    uint32
		role   authn.Role
		want   codes.Code
	}{
		{"operator", ctld, update, olga, authn.RoleUser, codes.OK},
		{"user who is called admin by the sender", ctld, update, ann, authn.RoleAdmin, codes.PermissionDenied},
		{"sent by a node", authn.Caller{Role: authn.RoleNode, Name: "n1"}, update, olga, authn.RoleAdmin, codes.PermissionDenied},
		{"sent by root", authn.Caller{Role: authn.RoleAdmin}, update, olga, authn.RoleAdmin, codes.PermissionDenied},
		{"a method that is not forwarded", ctld, authn.PeerService + "ReadIndex", 0, authn.RoleCtld, codes.Unimplemented},
		{"a read", ctld, authn.ControllerService + "GetScript", 0, authn.RoleAdmin, codes.Unimplemented},
	}
	for _, tt := range tests {
		if got := status.Code(forward(tt.as, tt.method, tt.uid, tt.role)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	f.log.leader = "c3"
	if err := forward(ctld, update, olga, authn.RoleUser); status.Code(err) != codes.Unavailable {
		t.Errorf("a controller that does not lead: %v", err)
	}
}

func TestForwardWaitsForALeader(t *testing.T) {
	f, s, link := pair(t)
	looks := 0
	s.Log = follower{f.log, func() string {
		if looks++; looks < 4 {
			return ""
		}
		return "c1"
	}}
	link.fail = []error{status.Error(codes.Unavailable, "connection refused")}
	link.after = []error{status.Error(codes.Unavailable, "connection reset")}
	resp, err := call(f.as(ann), s, "Submit", &ctldpb.SubmitRequest{Spec: script()}, notHere)
	if err != nil {
		t.Fatal(err)
	}
	if link.calls != 3 || !resp.(*ctldpb.SubmitResponse).Duplicate {
		t.Errorf("calls %d, answer %v", link.calls, resp)
	}
	if all, _, _ := f.log.View().Counts(); all != 1 {
		t.Errorf("%d jobs after a submission that was sent three times", all)
	}
	// A signal must not be sent twice: an unknown outcome is told to the caller.
	link.calls, link.after = 0, []error{status.Error(codes.Unavailable, "connection reset")}
	_, err = call(f.as(ann), s, "Cancel", &ctldpb.CancelRequest{Signal: "USR1", Filter: &ctldpb.JobFilter{JobIds: []string{"1"}}}, notHere)
	if status.Code(err) != codes.Unavailable || link.calls != 1 {
		t.Errorf("signal: %v after %d calls", err, link.calls)
	}
	// Nobody leads: the wait is bounded by the caller's own deadline too.
	s.Log = follower{f.log, func() string { return "" }}
	ctx, cancel := context.WithTimeout(f.as(ann), 60*time.Millisecond)
	defer cancel()
	_, err = call(ctx, s, "Submit", &ctldpb.SubmitRequest{Spec: script()}, notHere)
	wantRefusal(t, err, codeNoLeader)
}

// blankLog is the log of a controller whose folder is empty.
type blankLog struct{ follower }

func (blankLog) Status() replica.Status { return replica.Status{Name: "c2", Role: replica.RoleWaiting} }

// A controller that takes no part yet sends callers on soon, and says why.
func TestBlankSendsCallersOn(t *testing.T) {
	f := newFixture(t, "")
	s := f.srv
	s.Log = blankLog{follower{f.log, func() string { return "" }}}
	began := time.Now()
	_, err := call(f.as(ann), s, "Submit", &ctldpb.SubmitRequest{Spec: script()}, notHere)
	wantRefusal(t, err, codeNoLeader)
	if d := time.Since(began); d > MaxForward/2 || !strings.Contains(RefusalOf(err).Why, "empty folder") {
		t.Errorf("after %v: %v", d, err)
	}
}

func TestLeaderAnswersItself(t *testing.T) {
	f := newFixture(t, "")
	f.log.fail = []error{replica.ErrNotLeader, replica.ErrUnknown}
	req := &ctldpb.SubmitRequest{Spec: script()}
	resp, err := call(f.as(ann), f.srv, "Submit", req, func(ctx context.Context, r any) (any, error) {
		return f.srv.Submit(ctx, r.(*ctldpb.SubmitRequest))
	})
	if err != nil || resp.(*ctldpb.SubmitResponse).JobId == 0 || req.Key == "" {
		t.Errorf("%v %v, key %q", resp, err, req.Key)
	}
	// Reads are not forwarded, nor stale listings of nodes.
	for method, req := range map[string]any{"GetScript": &ctldpb.GetScriptRequest{}, "ListNodes": &ctldpb.ListNodesRequest{Read: &ctldpb.ReadOptions{Stale: true}}} {
		f.log.leader = "c2"
		got, err := call(f.as(ann), f.srv, method, req, func(context.Context, any) (any, error) { return "here", nil })
		if err != nil || got != "here" {
			t.Errorf("%s: %v %v", method, got, err)
		}
	}
}
