package authn

import (
	"context"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

type echo struct {
	ctldpb.UnimplementedControllerServer
	seen chan Caller
}

func (e *echo) Ping(ctx context.Context, _ *ctldpb.PingRequest) (*ctldpb.PingResponse, error) {
	c, _ := FromContext(ctx)
	e.seen <- c
	return &ctldpb.PingResponse{}, nil
}

func (e *echo) ListJobs(_ *ctldpb.ListJobsRequest, s grpc.ServerStreamingServer[ctldpb.ListJobsResponse]) error {
	c, _ := FromContext(s.Context())
	e.seen <- c
	return nil
}

func testAccounts(t *testing.T) *Accounts {
	return NewAccounts("/etc/passwd", "/etc/group", time.Now)
}

func TestPeerCredOverSocket(t *testing.T) {
	auth := NewAuthenticator(testAccounts(t), nil)
	sock := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{seen: make(chan Caller, 2)}
	srv := grpc.NewServer(grpc.Creds(PeerCred()), grpc.UnaryInterceptor(auth.Unary()), grpc.StreamInterceptor(auth.Stream()))
	ctldpb.RegisterControllerServer(srv, e)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() { srv.Stop(); <-served }()

	conn, err := grpc.NewClient("unix:"+sock, grpc.WithTransportCredentials(PeerCred()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := ctldpb.NewControllerClient(conn)
	if _, err := client.Ping(t.Context(), &ctldpb.PingRequest{}); err != nil {
		t.Fatal(err)
	}
	c := <-e.seen
	if int(c.UID) != os.Getuid() || int(c.GID) != os.Getgid() || int(c.PID) != os.Getpid() {
		t.Errorf("caller %+v is not this process", c)
	}
	if os.Getuid() == 0 && (c.Role != RoleAdmin || c.User != "root") {
		t.Errorf("root is %+v", c)
	}
	stream, err := client.ListJobs(t.Context(), &ctldpb.ListJobsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	stream.Recv()
	if c := <-e.seen; int(c.UID) != os.Getuid() {
		t.Errorf("stream caller %+v", c)
	}
}

func TestPeerCredRefusesTCP(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, _, err := PeerCred().ServerHandshake(a); err != ErrNotLocal {
		t.Errorf("a connection that is no unix socket: %v", err)
	}
}

func TestAdmit(t *testing.T) {
	p := newPKI(t, "blue", epoch)
	node, err := p.ca.Issue(RoleNode, "n1", 0, rand.Reader, epoch)
	if err != nil {
		t.Fatal(err)
	}
	auth := NewAuthenticator(testAccounts(t), &Policy{Operators: []string{"4242"}})
	chain := credentials.TLSInfo{}
	chain.State.PeerCertificates = append(chain.State.PeerCertificates, node.Cert)
	verified := chain
	verified.State.VerifiedChains = append(verified.State.VerifiedChains, chain.State.PeerCertificates)
	tests := []struct {
		name   string
		info   credentials.AuthInfo
		method string
		want   codes.Code
	}{
		{"nobody", nil, ControllerService + "Ping", codes.Unauthenticated},
		{"certificate that was not verified", chain, NodeService + "Session", codes.Unauthenticated},
		{"node opens its session", verified, NodeService + "Session", codes.OK},
		{"node acts as a user", verified, ControllerService + "Submit", codes.PermissionDenied},
		{"node acts as a controller", verified, PeerService + "Forward", codes.PermissionDenied},
		{"user", PeerInfo{UID: 1234}, ControllerService + "Submit", codes.OK},
		{"user reconfigures", PeerInfo{UID: 1234}, ControllerService + "Reconfigure", codes.PermissionDenied},
		{"operator reconfigures", PeerInfo{UID: 4242}, ControllerService + "Reconfigure", codes.OK},
		{"user forwards", PeerInfo{UID: 1234}, PeerService + "Forward", codes.PermissionDenied},
		{"root forwards", PeerInfo{UID: 0}, PeerService + "Forward", codes.PermissionDenied},
		{"unknown method", PeerInfo{UID: 0}, ControllerService + "NoSuch", codes.PermissionDenied},
	}
	for _, tt := range tests {
		ctx := context.Background()
		if tt.info != nil {
			ctx = peer.NewContext(ctx, &peer.Peer{AuthInfo: tt.info})
		}
		_, err := auth.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: tt.method}, func(ctx context.Context, _ any) (any, error) {
			if _, ok := FromContext(ctx); !ok {
				t.Errorf("%s: no caller in the context", tt.name)
			}
			return nil, nil
		})
		if status.Code(err) != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}
