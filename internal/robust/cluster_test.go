package robust

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Accounts of a cluster's processes; the user is nobody.
const (
	agentUID = 64989
	stepUID  = 64988
	userUID  = 65534
)

// Ports are fixed: each cluster has loopback addresses of its own.
const (
	ctldPort = 6817
	raftPort = 6816
)

// layout is what a cluster is to be like.
type layout struct {
	controllers, nodes int
	spare              int // controllers that have addresses, certificates and links, but do not run yet
	cpus               int // of each node
	set                []string
	partitions         []string       // lines; none: one with all nodes
	tmpfs              map[string]int // controller or node -> MiB of a file system of its own for its state or spool
	certLife           time.Duration
}

// cluster is controllers and nodes, each a process, each pair behind a relay.
type cluster struct {
	layout
	t       testing.TB
	dir     string
	bin     string
	name    string
	ca      *authn.CA
	net     [2]byte // 127.a.b.*
	names   []string
	proc    map[string]*process
	links   map[[2]string][]*link // from, to
	quit    chan struct{}
	trouble bool // keep the folder
	mu      sync.Mutex
	users   map[uint32]*user
}

// start lays a cluster out, starts it and waits until its nodes take jobs. It is gone when the test ends;
// its folder is kept when the test failed.
func start(t testing.TB, l layout) *cluster {
	t.Helper()
	c := prepare(t, l)
	for i := range l.controllers {
		c.run(ctl(i))
	}
	for i := range l.nodes {
		c.run(launcher(node(i)))
		c.run(node(i))
	}
	c.waitReady(60 * time.Second)
	return c
}

func ctl(i int) string             { return fmt.Sprintf("c%d", i+1) }
func node(i int) string            { return fmt.Sprintf("n%d", i+1) }
func launcher(node string) string  { return node + ".launch" }
func (c *cluster) run(name string) { c.ok(c.proc[name].start()) }

func (c *cluster) ok(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// prepare makes folders, certificates, files, relays; it starts no process.
func prepare(t testing.TB, l layout) *cluster {
	t.Helper()
	needRoot(t)
	if l.cpus == 0 {
		l.cpus = 16
	}
	dir, err := os.MkdirTemp("", "grid-rb-")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	c := &cluster{layout: l, t: t, dir: dir, bin: bin(t), name: filepath.Base(dir), proc: map[string]*process{},
		links: map[[2]string][]*link{}, quit: make(chan struct{}), users: map[uint32]*user{}}
	t.Cleanup(c.close)
	go reap(c.quit)
	for i := range l.controllers + l.spare {
		c.names = append(c.names, ctl(i))
	}
	for _, step := range []func() error{c.folders, c.certificates, c.pickNet, c.relays, c.files} {
		c.ok(step())
	}
	for _, n := range c.names {
		c.proc[n] = c.process(n, 0, "gctld", "--conf", c.path("etc", n+".conf"), "--name", n)
	}
	for i := range l.nodes {
		n := node(i)
		c.proc[launcher(n)] = c.process(launcher(n), 0, "gnode-launch", "-f", c.path("etc", n+".launch.conf"))
		c.proc[n] = c.process(n, agentUID, "gnoded", "--conf", c.path("etc", n+".conf"), "--node", n)
	}
	return c
}

func (c *cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

// process describes a daemon.
func (c *cluster) process(name string, uid uint32, program string, args ...string) *process {
	faults := c.path("faults", name)
	os.MkdirAll(faults, 0o755)
	return &process{name: name, log: c.path("log", name+".log"), faults: faults, make: func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(c.bin, program), args...)
		cmd.Dir = "/"
		cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + os.TempDir()}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if uid != 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
		}
		return cmd
	}}
}

func (c *cluster) folders() error {
	type folder struct {
		path string
		mode os.FileMode
		uid  int
	}
	list := []folder{{"etc", 0o755, 0}, {"ca", 0o700, 0}, {"tls", 0o711, 0}, {"state", 0o700, 0}, {"run", 0o711, 0},
		{"spool", 0o711, 0}, {"log", 0o755, 0}, {"faults", 0o755, 0}, {"work", 0o755, userUID}, {"work/jobs", 0o755, userUID}}
	for i := range c.nodes {
		n := node(i)
		list = append(list, folder{"run/" + n, 0o711, agentUID}, folder{"spool/" + n, 0o711, 0}, folder{"spool/" + n + "/agent", 0o700, agentUID})
	}
	for _, f := range list {
		p := c.path(f.path)
		if err := os.MkdirAll(p, f.mode); err != nil {
			return err
		}
		if size, ok := c.tmpfs[filepath.Base(p)]; ok && filepath.Dir(f.path) == "spool" {
			if err := mountTmpfs(p, size, 0o711); err != nil {
				return err
			}
			if err := errors.Join(c.aside(filepath.Join(p, "shepherd.log")), c.aside(filepath.Join(p, "done"))); err != nil {
				return err
			}
		}
		if err := errors.Join(os.Chown(p, f.uid, f.uid), os.Chmod(p, f.mode)); err != nil {
			return err
		}
	}
	for _, n := range c.names {
		p := c.path("state", n)
		if err := os.Mkdir(p, 0o700); err != nil {
			return err
		}
		if size, ok := c.tmpfs[n]; ok {
			if err := mountTmpfs(p, size, 0o700); err != nil {
				return err
			}
		}
	}
	return nil
}

