package launch_test

import (
	"encoding/binary"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch/server"
)

// refusedOrder is an order that no launcher takes.
type refusedOrder struct {
	name   string
	change func(*cred.Launch)
	spoil  func(*order) // after signing
	want   string
}

// cause is whom the refusal has to blame: ids that no job may have are the job's own fault, and speak against no node.
func (c *refusedOrder) cause() job.Cause {
	for _, word := range []string{"uid ", "gid", "group ", "refuse_uids", "node's own"} {
		if strings.Contains(c.want, word) {
			return job.CauseUser
		}
	}
	return job.CauseCredential
}

func TestOrdersThatAreRefused(t *testing.T) {
	n := newNode(t, "refuse_uids = 65534,62000-62010")
	past := func(d time.Duration) int64 { return time.Now().Add(-d).UnixMilli() }
	for _, c := range []refusedOrder{
		{"signature", nil, func(o *order) { o.Signature[3] ^= 1 }, "signature"},
		{"credential", nil, func(o *order) { o.Credential[len(o.Credential)-1] ^= 1 }, "signature"},
		{"script", nil, func(o *order) { o.Script = append(o.Script, '\n') }, "not those that were signed"},
		{"environment", nil, func(o *order) { o.Env = append(o.Env, []byte("LD_PRELOAD=x")) }, "not those that were signed"},
		{"arguments", nil, func(o *order) { o.Args = []string{"x"} }, "not those that were signed"},
		{"other node", func(l *cred.Launch) { l.Node = "n2" }, nil, `for node "n2"`},
		{"other node's share", func(l *cred.Launch) { l.Alloc.Node = "n2" }, nil, "for node"},
		{"other cluster", func(l *cred.Launch) { l.Cluster = "prod" }, nil, `for cluster "prod"`},
		{"expired", func(l *cred.Launch) { l.Expires = past(time.Second) }, nil, "expired"},
		{"early", func(l *cred.Launch) { l.NotBefore = past(-time.Minute) }, nil, "not valid yet"},
		{"root", func(l *cred.Launch) { l.UID = 0 }, nil, "uid 0"},
		{"system uid", func(l *cred.Launch) { l.UID = 999 }, nil, "uid 999"},
		{"huge uid", func(l *cred.Launch) { l.UID = 1<<32 - 1 }, nil, "uid 4294967295"},
		{"refused uid", func(l *cred.Launch) { l.UID = 62005 }, nil, "refuse_uids"},
		{"agent's uid", func(l *cred.Launch) { l.UID = agentID }, nil, "node's own"},
		{"shepherds' uid", func(l *cred.Launch) { l.UID = stepID }, nil, "node's own"},
		{"root's group", func(l *cred.Launch) { l.GID = 0 }, nil, "gid 0"},
		{"agent's group", func(l *cred.Launch) { l.GID = agentID }, nil, "gid"},
		{"group of root among others", func(l *cred.Launch) { l.Groups = []uint32{userID, 0} }, nil, "group 0"},
		{"relative work directory", func(l *cred.Launch) { l.WorkDir = "x" }, nil, "not absolute"},
		{"zero byte", func(l *cred.Launch) { l.StdOut = "a\x00b" }, nil, "NUL byte"},
		{"umask", func(l *cred.Launch) { l.Umask = 0o1000 }, nil, "umask"},
		{"self-signed", nil, func(o *order) { o.Certificate = n.strangersCert() }, "certificate"},
		{"agent's certificate", nil, n.roleCert("tensorgrid://test/node/n1", time.Hour), "no name tensorgrid://test/ctld/"},
		{"other cluster's certificate", nil, n.roleCert("tensorgrid://prod/ctld/c1", time.Hour), "no name"},
		{"old certificate", nil, n.roleCert("tensorgrid://test/ctld/c1", -time.Minute), "expired"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := n.order("#!/bin/sh\ntouch "+n.dir+"/home/ran", func(l *cred.Launch) {
				if c.change != nil {
					c.change(l)
				}
			})
			n.sign(o)
			if c.spoil != nil {
				c.spoil(o)
			}
			r := n.ask(launch.Request{Start: o.made()})
			if !strings.Contains(r.Err, c.want) || job.Cause(r.Cause) != c.cause() {
				t.Errorf("got %q cause %d, want %q", r.Err, r.Cause, c.want)
			}
			if _, err := os.Stat(launch.StepFolder(n.spool, o.key())); err == nil {
				t.Error("a folder was made")
			}
		})
	}
	if _, err := os.Stat(n.dir + "/home/ran"); err == nil {
		t.Error("a script ran")
	}
}

