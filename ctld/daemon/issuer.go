package daemon

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/server"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// How often a controller looks whether its own certificate is to be renewed, and how often it says that it
// could not be.
const (
	renewLook = time.Minute
	renewTell = time.Hour
)

// issuer signs with the CA's key, if it lies here. It is read anew each time, so that a key that is taken
// away, or comes with a new CA, needs no restart.
type issuer struct {
	cluster, cert, key string
	now                func() time.Time
}

func newIssuer(cfg *conf.Config, now func() time.Time) issuer {
	key := cfg.IssuerKey
	if key == "" {
		key = filepath.Join(cfg.TLSDir, authn.CAKeyFile)
	}
	return issuer{cluster: cfg.ClusterName, cert: filepath.Join(cfg.TLSDir, authn.CAFile), key: key, now: now}
}

func (i issuer) load() (*authn.CA, error) {
	ca, err := authn.LoadIssuer(i.cert, i.key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w (%s is not there)", server.ErrNoIssuer, i.key)
	}
	if err == nil && ca.Cluster != i.cluster {
		err = fmt.Errorf("%s is the CA of cluster %s, this is %s", i.cert, ca.Cluster, i.cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", server.ErrNoIssuer, err)
	}
	return ca, nil
}

// CA implements server.Issuer.
func (i issuer) CA() (*x509.Certificate, error) {
	ca, err := i.load()
	if err != nil {
		return nil, err
	}
	return ca.Cert, nil
}

// Sign implements server.Issuer.
func (i issuer) Sign(csr []byte, role authn.Role, name string, life time.Duration) (*x509.Certificate, error) {
	ca, err := i.load()
	if err != nil {
		return nil, err
	}
	return ca.SignCSR(csr, role, name, life, rand.Reader, i.now())
}

// renewal keeps this controller's own certificate good where the issuer's key lies beside it.
type renewal struct {
	issuer issuer
	id     *authn.Identity
	dir    string
	life   func() time.Duration
	log    *slog.Logger
	now    func() time.Time
	every  time.Duration
}

// run renews until ctx ends.
func (r renewal) run(ctx context.Context) {
	var told time.Time
	for {
		if r.id.Expiry().Due(r.now()) {
			err := r.renew()
			switch {
			case err == nil:
				r.log.Info("the certificate of this controller was renewed", "name", r.id.Name(), "until", r.id.Expiry().NotAfter.UTC())
			case errors.Is(err, server.ErrNoIssuer) && !errors.Is(err, authn.ErrLooseMode):
				// Somebody else renews it; the end is warned of in time.
			case time.Since(told) >= renewTell:
				told = time.Now()
				r.log.Error("the certificate of this controller cannot be renewed here", "name", r.id.Name(), "err", err)
			}
		}
		if !rest(ctx, r.every) {
			return
		}
	}
}

func (r renewal) renew() error {
	ca, err := r.issuer.load()
	if err != nil {
		return err
	}
	lock, err := authn.LockFolder(r.dir) // gctl pki renew may be at work
	if err != nil {
		return err
	}
	defer lock.Close()
	pair, err := ca.Issue(authn.RoleCtld, r.id.Name(), r.life(), rand.Reader, r.now())
	if err != nil {
		return err
	}
	return pair.Write(r.dir, r.id.Name())
}
