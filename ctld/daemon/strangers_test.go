package daemon

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// silent makes connections from one address that say nothing, and holds them.
func silent(t *testing.T, from string, to net.Addr, n int) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Second}
	for range n {
		if c, err := d.Dial("tcp", to.String()); err == nil {
			t.Cleanup(func() { c.Close() })
		}
	}
}

// TestStrangersKeepNobodyOut: silent connections from one address delay nobody's handshake from another, on
// the raft port and on the port for agents and controllers.
func TestStrangersKeepNobodyOut(t *testing.T) {
	dir := t.TempDir()
	ca, err := authn.NewCA("hall", rand.Reader, time.Now())
	if err == nil {
		err = ca.Write(dir)
	}
	for _, name := range []string{"c1", "c2"} {
		if pair, e := ca.Issue(authn.RoleCtld, name, 0, rand.Reader, time.Now()); err == nil && e == nil {
			err = pair.Write(dir, name)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	id, err := authn.OpenIdentity(dir, "c1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := authn.OpenIdentity(dir, "c2", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	raw := listen()
	raft := newTLSListener(raw, id.Server(authn.RoleCtld))
	defer raft.Close()
	silent(t, "127.0.0.9", raw.Addr(), 3*maxHandshakes)
	conn, err := (&tls.Dialer{Config: other.Client(authn.RoleCtld)}).DialContext(ctx, "tcp", raw.Addr().String())
	if err != nil {
		t.Fatalf("the raft port: %v", err)
	}
	conn.Close()

	l := listen()
	srv := grpc.NewServer(grpc.Creds(byCertificate(id.Server())), grpc.ConnectionTimeout(handshakeTimeout))
	peerpb.RegisterPeerServer(srv, peerpb.UnimplementedPeerServer{})
	served := make(chan error, 1)
	bounded := strangerListener(l).(gateListener)
	go func() { served <- srv.Serve(bounded) }()
	defer func() { srv.Stop(); <-served }()
	silent(t, "127.0.0.9", l.Addr(), 2*maxStrangersOf)
	client, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(other.Client(authn.RoleCtld))))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := peerpb.NewPeerClient(client).Status(ctx, &peerpb.StatusRequest{}); err == nil || ctx.Err() != nil {
		t.Errorf("the port for agents and controllers: %v", err) // Unimplemented is an answer
	}
	bounded.gate.conns.mu.Lock()
	defer bounded.gate.conns.mu.Unlock()
	if n := bounded.gate.conns.of[originOf(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})]; n != 0 {
		t.Errorf("%d connections count as strangers' after their handshake", n)
	}
	if n := bounded.gate.conns.all; n > maxStrangersOf {
		t.Errorf("%d strangers of one address", n)
	}
}

// TestConnectionsEndWithTheirCertificates: on the raft port from both sides, and on the port for agents and
// controllers, where the caller comes back if it has another certificate by then.
func TestConnectionsEndWithTheirCertificates(t *testing.T) {
	dir := t.TempDir()
	start := time.Now().Truncate(time.Second) // as certificates have it
	ca, err := authn.NewCA("hall", rand.Reader, start)
	if err == nil {
		err = ca.Write(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string, life time.Duration) *authn.Identity {
		t.Helper()
		pair, err := ca.Issue(authn.RoleCtld, name, life, rand.Reader, start)
		if err == nil {
			err = pair.Write(dir, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		id, err := authn.OpenIdentity(dir, name, func() time.Time { return start.Add(time.Hour + 800*time.Millisecond) })
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	// By the clock here, which stands, the short one has 200 ms left.
	long, short := issue("c1", 24*time.Hour), issue("c2", time.Hour+time.Second)
	for _, tt := range []struct {
		name           string
		server, client *authn.Identity
	}{{"of the caller", long, short}, {"of the one who is called", short, long}} {
		raw, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		raft := newTLSListener(raw, tt.server.Server(authn.RoleCtld))
		defer raft.Close()
		ours, err := tlsDialer(tt.client.Client(authn.RoleCtld))(t.Context(), raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		theirs, err := raft.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		for _, c := range []net.Conn{ours, theirs} {
			c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the certificate %s: the connection goes on: %v", tt.name, err)
			}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(byCertificate(long.Server())))
	peerpb.RegisterPeerServer(srv, peerpb.UnimplementedPeerServer{})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() { srv.Stop(); <-served }()
	client, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(short.Client(authn.RoleCtld))))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ask := func() {
		t.Helper()
		_, err := peerpb.NewPeerClient(client).Status(ctx, &peerpb.StatusRequest{}, grpc.WaitForReady(true))
		if status.Code(err) != codes.Unimplemented { // which is an answer
			t.Fatal(err)
		}
	}
	ask()
	if !client.WaitForStateChange(ctx, connectivity.Ready) {
		t.Fatal("the connection goes on")
	}
	ask()
}
