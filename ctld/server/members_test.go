package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// committee keeps members as a replica does, without raft.
type committee struct {
	list []replica.Member
	fail error // of the next change
	did  []string
}

func (c *committee) Members() []replica.Member { return c.list }

func (c *committee) do(what, name string) error {
	if err := c.fail; err != nil {
		c.fail = nil
		return err
	}
	c.did = append(c.did, strings.TrimSpace(what+" "+name))
	return nil
}

func (c *committee) AddLearner(_ context.Context, name, addr string) error {
	err := c.do("add", name+" "+addr)
	if err == nil {
		c.list = append(c.list, replica.Member{Name: name, Addr: addr})
	}
	return err
}

func (c *committee) Promote(_ context.Context, name string) error {
	err := c.do("promote", name)
	for i := range c.list {
		if err == nil && c.list[i].Name == name {
			c.list[i].Voter = true
		}
	}
	return err
}

func (c *committee) Remove(_ context.Context, name string, force bool) error {
	err := c.do(fmt.Sprintf("remove(%v)", force), name)
	for i := range c.list {
		if err == nil && c.list[i].Name == name {
			c.list = append(c.list[:i:i], c.list[i+1:]...)
			break
		}
	}
	return err
}

func (c *committee) TransferTo(_ context.Context, name string) error { return c.do("transfer", name) }

// council is a leader c1 with members, and a newcomer that answers as status says.
func council(t *testing.T, level uint32) (*fixture, *committee, *peerpb.StatusResponse) {
	f := newFixture(t, "")
	c := &committee{list: []replica.Member{{Name: "c1", Addr: "127.0.0.1:6816", Voter: true, Leader: true}}}
	st := &peerpb.StatusResponse{Blank: true, FeatureMax: 2, Version: "test"}
	f.srv.Members = c
	f.srv.Probe = func(_ context.Context, name, addr string) (*peerpb.StatusResponse, error) {
		if st.Name == "dead" {
			return nil, errors.New("connection refused")
		}
		if name != "c2" || addr != "10.0.0.2:7001" {
			t.Errorf("asked %s at %s", name, addr)
		}
		return st, nil
	}
	if level > 1 {
		f.propose(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: level}}})
	}
	return f, c, st
}

func (f *fixture) change(op ctldpb.ChangeControllerRequest_Op, name string, more ...func(*ctldpb.ChangeControllerRequest)) (string, error) {
	req := &ctldpb.ChangeControllerRequest{Op: op, Name: name}
	if op == ctldpb.ChangeControllerRequest_ADD && len(more) == 0 {
		req.Address, req.Port, req.RaftPort = "10.0.0.2", 7001, 7002
	}
	for _, m := range more {
		m(req)
	}
	resp, err := f.srv.ChangeController(f.as(0), req)
	return resp.GetText(), err
}

const (
	add      = ctldpb.ChangeControllerRequest_ADD
	promote  = ctldpb.ChangeControllerRequest_PROMOTE
	remove   = ctldpb.ChangeControllerRequest_REMOVE
	transfer = ctldpb.ChangeControllerRequest_TRANSFER
)

