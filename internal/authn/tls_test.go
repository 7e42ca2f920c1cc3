package authn

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type pkiDir struct {
	dir string
	ca  *CA
}

func newPKI(t *testing.T, cluster string, now time.Time) pkiDir {
	t.Helper()
	ca, err := NewCA(cluster, rand.Reader, now)
	if err != nil {
		t.Fatal(err)
	}
	p := pkiDir{t.TempDir(), ca}
	if err := ca.Write(p.dir); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p pkiDir) issue(t *testing.T, role Role, name string, now time.Time) {
	t.Helper()
	pair, err := p.ca.Issue(role, name, 0, rand.Reader, now)
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(p.dir, name); err != nil {
		t.Fatal(err)
	}
}

func (p pkiDir) open(t *testing.T, name string, now func() time.Time) *Identity {
	t.Helper()
	id, err := OpenIdentity(p.dir, name, now)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// shake runs one handshake and gives back what each side said of it.
func shake(t *testing.T, client, server *tls.Config) (peer *x509.Certificate, clientErr, serverErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	deadline := time.Now().Add(10 * time.Second)
	a.SetDeadline(deadline)
	b.SetDeadline(deadline)
	done := make(chan error, 1)
	var seen *x509.Certificate
	go func() {
		srv := tls.Server(b, server)
		err := srv.HandshakeContext(context.Background())
		if err == nil {
			seen = srv.ConnectionState().VerifiedChains[0][0]
			_, err = srv.Write([]byte("x")) // the client learns of a refusal only on reading
		} else {
			b.Close()
		}
		done <- err
	}()
	cl := tls.Client(a, client)
	if clientErr = cl.HandshakeContext(context.Background()); clientErr == nil {
		_, clientErr = cl.Read(make([]byte, 1))
	}
	if clientErr != nil {
		a.Close()
	}
	serverErr = <-done
	return seen, clientErr, serverErr
}

func TestMutualTLS(t *testing.T) {
	clock := func() time.Time { return epoch }
	ours := newPKI(t, "blue", epoch)
	ours.issue(t, RoleCtld, "c1", epoch)
	ours.issue(t, RoleNode, "n1", epoch)
	theirs := newPKI(t, "red", epoch)
	theirs.issue(t, RoleCtld, "c1", epoch)
	// Same cluster name, another CA: an impostor.
	fake := newPKI(t, "blue", epoch)
	fake.issue(t, RoleCtld, "c1", epoch)

	c1, n1 := ours.open(t, "c1", clock), ours.open(t, "n1", clock)
	tests := []struct {
		name           string
		client, server *tls.Config
		ok             bool
	}{
		{"node to controller", n1.Client(), c1.Server(), true},
		{"controller to controller", c1.Client(), c1.Server(RoleCtld), true},
		{"node where only controllers may", n1.Client(), c1.Server(RoleCtld), false},
		{"node poses as the server", c1.Client(), n1.Server(), false},
		{"client of another cluster", theirs.open(t, "c1", clock).Client(), c1.Server(), false},
		{"server of another cluster", n1.Client(), theirs.open(t, "c1", clock).Server(), false},
		{"client of another CA with our name", fake.open(t, "c1", clock).Client(), c1.Server(), false},
		{"server of another CA with our name", n1.Client(), fake.open(t, "c1", clock).Server(), false},
		{"no certificate", &tls.Config{InsecureSkipVerify: true}, c1.Server(), false},
		{"TLS 1.2", &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, c1.Server(), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			peer, clientErr, serverErr := shake(t, tt.client, tt.server)
			if ok := clientErr == nil && serverErr == nil; ok != tt.ok {
				t.Fatalf("ok = %v, want %v (client %v, server %v)", ok, tt.ok, clientErr, serverErr)
			}
			if tt.ok {
				if _, _, name, err := IdentityOf(peer); err != nil || name == "" {
					t.Errorf("identity: %q %v", name, err)
				}
			}
		})
	}
}

