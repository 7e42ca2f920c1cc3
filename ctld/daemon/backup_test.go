package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// gctld runs the program's Main and gives its code and what it printed.
func gctld(t *testing.T, args ...string) (int, string) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	code := Main(args, out, out)
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return code, string(text)
}

// save writes a backup of the cluster to path and gives the hash that the controller told.
func (h *hall) save(at, path string) (sum []byte) {
	h.t.Helper()
	s, err := h.client(at).SaveSnapshot(context.Background(), &ctldpb.SaveSnapshotRequest{})
	if err != nil {
		h.t.Fatal(err)
	}
	var data []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			h.t.Fatal(err)
		}
		data = append(data, m.Data...)
		sum = m.Sha256
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		h.t.Fatal(err)
	}
	return sum
}

// TestBackupAndRestore: a backup of one cluster becomes another of three, which shows the same jobs and gives
// no id again.
func TestBackupAndRestore(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an admin is needed: root")
	}
	dir := shortDir(t)
	path, cfg := newHall(t, dir, 3, "RaftTimeout=500ms")
	h := &hall{t, dir, cfg}
	one := h.launch(Options{Config: h.file("c1"), Name: "c1"})
	for range 3 {
		h.submit("c1")
	}
	file := filepath.Join(dir, "backup")
	sum := h.save("c1", file)
	last := h.submit("c1") // after the backup
	one.end(t)
	code, text := gctld(t, "--inspect", file)
	for _, want := range []string{"cluster     hall", "jobs        3 (3 pending, 0 running)", fmt.Sprintf("sha256      %x", sum), "check       ok"} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("code %d, %q is not in\n%s", code, want, text)
		}
	}
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"a folder in use", "not empty", []string{"--restore", file, "--conf", path, "--name", "c1"}},
		{"no such controller", "ControllerName=c9", []string{"--restore", file, "--conf", path, "--name", "c9"}},
		{"no file", "no such file", []string{"--restore", file + "x", "--conf", path, "--name", "c2"}},
		{"no backup", "is no backup", []string{"--inspect", path}},
	} {
		if code, text := gctld(t, tt.args...); code != 1 || !strings.Contains(text, tt.want) {
			t.Errorf("%s: %d %s", tt.name, code, text)
		}
	}
	h.piped(file, path, sum)
	h.damaged(file)
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	for _, c := range cfg.Controllers {
		if code, text := gctld(t, "--restore", file, "--skip-ids", "100", "--conf", path, "--name", c.Name); code != 0 {
			t.Fatalf("%s: %s", c.Name, text)
		}
	}
	for _, c := range cfg.Controllers {
		h.launch(Options{Config: cfg, Name: c.Name})
	}
	if id := h.submit("c2"); id <= last || id < 103 {
		t.Errorf("id %d was given; %d was given after the backup", id, last)
	}
	for _, c := range cfg.Controllers {
		h.until("jobs of "+c.Name, func(ctx context.Context) error {
			ids, err := h.jobs(ctx, c.Name, true)
			if err == nil && len(ids) != 4 {
				err = fmt.Errorf("%v", ids)
			}
			return err
		})
	}
}

// piped looks at a backup that comes by a pipe, and is refused one to restore.
func (h *hall) piped(file, conf string, sum []byte) {
	h.t.Helper()
	data, err := os.ReadFile(file)
	pipe := filepath.Join(h.dir, "pipe")
	if err = errors.Join(err, syscall.Mkfifo(pipe, 0o600)); err != nil {
		h.t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- os.WriteFile(pipe, data, 0) }()
	if code, text := gctld(h.t, "--inspect", pipe); code != 0 || !strings.Contains(text, fmt.Sprintf("sha256      %x", sum)) || !strings.Contains(text, "check       ok") {
		h.t.Errorf("by a pipe: %d %s", code, text)
	}
	if err := <-wrote; err != nil {
		h.t.Error(err)
	}
	if code, text := gctld(h.t, "--restore", pipe, "--conf", conf, "--name", "c2"); code != 1 || !strings.Contains(text, "no plain file") {
		h.t.Errorf("restored from a pipe: %d %s", code, text)
	}
}

// damaged looks whether a backup is refused with any byte cut off, changed or added.
func (h *hall) damaged(file string) {
	h.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		h.t.Fatal(err)
	}
	try := func(name string, b []byte) {
		path := filepath.Join(h.dir, "bad")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			h.t.Fatal(err)
		}
		if code, text := gctld(h.t, "--inspect", path); code != 1 || strings.Contains(text, "check       ok") {
			h.t.Errorf("%s: %d %s", name, code, text)
		}
	}
	for _, n := range []int{0, 1, len(data) / 2, len(data) - 1} {
		try(fmt.Sprint("cut at ", n), data[:n])
	}
	try("a byte more", append(bytes.Clone(data), 0))
	for i := 0; i < len(data); i += max(1, len(data)/40) {
		b := bytes.Clone(data)
		b[i] ^= 0x20
		try(fmt.Sprint("changed at ", i), b)
	}
}

