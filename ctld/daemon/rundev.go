package daemon

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// How long a development cluster may take to come up, and its steps to be cleaned up at the end.
const (
	devReadyTimeout = 60 * time.Second
	devCleanTimeout = 3 * time.Second
	devPoll         = 50 * time.Millisecond
)

// runDev is gctld --dev: it lays a cluster out in one folder, minds all its processes, and ends
// them when it ends itself.
func runDev(ctx context.Context, f flags, stdout, stderr *os.File) error {
	d, err := newDevLayout(f.devOptions)
	if err != nil {
		return err
	}
	if d.temporary {
		defer os.RemoveAll(d.dir)
	}
	for _, line := range d.unused {
		fmt.Fprintf(stderr, "gctld: --set %s has no effect: %s is there from an earlier run and is kept; change the line there\n", line, d.path("grid.conf"))
	}
	if err := adopt(); err != nil {
		return err
	}
	log := newLogger(stderr, "info")
	steps := newMinder(log, d.path("log"))
	background := context.WithoutCancel(ctx)
	daemons, stopDaemons := context.WithCancel(background)
	nodes, stopNodes := context.WithCancel(background)
	defer stopDaemons()
	defer stopNodes()
	go steps.reap(nodes)
	var controllers []<-chan struct{}
	for _, c := range d.controllerChildren() {
		controllers = append(controllers, steps.start(daemons, c))
	}
	for _, c := range d.nodeChildren() {
		steps.start(nodes, c)
	}
	early, err := d.comeUp(ctx, steps)
	switch {
	case early != nil:
		err = fmt.Errorf("the cluster did not come up, its logs are in %s: %w", d.path("log"), early)
	case err != nil && ctx.Err() == nil:
		log.Error("the cluster did not come up; see the logs", "folder", d.path("log"), "err", err)
	case err == nil:
		d.tell(stdout)
		if err := announce(f.ready, "gctld ready "+d.dir); err != nil {
			log.Warn("readiness not announced", "err", err)
		}
	}
	if early == nil {
		err = nil
		watch(ctx, steps)
	}
	stopDaemons()
	for _, gone := range controllers {
		<-gone
	}
	d.shutDown(steps, stopNodes, log)
	return err
}

// comeUp waits until the cluster is ready (err says why it is not), or until one of its processes shows
// that it never will be.
func (d *devLayout) comeUp(ctx context.Context, m *minder) (early, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- d.waitReady(ctx) }()
	select {
	case err := <-ready:
		return nil, err
	case early := <-m.failed:
		cancel()
		<-ready
		return early, nil
	}
}

// watch logs the children that keep dying, until ctx ends.
func watch(ctx context.Context, m *minder) {
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-m.failed:
			m.log.Error("a child keeps dying", "err", err)
		}
	}
}

// tell says where the cluster is and how to use it.
func (d *devLayout) tell(w io.Writer) {
	fmt.Fprintf(w, "gctld ready %s\n", d.dir)
	fmt.Fprintf(w, "cluster %s: %s, %s, logs in %s\n", d.cluster, plural(d.controllers, "controller"), plural(d.nodes, "node"), d.path("log"))
	if !d.root {
		fmt.Fprintln(w, "rootless: jobs run under this uid only, without control groups: their memory and processors are not limited")
	}
	fmt.Fprintf(w, "export GRID_CONF=%s\n", d.path("grid.conf"))
}

// controllerChildren are the replicas, each a process of its own so that any can be killed alone.
func (d *devLayout) controllerChildren() []child {
	var out []child
	for i := range d.controllers {
		name := d.controllerName(i)
		out = append(out, child{name: name, first: controllerRestart, ends: true, make: func(ctx context.Context) *exec.Cmd {
			return d.command(ctx, "gctld", account{}, "--conf", d.path("grid.conf"), "--name", name, "--ready", d.path("run", name+".ready"))
		}})
	}
	return out
}

