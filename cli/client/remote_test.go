package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/steppb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// far is a controller that is reached by its port for users, and a login host with a clock of its own.
type far struct {
	ctldpb.UnimplementedControllerServer
	steppb.UnimplementedLoginServer

	front *conf.Front
	login *authn.Identity
	auth  *authn.Authenticator

	mu     sync.Mutex
	ahead  time.Duration // of the login host's clock
	refuse error         // what the login host answers
	mints  int
}

func (f *far) Ping(ctx context.Context, _ *ctldpb.PingRequest) (*ctldpb.PingResponse, error) {
	c, _ := authn.FromContext(ctx)
	return &ctldpb.PingResponse{Caller: &ctldpb.CallerInfo{Uid: c.UID, Role: string(c.Role), Via: c.Via, Login: c.Login, Wallet: c.Wallet}}, nil
}

func (f *far) ListJobs(_ *ctldpb.ListJobsRequest, s grpc.ServerStreamingServer[ctldpb.ListJobsResponse]) error {
	for id := range 3 {
		if err := s.Send(&ctldpb.ListJobsResponse{Jobs: []*ctldpb.Job{{JobId: uint32(id + 1)}}}); err != nil {
			return err
		}
	}
	return nil
}

func (f *far) JobOutput(r *ctldpb.JobOutputRequest, s grpc.ServerStreamingServer[ctldpb.JobOutputResponse]) error {
	return s.Send(&ctldpb.JobOutputResponse{Data: []byte("out of " + r.JobId), End: true})
}

func (f *far) WaitJob(context.Context, *ctldpb.WaitJobRequest) (*ctldpb.WaitJobResponse, error) {
	return &ctldpb.WaitJobResponse{Done: true}, nil
}

