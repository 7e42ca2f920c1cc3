package robust

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// deed is a call that changes something, and what its line in the audit log has to say.
type deed struct {
	method string
	do     func(ctx context.Context) error
	want   map[string]any // fields of the line
}

// looks are the methods that change nothing, or that are audited where they are decided.
var looks = []string{"GetScript", "JobOutput", "ListControllers", "ListJobs", "ListJoinTokens", "ListNodes", "ListPartitions", "Ping", "ShowConfig",
	"WaitJob", "Session", "Forward", "ReadIndex", "Status", "Mint"}

// TestSecurityAudit: each call that changes something has left a line with who called, how, through whom, and
// what became of it; no line holds what the calls carried.
func TestSecurityAudit(t *testing.T) {
	long(t)
	g := guard(t, layout{controllers: 3, nodes: 2})
	for _, n := range append(slices.Clone(g.names), "user") {
		path := g.path("etc", n+".conf")
		text, err := os.ReadFile(path)
		g.ok(errors.Join(err, os.WriteFile(path, append([]byte("IssuerKey="+g.path("ca", authn.CAKeyFile)+"\n"), text...), 0o644)))
	}
	g.up()
	within(t, 30*time.Second, "the level of join tokens", func() error {
		_, err := g.user(0).any().CreateJoinToken(t.Context(), &ctldpb.CreateJoinTokenRequest{Role: "node", Names: "n2", TtlMs: 60_000})
		return err
	})
	deeds := g.deeds()
	for _, d := range deeds {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := d.do(ctx); err != nil && d.want["outcome"] == "ok" {
			t.Errorf("%s: %v", d.method, err)
		}
		cancel()
	}
	time.Sleep(time.Second) // lines are written behind the answers
	lines := g.auditLines()
	missing, covered := 0, map[string]bool{}
	for _, d := range deeds {
		d.want["method"] = d.method
		if i := slices.IndexFunc(lines, func(l map[string]any) bool { return holds(l, d.want) }); i < 0 {
			missing++
			t.Errorf("no line says %v", d.want)
		}
		covered[d.method] = true
	}
	for full := range readRoles(t).allowed {
		if name := full[strings.LastIndexByte(full, '/')+1:]; !covered[name] && !slices.Contains(looks, name) {
			t.Errorf("%s changes something, and is not in this test", full)
		}
	}
	leaked := 0
	for _, n := range g.names {
		text, _ := os.ReadFile(g.path("state", n, "audit.log"))
		for _, word := range []string{"audit-secret", "tgj1.", g.secrets["wallet of games"]} {
			if strings.Contains(string(text), word) {
				leaked++
				t.Errorf("the audit log of %s holds %q", n, word)
			}
		}
		if st, err := os.Stat(g.path("state", n, "audit.log")); err == nil && st.Mode().Perm() != 0o600 {
			t.Errorf("the audit log of %s has mode %v", n, st.Mode())
		}
	}
	figure(t, "security_audit_deeds", float64(len(deeds)), "calls", 20)
	most(t, "security_audit_missing", float64(missing), "lines", 0)
	most(t, "security_audit_leaked", float64(leaked), "words", 0)
}

// holds tells whether a line has all of the fields.
func holds(line, want map[string]any) bool {
	for k, v := range want {
		got := line[k]
		if k == "targets" {
			list, _ := got.([]any)
			if !slices.ContainsFunc(list, func(x any) bool { return fmt.Sprint(x) == v }) {
				return false
			}
			continue
		}
		if v == "" && got != nil || v != "" && fmt.Sprint(got) != fmt.Sprint(v) {
			return false
		}
	}
	return true
}

