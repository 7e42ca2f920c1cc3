package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// devOptions is what --dev takes.
type devOptions struct {
	nodes, controllers, cpus int
	memMiB                   int64
	sim, dir, cgroup         string
	set                      []string // lines for grid.conf
}

// maxDevNodes bounds the agents of one host.
const maxDevNodes = 64

// maxSimGPUs bounds the GPUs of one node, as agents do.
const maxSimGPUs = 64

// agentID and stepID run agents and shepherds of a development cluster when the accounts gnoded and
// gstepd do not exist: numbers from the range that Debian leaves to local administration.
const (
	agentID = 64989
	stepID  = 64988
)

// clusterOf names the development cluster of a folder. Nodes have their control groups by cluster and
// node, so two clusters on one host must differ.
func clusterOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "dev-" + hex.EncodeToString(sum[:3])
}

func (d *devOptions) check() error {
	switch {
	case d.nodes < 1 || d.nodes > maxDevNodes:
		return fmt.Errorf("--nodes %d: want 1 to %d", d.nodes, maxDevNodes)
	case d.controllers != 1 && d.controllers != 3 && d.controllers != 5:
		return fmt.Errorf("--controllers %d: want 1, 3 or 5", d.controllers)
	case d.cpus < 0 || d.memMiB < 0:
		return errors.New("--cpus and --mem must not be negative")
	}
	if _, err := simGres(d.sim); err != nil {
		return err
	}
	return nil
}

// boards are the simulated boards by name, as Gres shows them; agents know the same names.
var boards = map[string]string{
	"dgx-a100": "a100:8", "hgx-h100": "h100:8", "hgx-h200": "h200:8", "hgx-b200": "b200:8",
	"a30x2": "a30:2", "consumer-mix": "rtx4090:2,rtx3090:1",
}

// simGres is the Gres value of a node with that board.
func simGres(sim string) (string, error) {
	if sim == "" {
		return "", nil
	}
	list, ok := boards[sim]
	if !ok {
		list = sim
	}
	var out []string
	var total uint64
	for item := range strings.SplitSeq(list, ",") {
		kind, count, ok := strings.Cut(item, ":")
		n, err := strconv.ParseUint(count, 10, 16)
		if !ok || kind == "" || err != nil || n == 0 {
			return "", fmt.Errorf("--sim %s: want a board (dgx-a100, hgx-h100, ...) or TYPE:COUNT", sim)
		}
		if total += n; total > maxSimGPUs {
			return "", fmt.Errorf("--sim %s: over the limit of %d GPUs a node", sim, maxSimGPUs)
		}
		out = append(out, "gpu:"+item)
	}
	return strings.Join(out, ","), nil
}

// devLayout is where everything of a development cluster lies and who runs it.
type devLayout struct {
	devOptions
	dir       string
	cluster   string
	bin       string // folder of the programs
	root      bool
	agent     account
	step      account
	temporary bool     // dir was made by us: it goes at the end
	wrote     bool     // grid.conf is new
	unused    []string // lines of --set that a grid.conf of an earlier run does not have
	lock      *os.File
}

type account struct{ uid, gid uint32 }

func (d *devLayout) path(parts ...string) string {
	return filepath.Join(append([]string{d.dir}, parts...)...)
}

func (d *devLayout) controllerName(i int) string { return fmt.Sprintf("c%d", i+1) }
func (d *devLayout) nodeName(i int) string       { return fmt.Sprintf("n%d", i+1) }

// newDevLayout makes the folders, certificates and files of a cluster; what is there is kept, so
// that a cluster goes on where it was stopped.
func newDevLayout(o devOptions) (*devLayout, error) {
	d := &devLayout{devOptions: o, dir: o.dir, root: os.Geteuid() == 0}
	self := account{uint32(os.Geteuid()), uint32(os.Getegid())}
	d.agent, d.step = self, self
	if d.root {
		d.agent, d.step = account{agentID, agentID}, account{stepID, stepID}
		if a, ok := lookup("gnoded"); ok {
			if s, ok := lookup("gstepd"); ok && s.uid != a.uid && s.gid != a.gid {
				d.agent, d.step = a, s
			}
		}
	}
	if err := d.makeFolders(); err != nil {
		return nil, err
	}
	for _, step := range []func() error{d.findPrograms, d.makeCertificates, d.writeGridConf, d.checkGridConf, d.writeLaunchConfs} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func lookup(name string) (account, bool) {
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, false
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return account{uint32(uid), uint32(gid)}, err1 == nil && err2 == nil
}

func (d *devLayout) makeFolders() error {
	// Root's cluster is passed through by agents and users, to sockets and their own files; nothing in
	// it can be listed by them, and keys and state have folders of their own.
	mode := os.FileMode(0o700)
	if d.root {
		mode = 0o711
	}
	if err := d.takeFolder(mode); err != nil {
		return err
	}
	own := account{uint32(os.Geteuid()), uint32(os.Getegid())}
	type folder struct {
		path string
		mode os.FileMode
		who  account
	}
	list := []folder{{d.dir, mode, own}, {d.path("ca"), 0o700, own}, {d.path("tls"), 0o711, own}, {d.path("state"), 0o700, own},
		{d.path("run"), 0o711, own}, {d.path("spool"), 0o711, own}, {d.path("log"), 0o755, own}}
	for i := range d.nodes {
		n := d.nodeName(i)
		list = append(list, folder{d.path("run", n), 0o711, d.agent}, folder{d.path("spool", n), 0o711, own},
			folder{d.path("spool", n, "agent"), 0o700, d.agent})
	}
	for _, f := range list {
		if err := os.MkdirAll(f.path, f.mode); err != nil {
			return fmt.Errorf("folder: %w", err)
		}
		if err := checkOwnedBy(f.path, f.who.uid, own.uid); err != nil {
			return err
		}
		if err := errors.Join(os.Chown(f.path, int(f.who.uid), int(f.who.gid)), os.Chmod(f.path, f.mode)); err != nil {
			return fmt.Errorf("folder: %w", err)
		}
	}
	return nil
}

// checkOwnedBy refuses a folder of --dir that belongs to somebody else.
func checkOwnedBy(path string, uids ...uint32) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return fmt.Errorf("%s is not a folder", path)
	}
	for _, uid := range uids {
		if st.Uid == uid {
			return nil
		}
	}
	return fmt.Errorf("%s belongs to uid %d: choose another --dir", path, st.Uid)
}