func TestRestoreOfAnotherCluster(t *testing.T) {
	dir := shortDir(t)
	path, cfg := newHall(t, dir, 1, "RaftTimeout=500ms")
	h := &hall{t, dir, cfg}
	if os.Getuid() != 0 {
		t.Skip("an admin is needed: root")
	}
	r := h.launch(Options{Config: cfg, Name: "c1"})
	h.submit("c1")
	file := filepath.Join(dir, "backup")
	h.save("c1", file)
	r.end(t)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other.conf")
	if err := os.WriteFile(other, bytes.Replace(text, []byte("ClusterName=hall"), []byte("ClusterName=other"), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out := gctld(t, "--restore", file, "--conf", other, "--name", "c1"); code != 1 || !strings.Contains(out, `of cluster "hall"`) {
		t.Errorf("%d %s", code, out)
	}
}

// TestRenewal: a controller renews its own certificate where the issuer's key is, in time, and uses the new one
// without a restart; without the key it leaves it alone.
func TestRenewal(t *testing.T) {
	dir := shortDir(t)
	ca, err := authn.NewCA("hall", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Write(dir); err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(authn.RoleCtld, "c1", 10*time.Hour, rand.Reader, time.Now())
	if err == nil {
		err = pair.Write(dir, "c1")
	}
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	clock := func() time.Time { return now }
	id, err := authn.OpenIdentity(dir, "c1", clock)
	if err != nil {
		t.Fatal(err)
	}
	log, said := loud()
	cfg := &conf.Config{ClusterName: "hall", TLSDir: dir}
	look := func() time.Time {
		now = now.Add(2 * time.Second) // the files are looked at again
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		renewal{issuer: newIssuer(cfg, clock), id: id, dir: dir, log: log, now: clock, every: time.Hour,
			life: func() time.Duration { return 20 * time.Hour }}.run(ctx)
		now = now.Add(2 * time.Second)
		return id.Expiry().NotAfter
	}
	first := look()
	now = now.Add(6*time.Hour + 30*time.Minute)
	if got := look(); !got.Equal(first) {
		t.Errorf("renewed before two thirds of the life: %v", got)
	}
	now = now.Add(30 * time.Minute)
	key := filepath.Join(dir, authn.CAKeyFile)
	if err := os.Rename(key, key+".away"); err != nil {
		t.Fatal(err)
	}
	if got := look(); !got.Equal(first) || said.String() != "" {
		t.Errorf("without the key: %v, said %s", got, said)
	}
	if err := os.Rename(key+".away", key); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := look(); !got.Equal(first) || !strings.Contains(said.String(), "cannot be renewed") {
		t.Errorf("with a key that others can read: %v, said %s", got, said)
	}
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := authn.LockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := look(); !got.Equal(first) {
		t.Errorf("renewed while another process changes the folder: %v", got)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if got := look(); got.Sub(now) < 19*time.Hour || id.Role() != authn.RoleCtld {
		t.Errorf("not renewed: %v", got)
	}
	// The clock was two hours ahead when that was made: once it is right, nobody would take the certificate.
	ahead := id.Expiry().NotAfter
	now = now.Add(-2 * time.Hour)
	if got := look(); !got.Before(ahead) || id.Expiry().NotBefore.After(now) {
		t.Errorf("a certificate that begins in the future stays: %v", got)
	}
	cfg.ClusterName = "other"
	if _, err := newIssuer(cfg, clock).CA(); err == nil || !strings.Contains(err.Error(), "cluster hall") {
		t.Errorf("another cluster's key: %v", err)
	}
}

// TestFence: the program gets the node's name and nothing of our environment; one that fails says why, and one
// that hangs is ended with all that it started.
func TestFence(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "fence")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GRID_SECRET", "x")
	run := fence(func() *conf.Config { return &conf.Config{ClusterName: "hall", FenceProgram: program} })
	write(`[ "$1 $GRID_NODE $GRID_CLUSTER" = "n1 n1 hall" ] && [ -z "$GRID_SECRET" ] && [ "$(pwd)" = / ] && [ -z "$(cat)" ]`)
	if err := run(context.Background(), "n1"); err != nil {
		t.Error(err)
	}
	write("echo no such outlet >&2; exit 3")
	if err := run(context.Background(), "n1"); err == nil || !strings.Contains(err.Error(), "exit status 3: no such outlet") {
		t.Error(err)
	}
	write("head -c 100000 /dev/zero | tr '\\0' x; exit 1")
	if err := run(context.Background(), "n1"); err == nil || len(err.Error()) > 2*fenceOutput {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	write("sleep 1000 & echo $! > " + dir + "/pid; wait")
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := run(ctx, "n1"); err == nil || !strings.Contains(err.Error(), "it was ended") {
		t.Error(err)
	}
	var pid int
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Sscan(string(text), &pid)
	for end := time.Now().Add(5 * time.Second); syscall.Kill(pid, 0) == nil && !zombie(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("what the program started lives on")
		}
	}
}

func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(text), ") Z ")
}

// TestNoSpace: a controller on a full disk ends with a clear text; so does one that is started there.
func TestNoSpace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a file system is mounted: root")
	}
	dir := shortDir(t)
	_, cfg := newHall(t, dir, 1, "RaftTimeout=500ms\nStateReserve=4")
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", state).CombinedOutput(); err != nil {
		t.Skipf("no tmpfs here: %s", out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", state).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	})
	h := &hall{t, dir, cfg}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Config: cfg, Name: "c1", Logger: quiet(), Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	h.submit("c1")
	fill := filepath.Join(state, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	_, full := io.Copy(f, io.LimitReader(zeros{}, 64<<20))
	if err := f.Close(); full == nil {
		t.Fatalf("the file system is not full: %v", err)
	}
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), state) {
			t.Errorf("it ended with %v", err)
		}
		t.Log(err)
	case <-time.After(60 * time.Second):
		t.Fatal("a controller on a full disk goes on")
	}
	err = Run(context.Background(), Options{Config: cfg, Name: "c1", Logger: quiet()})
	if err == nil || !strings.Contains(err.Error(), state) {
		t.Errorf("started without space: %v", err)
	}
	t.Log(err)
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	h.launch(Options{Config: cfg, Name: "c1"})
	h.until("the job", func(ctx context.Context) error {
		ids, err := h.jobs(ctx, "c1", false)
		if err == nil && len(ids) != 1 {
			err = fmt.Errorf("%v", ids)
		}
		return err
	})
}

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
