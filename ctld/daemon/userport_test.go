package daemon

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/server"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// porch is one controller with a port for users, a login host and the CA.
type porch struct {
	*hall
	ca   *authn.CA
	addr string
	tls  string
}

func newPorch(t *testing.T, more string) *porch {
	t.Helper()
	dir := shortDir(t)
	path, _ := newHall(t, dir, 1, "RaftTimeout=500ms\nLoginNodes=l1\n"+more)
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("ControllerName=c1 "), fmt.Appendf(nil, "ControllerName=c1 UserPort=%d ", ports[0]), 1)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := loadConf(path)
	if err != nil {
		t.Fatal(err)
	}
	p := &porch{hall: &hall{t, dir, cfg}, addr: fmt.Sprintf("127.0.0.1:%d", ports[0]), tls: cfg.TLSDir}
	if p.ca, err = authn.NewCA("hall", rand.Reader, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := p.ca.Write(p.tls); err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]authn.Role{"c1": authn.RoleCtld, "l1": authn.RoleLogin, "n1": authn.RoleNode} {
		p.issue(role, name)
	}
	return p
}

func (p *porch) issue(role authn.Role, name string) {
	p.t.Helper()
	pair, err := p.ca.Issue(role, name, 0, rand.Reader, time.Now())
	if err == nil {
		err = pair.Write(p.tls, name)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// dial connects as a command on another host does.
func (p *porch) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	p.t.Helper()
	cfg, err := authn.UserClientTLS(filepath.Join(p.tls, authn.CAFile), "hall")
	if err != nil {
		p.t.Fatal(err)
	}
	conn, err := grpc.NewClient(p.addr, append(opts, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	return conn
}

// byToken are the options of a user for whom a login host vouches.
func (p *porch) byToken(login string, uid uint32, user string) []grpc.DialOption {
	p.t.Helper()
	id, err := authn.OpenIdentity(p.tls, login, time.Now)
	if err != nil {
		p.t.Fatal(err)
	}
	return authn.TokenDialOptions(func(_ context.Context, class authn.Class) ([]byte, time.Time, error) {
		return authn.MintToken(id, uid, 65534, user, class, "hall", time.Now(), rand.Reader)
	})
}

// TestUserPort: a token of a login host does what its user may do; nobody else gets in, and daemons' services
// are not there.
func TestUserPort(t *testing.T) {
	p := newPorch(t, "")
	p.launch(Options{Config: p.cfg, Name: "c1"})
	p.leader("c1")
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	user := ctldpb.NewControllerClient(p.dial(p.byToken("l1", 65534, "nobody")...))
	resp, err := user.Submit(ctx, &ctldpb.SubmitRequest{Spec: &ctldpb.JobSpec{WorkDir: "/tmp", Script: []byte("#!/bin/sh\n")}})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := user.ListJobs(ctx, &ctldpb.ListJobsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if page, err := stream.Recv(); err != nil || len(page.Jobs) != 1 || page.Jobs[0].Uid != 65534 || page.Jobs[0].JobId != resp.JobId {
		t.Errorf("%v %v", page, err)
	}
	who, err := user.Ping(ctx, &ctldpb.PingRequest{})
	if err != nil || who.Caller.Via != "token" || who.Caller.Login != "l1" || who.Caller.Uid != 65534 {
		t.Errorf("%v %v", who, err)
	}
	_, err = user.UpdateNode(ctx, &ctldpb.UpdateNodeRequest{Names: "n1"})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a user changes a node: %v", err)
	}
	for _, tt := range []struct {
		name string
		opts []grpc.DialOption
		code codes.Code
	}{
		{"no token", nil, codes.Unauthenticated},
		{"root by token", p.byToken("l1", 0, "root"), codes.Unauthenticated},
		{"a node as login host", p.byToken("n1", 65534, "nobody"), codes.Unauthenticated},
		{"garbage", []grpc.DialOption{grpc.WithUnaryInterceptor(func(ctx context.Context, m string, req, resp any, cc *grpc.ClientConn, inv grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return inv(metadata.AppendToOutgoingContext(ctx, "grid-token-bin", "garbage"), m, req, resp, cc, o...)
		})}, codes.Unauthenticated},
	} {
		_, err := ctldpb.NewControllerClient(p.dial(tt.opts...)).Ping(ctx, &ctldpb.PingRequest{})
		if c := status.Code(err); c != tt.code && (tt.code != codes.Unauthenticated || c == codes.OK) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.code)
		}
	}
	if _, err := nodepb.NewNodeClient(p.dial()).Session(ctx); err == nil {
		s, _ := nodepb.NewNodeClient(p.dial()).Session(ctx)
		if _, err := s.Recv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("agents' sessions on the port for users: %v", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(p.dir, "state", "c1", "audit.log"))
	if err != nil || !strings.Contains(string(text), `"via":"token","login":"l1"`) || !strings.Contains(string(text), `"outcome":"Unauthenticated"`) {
		t.Errorf("audit log %s %v", text, err)
	}
}

// TestUserPortByWallet: a wallet that stands for a user is that user; another one only looks.
func TestUserPortByWallet(t *testing.T) {
	key := func(digit string) *authn.WalletKey {
		k, err := authn.ParseWalletKey(strings.Repeat(digit, 64))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	known, stranger := key("1"), key("2")
	p := newPorch(t, "Wallets="+known.Address()+"=nobody\n")
	p.launch(Options{Config: p.cfg, Name: "c1"})
	p.leader("c1")
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	user := ctldpb.NewControllerClient(p.dial(authn.WalletDialOptions(known, "hall", time.Now)...))
	job := &ctldpb.SubmitRequest{Spec: &ctldpb.JobSpec{WorkDir: "/tmp", Script: []byte("#!/bin/sh\n")}}
	if _, err := user.Submit(ctx, job); err != nil {
		t.Errorf("the user's wallet: %v", err)
	}
	s, err := user.ListJobs(ctx, &ctldpb.ListJobsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if page, err := s.Recv(); err != nil || len(page.Jobs) != 1 || page.Jobs[0].User != "nobody" {
		t.Errorf("%v %v", page, err)
	}
	other := ctldpb.NewControllerClient(p.dial(authn.WalletDialOptions(stranger, "hall", time.Now)...))
	if who, err := other.Ping(ctx, &ctldpb.PingRequest{}); err != nil || who.Caller.Role != "wallet" || who.Caller.Wallet != stranger.Address() {
		t.Errorf("%v %v", who, err)
	}
	if nodes, err := other.ListNodes(ctx, &ctldpb.ListNodesRequest{}); err != nil || len(nodes.Nodes) != 4 {
		t.Errorf("%v %v", nodes, err)
	}
	if _, err := other.ListPartitions(ctx, &ctldpb.ListPartitionsRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := other.Submit(ctx, job); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a stranger's job: %v", err)
	}
}

// TestUserPortJoinAndRenew: a daemon without a certificate gets one by a token that is used up by it, and
// renews it on the daemons' port.
func TestUserPortJoinAndRenew(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an admin is needed: root")
	}
	p := newPorch(t, "CertLife=3600\n")
	p.launch(Options{Config: p.cfg, Name: "c1"})
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var made *ctldpb.CreateJoinTokenResponse
	p.until("a token", func(ctx context.Context) (err error) { // level 2 comes soon after the start
		made, err = p.client("c1").CreateJoinToken(ctx, &ctldpb.CreateJoinTokenRequest{Names: "n[2-3]"})
		return err
	})
	token, err := authn.ParseJoinToken(made.Token)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(credentials.NewTLS(token.ClientTLS(time.Now))))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	enroll := nodepb.NewEnrollClient(conn)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := authn.NewCSR(key, "n2")
	if err != nil {
		t.Fatal(err)
	}
	got, err := enroll.Join(ctx, &nodepb.JoinRequest{Token: made.Token, Name: "n2", Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	pair, _, err := token.Accept(got.Certificate, got.Ca, authn.RoleNode, "n2", key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(p.tls, "n2"); err != nil {
		t.Fatal(err)
	}
	if _, err := enroll.Join(ctx, &nodepb.JoinRequest{Token: made.Token, Name: "n2", Csr: csr}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the same name once more: %v", err)
	}
	if _, err := enroll.Renew(ctx, &nodepb.RenewRequest{Csr: csr}); status.Code(err) == codes.OK {
		t.Error("a stranger renews")
	}
	id, err := authn.OpenIdentity(p.tls, "n2", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	c := p.cfg.Controllers[0]
	back, err := grpc.NewClient(hostPort(c.Address, c.Port), grpc.WithTransportCredentials(credentials.NewTLS(id.Client())))
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	renewed, err := nodepb.NewEnrollClient(back).Renew(ctx, &nodepb.RenewRequest{Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	again, err := id.AcceptRenewal(renewed.Certificate, key)
	if err != nil || again.Cert.SerialNumber.Cmp(pair.Cert.SerialNumber) == 0 {
		t.Errorf("%v", err)
	}
	text, err := os.ReadFile(filepath.Join(p.dir, "state", "c1", "audit.log"))
	if err != nil || strings.Contains(string(text), made.Token) || strings.Contains(string(text), strings.Split(made.Token, ".")[2]) {
		t.Errorf("the audit log holds a secret, or: %v", err)
	}
}

// TestUserPortLimits: messages and headers at their limit and one over it.
func TestUserPortLimits(t *testing.T) {
	p := newPorch(t, "")
	p.launch(Options{Config: p.cfg, Name: "c1"})
	p.leader("c1")
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	user := ctldpb.NewControllerClient(p.dial(p.byToken("l1", 65534, "nobody")...))
	// The whole message is the field's tag, its length and its bytes.
	over := func(n int) error {
		_, err := user.PutBlob(ctx, &ctldpb.PutBlobRequest{Data: make([]byte, n)}, grpc.MaxCallSendMsgSize(2*server.MaxMessage))
		return err
	}
	if err := over(server.MaxMessage - 5); status.Code(err) == codes.ResourceExhausted || status.Code(err) == codes.OK {
		t.Errorf("a message of the largest size: %v", err) // refused by MaxBlob, so it arrived
	}
	if err := over(server.MaxMessage - 4); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one byte more: %v", err)
	}
	if err := over(server.MaxBlob); err != nil {
		t.Errorf("the largest blob: %v", err)
	}
	// Headers as a client that does not keep to what the server has told it.
	if got := p.rawCall(3 * remoteHeaders / 4); got != "answered" {
		t.Errorf("a header under the limit: %s", got)
	}
	if got := p.rawCall(remoteHeaders + 1); got == "answered" {
		t.Errorf("a header over the limit: %s", got)
	}
	_, err := user.Ping(metadata.AppendToOutgoingContext(ctx, "x-long", strings.Repeat("x", remoteHeaders)), &ctldpb.PingRequest{})
	if err == nil {
		t.Error("a header over the limit by gRPC's own client")
	}
}

// TestUserPortTakesABurst: many calls at once over one connection are no attack.
func TestUserPortTakesABurst(t *testing.T) {
	p := newPorch(t, "")
	p.launch(Options{Config: p.cfg, Name: "c1"})
	p.leader("c1")
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	user := ctldpb.NewControllerClient(p.dial(p.byToken("l1", 65534, "nobody")...))
	var wg sync.WaitGroup
	for range 400 {
		wg.Go(func() {
			if _, err := user.ListPartitions(ctx, &ctldpb.ListPartitionsRequest{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// rawCall makes a call with a header of that many bytes, and tells what came of it.
func (p *porch) rawCall(size int) string {
	p.t.Helper()
	conn, err := tls.Dial("tcp", p.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(conn, http2.ClientPreface)
	fr := http2.NewFramer(conn, conn)
	fr.WriteSettings()
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", authn.ControllerService + "Ping"}, {":authority", "c1"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"x-long", strings.Repeat("x", size)}} {
		enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	block := head.Bytes()
	const frame = 16000
	fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:min(frame, len(block))], EndHeaders: len(block) <= frame})
	for len(block) > frame {
		block = block[frame:]
		fr.WriteContinuation(1, len(block) <= frame, block[:min(frame, len(block))])
	}
	fr.WriteData(1, true, make([]byte, 5))
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			return "answered"
		case *http2.RSTStreamFrame:
			return "reset: " + f.ErrCode.String()
		case *http2.GoAwayFrame:
			return "go away: " + f.ErrCode.String()
		}
	}
}

// TestGate: what strangers hold is bounded, for one address and in all, and is given back.
func TestGate(t *testing.T) {
	g := newGate(bounds{conns: 3, connsOf: 2, calls: 4, callsOf: 3, slow: 2, slowOf: 1, patience: 10 * time.Millisecond, within: 100 * time.Millisecond})
	from := func(text string) context.Context {
		return peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(text), Port: 7}})
	}
	a, b, c := originOf(&net.TCPAddr{IP: net.ParseIP("10.0.0.1")}), originOf(&net.TCPAddr{IP: net.ParseIP("10.0.0.2")}), originOf(&net.UnixAddr{})
	first, second := g.conns.take(a), g.conns.take(a)
	if first == nil || second == nil || g.conns.take(a) != nil {
		t.Error("two of one address, not three")
	}
	if g.conns.take(b) == nil || g.conns.take(c) != nil {
		t.Error("three in all, not four")
	}
	first()
	first()
	if g.conns.all != 2 || g.conns.of[a] != 1 || g.conns.take(c) == nil {
		t.Errorf("a place that was given back twice: %d, %v", g.conns.all, g.conns.of)
	}
	if originOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::1")}) != originOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::ffff:1")}) ||
		originOf(&net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.1")}) != a {
		t.Error("what counts as one address")
	}
	enter := func() (context.Context, context.CancelFunc, error) {
		call, cancel := context.WithCancel(from("10.0.0.1"))
		ctx, err := g.enter(call, &tap.Info{})
		return ctx, cancel, err
	}
	one, endOne, err1 := enter()
	here(one)
	two, endTwo, err2 := enter()
	three, endThree, err3 := enter()
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	if _, _, err := enter(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a fourth call of one address: %v", err)
	}
	// Of the two that do not come, one gets the place of a slow one; the other is ended soon, that one later.
	for _, ctx := range []context.Context{two, three} {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
			t.Error("a request that does not arrive has a place for ever")
		}
	}
	if one.Err() != nil {
		t.Error("a call whose request has arrived was ended")
	}
	endOne()
	endTwo()
	endThree()
	for end := time.Now().Add(10 * time.Second); held(g.slow) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d slow requests are counted", held(g.slow))
		}
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if held(g.calls) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d calls are counted", held(g.calls))
		}
	}
}

