package launch_test

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// The ids of the tests: no account needs to exist for them.
const (
	agentID = 61001
	stepID  = 61002
	userID  = 61010
	otherID = 61011
)

// nodeName is this process's own, and so are the control groups of its launcher: several may run here.
var nodeName = fmt.Sprintf("n%d", os.Getpid())

// binEnv names a folder where the binaries have already been built.
const binEnv = "TENSORGRID_TEST_BINARIES"

var binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(binEnv); dir != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp("", "tensorgrid-bin-")
	if err != nil {
		return "", err
	}
	built = dir
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "../launcher", "../stepd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build: %w: %s", err, out)
	}
	return dir, err
})

// built is the folder that binaries made, to be removed at the end.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// node is a launcher with a certificate authority and an agent that keeps what shepherds say.
type node struct {
	t        testing.TB
	dir      string
	spool    string
	conf     string
	cert     []byte
	key      ed25519.PrivateKey
	ca       *x509.Certificate
	caKey    ed25519.PrivateKey
	cmd      *exec.Cmd
	conn     net.Conn
	listener net.Listener
	nextID   atomic.Uint64
	log      bytes.Buffer
	stopped  bool

	mu      sync.Mutex
	waiting map[uint64]chan launch.Reply
	ended   map[launch.Key]*shepherd.Record
	wake    chan struct{}
	links   map[launch.Key]net.Conn
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: ids are changed and control groups made")
	}
}

// newNode starts a launcher. extra lines are added to its configuration.
func newNode(t testing.TB, extra ...string) *node {
	t.Helper()
	needRoot(t)
	return newNodeAs(t, append([]string{fmt.Sprintf("agent_uid=%d\nagent_gid=%d\nstep_uid=%d\nstep_gid=%d",
		agentID, agentID, stepID, stepID)}, extra...)...)
}

