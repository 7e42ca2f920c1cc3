package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// hall is the folder of a test's controllers: certificates and grid.conf, no nodes that answer.
type hall struct {
	t   *testing.T
	dir string
	cfg *conf.Config
}

// newHall lays n controllers out. Ports are free ones; a test that loses the race for one fails loudly.
func newHall(t testing.TB, dir string, n int, more string) (string, *conf.Config) {
	t.Helper()
	ca, err := authn.NewCA("hall", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tls := filepath.Join(dir, "tls")
	if err := os.MkdirAll(tls, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := ca.WriteCert(tls); err != nil {
		t.Fatal(err)
	}
	ports, err := freePorts(2 * n)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "ClusterName=hall\nTLSDir=%s\n%s\n", tls, more)
	for i := range n {
		name := fmt.Sprintf("c%d", i+1)
		pair, err := ca.Issue(authn.RoleCtld, name, 0, rand.Reader, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.Write(tls, name); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "ControllerName=%s Address=127.0.0.1 Port=%d RaftPort=%d Socket=%s/%s.sock StateDir=%s/state/%s\n",
			name, ports[2*i], ports[2*i+1], dir, name, dir, name)
	}
	fmt.Fprintf(&b, "NodeName=n[1-4] CPUs=64 RealMemory=64000\nPartitionName=batch Nodes=ALL Default=YES\n")
	path := filepath.Join(dir, "grid.conf")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := conf.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, cfg
}

// shortDir is a folder whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// running is one controller in this process.
type running struct {
	stop context.CancelFunc
	done chan error
}

func (h *hall) start(name string) *running {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, done: make(chan error, 1)}
	ready := make(chan struct{})
	go func() {
		r.done <- Run(ctx, Options{Config: h.cfg, Name: name, Version: "test", Logger: quiet(), Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-r.done:
		cancel()
		h.t.Fatalf("%s: %v", name, err)
	}
	h.t.Cleanup(func() { r.end(h.t) })
	return r
}

func (r *running) end(t *testing.T) {
	r.stop()
	if err, open := <-r.done; open && err != nil {
		t.Errorf("shutdown: %v", err)
	}
	select {
	case <-r.done:
	default:
		close(r.done)
	}
}

func (h *hall) client(name string) ctldpb.ControllerClient {
	h.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(h.dir, name+".sock"), grpc.WithTransportCredentials(authn.PeerCred()))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return ctldpb.NewControllerClient(conn)
}

// TestThreeControllers: real replicas, listeners and certificates. Any of them takes a submission,
// all show it, and the cluster goes on when the leader stops.
func TestThreeControllers(t *testing.T) {
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 3, "RaftTimeout=500ms")
	h := &hall{t, dir, cfg}
	controllers := map[string]*running{}
	for _, c := range cfg.Controllers {
		controllers[c.Name] = h.start(c.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	uid := uint32(os.Getuid())
	if uid == 0 {
		uid = 65534 // root submits for nobody, as root's own jobs are refused
	}
	submit := func(name string) uint32 {
		t.Helper()
		resp, err := h.client(name).Submit(ctx, &ctldpb.SubmitRequest{Uid: uid, Spec: &ctldpb.JobSpec{
			WorkDir: "/tmp", Script: []byte("#!/bin/sh\n")}})
		if err != nil {
			t.Fatalf("submit at %s: %v", name, err)
		}
		return resp.JobId
	}
	count := func(name string) int {
		t.Helper()
		s, err := h.client(name).ListJobs(ctx, &ctldpb.ListJobsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			page, err := s.Recv()
			if err == io.EOF {
				return n
			}
			if err != nil {
				t.Fatalf("list at %s: %v", name, err)
			}
			n += len(page.Jobs)
			for _, j := range page.Jobs {
				if j.Uid != uid {
					t.Errorf("job %d is uid %d's, want %d", j.JobId, j.Uid, uid)
				}
			}
		}
	}
	seen := map[uint32]bool{}
	for i, c := range cfg.Controllers {
		seen[submit(c.Name)] = true
		for _, other := range cfg.Controllers {
			if got := count(other.Name); got != i+1 {
				t.Errorf("%s shows %d jobs after %d submissions", other.Name, got, i+1)
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("ids %v", seen)
	}
	ping, err := h.client("c1").Ping(ctx, &ctldpb.PingRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ping.Peers {
		if !p.Up {
			t.Errorf("peer %s: %s", p.Name, p.Error)
		}
	}
	if ping.Leader == "" {
		t.Fatal("nobody leads")
	}
	controllers[ping.Leader].end(t)
	for _, c := range cfg.Controllers {
		if c.Name != ping.Leader {
			seen[submit(c.Name)] = true
		}
	}
	if len(seen) != 5 {
		t.Errorf("ids after the leader stopped: %v", seen)
	}
}

func TestStateDirAndSocketFolder(t *testing.T) {
	dir := shortDir(t)
	state := filepath.Join(dir, "state")
	lock, err := openStateDir(state)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openStateDir(state); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second controller on the same folder: %v", err)
	}
	lock.Close()
	if err := os.Chmod(state, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := openStateDir(state); err == nil || !strings.Contains(err.Error(), "0750") {
		t.Errorf("a loose state directory: %v", err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(filepath.Join(open, "s")); err == nil {
		t.Error("a socket in a folder that anybody may write")
	}
	path := filepath.Join(dir, "s")
	for range 2 { // the second finds the first one's leftover
		l, err := listenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("socket mode %v %v", info.Mode(), err)
		}
		l.Close()
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(filepath.Join(dir, "file")); err == nil {
		t.Error("a file was taken for an old socket")
	}
	if _, err := listenUnix(filepath.Join(dir, strings.Repeat("x", maxSocketPath))); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("a path over the kernel's limit: %v", err)
	}
}

func TestWrongCertificate(t *testing.T) {
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 3, "")
	for _, ext := range []string{".pem", ".key"} {
		if err := os.Rename(filepath.Join(dir, "tls", "c2"+ext), filepath.Join(dir, "tls", "c1"+ext)); err != nil {
			t.Fatal(err)
		}
	}
	err := Run(context.Background(), Options{Config: cfg, Name: "c1", Logger: quiet()})
	if err == nil || !strings.Contains(err.Error(), `"c2"`) {
		t.Errorf("another controller's certificate: %v", err)
	}
	if err := Run(context.Background(), Options{Config: cfg, Name: "c9", Logger: quiet()}); err == nil || !strings.Contains(err.Error(), "ControllerName=c9") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	dir := shortDir(t)
	path, _ := newHall(t, dir, 1, "")
	bad := filepath.Join(dir, "bad.conf")
	if err := os.WriteFile(bad, []byte("ClusterName=x\nKillWait=y\nNoSuchKey=1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	even := filepath.Join(dir, "even.conf")
	if err := os.WriteFile(even, []byte("ClusterName=x\nControllerName=a\nControllerName=b\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	wallet := filepath.Join(dir, "wallet.conf")
	if err := os.WriteFile(wallet, []byte("ClusterName=x\nControllerName=a\nWallets=0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed=ann\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"help", []string{"--help"}, 0, "Example:"},
		{"version", []string{"-V"}, 0, "gctld "},
		{"check", []string{"--check", "--conf", path}, 0, "1 controller, 4 nodes, 1 partition: ok"},
		{"check of a bad file", []string{"--check", "-f", bad}, 1, "bad.conf:2"},
		{"unknown option", []string{"--nope"}, 2, "nope"},
		{"word", []string{"start"}, 2, "start"},
		{"nodes over the limit", []string{"--dev", "--nodes", "65"}, 2, "1 to 64"},
		{"two controllers", []string{"--dev", "--controllers", "2"}, 2, "1, 3 or 5"},
		{"GPUs over the limit", []string{"--dev", "--sim", "a100:99"}, 2, "limit of 64"},
		{"no room for sockets", []string{"--dev", "--dir", "/tmp/" + strings.Repeat("d", 120)}, 1, "bytes too long"},
		{"join and bootstrap", []string{"--join", "--bootstrap"}, 2, "--join and --bootstrap exclude each other"},
		{"restore and dev", []string{"--restore", "x", "--dev"}, 2, "--restore and --dev exclude each other"},
		{"inspect of nothing", []string{"--inspect", ""}, 2, "--inspect: which file?"},
		{"skipped ids of nothing", []string{"--skip-ids", "5"}, 2, "--skip-ids is for --restore"},
		{"nodes of nothing", []string{"--nodes", "4", "--conf", path}, 2, "--nodes is for --dev"},
		{"folder of nothing", []string{"--dir", dir}, 2, "--dir is for --dev"},
		{"check of a folder", []string{"--check", "--conf", dir}, 1, "is a directory"},
		{"too many skipped ids", []string{"--restore", "x", "--skip-ids", "268435457"}, 2, "at most 268435456"},
		{"negative skipped ids", []string{"--restore", "x", "--skip-ids", "-1"}, 2, "skip-ids"},
		{"check of an even number", []string{"--check", "--conf", even}, 0, "an even number of controllers"},
		{"wallet with a wrong digit", []string{"--check", "--conf", wallet}, 1, "its capitals are wrong"},
		{"odd board", []string{"--dev", "--sim", "abacus"}, 2, "abacus"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := os.CreateTemp(dir, "out")
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			code := Main(tt.args, out, out)
			text, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			if code != tt.code || !bytes.Contains(text, []byte(tt.want)) {
				t.Errorf("code %d, %q; want %d, %q", code, text, tt.code, tt.want)
			}
		})
	}
}

func TestAnnounce(t *testing.T) {
	dir := shortDir(t)
	sock := filepath.Join(dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: sock, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", sock)
	file := filepath.Join(dir, "ready")
	if err := announce(file, "gctld ready c1"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := l.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("notification %q %v", buf[:n], err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "gctld ready c1\n" {
		t.Errorf("ready file %q %v", text, err)
	}
}

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 12800, 1 << 20: 12800, 4 << 20: 12800, 8 << 20: 6400, 128 << 20: 400, 256 << 20: 200, 512 << 20: 100, 8 << 30: 100} {
		if got := gcPercent(live, gcRoom); got != want {
			t.Errorf("gcPercent(%d MiB) = %d, want %d", live>>20, got, want)
		}
	}
	for memory, want := range map[uint64]uint64{0: 0, 1 << 30: 64 << 20, 4 << 30: 256 << 20, 8 << 30: 512 << 20, 1 << 40: 512 << 20} {
		if got := garbageRoom(memory); got != want {
			t.Errorf("on %d MiB of memory %d MiB of garbage are fine, want %d", memory>>20, got>>20, want>>20)
		}
	}
	if machineMemory() == 0 {
		t.Error("the machine's memory is not known")
	}
}
