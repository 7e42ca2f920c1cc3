package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/gres/discover"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/internal/version"
	"github.com/tensorgrid/tensorgrid/nodeagent/agent"
)

// Names in NodeRunDir and in the spool.
const (
	agentSocket    = "agent.sock"
	launcherSocket = "launcher.sock"
	stateFolder    = "agent"
	loginFolder    = "login"
	tlsFolder      = "tls" // of a daemon that may not write TLSDir
)

// maxSocketPath is what the kernel takes.
const maxSocketPath = 107

// paths is where this node's things are.
type paths struct {
	spool, state, socket, launcher string
}

// serve makes the agent and lets it work. What needs root is done first, then root is given up, and
// only then is a key read or the network opened.
func serve(ctx context.Context, o options, c *conf.Config, log *slog.Logger) error {
	n, err := thisNode(c, o.node)
	if err != nil {
		return err
	}
	p := pathsOf(c, n.Name, o)
	for _, s := range []string{p.socket, p.launcher} {
		if len(s) > maxSocketPath {
			return fmt.Errorf("socket path %s is longer than the kernel's %d bytes: choose a shorter NodeRunDir", s, maxSocketPath)
		}
	}
	to, err := whoToBe(o.allowRoot, c.AgentUser)
	if err != nil {
		return err
	}
	lock, err := claim(p, to)
	if err != nil {
		return err
	}
	defer lock.Close()
	shepherds, err := listen(p.socket, to, false)
	if err != nil {
		return err
	}
	defer shepherds.Close()
	if to != nil {
		if err := to.become(); err != nil {
			return err
		}
	}
	home, id, err := identityOf(c.TLSDir, filepath.Join(p.state, tlsFolder), n.Name, authn.RoleNode)
	if err != nil {
		return err
	}
	cfg, err := agentConfig(c, n, p)
	if err != nil {
		return err
	}
	a, err := agent.New(cfg, deps(p, id.Client(), shepherds, log))
	if err != nil {
		return err
	}
	log.Info("gnoded starts", "node", n.Name, "version", version.Version, "uid", os.Geteuid())
	return alongside(ctx, renewer(home, id, c.Controllers, log).Run, a.Run)
}

// thisNode finds the NodeName line that is meant: by name, or by the host's name.
func thisNode(c *conf.Config, name string) (*conf.Node, error) {
	if name != "" {
		if n := c.Node(name); n != nil {
			return n, nil
		}
		return nil, fmt.Errorf("--node %s: %s has no such NodeName", name, c.Source)
	}
	host, short, err := hostNames()
	if err != nil {
		return nil, err
	}
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Name == short || n.Hostname == short || n.Hostname == host {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%s has no NodeName for host %s; say which with --node", c.Source, short)
}

// hostNames gives the host's name and its part before the first dot.
func hostNames() (host, short string, err error) {
	if host, err = os.Hostname(); err != nil {
		return "", "", err
	}
	short, _, _ = strings.Cut(host, ".")
	return host, short, nil
}

func pathsOf(c *conf.Config, node string, o options) paths {
	run := conf.NodePath(c.NodeRunDir, node)
	p := paths{
		spool: o.spool, launcher: o.launcher, socket: filepath.Join(run, agentSocket),
	}
	if p.spool == "" {
		p.spool = conf.NodePath(c.SpoolDir, node)
	}
	if p.launcher == "" {
		p.launcher = filepath.Join(run, launcherSocket)
	}
	p.state = filepath.Join(p.spool, stateFolder)
	return p
}

// agentConfig says what this node is and whom it serves.
func agentConfig(c *conf.Config, n *conf.Node, p paths) (agent.Config, error) {
	host := discover.Local()
	inv, err := inventory(host, c, n, p.spool)
	if err != nil {
		return agent.Config{}, err
	}
	bootID, err := host.BootID()
	if err != nil {
		return agent.Config{}, err
	}
	bootMS, err := host.BootTime()
	if err != nil {
		return agent.Config{}, err
	}
	cfg := agent.Config{
		Node: n.Name, Cluster: c.ClusterName, Version: version.Version, BootID: fault.BootID(bootID), BootMS: bootMS,
		Inventory: inv, Spool: p.spool, StepUIDs: []uint32{uint32(os.Geteuid())},
	}
	// Without the account there is no launcher that is root: all runs under one uid, ours.
	if uid, ok, err := accountID(c.StepUser); err != nil {
		return agent.Config{}, fmt.Errorf("StepUser: %w", err)
	} else if ok {
		cfg.StepUIDs = append(cfg.StepUIDs, uid)
	}
	for _, k := range c.Controllers {
		cfg.Controllers = append(cfg.Controllers, agent.Controller{
			Name: k.Name, Address: net.JoinHostPort(k.Address, strconv.FormatUint(uint64(k.Port), 10)),
		})
	}
	return cfg, nil
}

// accountID gives the uid of an account by its name or number; not ok: there is no such account.
func accountID(account string) (uid uint32, ok bool, err error) {
	number := account
	if _, err := strconv.ParseUint(account, 10, 32); err != nil {
		u, err := user.Lookup(account)
		if err != nil {
			return 0, false, nil
		}
		number = u.Uid
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err == nil && n == 0 {
		err = fmt.Errorf("%s is root", account)
	}
	return uint32(n), err == nil, err
}

func deps(p paths, tlsConf *tls.Config, shepherds net.Listener, log *slog.Logger) agent.Deps {
	host := discover.Local()
	return agent.Deps{
		Log: log, Now: fault.Now, Boottime: boottime, Jitter: rand.Float64,
		Dial:         func(address string) (agent.Conn, error) { return dial(address, tlsConf) },
		DialLauncher: func(ctx context.Context) (net.Conn, error) { return dialLauncher(ctx, p.launcher) },
		Shepherds:    shepherds,
		PeerUID: func(c net.Conn) (uint32, error) {
			peer, err := authn.PeerOf(c)
			return peer.UID, err
		},
		Sample: func() (load float64, freeMem int64) {
			load, loadErr := host.Load()
			_, freeMem, memErr := host.Memory()
			if err := errors.Join(loadErr, memErr); err != nil {
				log.Warn("sampling the host", "err", err)
			}
			return load, freeMem
		},
		Probe: func() error { return agent.WriteProbe(p.state) },
	}
}

// boottime is CLOCK_BOOTTIME in ms: it goes on while the host sleeps and nobody can set it.
func boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return ts.Nano() / int64(time.Millisecond)
}

func dial(address string, tlsConf *tls.Config) (agent.Conn, error) {
	return grpc.NewClient(address,
		grpc.WithTransportCredentials(credentials.NewTLS(tlsConf)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(agent.MaxMessage)),
		grpc.WithInitialWindowSize(4<<20), grpc.WithInitialConnWindowSize(8<<20),
	)
}

// dialLauncher connects to the launcher, which has to be root's, or ours where all is ours.
func dialLauncher(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	peer, err := authn.PeerOf(conn)
	if err == nil && !slices.Contains([]uint32{0, uint32(os.Geteuid())}, peer.UID) {
		err = fmt.Errorf("%s: uid %d listens there, not root", path, peer.UID)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
