package server

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// caIssuer signs with a real CA.
type caIssuer struct {
	ca  *authn.CA
	now func() time.Time
}

func (i caIssuer) CA() (*x509.Certificate, error) {
	if i.ca == nil {
		return nil, fmt.Errorf("%w (ca.key is not there)", ErrNoIssuer)
	}
	return i.ca.Cert, nil
}

func (i caIssuer) Sign(csr []byte, role authn.Role, name string, life time.Duration) (*x509.Certificate, error) {
	return i.ca.SignCSR(csr, role, name, life, rand.Reader, i.now())
}

// office is a leader that gives certificates.
func office(t *testing.T, f *fixture) *authn.CA {
	t.Helper()
	ca, err := authn.NewCA("test", rand.Reader, f.now)
	if err != nil {
		t.Fatal(err)
	}
	f.srv.Issuer = caIssuer{ca, func() time.Time { return f.now }}
	f.propose(&logpb.Command{Of: &logpb.Command_RaiseFeature{RaiseFeature: &logpb.RaiseFeature{Level: 2}}})
	return ca
}

func newRequest(t *testing.T, name string) (ed25519.PrivateKey, []byte) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := authn.NewCSR(key, name)
	if err != nil {
		t.Fatal(err)
	}
	return key, csr
}

// TestJoin: a token gives each of its names one certificate, whichever controllers are asked at once, and
// the log keeps nothing that could be used again.
func TestJoin(t *testing.T) {
	f, follower, link := pair(t)
	ca := office(t, f)
	resp, err := call(f.as(0), follower, "CreateJoinToken", &ctldpb.CreateJoinTokenRequest{Names: "n[1-2]", TtlMs: 3600_000}, notHere)
	if err != nil {
		t.Fatal(err)
	}
	made := resp.(*ctldpb.CreateJoinTokenResponse)
	token, err := authn.ParseJoinToken(made.Token)
	if err != nil || token.ID != made.Id || token.CAFP != authn.CAFingerprint(ca.Cert) {
		t.Fatalf("%+v %v", token, err)
	}
	var snap bytes.Buffer
	if err := fsm.New(f.log.store).Snapshot().Write(&snap); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(snap.Bytes(), token.Secret[:]) || bytes.Contains(snap.Bytes(), []byte(made.Token)) {
		t.Error("the secret is in the state")
	}
	key, csr := newRequest(t, "whatever")
	services := []nodepb.EnrollServer{f.srv.Enroll(), follower.Enroll()}
	var mu sync.Mutex
	var given []*nodepb.JoinResponse
	var wg sync.WaitGroup
	link.calls = 0
	for i := range 8 {
		wg.Go(func() {
			resp, err := services[i%2].Join(context.Background(), &nodepb.JoinRequest{Token: made.Token, Name: "n1", Csr: csr})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				given = append(given, resp)
			} else if r := RefusalOf(err); r == nil || r.Code != "ESLURM_JOIN_TOKEN_USED" {
				t.Errorf("refused with %v", err)
			}
		})
	}
	wg.Wait()
	if len(given) != 1 {
		t.Fatalf("%d certificates were given", len(given))
	}
	if _, _, err := token.Accept(given[0].Certificate, given[0].Ca, authn.RoleNode, "n1", key, f.now); err != nil {
		t.Error(err)
	}
	list, err := f.srv.ListJoinTokens(f.as(olga), &ctldpb.ListJoinTokensRequest{})
	if err != nil || len(list.Tokens) != 1 || fmt.Sprint(list.Tokens[0].UsedBy) != "[n1]" || list.Tokens[0].CreatedBy != "root" {
		t.Errorf("%v %v", list, err)
	}
	if _, err := f.srv.RevokeJoinToken(f.as(0), &ctldpb.RevokeJoinTokenRequest{Id: made.Id}); err != nil {
		t.Error(err)
	}
	_, err = f.srv.Enroll().Join(context.Background(), &nodepb.JoinRequest{Token: made.Token, Name: "n2", Csr: csr})
	wantRefusal(t, err, "ESLURM_JOIN_TOKEN_REVOKED")
}

