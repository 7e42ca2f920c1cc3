package robust

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	_ "github.com/tensorgrid/tensorgrid/api/nodepb"
	_ "github.com/tensorgrid/tensorgrid/api/peerpb"
	_ "github.com/tensorgrid/tensorgrid/api/steppb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// People of the security tests beside the user. They are accounts of any Debian: who they are matters to
// the controllers only.
const (
	otherUID    = 5 // games
	operatorUID = 6 // man
	adminUID    = 7 // lp
	userPort    = 6819
	loginHost   = "login1"
)

// guarded is a cluster with a port for users, a login host, and wallets.
type guarded struct {
	*cluster
	mapped, stranger *authn.WalletKey // stands for games; stands for nobody
	secrets          map[string]string
}

// account names a uid of this host.
func account(t testing.TB, uid uint32) string {
	t.Helper()
	text, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == fmt.Sprint(uid) {
			return f[0]
		}
	}
	t.Skipf("uid %d has no name on this host", uid)
	return ""
}

// guard prepares a cluster with all doors that there are; run starts it.
func guard(t testing.TB, l layout) *guarded {
	t.Helper()
	g := &guarded{secrets: map[string]string{}}
	keys := make([]*authn.WalletKey, 2)
	for i, name := range []string{"wallet of games", "wallet of nobody"} {
		raw := make([]byte, 32)
		rand.Read(raw)
		text := hex.EncodeToString(raw)
		var err error
		if keys[i], err = authn.ParseWalletKey(text); err != nil {
			t.Fatal(err)
		}
		g.secrets[name] = text
	}
	g.mapped, g.stranger = keys[0], keys[1]
	l.set = append(l.set, "Operators="+account(t, operatorUID), "Admins="+account(t, adminUID), "LoginNodes="+loginHost,
		"Wallets="+g.mapped.Address()+"="+account(t, otherUID))
	g.cluster = prepare(t, l)
	c := g.cluster
	c.ok(c.issue(authn.RoleLogin, loginHost, agentUID))
	c.set = append(c.set, "LoginSocket="+c.path("run", loginHost, "login.sock"))
	c.ok(errors.Join(os.Mkdir(c.path("run", loginHost), 0o755), os.Chown(c.path("run", loginHost), agentUID, agentUID),
		os.MkdirAll(c.path("spool", loginHost, "login"), 0o711), os.Chown(c.path("spool", loginHost, "login"), agentUID, agentUID),
		os.Chmod(c.path("spool", loginHost, "login"), 0o700)))
	for _, n := range append(slices.Clone(c.names), "user") {
		g.openPorts(n)
	}
	for i := range c.nodes {
		g.openPorts(node(i))
	}
	g.openPorts(loginHost)
	c.proc[loginHost] = c.process(loginHost, agentUID, "gnoded", "--login", "--conf", c.path("etc", loginHost+".conf"), "--node", loginHost)
	return g
}

// openPorts writes a process's grid.conf again, with the ports for users in it.
func (g *guarded) openPorts(who string) {
	g.t.Helper()
	self := who
	if who == "user" || who == loginHost {
		self = ""
	}
	text := strings.ReplaceAll(g.confText(self), fmt.Sprintf(" RaftPort=%d ", raftPort), fmt.Sprintf(" RaftPort=%d UserPort=%d ", raftPort, userPort))
	g.ok(os.WriteFile(g.path("etc", who+".conf"), []byte(text), 0o644))
}

// up starts all and waits until the nodes are there.
func (g *guarded) up() {
	g.t.Helper()
	for i := range g.controllers {
		g.run(ctl(i))
	}
	for i := range g.nodes {
		g.run(launcher(node(i)))
		g.run(node(i))
	}
	g.run(loginHost)
	g.waitReady(60 * time.Second)
	within(g.t, 20*time.Second, "the login host's socket", func() error {
		_, err := os.Stat(g.path("run", loginHost, "login.sock"))
		return err
	})
}

// identity is a certificate of a daemon's role and name that the tests have for themselves.
func (g *guarded) identity(name string) *authn.Identity {
	g.t.Helper()
	role := authn.RoleNode
	switch {
	case name == loginHost:
		role = authn.RoleLogin
	case slices.Contains(g.names, name):
		role = authn.RoleCtld
	}
	dir := g.path("ca", "tests")
	g.ok(os.MkdirAll(dir, 0o700))
	pair, err := g.ca.Issue(role, name, time.Hour, rand.Reader, time.Now())
	g.ok(err)
	g.ok(errors.Join(g.ca.WriteCert(dir), pair.Write(dir, name)))
	id, err := authn.OpenIdentity(dir, name, time.Now)
	g.ok(err)
	return id
}