func newNodeAs(t testing.TB, extra ...string) *node {
	t.Helper()
	bin, err := binaries()
	must(t, err)
	dir, err := os.MkdirTemp("", "tg-launch-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	n := &node{t: t, dir: dir, spool: dir + "/spool", conf: dir + "/launch.conf", waiting: map[uint64]chan launch.Reply{},
		ended: map[launch.Key]*shepherd.Record{}, wake: make(chan struct{}), links: map[launch.Key]net.Conn{}}
	n.makeCA()
	n.cert, n.key = n.issue("tensorgrid://test/ctld/c1", time.Now().Add(time.Hour))
	lines := append([]string{"cluster = test", "node = " + nodeName, "ca=" + dir + "/ca.pem", "socket=" + dir + "/launch.sock",
		"spool=" + n.spool, "stepd=" + bin + "/stepd", "agent_socket=" + dir + "/agent.sock"}, extra...)
	must(t, os.WriteFile(n.conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	must(t, os.Mkdir(dir+"/home", 0o700))
	if os.Getuid() == 0 {
		must(t, os.Chown(dir+"/home", userID, userID))
	}
	n.startAgent()
	n.startLauncher()
	t.Cleanup(n.stop)
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *node) makeCA() {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	must(n.t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, key)
	must(n.t, err)
	n.ca, err = x509.ParseCertificate(der)
	must(n.t, err)
	n.caKey = key
	must(n.t, os.WriteFile(n.dir+"/ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
}

func (n *node) issue(uri string, till time.Time) ([]byte, ed25519.PrivateKey) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	must(n.t, err)
	u, err := url.Parse(uri)
	must(n.t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), URIs: []*url.URL{u},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: till, KeyUsage: x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, n.ca, pub, n.caKey)
	must(n.t, err)
	return der, key
}

func (n *node) startLauncher() {
	bin, err := binaries()
	must(n.t, err)
	// A child of a launcher that was killed holds its socket until it comes to its own program.
	if err := os.Remove(n.dir + "/launch.sock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	n.cmd = exec.Command(bin+"/launcher", "-f", n.conf)
	n.cmd.Stderr = &n.log
	n.cmd.WaitDelay = 5 * time.Second
	must(n.t, n.cmd.Start())
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := n.dialAs(agentID)
		if err == nil {
			n.conn = conn
			go n.readReplies(conn)
			return
		}
		if time.Now().After(deadline) {
			n.cmd.Process.Kill()
			n.cmd.Wait()
			n.t.Fatalf("launcher: %v\n%s", err, n.log.String())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// dialAs connects with the credentials of uid: a thread of its own takes them on, and is thrown away.
func (n *node) dialAs(uid int) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	ch := make(chan result)
	go func() {
		if os.Getuid() == 0 {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			if err := becomeThread(uid); err != nil {
				ch <- result{nil, err}
				return
			}
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: n.dir + "/launch.sock"})
		}
		if err != nil {
			unix.Close(fd)
			ch <- result{nil, err}
			return
		}
		f := os.NewFile(uintptr(fd), "sock")
		defer f.Close()
		conn, err := net.FileConn(f)
		ch <- result{conn, err}
	}()
	r := <-ch
	return r.conn, r.err
}

func becomeThread(uid int) error {
	id, same := uintptr(uid), ^uintptr(0)
	gid := id
	if uid == stepID {
		gid = agentID // shepherds hold the agent's group
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESGID, same, gid, same); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, same, id, same); e != 0 {
		return e
	}
	return nil
}

func (n *node) readReplies(conn net.Conn) {
	in := bufio.NewReader(conn)
	for {
		var r launch.Reply
		if launch.ReadFrame(in, &r) != nil {
			return
		}
		n.mu.Lock()
		ch := n.waiting[r.ID]
		delete(n.waiting, r.ID)
		n.mu.Unlock()
		if ch != nil {
			ch <- r
		}
	}
}

// ask sends a request and waits for its answer.
func (n *node) ask(req launch.Request) launch.Reply {
	n.t.Helper()
	ch, err := n.send(req)
	must(n.t, err)
	select {
	case r := <-ch:
		return r
	case <-time.After(20 * time.Second):
		n.t.Fatalf("no answer\n%s", n.log.String())
	}
	panic("not reached")
}

func (n *node) send(req launch.Request) (chan launch.Reply, error) {
	req.ID = n.nextID.Add(1)
	ch := make(chan launch.Reply, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting[req.ID] = ch
	return ch, launch.WriteRequest(n.conn, &req)
}

func (n *node) startAgent() {
	path := n.dir + "/agent.sock"
	l, err := net.Listen("unix", path)
	must(n.t, err)
	must(n.t, os.Chmod(path, 0o660))
	if os.Getuid() == 0 {
		must(n.t, os.Chown(path, agentID, agentID))
	}
	n.listener = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go n.hear(conn)
		}
	}()
}

// stopAgent closes the agent's socket and all its connections, as kill -9 would.
func (n *node) stopAgent() {
	n.listener.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, c := range n.links {
		c.Close()
		delete(n.links, k)
	}
}

func (n *node) hear(conn net.Conn) {
	defer conn.Close()
	scan := bufio.NewScanner(conn)
	for scan.Scan() {
		var up shepherd.Up
		if json.Unmarshal(scan.Bytes(), &up) != nil {
			return
		}
		n.mu.Lock()
		if up.Hello != nil {
			n.links[up.Hello.Key] = conn
		}
		if up.Ended != nil {
			n.ended[up.Ended.Key] = up.Ended
		}
		close(n.wake)
		n.wake = make(chan struct{})
		n.mu.Unlock()
	}
}

// tell sends an order to a shepherd, once it has said hello.
func (n *node) tell(k launch.Key, d shepherd.Down) {
	n.t.Helper()
	var conn net.Conn
	n.until("hello of "+k.String(), func() bool { conn = n.links[k]; return conn != nil })
	data, err := json.Marshal(d)
	must(n.t, err)
	_, err = conn.Write(append(data, '\n'))
	must(n.t, err)
}

// until waits for a condition on what shepherds have said.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		n.mu.Lock()
		met, wake := ok(), n.wake
		n.mu.Unlock()
		if met {
			return
		}
		select {
		case <-wake:
		case <-deadline:
			n.t.Fatalf("waiting for %s\n%s\n%s", what, n.log.String(), n.crashes())
		}
	}
}

