package server

import (
	"testing"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// TestOtherCluster: a command on another cluster's accounts changes nothing here, and lists nothing of this one.
func TestOtherCluster(t *testing.T) {
	f := newSchedFixture(t, "")
	this := f.srv.Config().ClusterName
	if this == "" {
		t.Fatal("the cluster has no name")
	}
	f.account("add", "account", nil, clauses("name=physics", "cluster="+this))
	for _, verb := range []string{"modify", "delete"} {
		req := &ctldpb.ChangeAccountingRequest{Verb: verb, Entity: "account", Where: clauses("name=physics", "cluster=elsewhere")}
		if verb == "modify" {
			req.Set = clauses("fairshare=9")
		}
		for _, dry := range []bool{true, false} {
			req.DryRun = dry
			_, err := f.srv.ChangeAccounting(f.as(olga), req)
			wantRefusal(t, err, "INVALID", "elsewhere", this)
		}
	}
	_, err := f.srv.ListAccounting(f.as(olga), &ctldpb.ListAccountingRequest{Entity: "association", Where: clauses("cluster=" + this + ",elsewhere")})
	wantRefusal(t, err, "INVALID", "elsewhere")
	if got := f.rowsText(olga, "account", "account"); got != "physics root" {
		t.Errorf("accounts %q", got)
	}
}