// TestJoinRefusals: what is refused uses nothing up, and what strangers guess does not enter the log.
func TestJoinRefusals(t *testing.T) {
	f := newFixture(t, "")
	_, csr := newRequest(t, "n1")
	join := func(token, name string, csr []byte) error {
		_, err := f.srv.Enroll().Join(context.Background(), &nodepb.JoinRequest{Token: token, Name: name, Csr: csr})
		return err
	}
	_, err := f.srv.CreateJoinToken(f.as(0), &ctldpb.CreateJoinTokenRequest{Names: "n1"})
	wantRefusal(t, err, "ESLURM_DISABLED", notYet)
	ca := office(t, f)
	for _, req := range []*ctldpb.CreateJoinTokenRequest{{Names: "n1", TtlMs: 1000}, {Names: "n1", TtlMs: state.MaxTokenLife + 1}, {Names: "n1", TtlMs: -1}} {
		_, err := f.srv.CreateJoinToken(f.as(0), req)
		wantRefusal(t, err, "ESLURM_INVALID_TIME_VALUE", "from 1m0s to 720h0m0s")
	}
	for _, req := range []*ctldpb.CreateJoinTokenRequest{{Names: ""}, {Names: "n[1-"}, {Names: "n1", Role: "ctld"}, {Names: "n1", Uses: 2}} {
		_, err := f.srv.CreateJoinToken(f.as(0), req)
		wantRefusal(t, err, "ESLURM_INVALID_JOIN_TOKEN")
	}
	made, err := f.srv.CreateJoinToken(f.as(0), &ctldpb.CreateJoinTokenRequest{Names: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := authn.ParseJoinToken(made.Token)
	if err != nil {
		t.Fatal(err)
	}
	guess := token
	guess.Secret[0] ^= 1
	other := token
	other.ID = "nosuch"
	before := f.log.View().Index()
	wantRefusal(t, join("tgj1.x", "n1", csr), "ESLURM_JOIN_TOKEN_INVALID", "malformed")
	wantRefusal(t, join(guess.String(), "n1", csr), "ESLURM_JOIN_TOKEN_INVALID", "mistyped")
	wantRefusal(t, join(other.String(), "n1", csr), "ESLURM_JOIN_TOKEN_INVALID", "mistyped")
	wantRefusal(t, join(made.Token, "n1", nil), codeInvalid, "not acceptable")
	wantRefusal(t, join(made.Token, "n1", make([]byte, maxCSR+1)), codeLimit, "4097 bytes")
	wantRefusal(t, join(made.Token, "n/1", csr), codeInvalid, "n/1")
	if now := f.log.View().Index(); now != before {
		t.Errorf("the log went from %d to %d", before, now)
	}
	wantRefusal(t, join(made.Token, "n9", csr), "ESLURM_JOIN_TOKEN_NAME", "n9")
	for range joinTries {
		f.srv.joining <- struct{}{}
	}
	wantRefusal(t, join(made.Token, "n1", csr), codeBusy)
	for range joinTries {
		<-f.srv.joining
	}
	f.srv.Issuer = caIssuer{}
	wantRefusal(t, join(made.Token, "n1", csr), "ESLURM_DISABLED", "ca.key is not there", "gctl pki issue")
	f.srv.Issuer = nil
	wantRefusal(t, join(made.Token, "n1", csr), "ESLURM_DISABLED", "no issuer key")
	// The daemon believes the CA that the token names: another one's certificate would use the token up for nothing.
	office(t, f)
	wantRefusal(t, join(made.Token, "n1", csr), "ESLURM_JOIN_TOKEN_INVALID", "CA was replaced")
	if k := f.log.View().JoinToken(token.ID); len(k.UsedBy) != 0 {
		t.Errorf("used by %v", k.UsedBy)
	}
	f.now = f.now.Add(2 * time.Hour)
	f.srv.Issuer = caIssuer{ca, func() time.Time { return f.now }}
	wantRefusal(t, join(made.Token, "n1", csr), "ESLURM_JOIN_TOKEN_EXPIRED")
}

// TestJoinNonsenseStaysHere: a stranger at a follower costs the leader nothing before it shows a token.
func TestJoinNonsenseStaysHere(t *testing.T) {
	f, follower, link := pair(t)
	office(t, f)
	link.calls = 0
	whole := "tgj1.id." + strings.Repeat("A", 43) + "." + strings.Repeat("A", 43)
	for _, req := range []*nodepb.JoinRequest{
		{}, {Token: "tgj1.x"}, {Token: strings.Repeat("x", 1<<20)}, {Token: whole, Csr: make([]byte, maxCSR+1)}, {Token: whole, Name: strings.Repeat("n", maxName+1)},
	} {
		if _, err := follower.Enroll().Join(context.Background(), req); RefusalOf(err) == nil {
			t.Errorf("%.60v: %v", req, err)
		}
	}
	if link.calls != 0 {
		t.Errorf("%d calls went to the leader", link.calls)
	}
	_, err := follower.Enroll().Join(context.Background(), &nodepb.JoinRequest{Token: whole, Name: "n1"})
	wantRefusal(t, err, "ESLURM_JOIN_TOKEN_INVALID", "mistyped")
}

// TestRenew: the same role and name, for those that still belong to the cluster.
func TestRenew(t *testing.T) {
	f := newFixture(t, "ControllerName=c2\nControllerName=c3\nLoginNodes=l1\n")
	office(t, f)
	key, csr := newRequest(t, "root")
	for _, tt := range []struct {
		as authn.Caller
		ok bool
	}{
		{authn.Caller{Role: authn.RoleNode, Name: "n1"}, true},
		{authn.Caller{Role: authn.RoleNode, Name: "n9"}, false},
		{authn.Caller{Role: authn.RoleCtld, Name: "c2"}, true},
		{authn.Caller{Role: authn.RoleCtld, Name: "c9"}, false},
		{authn.Caller{Role: authn.RoleLogin, Name: "l1"}, true},
		{authn.Caller{Role: authn.RoleLogin, Name: "l9"}, false},
		{authn.Caller{Role: authn.RoleAdmin}, false},
	} {
		resp, err := f.srv.Enroll().Renew(authn.NewContext(context.Background(), tt.as), &nodepb.RenewRequest{Csr: csr})
		if (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.as, err)
			continue
		}
		if err != nil {
			continue
		}
		cert, err := x509.ParseCertificate(resp.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		_, role, name, err := authn.IdentityOf(cert)
		if err != nil || role != tt.as.Role || name != tt.as.Name || !cert.PublicKey.(ed25519.PublicKey).Equal(key.Public()) {
			t.Errorf("%+v got a certificate of %s %s: %v", tt.as, role, name, err)
		}
		if life := cert.NotAfter.Sub(f.now); life != 30*24*time.Hour {
			t.Errorf("it lives %v", life)
		}
	}
}

// TestRenewIsBounded: a node that was taken over fills no log with renewals, and keeps no other from its own.
func TestRenewIsBounded(t *testing.T) {
	f := newFixture(t, "")
	office(t, f)
	_, csr := newRequest(t, "n1")
	renew := func(name string) error {
		ctx := authn.NewContext(context.Background(), authn.Caller{Role: authn.RoleNode, Name: name})
		_, err := f.srv.Enroll().Renew(ctx, &nodepb.RenewRequest{Csr: csr})
		return err
	}
	for range idleBurst {
		if err := renew("n1"); err != nil {
			t.Fatal(err)
		}
	}
	wantRefusal(t, renew("n1"), codeBusy, "too often")
	if err := renew("n2"); err != nil {
		t.Error(err)
	}
}

// copier is a Backup of the fixture's state.
type copier struct {
	f    *fixture
	fail error
}

func (c copier) SaveSnapshot(_ context.Context, w io.Writer) (replica.Saved, error) {
	var b bytes.Buffer
	if err := fsm.New(c.f.log.store).Snapshot().Write(&b); err != nil {
		return replica.Saved{}, err
	}
	for b.Len() > 0 { // in pieces of an odd size
		if _, err := w.Write(b.Next(1000)); err != nil {
			return replica.Saved{}, err
		}
	}
	sum, err := fsm.Hash(c.f.log.store.View())
	return replica.Saved{Index: c.f.log.View().Index(), SHA256: sum}, errors.Join(err, c.fail)
}

// saveStream collects a backup.
type saveStream struct {
	grpc.ServerStream
	ctx  context.Context
	msgs []*ctldpb.SaveSnapshotResponse
}

func (s *saveStream) Context() context.Context     { return s.ctx }
func (s *saveStream) SetHeader(metadata.MD) error  { return nil }
func (s *saveStream) SendHeader(metadata.MD) error { return nil }
func (s *saveStream) Send(m *ctldpb.SaveSnapshotResponse) error {
	s.msgs = append(s.msgs, m)
	return nil
}

// TestSaveSnapshot: what it is of, the bytes in bounded pieces, their hash at the end.
func TestSaveSnapshot(t *testing.T) {
	f := newFixture(t, "")
	for i := range 20 {
		f.submit(ann, func(s *ctldpb.JobSpec) {
			s.Script = fmt.Appendf(nil, "#!/bin/sh\n#%d%s\n", i, strings.Repeat("x", 30<<10))
		})
	}
	f.srv.Backup = copier{f: f}
	s := &saveStream{ctx: f.as(0)}
	if err := f.srv.SaveSnapshot(&ctldpb.SaveSnapshotRequest{}, s); err != nil {
		t.Fatal(err)
	}
	var data []byte
	for i, m := range s.msgs {
		if len(m.Data) > backupChunk || (len(m.Sha256) > 0) != (i == len(s.msgs)-1) || (len(m.Data) == 0) != (i == 0) {
			t.Errorf("message %d of %d: %d bytes, hash of %d", i, len(s.msgs), len(m.Data), len(m.Sha256))
		}
		data = append(data, m.Data...)
	}
	if h := s.msgs[0]; h.Index != f.log.View().Index() || h.Cluster != "test" || h.Feature != 1 || h.TimeMs != f.now.UnixMilli() {
		t.Errorf("head %v", h)
	}
	if sum := sha256.Sum256(data); len(data) < 2*backupChunk || !bytes.Equal(sum[:], s.msgs[len(s.msgs)-1].Sha256) {
		t.Errorf("%d bytes with another hash", len(data))
	}
	copied := state.New()
	if err := fsm.New(copied).Restore(bytes.NewReader(data)); err != nil {
		t.Error(err)
	}
	// One that fails in the middle has no hash at its end.
	f.srv.Backup = copier{f: f, fail: replica.ErrStopped}
	s = &saveStream{ctx: f.as(0)}
	if err := f.srv.SaveSnapshot(&ctldpb.SaveSnapshotRequest{}, s); err == nil || len(s.msgs[len(s.msgs)-1].Sha256) > 0 {
		t.Errorf("a backup that failed: %v", err)
	}
	for range backupsMost {
		f.srv.saving <- struct{}{}
	}
	wantRefusal(t, f.srv.SaveSnapshot(&ctldpb.SaveSnapshotRequest{}, s), codeBusy)
}