// roleCert signs the order with a certificate of our authority for another name or time.
func (n *node) roleCert(uri string, valid time.Duration) func(*order) {
	return func(o *order) {
		der, key := n.issue(uri, time.Now().Add(valid))
		o.Certificate = der
		o.Signature = cred.Sign(key, o.Credential)
	}
}

// strangersCert is a good certificate of another authority.
func (n *node) strangersCert() []byte {
	other := &node{t: n.t, dir: n.t.TempDir()}
	other.makeCA()
	der, _ := other.issue("tensorgrid://test/ctld/c1", time.Now().Add(time.Hour))
	return der
}

func TestARunStartsOnce(t *testing.T) {
	n := newNode(t)
	o := n.order("#!/bin/sh\necho ran >>out", func(l *cred.Launch) { l.StdOut = "/dev/null" })
	k := n.start(o)
	replay := func(when string) {
		t.Helper()
		if r := n.ask(launch.Request{Start: o.made()}); job.Cause(r.Cause) != job.CauseDuplicate {
			t.Errorf("%s: got %q cause %d, want duplicate", when, r.Err, r.Cause)
		}
	}
	replay("while it runs")
	n.wait(k)
	replay("after its end")
	n.killLauncher()
	n.startLauncher()
	replay("after a restart of the launcher")
	if r := n.ask(launch.Request{Release: &launch.Release{Key: k, KeepRecord: true}}); r.Err != "" {
		t.Fatal(r.Err)
	}
	replay("after the first half of the release")
	n.release(k)
	replay("after its release")
	n.killLauncher()
	n.startLauncher()
	replay("after release and restart")
	if got := n.read("out"); got != "ran\n" {
		t.Errorf("output %q", got)
	}
}

func TestOneOfManyEqualOrdersWins(t *testing.T) {
	n := newNode(t)
	o := n.order("#!/bin/sh\necho ran >>out", func(l *cred.Launch) { l.StdOut = "/dev/null" })
	n.sign(o)
	var replies []chan launch.Reply
	for range 20 {
		ch, err := n.send(launch.Request{Start: o.made()})
		must(t, err)
		replies = append(replies, ch)
	}
	won := 0
	for _, ch := range replies {
		if r := <-ch; r.Err == "" {
			won++
		} else if job.Cause(r.Cause) != job.CauseDuplicate {
			t.Errorf("cause %d: %s", r.Cause, r.Err)
		}
	}
	n.wait(o.key())
	if got := n.read("out"); won != 1 || got != "ran\n" {
		t.Errorf("%d orders won, output %q", won, got)
	}
	n.release(o.key())
}

func TestPeers(t *testing.T) {
	n := newNode(t)
	k := n.start(n.order("#!/bin/sh\nsleep 100"))
	ask := func(conn net.Conn, req launch.Request) (launch.Reply, error) {
		var r launch.Reply
		if err := launch.WriteRequest(conn, &req); err != nil {
			return r, err
		}
		return r, launch.ReadFrame(conn, &r)
	}
	step, err := n.dialAs(stepID)
	must(t, err)
	defer step.Close()
	for _, req := range []launch.Request{{List: true}, {Start: n.sign(n.order("#!/bin/sh\n"))}, {Release: &launch.Release{Key: k}}, {}} {
		if r, err := ask(step, req); err != nil || r.Errno != int(unix.EPERM) {
			t.Errorf("shepherd's %+v: %+v %v", req, r, err)
		}
	}
	if r, err := ask(step, launch.Request{Signal: &launch.Signal{Key: k, Number: 10, Batch: true}}); err != nil || r.Err != "" {
		t.Errorf("shepherd's signal: %+v %v", r, err)
	}
	if conn, err := n.dialAs(userID); err == nil {
		t.Error("a user could connect")
		conn.Close()
	}
	root, err := n.dialAs(0)
	must(t, err)
	defer root.Close()
	if _, err := ask(root, launch.Request{List: true}); err == nil {
		t.Error("uid 0 is neither agent nor shepherd, and was answered")
	}
	if r := n.wait(k); r.Signal != 10 {
		t.Errorf("ended with %+v, want signal 10", *r)
	}
	n.release(k)
}

