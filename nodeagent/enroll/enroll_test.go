package enroll

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// controller gives certificates as a real one does: once a token and name.
type controller struct {
	nodepb.UnimplementedEnrollServer
	ca    *authn.CA
	token authn.JoinToken
	role  authn.Role
	used  map[string]bool
	name  string // put into certificates instead of what is asked; "" = as asked
	calls int
}

func (c *controller) Join(_ context.Context, req *nodepb.JoinRequest) (*nodepb.JoinResponse, error) {
	c.calls++
	tok, err := authn.ParseJoinToken(req.Token)
	hash := c.token.SecretHash()
	if err != nil || !tok.Matches(hash[:]) {
		return nil, status.Error(codes.PermissionDenied, "no such token")
	}
	if c.used[req.Name] {
		return nil, status.Error(codes.PermissionDenied, "the token was used for "+req.Name)
	}
	c.used[req.Name] = true
	name := req.Name
	if c.name != "" {
		name = c.name
	}
	cert, err := c.ca.SignCSR(req.Csr, c.role, name, time.Hour, rand.Reader, time.Now())
	if err != nil {
		return nil, err
	}
	return &nodepb.JoinResponse{Certificate: cert.Raw, Ca: c.ca.Cert.Raw, Cluster: c.ca.Cluster, Role: string(c.role)}, nil
}

// serve starts one on loopback and gives its address.
func serve(t *testing.T, role authn.Role) (*controller, string) {
	t.Helper()
	ca, err := authn.NewCA("lab", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{ca: ca, role: role, used: map[string]bool{}}
	if c.token, err = authn.NewJoinToken("t1", ca.Cert, rand.Reader); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pair, err := ca.Issue(authn.RoleCtld, "c1", time.Hour, rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ca.WriteCert(dir), pair.Write(dir, "c1")); err != nil {
		t.Fatal(err)
	}
	id, err := authn.OpenIdentity(dir, "c1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(id.UserServer())))
	nodepb.RegisterEnrollServer(g, c)
	go g.Serve(l)
	t.Cleanup(g.Stop)
	return c, l.Addr().String()
}

func (c *controller) request(t *testing.T, at string) Request {
	return Request{Controller: at, Name: "n1", Token: c.token, Dir: filepath.Join(t.TempDir(), "tls"), Now: time.Now, Rand: rand.Reader}
}

func open(t *testing.T, dir string) *authn.Identity {
	t.Helper()
	id, err := authn.OpenIdentity(dir, "n1", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func noLeftovers(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*"+newSuffix))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestJoin(t *testing.T) {
	c, at := serve(t, authn.RoleNode)
	q := c.request(t, at)
	old := unix.Umask(0)
	defer unix.Umask(old)
	res, err := Join(t.Context(), q)
	if err != nil || res.Cluster != "lab" || res.Role != authn.RoleNode || res.Resumed {
		t.Fatalf("%+v %v", res, err)
	}
	if id := open(t, q.Dir); id.Role() != authn.RoleNode || id.Name() != "n1" || id.Cluster() != "lab" {
		t.Errorf("%s %s %s", id.Role(), id.Name(), id.Cluster())
	}
	if st, err := os.Stat(filepath.Join(q.Dir, "n1.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode: %v %v", st.Mode(), err)
	}
	noLeftovers(t, q.Dir)
	if _, err := Join(t.Context(), q); err == nil || !strings.Contains(err.Error(), "--force replaces it") || c.calls != 1 {
		t.Errorf("a good pair: %v, %d calls", err, c.calls)
	}
	q.Force = true
	if _, err := Join(t.Context(), q); err == nil || !strings.Contains(err.Error(), "the token was used for n1") {
		t.Errorf("a used token: %v", err)
	}
	open(t, q.Dir) // the old pair is still good
	noLeftovers(t, q.Dir)
}

func TestJoinRefusals(t *testing.T) {
	c, at := serve(t, authn.RoleNode)
	other, otherAt := serve(t, authn.RoleNode)
	for _, tc := range []struct {
		name   string
		change func(*Request)
		want   string
		calls  int
	}{
		{"another cluster's controller never sees the token", func(q *Request) { q.Controller = otherAt }, "is no controller of the token's cluster", 0},
		{"nobody listens", func(q *Request) { q.Controller = "127.0.0.1:1" }, "does not answer", 0},
		{"a folder that is a file", func(q *Request) {
			os.MkdirAll(filepath.Dir(q.Dir), 0o755)
			os.WriteFile(q.Dir, nil, 0o600)
		}, "not a directory", 0},
		{"a folder of another authority", func(q *Request) {
			os.MkdirAll(q.Dir, 0o755)
			other.ca.WriteCert(q.Dir)
		}, "another authority", 0},
		{"a forged secret", func(q *Request) { q.Token.Secret[0]++ }, "no such token", 1},
		{"a clock far off", func(q *Request) { q.Now = func() time.Time { return time.Now().Add(48 * time.Hour) } }, "is the clock of this host", 0},
		{"a certificate for somebody else", func(q *Request) { c.name = "n2" }, "n2", 1},
		{"a certificate of a controller", func(q *Request) { c.name, c.role = "", authn.RoleCtld }, `role "ctld"`, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := c.request(t, at)
			c.calls, other.calls, c.used = 0, 0, map[string]bool{}
			tc.change(&q)
			_, err := Join(t.Context(), q)
			if err == nil || !strings.Contains(err.Error(), tc.want) || c.calls != tc.calls || other.calls != 0 {
				t.Errorf("%v, %d calls; want %q and %d", err, c.calls, tc.want, tc.calls)
			}
			if err != nil && strings.Contains(err.Error(), q.Token.String()) {
				t.Error("the token stands in the error")
			}
			for _, file := range []string{"n1.key", "n1.pem", "n1.key.new", "n1.pem.new"} {
				if exists(filepath.Join(q.Dir, file)) {
					t.Errorf("%s was left", file)
				}
			}
		})
	}
}

// TestResume: a join that was killed after the token was used has what it was for.
func TestResume(t *testing.T) {
	c, at := serve(t, authn.RoleLogin)
	q := c.request(t, at)
	f := folder{dir: q.Dir, name: q.Name}
	pair, err := c.ca.Issue(authn.RoleLogin, "n1", time.Hour, rand.Reader, time.Now())
	if err == nil {
		err = os.MkdirAll(q.Dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.putKey(pair.Key), f.put(f.cert()+newSuffix, certPEM(pair.Cert.Raw), 0o644),
		f.put(f.ca()+newSuffix, certPEM(c.ca.Cert.Raw), 0o644)); err != nil {
		t.Fatal(err)
	}
	res, err := Join(t.Context(), q)
	if err != nil || !res.Resumed || res.Role != authn.RoleLogin || c.calls != 0 {
		t.Errorf("%+v %v, %d calls", res, err, c.calls)
	}
	open(t, q.Dir)
}