// dial makes a connection that is gone when the test ends.
func (g *guarded) dial(target string, opts ...grpc.DialOption) *grpc.ClientConn {
	g.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+target, append([]grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20))}, opts...)...)
	g.ok(err)
	g.t.Cleanup(func() { conn.Close() })
	return conn
}

// socketAs connects to a unix socket as a uid, with its groups.
func (g *guarded) socketAs(uid uint32, path string) *grpc.ClientConn {
	return g.dial("local", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connectWith(ctx, uid, path) }))
}

// connectWith is connectAs with the gid of the account too; shepherds hold the agent's.
func connectWith(ctx context.Context, uid uint32, path string) (net.Conn, error) {
	gid := uid
	if uid == stepUID {
		gid = agentUID
	}
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its ids with it
		none := ^uintptr(0)
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESGID, none, uintptr(gid), none); e != 0 {
			done <- result{nil, e}
			return
		}
		conn, err := connectAs(ctx, uid, path)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// withTLS connects to a port of a controller's.
func (g *guarded) withTLS(ctl string, port int, cfg *tls.Config, opts ...grpc.DialOption) *grpc.ClientConn {
	return g.dial(fmt.Sprintf("%s:%d", g.address(ctl), port), append(opts, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))...)
}

// userTLS is what commands on other hosts use.
func (g *guarded) userTLS() *tls.Config {
	g.t.Helper()
	cfg, err := authn.UserClientTLS(g.path("tls", authn.CAFile), g.name)
	g.ok(err)
	return cfg
}

// noCert trusts anybody and shows nothing.
func noCert() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
}

// token mints one as the login host does.
func (g *guarded) token(uid uint32, class authn.Class) []byte {
	g.t.Helper()
	data, _, err := authn.MintToken(g.identity(loginHost), uid, uid, account(g.t, uid), class, g.name, time.Now(), rand.Reader)
	g.ok(err)
	return data
}

// rpc is one method of api.
type rpc struct {
	full string
	desc grpc.StreamDesc
}

// allMethods lists every method of every service of api.
func allMethods() (list []rpc) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package()), "tensorgrid.") {
			return true
		}
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				list = append(list, rpc{fmt.Sprintf("/%s/%s", s.FullName(), m.Name()),
					grpc.StreamDesc{StreamName: string(m.Name()), ClientStreams: m.IsStreamingClient(), ServerStreams: m.IsStreamingServer()}})
			}
		}
		return true
	})
	slices.SortFunc(list, func(a, b rpc) int { return strings.Compare(a.full, b.full) })
	return list
}

// call calls a method with an empty request and gives what became of it.
func (m rpc) call(conn *grpc.ClientConn, header ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, header...)
	if !m.desc.ClientStreams && !m.desc.ServerStreams {
		return conn.Invoke(ctx, m.full, new(emptypb.Empty), new(emptypb.Empty))
	}
	s, err := conn.NewStream(ctx, &m.desc, m.full)
	if err != nil {
		return err
	}
	if err := s.SendMsg(new(emptypb.Empty)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	s.CloseSend()
	for {
		if err := s.RecvMsg(new(emptypb.Empty)); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// turnedAway tells whether nobody has looked at the request: who calls may not, or is not known, or the method
// is not served there, or there is no connection at all.
func turnedAway(err error) bool {
	text := status.Convert(err).Message()
	switch {
	case strings.Contains(text, "a wallet signs one request"):
		return true // the client does not even ask
	case strings.Contains(text, "Join token refused"), strings.Contains(text, "only controllers forward calls"), strings.Contains(text, "nobody but itself"):
		return false // handlers, of empty requests
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.Unavailable:
		return true
	}
	return false
}

// roleTable is the golden table of internal/authn.
type roleTable struct {
	allowed map[string]map[string]bool // method, role
	class   map[string]authn.Class
}

func readRoles(t testing.TB) roleTable {
	t.Helper()
	text, err := os.ReadFile("../authn/testdata/roles.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	roles := strings.Fields(lines[0])[1:]
	out := roleTable{map[string]map[string]bool{}, map[string]authn.Class{}}
	for _, l := range lines[1:] {
		f := strings.Fields(l)
		if len(f) != len(roles)+1 {
			t.Fatalf("line %q of the table", l)
		}
		out.allowed[f[0]] = map[string]bool{}
		for i, r := range roles[:len(roles)-1] {
			out.allowed[f[0]][r] = f[i+1] == "yes"
		}
		out.class[f[0]] = authn.Class(f[len(f)-1])
	}
	return out
}

// covers tells whether a token of class c is good for one of class least.
func covers(c, least authn.Class) bool {
	order := []authn.Class{authn.ClassRead, authn.ClassJobs, authn.ClassAdmin}
	l := slices.Index(order, least)
	return l >= 0 && slices.Index(order, c) >= l
}