// mountTmpfs needs no unmounting: the mounts are this process's alone.
func mountTmpfs(path string, mib int, mode os.FileMode) error {
	return syscall.Mount("robust", path, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=%o", mib, mode))
}

// aside puts a file of a small file system onto the big one. A launcher has its crash log and its list of
// ended runs open for writing all the time, and a file system with such files cannot be made read-only by
// hand, as a broken disk is by the kernel.
func (c *cluster) aside(path string) error {
	real := c.path("log", filepath.Base(filepath.Dir(path))+"."+filepath.Base(path))
	err := os.WriteFile(real, nil, 0o600)
	if err == nil {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err == nil {
		err = syscall.Mount(real, path, "", syscall.MS_BIND, "")
	}
	return err
}

// remount makes a file system read-only, or lets it be written again.
func remount(path string, readOnly bool) error {
	flags := uintptr(syscall.MS_REMOUNT)
	if readOnly {
		flags |= syscall.MS_RDONLY
	}
	return syscall.Mount("robust", path, "tmpfs", flags, "")
}

func (c *cluster) certificates() error {
	ca, err := authn.NewCA(c.name, rand.Reader, time.Now())
	if err == nil {
		c.ca = ca
		err = errors.Join(ca.Write(c.path("ca")), ca.WriteCert(c.path("tls")))
	}
	for _, n := range c.names {
		err = errors.Join(err, c.issue(authn.RoleCtld, n, 0))
	}
	for i := range c.nodes {
		err = errors.Join(err, c.issue(authn.RoleNode, node(i), agentUID))
	}
	return err
}

// issue makes a daemon's certificate, also a new one while it runs.
func (c *cluster) issue(role authn.Role, name string, uid int) error {
	pair, err := c.ca.Issue(role, name, c.certLife, rand.Reader, time.Now())
	if err == nil {
		err = pair.Write(c.path("tls"), name)
	}
	if err == nil {
		err = os.Chown(c.path("tls", name+".key"), uid, uid)
	}
	return err
}

// pickNet finds loopback addresses that no other cluster on this host has.
func (c *cluster) pickNet() error {
	for range 100 {
		c.net = [2]byte{byte(2 + mrand.IntN(250)), byte(mrand.IntN(128))}
		if ln, err := net.Listen("tcp", fmt.Sprintf("%s:%d", c.address(ctl(0)), ctldPort)); err == nil {
			return ln.Close()
		}
	}
	return errors.New("no free loopback addresses")
}

// index numbers all that dial: controllers first.
func (c *cluster) index(name string) int {
	if i := slices.Index(c.names, name); i >= 0 {
		return 1 + i
	}
	var i int
	fmt.Sscanf(name, "n%d", &i)
	return 16 + i
}

// address is where a controller listens, and seen is where it is for somebody else: a relay.
func (c *cluster) address(name string) string { return c.seen("", name) }

func (c *cluster) seen(from, to string) string {
	k := 0
	if from != "" && from != to {
		k = c.index(from)
	}
	return fmt.Sprintf("127.%d.%d.%d", c.net[0], int(c.net[1])+k, c.index(to))
}

func (c *cluster) relays() error {
	froms := slices.Clone(c.names)
	for i := range c.nodes {
		froms = append(froms, node(i))
	}
	for i, from := range froms {
		for _, to := range c.names {
			if from == to {
				continue
			}
			ports := []int{ctldPort, raftPort}
			if i >= len(c.names) {
				ports = ports[:1]
			}
			for _, port := range ports {
				l, err := newLink(from, to, fmt.Sprintf("%s:%d", c.seen(from, to), port), fmt.Sprintf("%s:%d", c.address(to), port))
				if err != nil {
					return err
				}
				c.links[[2]string{from, to}] = append(c.links[[2]string{from, to}], l)
			}
		}
	}
	return nil
}

// link sets what all connections from one process to another go through.
func (c *cluster) link(from, to string, m mode) {
	c.t.Helper()
	for _, l := range c.links[[2]string{from, to}] {
		if err := l.set(m); err != nil {
			c.t.Error(err)
		}
	}
}

// both sets both directions between two controllers.
func (c *cluster) both(a, b string, m mode) { c.link(a, b, m); c.link(b, a, m) }

// isolate sets all links of one process, to it and from it.
func (c *cluster) isolate(name string, m mode) {
	for pair := range c.links {
		if pair[0] == name || pair[1] == name {
			c.link(pair[0], pair[1], m)
		}
	}
}

// heal lets everything pass.
func (c *cluster) heal() {
	for pair, ls := range c.links {
		c.link(pair[0], pair[1], passing)
		for _, l := range ls {
			l.slow(0, 0)
		}
	}
}

// confText is grid.conf as one process sees the cluster.
func (c *cluster) confText(self string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "ClusterName=%s\nTLSDir=%s\nSlurmdSpoolDir=%s\nNodeRunDir=%s\n", c.name, c.path("tls"), c.path("spool", "%n"), c.path("run", "%n"))
	fmt.Fprintf(&b, "SlurmdParameters=config_overrides\nReturnToService=2\nStepUser=%d\nCgroupPlugin=track\nMaxJobCount=200000\n", stepUID)
	defaults := []string{"SlurmdTimeout=30", "KillWait=2", "RequeueDelay=0", "Operators=root"}
	for _, d := range defaults {
		key, _, _ := strings.Cut(d, "=")
		if !slices.ContainsFunc(c.set, func(s string) bool { return strings.HasPrefix(s, key+"=") }) {
			fmt.Fprintln(&b, d)
		}
	}
	for _, line := range c.set {
		fmt.Fprintln(&b, line)
	}
	known := slices.Clone(c.names[:c.controllers])
	if i := slices.Index(c.names, self); i >= c.controllers {
		known = append(known, self)
	}
	for _, n := range known {
		b.WriteString(c.controllerLine(self, n))
	}
	for i := range c.nodes {
		fmt.Fprintf(&b, "NodeName=%s NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=%d RealMemory=64000\n", node(i), c.cpus)
	}
	if len(c.partitions) == 0 {
		fmt.Fprintln(&b, "PartitionName=batch Nodes=ALL Default=YES")
	}
	for _, p := range c.partitions {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

func (c *cluster) controllerLine(self, n string) string {
	return fmt.Sprintf("ControllerName=%s Address=%s Port=%d RaftPort=%d Socket=%s StateDir=%s\n",
		n, c.seen(self, n), ctldPort, raftPort, c.path("run", n+".sock"), c.path("state", n))
}

func (c *cluster) files() error {
	for _, n := range append(slices.Clone(c.names), "user") {
		self := n
		if n == "user" {
			self = "" // commands use sockets only
		}
		if err := os.WriteFile(c.path("etc", n+".conf"), []byte(c.confText(self)), 0o644); err != nil {
			return err
		}
	}
	for i := range c.nodes {
		n := node(i)
		// Each node has a name of its own for the program, so that its shepherds can be told apart.
		if err := errors.Join(os.MkdirAll(filepath.Dir(c.stepd(n)), 0o755), secondName(filepath.Join(c.bin, "gstepd"), c.stepd(n))); err != nil {
			return err
		}
		var b strings.Builder
		for _, kv := range [][2]any{{"cluster", c.name}, {"node", n}, {"ca", c.path("tls", authn.CAFile)}, {"socket", c.path("run", n, "launcher.sock")},
			{"agent_socket", c.path("run", n, "agent.sock")}, {"spool", c.path("spool", n)}, {"stepd", c.stepd(n)},
			{"agent_uid", agentUID}, {"agent_gid", agentUID}, {"step_uid", stepUID}, {"step_gid", stepUID}, {"cgroup_driver", "track"}} {
			fmt.Fprintf(&b, "%v = %v\n", kv[0], kv[1])
		}
		err := os.WriteFile(c.path("etc", n+".launch.conf"), []byte(b.String()), 0o600)
		if err = errors.Join(err, os.WriteFile(c.path("etc", n+".conf"), []byte(c.confText(n)), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) stepd(node string) string { return c.path("etc", node, "gstepd") }

// secondName links a program under another name, or copies it where that cannot be.
func secondName(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// powerOff ends everything that a node runs at once: agent, launcher, shepherds, jobs.
func (c *cluster) powerOff(node string) {
	c.proc[node].kill()
	c.proc[launcher(node)].kill()
	for range 50 {
		pids := c.processesOf(node)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.t.Errorf("%s: processes %v cannot be killed", node, c.processesOf(node))
}

// processesOf lists a node's shepherds and what is in its control groups.
func (c *cluster) processesOf(node string) (pids []int) {
	cmds, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range cmds {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), c.stepd(node)) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	for _, top := range c.groups(node) {
		filepath.WalkDir(top, func(p string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				text, _ := os.ReadFile(filepath.Join(p, "cgroup.procs"))
				for word := range strings.FieldsSeq(string(text)) {
					if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
						pids = append(pids, pid)
					}
				}
			}
			return nil
		})
	}
	return pids
}

// groups finds the control groups of a node, or of all with "*".
func (c *cluster) groups(node string) (tops []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/tensorgrid/", "/sys/fs/cgroup/*/tensorgrid/", "/sys/fs/cgroup/*/*/tensorgrid/"} {
		found, _ := filepath.Glob(pattern + c.name + "_" + node)
		tops = append(tops, found...)
	}
	return tops
}

// waitReady waits until a leader answers and all nodes are there.
func (c *cluster) waitReady(most time.Duration) {
	c.t.Helper()
	within(c.t, most, "the cluster is ready", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		nodes, err := c.user(0).any().ListNodes(ctx, &ctldpb.ListNodesRequest{})
		if err != nil {
			return err
		}
		for i := range c.nodes {
			k := slices.IndexFunc(nodes.Nodes, func(n *ctldpb.Node) bool { return n.Name == node(i) })
			if k < 0 {
				return fmt.Errorf("node %s is not known", node(i))
			}
			if s := nodes.Nodes[k]; s.State != "IDLE" && s.State != "MIXED" && s.State != "ALLOCATED" || len(s.Flags) > 0 {
				return fmt.Errorf("node %s is %s %v %s", s.Name, s.State, s.Flags, s.Reason)
			}
		}
		return nil
	})
}

// leader names the controller that leads by its own word and whose lead a majority confirms.
func (c *cluster) leader() string {
	c.t.Helper()
	name := ""
	within(c.t, 30*time.Second, "a leader", func() error {
		for _, n := range c.names {
			if !c.proc[n].alive() {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			res, err := c.user(0).at(n).Ping(ctx, &ctldpb.PingRequest{})
			cancel()
			if err == nil && res.Role == "leader" {
				name = n
				return nil
			}
		}
		return errNotYet
	})
	return name
}

// follower is a running controller that does not lead.
func (c *cluster) follower() string {
	lead := c.leader()
	for _, n := range c.names {
		if n != lead && c.proc[n].alive() {
			return n
		}
	}
	c.t.Fatal("no follower")
	return ""
}

// command makes a command of the user's, as from a shell.
func (c *cluster) command(name string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = c.path("work")
	cmd.Env = []string{"PATH=" + c.bin + ":/usr/bin:/bin", "HOME=" + c.path("work"), "GRID_CONF=" + c.path("etc", "user.conf"), "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userUID, Gid: userUID}}
	return output(cmd)
}

// admin is a command of root's.
func (c *cluster) admin(name string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=" + c.bin + ":/usr/bin:/bin", "HOME=/", "GRID_CONF=" + c.path("etc", "user.conf"), "LANG=C.UTF-8"}
	return output(cmd)
}

// close ends everything, looks for panics, and removes the folder unless somebody will want to look.
func (c *cluster) close() {
	for _, u := range c.users {
		u.close()
	}
	for _, p := range c.proc {
		p.kill()
	}
	endOrphans()
	close(c.quit)
	for _, ls := range c.links {
		for _, l := range ls {
			l.close()
		}
	}
	c.removeGroups()
	c.lookForPanics()
	if c.t.Failed() || c.trouble {
		c.t.Logf("what the processes said and wrote is kept in %s", c.dir)
		return
	}
	for name := range c.tmpfs {
		for _, kind := range []string{"state", "spool"} {
			syscall.Unmount(c.path(kind, name), syscall.MNT_DETACH)
		}
	}
	os.RemoveAll(c.dir)
}

// lookForPanics: no daemon may end in one, or with a race that the runtime found.
func (c *cluster) lookForPanics() {
	for name, p := range c.proc {
		text, _ := os.ReadFile(p.log)
		for _, bad := range []string{"panic: ", "fatal error: ", "goroutine 1 ["} {
			if i := strings.Index(string(text), bad); i >= 0 {
				c.t.Errorf("%s: %.600s", name, text[i:])
				break
			}
		}
	}
}

// removeGroups removes the nodes' control groups; no process is left in them.
func (c *cluster) removeGroups() {
	for _, top := range c.groups("*") {
		var groups []string
		filepath.WalkDir(top, func(p string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				groups = append(groups, p)
			}
			return nil
		})
		for _, g := range slices.Backward(groups) {
			for range 20 {
				if err := syscall.Rmdir(g); !errors.Is(err, syscall.EBUSY) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
}

// unavailable tells whether an error says that nobody could answer, or not in time.
func unavailable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return true
	}
	return false
}

// shell is a line of sh as the user.
func (c *cluster) shell(line string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Dir = c.path("work")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userUID, Gid: userUID}}
	return cmd
}