// TestControllerLife: a learner comes, votes, leads and goes, and its record with it.
func TestControllerLife(t *testing.T) {
	f, c, _ := council(t, 2)
	do := func(op ctldpb.ChangeControllerRequest_Op, name, word string) {
		t.Helper()
		if text, err := f.change(op, name); err != nil || !strings.Contains(text, word) {
			t.Fatalf("%v %s: %q %v", op, name, text, err)
		}
	}
	records := func() (n int) {
		for range f.log.View().Controllers() {
			n++
		}
		return n
	}
	do(add, "c2", "learner")
	if records() != 1 {
		t.Error("no record of where c2 is")
	}
	do(promote, "c2", "voter")
	do(transfer, "c2", "leads")
	do(transfer, "", "handed leadership over")
	do(transfer, "c1", "leads already")
	do(remove, "c2", "removed")
	if records() != 0 {
		t.Error("the record of c2 is still there")
	}
	if got, want := strings.Join(c.did, "; "), "add c2 10.0.0.2:7002; promote c2; transfer c2; transfer; remove(false) c2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestControllerRefusals: each in words that say what is wrong.
func TestControllerRefusals(t *testing.T) {
	at := func(address string, port, raft, user uint32) func(*ctldpb.ChangeControllerRequest) {
		return func(r *ctldpb.ChangeControllerRequest) {
			r.Address, r.Port, r.RaftPort, r.UserPort = address, port, raft, user
		}
	}
	there := func(c *committee, _ *peerpb.StatusResponse) {
		c.list = append(c.list, replica.Member{Name: "c2", Addr: "10.0.0.2:7002"})
	}
	failing := func(err error) func(*committee, *peerpb.StatusResponse) {
		return func(c *committee, st *peerpb.StatusResponse) {
			there(c, st)
			c.fail = err
		}
	}
	for _, tt := range []struct {
		name  string
		level uint32
		prep  func(*committee, *peerpb.StatusResponse)
		op    ctldpb.ChangeControllerRequest_Op
		who   string
		more  func(*ctldpb.ChangeControllerRequest)
		code  string
		want  string
	}{
		{"no operation", 2, nil, ctldpb.ChangeControllerRequest_NONE, "c2", nil, codeInvalid, "none of ADD"},
		{"old versions", 1, nil, add, "c2", nil, "ESLURM_DISABLED", notYet},
		{"no place", 2, nil, add, "c2", at("", 0, 0, 0), "ESLURM_INVALID_CONTROLLER", "give Address=HOST"},
		{"bad name", 2, nil, add, "c/2", nil, "ESLURM_INVALID_CONTROLLER", `"c/2" is no name`},
		{"no name", 2, nil, add, "", nil, "ESLURM_INVALID_CONTROLLER", `"" is no name`},
		{"bad address", 2, nil, add, "c2", at("http://x", 0, 0, 0), "ESLURM_INVALID_CONTROLLER", "a host name or an IP address"},
		{"one port for two", 2, nil, add, "c2", at("10.0.0.2", 7001, 7001, 0), "ESLURM_INVALID_CONTROLLER", "must differ"},
		{"high port", 2, nil, add, "c2", at("10.0.0.2", 70000, 0, 0), "ESLURM_INVALID_CONTROLLER", "at most 65535"},
		{"c1's port", 2, nil, add, "c2", at("127.0.0.1", 7001, 6817, 0), "ESLURM_INVALID_CONTROLLER", "127.0.0.1:6817 is where controller c1 listens"},
		{"member", 2, there, add, "c2", nil, "ESLURM_INVALID_CONTROLLER", "c2 is a learner already"},
		{"silent", 2, func(_ *committee, st *peerpb.StatusResponse) { st.Name = "dead" }, add, "c2", nil, "ESLURM_INVALID_CONTROLLER", "gctld --join --name c2"},
		{"another cluster", 2, func(_ *committee, st *peerpb.StatusResponse) { st.Blank, st.Cluster = false, "other" }, add, "c2", nil, "ESLURM_INVALID_CONTROLLER", "of cluster other"},
		{"own history", 2, func(_ *committee, st *peerpb.StatusResponse) { st.Blank, st.LastIndex = false, 9 }, add, "c2", nil, "ESLURM_INVALID_CONTROLLER", "a log of its own (9 entries)"},
		{"old newcomer", 2, func(_ *committee, st *peerpb.StatusResponse) { st.FeatureMax = 1 }, add, "c2", nil, "ESLURM_INVALID_CONTROLLER", "knows level 1; the cluster is at 2"},
		{"unknown", 2, nil, promote, "c9", nil, "ESLURM_INVALID_CONTROLLER", `"c9" is no member; the members are c1`},
		{"promote a voter", 2, nil, promote, "c1", nil, "ESLURM_INVALID_CONTROLLER", "voter already"},
		{"lagging", 2, failing(fmt.Errorf("%w: c2 is 900 entries behind", replica.ErrLagging)), promote, "c2", nil, "ESLURM_DISABLED", "900 entries behind"},
		{"remove unknown", 2, nil, remove, "c9", nil, "ESLURM_INVALID_CONTROLLER", "no member"},
		{"no majority", 2, failing(fmt.Errorf("%w: 2 of 3", replica.ErrNoMajority)), remove, "c2", nil, "ESLURM_DISABLED", "by force"},
		{"last voter", 2, func(c *committee, _ *peerpb.StatusResponse) { c.fail = replica.ErrLastVoter }, remove, "c1", nil, "ESLURM_DISABLED", "only controller that votes"},
		{"transfer to a learner", 2, there, transfer, "c2", nil, "ESLURM_INVALID_CONTROLLER", "only a voter can lead"},
		{"transfer to nobody", 2, nil, transfer, "c9", nil, "ESLURM_INVALID_CONTROLLER", "no member"},
		{"busy", 2, failing(replica.ErrChanging), remove, "c2", nil, codeBusy, "under way"},
		{"lost leadership", 2, failing(replica.ErrUnknown), remove, "c2", nil, codeUnknown, ""},
		{"not leader", 2, failing(replica.ErrNotLeader), remove, "c2", nil, codeNotLeader, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, c, st := council(t, tt.level)
			if tt.prep != nil {
				tt.prep(c, st)
			}
			var more []func(*ctldpb.ChangeControllerRequest)
			if tt.more != nil {
				more = append(more, tt.more)
			}
			_, err := f.change(tt.op, tt.who, more...)
			wantRefusal(t, err, tt.code, tt.want)
			if len(c.did) > 0 {
				t.Errorf("it did %v", c.did)
			}
			for range f.log.View().Controllers() {
				t.Error("a record was left")
			}
		})
	}
}

