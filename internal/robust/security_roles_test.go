package robust

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// door is a port or socket and the services that are behind it.
type door struct {
	name     string
	services []string
}

// caller is somebody at a door.
type caller struct {
	door   door
	who    string
	role   string // of the table; "" = may nothing here
	class  authn.Class
	conn   *grpc.ClientConn
	header []string
}

const (
	controllerService = "tensorgrid.ctld.Controller"
	nodeService       = "tensorgrid.node.Node"
	enrollService     = "tensorgrid.node.Enroll"
	peerService       = "tensorgrid.peer.Peer"
	loginService      = "tensorgrid.step.Login"
)

// callers lists everybody at every door of the cluster.
func (g *guarded) callers() (list []caller) {
	add := func(d door, who, role string, conn *grpc.ClientConn) {
		list = append(list, caller{door: d, who: who, role: role, conn: conn})
	}
	people := []struct {
		name, role string
		uid        uint32
	}{{"user", "user", userUID}, {"other user", "user", otherUID}, {"operator", "operator", operatorUID}, {"admin", "admin", adminUID}}
	follower := g.follower()
	certs := []struct{ name, role string }{{"n1", "node"}, {"n2", "node"}, {loginHost, "login"}, {"c1", "ctld"}}
	for _, ctl := range []string{g.leader(), follower} {
		users := door{"socket of " + ctl, []string{controllerService}}
		for _, p := range people {
			add(users, p.name, p.role, g.socketAs(p.uid, g.path("run", ctl+".sock")))
		}
		add(users, "root", "admin", g.socketAs(0, g.path("run", ctl+".sock")))
		add(users, "the agent's account", "user", g.socketAs(agentUID, g.path("run", ctl+".sock")))

		port := door{"Port of " + ctl, []string{nodeService, enrollService, peerService}}
		raft := door{"RaftPort of " + ctl, nil}
		for _, c := range certs {
			add(port, c.name+"'s certificate", c.role, g.withTLS(ctl, ctldPort, g.identity(c.name).Client()))
			add(raft, c.name+"'s certificate", "", g.withTLS(ctl, raftPort, g.identity(c.name).Client()))
		}
		for _, d := range []struct {
			door
			port int
		}{{port, ctldPort}, {raft, raftPort}, {door{"UserPort of " + ctl, nil}, userPort}} {
			add(d.door, "plain TCP", "", g.dial(fmt.Sprintf("%s:%d", g.address(ctl), d.port), grpc.WithTransportCredentials(insecure.NewCredentials())))
			if d.port != userPort {
				add(d.door, "TLS with nothing", "", g.withTLS(ctl, d.port, noCert()))
			}
		}
		list = append(list, g.remoteCallers(ctl)...)
	}
	for _, n := range []string{"n1", "n2"} {
		for _, p := range []struct {
			name string
			uid  uint32
		}{{"user", userUID}, {"root", 0}, {"agent", agentUID}, {"shepherd", stepUID}} {
			add(door{n + "'s launcher", nil}, p.name, "", g.socketAs(p.uid, g.path("run", n, "launcher.sock")))
			add(door{n + "'s agent", nil}, p.name, "", g.socketAs(p.uid, g.path("run", n, "agent.sock")))
		}
	}
	for _, p := range people {
		add(door{"login socket", []string{loginService}}, p.name, p.role, g.socketAs(p.uid, g.path("run", loginHost, "login.sock")))
	}
	return list
}

// remoteCallers are those on the port for users.
func (g *guarded) remoteCallers(ctl string) (list []caller) {
	d := door{"UserPort of " + ctl, []string{controllerService, enrollService}}
	plain := g.withTLS(ctl, userPort, g.userTLS())
	list = append(list, caller{door: d, who: "TLS with nothing", role: "nobody", conn: plain})
	// This port asks for no certificate: one that is offered counts for nothing.
	list = append(list, caller{door: d, who: "n1's certificate", role: "nobody", conn: g.withTLS(ctl, userPort, g.identity("n1").Client())})
	for _, class := range []authn.Class{authn.ClassRead, authn.ClassJobs, authn.ClassAdmin} {
		for _, p := range []struct {
			role string
			uid  uint32
		}{{"user", userUID}, {"user", otherUID}, {"operator", operatorUID}, {"admin", adminUID}} {
			list = append(list, caller{d, fmt.Sprintf("token of uid %d, class %s", p.uid, class), p.role, class, plain,
				[]string{"grid-token-bin", string(g.token(p.uid, class))}})
		}
	}
	for who, key := range map[string]*authn.WalletKey{"user": g.mapped, "wallet": g.stranger} {
		conn := g.withTLS(ctl, userPort, g.userTLS(), authn.WalletDialOptions(key, g.name, time.Now)...)
		list = append(list, caller{door: d, who: "wallet as " + who, role: who, class: "wallet", conn: conn})
	}
	return list
}

// may tells whether the table lets a caller's call be looked at, at that door.
func (r roleTable) may(c caller, m rpc) bool {
	service, name, _ := strings.Cut(m.full[1:], "/")
	served := false
	for _, s := range c.door.services {
		served = served || s == service
	}
	if !served || c.role == "" {
		return false
	}
	userPort := strings.HasPrefix(c.door.name, "UserPort")
	if service == enrollService {
		// Join is for the port for users and asks for its own token, whoever brings what; Renew is for Port.
		return name == "Join" && userPort || name == "Renew" && !userPort && r.allowed[m.full][c.role]
	}
	if c.class == "wallet" {
		return r.allowed[m.full][c.role] && !m.desc.ClientStreams
	}
	return r.allowed[m.full][c.role] && (c.class == "" || covers(c.class, r.class[m.full]))
}

// TestSecurityRoles: every method of every service, called as everybody, at every port and socket of a real
// cluster; what becomes of it is what the table of internal/authn says.
func TestSecurityRoles(t *testing.T) {
	long(t)
	g := guard(t, layout{controllers: 3, nodes: 2})
	g.up()
	table, methods := readRoles(t), allMethods()
	if len(methods) != len(table.allowed) {
		t.Errorf("%d methods, %d rows in the table", len(methods), len(table.allowed))
	}
	calls, allowed, wrong := 0, 0, 0
	for _, c := range g.callers() {
		for _, m := range methods {
			err := m.call(c.conn, c.header...)
			calls++
			want := table.may(c, m)
			if want {
				allowed++
			}
			if turnedAway(err) == want {
				wrong++
				t.Errorf("%s, %s calls %s: %v, allowed %v", c.door.name, c.who, m.full, err, want)
			}
		}
	}
	figure(t, "security_role_calls", float64(calls), "calls", 1500)
	figure(t, "security_role_calls_allowed", float64(allowed), "calls", 100)
	most(t, "security_role_calls_wrong", float64(wrong), "calls", 0)
}
