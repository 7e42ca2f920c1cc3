package login

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/steppb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/cred"
)

// host is a login host with a certificate of the role given.
func host(t *testing.T, role authn.Role) *Server {
	t.Helper()
	ca, err := authn.NewCA("lab", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pair, err := ca.Issue(role, "login1", time.Hour, rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ca.WriteCert(dir), pair.Write(dir, "login1")); err != nil {
		t.Fatal(err)
	}
	id, err := authn.OpenIdentity(dir, "login1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return &Server{Identity: id, Now: time.Now, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler),
		Users: func(uid uint32) (string, error) {
			if uid == 4242 {
				return "", errors.New("no such account")
			}
			return "ann", nil
		}}
}

func as(uid uint32) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: authn.PeerInfo{UID: uid, GID: 100}})
}

func TestMint(t *testing.T) {
	s := host(t, authn.RoleLogin)
	res, err := s.Mint(as(1000), &steppb.MintRequest{Cluster: "lab", Class: "jobs"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := cred.UnmarshalBearer(res.Token)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := cred.UnmarshalToken(b.Token)
	if err != nil || tok.UID != 1000 || tok.GID != 100 || tok.User != "ann" || tok.Login != "login1" || tok.Class != "jobs" || tok.Cluster != "lab" {
		t.Errorf("%+v %v", tok, err)
	}
	if left := time.Until(time.UnixMilli(res.ExpiresMs)); left <= 0 || left > 5*time.Minute {
		t.Errorf("it lives %s", left)
	}
}

func TestMintRefuses(t *testing.T) {
	s := host(t, authn.RoleLogin)
	for _, tc := range []struct {
		name           string
		ctx            context.Context
		cluster, class string
		code           codes.Code
		text           string
	}{
		{"root", as(0), "lab", "read", codes.PermissionDenied, "root gets no token"},
		{"another cluster", as(1000), "blue", "read", codes.FailedPrecondition, "of cluster lab"},
		{"no class", as(1000), "lab", "", codes.InvalidArgument, "read, jobs or admin"},
		{"a made-up class", as(1000), "lab", "root", codes.InvalidArgument, "read, jobs or admin"},
		{"no name", as(4242), "lab", "read", codes.PermissionDenied, "uid 4242 has no name"},
		{"nobody", context.Background(), "lab", "read", codes.Unauthenticated, "who is calling"},
	} {
		_, err := s.Mint(tc.ctx, &steppb.MintRequest{Cluster: tc.cluster, Class: tc.class})
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if _, err := host(t, authn.RoleNode).Mint(as(1000), &steppb.MintRequest{Cluster: "lab", Class: "read"}); err == nil {
		t.Error("a node vouches for a user")
	}
}

// TestRefusalsFillNoLog: one line in a while, with how many there were.
func TestRefusalsFillNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		b := &bounded{log: slog.New(slog.NewTextHandler(&text, nil))}
		for range 1000 {
			b.tell(errBusy)
		}
		time.Sleep(tellEvery)
		b.tell(errBusy)
		if got := strings.Count(text.String(), "\n"); got != 2 || !strings.Contains(text.String(), "count=1000") {
			t.Errorf("%d lines: %s", got, text.String())
		}
	})
}

// TestBounds: a user's connections over the limit are closed at once, and a closed one gives its place back.
func TestBounds(t *testing.T) {
	s := host(t, authn.RoleLogin)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	closed := func(c net.Conn) bool {
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		if _, err := c.Read(make([]byte, 512)); err != nil {
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
		return false // the server's settings: it is served
	}
	var held []net.Conn
	for i := range MaxUserConns + 1 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got, want := closed(c), i == MaxUserConns; got != want {
			t.Fatalf("connection %d is closed: %t", i+1, got)
		}
		held = append(held, c)
	}
	held[0].Close()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(authn.PeerCred()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = steppb.NewLoginClient(conn).Mint(t.Context(), &steppb.MintRequest{Cluster: "lab", Class: "read"}, grpc.WaitForReady(true))
	if want := codes.OK; os.Getuid() == 0 {
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("root over the socket: %v", err)
		}
	} else if status.Code(err) != want {
		t.Error(err)
	}
	big := &steppb.MintRequest{Cluster: strings.Repeat("x", maxRequest+1), Class: "read"}
	if _, err := steppb.NewLoginClient(conn).Mint(t.Context(), big); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request over the limit: %v", err)
	}
}
