package authn

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// ErrPeer says that the other end has a valid certificate, but of another cluster or role.
var ErrPeer = errors.New("peer is of another cluster or role")

// reloadEvery bounds how often the files are looked at.
const reloadEvery = time.Second

// Identity is a daemon's certificate, key and CA, read again when the files change. A renewed
// pair is used by new connections without a restart; a broken one leaves the old in force.
type Identity struct {
	dir, name string
	now       func() time.Time

	mu      sync.Mutex
	checked time.Time
	stamps  [3]fileStamp
	cur     *loaded
	problem error // why files that have changed are not used
}

type loaded struct {
	cluster string
	role    Role
	name    string
	pair    tls.Certificate
	key     ed25519.PrivateKey
	cas     []*x509.Certificate
	roots   *x509.CertPool
}

// OpenIdentity reads ca.pem, NAME.pem and NAME.key of dir.
func OpenIdentity(dir, name string, now func() time.Time) (*Identity, error) {
	id := &Identity{dir: dir, name: name, now: now}
	stamps, err := id.stat()
	if err != nil {
		return nil, err
	}
	if id.cur, err = id.load(); err != nil {
		return nil, err
	}
	id.stamps, id.checked = stamps, now()
	return id, nil
}

// ServerTLS is OpenIdentity(dir, name).Server(accept...).
func ServerTLS(dir, name string, accept ...Role) (*tls.Config, error) {
	id, err := OpenIdentity(dir, name, time.Now)
	if err != nil {
		return nil, err
	}
	return id.Server(accept...), nil
}

// ClientTLS is OpenIdentity(dir, name).Client(accept...).
func ClientTLS(dir, name string, accept ...Role) (*tls.Config, error) {
	id, err := OpenIdentity(dir, name, time.Now)
	if err != nil {
		return nil, err
	}
	return id.Client(accept...), nil
}

// Cluster is the cluster that the certificate is of.
func (id *Identity) Cluster() string { return id.current().cluster }

// Role is the role of the certificate.
func (id *Identity) Role() Role { return id.current().role }

// Name is the daemon's name in the certificate.
func (id *Identity) Name() string { return id.current().name }

// Signer gives the key and the DER of the certificate that belongs to it, for launch credentials.
func (id *Identity) Signer() (ed25519.PrivateKey, []byte) {
	cur := id.current()
	return cur.key, cur.pair.Certificate[0]
}

// Server is a TLS 1.3 configuration that demands a certificate of this cluster with one of the
// roles; none given means ctld and node.
func (id *Identity) Server(accept ...Role) *tls.Config {
	if len(accept) == 0 {
		accept = []Role{RoleCtld, RoleNode}
	}
	protos := []string{"h2"}
	base := func() *tls.Config {
		cur := id.current()
		return &tls.Config{
			MinVersion:             tls.VersionTLS13,
			NextProtos:             protos,
			Certificates:           []tls.Certificate{cur.pair},
			ClientAuth:             tls.RequireAndVerifyClientCert,
			ClientCAs:              cur.roots,
			Time:                   id.now,
			SessionTicketsDisabled: true, // a resumed session would outlive a changed CA
			VerifyConnection: func(cs tls.ConnectionState) error {
				return checkPeer(cs, cur.cluster, accept)
			},
		}
	}
	cfg := base()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return base(), nil }
	return cfg
}

// Client is a TLS 1.3 configuration that accepts only servers of this cluster with one of the
// roles; none given means ctld. Names of hosts play no part: the certificate's URI does.
func (id *Identity) Client(accept ...Role) *tls.Config {
	if len(accept) == 0 {
		accept = []Role{RoleCtld}
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		Time:       id.now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cur := id.current()
			return &cur.pair, nil
		},
		// The host name check is replaced, not dropped: VerifyConnection verifies the chain against
		// the newest CA, which a fixed RootCAs could not follow, and then cluster and role.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			cur := id.current()
			if err := verifyChain(cs, cur.roots, id.now()); err != nil {
				return err
			}
			return checkPeer(cs, cur.cluster, accept)
		},
	}
}