// deeds lists one call of each kind that changes something, by all kinds of callers and ways.
func (g *guarded) deeds() (list []deed) {
	lead, via := g.leader(), g.follower()
	local := func(uid uint32, at string) ctldpb.ControllerClient {
		return ctldpb.NewControllerClient(g.socketAs(uid, g.path("run", at+".sock")))
	}
	user, operator, admin := local(userUID, lead), local(operatorUID, via), local(adminUID, via)
	other := local(otherUID, via)
	remote := ctldpb.NewControllerClient(g.withTLS(via, userPort, g.userTLS()))
	wallet := ctldpb.NewControllerClient(g.withTLS(via, userPort, g.userTLS(), authn.WalletDialOptions(g.mapped, g.name, time.Now)...))
	withToken := func(ctx context.Context, uid uint32, class authn.Class) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "grid-token-bin", string(g.token(uid, class)))
	}
	add := func(method string, do func(context.Context) error, want ...any) {
		w := map[string]any{}
		for i := 0; i < len(want); i += 2 {
			w[want[i].(string)] = want[i+1]
		}
		list = append(list, deed{method, do, w})
	}
	spec := func(name string) *ctldpb.JobSpec {
		s := g.spec(name, ": audit-secret")
		s.Hold, s.Args, s.Comment = true, []string{"audit-secret"}, "audit-secret"
		return s
	}
	var id, walletID uint32
	add("Submit", func(ctx context.Context) error {
		r, err := user.Submit(ctx, &ctldpb.SubmitRequest{Key: "a", Spec: spec("a")})
		id = r.GetJobId()
		return err
	}, "uid", userUID, "via", "local", "role", "user", "outcome", "ok", "forwarded_by", "")
	add("Submit", func(ctx context.Context) error {
		r, err := wallet.Submit(ctx, &ctldpb.SubmitRequest{Key: "w", Spec: spec("w")})
		walletID = r.GetJobId()
		return err
	}, "uid", otherUID, "via", "wallet", "wallet", g.mapped.Address(), "forwarded_by", via, "outcome", "ok")
	add("SubmitBatch", func(ctx context.Context) error {
		_, err := remote.SubmitBatch(withToken(ctx, userUID, authn.ClassJobs), &ctldpb.SubmitBatchRequest{Requests: []*ctldpb.SubmitRequest{{Key: "b", Spec: spec("b")}}})
		return err
	}, "uid", userUID, "via", "token", "login", loginHost, "forwarded_by", via, "outcome", "ok")
	add("PutBlob", func(ctx context.Context) error {
		_, err := user.PutBlob(ctx, &ctldpb.PutBlobRequest{Data: []byte("A=audit-secret\x00")})
		return err
	}, "uid", userUID, "outcome", "ok")
	ids := func() []string { return []string{fmt.Sprint(id)} }
	add("UpdateJob", func(ctx context.Context) error {
		_, err := user.UpdateJob(ctx, &ctldpb.UpdateJobRequest{JobIds: ids(), Set: map[string]string{"Comment": "audit-secret"}, Key: "u"})
		return err
	}, "uid", userUID, "op", "Comment", "outcome", "ok")
	add("Control", func(ctx context.Context) error {
		_, err := operator.Control(ctx, &ctldpb.ControlRequest{Op: ctldpb.ControlRequest_HOLD, JobIds: ids(), Key: "h"})
		return err
	}, "uid", operatorUID, "role", "operator", "op", "hold", "forwarded_by", via, "outcome", "ok")
	add("Cancel", func(ctx context.Context) error {
		_, err := other.Cancel(ctx, &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: ids()}, Key: "x"})
		return err
	}, "uid", otherUID, "forwarded_by", via)
	add("Cancel", func(ctx context.Context) error {
		_, err := wallet.Cancel(ctx, &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{fmt.Sprint(walletID)}}, Key: "x"})
		return err
	}, "uid", otherUID, "via", "wallet", "outcome", "ok")
	add("Cancel", func(ctx context.Context) error {
		_, err := user.Cancel(ctx, &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: ids()}, Key: "y"})
		return err
	}, "uid", userUID, "via", "local", "op", "end", "outcome", "ok")
	add("UpdateNode", func(ctx context.Context) error {
		_, err := operator.UpdateNode(ctx, &ctldpb.UpdateNodeRequest{Names: "n2", Set: map[string]string{"State": "DRAIN", "Reason": "audit-secret"}, Key: "n"})
		return err
	}, "uid", operatorUID, "targets", "n2", "outcome", "ok")
	add("UpdateNode", func(ctx context.Context) error {
		_, err := user.UpdateNode(ctx, &ctldpb.UpdateNodeRequest{Names: "n2", Set: map[string]string{"State": "RESUME"}})
		return err
	}, "uid", userUID, "role", "user")
	add("UpdateNode", func(ctx context.Context) error {
		_, err := remote.UpdateNode(withToken(ctx, operatorUID, authn.ClassJobs), &ctldpb.UpdateNodeRequest{Names: "n2"})
		return err
	}, "uid", operatorUID, "via", "token", "login", loginHost, "outcome", "ESLURM_ACCESS_DENIED")
	add("UpdatePartition", func(ctx context.Context) error {
		_, err := operator.UpdatePartition(ctx, &ctldpb.UpdatePartitionRequest{Name: "batch", Set: map[string]string{"MaxTime": "60"}, Key: "p"})
		return err
	}, "uid", operatorUID, "targets", "batch", "outcome", "ok")
	add("Reconfigure", func(ctx context.Context) error {
		_, err := admin.Reconfigure(ctx, &ctldpb.ReconfigureRequest{})
		return err
	}, "uid", adminUID, "role", "admin", "outcome", "ok")
	add("SaveSnapshot", func(ctx context.Context) error {
		s, err := local(adminUID, lead).SaveSnapshot(ctx, &ctldpb.SaveSnapshotRequest{})
		for err == nil {
			_, err = s.Recv()
		}
		if err.Error() == "EOF" {
			return nil
		}
		return err
	}, "uid", adminUID, "outcome", "ok")
	list = append(list, g.daemonDeeds(local, lead, via)...)
	add("ChangeController", func(ctx context.Context) error {
		_, err := admin.ChangeController(ctx, &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_TRANSFER})
		return err
	}, "uid", adminUID, "op", "transfer", "outcome", "ok")
	return list
}