func (d *devLayout) nodeChildren() []child {
	var out []child
	for i := range d.nodes {
		n := d.nodeName(i)
		out = append(out,
			child{name: n + ".launch", make: func(ctx context.Context) *exec.Cmd {
				return d.command(ctx, "gnode-launch", account{}, "-f", d.path(n+".launch.conf"))
			}},
			child{name: n, make: func(ctx context.Context) *exec.Cmd {
				return d.command(ctx, "gnoded", d.agent, "--conf", d.path("grid.conf"), "--node", n)
			}})
	}
	return out
}

// waitReady comes back when every node is ready for jobs. Any controller may say so: one that was removed
// from the cluster runs no more.
func (d *devLayout) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, devReadyTimeout)
	defer cancel()
	var clients []ctldpb.ControllerClient
	for i := range d.controllers {
		conn, err := grpc.NewClient("unix:"+d.path(d.controllerName(i)+".sock"), grpc.WithTransportCredentials(authn.PeerCred()))
		if err != nil {
			return err
		}
		defer conn.Close()
		clients = append(clients, ctldpb.NewControllerClient(conn))
	}
	var last error
	for i := 0; ; i++ {
		call, done := context.WithTimeout(ctx, 2*time.Second)
		nodes, err := clients[i%len(clients)].ListNodes(call, &ctldpb.ListNodesRequest{})
		done()
		if err != nil {
			last = err
		} else if last = notIdle(nodes.Nodes, d.nodes); last == nil {
			return nil
		}
		if !rest(ctx, devPoll) {
			return last
		}
	}
}

func notIdle(nodes []*ctldpb.Node, want int) error {
	if len(nodes) < want {
		return fmt.Errorf("%d of %d nodes are known", len(nodes), want)
	}
	for _, n := range nodes {
		// A folder that is used again may hold drained nodes and jobs that run on.
		if n.State == "UNKNOWN" || n.State == "DOWN" {
			return fmt.Errorf("node %s is %s", n.Name, n.State)
		}
	}
	return nil
}

// shutDown comes when the controllers are gone, which would queue again what ends now and start it on the nodes that are
// still there. It ends the steps first, while their agents are there to note that they were lost, for when the cluster
// comes back, and to remove their groups; then agents and launchers.
func (d *devLayout) shutDown(m *minder, stopNodes context.CancelFunc, log *slog.Logger) {
	m.endSteps()
	for end := time.Now().Add(devCleanTimeout); d.stepsLeft() && time.Now().Before(end); {
		time.Sleep(devPoll)
		m.endSteps()
	}
	stopNodes()
	m.wg.Wait()
	m.endSteps()
	if d.root {
		d.removeGroups("/sys/fs/cgroup")
	}
	log.Info("cluster stopped", "folder", d.dir)
}

// stepsLeft tells whether a launcher still has a step's folder.
func (d *devLayout) stepsLeft() bool {
	for i := range d.nodes {
		entries, err := os.ReadDir(filepath.Join(d.path("spool", d.nodeName(i)), "steps"))
		if err == nil && len(entries) > 0 {
			return true
		}
	}
	return false
}

// maxGroupDepth is how deep below the mount point the launchers' groups are looked for.
const maxGroupDepth = 8

// removeGroups removes the nodes' control groups, which launchers keep while they are down. The
// kernel refuses to remove a group that has processes; the cluster's name keeps others' apart.
func (d *devLayout) removeGroups(root string) {
	var found []string
	ours := func(path string) bool {
		name, ok := strings.CutPrefix(filepath.Base(path), d.cluster+"_n")
		_, err := strconv.Atoi(name)
		return ok && err == nil && filepath.Base(filepath.Dir(path)) == "tensorgrid"
	}
	depth := strings.Count(root, "/")
	filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || !e.IsDir():
			return nil
		case ours(path):
			found = append(found, path)
			return fs.SkipDir
		case strings.Count(path, "/")-depth >= maxGroupDepth:
			return fs.SkipDir
		}
		return nil
	})
	for _, top := range found {
		var groups []string
		filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		for _, g := range slices.Backward(groups) {
			syscall.Rmdir(g)
		}
	}
}