// programs are what stands beside gctld.
var programs = []string{"gctld", "gnoded", "gnode-launch", "gstepd"}

// findPrograms takes the programs beside our own; where an unprivileged agent cannot reach that
// folder, or others can change it, they are copied.
func (d *devLayout) findPrograms() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("own path: %w", err)
	}
	d.bin = filepath.Dir(self)
	for _, p := range programs[1:] {
		if _, err := os.Stat(filepath.Join(d.bin, p)); err != nil {
			return fmt.Errorf("%s is not beside gctld: build all programs first (make build): %w", p, err)
		}
	}
	if !d.root || reachable(d.bin) && rootsOwn(d.bin) {
		return nil
	}
	from := d.bin
	d.bin = d.path("bin")
	if err := os.MkdirAll(d.bin, 0o755); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	for _, p := range programs {
		src := filepath.Join(from, p)
		if p == "gctld" {
			src = self
		}
		data, err := os.ReadFile(src)
		if err != nil {
			return fmt.Errorf("copy programs: %w", err)
		}
		dst := filepath.Join(d.bin, p)
		if err := os.Remove(dst); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("copy programs: %w", err)
		}
		if err := os.WriteFile(dst, data, 0o755); err != nil {
			return fmt.Errorf("copy programs: %w", err)
		}
	}
	return nil
}

// rootsOwn tells whether a folder and the program in it that becomes root are root's alone to change.
func rootsOwn(dir string) bool {
	for _, path := range []string{dir, filepath.Join(dir, "gstepd"), filepath.Join(dir, "gnode-launch")} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o022 != 0 {
			return false
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 {
			return false
		}
	}
	return true
}

