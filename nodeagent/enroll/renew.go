package enroll

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Times of a renewal.
const (
	lookEvery  = time.Minute      // how often the clock and the administrator's folder are looked at
	firstRetry = 10 * time.Second // after a renewal that failed
	lastRetry  = time.Hour
	callLimit  = 30 * time.Second
	nagEvery   = 24 * time.Hour // how often an end that comes near is said loudly
)

// Home is where a daemon has its certificate and key. An administrator puts them into TLSDir; a daemon that may
// not write there keeps a copy, and what it renews, in a folder of its own.
type Home struct {
	Dir  string // ca.pem, NAME.pem and NAME.key are read here
	tls  string // TLSDir
	name string
}

// NewHome finds the daemon's folder: TLSDir when it may be written, else own, which is made if need be. What a
// crash has cut in the middle of a renewal is finished.
func NewHome(tlsDir, own, name string) (*Home, error) {
	if ours(tlsDir) {
		return &Home{tlsDir, tlsDir, name}, Recover(tlsDir, name)
	}
	h := &Home{own, tlsDir, name}
	if err := os.Mkdir(own, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := Recover(own, name); err != nil {
		return nil, err
	}
	// The authority is never the daemon's own to change: the launcher and all others believe the administrator's.
	ca := filepath.Join(own, authn.CAFile)
	want := filepath.Join(tlsDir, authn.CAFile)
	if have, err := os.Readlink(ca); err != nil || have != want {
		if err := os.Remove(ca); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err := os.Symlink(want, ca); err != nil {
			return nil, err
		}
	}
	return h, h.adopt()
}

// adopt takes over the pair in TLSDir when it is newer than ours, or ours is none.
func (h *Home) adopt() error {
	if h.Dir == h.tls {
		return nil
	}
	theirs, own := folder{dir: h.tls, name: h.name}, folder{dir: h.Dir, name: h.name}
	given, err := authn.LoadPair(h.tls, h.name)
	have, haveErr := authn.LoadPair(h.Dir, h.name)
	switch {
	case err != nil:
		if cert, cerr := authn.LoadCert(theirs.cert()); haveErr == nil && (cerr != nil || !newer(cert, have.Cert)) {
			return nil // it was taken away there, or we have it, and may read it here only; ours goes on
		}
		return err
	case haveErr == nil && !newer(given.Cert, have.Cert):
		return nil
	}
	return own.replace(given.Key, given.Cert.Raw)
}

// newer tells whether a certificate that was given takes the place of the one that is there.
func newer(given, have *x509.Certificate) bool {
	return !have.Equal(given) && !have.NotBefore.After(given.NotBefore)
}

// replace puts a pair in the place of the one that is there.
func (f folder) replace(key ed25519.PrivateKey, der []byte) error {
	lock, err := f.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := f.putKey(key); err != nil {
		return err
	}
	if err := f.put(f.cert()+newSuffix, certPEM(der), 0o644); err != nil {
		return err
	}
	return f.install()
}

// Renewer keeps the certificate of a daemon from ending. The identity that was opened on Home.Dir sees each new
// pair by itself, and connections that are open stay.
type Renewer struct {
	Home     *Home
	Identity *authn.Identity // opened on Home.Dir
	Call     func(context.Context, *nodepb.RenewRequest) (*nodepb.JoinResponse, error)
	Now      func() time.Time // wall clock: certificates are held against it
	Jitter   func() float64   // 0 to 1: spreads the daemons of a cluster over the time in which it is due
	Rand     io.Reader
	Log      *slog.Logger
}

// Run renews until ctx ends. It never ends by itself: a certificate may still be put in place by hand.
func (r *Renewer) Run(ctx context.Context) {
	spread, retry := r.Jitter(), firstRetry
	var nextTry, nagged time.Time
	for {
		if err := r.Home.adopt(); err != nil {
			r.Log.Warn("the pair in TLSDir is not used", "err", err)
		}
		now := r.Now()
		cert, err := authn.LoadCert(folder{dir: r.Home.Dir, name: r.Home.name}.cert())
		switch {
		case err != nil:
			r.Log.Error("the certificate cannot be read", "err", err)
		case now.Before(due(cert, spread)), now.Before(nextTry) && nextTry.Sub(now) <= lastRetry: // a clock that was set back does not hold it up
		default:
			if err = r.renew(ctx); err == nil {
				spread, retry, nextTry = r.Jitter(), firstRetry, time.Time{}
				break
			}
			if ctx.Err() != nil {
				return
			}
			nextTry, retry = now.Add(retry), min(2*retry, lastRetry)
			r.Log.Warn("the certificate is not renewed yet", "until", cert.NotAfter, "err", err)
			if left := cert.NotAfter.Sub(now); left < authn.Life(cert)/6 && (nagged.IsZero() || now.Sub(nagged) >= nagEvery) {
				nagged = now
				r.Log.Error("the certificate ends soon and no controller renews it: issue one by hand with gctl pki issue, or join again",
					"until", cert.NotAfter, "left", left.Round(time.Second))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(lookEvery, retry)):
		}
	}
}

// due is after two thirds of the life, and up to a twelfth more.
func due(cert *x509.Certificate, spread float64) time.Time {
	l := authn.Life(cert)
	return cert.NotAfter.Add(time.Duration(spread*float64(l/12)) - l/3)
}

// renew gets a certificate for a new key and puts both in place.
func (r *Renewer) renew(ctx context.Context) error {
	f := folder{dir: r.Home.Dir, name: r.Home.name}
	_, key, err := ed25519.GenerateKey(r.Rand)
	if err != nil {
		return err
	}
	csr, err := authn.NewCSR(key, f.name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	res, err := r.Call(ctx, &nodepb.RenewRequest{Csr: csr})
	if err != nil {
		return err
	}
	pair, err := r.Identity.AcceptRenewal(res.Certificate, key)
	if err != nil {
		return fmt.Errorf("%w (is the authority being replaced? then ca.pem has to hold the new one too)", err)
	}
	if !r.Now().Before(due(pair.Cert, 0)) {
		return fmt.Errorf("the certificate that came ends %s: it would be due again at once; is CertLife too short, or a clock wrong?", pair.Cert.NotAfter.Format(time.RFC3339))
	}
	if err := f.replace(key, pair.Cert.Raw); err != nil {
		return err
	}
	r.Log.Info("the certificate is renewed", "until", pair.Cert.NotAfter)
	return nil
}
