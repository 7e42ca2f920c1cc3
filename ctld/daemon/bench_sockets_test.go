package daemon

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/leader"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// socketNodes is how many agents come by sockets.
const socketNodes = 50

// socketDoor is where agents come in by mutual TLS, as in the product; launches are signed.
type socketDoor struct {
	dir  string
	ca   *authn.CA
	id   *authn.Identity // the controller's
	addr string
}

func newSocketDoor(tb testing.TB) *socketDoor {
	d := &socketDoor{dir: tb.TempDir()}
	var err error
	if d.ca, err = authn.NewCA("bench", rand.Reader, time.Now()); err != nil {
		tb.Fatal(err)
	}
	if err := d.ca.WriteCert(d.dir); err != nil {
		tb.Fatal(err)
	}
	d.id = d.identity(tb, authn.RoleCtld, "c1")
	return d
}

// identity issues a certificate.
func (d *socketDoor) identity(tb testing.TB, role authn.Role, name string) *authn.Identity {
	pair, err := d.ca.Issue(role, name, 0, rand.Reader, time.Now())
	if err == nil {
		err = pair.Write(d.dir, name)
	}
	if err != nil {
		tb.Fatal(err)
	}
	id, err := authn.OpenIdentity(d.dir, name, time.Now)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

func (d *socketDoor) signer() (ed25519.PrivateKey, []byte) {
	if d == nil {
		return nil, nil
	}
	return d.id.Signer()
}

// serve listens for agents.
func (d *socketDoor) serve(c *simCluster, l *leader.Leader) {
	if d == nil {
		return
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.Fatal(err)
	}
	d.addr = listener.Addr().String()
	auth := authn.NewAuthenticator(authn.NewAccounts(filepath.Join(d.dir, "passwd"), filepath.Join(d.dir, "group"), time.Now), nil)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(d.id.Server(authn.RoleNode))), grpc.ChainStreamInterceptor(auth.Stream()))
	nodepb.RegisterNodeServer(g, l)
	go g.Serve(listener)
	c.Cleanup(g.Stop)
}

// session gives what carries an agent's session over a socket until it ends.
func (d *socketDoor) session(c *simCluster, a *simAgent, name string) func() error {
	id := d.identity(c, authn.RoleNode, name)
	conn, err := grpc.NewClient(d.addr, grpc.WithTransportCredentials(credentials.NewTLS(id.Client(authn.RoleCtld))))
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { conn.Close() })
	return func() error {
		st, err := nodepb.NewNodeClient(conn).Session(c.ctx)
		if err != nil {
			return err
		}
		go func() {
			for {
				m, err := a.Recv()
				if err != nil || st.Send(m) != nil {
					return
				}
			}
		}()
		for {
			m, err := st.Recv()
			if err != nil {
				return err
			}
			if err := a.Send(m); err != nil {
				return err
			}
		}
	}
}

// TestBenchSockets measures the same as TestBenchController with sockets and credentials, on 50 agents. It has no target.
func TestBenchSockets(t *testing.T) {
	if !*benchSched {
		t.Skip("only with -bench-sched (make bench-sched)")
	}
	c := newSimCluster(t, simSetup{nodes: socketNodes, door: newSocketDoor(t)})
	jobs := 1000 * *benchSeconds
	c.submit(jobs, 100)
	fmt.Printf("figure sockets_agents %d agents\nfigure sockets_starts %.0f 1/s\n", socketNodes, c.rate(jobs))
}
