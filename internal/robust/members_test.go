package robust

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// underLoad submits jobs until stop is called, which comes back when the last is acknowledged.
func (c *cluster) underLoad(h *history, a *acks) (stop func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			default:
			}
			c.load(h, a, fmt.Sprintf("m%d", i), 100)
			time.Sleep(200 * time.Millisecond)
		}
	})
	return func() { close(quit); wg.Wait() }
}

// join starts a spare controller and makes it a voter.
func (c *cluster) join(name string) {
	c.t.Helper()
	p := c.proc[name]
	// Its file names the first controller and itself: where others that joined are it has to learn.
	p.extra = []string{"--join"}
	c.ok(p.start())
	p.extra = nil
	begin := time.Now()
	add := &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_ADD, Name: name, Address: c.address(name), Port: ctldPort, RaftPort: raftPort}
	if err := c.change(time.Minute, add); err != nil && !strings.Contains(err.Error(), "already") {
		c.t.Fatalf("add %s: %v", name, err)
	}
	promote := &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_PROMOTE, Name: name}
	if err := c.change(time.Minute, promote); err != nil && !strings.Contains(err.Error(), "already") {
		c.t.Fatalf("promote %s: %v", name, err)
	}
	within(c.t, 30*time.Second, name+" votes", func() error { return c.isVoter(name) })
	c.t.Logf("%s is a voter after %v", name, time.Since(begin).Round(time.Millisecond))
}

// leave removes a controller, which has to end with code 0 by itself.
func (c *cluster) leave(name string) {
	c.t.Helper()
	if err := c.change(time.Minute, &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_REMOVE, Name: name}); err != nil {
		// One that led hands over first, and the answer to the second try may be that it is gone already.
		if !strings.Contains(err.Error(), "no member") && !strings.Contains(err.Error(), "no controller") {
			c.t.Fatalf("remove %s: %v", name, err)
		}
	}
	if code, err := c.proc[name].waitEnd(30 * time.Second); err != nil || code != 0 {
		c.t.Errorf("%s was removed and ended with code %d %v\n%s", name, code, err, c.proc[name].tail())
	}
}

// TestMembers: 1 -> 3 -> 5 -> 3 controllers under load, each size loses its leader once; what runs does not
// notice, and nothing is lost.
func TestMembers(t *testing.T) {
	long(t)
	const long = 40
	c := start(t, layout{controllers: 1, spare: 4, nodes: 3, cpus: 40})
	before := c.startLong(long)
	f := &failover{c: c, before: before}
	stop := sync.OnceFunc(c.underLoad(&f.h, &f.a))
	defer stop()
	fail := func() {
		lead := c.leader()
		c.proc[lead].kill()
		time.Sleep(2 * time.Second)
		c.run(lead)
		c.caughtUp()
	}
	c.join("c2")
	c.join("c3")
	fail()
	c.join("c4")
	c.join("c5")
	fail()
	c.leave(c.follower())
	c.leave(c.leader())
	fail()
	stop()
	c.caughtUp()
	voters := 0
	within(t, 10*time.Second, "the list of controllers", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		list, err := c.user(0).any().ListControllers(ctx, &ctldpb.ListControllersRequest{})
		voters = 0
		for _, m := range list.GetControllers() {
			if m.Voter && m.Up {
				voters++
			}
		}
		if voters != 3 {
			err = errors.Join(err, fmt.Errorf("%v", list))
		}
		return err
	})
	figure(t, "members_voters", float64(voters), "controllers", 3)
	f.finish("members", long)
	c.sameEverywhere()
}

// TestRemovedStaysOut: a controller that was removed says so when it is started again, and ends with 0.
func TestRemovedStaysOut(t *testing.T) {
	smoke(t)
	c := start(t, layout{controllers: 3, nodes: 1})
	gone := c.follower()
	c.leave(gone)
	c.run(gone)
	if code, err := c.proc[gone].waitEnd(20 * time.Second); err != nil || code != 0 {
		t.Errorf("started again it ended with code %d %v", code, err)
	}
	if !strings.Contains(c.proc[gone].tail(), "removed") {
		t.Errorf("its log does not say that it was removed:\n%s", c.proc[gone].tail())
	}
}

// TestEmptiedDisk: a replica whose disk was emptied comes back by itself, and counts again: with it and
// without another nothing is lost. Its own earlier votes and entries are gone, so this is done while the
// leader is killed too.
func TestEmptiedDisk(t *testing.T) {
	long(t)
	f := newFailover(t, 10)
	c := f.c
	stop := sync.OnceFunc(c.underLoad(&f.h, &f.a))
	defer stop()
	for i := range 4 {
		victim := c.follower()
		if i%2 == 1 {
			victim = c.leader()
		}
		begin := time.Now()
		c.ok(c.emptied(victim))
		t.Logf("%s was emptied and votes again after %v", victim, time.Since(begin).Round(time.Millisecond))
		for _, n := range c.names {
			if n != victim {
				c.proc[n].kill()
				time.Sleep(2 * time.Second)
				c.run(n)
				c.caughtUp()
				break
			}
		}
	}
	stop()
	c.caughtUp()
	f.finish("emptied", 10)
	c.sameEverywhere()
}

