package server

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// TestForwardedCallersAreJudgedAgain: how somebody came binds at the leader too, and what a controller says of
// rights does not.
func TestForwardedCallersAreJudgedAgain(t *testing.T) {
	wallet := "0x" + strings.Repeat("ab", 20)
	f := newFixture(t, "LoginNodes=l1\nWallets="+wallet+"=bob\n")
	submit, err := proto.Marshal(&ctldpb.SubmitRequest{Spec: script(), Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := proto.Marshal(&ctldpb.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	as := authn.NewContext(context.Background(), authn.Caller{Role: authn.RoleCtld, Name: "c2"})
	for _, tt := range []struct {
		name   string
		method string
		caller *peerpb.Caller
		want   codes.Code
	}{
		{"token", "Submit", &peerpb.Caller{Uid: ann, Gid: 100, Via: "token", Login: "l1", Class: "jobs"}, codes.OK},
		{"token that only reads", "Submit", &peerpb.Caller{Uid: ann, Gid: 100, Via: "token", Login: "l1", Class: "read"}, codes.PermissionDenied},
		{"token of a host that is no login host", "Submit", &peerpb.Caller{Uid: ann, Gid: 100, Via: "token", Login: "l2", Class: "jobs"}, codes.Unauthenticated},
		{"root by token", "Submit", &peerpb.Caller{Via: "token", Login: "l1", Class: "admin"}, codes.Unauthenticated},
		{"token without a class", "Submit", &peerpb.Caller{Uid: ann, Gid: 100, Via: "token", Login: "l1"}, codes.Unauthenticated},
		{"wallet of a user", "Submit", &peerpb.Caller{Uid: 0, Via: "wallet", Wallet: wallet, Role: "admin"}, codes.OK},
		{"wallet of nobody that calls itself admin", "Submit", &peerpb.Caller{Uid: 0, Via: "wallet", Wallet: "0x" + strings.Repeat("cd", 20), Role: "admin"}, codes.PermissionDenied},
		{"wallet of nobody looks", "ListNodes", &peerpb.Caller{Via: "wallet", Wallet: "0x" + strings.Repeat("cd", 20)}, codes.OK},
		{"no wallet", "ListNodes", &peerpb.Caller{Via: "wallet", Wallet: "0x12"}, codes.Unauthenticated},
		{"another way", "ListNodes", &peerpb.Caller{Via: "magic"}, codes.Unauthenticated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := submit
			if tt.method == "ListNodes" {
				req = nodes
			}
			out, err := f.srv.Forward(as, &peerpb.ForwardRequest{Method: authn.ControllerService + tt.method, Request: req, Caller: tt.caller})
			if err != nil {
				t.Fatal(err)
			}
			if got := codes.Code(out.StatusCode); got != tt.want {
				t.Errorf("%v (%s), want %v", got, out.StatusMessage, tt.want)
			}
		})
	}
	users := map[string]bool{}
	for j := range f.log.View().Jobs() {
		users[j.Spec.User] = true
	}
	if len(users) != 2 || !users["ann"] || !users["bob"] {
		t.Errorf("jobs of %v", users)
	}
	if _, err := f.srv.Forward(as, &peerpb.ForwardRequest{Method: authn.ControllerService + "Submit"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a call without a caller: %v", err)
	}
}