func TestExpiredAndReload(t *testing.T) {
	now := epoch
	clock := func() time.Time { return now }
	p := newPKI(t, "blue", epoch)
	p.issue(t, RoleCtld, "c1", epoch)
	p.issue(t, RoleNode, "n1", epoch)
	c1, n1 := p.open(t, "c1", clock), p.open(t, "n1", clock)
	server, client := c1.Server(), n1.Client()

	now = epoch.Add(CertLife + time.Hour)
	if _, ce, se := shake(t, client, server); ce == nil && se == nil {
		t.Fatal("expired certificates were accepted")
	}
	p.issue(t, RoleCtld, "c1", now)
	p.issue(t, RoleNode, "n1", now)
	now = now.Add(reloadEvery)
	if _, ce, se := shake(t, client, server); ce != nil || se != nil {
		t.Fatalf("renewed certificates are not used: %v, %v", ce, se)
	}
	// A broken file leaves the old pair in force.
	if err := os.WriteFile(filepath.Join(p.dir, "c1.pem"), []byte("nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	now = now.Add(reloadEvery)
	if _, ce, se := shake(t, client, server); ce != nil || se != nil {
		t.Fatalf("a broken file took the listener down: %v, %v", ce, se)
	}
	key, der := c1.Signer()
	cert, err := x509.ParseCertificate(der)
	if err != nil || !cert.PublicKey.(ed25519.PublicKey).Equal(key.Public()) {
		t.Fatal("Signer gives a key that is not the certificate's")
	}
}

func TestKeyModes(t *testing.T) {
	p := newPKI(t, "blue", epoch)
	p.issue(t, RoleCtld, "c1", epoch)
	key := filepath.Join(p.dir, "c1.key")
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("key mode: %v %v", info.Mode(), err)
	}
	if err := os.Chmod(key, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenIdentity(p.dir, "c1", time.Now); !errors.Is(err, ErrLooseMode) {
		t.Errorf("a key that the group can read was loaded: %v", err)
	}
	pipe := filepath.Join(p.dir, "pipe.key")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(pipe); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a pipe as key: %v", err)
	}
	pair, err := p.ca.Issue(RoleCtld, "c1", 0, rand.Reader, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v", pair, p.ca); text != "pair of c1 CA of cluster blue" {
		t.Errorf("a pair and a CA print as %s", text)
	}
	if ca, err := LoadCA(p.dir); err != nil || ca.Cluster != "blue" {
		t.Errorf("LoadCA: %v", err)
	}
	if err := os.Chmod(filepath.Join(p.dir, CAKeyFile), 0o604); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCA(p.dir); !errors.Is(err, ErrLooseMode) {
		t.Errorf("a CA key that others can read was loaded: %v", err)
	}
	big := filepath.Join(p.dir, "big.pem")
	if err := os.WriteFile(big, make([]byte, maxPEM+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCert(big); err == nil || !strings.Contains(err.Error(), "exceeds 65536 bytes") {
		t.Errorf("a file over the limit: %v", err)
	}
}

func TestNamesAndRoles(t *testing.T) {
	ca, err := NewCA("blue", rand.Reader, epoch)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []Role{RoleUser, RoleAdmin, RoleNobody, ""} {
		if _, err := ca.Issue(role, "x", 0, rand.Reader, epoch); err == nil {
			t.Errorf("a certificate for role %q", role)
		}
	}
	for _, name := range []string{"", "..", "a/b", "a b", "x\n", strings.Repeat("n", 65), "ca"} {
		if _, err := ca.Issue(RoleNode, name, 0, rand.Reader, epoch); err == nil {
			t.Errorf("a certificate for name %q", name)
		}
	}
	if _, err := NewCA("a/b", rand.Reader, epoch); err == nil {
		t.Error("a CA for the cluster a/b")
	}
}

func FuzzIdentityURI(f *testing.F) {
	for _, s := range []string{"tensorgrid://blue/ctld/c1", "tensorgrid://blue/node/n1/x", "http://blue/ctld/c1", "tensorgrid://u@blue/ctld/c1?x#y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		cluster, role, name, err := IdentityOf(&x509.Certificate{URIs: []*url.URL{u}})
		if err != nil {
			return
		}
		if again := "tensorgrid://" + cluster + "/" + string(role) + "/" + name; !strings.EqualFold(again, s) && u.String() != again {
			t.Fatalf("%q was read as %q", s, again)
		}
	})
}

// TestCreateCA: a CA is never overwritten, also when only its key is left, or two are made at once.
func TestCreateCA(t *testing.T) {
	dir := t.TempDir()
	made := make(chan error, 8)
	for range cap(made) {
		go func() {
			ca, err := NewCA("blue", rand.Reader, epoch)
			if err == nil {
				err = ca.Create(dir)
			}
			made <- err
		}()
	}
	good := 0
	for range cap(made) {
		switch err := <-made; {
		case err == nil:
			good++
		case !errors.Is(err, ErrCAThere):
			t.Error(err)
		}
	}
	if _, err := LoadCA(dir); good != 1 || err != nil {
		t.Errorf("%d were made, the one there: %v", good, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, name := range []string{CAFile, CAKeyFile} {
		half := t.TempDir()
		if err := os.WriteFile(filepath.Join(half, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		ca, err := NewCA("blue", rand.Reader, epoch)
		if err != nil {
			t.Fatal(err)
		}
		if err := ca.Create(half); !errors.Is(err, ErrCAThere) {
			t.Errorf("with %s there: %v", name, err)
		}
	}
}

// TestWriteKeepsOwner: a pair that is renewed by root can still be read by its daemon.
func TestWriteKeepsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gives files away, which takes root")
	}
	p := newPKI(t, "blue", epoch)
	p.issue(t, RoleNode, "n1", epoch)
	key := filepath.Join(p.dir, "n1.key")
	if err := os.Chown(key, 4242, -1); err != nil {
		t.Fatal(err)
	}
	p.issue(t, RoleNode, "n1", epoch)
	if _, err := LoadPair(p.dir, "n1"); !errors.Is(err, ErrLooseMode) {
		t.Errorf("root uses a key that somebody else can read: %v", err)
	}
	if err := CheckPair(p.dir, "n1"); err != nil {
		t.Errorf("root cannot look after it: %v", err)
	}
	if uid, ok := ownerOf(key); !ok || uid != 4242 {
		t.Errorf("the key belongs to %d", uid)
	}
}