// TestBackup: a backup that was taken under load is restored on three empty replicas: the same bytes on each,
// the same jobs, no id given twice.
func TestBackup(t *testing.T) {
	long(t)
	f := newFailover(t, 0)
	c := f.c
	c.load(&f.h, &f.a, "before", 500)
	file := c.path("etc", "backup")
	if out, err := c.admin("gctl", "snapshot", "save", file); err != nil {
		t.Fatalf("%s %v", out, err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the backup: %v %v", st, err)
	}
	out, err := c.admin("gctl", "snapshot", "inspect", file)
	if err != nil {
		t.Fatalf("%s %v", out, err)
	}
	t.Logf("%s", out)
	had := c.allJobs()
	c.load(&f.h, &f.a, "after", 100) // acknowledged after the backup: these ids must not come again
	top := uint32(0)
	for _, o := range f.a.list {
		top = max(top, o.id)
	}
	for _, n := range c.names {
		c.proc[n].kill()
		c.ok(c.clear(n))
	}
	sums := map[[32]byte]bool{}
	for _, n := range c.names {
		out, err := c.admin("gctld", "--conf", c.path("etc", n+".conf"), "--name", n, "--restore", file)
		if err != nil {
			t.Fatalf("%s %v", out, err)
		}
		states, _ := filepath.Glob(c.path("state", n, "snapshots", "*", "state.bin"))
		if len(states) != 1 {
			t.Fatalf("%s: snapshots %q", n, states)
		}
		data, err := os.ReadFile(states[0])
		c.ok(err)
		sums[sha256.Sum256(data)] = true
	}
	if len(sums) != 1 {
		t.Errorf("the three replicas were restored to %d states", len(sums))
	}
	for _, n := range c.names {
		c.run(n)
	}
	c.waitReady(time.Minute)
	c.caughtUp()
	jobs := c.allJobs()
	missing := 0
	for name, j := range had {
		if jobs[name] == nil || jobs[name].JobId != j.JobId {
			missing++
			t.Errorf("%s (%d) is not there after the restore", name, j.JobId)
		}
	}
	most(t, "backup_missing", float64(missing), "jobs", 0)
	if id := c.submit(c.spec("new", ":")); id <= top {
		t.Errorf("after the restore id %d is given; %d was given before", id, top)
	}
	c.sameEverywhere()
}

// TestRenewal: certificates run out and are renewed while all processes go on; what connects afterwards is
// taken by the new ones.
func TestRenewal(t *testing.T) {
	long(t)
	const life = 40 * time.Second
	c := start(t, layout{controllers: 3, nodes: 2, certLife: life})
	out := time.Now().Add(life)
	lives := map[string]int{}
	for n, p := range c.proc {
		lives[n] = p.cmd.Process.Pid
	}
	for i := range 5 {
		c.submit(c.spec(fmt.Sprintf("a%d", i), "/bin/sleep 60"))
	}
	c.certLife = 0
	var err error
	for _, n := range c.names {
		err = errors.Join(err, c.issue(authn.RoleCtld, n, 0))
	}
	for i := range c.nodes {
		err = errors.Join(err, c.issue(authn.RoleNode, node(i), agentUID))
	}
	c.ok(err)
	time.Sleep(time.Until(out.Add(5 * time.Second)))
	for pair := range c.links { // every connection is made anew
		c.link(pair[0], pair[1], cut)
	}
	time.Sleep(500 * time.Millisecond)
	c.heal()
	c.waitReady(30 * time.Second)
	c.caughtUp()
	for i := range 5 {
		c.submit(c.spec(fmt.Sprintf("b%d", i), ":"))
	}
	final := c.drained(2*time.Minute, nil)
	for name, j := range final {
		if j.State != "COMPLETED" || j.Run != 0 {
			t.Errorf("%s is %s in run %d", name, j.State, j.Run)
		}
	}
	for n, p := range c.proc {
		if !p.alive() || p.cmd.Process.Pid != lives[n] {
			t.Errorf("%s was started again", n)
		}
	}
	figure(t, "renewed_without_restart", float64(len(final)), "jobs", 10)
}

// TestStranger: a certificate of another CA, or none, gets nothing at any port.
func TestStranger(t *testing.T) {
	smoke(t)
	c := start(t, layout{controllers: 3, nodes: 1})
	ca, err := authn.NewCA(c.name, rand.Reader, time.Now())
	c.ok(err)
	pair, err := ca.Issue(authn.RoleCtld, "c9", 0, rand.Reader, time.Now())
	c.ok(err)
	tlsConf := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{{Certificate: [][]byte{pair.Cert.Raw}, PrivateKey: pair.Key}}}
	for _, port := range []int{ctldPort, raftPort} {
		if err := talks(fmt.Sprintf("%s:%d", c.address("c1"), port), tlsConf); err == nil || !strings.Contains(err.Error(), "tls: ") {
			t.Errorf("port %d does not refuse a certificate of another CA: %v", port, err)
		}
	}
	c.submit(c.spec("j", ":"))
	c.drained(30*time.Second, nil)
}

// talks tells whether the other side takes our certificate: with TLS 1.3 it refuses after our handshake.
func talks(address string, cfg *tls.Config) error {
	conn, err := tls.Dial("tcp", address, cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