func pool(cas []*x509.Certificate) *x509.CertPool {
	roots := x509.NewCertPool()
	for _, ca := range cas {
		roots.AddCert(ca)
	}
	return roots
}

func verifyChain(cs tls.ConnectionState, roots *x509.CertPool, now time.Time) error {
	if len(cs.PeerCertificates) == 0 {
		return ErrNobody
	}
	_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

func checkPeer(cs tls.ConnectionState, cluster string, accept []Role) error {
	if len(cs.PeerCertificates) == 0 {
		return ErrNobody
	}
	have, role, name, err := IdentityOf(cs.PeerCertificates[0])
	if err != nil {
		return err
	}
	if have != cluster || !slices.Contains(accept, role) {
		return fmt.Errorf("%w: %s %q of cluster %q (want %v of %q)", ErrPeer, role, name, have, accept, cluster)
	}
	return nil
}

// current reads the files again when they have changed.
func (id *Identity) current() *loaded {
	id.mu.Lock()
	defer id.mu.Unlock()
	now := id.now()
	if d := now.Sub(id.checked); d >= 0 && d < reloadEvery {
		return id.cur
	}
	id.checked = now
	stamps, err := id.stat()
	if err != nil {
		id.problem = err
		return id.cur
	}
	if stamps == id.stamps {
		id.problem = nil
		return id.cur
	}
	next, err := id.load()
	if err == nil && (next.cluster != id.cur.cluster || next.role != id.cur.role || next.name != id.cur.name) {
		err = fmt.Errorf("%s is now of %s %s of cluster %s, this is %s %s of cluster %s", id.paths()[1],
			next.role, next.name, next.cluster, id.cur.role, id.cur.name, id.cur.cluster)
	}
	if id.problem = err; err == nil {
		id.cur, id.stamps = next, stamps
	}
	return id.cur
}

func (id *Identity) paths() [3]string {
	return [3]string{
		filepath.Join(id.dir, CAFile), filepath.Join(id.dir, id.name+".pem"), filepath.Join(id.dir, id.name+".key"),
	}
}

func (id *Identity) stat() (s [3]fileStamp, err error) {
	for i, path := range id.paths() {
		info, err := os.Stat(path)
		if err != nil {
			return s, fmt.Errorf("certificates: %w", err)
		}
		s[i] = fileStamp{info.ModTime(), info.Size()}
	}
	return s, nil
}

func (id *Identity) load() (*loaded, error) {
	paths := id.paths()
	cas, caCluster, err := LoadCAs(paths[0])
	if err != nil {
		return nil, err
	}
	pair, err := LoadPair(id.dir, id.name)
	if err != nil {
		return nil, err
	}
	cert, key := pair.Cert, pair.Key
	cluster, role, name, err := IdentityOf(cert)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", paths[1], err)
	}
	if cluster != caCluster {
		return nil, fmt.Errorf("%s is of cluster %s, %s of cluster %s", paths[1], cluster, paths[0], caCluster)
	}
	roots := pool(cas)
	if _, err := cert.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: id.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}); err != nil {
		return nil, fmt.Errorf("%s: %w%s", paths[1], err, remedy(err, role, name))
	}
	return &loaded{
		cluster: cluster, role: role, name: name, key: key, cas: cas, roots: roots,
		pair: tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert},
	}, nil
}

// remedy is what to do about a certificate whose time is over.
func remedy(err error, role Role, name string) string {
	var invalid x509.CertificateInvalidError
	if !errors.As(err, &invalid) || invalid.Reason != x509.Expired {
		return ""
	}
	if role == RoleCtld {
		return "; if the clock is right, make another where the CA's key is: gctl pki renew " + name
	}
	return "; if the clock is right, get another with a new token: gnoded join"
}