func reachable(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

// makeCertificates makes the CA once and a pair for each daemon that has none that is still good.
func (d *devLayout) makeCertificates() error {
	ca, err := authn.LoadCA(d.path("ca"))
	if errors.Is(err, os.ErrNotExist) {
		if ca, err = authn.NewCA(d.cluster, rand.Reader, time.Now()); err == nil {
			err = ca.Write(d.path("ca"))
		}
	}
	if err == nil {
		err = ca.WriteCert(d.path("tls"))
	}
	if err != nil {
		return err
	}
	issue := func(role authn.Role, name string, who account) error {
		pair, err := ca.Issue(role, name, 0, rand.Reader, time.Now())
		if err == nil {
			err = pair.Write(d.path("tls"), name)
		}
		if err == nil && d.root {
			err = os.Chown(d.path("tls", name+".key"), int(who.uid), int(who.gid))
		}
		return err
	}
	for i := range d.controllers {
		if err := issue(authn.RoleCtld, d.controllerName(i), account{uint32(os.Geteuid()), uint32(os.Getegid())}); err != nil {
			return err
		}
	}
	for i := range d.nodes {
		if err := issue(authn.RoleNode, d.nodeName(i), d.agent); err != nil {
			return err
		}
	}
	return nil
}

// freePorts finds ports that nobody listens on now. Another program may take one before we do;
// the controller then fails and says which port it was.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("free port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// writeGridConf writes grid.conf, unless one is there: its ports and changes by hand are kept.
func (d *devLayout) writeGridConf() error {
	if data, err := os.ReadFile(d.path("grid.conf")); err == nil {
		d.unused = unusedLines(data, d.set)
		return d.addStepUser(data)
	}
	ports, err := freePorts(3 * d.controllers)
	if err != nil {
		return err
	}
	cpus, mem := d.cpus, d.memMiB
	if cpus == 0 {
		cpus = runtime.NumCPU()
	}
	if mem == 0 {
		mem = max(256, hostMemory()*8/10/int64(d.nodes)>>20)
	}
	gres, err := simGres(d.sim)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# A development cluster on one host, written by gctld --dev.\nClusterName=%s\n", d.cluster)
	fmt.Fprintf(&b, "TLSDir=%s\nIssuerKey=%s\nSlurmdSpoolDir=%s\nNodeRunDir=%s\n", d.path("tls"), d.path("ca", authn.CAKeyFile), d.path("spool", "%n"), d.path("run", "%n"))
	// The nodes share the host: each has what its line says, not what the host has.
	fmt.Fprintf(&b, "SlurmdParameters=config_overrides\nSlurmdTimeout=30\nKillWait=5\nReturnToService=2\n")
	if d.root {
		fmt.Fprintf(&b, "StepUser=%d\n", d.step.uid)
	}
	if gres != "" {
		fmt.Fprintf(&b, "AutoDetect=sim\n")
	}
	if !d.root {
		fmt.Fprintf(&b, "CgroupPlugin=none\n")
	} else if d.cgroup != "" {
		fmt.Fprintf(&b, "CgroupPlugin=%s\n", d.cgroup)
	}
	for _, line := range d.set {
		fmt.Fprintln(&b, line)
	}
	for i := range d.controllers {
		name := d.controllerName(i)
		fmt.Fprintf(&b, "ControllerName=%s Address=127.0.0.1 Port=%d RaftPort=%d UserPort=%d Socket=%s StateDir=%s\n",
			name, ports[3*i], ports[3*i+1], ports[3*i+2], d.path(name+".sock"), d.path("state", name))
	}
	for i := range d.nodes {
		fmt.Fprintf(&b, "NodeName=%s NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=%d RealMemory=%d", d.nodeName(i), cpus, mem)
		if gres != "" {
			fmt.Fprintf(&b, " Gres=%s SimGPU=%s", gres, d.sim)
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "PartitionName=batch Nodes=ALL Default=YES\n")
	fmt.Fprintf(&b, "PartitionName=local Nodes=ALL SharedFS=NO\n")
	d.wrote = true
	return os.WriteFile(d.path("grid.conf"), []byte(b.String()), 0o644)
}

// unusedLines are those of the lines that a file does not have.
func unusedLines(file []byte, lines []string) (unused []string) {
	have := strings.Split(string(file), "\n")
	for _, line := range lines {
		if !slices.Contains(have, line) {
			unused = append(unused, line)
		}
	}
	return unused
}

// checkGridConf reads grid.conf as the daemons will: a mistake in a --set line, or in a file that was changed by
// hand, is told at once and not by children that end one after the other.
func (d *devLayout) checkGridConf() error {
	path := d.path("grid.conf")
	_, err := loadConf(path)
	if err != nil && d.wrote { // nothing ran on it yet: the next try begins anew
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil && len(d.set) > 0 {
		return fmt.Errorf("grid.conf with the lines of --set is not valid:\n%w", err)
	}
	return err
}

// addStepUser tells a cluster of an earlier version whom its shepherds run as.
func (d *devLayout) addStepUser(gridConf []byte) error {
	if !d.root || bytes.Contains(bytes.ToLower(gridConf), []byte("stepuser=")) {
		return nil
	}
	text := fmt.Appendf(bytes.TrimRight(gridConf, "\n"), "\nStepUser=%d\n", d.step.uid)
	return os.WriteFile(d.path("grid.conf"), text, 0o644)
}

// hostMemory is the memory of this host in bytes.
func hostMemory() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 2 << 30
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// writeLaunchConfs writes the launchers' own files, which root alone may change.
func (d *devLayout) writeLaunchConfs() error {
	for i := range d.nodes {
		n := d.nodeName(i)
		var b strings.Builder
		put := func(key string, value any) { fmt.Fprintf(&b, "%s = %v\n", key, value) }
		put("cluster", d.cluster)
		put("node", n)
		put("ca", d.path("tls", authn.CAFile))
		put("socket", d.path("run", n, "launcher.sock"))
		put("agent_socket", d.path("run", n, "agent.sock"))
		put("spool", d.path("spool", n))
		put("stepd", filepath.Join(d.bin, "gstepd"))
		if d.root {
			put("agent_uid", d.agent.uid)
			put("agent_gid", d.agent.gid)
			put("step_uid", d.step.uid)
			put("step_gid", d.step.gid)
			if d.cgroup != "" {
				put("cgroup_driver", d.cgroup)
			}
		} else {
			put("rootless", "yes")
		}
		path := d.path(n + ".launch.conf")
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// command makes a child process: a program of ours with its log.
func (d *devLayout) command(ctx context.Context, program string, who account, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, program), args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "GRID_CONF="+d.path("grid.conf"))
	// A child does not outlive a parent that was killed; shepherds, which are no children, do.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if d.root && who.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid}
	}
	return cmd
}
