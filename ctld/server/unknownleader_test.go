package server

import (
	"errors"
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// TestForwardLeaderNotKnownYet: a controller that was started again knows the leader's name before it has read in
// the log where a leader that joined at run time is. A submission waits for that; it is not turned down.
func TestForwardLeaderNotKnownYet(t *testing.T) {
	f := newFixture(t, "")
	link := &direct{to: f.srv, as: authn.Caller{Role: authn.RoleCtld, Name: "c2"}}
	asked := 0
	deps := f.srv.Deps
	deps.Log, deps.Name = follower{f.log, func() string { return "c1" }}, "c2"
	deps.Peers = peerOf(func(name string) (peerpb.PeerClient, error) {
		if asked++; asked < 4 {
			return nil, errors.New("no controller \"c1\" is configured, and none of that name has joined")
		}
		return link, nil
	})
	resp, err := call(f.as(ann), New(deps), "Submit", &ctldpb.SubmitRequest{Spec: script()}, notHere)
	if err != nil || resp.(*ctldpb.SubmitResponse).JobId == 0 {
		t.Errorf("%v %v", resp, err)
	}
}