func (n *node) crashes() string {
	data, _ := os.ReadFile(n.spool + "/shepherd.log")
	return string(data)
}

func (n *node) wait(k launch.Key) *shepherd.Record {
	n.t.Helper()
	var r *shepherd.Record
	n.until("end of "+k.String(), func() bool { r = n.ended[k]; return r != nil })
	return r
}

// release runs the epilog and removes the step, and wants that to work.
func (n *node) release(k launch.Key) {
	n.t.Helper()
	if r := n.ask(launch.Request{Release: &launch.Release{Key: k}}); r.Err != "" {
		n.t.Errorf("release %s: %s", k, r.Err)
	}
}

func (n *node) stop() {
	if n.stopped {
		return
	}
	n.stopped = true
	keys := n.ask(launch.Request{List: true}).Keys
	for _, k := range keys {
		n.ask(launch.Request{Kill: &k})
		for range 100 {
			if r := n.ask(launch.Request{Release: &launch.Release{Key: k}}); r.Errno != int(unix.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	n.conn.Close()
	n.cmd.Process.Signal(unix.SIGTERM)
	n.cmd.Wait()
	n.stopAgent()
}

func (n *node) killLauncher() {
	n.cmd.Process.Kill()
	n.cmd.Wait()
	n.conn.Close()
}

// order is a start order in the making.
type order struct {
	launch.Start
	cred.Payload
	l cred.Launch
}

var nextJob atomic.Uint32

// order makes a good order for a script, which the test may then spoil.
func (n *node) order(script string, change ...func(*cred.Launch)) *order {
	o := &order{Payload: cred.Payload{Script: []byte(script), Env: [][]byte{[]byte("PATH=/usr/bin:/bin"), []byte("A=b c")}}}
	o.l = cred.Launch{Cluster: "test", Node: nodeName, JobID: nextJob.Add(1), Step: job.BatchStep, UID: userID, GID: userID,
		Groups: []uint32{userID}, User: "tester", NotBefore: time.Now().Add(-time.Minute).UnixMilli(),
		Expires: time.Now().Add(time.Minute).UnixMilli(), Alloc: job.NodeAlloc{Node: nodeName, CPUs: 1}, NodeList: nodeName, NumNodes: 1,
		WorkDir: n.dir + "/home", StdOut: "out", Umask: 0o022, TimeLimit: job.Unlimited, KillWait: 1000, SharedFS: true,
		JobName: "test", Partition: "p"}
	if os.Getuid() != 0 {
		o.l.UID, o.l.GID = uint32(os.Getuid()), uint32(os.Getgid())
	}
	for _, c := range change {
		c(&o.l)
	}
	return o
}

func (o *order) key() launch.Key { return launch.Key{Job: o.l.JobID, Run: o.l.Run, Step: o.l.Step} }

func (n *node) sign(o *order) *launch.Start {
	o.l.Payload = cred.PayloadDigest(o.Script, o.Args, o.Env)
	o.Credential = o.l.Marshal()
	o.Signature = cred.Sign(n.key, o.Credential)
	o.Certificate = n.cert
	return o.made()
}

// made is the order as it is now, spoiled or not.
func (o *order) made() *launch.Start {
	o.Start.Payload = cred.AppendPayload(nil, o.Script, o.Args, o.Env)
	return &o.Start
}

// start signs and sends an order and wants it to be taken.
func (n *node) start(o *order) launch.Key {
	n.t.Helper()
	if r := n.ask(launch.Request{Start: n.sign(o)}); r.Err != "" {
		n.t.Fatalf("start: %s (cause %d, errno %d)\n%s\n%s", r.Err, r.Cause, r.Errno, n.log.String(), n.crashes())
	} else if r.Start == 0 {
		n.t.Fatal("start: no start time")
	}
	return o.key()
}

func (n *node) read(name string) string {
	n.t.Helper()
	data, err := os.ReadFile(filepath.Join(n.dir, "home", name))
	must(n.t, err)
	return string(data)
}
