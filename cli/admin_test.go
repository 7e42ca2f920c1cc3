package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

func (f *fake) ListControllers(context.Context, *ctldpb.ListControllersRequest) (*ctldpb.ListControllersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.catchUp > 0 {
		f.catchUp--
		f.ctls[len(f.ctls)-1].Lag = uint64(1000 * f.catchUp)
	}
	return &ctldpb.ListControllersResponse{Controllers: f.ctls, Feature: 2, Info: &ctldpb.ReadInfo{Leader: "c1"}}, nil
}

// ChangeController adds and removes as a real one does; the answer to the first of lost calls does not arrive.
func (f *fake) ChangeController(_ context.Context, r *ctldpb.ChangeControllerRequest) (*ctldpb.ChangeControllerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := -1
	for k := range f.ctls {
		if f.ctls[k].Name == r.Name {
			i = k
		}
	}
	refuse := func(why string) error {
		st, _ := status.New(codes.FailedPrecondition, "Invalid controller").WithDetails(&ctldpb.Refusal{Code: "X", Text: "Invalid controller", Why: why})
		return st.Err()
	}
	switch r.Op {
	case ctldpb.ChangeControllerRequest_ADD:
		if i >= 0 {
			return nil, refuse(r.Name + " is a member already")
		}
		f.ctls = append(f.ctls, &ctldpb.ControllerInfo{Name: r.Name, Address: r.Address, Port: r.Port, Role: "learner", Up: true, Applied: 5})
	case ctldpb.ChangeControllerRequest_PROMOTE:
		f.ctls[i].Voter = true
	case ctldpb.ChangeControllerRequest_REMOVE:
		if i < 0 {
			return nil, refuse(r.Name + " is no member")
		}
		f.ctls = append(f.ctls[:i:i], f.ctls[i+1:]...)
	}
	if f.lost > 0 {
		f.lost--
		return nil, status.Error(codes.Unavailable, "the leader changed; the outcome is not known")
	}
	return &ctldpb.ChangeControllerResponse{Text: r.Name + " done"}, nil
}