func held(t *tally) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all
}

// TestSlowStrangers: a connection that says nothing, and a request that never comes whole, are ended; others are
// served meanwhile.
func TestSlowStrangers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := remoteBounds()
	b.patience, b.within, b.connsOf = 50*time.Millisecond, 200*time.Millisecond, 3
	g := newGate(b)
	s := grpc.NewServer(grpc.Creds(insecure.NewCredentials()), grpc.InTapHandle(g.enter), grpc.ConnectionTimeout(200*time.Millisecond),
		grpc.ChainUnaryInterceptor(arrivedUnary))
	ctldpb.RegisterControllerServer(s, ctldpb.UnimplementedControllerServer{})
	go s.Serve(gateListener{l, g})
	defer s.Stop()
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	slow, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	io.WriteString(slow, http2.ClientPreface)
	fr := http2.NewFramer(slow, slow)
	fr.WriteSettings()
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", authn.ControllerService + "Ping"}, {":authority", "c1"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})
	fr.WriteData(1, false, []byte{0, 0, 0, 1, 0, 0}) // the rest never comes
	slow.SetDeadline(time.Now().Add(20 * time.Second))
	ended := ""
	for ended == "" {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatalf("the slow request: %v", err)
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			ended = "answered"
		case *http2.RSTStreamFrame:
			ended = f.ErrCode.String()
		}
	}
	silent.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, silent); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("the silent connection is open: %v", err)
	}
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := ctldpb.NewControllerClient(conn).Ping(context.Background(), &ctldpb.PingRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("another client: %v", err)
	}
	// The place over the limit of one address is closed at once.
	var open []net.Conn
	for range 6 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	last := open[len(open)-1]
	last.SetDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := last.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a connection over the limit: %v", err)
	}
}