// daemonDeeds are those about join tokens and certificates.
func (g *guarded) daemonDeeds(local func(uint32, string) ctldpb.ControllerClient, lead, via string) (list []deed) {
	var token, id string
	csr := func(name string) []byte {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		g.ok(err)
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		g.ok(err)
		return der
	}
	list = append(list,
		deed{"CreateJoinToken", func(ctx context.Context) error {
			r, err := local(adminUID, via).CreateJoinToken(ctx, &ctldpb.CreateJoinTokenRequest{Role: "node", Names: "n1", TtlMs: 600_000})
			token, id = r.GetToken(), r.GetId()
			return err
		}, map[string]any{"uid": adminUID, "targets": "n1", "outcome": "ok", "forwarded_by": via}},
		deed{"CreateJoinToken", func(ctx context.Context) error {
			_, err := local(operatorUID, via).CreateJoinToken(ctx, &ctldpb.CreateJoinTokenRequest{Role: "node", Names: "n1"})
			return err
		}, map[string]any{"uid": operatorUID, "role": "operator"}},
		deed{"Join", func(ctx context.Context) error {
			_, err := nodepb.NewEnrollClient(g.withTLS(lead, userPort, g.userTLS())).Join(ctx, &nodepb.JoinRequest{Token: token, Name: "n1", Csr: csr("n1")})
			return err
		}, map[string]any{"targets": "n1", "outcome": "ok"}},
		deed{"Join", func(ctx context.Context) error {
			_, err := nodepb.NewEnrollClient(g.withTLS(lead, userPort, g.userTLS())).Join(ctx, &nodepb.JoinRequest{Token: strings.Replace(token, ".", ".x", 2), Name: "n2", Csr: csr("n2")})
			return err
		}, map[string]any{"targets": "n2"}},
		deed{"RevokeJoinToken", func(ctx context.Context) error {
			_, err := local(adminUID, via).RevokeJoinToken(ctx, &ctldpb.RevokeJoinTokenRequest{Id: id})
			return err
		}, map[string]any{"uid": adminUID, "outcome": "ok"}},
		deed{"Renew", func(ctx context.Context) error {
			_, err := nodepb.NewEnrollClient(g.withTLS(lead, ctldPort, g.identity("n2").Client())).Renew(ctx, &nodepb.RenewRequest{Csr: csr("n2")})
			return err
		}, map[string]any{"role": "node", "name": "n2", "outcome": "ok"}},
		deed{"Rejoin", func(ctx context.Context) error {
			_, err := peerpb.NewPeerClient(g.withTLS(lead, ctldPort, g.identity(via).Client())).Rejoin(ctx, &peerpb.RejoinRequest{Name: lead})
			return err
		}, map[string]any{"role": "ctld", "name": via, "targets": lead}})
	return list
}