// TestLeaderThatGoesHandsOver: its successor takes it out; the call goes there.
func TestLeaderThatGoesHandsOver(t *testing.T) {
	f, c, _ := council(t, 2)
	c.list = append(c.list, replica.Member{Name: "c2", Voter: true})
	_, err := f.change(remove, "c1")
	wantRefusal(t, err, codeNotLeader)
	if got := strings.Join(c.did, "; "); got != "transfer" {
		t.Errorf("it did %q", got)
	}
}

// TestOneChangeAtATime: the second waits for the first, and no longer than its caller does.
func TestOneChangeAtATime(t *testing.T) {
	f, _, _ := council(t, 2)
	f.srv.changing <- struct{}{}
	ctx, cancel := context.WithTimeout(f.as(0), 20*time.Millisecond)
	defer cancel()
	_, err := f.srv.ChangeController(ctx, &ctldpb.ChangeControllerRequest{Op: transfer})
	wantRefusal(t, err, codeBusy, "another change")
	<-f.srv.changing
	if _, err := f.srv.ChangeController(f.as(0), &ctldpb.ChangeControllerRequest{Op: transfer}); err != nil {
		t.Error(err)
	}
}

// TestListControllers: members, those of the file and those that joined; who does not answer says why.
func TestListControllers(t *testing.T) {
	f, s, link := pair(t)
	f.propose(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 2}}},
		&logpb.Command{Of: &logpb.Command_SetController{SetController: &logpb.SetController{Name: "c4", Address: "10.0.0.4", Port: 1, RaftPort: 2, UserPort: 3}}})
	f.srv.Members = &committee{list: []replica.Member{{Name: "c1", Voter: true, Leader: true}, {Name: "c4"}, {Name: "c5", Addr: "10.0.0.5:77", Voter: true}}}
	f.srv.Status = func(context.Context, *peerpb.StatusRequest) (*peerpb.StatusResponse, error) {
		return &peerpb.StatusResponse{Name: "c1", Role: "Leader", LastIndex: 90, FeatureMax: 2, Voter: true, StateFree: 7}, nil
	}
	f.srv.Peers = statuses{"c4": {Role: "Follower", LastIndex: 40, FeatureMax: 2}, "c5": {Blank: true, Role: "Waiting"}}
	resp, err := call(f.as(ann), s, "ListControllers", &ctldpb.ListControllersRequest{}, func(ctx context.Context, r any) (any, error) {
		return s.ListControllers(ctx, r.(*ctldpb.ListControllersRequest))
	})
	if err != nil || link.calls != 1 {
		t.Fatalf("%v after %d calls to the leader", err, link.calls)
	}
	var got []string
	for _, c := range resp.(*ctldpb.ListControllersResponse).Controllers {
		got = append(got, fmt.Sprintf("%s %s:%d/%d/%d %s voter=%v up=%v lag=%d conf=%v", c.Name, c.Address, c.Port, c.RaftPort, c.UserPort, c.Role, c.Voter, c.Up, c.Lag, c.Configured))
	}
	want := []string{
		"c1 127.0.0.1:6817/6816/0 leader voter=true up=true lag=0 conf=true",
		"c4 10.0.0.4:1/2/3 learner voter=false up=true lag=50 conf=false",
		"c5 10.0.0.5:0/77/0 blank voter=true up=true lag=90 conf=false",
	}
	if a, b := strings.Join(got, "\n"), strings.Join(want, "\n"); a != b {
		t.Errorf("\n%s\nwant\n%s", a, b)
	}
	// Without a leader that answers it is this controller's own view.
	link.fail = []error{status.Error(codes.Unavailable, "down")}
	own, err := s.ListControllers(f.as(ann), &ctldpb.ListControllersRequest{})
	if err != nil || own.Info.Controller != "c2" || own.Controllers[0].Up || own.Controllers[0].Error == "" {
		t.Errorf("%v %v", own, err)
	}
}

