package enroll

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

func newCA(t *testing.T) *authn.CA {
	t.Helper()
	ca, err := authn.NewCA("lab", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *authn.CA, life, age time.Duration) *authn.Pair {
	t.Helper()
	p, err := ca.Issue(authn.RoleNode, "n1", life, rand.Reader, time.Now().Add(-age))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCrash cuts an installation after each of its steps; what is there afterwards is a whole pair, old or new.
func TestCrash(t *testing.T) {
	ca := newCA(t)
	for _, tc := range []struct {
		name  string
		steps int
		fresh bool // the new pair is found in the end
	}{{"nothing", 0, false}, {"half a key", 1, false}, {"the key", 2, false}, {"half a certificate", 3, false}, {"both", 4, true}, {"the key renamed", 5, true}, {"both renamed", 6, true}} {
		t.Run(tc.name, func(t *testing.T) {
			f := folder{dir: t.TempDir(), name: "n1"}
			was, next := issue(t, ca, time.Hour, 0), issue(t, ca, time.Hour, 0)
			if err := errors.Join(ca.WriteCert(f.dir), was.Write(f.dir, "n1")); err != nil {
				t.Fatal(err)
			}
			steps := []func() error{
				func() error { return os.WriteFile(f.key()+newSuffix, []byte("-----BEGIN"), 0o600) },
				func() error { return f.putKey(next.Key) },
				func() error { return os.WriteFile(f.cert()+newSuffix, []byte("-----BEGIN"), 0o644) },
				func() error { return f.put(f.cert()+newSuffix, certPEM(next.Cert.Raw), 0o644) },
				func() error { return os.Rename(f.key()+newSuffix, f.key()) },
				func() error { return os.Rename(f.cert()+newSuffix, f.cert()) },
			}
			for _, step := range steps[:tc.steps] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if err := Recover(f.dir, "n1"); err != nil {
				t.Fatal(err)
			}
			open(t, f.dir)
			noLeftovers(t, f.dir)
			cert, err := authn.LoadCert(f.cert())
			if err != nil || cert.Equal(next.Cert) != tc.fresh {
				t.Errorf("the new pair is there: %t, want %t (%v)", cert.Equal(next.Cert), tc.fresh, err)
			}
		})
	}
}

// TestHome: a daemon that may not write TLSDir keeps its own copy, takes over what an administrator puts there,
// and never has an authority of its own.
func TestHome(t *testing.T) {
	ca := newCA(t)
	tls, own := t.TempDir(), t.TempDir()
	put := func(age time.Duration) *authn.Pair {
		t.Helper()
		p := issue(t, ca, 3*time.Hour, age)
		if err := errors.Join(ca.WriteCert(tls), p.Write(tls, "n1")); err != nil {
			t.Fatal(err)
		}
		return p
	}
	h := &Home{own, tls, "n1"}
	is := func(what string, want *authn.Pair) {
		t.Helper()
		if err := h.adopt(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		cert, err := authn.LoadCert(filepath.Join(own, "n1.pem"))
		if err != nil || !cert.Equal(want.Cert) {
			t.Errorf("%s: another pair is in use (%v)", what, err)
		}
	}
	if err := os.Symlink(filepath.Join(tls, authn.CAFile), filepath.Join(own, authn.CAFile)); err != nil {
		t.Fatal(err)
	}
	is("the first", put(time.Hour))
	open(t, own)
	renewed := issue(t, ca, 3*time.Hour, time.Minute)
	if err := (folder{dir: own, name: "n1"}).replace(renewed.Key, renewed.Cert.Raw); err != nil {
		t.Fatal(err)
	}
	is("ours is newer", renewed)
	given := put(0)
	is("the administrator's is newer", given)
	// gctl pki renew was killed when the key was in place and its certificate was not: that waits beside.
	given = put(0)
	is("the administrator's again", given)
	cut := issue(t, ca, 3*time.Hour, 0)
	if err := errors.Join(cut.Write(tls, "n1"), os.Rename(filepath.Join(tls, "n1.pem"), filepath.Join(tls, "n1.pem.new")),
		os.WriteFile(filepath.Join(tls, "n1.pem"), certPEM(given.Cert.Raw), 0o644)); err != nil {
		t.Fatal(err)
	}
	is("cut in TLSDir", cut)
	given = put(0)
	is("written anew after that", given)
	// A reader of the folder cannot hold renewals up.
	d, err := os.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	given = put(0)
	is("while a reader locks the folder", given)
	os.Remove(filepath.Join(tls, "n1.pem"))
	is("taken away in TLSDir", given)
	os.WriteFile(filepath.Join(own, "n1.pem"), nil, 0o600)
	if err := h.adopt(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no pair anywhere: %v", err)
	}
}

// TestRenew runs four days on a virtual clock: each certificate of six hours is renewed in time, also when nobody
// gives certificates for an hour.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newCA(t)
		dir := t.TempDir()
		if err := errors.Join(ca.WriteCert(dir), issue(t, ca, 6*time.Hour, 0).Write(dir, "n1")); err != nil {
			t.Fatal(err)
		}
		home, err := NewHome(dir, filepath.Join(dir, "own"), "n1")
		if err != nil {
			t.Fatal(err)
		}
		var given, refused atomic.Int64
		var away atomic.Bool
		r := &Renewer{Home: home, Identity: open(t, dir), Now: time.Now, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler),
			Jitter: func() float64 { return 0.5 },
			Call: func(_ context.Context, q *nodepb.RenewRequest) (*nodepb.JoinResponse, error) {
				if away.Load() {
					refused.Add(1)
					return nil, errors.New("nobody leads")
				}
				given.Add(1)
				cert, err := ca.SignCSR(q.Csr, authn.RoleNode, "n1", 6*time.Hour, rand.Reader, time.Now())
				if err != nil {
					return nil, err
				}
				return &nodepb.JoinResponse{Certificate: cert.Raw, Ca: ca.Cert.Raw}, nil
			}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		defer func() { cancel(); <-done }()
		const days = 4
		for hour := range days * 24 {
			away.Store(hour%24 == 4)
			time.Sleep(time.Hour)
			if id := open(t, dir); id.Name() != "n1" {
				t.Fatalf("hour %d: %s", hour, id.Name())
			}
		}
		if g, r := given.Load(), refused.Load(); g < days*24/5 || g > days*24/3 || r == 0 || r > days*60 {
			t.Errorf("%d renewals and %d refusals in %d days", g, r, days)
		}
		noLeftovers(t, dir)
	})
}

