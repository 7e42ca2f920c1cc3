package authn

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/cred"
)

// remoteFixture is a controller's port for users on loopback, with a clock of its own.
type remoteFixture struct {
	ctldpb.UnimplementedControllerServer
	nodepb.UnimplementedEnrollServer

	pki  pkiDir
	auth *Authenticator
	v    *Verifier
	addr string
	skew atomic.Int64 // of the controller's clock to epoch

	mu      sync.Mutex
	callers []Caller
	streams []string // job lists' users, as the handler read them
}

func (r *remoteFixture) now() time.Time { return epoch.Add(time.Duration(r.skew.Load())) }

func (r *remoteFixture) note(ctx context.Context) {
	c, _ := FromContext(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.callers = append(r.callers, c)
}

// last gives the caller of the last call that reached a handler, and forgets all.
func (r *remoteFixture) last() (c Caller, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n = len(r.callers); n > 0 {
		c = r.callers[n-1]
	}
	r.callers = nil
	return c, n
}

func (r *remoteFixture) Ping(ctx context.Context, _ *ctldpb.PingRequest) (*ctldpb.PingResponse, error) {
	r.note(ctx)
	return &ctldpb.PingResponse{Controller: "c1"}, nil
}

func (r *remoteFixture) Submit(ctx context.Context, _ *ctldpb.SubmitRequest) (*ctldpb.SubmitResponse, error) {
	r.note(ctx)
	return &ctldpb.SubmitResponse{}, nil
}

func (r *remoteFixture) UpdateJob(ctx context.Context, _ *ctldpb.UpdateJobRequest) (*ctldpb.JobResults, error) {
	r.note(ctx)
	return &ctldpb.JobResults{}, nil
}

func (r *remoteFixture) Reconfigure(ctx context.Context, _ *ctldpb.ReconfigureRequest) (*ctldpb.ReconfigureResponse, error) {
	r.note(ctx)
	return &ctldpb.ReconfigureResponse{}, nil
}

func (r *remoteFixture) JobOutput(req *ctldpb.JobOutputRequest, s grpc.ServerStreamingServer[ctldpb.JobOutputResponse]) error {
	r.note(s.Context())
	r.mu.Lock()
	r.streams = append(r.streams, req.JobId)
	r.mu.Unlock()
	return s.Send(&ctldpb.JobOutputResponse{Data: []byte(req.JobId), End: true})
}

func (r *remoteFixture) Join(ctx context.Context, _ *nodepb.JoinRequest) (*nodepb.JoinResponse, error) {
	r.note(ctx)
	return &nodepb.JoinResponse{Cluster: "blue"}, nil
}

const passwdText = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\nbob:x:1001:1001::/home/bob:/bin/sh\nzoe:x:1002:1002::/home/zoe:/bin/sh\n"

func newRemote(t *testing.T) *remoteFixture {
	t.Helper()
	r := &remoteFixture{pki: newPKI(t, "blue", epoch)}
	r.pki.issue(t, RoleCtld, "c1", epoch)
	r.pki.issue(t, RoleLogin, "login1", epoch)
	r.pki.issue(t, RoleLogin, "login2", epoch)
	r.pki.issue(t, RoleNode, "n1", epoch)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "passwd"), []byte(passwdText), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "group"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.auth = NewAuthenticator(NewAccounts(filepath.Join(dir, "passwd"), filepath.Join(dir, "group"), time.Now),
		&Policy{Operators: []string{"bob"}, Admins: []string{"zoe"}, LoginNodes: []string{"login1"}})
	id := r.pki.open(t, "c1", r.now)
	r.v = NewVerifier(id, r.now)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(id.UserServer())), r.v.Codec(),
		grpc.ChainUnaryInterceptor(r.auth.RemoteUnary(r.v)), grpc.ChainStreamInterceptor(r.auth.RemoteStream(r.v)))
	ctldpb.RegisterControllerServer(srv, r)
	nodepb.RegisterEnrollServer(srv, r)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-served })
	return r
}

