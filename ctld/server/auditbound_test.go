package server

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// TestAuditIsNotPushedOut: nobody pushes what happened out of the log with calls that come to nothing, however
// they come to it.
func TestAuditIsNotPushedOut(t *testing.T) {
	f := newFixture(t, "")
	id := f.submit(ann, nil)
	lines := audits(t, f)
	cancel := authn.ControllerService + "Cancel"
	bobs := f.srv.Auth.Person(bob, 100, 1)
	req := &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(id)}}}
	refused := &ctldpb.JobResults{Results: []*ctldpb.JobResult{{JobId: fmt.Sprint(id), Code: "ESLURM_ACCESS_DENIED"}}}
	for range 10 * idleBurst {
		_ = f.srv.Auth.Authorise(context.Background(), authn.ControllerService+"UpdateNode", f.srv.Auth.Person(ann, 100, 1))
		f.srv.record(context.Background(), cancel, bobs, "", req, refused, nil)
		f.srv.record(context.Background(), authn.ControllerService+"PutBlob", f.srv.Auth.Person(0, 0, 1), "", &ctldpb.PutBlobRequest{}, &ctldpb.PutBlobResponse{}, nil)
		f.srv.record(context.Background(), cancel, f.srv.Auth.Person(olga, 100, 1), "", req, nil, refuse(codeInvalid, "no"))
	}
	// What was done, or may have been, has its line whatever came before.
	done := &ctldpb.JobResults{Results: append(refused.Results, &ctldpb.JobResult{JobId: "9"})}
	f.srv.record(context.Background(), cancel, bobs, "", req, done, nil)
	f.srv.record(context.Background(), cancel, bobs, "", req, nil, refuse(codeUnknown, "lost"))
	f.srv.record(context.Background(), cancel, bobs, "", req, nil, grpcstatus.Error(codes.Unavailable, "lost"))
	users := map[string]int{}
	for _, l := range lines() {
		users[l.User]++
	}
	if users["ann"] != idleBurst || users["bob"] != idleBurst+3 || users["olga"] != idleBurst || users["root"] != idleBurst {
		t.Errorf("lines %v", users)
	}
}

// TestIdleLines: a caller has a burst, gets one back in each while, is told how many had none, and does not
// take others' room; all strangers together have a bound, too.
func TestIdleLines(t *testing.T) {
	var l allowances
	now := time.Unix(1000, 0)
	ask := func(who string, stranger bool, n int) (lines int) {
		for range n {
			if _, ok := l.admit(who, stranger, now); ok {
				lines++
			}
		}
		return lines
	}
	if n := ask("a", false, 100); n != idleBurst {
		t.Errorf("%d lines at once", n)
	}
	if n := ask("b", false, 1); n != 1 {
		t.Error("another caller has none")
	}
	now = now.Add(idleEvery - 1)
	if n := ask("a", false, 1); n != 0 {
		t.Error("one more too soon")
	}
	now = now.Add(1)
	if suppressed, ok := l.admit("a", false, now); !ok || suppressed != 81 {
		t.Errorf("%d suppressed, %v", suppressed, ok)
	}
	now = now.Add(time.Hour)
	if n := ask("a", false, 100); n != idleBurst {
		t.Errorf("%d lines after an hour", n)
	}
	n := 0
	for i := range 100 {
		n += ask(fmt.Sprint("stranger", i), true, idleBurst)
	}
	if n != strangeBurst {
		t.Errorf("%d lines of strangers", n)
	}
	if n := ask("c", false, 1); n != 1 {
		t.Error("strangers take the lines of those who are known")
	}
	// Whoever is forgotten takes along what was suppressed; it is told by the next line of anybody.
	for i := range 2 * idleCallers {
		l.admit(fmt.Sprint("many", i), false, now)
	}
	if len(l.callers) > idleCallers {
		t.Errorf("%d callers are remembered", len(l.callers))
	}
	total := l.forgotten
	for _, c := range l.callers {
		total += c.suppressed
	}
	if total == 0 && l.callers["a"] != nil {
		t.Error("what was suppressed is forgotten")
	}
}

func TestWhose(t *testing.T) {
	nobody := authn.Caller{Role: authn.RoleNobody}
	for _, tt := range []struct {
		c             authn.Caller
		address, want string
	}{
		{nobody, "10.1.2.3:55", "10.1.2.3/32"},
		{nobody, "[::ffff:10.1.2.3]:55", "10.1.2.3/32"},
		{nobody, "[2001:db8:1:2:3:4:5:6]:55", "2001:db8:1:2::/64"},
		{nobody, "[fe80::1%eth0]:55", "fe80::/64"},
		{nobody, "", "nobody"},
		{authn.Caller{Role: authn.RoleUser, UID: 7}, "10.1.2.3:55", "uid 7"},
		{authn.Caller{Role: authn.RoleNode, Name: "n1"}, "10.1.2.3:55", "node n1"},
		{authn.Caller{Role: authn.RoleWallet, Wallet: "0xAB"}, "10.1.2.3:55", "0xAB"},
	} {
		if got := whose(tt.c, tt.address); got != tt.want {
			t.Errorf("%v at %q is %q, want %q", tt.c.Role, tt.address, got, tt.want)
		}
	}
}

// TestAuditNamesTheBearer: a token whose class is not enough says whose it is; the line of the refusal does too,
// once, here and at the leader.
func TestAuditNamesTheBearer(t *testing.T) {
	f := newFixture(t, "LoginNodes=l1\n")
	lines := audits(t, f)
	c, err := f.srv.Auth.Forwarded(ann, 100, authn.ViaToken, "l1", "", authn.ClassRead)
	if err != nil {
		t.Fatal(err)
	}
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5}})
	method := authn.ControllerService + "Submit"
	_, err = f.srv.AuditStrangers()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
		return nil, f.srv.Auth.Authorise(ctx, method, c)
	})
	if grpcstatus.Code(err) != codes.PermissionDenied || !strings.Contains(RefusalOf(err).Why, "class jobs") {
		t.Errorf("%v", err)
	}
	_, err = f.srv.AuditStrangers()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
		return nil, grpcstatus.Error(codes.Unauthenticated, "no token")
	})
	if grpcstatus.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
	got := lines()
	if len(got) != 2 || got[0].User != "ann" || got[0].Login != "l1" || got[0].Role != "user" || got[0].Address != "10.0.0.1:5" || got[1].Role != "nobody" || got[1].Address != "10.0.0.1:5" {
		t.Errorf("lines %+v", got)
	}
}
