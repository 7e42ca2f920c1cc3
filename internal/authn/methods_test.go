package authn

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

var allRoles = []Role{RoleNobody, RoleUser, RoleOperator, RoleAdmin, RoleNode, RoleCtld}

func eachMethod(t *testing.T, do func(full string)) {
	t.Helper()
	n := 0
	for _, file := range []protoreflect.FileDescriptor{
		ctldpb.File_ctldpb_ctld_proto, nodepb.File_nodepb_node_proto, peerpb.File_peerpb_peer_proto,
	} {
		for i := range file.Services().Len() {
			svc := file.Services().Get(i)
			for j := range svc.Methods().Len() {
				do("/" + string(svc.FullName()) + "/" + string(svc.Methods().Get(j).Name()))
				n++
			}
		}
	}
	if n < 20 {
		t.Fatalf("walked only %d methods: the descriptors are not what this test thinks", n)
	}
}

func TestEveryMethodHasARow(t *testing.T) {
	seen := map[string]bool{}
	eachMethod(t, func(full string) {
		seen[full] = true
		if !Known(full) || len(Require(full)) == 0 {
			t.Errorf("%s has no row in methods", full)
		}
	})
	for full := range methods {
		if !seen[full] {
			t.Errorf("the row %s is of no method", full)
		}
	}
}

// TestRoleTable spells the policy out a second time, by hand: a change of the table must be meant.
func TestRoleTable(t *testing.T) {
	operatorOnly := []string{"UpdateNode", "UpdatePartition", "Reconfigure"}
	eachMethod(t, func(full string) {
		service, name := full[:len(full)-len(last(full))], last(full)
		for _, role := range allRoles {
			var want bool
			switch service {
			case NodeService:
				want = role == RoleNode
			case PeerService:
				want = role == RoleCtld
			case ControllerService:
				want = role == RoleOperator || role == RoleAdmin ||
					role == RoleUser && !slices.Contains(operatorOnly, name)
			}
			if got := Allowed(full, role); got != want {
				t.Errorf("Allowed(%s, %s) = %v, want %v", full, role, got, want)
			}
		}
	})
	if Allowed("/tensorgrid.ctld.Controller/NoSuch", RoleAdmin) {
		t.Error("a method without a row is open to admins")
	}
}

func last(full string) string {
	for i := len(full) - 1; i >= 0; i-- {
		if full[i] == '/' {
			return full[i+1:]
		}
	}
	return full
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