func (f *fake) SaveSnapshot(_ *ctldpb.SaveSnapshotRequest, out grpc.ServerStreamingServer[ctldpb.SaveSnapshotResponse]) error {
	f.mu.Lock()
	cut := f.cut
	if f.cut == "once" {
		f.cut = ""
	}
	f.mu.Unlock()
	sum := sha256.New()
	if err := out.Send(&ctldpb.SaveSnapshotResponse{Index: 7, TimeMs: fakeNow.UnixMilli(), Feature: 2, Cluster: "lab"}); err != nil {
		return err
	}
	for k, part := range []string{"first ", "second ", "third"} {
		if cut == "once" && k == 2 {
			return status.Error(codes.Unavailable, "the controller ends")
		}
		sum.Write([]byte(part))
		if cut == "bytes" && k == 1 {
			part = "sec0nd "
		}
		m := &ctldpb.SaveSnapshotResponse{Data: []byte(part)}
		if k == 2 {
			m.Sha256 = sum.Sum(nil)
		}
		if cut == "end" && k == 2 {
			return nil
		}
		if err := out.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) CreateJoinToken(_ context.Context, r *ctldpb.CreateJoinTokenRequest) (*ctldpb.CreateJoinTokenResponse, error) {
	return &ctldpb.CreateJoinTokenResponse{Token: "tgj1.7.secret.fp", Id: "7", ExpiresMs: fakeNow.UnixMilli() + r.TtlMs}, nil
}

func (f *fake) ListJoinTokens(context.Context, *ctldpb.ListJoinTokensRequest) (*ctldpb.ListJoinTokensResponse, error) {
	now := fakeNow.UnixMilli()
	return &ctldpb.ListJoinTokensResponse{Tokens: []*ctldpb.JoinToken{
		{Id: "7", Role: "node", Names: "n[1-3]", ExpiresMs: now + 3600_000, UsedBy: []string{"n1"}, CreatedBy: "root"},
		{Id: "8", Role: "login", Names: "l1", ExpiresMs: now + 1, UsedBy: []string{"l1"}},
		{Id: "9", Role: "node", Names: "n9", ExpiresMs: now - 1},
		{Id: "10", Role: "node", Names: "n[1-9]", Uses: 2, ExpiresMs: now + 1, Revoked: true},
	}}, nil
}

func (f *fake) RevokeJoinToken(context.Context, *ctldpb.RevokeJoinTokenRequest) (*ctldpb.RevokeJoinTokenResponse, error) {
	return &ctldpb.RevokeJoinTokenResponse{}, nil
}

func (r *runner) threeControllers() {
	r.fake.ctls = []*ctldpb.ControllerInfo{
		{Name: "c1", Address: "10.0.0.1", Port: 6817, Role: "leader", Voter: true, Up: true, Version: "1.0", FeatureMax: 2, StateFree: 37 << 30, Configured: true, UserPort: 6819, Applied: 9},
		{Name: "c2", Address: "10.0.0.2", Port: 6817, Voter: true, Error: "connection refused", Configured: true},
		{Name: "c10", Address: "fd00::10", Port: 6817, Role: "learner", Up: true, Lag: 1234, ContactMs: 3456, Version: "1.0", FeatureMax: 2, StateFree: 5 << 20, Applied: 9},
	}
}

// TestControllerStatus: columns line up, nothing is wider than a terminal, and what is not known is a dash.
func TestControllerStatus(t *testing.T) {
	r := newRunner(t)
	r.threeControllers()
	const want = `NAME ROLE    VOTER UP   LAG CONTACT VERSION LEVEL STATE-FREE ADDRESS
c1   leader  yes   yes    0       - 1.0         2      37.0G 10.0.0.1:6817
c2   -       yes   no     -       - -           -          - 10.0.0.2:6817
c10  learner no    yes 1234    3.4s 1.0         2         5M [fd00::10]:6817

feature level 2, leader c1
LAG: log entries behind the leader    CONTACT: since it heard the leader
LEVEL: newest that its program knows  STATE-FREE: room where its log is
c2 does not answer: connection refused
c10 has no ControllerName line in the leader's grid.conf: write one for those that start later
`
	r.want(r.call("gctl", "controller", "status"), 0, want, "")
	r.want(r.call("gctl", "show", "controllers"), 0, want, "")
	if a := r.call("gctl", "-o", "controller", "status"); strings.Count(a.out, "\n") != 3 || !strings.Contains(a.out, "ControllerName=c2 Role=(null) Voter=YES Up=NO") {
		t.Errorf("%q", a.out)
	}
}

// TestControllerChange: what is asked for, also when the first answer is lost.
func TestControllerChange(t *testing.T) {
	for _, c := range []struct {
		args      string
		lost      int
		catchUp   int
		code      int
		out, want string
	}{
		{"add c4 Address=h4 Port=7000 --no-wait", 0, 0, 0, "c4 done\n", ""},
		{"add c4 Address=h4", 0, 0, 0, "c4 done\nc4 has caught up; make it a voter with: gctl controller promote c4\n", ""},
		{"add c4 Address=h4 --promote", 0, 4, 0, "c4 done\nc4 done\n", "c4 is 3000 log entries behind\n"},
		{"add c4 Address=h4 --promote", 1, 0, 0, "c4 is a learner\nc4 done\n", ""},
		{"add c2", 0, 0, 1, "", "gctl: error: controller add: Invalid controller\ngctl: error: c2 is a member already\n"},
		{"promote c10", 0, 0, 0, "c10 done\n", ""},
		{"remove c10", 0, 0, 0, "c10 done\n", ""},
		{"remove c10", 1, 0, 0, "c10 is not a member any more; its gctld ends by itself\n", ""},
		{"remove c9", 0, 0, 1, "", "gctl: error: controller remove: Invalid controller\ngctl: error: c9 is no member\n"},
		{"remove --force c10", 0, 0, 0, "c10 done\n", ""},
		{"transfer", 0, 0, 0, " done\n", ""},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := newRunner(t)
			r.threeControllers()
			r.fake.lost, r.fake.catchUp = c.lost, c.catchUp
			r.want(r.call("gctl", append([]string{"controller"}, strings.Fields(c.args)...)...), c.code, c.out, c.want)
			req := request[*ctldpb.ChangeControllerRequest](r, "ChangeController")
			if req.Force != strings.Contains(c.args, "--force") {
				t.Errorf("force: %v", req)
			}
		})
	}
}