// dial connects as a command on another host does.
func (r *remoteFixture) dial(t *testing.T, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conf, err := userClientTLS(filepath.Join(r.pki.dir, CAFile), "blue", r.now)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+r.addr, append(opts, grpc.WithTransportCredentials(credentials.NewTLS(conf)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// mint makes a token at a login host whose clock is right.
func (r *remoteFixture) mint(t *testing.T, host string, uid uint32, user string, class Class) []byte {
	t.Helper()
	data, _, err := MintToken(r.pki.open(t, host, r.now), uid, uid, user, class, "blue", r.now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func withToken(ctx context.Context, data []byte) context.Context {
	return metadata.AppendToOutgoingContext(ctx, tokenKey, string(data))
}

func TestTokenCalls(t *testing.T) {
	r := newRemote(t)
	var minted []Class
	client := ctldpb.NewControllerClient(r.dial(t, tokenDialOptions(func(_ context.Context, c Class) ([]byte, time.Time, error) {
		minted = append(minted, c)
		return r.mint(t, "login1", 1001, "bob", c), r.now().Add(TokenLife), nil
	}, r.now)...))
	ctx := t.Context()
	for range 3 {
		if _, err := client.Ping(ctx, &ctldpb.PingRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	want := Caller{Role: RoleOperator, UID: 1001, GID: 1001, User: "bob", Via: ViaToken, Login: "login1", Class: ClassRead}
	if c, n := r.last(); c != want || n != 3 {
		t.Errorf("%d calls, the caller is %+v, want %+v", n, c, want)
	}
	if _, err := client.Submit(ctx, &ctldpb.SubmitRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Reconfigure(ctx, &ctldpb.ReconfigureRequest{}); err != nil {
		t.Fatal(err)
	}
	if c, _ := r.last(); c.Class != ClassAdmin {
		t.Errorf("Reconfigure came with class %q", c.Class)
	}
	out, err := client.JobOutput(ctx, &ctldpb.JobOutputRequest{JobId: "7"})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := out.Recv(); err != nil || string(m.Data) != "7" {
		t.Errorf("stream: %v, %v", m, err)
	}
	r.skew.Store(int64(TokenLife - tokenMargin))
	if _, err := client.Ping(ctx, &ctldpb.PingRequest{}); err != nil {
		t.Fatal(err)
	}
	if got := len(minted); got != 4 || minted[0] != ClassRead || minted[1] != ClassJobs || minted[2] != ClassAdmin || minted[3] != ClassRead {
		t.Errorf("minted %v, want read, jobs, admin, and read once more when it has 30 s left", minted)
	}
	if n := r.v.codec.count.Load(); n != 0 {
		t.Errorf("%d digests were left", n)
	}
}

// TestClassBinds: a token is good for its class and those below, whatever the caller's role may.
func TestClassBinds(t *testing.T) {
	r := newRemote(t)
	client := ctldpb.NewControllerClient(r.dial(t))
	calls := []struct {
		class Class
		do    func(context.Context) error
	}{
		{ClassRead, func(ctx context.Context) error { _, err := client.Ping(ctx, &ctldpb.PingRequest{}); return err }},
		{ClassJobs, func(ctx context.Context) error { _, err := client.Submit(ctx, &ctldpb.SubmitRequest{}); return err }},
		{ClassAdmin, func(ctx context.Context) error {
			_, err := client.Reconfigure(ctx, &ctldpb.ReconfigureRequest{})
			return err
		}},
	}
	for _, class := range []Class{ClassRead, ClassJobs, ClassAdmin} {
		ctx := withToken(t.Context(), r.mint(t, "login1", 1002, "zoe", class))
		for _, call := range calls {
			want := codes.OK
			if call.class.rank() > class.rank() {
				want = codes.PermissionDenied
			}
			if err := call.do(ctx); status.Code(err) != want {
				t.Errorf("token of class %s for a method of class %s: %v, want %v", class, call.class, err, want)
			}
		}
	}
	// A class gives nothing: a user stays one.
	ctx := withToken(t.Context(), r.mint(t, "login1", 1000, "ada", ClassAdmin))
	if _, err := client.Reconfigure(ctx, &ctldpb.ReconfigureRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a user with an admin token reconfigures: %v", err)
	}
}

// signed makes a token's bytes by hand, so that it may say anything.
func signed(key ed25519.PrivateKey, cert []byte, change func(*cred.Token)) []byte {
	tok := &cred.Token{Cluster: "blue", Class: "jobs", UID: 1000, GID: 1000, User: "ada", Login: "login1",
		Issued: epoch.UnixMilli(), Expires: epoch.Add(TokenLife).UnixMilli()}
	change(tok)
	b := tok.Marshal()
	return (&cred.Bearer{Token: b, Sig: cred.SignToken(key, b), Cert: cert}).Marshal()
}

func TestTokenRefused(t *testing.T) {
	r := newRemote(t)
	client := ctldpb.NewControllerClient(r.dial(t))
	key, cert := r.pki.open(t, "login1", r.now).Signer()
	nodeKey, nodeCert := r.pki.open(t, "n1", r.now).Signer()
	ctldKey, ctldCert := r.pki.open(t, "c1", r.now).Signer()
	login2Key, login2Cert := r.pki.open(t, "login2", r.now).Signer()
	fake := newPKI(t, "blue", epoch)
	fake.issue(t, RoleLogin, "login1", epoch)
	fakeKey, fakeCert := fake.open(t, "login1", r.now).Signer()
	red := newPKI(t, "red", epoch)
	red.issue(t, RoleLogin, "login1", epoch)
	redKey, redCert := red.open(t, "login1", r.now).Signer()
	same := func(*cred.Token) {}
	by := func(change func(*cred.Token)) []byte { return signed(key, cert, change) }
	good := by(same)
	parsed, err := cred.UnmarshalBearer(good)
	if err != nil {
		t.Fatal(err)
	}
	other := func(change func(*cred.Bearer)) []byte {
		b := *parsed
		change(&b)
		return b.Marshal()
	}
	ms := func(d time.Duration) int64 { return epoch.Add(d).UnixMilli() }
	tests := []struct {
		name, want string
		data       []byte
	}{
		{"another cluster", `for cluster "red"`, by(func(t *cred.Token) { t.Cluster = "red" })},
		{"no cluster", `for cluster ""`, by(func(t *cred.Token) { t.Cluster = "" })},
		{"unknown class", `for class "all"`, by(func(t *cred.Token) { t.Class = "all" })},
		{"no class", `for class ""`, by(func(t *cred.Token) { t.Class = "" })},
		{"the class of no token", `for class "-"`, by(func(t *cred.Token) { t.Class = "-" })},
		{"expired", "ended 30s ago", by(func(t *cred.Token) { t.Issued, t.Expires = ms(-time.Minute), ms(-30*time.Second) })},
		{"not yet valid", "31s in the future", by(func(t *cred.Token) { t.Issued, t.Expires = ms(31*time.Second), ms(time.Minute) })},
		{"lives too long", "want at most 5m0s", by(func(t *cred.Token) { t.Expires = ms(TokenLife) + 1 })},
		{"ends before it begins", "want at most 5m0s", by(func(t *cred.Token) { t.Expires = ms(-1) })},
		{"lives for ever, wrapped", "want at most 5m0s", by(func(t *cred.Token) { t.Issued, t.Expires = -1<<63, 1<<63-1 })},
		{"root", "for uid 0", by(func(t *cred.Token) { t.UID, t.User = 0, "root" })},
		{"nobody at all", "for uid 4294967295", by(func(t *cred.Token) { t.UID = noID })},
		{"a node vouches", "certificate is of node n1", signed(nodeKey, nodeCert, func(t *cred.Token) { t.Login = "n1" })},
		{"a controller vouches", "certificate is of ctld c1", signed(ctldKey, ctldCert, func(t *cred.Token) { t.Login = "c1" })},
		{"a host not listed", `login host "login2" is not in LoginNodes`, signed(login2Key, login2Cert, func(t *cred.Token) { t.Login = "login2" })},
		{"a host in another's name", "certificate is of login login2", signed(login2Key, login2Cert, same)},
		{"another CA", "its certificate: ", signed(fakeKey, fakeCert, same)},
		{"another cluster's login host", "its certificate: ", signed(redKey, redCert, same)},
		{"another key", "signature does not match", signed(nodeKey, cert, same)},
		{"another's name for the uid", "uid 1000 is mallory at login host login1 and ada here", by(func(t *cred.Token) { t.User = "mallory" })},
		{"no signature", "signature does not match", other(func(b *cred.Bearer) { b.Sig = nil })},
		{"signature of zeros", "signature does not match", other(func(b *cred.Bearer) { b.Sig = make([]byte, 64) })},
		{"no certificate", "its certificate", other(func(b *cred.Bearer) { b.Cert = nil })},
		{"the CA as certificate", "carries no tensorgrid identity", other(func(b *cred.Bearer) { b.Cert = r.pki.ca.Cert.Raw })},
		{"bytes appended", "left over", append(append([]byte{}, good...), 0)},
		{"bytes appended inside", "left over", other(func(b *cred.Bearer) { b.Token = append(append([]byte{}, b.Token...), 0) })},
		{"cut short", "ends early", good[:len(good)-1]},
		{"too large", "bytes, the limit", make([]byte, cred.MaxBearer+1)},
		{"no bytes", "not version", []byte{}},
		{"a launch's signature", "signature does not match", other(func(b *cred.Bearer) { b.Sig = cred.Sign(key, b.Token) })},
	}
	for _, tt := range tests {
		_, err := client.Submit(withToken(t.Context(), tt.data), &ctldpb.SubmitRequest{})
		if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, n := r.last(); n != 0 {
		t.Fatalf("%d refused calls reached the handler", n)
	}
	if _, err := client.Submit(withToken(t.Context(), good), &ctldpb.SubmitRequest{}); err != nil {
		t.Fatalf("the good one: %v", err)
	}
}

// TestTokenEveryByte: no byte of a token can be changed.
func TestTokenEveryByte(t *testing.T) {
	r := newRemote(t)
	good := r.mint(t, "login1", 1000, "ada", ClassJobs)
	if _, err := r.auth.tokenCaller(r.v, good); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 1
		if c, err := r.auth.tokenCaller(r.v, bad); err == nil {
			t.Errorf("byte %d of %d can be changed: %+v", i, len(good), c)
		}
		if _, err := r.auth.tokenCaller(r.v, good[:i]); err == nil {
			t.Errorf("the first %d bytes are a token", i)
		}
	}
}

// FuzzToken: of all bytes only a token's own are taken.
func FuzzToken(f *testing.F) {
	p := pkiDir{f.TempDir(), nil}
	var err error
	if p.ca, err = NewCA("blue", rand.Reader, epoch); err != nil {
		f.Fatal(err)
	}
	if err := p.ca.Write(p.dir); err != nil {
		f.Fatal(err)
	}
	var ids []*Identity
	for name, role := range map[string]Role{"c1": RoleCtld, "login1": RoleLogin} {
		pair, err := p.ca.Issue(role, name, 0, rand.Reader, epoch)
		if err == nil {
			err = pair.Write(p.dir, name)
		}
		if err != nil {
			f.Fatal(err)
		}
	}
	for _, name := range []string{"c1", "login1"} {
		id, err := OpenIdentity(p.dir, name, func() time.Time { return epoch })
		if err != nil {
			f.Fatal(err)
		}
		ids = append(ids, id)
	}
	v := NewVerifier(ids[0], func() time.Time { return epoch })
	good, _, err := MintToken(ids[1], 1000, 1000, "ada", ClassJobs, "blue", epoch, rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		if tok, err := v.token(data); err == nil && string(data) != string(good) {
			t.Fatalf("other bytes are a token: %+v", tok)
		}
	})
}

// TestTokenKept: what was good once is looked at again where it can change.
func TestTokenKept(t *testing.T) {
	r := newRemote(t)
	data := r.mint(t, "login1", 1001, "bob", ClassAdmin)
	c, err := r.auth.tokenCaller(r.v, data)
	if err != nil || c.Role != RoleOperator {
		t.Fatalf("%+v, %v", c, err)
	}
	p := *r.auth.Policy()
	p.Operators = nil
	r.auth.SetPolicy(&p)
	if c, err := r.auth.tokenCaller(r.v, data); err != nil || c.Role != RoleUser {
		t.Errorf("an operator that is none any more: %+v, %v", c, err)
	}
	p.LoginNodes = nil
	r.auth.SetPolicy(&p)
	if _, err := r.auth.tokenCaller(r.v, data); err == nil {
		t.Error("a login host that was taken off the list still vouches")
	}
	p.LoginNodes = []string{"login1"}
	r.auth.SetPolicy(&p)
	r.skew.Store(int64(TokenLife + TokenSkew - time.Millisecond))
	if _, err := r.auth.tokenCaller(r.v, data); err != nil {
		t.Errorf("within the skew: %v", err)
	}
	r.skew.Store(int64(TokenLife + TokenSkew))
	if _, err := r.auth.tokenCaller(r.v, data); err == nil {
		t.Error("a token that was good once has no end")
	}
	// Another CA in the file: what the old one signed is worth nothing.
	r.skew.Store(0)
	data = r.mint(t, "login1", 1001, "bob", ClassAdmin)
	if _, err := r.auth.tokenCaller(r.v, data); err != nil {
		t.Fatal(err)
	}
	next := newPKI(t, "blue", epoch)
	next.issue(t, RoleCtld, "c1", epoch)
	for _, name := range []string{CAFile, "c1.key", "c1.pem"} {
		text, err := os.ReadFile(filepath.Join(next.dir, name))
		if err == nil {
			err = writeFile(filepath.Join(r.pki.dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.skew.Store(int64(reloadEvery))
	if _, err := r.auth.tokenCaller(r.v, data); err == nil {
		t.Error("a token of the old CA is good under the new one")
	}
}

func TestMintRefuses(t *testing.T) {
	r := newRemote(t)
	login, node := r.pki.open(t, "login1", r.now), r.pki.open(t, "n1", r.now)
	for _, tt := range []struct {
		name, want string
		id         *Identity
		uid        uint32
		user       string
		class      Class
		cluster    string
		now        time.Time
	}{
		{"root", "no token for uid 0", login, 0, "root", ClassRead, "blue", epoch},
		{"nobody", "no token for uid 4294967295", login, noID, "x", ClassRead, "blue", epoch},
		{"a node", "only role login", node, 1000, "ada", ClassRead, "blue", epoch},
		{"another cluster", "not of", login, 1000, "ada", ClassRead, "red", epoch},
		{"no class", "want read, jobs or admin", login, 1000, "ada", "", "blue", epoch},
		{"a class of no token", "want read, jobs or admin", login, 1000, "ada", classNone, "blue", epoch},
		{"an expired certificate", "ended at", login, 1000, "ada", ClassRead, "blue", epoch.Add(CertLife)},
		{"a long name", "the limit is", login, 1000, strings.Repeat("a", cred.MaxUserName+1), ClassRead, "blue", epoch},
	} {
		if _, _, err := MintToken(tt.id, tt.uid, 1, tt.user, tt.class, tt.cluster, tt.now, rand.Reader); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	near := epoch.Add(CertLife - time.Minute)
	if _, ends, err := MintToken(login, 1000, 1000, "ada", ClassRead, "blue", near, rand.Reader); err != nil || !ends.Equal(epoch.Add(CertLife)) {
		t.Errorf("a token outlives the certificate: %v, %v", ends, err)
	}
}

// TestWithoutCredentials: on the port for users Join alone is open, and two credentials are none.
func TestWithoutCredentials(t *testing.T) {
	r := newRemote(t)
	conn := r.dial(t)
	client, enroll := ctldpb.NewControllerClient(conn), nodepb.NewEnrollClient(conn)
	good := r.mint(t, "login1", 1000, "ada", ClassAdmin)
	for name, ctx := range map[string]context.Context{
		"none":               t.Context(),
		"two tokens":         withToken(withToken(t.Context(), good), good),
		"token and wallet":   metadata.AppendToOutgoingContext(withToken(t.Context(), good), walletKey, "x"),
		"uid in the headers": metadata.AppendToOutgoingContext(t.Context(), "uid", "0", "grid-uid", "0", "authorization", "root"),
	} {
		if _, err := client.Ping(ctx, &ctldpb.PingRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
		s, err := client.JobOutput(ctx, &ctldpb.JobOutputRequest{JobId: "1"})
		if err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s, stream: %v", name, err)
		}
		if _, err := enroll.Renew(ctx, &nodepb.RenewRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s, renew: %v", name, err)
		}
		if _, n := r.last(); n != 0 {
			t.Errorf("%s: a handler was reached", name)
		}
		if _, err := enroll.Join(ctx, &nodepb.JoinRequest{}); err != nil {
			t.Errorf("%s, join: %v", name, err)
		}
		if c, n := r.last(); n != 1 || c.Role != RoleNobody || c.UID != noID {
			t.Errorf("%s: who joins is %+v", name, c)
		}
	}
	if _, err := enroll.Renew(withToken(t.Context(), good), &nodepb.RenewRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a user renews a daemon's certificate: %v", err)
	}
}

func TestForwarded(t *testing.T) {
	r := newRemote(t)
	p := *r.auth.Policy()
	const mapped, stranger = "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf", "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"
	p.Wallets = map[string]string{mapped: "bob", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed": "root", "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359": "gone"}
	r.auth.SetPolicy(&p)
	for _, tt := range []struct {
		name               string
		uid                uint32
		via, login, wallet string
		class              Class
		want               Caller
		refused            bool
	}{
		{name: "local", uid: 1000, via: ViaLocal, want: Caller{Role: RoleUser, UID: 1000, GID: 5, User: "ada", Via: ViaLocal}},
		{name: "an old controller's", uid: 1001, want: Caller{Role: RoleOperator, UID: 1001, GID: 5, User: "bob", Via: ViaLocal}},
		{name: "local root", uid: 0, via: ViaLocal, want: Caller{Role: RoleAdmin, UID: 0, GID: 5, User: "root", Via: ViaLocal}},
		{name: "token", uid: 1001, via: ViaToken, login: "login1", class: ClassJobs, want: Caller{Role: RoleOperator, UID: 1001, GID: 5, User: "bob", Via: ViaToken, Login: "login1", Class: ClassJobs}},
		{name: "token of root", uid: 0, via: ViaToken, login: "login1", class: ClassJobs, refused: true},
		{name: "token of a host not listed", uid: 1001, via: ViaToken, login: "login2", class: ClassJobs, refused: true},
		{name: "token without a host", uid: 1001, via: ViaToken, class: ClassJobs, refused: true},
		{name: "token without a class", uid: 1001, via: ViaToken, login: "login1", refused: true},
		{name: "token with a wallet", uid: 1001, via: ViaToken, login: "login1", class: ClassJobs, wallet: mapped, refused: true},
		{name: "wallet of a user, another's uid", uid: 1002, via: ViaWallet, wallet: mapped, want: Caller{Role: RoleOperator, UID: 1001, GID: 1001, User: "bob", Via: ViaWallet, Wallet: mapped}},
		{name: "a stranger's wallet, root's uid", uid: 0, via: ViaWallet, wallet: stranger, want: Caller{Role: RoleWallet, UID: noID, GID: noID, Via: ViaWallet, Wallet: stranger}},
		{name: "wallet in lower case", via: ViaWallet, wallet: strings.ToLower(mapped), want: Caller{Role: RoleOperator, UID: 1001, GID: 1001, User: "bob", Via: ViaWallet, Wallet: mapped}},
		{name: "wallet of root", via: ViaWallet, wallet: "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", refused: true},
		{name: "wallet of a user that is gone", via: ViaWallet, wallet: "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359", refused: true},
		{name: "no address", via: ViaWallet, refused: true},
		{name: "wallet with a class", via: ViaWallet, wallet: mapped, class: ClassRead, refused: true},
		{name: "local with a class", uid: 1000, via: ViaLocal, class: ClassAdmin, refused: true},
		{name: "local with a login host", uid: 1000, login: "login1", refused: true},
		{name: "another way", uid: 1000, via: "munge", refused: true},
	} {
		c, err := r.auth.Forwarded(tt.uid, 5, tt.via, tt.login, tt.wallet, tt.class)
		if (err != nil) != tt.refused || !tt.refused && c != tt.want || tt.refused && c.Role != "" {
			t.Errorf("%s: %+v, %v; want %+v", tt.name, c, err, tt.want)
		}
	}
	c, err := r.auth.Forwarded(1001, 5, ViaToken, "login1", "", ClassRead)
	if err != nil || status.Code(r.auth.Authorise(context.Background(), ControllerService+"Reconfigure", c)) != codes.PermissionDenied {
		t.Errorf("a forwarded token has lost its class: %v", err)
	}
}