func (f *far) Mint(_ context.Context, r *steppb.MintRequest) (*steppb.MintResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mints++; f.refuse != nil {
		return nil, f.refuse
	}
	token, ends, err := authn.MintToken(f.login, 61234, 61234, "", authn.Class(r.Class), r.Cluster, time.Now().Add(f.ahead), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &steppb.MintResponse{Token: token, ExpiresMs: ends.UnixMilli()}, nil
}

func newFar(t *testing.T) *far {
	t.Helper()
	dir := t.TempDir()
	ca, err := authn.NewCA("lab", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.WriteCert(dir); err != nil {
		t.Fatal(err)
	}
	open := func(role authn.Role, name string) *authn.Identity {
		pair, err := ca.Issue(role, name, time.Hour, rand.Reader, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Write(dir, name); err != nil {
			t.Fatal(err)
		}
		id, err := authn.OpenIdentity(dir, name, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	id := open(authn.RoleCtld, "c1")
	f := &far{login: open(authn.RoleLogin, "login1")}
	f.auth = authn.NewAuthenticator(authn.NewAccounts("/etc/passwd", "/etc/group", time.Now), &authn.Policy{LoginNodes: []string{"login1"}})
	v := authn.NewVerifier(id, time.Now)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(id.UserServer())), v.Codec(), grpc.UnaryInterceptor(f.auth.RemoteUnary(v)), grpc.StreamInterceptor(f.auth.RemoteStream(v)))
	ctldpb.RegisterControllerServer(g, f)
	go g.Serve(l)
	t.Cleanup(g.Stop)
	sock := filepath.Join(dir, "login.sock")
	ll, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	lg := grpc.NewServer(grpc.Creds(authn.PeerCred()))
	steppb.RegisterLoginServer(lg, f)
	go lg.Serve(ll)
	t.Cleanup(lg.Stop)
	f.front = &conf.Front{Cluster: "lab", TLSDir: dir, LoginSocket: sock, Controllers: []conf.Controller{{
		Name: "c1", Socket: filepath.Join(dir, "none.sock"), Address: "127.0.0.1", UserPort: uint32(l.Addr().(*net.TCPAddr).Port)}}}
	return f
}

func (f *far) client(t *testing.T, wallet string) *Client {
	t.Helper()
	c, err := fromFront(f.front, wallet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestRemoteCalls: every kind of call works from another host as it does here.
func TestRemoteCalls(t *testing.T) {
	f := newFar(t)
	c := f.client(t, "")
	for range 2 {
		res, err := c.Ping(t.Context())
		if err != nil || res.Caller.Uid != 61234 || res.Caller.Via != "token" || res.Caller.Login != "login1" {
			t.Fatalf("%v %v", res, err)
		}
	}
	jobs, err := c.ListJobs(t.Context(), &ctldpb.ListJobsRequest{})
	if err != nil || len(jobs.Jobs) != 3 {
		t.Errorf("%v %v", jobs, err)
	}
	var out bytes.Buffer
	if err := c.Output(t.Context(), &ctldpb.JobOutputRequest{JobId: "7"}, &out); err != nil || out.String() != "out of 7" {
		t.Errorf("%q %v", out.String(), err)
	}
	if err := c.Wait(t.Context(), time.Second, func(ctx context.Context, cc ctldpb.ControllerClient) error {
		_, err := cc.WaitJob(ctx, &ctldpb.WaitJobRequest{JobId: 1})
		return err
	}); err != nil {
		t.Error(err)
	}
	if f.mints == 0 || f.mints > 2 {
		t.Errorf("%d tokens for calls of two classes at most", f.mints)
	}
}

func writeKey(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRemoteWallet: a wallet calls with its signature, also where a controller's socket is.
func TestRemoteWallet(t *testing.T) {
	f := newFar(t)
	f.front.Controllers[0].Socket = f.front.LoginSocket // something is there
	c := f.client(t, writeKey(t, strings.Repeat("11", 32)+"\n", 0o600))
	res, err := c.Ping(t.Context())
	if err != nil || res.Caller.Role != "wallet" || res.Caller.Via != "wallet" || !strings.HasPrefix(res.Caller.Wallet, "0x") {
		t.Fatalf("%v %v", res, err)
	}
	if jobs, err := c.ListJobs(t.Context(), &ctldpb.ListJobsRequest{}); err == nil {
		t.Errorf("a wallet without a user lists jobs: %v", jobs)
	}
	if f.mints != 0 {
		t.Error("the login host was asked")
	}
}

// TestRemoteErrors: each says what is missing or wrong, and where.
func TestRemoteErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		wallet string
		change func(t *testing.T, f *far)
		want   []string
	}{
		{"no port for users", "", func(_ *testing.T, f *far) { f.front.Controllers[0].UserPort = 0 }, []string{TextConnect, "none.sock is not there", "UserPort=N"}},
		{"no login socket", "", func(_ *testing.T, f *far) { f.front.LoginSocket += "x" }, []string{TextConnect, "login.sockx is not there", "gnoded --login"}},
		{"a dead login daemon", "", func(t *testing.T, f *far) {
			f.front.LoginSocket = filepath.Join(f.front.TLSDir, "dead.sock")
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.front.LoginSocket})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			l.Close()
		}, []string{TextConnect, "dead.sock; gnoded --login is not running"}},
		{"the login host refuses", "", func(_ *testing.T, f *far) { f.refuse = status.Error(codes.PermissionDenied, "root gets no token") }, []string{TextDenied, "root gets no token"}},
		{"the login host is ahead", "", func(_ *testing.T, f *far) { f.ahead = 2 * time.Minute }, []string{TextDenied, "2m0s in the future", "clocks"}},
		{"the login host is behind", "", func(_ *testing.T, f *far) { f.ahead = -7 * time.Minute }, []string{TextDenied, "ended 2m0s ago"}},
		{"the login host is not listed", "", func(_ *testing.T, f *far) { f.auth.SetPolicy(&authn.Policy{}) }, []string{TextDenied, "LoginNodes"}},
		{"no authority", "", func(_ *testing.T, f *far) { os.Remove(filepath.Join(f.front.TLSDir, authn.CAFile)) }, []string{"ca.pem", "copy ca.pem there"}},
		{"another authority", "", func(t *testing.T, f *far) {
			other, err := authn.NewCA("lab", rand.Reader, time.Now())
			if err == nil {
				err = other.WriteCert(f.front.TLSDir)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, []string{TextConnect, "c1 at 127.0.0.1:", "ca.pem on this host"}},
		{"another cluster", "", func(_ *testing.T, f *far) { f.front.Cluster = "blue" }, []string{TextConnect, "same cluster"}},
		{"nobody listens", "", func(_ *testing.T, f *far) { f.front.Controllers[0].UserPort = 1 }, []string{TextConnect, "127.0.0.1:1"}},
		{"a wallet's key that others can read", "loose", nil, []string{"GRID_WALLET=", "0644", "0600"}},
		{"a wallet's key that is none", "short", nil, []string{"GRID_WALLET=", "64 hexadecimal digits"}},
		{"no wallet's key", "/does/not/exist", nil, []string{"GRID_WALLET=/does/not/exist", "no such file"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFar(t)
			wallet := tc.wallet
			switch wallet {
			case "loose":
				wallet = writeKey(t, strings.Repeat("11", 32), 0o644)
			case "short":
				wallet = writeKey(t, "1234", 0o600)
			}
			if tc.change != nil {
				tc.change(t, f)
			}
			c, err := fromFront(f.front, wallet)
			if err == nil {
				defer c.Close()
				_, err = c.Ping(t.Context())
			}
			var r *Refusal
			if !errors.As(err, &r) {
				t.Fatalf("got %v", err)
			}
			text := r.Text + "\n" + r.Why
			for _, w := range tc.want {
				if !strings.Contains(text, w) {
					t.Errorf("no %q in\n%s", w, text)
				}
			}
			if strings.Contains(text, strings.Repeat("11", 32)) {
				t.Error("the key is shown")
			}
		})
	}
}