// TestRenewRefuses: an answer that is not what was asked for changes nothing.
func TestRenewRefuses(t *testing.T) {
	ca, foreign := newCA(t), newCA(t)
	for _, tc := range []struct {
		name string
		sign func(csr []byte) ([]byte, error)
	}{
		{"another role", func(csr []byte) ([]byte, error) { return signed(ca, csr, authn.RoleLogin, "n1", time.Hour) }},
		{"another name", func(csr []byte) ([]byte, error) { return signed(ca, csr, authn.RoleNode, "n2", time.Hour) }},
		{"another authority", func(csr []byte) ([]byte, error) { return signed(foreign, csr, authn.RoleNode, "n1", time.Hour) }},
		{"another key", func([]byte) ([]byte, error) { return issue(t, ca, time.Hour, 0).Cert.Raw, nil }},
		{"due at once", func(csr []byte) ([]byte, error) { return signedAt(ca, csr, time.Hour, time.Now().Add(-50*time.Minute)) }},
		{"no certificate", func([]byte) ([]byte, error) { return []byte("x"), nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			was := issue(t, ca, 30*time.Minute, 0)
			if err := errors.Join(ca.WriteCert(dir), was.Write(dir, "n1")); err != nil {
				t.Fatal(err)
			}
			r := &Renewer{Home: &Home{dir, dir, "n1"}, Identity: open(t, dir), Now: time.Now, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler),
				Call: func(_ context.Context, q *nodepb.RenewRequest) (*nodepb.JoinResponse, error) {
					der, err := tc.sign(q.Csr)
					return &nodepb.JoinResponse{Certificate: der}, err
				}}
			if err := r.renew(t.Context()); err == nil {
				t.Error("it was taken")
			}
			if cert, err := authn.LoadCert(filepath.Join(dir, "n1.pem")); err != nil || !cert.Equal(was.Cert) {
				t.Errorf("the pair changed: %v", err)
			}
			noLeftovers(t, dir)
		})
	}
}

func signedAt(ca *authn.CA, csr []byte, life time.Duration, at time.Time) ([]byte, error) {
	cert, err := ca.SignCSR(csr, authn.RoleNode, "n1", life, rand.Reader, at)
	if err != nil {
		return nil, err
	}
	return cert.Raw, nil
}

func signed(ca *authn.CA, csr []byte, role authn.Role, name string, life time.Duration) ([]byte, error) {
	cert, err := ca.SignCSR(csr, role, name, life, rand.Reader, time.Now())
	if err != nil {
		return nil, err
	}
	return cert.Raw, nil
}

// TestDue: two thirds of what is left when it is given, however short that is.
func TestDue(t *testing.T) {
	ca := newCA(t)
	for _, life := range []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 30 * 24 * time.Hour} {
		given := time.Now()
		cert := issue(t, ca, life, 0).Cert
		for spread, want := range map[float64]time.Duration{0: life * 2 / 3, 1: life * 3 / 4} {
			if got := due(cert, spread).Sub(given); got < want-2*time.Second || got > want+2*time.Second {
				t.Errorf("a life of %s with %g: due after %s, want %s", life, spread, got, want)
			}
		}
	}
}