// statuses are peers that tell how they are and nothing else.
type statuses map[string]*peerpb.StatusResponse

func (s statuses) Peer(name string) (peerpb.PeerClient, error) {
	if st := s[name]; st != nil {
		return knownPeer{st: st}, nil
	}
	return nil, errors.New("no such controller")
}

type knownPeer struct {
	peerpb.PeerClient
	st *peerpb.StatusResponse
}

func (p knownPeer) Status(context.Context, *peerpb.StatusRequest, ...grpc.CallOption) (*peerpb.StatusResponse, error) {
	return p.st, nil
}

// TestRejoinIsForOneself: a controller cannot have another one taken out.
func TestRejoinIsForOneself(t *testing.T) {
	f := newFixture(t, "")
	asked := 0
	next := func(context.Context, *peerpb.RejoinRequest) (*peerpb.RejoinResponse, error) {
		asked++
		return &peerpb.RejoinResponse{}, nil
	}
	for _, tt := range []struct {
		as   authn.Caller
		name string
		ok   bool
	}{
		{authn.Caller{Role: authn.RoleCtld, Name: "c2"}, "c2", true},
		{authn.Caller{Role: authn.RoleCtld, Name: "c2"}, "c3", false},
		{authn.Caller{Role: authn.RoleNode, Name: "c2"}, "c2", false},
		{authn.Caller{Role: authn.RoleAdmin}, "c2", false},
	} {
		asked = 0
		_, err := f.srv.Rejoin(authn.NewContext(context.Background(), tt.as), &peerpb.RejoinRequest{Name: tt.name}, next)
		if (err == nil) != tt.ok || (asked == 1) != tt.ok {
			t.Errorf("%+v for %s: %v, asked %d times", tt.as, tt.name, err, asked)
		}
	}
}

// TestForwardLeavesAnOldLeader: a call to a controller that leads no more, over a link that answers nothing,
// is ended and made again at the new one.
func TestForwardLeavesAnOldLeader(t *testing.T) {
	f, s, link := pair(t)
	leader := make(chan string, 1)
	leader <- "c3"
	s.Log = follower{f.log, func() string {
		now := <-leader
		leader <- now
		return now
	}}
	held := &heldPeer{asked: make(chan struct{})}
	s.Peers = peerOf(func(name string) (peerpb.PeerClient, error) {
		if name == "c3" {
			return held, nil
		}
		return link, nil
	})
	go func() {
		<-held.asked
		<-leader
		leader <- "c1"
	}()
	resp, err := call(f.as(ann), s, "Submit", &ctldpb.SubmitRequest{Spec: script()}, notHere)
	if err != nil || resp.(*ctldpb.SubmitResponse).JobId == 0 {
		t.Errorf("%v %v", resp, err)
	}
}

type peerOf func(string) (peerpb.PeerClient, error)

func (p peerOf) Peer(name string) (peerpb.PeerClient, error) { return p(name) }

// heldPeer takes a call and never answers.
type heldPeer struct {
	peerpb.PeerClient
	asked chan struct{}
}

func (h *heldPeer) Forward(ctx context.Context, _ *peerpb.ForwardRequest, _ ...grpc.CallOption) (*peerpb.ForwardResponse, error) {
	close(h.asked)
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

// Status of a link whose other end is down.
func (d *direct) Status(context.Context, *peerpb.StatusRequest, ...grpc.CallOption) (*peerpb.StatusResponse, error) {
	return nil, status.Error(codes.Unavailable, "down")
}