func TestFrameOverTheLimitIsRefused(t *testing.T) {
	n := newNode(t)
	conn, err := n.dialAs(agentID)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
	_, err = conn.Write(binary.BigEndian.AppendUint32(nil, launch.MaxFrame+1))
	must(t, err)
	if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("read gives %v, want the connection closed", err)
	}
	if r := n.ask(launch.Request{List: true}); r.Err != "" {
		t.Errorf("another connection suffers: %s", r.Err)
	}
}

func TestLinksInTheSpoolAreNotFollowed(t *testing.T) {
	n := newNode(t)
	victim := n.dir + "/victim"
	must(t, os.WriteFile(victim, []byte("precious"), 0o644))
	// What a shepherd's uid could plant in a step's folder, and a user in a work directory.
	k := n.start(n.order("#!/bin/sh\nln -s "+n.dir+" there; mkdir -p a/b; ln -s / a/b/root; echo done", func(l *cred.Launch) {
		l.SharedFS = false
	}))
	n.wait(k)
	folder := launch.StepFolder(n.spool, k)
	must(t, os.Symlink(n.dir, folder+"/dir"))
	must(t, os.Symlink(victim, folder+"/file"))
	if _, err := os.Lstat(launch.WorkFolder(n.spool, k) + "/there"); err != nil {
		t.Fatal(err)
	}
	n.release(k)
	if data, err := os.ReadFile(victim); err != nil || string(data) != "precious" {
		t.Errorf("the victim of a link: %q %v", data, err)
	}
	for _, gone := range []string{folder, launch.WorkFolder(n.spool, k), launch.OutputFile(n.spool, k, false)} {
		if _, err := os.Lstat(gone); err == nil {
			t.Errorf("%s is still there", gone)
		}
	}
	// A folder that is there already, as a link, is a run that was here: nothing goes through it.
	o := n.order("#!/bin/sh\n")
	must(t, os.Symlink(n.dir, launch.StepFolder(n.spool, o.key())))
	if r := n.ask(launch.Request{Start: n.sign(o)}); job.Cause(r.Cause) != job.CauseDuplicate {
		t.Errorf("start through a link: %+v", r)
	}
	// An output file that is there already, as a link, is not written through.
	o = n.order("#!/bin/sh\necho over", func(l *cred.Launch) { l.SharedFS = false })
	must(t, os.Symlink(victim, launch.OutputFile(n.spool, o.key(), false)))
	if r := n.ask(launch.Request{Start: n.sign(o)}); r.Err == "" || job.Cause(r.Cause) != job.CauseNode {
		t.Errorf("output through a link: %+v", r)
	}
	if data, _ := os.ReadFile(victim); string(data) != "precious" {
		t.Errorf("the victim was written: %q", data)
	}
}

func TestSpoolThatIsALinkIsRefused(t *testing.T) {
	needRoot(t)
	n := newNode(t)
	n.killLauncher()
	must(t, os.Rename(n.spool+"/steps", n.spool+"/elsewhere"))
	must(t, os.Symlink("elsewhere", n.spool+"/steps"))
	c, err := server.LoadConf(n.conf)
	must(t, err)
	if _, err := server.New(c, time.Now, nil); err == nil {
		t.Error("steps is a link, and the launcher came up")
	}
	must(t, os.Remove(n.spool+"/steps"))
	must(t, os.Rename(n.spool+"/elsewhere", n.spool+"/steps"))
	n.startLauncher()
}
