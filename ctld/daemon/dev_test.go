package daemon

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/gres/simgpu"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	launch "github.com/tensorgrid/tensorgrid/nodeagent/launch/server"
)

// TestBoardsAreTheAgents: what grid.conf says of a simulated node is what its agent will register.
func TestBoardsAreTheAgents(t *testing.T) {
	specs := []string{"a100:4", "rtx4090:2,rtx3090:1"}
	for name := range boards {
		specs = append(specs, name)
	}
	for _, spec := range specs {
		text, err := simGres(spec)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		items, err := gres.Parse(text)
		if err != nil {
			t.Errorf("%s: %q: %v", spec, text, err)
			continue
		}
		board, err := simgpu.New("n1", spec)
		if err != nil {
			t.Errorf("the agent does not know %s: %v", spec, err)
			continue
		}
		if got, want := gres.Total(items, "gpu"), uint64(len(board.Devices())); got != want {
			t.Errorf("%s: %d devices in grid.conf, %d on the board", spec, got, want)
		}
	}
	for _, bad := range []string{"a100", "a100:", "a100:0", ":2", "a100:x", ","} {
		if got, err := simGres(bad); err == nil {
			t.Errorf("--sim %q gives %q", bad, got)
		}
	}
}

func TestDevLayout(t *testing.T) {
	d := &devLayout{devOptions: devOptions{nodes: 2, controllers: 3, sim: "dgx-a100", cpus: 8, memMiB: 1000, dir: shortDir(t),
		set: []string{"KillWait=7"}}, root: os.Geteuid() == 0, bin: "/opt/bin"}
	d.dir = d.devOptions.dir
	self := account{uint32(os.Geteuid()), uint32(os.Getegid())}
	d.agent, d.step = self, self
	if d.root {
		d.agent, d.step = account{agentID, agentID}, account{stepID, stepID}
	}
	for range 2 { // the second time everything is there already
		for _, step := range []func() error{d.makeFolders, d.makeCertificates, d.writeGridConf, d.writeLaunchConfs} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cfg, err := conf.Load(d.path("grid.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Controllers) != 3 || len(cfg.Nodes) != 2 || cfg.Nodes[0].Gres != "gpu:a100:8" || cfg.KillWait != 7*time.Second {
		t.Errorf("grid.conf: %+v", cfg)
	}
	if d.root && cfg.StepUser != strconv.Itoa(stepID) {
		t.Errorf("StepUser=%s, want the number that shepherds have", cfg.StepUser)
	}
	for _, n := range []string{"n1", "n2"} {
		c, err := launch.LoadConf(d.path(n + ".launch.conf"))
		if err != nil {
			t.Fatal(err)
		}
		if d.root && (c.StepUID == c.AgentUID || c.StepGID == c.AgentGID || c.StepUID != stepID) {
			t.Errorf("agent %d:%d and shepherds %d:%d", c.AgentUID, c.AgentGID, c.StepUID, c.StepGID)
		}
		if c.Node != n || c.Cluster != cfg.ClusterName || c.Spool != conf.NodePath(cfg.SpoolDir, n) || c.Rootless == d.root {
			t.Errorf("launch.conf: %+v", c)
		}
	}
	for _, name := range []string{"c1", "c2", "c3"} {
		id, err := authn.OpenIdentity(cfg.TLSDir, name, time.Now)
		if err != nil || id.Role() != authn.RoleCtld || id.Cluster() != cfg.ClusterName {
			t.Errorf("%s: %v", name, err)
		}
	}
	for path, want := range map[string]os.FileMode{"ca": 0o700, "state": 0o700, "ca/ca.key": 0o600, "tls/n1.key": 0o600} {
		if info, err := os.Stat(d.path(path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	if clusterOf("/a") == clusterOf("/b") {
		t.Error("two folders, one cluster name")
	}
}

func TestRemoveGroups(t *testing.T) {
	root := t.TempDir()
	d := &devLayout{cluster: "dev-abc123"}
	for _, g := range []string{"cpu/tensorgrid/dev-abc123_n1/job_1/step_2", "memory/x/y/tensorgrid/dev-abc123_n2", "cpu/tensorgrid/dev-fffff_n1", "cpu/tensorgrid/dev-abc123_nx", "cpu/other/dev-abc123_n1"} {
		if err := os.MkdirAll(filepath.Join(root, g), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.removeGroups(root)
	var left []string
	for _, g := range []string{"cpu/tensorgrid/dev-abc123_n1", "memory/x/y/tensorgrid/dev-abc123_n2", "cpu/tensorgrid/dev-fffff_n1", "cpu/tensorgrid/dev-abc123_nx", "cpu/other/dev-abc123_n1"} {
		if _, err := os.Stat(filepath.Join(root, g)); err == nil {
			left = append(left, g)
		}
	}
	if want := []string{"cpu/tensorgrid/dev-fffff_n1", "cpu/tensorgrid/dev-abc123_nx", "cpu/other/dev-abc123_n1"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}

// TestMinder: a child that dies is started again; at the end it gets TERM.
func TestMinder(t *testing.T) {
	dir := t.TempDir()
	m := newMinder(quiet(), dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	marks := filepath.Join(dir, "marks")
	m.start(ctx, child{name: "kid", make: func(ctx context.Context) *exec.Cmd {
		// The first run dies at once, the second stays until it is told to go.
		return exec.CommandContext(ctx, "/bin/sh", "-c",
			`echo start >> "$0"; [ $(wc -l < "$0") -gt 1 ] || exit 3; trap 'echo term >> "$0"; exit 0' TERM; while :; do sleep 0.05; done`, marks)
	}})
	lines := func() string {
		b, _ := os.ReadFile(marks)
		return strings.TrimSpace(string(b))
	}
	deadline := time.Now().Add(20 * time.Second)
	for lines() != "start\nstart" && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	pid, err := os.ReadFile(filepath.Join(dir, "kid.pid"))
	if err != nil || len(pid) == 0 {
		t.Errorf("pid file: %q %v", pid, err)
	}
	time.Sleep(100 * time.Millisecond) // the shell sets its trap after its line: nothing to wait on
	cancel()
	m.wg.Wait()
	if got := lines(); got != "start\nstart\nterm" {
		t.Errorf("marks %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "kid.pid")); err == nil {
		t.Error("the pid file is still there")
	}
}

// TestFolderIsTakenOnce: a second cluster in a live folder is refused before it has changed anything.
func TestFolderIsTakenOnce(t *testing.T) {
	first := &devLayout{devOptions: devOptions{nodes: 1, controllers: 1}, dir: shortDir(t)}
	if err := first.takeFolder(0o700); err != nil {
		t.Fatal(err)
	}
	second := &devLayout{devOptions: first.devOptions, dir: first.dir}
	err := second.makeFolders()
	if err == nil || !strings.Contains(err.Error(), "runs in "+first.dir+" already (process "+strconv.Itoa(os.Getpid())+")") {
		t.Errorf("the second cluster: %v", err)
	}
	if entries, _ := os.ReadDir(first.dir); len(entries) != 1 {
		t.Errorf("the second cluster left %v", entries)
	}
	first.lock.Close()
	if err := second.takeFolder(0o700); err != nil {
		t.Errorf("after the first one's end: %v", err)
	}
	second.lock.Close()
}

// TestSimLimitIsTheAgents: what the command line lets pass starts, what it refuses does not.
func TestSimLimitIsTheAgents(t *testing.T) {
	for spec, want := range map[string]bool{"a100:64": true, "a100:65": false, "a100:60,t4:5": false} {
		_, here := simGres(spec)
		_, there := simgpu.New("n1", spec)
		if (here == nil) != want || (there == nil) != want {
			t.Errorf("%s: %v; the agent: %v", spec, here, there)
		}
	}
}

// TestKeepsDying: a child that never lives long is reported with the end of its log.
func TestKeepsDying(t *testing.T) {
	m := newMinder(quiet(), t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	began := time.Now()
	m.start(ctx, child{name: "kid", first: time.Second, make: func(ctx context.Context) *exec.Cmd {
		return exec.CommandContext(ctx, "/bin/sh", "-c", "echo out of luck; exit 7")
	}})
	select {
	case err := <-m.failed:
		if text := err.Error(); !strings.Contains(text, "kid ended 3 times (exit status 7)") || !strings.HasSuffix(text, "out of luck") {
			t.Error(err)
		}
		if d := time.Since(began); d < startPatience {
			t.Errorf("after %s", d)
		}
	case <-time.After(30 * time.Second):
		t.Error("not noticed")
	}
	cancel()
	m.wg.Wait()
}

// TestStepUserIsAddedToAnEarlierCluster: its grid.conf named nobody.
func TestStepUserIsAddedToAnEarlierCluster(t *testing.T) {
	d := &devLayout{dir: shortDir(t), root: true, step: account{stepID, stepID}}
	for _, c := range []struct{ have, want string }{{"ClusterName=x\n", "ClusterName=x\nStepUser=64988\n"}, {"stepuser=me\n", "stepuser=me\n"}} {
		if err := os.WriteFile(d.path("grid.conf"), []byte(c.have), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := d.writeGridConf(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(d.path("grid.conf")); err != nil || string(got) != c.want {
			t.Errorf("got %q %v, want %q", got, err, c.want)
		}
	}
}

// TestBadSetLine: a mistake in --set is told before anything is started, and the next try begins anew.
func TestBadSetLine(t *testing.T) {
	d := &devLayout{devOptions: devOptions{nodes: 1, controllers: 1, cpus: 1, memMiB: 100, set: []string{"KillWait=soon"}}, dir: shortDir(t), cluster: "dev-x"}
	for _, want := range []string{"KillWait=soon: a number of seconds", "KilWait is no known key", ""} {
		if err := d.writeGridConf(); err != nil {
			t.Fatal(err)
		}
		err := d.checkGridConf()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--set")) {
			t.Errorf("--set %v: %v, want %q", d.set, err, want)
		}
		switch want {
		case "KillWait=soon: a number of seconds":
			d.set = []string{"KilWait=7"}
		default:
			d.set = []string{"KillWait=7"}
		}
	}
	// A file that was there before is never removed.
	if err := os.WriteFile(d.path("grid.conf"), []byte("nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	old := &devLayout{devOptions: d.devOptions, dir: d.dir, cluster: "dev-x"}
	if err := old.writeGridConf(); err != nil {
		t.Fatal(err)
	}
	if err := old.checkGridConf(); err == nil {
		t.Error("a file of nonsense is taken")
	}
	if _, err := os.Stat(d.path("grid.conf")); err != nil {
		t.Error(err)
	}
}

// TestSetLinesOfAnEarlierRun: the file that is there is kept, and what it does not have of --set is told.
func TestSetLinesOfAnEarlierRun(t *testing.T) {
	d := &devLayout{devOptions: devOptions{nodes: 1, controllers: 1, cpus: 1, memMiB: 100, set: []string{"KillWait=7"}}, dir: shortDir(t), cluster: "dev-x"}
	if err := d.writeGridConf(); err != nil || len(d.unused) != 0 {
		t.Fatal(err, d.unused)
	}
	d.set = append(d.set, "MaxArraySize=9")
	if err := d.writeGridConf(); err != nil || len(d.unused) != 1 || d.unused[0] != "MaxArraySize=9" {
		t.Error(err, d.unused)
	}
}

// TestMinderLetsGo: a controller that was removed from the cluster ends well, and is not started again.
func TestMinderLetsGo(t *testing.T) {
	m := newMinder(quiet(), t.TempDir())
	starts := 0
	m.start(context.Background(), child{name: "kid", ends: true, make: func(ctx context.Context) *exec.Cmd {
		starts++
		return exec.CommandContext(ctx, "/bin/sh", "-c", map[bool]string{true: "exit 1", false: "exit 0"}[starts == 1])
	}})
	m.wg.Wait()
	if starts != 2 {
		t.Errorf("%d starts, want one that fails and one that ends well", starts)
	}
}
