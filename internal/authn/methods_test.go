package authn

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/tensorgrid/tensorgrid/api/ctldpb"
	_ "github.com/tensorgrid/tensorgrid/api/logpb"
	_ "github.com/tensorgrid/tensorgrid/api/nodepb"
	_ "github.com/tensorgrid/tensorgrid/api/peerpb"
	_ "github.com/tensorgrid/tensorgrid/api/steppb"
)

var update = flag.Bool("update", false, "write testdata/roles.txt again")

// eachMethod walks every method of every service in api.
func eachMethod(t *testing.T, do func(full string)) {
	t.Helper()
	dirs, services := map[string]bool{}, map[string]bool{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(file.Package()), "tensorgrid.") {
			return true
		}
		dirs[filepath.Dir(file.Path())] = true
		for i := range file.Services().Len() {
			svc := file.Services().Get(i)
			services[string(svc.FullName())] = true
			for j := range svc.Methods().Len() {
				do("/" + string(svc.FullName()) + "/" + string(svc.Methods().Get(j).Name()))
			}
		}
		return true
	})
	// A folder of api that this test does not import would go unseen.
	protos, err := filepath.Glob("../../api/*/*.proto")
	if err != nil || len(protos) == 0 {
		t.Fatalf("no sources in api: %v", err)
	}
	for _, path := range protos {
		if dir := filepath.Base(filepath.Dir(path)); !dirs[dir] {
			t.Errorf("api/%s is not imported by this test (seen: %v)", dir, dirs)
		}
	}
	if len(services) < 5 {
		t.Fatalf("walked only %v: the descriptors are not what this test thinks", services)
	}
}

func TestEveryMethodHasARow(t *testing.T) {
	seen := map[string]bool{}
	eachMethod(t, func(full string) {
		seen[full] = true
		if !Known(full) || len(Require(full)) == 0 {
			t.Errorf("%s has no row in methods", full)
		}
		if c := methods[full].class; !c.Valid() && c != classNone {
			t.Errorf("%s has no class in methods", full)
		}
	})
	for full := range methods {
		if !seen[full] {
			t.Errorf("the row %s is of no method", full)
		}
	}
}

// TestRoleTable holds the table against testdata/roles.txt, so that a change is seen in review.
func TestRoleTable(t *testing.T) {
	columns := []Role{RoleUser, RoleOperator, RoleAdmin, RoleNode, RoleLogin, RoleCtld, RoleWallet, RoleNobody}
	var names []string
	eachMethod(t, func(full string) { names = append(names, full) })
	slices.Sort(names)
	var b strings.Builder
	fmt.Fprintf(&b, "%-46s", "method")
	for _, r := range columns {
		fmt.Fprintf(&b, " %-8s", r)
	}
	b.WriteString(" token\n")
	for _, full := range names {
		fmt.Fprintf(&b, "%-46s", full)
		for _, r := range columns {
			word := "-"
			if Allowed(full, r) {
				word = "yes"
			}
			fmt.Fprintf(&b, " %-8s", word)
		}
		fmt.Fprintf(&b, " %s\n", methods[full].class)
	}
	path := filepath.Join("testdata", "roles.txt")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != b.String() {
		t.Errorf("%s is not the table (%v); if the change is meant: go test ./internal/authn -run RoleTable -update\n%s", path, err, b.String())
	}
	if Allowed("/tensorgrid.ctld.Controller/NoSuch", RoleAdmin) {
		t.Error("a method without a row is open to admins")
	}
}

// TestTableRules: what must hold of any table, whatever the golden text says.
func TestTableRules(t *testing.T) {
	eachMethod(t, func(full string) {
		if Allowed(full, RoleUser) && !(Allowed(full, RoleOperator) && Allowed(full, RoleAdmin)) || Allowed(full, RoleOperator) && !Allowed(full, RoleAdmin) {
			t.Errorf("%s: raising somebody takes a right away", full)
		}
		if Allowed(full, RoleNobody) && full != joinMethod {
			t.Errorf("%s is open to strangers", full)
		}
		_, byToken := ClassOf(full)
		if people := Allowed(full, RoleAdmin); byToken != (people && !strings.HasPrefix(full, LoginService)) {
			t.Errorf("%s: a token is good for it: %v, people may call it: %v", full, byToken, people)
		}
		if Allowed(full, RoleWallet) && methods[full].class != ClassRead {
			t.Errorf("%s changes something and is open to wallets of strangers", full)
		}
	})
	for _, c := range []Class{"", classNone, "Read", "all"} {
		if c.Valid() || c.covers(ClassRead) || ClassAdmin.covers(c) {
			t.Errorf("class %q is good for something", c)
		}
	}
	if ClassRead.covers(ClassJobs) || ClassJobs.covers(ClassAdmin) || !ClassJobs.covers(ClassRead) || !ClassAdmin.covers(ClassJobs) {
		t.Error("the order of classes is wrong")
	}
}

func TestPolicyRoles(t *testing.T) {
	p := &Policy{Operators: []string{"ann", "1001"}, Admins: []string{"bob"}, PrivateData: []string{"Jobs"}}
	tests := []struct {
		name string
		uid  uint32
		user string
		want Role
	}{
		{"root", 0, "root", RoleAdmin},
		{"admin by name", 7, "bob", RoleAdmin},
		{"operator by name", 8, "ann", RoleOperator},
		{"operator by number", 1001, "eve", RoleOperator},
		{"user", 1002, "joe", RoleUser},
		{"no name", 1003, "", RoleUser},
	}
	for _, tt := range tests {
		if got := p.Role(tt.uid, tt.user); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	owner := Caller{Role: RoleUser, UID: 5}
	other := Caller{Role: RoleUser, UID: 6}
	node := Caller{Role: RoleNode, Name: "n1"} // UID 0 by default: must not read as root
	if !p.MaySeeJob(owner, 5) || p.MaySeeJob(other, 5) || p.MaySeeJob(node, 5) || p.MaySeeJob(node, 0) {
		t.Error("PrivateData=jobs is not kept")
	}
	if node.MayChange(0) || !owner.MayChange(5) || other.MayChange(5) || !(Caller{Role: RoleOperator, UID: 9}).MayChange(5) {
		t.Error("owner rule is wrong")
	}
	if (&Policy{}).MaySeeJob(other, 5) != true || (*Policy)(nil).Role(0, "") != RoleAdmin {
		t.Error("the empty policy hides or loses something")
	}
}
