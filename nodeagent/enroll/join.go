// Package enroll gets a daemon its certificates: the first with a one-time token, all later ones by showing the one
// it has. Keys are made here and never leave; they are readable by their owner alone from their first instant.
package enroll

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// joinLimit bounds the call that uses the token.
const joinLimit = 30 * time.Second

// MaxTokenFile bounds the file that a token is read from, in bytes.
const MaxTokenFile = 4 << 10

// Request is what a daemon needs for its first certificate.
type Request struct {
	Controller string // host:port of a controller's UserPort
	Name       string // the daemon's
	Token      authn.JoinToken
	Dir        string // the TLS folder; it is made if need be
	Owner      *Owner // whom the key is given to; nil: ours
	Force      bool   // replace a pair that is good
	Now        func() time.Time
	Rand       io.Reader
}

// Result says what was put in place.
type Result struct {
	Cluster string
	Role    authn.Role
	Until   time.Time
	Resumed bool // an earlier run had got it; the token was not used
}

// Join uses the token and puts ca.pem, NAME.pem and NAME.key in place. All that can go wrong on this host is tried
// before the token is used, because it can be used once.
func Join(ctx context.Context, q Request) (*Result, error) {
	f := folder{dir: q.Dir, name: q.Name, owner: q.Owner}
	if err := os.MkdirAll(q.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Access(q.Dir, unix.W_OK|unix.X_OK); err != nil {
		return nil, fmt.Errorf("%s cannot be written by this account: %w", q.Dir, err)
	}
	lock, err := f.lock()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	finished, err := f.finish()
	if err != nil {
		return nil, err
	}
	if have, err := f.look(q.Now()); err == nil && finished {
		return &Result{have.cluster, have.role, have.until, true}, nil
	} else if err == nil && !q.Force {
		return nil, fmt.Errorf("%s is good until %s as %s %s of cluster %s; --force replaces it", f.cert(), have.until.Format(time.RFC3339), have.role, q.Name, have.cluster)
	}
	if err := f.authority(q); err != nil {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(q.Rand)
	if err != nil {
		return nil, err
	}
	if err := f.putKey(key); err != nil {
		return nil, err
	}
	got, err := f.get(ctx, q, key)
	if err != nil {
		os.Remove(f.key() + newSuffix)
		os.Remove(f.cert() + newSuffix)
		return nil, err
	}
	return got, f.install()
}

// authority refuses a folder that belongs to another cluster, or to another authority of this one: the daemons
// whose certificates are here would lose the trust of theirs.
func (f folder) authority(q Request) error {
	cas, cluster, err := authn.LoadCAs(f.ca())
	if errors.Is(err, os.ErrNotExist) || err == nil && len(cas) == 0 {
		return nil
	}
	if err == nil {
		for _, ca := range cas {
			if authn.CAFingerprint(ca) == q.Token.CAFP {
				return nil
			}
		}
		err = fmt.Errorf("%s is of another authority (cluster %s) than the token", f.ca(), cluster)
	}
	if q.Force {
		return nil
	}
	return fmt.Errorf("%w; move it away if this host leaves that one, or say --force", err)
}

// get makes the call and writes what it gives beside its places.
func (f folder) get(ctx context.Context, q Request, key ed25519.PrivateKey) (*Result, error) {
	csr, err := authn.NewCSR(key, q.Name)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+q.Controller, grpc.WithTransportCredentials(credentials.NewTLS(q.Token.ClientTLS(q.Now))))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	res, err := nodepb.NewEnrollClient(conn).Join(ctx, &nodepb.JoinRequest{Token: q.Token.String(), Name: q.Name, Csr: csr})
	if err != nil {
		return nil, explain(q, err)
	}
	role := authn.Role(res.Role)
	if role != authn.RoleNode && role != authn.RoleLogin {
		return nil, fmt.Errorf("%s answered with a certificate of role %q: gnoded takes node and login", q.Controller, res.Role)
	}
	pair, ca, err := q.Token.Accept(res.Certificate, res.Ca, role, q.Name, key, q.Now())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", q.Controller, err)
	}
	cluster, _, _, err := authn.IdentityOf(pair.Cert)
	if err != nil {
		return nil, err
	}
	// An authority that is there and is the token's may stand beside another one while it is replaced: it stays.
	if q.Force || !exists(f.ca()) {
		open := folder{dir: f.dir, name: f.name}
		if err := open.put(f.ca()+newSuffix, certPEM(ca.Raw), 0o644); err != nil {
			return nil, used(q, err)
		}
	}
	open := folder{dir: f.dir, name: f.name}
	if err := open.put(f.cert()+newSuffix, certPEM(pair.Cert.Raw), 0o644); err != nil {
		return nil, used(q, err)
	}
	return &Result{Cluster: cluster, Role: role, Until: pair.Cert.NotAfter}, nil
}

// used says that the token is gone with nothing to show for it.
func used(q Request, err error) error {
	return fmt.Errorf("the token is used, but its certificate could not be written: %w; put that right, then ask for a new token: gctl node token %s", err, q.Name)
}

// explain says what to do about a join that failed.
func explain(q Request, err error) error {
	st := status.Convert(err)
	text := st.Message()
	switch st.Code() {
	case codes.Unavailable:
		switch {
		case strings.Contains(text, "does not belong to the cluster of this token"):
			return fmt.Errorf("%s is no controller of the token's cluster, and has not seen the token; is the address right?", q.Controller)
		case strings.Contains(text, "certificate has expired or is not yet valid"):
			return fmt.Errorf("%s: %s; is the clock of this host (%s) right?", q.Controller, text, q.Now().Format(time.RFC3339))
		}
		return fmt.Errorf("%s does not answer: %s; --controller takes the address and UserPort of a ControllerName line", q.Controller, text)
	case codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return fmt.Errorf("%s gave no answer (%s): whether the token was used is not known; try again, and if it is used by now, ask for a new one: gctl node token %s", q.Controller, text, q.Name)
	case codes.Unimplemented:
		return fmt.Errorf("%s does not give certificates: %s", q.Controller, text)
	}
	if strings.Contains(text, "used it already") {
		return fmt.Errorf("%s: %s (gctl node token %s); if it was not this host that used it, somebody else holds a certificate of that name", q.Controller, text, q.Name)
	}
	return fmt.Errorf("%s: %s", q.Controller, text)
}