// TestCatchUpOnTerminal: one line, written over, and gone in the end. A learner that never comes is told so.
func TestCatchUpOnTerminal(t *testing.T) {
	r := newRunner(t)
	r.threeControllers()
	r.tty, r.fake.catchUp = true, 4
	a := r.call("gctl", "controller", "add", "c4", "Address=h4")
	if a.code != 0 || a.errout != "\r\033[Kc4 is 3000 log entries behind\r\033[Kc4 is 2000 log entries behind\r\033[Kc4 is 1000 log entries behind\r\033[K" {
		t.Errorf("%+v", a)
	}
}

// TestAdministrationErrors: each mistake is named before anything is asked of a controller.
func TestAdministrationErrors(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(there, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"controller", "too few arguments"},
		{"controller enlarge", `unknown word "enlarge"`},
		{"controller add", "too few arguments"},
		{"controller add 10.0.0.1:6817", "is no controller's name"},
		{"controller add " + strings.Repeat("c", 41), "1 to 40 characters"},
		{"controller add c4 Port=0", "Port=0: a port from 1 to 65535"},
		{"controller add c4 Port=70000", "Port=70000: a port"},
		{"controller add c4 Prot=1", "Prot: unknown key; known are Address, Port, RaftPort, UserPort"},
		{"controller add c4 host", "host: write KEY=VALUE"},
		{"controller add c4 Address=", "Address=: a host name"},
		{"controller add c4 Address=a/b", "Address=a/b"},
		{"controller add c4 --timeout=soon", "--timeout=soon"},
		{"controller add c4 --timeout=-1s", "--timeout=-1s"},
		{"controller add c4 --promote --no-wait", "--promote needs the wait"},
		{"controller promote c4 --force", "promote takes no --force"},
		{"controller promote c4 c5", "one word too many: c5"},
		{"controller promote", "too few arguments"},
		{"controller promote c/4", "is no controller's name"},
		{"controller transfer c4 c5", "one word too many: c5"},
		{"controller transfer c:4", "is no controller's name"},
		{"controller remove", "too few arguments"},
		{"controller status c1", "one word too many"},
		{"controller status --what", "unrecognized option '--what'"},
		{"snapshot", "too few arguments"},
		{"snapshot load x", `unknown word "load"`},
		{"snapshot save", "too few arguments"},
		{"snapshot save a b", "one word too many: b"},
		{"snapshot save " + there, "is there already"},
		{"snapshot save --force " + dir, "is no plain file"},
		{"snapshot save --force " + filepath.Join(dir, "link"), "is no plain file"},
		{"snapshot save --force /dev/null", "is no plain file"},
		{"snapshot save " + filepath.Join(dir, "no", "such"), "no such file"},
		{"snapshot inspect", "too few arguments"},
		{"snapshot inspect --force x", "inspect takes no --force"},
		{"node", "too few arguments"},
		{"node fenced", "too few arguments"},
		{"node fenced n1 n2", "one word too many: n2"},
		{"node token", "too few arguments"},
		{"node token n[1-", "is not closed"},
		{"node token n1/2", "is no name for a certificate"},
		{"node token n[1-5000]", "more than the 4096"},
		{"node token n1 --role=ctld", "gctl pki issue"},
		{"node token n1 --ttl=0s", "--ttl=0s"},
		{"node token n1 --ttl=31d", "at most 30d"},
		{"node token n1 --ttl=x", "--ttl=x"},
		{"node token n1 --uses=0", "from 1 to 1"},
		{"node token n[1-3] --uses=4", "from 1 to 3"},
		{"node token n1 --out " + there, "is there already"},
		{"node tokens n1", "one word too many"},
		{"node revoke", "too few arguments"},
		{"node revoke tgj1.7.secret.fp", "the ID of a token was expected"},
		{"whoami root", "write: gctl whoami"},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := newRunner(t)
			r.threeControllers()
			a := r.call("gctl", strings.Fields(c.args)...)
			if a.code != 1 || a.out != "" || !strings.Contains(a.errout, c.want) {
				t.Errorf("code %d, out %q, err %q; want %q", a.code, a.out, a.errout, c.want)
			}
			if strings.Contains(a.errout, "secret") {
				t.Error("a token's secret is repeated")
			}
			if n := len(r.fake.last); n != 0 {
				t.Errorf("a controller was asked: %v", r.fake.last)
			}
		})
	}
	if b, err := os.ReadFile(there); err != nil || string(b) != "old" {
		t.Errorf("a file that was there: %q %v", b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestSnapshotSave: whole and checked, or not there at all.
func TestSnapshotSave(t *testing.T) {
	for _, c := range []struct {
		cut  string
		code int
		want string
	}{
		{"", 0, "index 7, feature level 2, 18 bytes"},
		{"once", 0, "18 bytes"}, // the controller goes away in the middle, another gives all of it
		{"end", 1, "the backup was cut short"},
		{"bytes", 1, "the backup was damaged on its way"},
	} {
		t.Run(c.cut, func(t *testing.T) {
			r := newRunner(t)
			r.fake.cut = c.cut
			a := r.call("gctl", "snapshot", "save", "b.snap")
			if a.code != c.code || !strings.Contains(a.errout, c.want) {
				t.Errorf("code %d, err %q; want %q", a.code, a.errout, c.want)
			}
			path := filepath.Join(r.dir, "b.snap")
			data, err := os.ReadFile(path)
			if c.code == 0 {
				st, serr := os.Stat(path)
				if err != nil || serr != nil || string(data) != "first second third" || st.Mode().Perm() != 0o600 {
					t.Errorf("%q %v %v", data, err, serr)
				}
			} else if err == nil {
				t.Errorf("a file of %d bytes was left", len(data))
			}
			if all, _ := os.ReadDir(r.dir); len(all) > 1 {
				t.Errorf("left behind: %v", all)
			}
		})
	}
	r := newRunner(t)
	if a := r.call("gctl", "snapshot", "save", "-"); a.code != 0 || a.out != "first second third" {
		t.Errorf("%+v", a)
	}
	r.fake.cut = "once" // what was written to a pipe cannot be taken back
	if a := r.call("gctl", "snapshot", "save", "-"); a.code != 1 || a.out != "first second " || !strings.Contains(a.errout, "cut short") {
		t.Errorf("%+v", a)
	}
	r.tty = true
	if a := r.call("gctl", "snapshot", "save", "-"); a.code != 1 || a.out != "" || !strings.Contains(a.errout, "not to a terminal") {
		t.Errorf("%+v", a)
	}
}

func TestNodeTokens(t *testing.T) {
	r := newRunner(t)
	r.threeControllers()
	r.env = append(r.env, "TZ=UTC")
	a := r.call("gctl", "node", "token", "n[1-3],n5", "--ttl", "2d", "--uses", "2")
	if a.code != 0 || a.out != "tgj1.7.secret.fp\n" || !strings.Contains(a.errout, "--controller 10.0.0.1:6819 ") {
		t.Errorf("%+v", a)
	}
	if q := request[*ctldpb.CreateJoinTokenRequest](r, "CreateJoinToken"); q.Names != "n[1-3,5]" || q.Role != "node" || q.TtlMs != 2*24*3600_000 || q.Uses != 2 {
		t.Errorf("%v", q)
	}
	a = r.call("gctl", "-Q", "node", "token", "l1", "--role=login", "--out=t")
	st, err := os.Stat(filepath.Join(r.dir, "t"))
	if a.code != 0 || a.out+a.errout != "" || err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%+v %v", a, err)
	}
	a = r.call("gctl", "node", "tokens")
	for _, w := range []string{"ID ROLE  NAMES  USED STATE   EXPIRES ", "7  node  n[1-3]  1/3 open ", "8  login l1      1/1 used ", "9  node  n9      0/1 expired ", "10 node  n[1-9]  0/2 revoked "} {
		if !strings.Contains(a.out, w) {
			t.Errorf("no %q in\n%s", w, a.out)
		}
	}
	if a := r.call("gctl", "node", "revoke", "7"); a.code != 0 || !strings.Contains(a.out, "token 7 is revoked") {
		t.Errorf("%+v", a)
	}
	if a := r.call("gctl", "node", "fenced", "n1"); a.code != 0 {
		t.Errorf("%+v", a)
	}
	r.fake.ctls[0].UserPort = 0
	if a := r.call("gctl", "node", "token", "n1"); a.code != 0 || !strings.Contains(a.errout, "no controller has a UserPort") {
		t.Errorf("%+v", a)
	}
	if got := fmt.Sprint(request[*ctldpb.RevokeJoinTokenRequest](r, "RevokeJoinToken").Id); got != "7" {
		t.Error(got)
	}
}
