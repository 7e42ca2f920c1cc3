package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/gres/discover"
)

// dropVar makes the test binary give up root and say who it is then.
const dropVar = "GNODED_TEST_DROP"

func TestMain(m *testing.M) {
	if os.Getenv(dropVar) != "" {
		id := &identity{"test", 64990, 64990}
		if err := id.become(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		groups, err := os.Getgroups()
		fmt.Println(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid(), groups, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestArguments(t *testing.T) {
	t.Setenv("TENSORGRID_CONF", "/x/grid.conf")
	for _, tc := range []struct {
		args string
		want options
		err  string
	}{
		{"", options{conf: "/x/grid.conf"}, ""},
		{"--conf /y --node n1 --launcher /l --spool /s --allow-root",
			options{conf: "/y", node: "n1", launcher: "/l", spool: "/s", allowRoot: true}, ""},
		{"-f /y -N n1", options{conf: "/y", node: "n1"}, ""},
		{"-C", options{conf: "/x/grid.conf", print: true}, ""},
		{"--version", options{conf: "/x/grid.conf", version: true}, ""},
		{"--help", options{conf: "/x/grid.conf", helped: true}, ""},
		{"-h", options{conf: "/x/grid.conf", helped: true}, ""},
		{"--nodes n1", options{}, "nodes"},
		{"n1", options{}, `"n1" is not an option`},
		{"--node", options{}, "node"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			got, err := parseArgs(strings.Fields(tc.args))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %+v %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestHelpVersionAndPrint(t *testing.T) {
	for _, tc := range []struct {
		arg  string
		code int
		out  string
	}{
		{"--help", 0, "Example: gnoded"}, {"--version", 0, "gnoded "}, {"-C", 0, "NodeName="}, {"--what", 2, "Try 'gnoded --help'"},
		{"--conf=/does/not/exist", 1, "/does/not/exist"},
	} {
		var out bytes.Buffer
		if code := run([]string{tc.arg}, &out, &out); code != tc.code || !strings.Contains(out.String(), tc.out) {
			t.Errorf("%s: exit %d, %q", tc.arg, code, out.String())
		}
	}
}

func testHost() discover.Host {
	return discover.Host{
		Proc: fstest.MapFS{"meminfo": {Data: []byte("MemTotal: 1048576 kB\nMemAvailable: 1 kB\n")}},
		Sys:  fstest.MapFS{"devices/system/cpu/online": {Data: []byte("0-7\n")}},
	}
}

func TestNodeLine(t *testing.T) {
	line, err := nodeLine(testHost(), "n1")
	if err != nil || !strings.HasPrefix(line, "NodeName=n1 CPUs=8 Boards=1 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=1024 TmpDisk=") {
		t.Errorf("%q %v", line, err)
	}
}

func TestInventory(t *testing.T) {
	line := conf.Node{Name: "n1", CPUs: 64, Sockets: 2, CoresPerSocket: 32, ThreadsPerCore: 1, Boards: 1, RealMemory: 512 << 30, Gres: "gpu:a100:8,shard:4"}
	simulated := line
	simulated.SimGPU = "dgx-a100"
	wrong := line
	wrong.SimGPU = "dgx-a1000"
	for _, tc := range []struct {
		name string
		conf conf.Config
		node conf.Node
		cpus uint32
		mem  int64
		gres string
		err  string
	}{
		{"what the host has", conf.Config{AutoDetect: "off"}, line, 8, 1 << 30, "gpu:a100:8,shard:4", ""},
		{"what the line says", conf.Config{AutoDetect: "off", SlurmdParameters: []string{"config_overrides"}}, line, 64, 512 << 30, "gpu:a100:8,shard:4", ""},
		{"simulated", conf.Config{AutoDetect: "sim"}, simulated, 64, 512 << 30, "gpu:a100:8,shard:4", ""},
		{"no detection", conf.Config{AutoDetect: "off"}, simulated, 64, 512 << 30, "gpu:a100:8,shard:4", ""},
		{"no such board", conf.Config{AutoDetect: "sim"}, wrong, 0, 0, "", "dgx-a1000"},
		{"nvml", conf.Config{AutoDetect: "nvml"}, line, 0, 0, "", "this build leaves NVML out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inv, err := inventory(testHost(), &tc.conf, &tc.node, t.TempDir())
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil || inv.CPUs != tc.cpus || inv.Mem != tc.mem || inv.Gres != tc.gres || inv.TmpDisk == 0 || !strings.HasPrefix(inv.OS, "Linux ") {
				t.Errorf("%+v %v", inv, err)
			}
		})
	}
}

// TestFewerDevicesAreTold: what is registered is what is there, not what the line hopes for.
func TestFewerDevicesAreTold(t *testing.T) {
	n := conf.Node{Name: "n1", CPUs: 1, Gres: "gpu:a100:8,shard:4", SimGPU: "a100:6"}
	inv, err := inventory(testHost(), &conf.Config{AutoDetect: "sim"}, &n, t.TempDir())
	if err != nil || inv.Gres != "gpu:a100:6,shard:4" {
		t.Errorf("%q %v", inv.Gres, err)
	}
}

func TestThisNode(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c := &conf.Config{Nodes: []conf.Node{{Name: "n1"}, {Name: "n2", Hostname: host}}, Source: "grid.conf"}
	if n, err := thisNode(c, "n1"); err != nil || n.Name != "n1" {
		t.Errorf("by name: %v %v", n, err)
	}
	if n, err := thisNode(c, ""); err != nil || n.Name != "n2" {
		t.Errorf("by host: %v %v", n, err)
	}
	if _, err := thisNode(c, "n3"); err == nil || !strings.Contains(err.Error(), "n3") {
		t.Errorf("unknown: %v", err)
	}
	if _, err := thisNode(&conf.Config{Source: "grid.conf"}, ""); err == nil || !strings.Contains(err.Error(), "--node") {
		t.Errorf("no node for this host: %v", err)
	}
}

func TestWhoToBe(t *testing.T) {
	if os.Geteuid() != 0 {
		if id, err := whoToBe(false, "nobody"); id != nil || err != nil {
			t.Errorf("an ordinary user becomes %v, %v", id, err)
		}
		t.Skip("the rest needs root")
	}
	if id, err := whoToBe(true, "no-such-account"); id != nil || err != nil {
		t.Errorf("--allow-root: %v %v", id, err)
	}
	if _, err := whoToBe(false, "no-such-account"); err == nil || !strings.Contains(err.Error(), "--allow-root") {
		t.Errorf("no account: %v", err)
	}
	if _, err := whoToBe(false, "root"); err == nil {
		t.Error("root may take over for root")
	}
}

func TestDrop(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving up root needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), dropVar+"=1")
	out, err := cmd.CombinedOutput()
	if want := "64990 64990 64990 64990 [64990] <nil>\n"; err != nil || string(out) != want {
		t.Errorf("%q %v, want %q", out, err, want)
	}
}

func TestClaimAndListen(t *testing.T) {
	dir := t.TempDir()
	p := paths{spool: filepath.Join(dir, "spool"), state: filepath.Join(dir, "spool", stateFolder), socket: filepath.Join(dir, "run", agentSocket)}
	lock, err := claim(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim(p, nil); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second agent: %v", err)
	}
	l, err := listen(p.socket, &identity{uid: os.Getuid(), gid: os.Getgid()}, false)
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // the socket stays, as a killed agent leaves it
	l, err = listen(p.socket, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	lock.Close()
	again, err := claim(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestLauncherMustBeRoots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := dialLauncher(t.Context(), path)
	if err != nil { // our own uid listens: that is what rootless means
		t.Fatal(err)
	}
	conn.Close()
	if _, err := dialLauncher(t.Context(), path+"x"); err == nil {
		t.Error("nobody listens there")
	}
}

// TestStepUserByNumber: a development cluster has no accounts.
func TestStepUserByNumber(t *testing.T) {
	for _, c := range []struct {
		account string
		uid     uint32
		ok, bad bool
	}{{"64988", 64988, true, false}, {"nobody", 65534, true, false}, {"no-such-account", 0, false, false}, {"0", 0, false, true}, {"root", 0, false, true}} {
		uid, ok, err := accountID(c.account)
		if uid != c.uid || ok != c.ok || (err != nil) != c.bad {
			t.Errorf("%s: got %d %v %v", c.account, uid, ok, err)
		}
	}
}

// TestShepherdsSocketIsForTheAgentsGroup: strangers cannot even connect.
func TestShepherdsSocketIsForTheAgentsGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: owners are changed")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := listen(path, &identity{uid: 61001, gid: 61001}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o660 || st.Uid != 61001 || st.Gid != 61001 {
		t.Errorf("mode %v of %d:%d", info.Mode(), st.Uid, st.Gid)
	}
}
