package authn

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// File names in a TLS folder; a daemon's pair is NAME.pem and NAME.key.
const (
	CAFile    = "ca.pem"
	CAKeyFile = "ca.key"
)

// Lifetimes of what NewCA and Issue make when the caller does not say.
const (
	CALife   = 10 * 365 * 24 * time.Hour
	CertLife = 365 * 24 * time.Hour
	// clockSkew is how much the clocks of two daemons may differ.
	clockSkew = 5 * time.Minute
)

const maxPEM = 64 << 10 // bytes of one key or certificate file

// Errors that callers branch on.
var (
	ErrLooseMode = errors.New("key file is readable by others")
	ErrIdentity  = errors.New("certificate carries no tensorgrid identity")
)

// CA signs the certificates of one cluster's daemons.
type CA struct {
	Cluster string
	Cert    *x509.Certificate
	Key     ed25519.PrivateKey
}

// Pair is a daemon's certificate and key.
type Pair struct {
	Cert *x509.Certificate
	Key  ed25519.PrivateKey
}

// String keeps the key out of texts.
func (ca *CA) String() string { return "CA of cluster " + ca.Cluster }

// String keeps the key out of texts.
func (p *Pair) String() string {
	if p == nil || p.Cert == nil {
		return "no pair"
	}
	return "pair of " + p.Cert.Subject.CommonName
}

// NewCA is NewCAFor with CALife.
func NewCA(cluster string, rng io.Reader, now time.Time) (*CA, error) {
	return NewCAFor(cluster, CALife, rng, now)
}

// NewCAFor makes a certificate authority for one cluster. rng gives randomness, now the start of its life.
func NewCAFor(cluster string, life time.Duration, rng io.Reader, now time.Time) (*CA, error) {
	if !validName(cluster) {
		return nil, fmt.Errorf("cluster name %q: want 1 to 64 letters, digits, '-', '_' or '.'", cluster)
	}
	_, key, err := ed25519.GenerateKey(rng)
	if err != nil {
		return nil, fmt.Errorf("make the CA key: %w", err)
	}
	serial, err := newSerial(rng)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "tensorgrid " + cluster},
		URIs:         []*url.URL{{Scheme: "tensorgrid", Host: cluster, Path: "/ca"}},
		NotBefore:    now.Add(-clockSkew), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert, err := sign(rng, t, t, key.Public().(ed25519.PublicKey), key)
	if err != nil {
		return nil, err
	}
	return &CA{Cluster: cluster, Cert: cert, Key: key}, nil
}

// Issue makes the pair of one daemon: role ctld, node or login. life <= 0 means CertLife; it never
// outlives the CA.
func (ca *CA) Issue(role Role, name string, life time.Duration, rng io.Reader, now time.Time) (*Pair, error) {
	if err := CheckIssue(role, name); err != nil {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rng)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	cert, err := ca.certify(key.Public().(ed25519.PublicKey), role, name, life, rng, now)
	if err != nil {
		return nil, err
	}
	return &Pair{Cert: cert, Key: key}, nil
}

// CheckIssue refuses roles and names that no certificate may carry.
func CheckIssue(role Role, name string) error {
	if !certified(role) {
		return fmt.Errorf("role %q: certificates are for ctld, node and login", role)
	}
	if !validName(name) {
		return fmt.Errorf("daemon name %q: want 1 to 64 letters, digits, '-', '_' or '.'", name)
	}
	if name+".pem" == CAFile {
		return fmt.Errorf("daemon name %q: its files would take the place of the CA's", name)
	}
	return nil
}

// certify signs the certificate of one key.
func (ca *CA) certify(pub ed25519.PublicKey, role Role, name string, life time.Duration, rng io.Reader, now time.Time) (*x509.Certificate, error) {
	if life <= 0 {
		life = CertLife
	}
	if !now.Before(ca.Cert.NotAfter) {
		return nil, fmt.Errorf("the CA of cluster %s ended at %s: make a new one", ca.Cluster, ca.Cert.NotAfter.Format(time.RFC3339))
	}
	serial, err := newSerial(rng)
	if err != nil {
		return nil, err
	}
	end := now.Add(life)
	if end.After(ca.Cert.NotAfter) {
		end = ca.Cert.NotAfter
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		URIs:         []*url.URL{{Scheme: "tensorgrid", Host: ca.Cluster, Path: "/" + string(role) + "/" + name}},
		NotBefore:    now.Add(-clockSkew), NotAfter: end,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	return sign(rng, t, ca.Cert, pub, ca.Key)
}

func newSerial(rng io.Reader) (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := io.ReadFull(rng, b); err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	b[0] &= 0x7f
	b[15] |= 1 // never zero
	return new(big.Int).SetBytes(b), nil
}

func sign(rng io.Reader, t, parent *x509.Certificate, pub ed25519.PublicKey, key ed25519.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rng, t, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", t.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// IdentityOf reads cluster, role and name from a certificate that was already verified.
func IdentityOf(cert *x509.Certificate) (cluster string, role Role, name string, err error) {
	if len(cert.URIs) != 1 {
		return "", RoleNobody, "", fmt.Errorf("%w: want exactly one URI, found %d", ErrIdentity, len(cert.URIs))
	}
	u := cert.URIs[0]
	kind, name, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	role = Role(kind)
	if u.Scheme != "tensorgrid" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !ok ||
		!validName(u.Host) || !validName(name) || !certified(role) {
		return "", RoleNobody, "", fmt.Errorf("%w: %s", ErrIdentity, u)
	}
	return u.Host, role, name, nil
}

// certified tells whether certificates carry the role.
func certified(r Role) bool { return r == RoleCtld || r == RoleNode || r == RoleLogin }

func validName(s string) bool {
	if s == "" || len(s) > 64 || s == "." || s == ".." {
		return false
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.' {
			return false
		}
	}
	return true
}

// Write stores the CA as ca.pem and ca.key in dir, which must exist.
func (ca *CA) Write(dir string) error {
	if err := writeKey(filepath.Join(dir, CAKeyFile), ca.Key); err != nil {
		return err
	}
	return writeCert(filepath.Join(dir, CAFile), ca.Cert)
}

// ErrCAThere says that a folder holds a CA, or the rest of one.
var ErrCAThere = errors.New("there is a CA already")

// Create is Write into a folder that holds no CA; of two at once one gets ErrCAThere.
func (ca *CA) Create(dir string) error {
	for _, name := range []string{CAFile, CAKeyFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("%s: %w", filepath.Join(dir, name), ErrCAThere), err)
		}
	}
	data, err := keyPEM(ca.Key)
	if err != nil {
		return err
	}
	if err := placeFile(filepath.Join(dir, CAKeyFile), filepath.Join(dir, CAKeyFile), data, 0o600, os.Link); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s: %w", filepath.Join(dir, CAKeyFile), ErrCAThere)
		}
		return err
	}
	return ca.WriteCert(dir)
}

// WriteCert stores only the CA's certificate: what daemons need.
func (ca *CA) WriteCert(dir string) error { return writeCert(filepath.Join(dir, CAFile), ca.Cert) }

// LoadCA reads what Write stored. While a CA is being replaced ca.pem holds two certificates; the one
// that ca.key belongs to is the CA that signs.
func LoadCA(dir string) (*CA, error) {
	key, err := LoadKey(filepath.Join(dir, CAKeyFile))
	if err != nil {
		return nil, err
	}
	return loadCA(filepath.Join(dir, CAFile), key)
}

// LoadIssuer reads a CA whose certificate and key lie in different folders.
func LoadIssuer(certPath, keyPath string) (*CA, error) {
	key, err := LoadKey(keyPath)
	if err != nil {
		return nil, err
	}
	return loadCA(certPath, key)
}

func loadCA(path string, key ed25519.PrivateKey) (*CA, error) {
	cas, cluster, err := LoadCAs(path)
	if err != nil {
		return nil, err
	}
	for _, cert := range cas {
		if pub, ok := cert.PublicKey.(ed25519.PublicKey); ok && pub.Equal(key.Public()) {
			return &CA{Cluster: cluster, Cert: cert, Key: key}, nil
		}
	}
	return nil, fmt.Errorf("the CA's key belongs to no certificate in %s", path)
}

// maxCAs bounds the certificates of one ca.pem: an old and a new CA, and one to spare.
const maxCAs = 3

// LoadCAs reads the certificates of a ca.pem, all of which must be CAs of one cluster.
func LoadCAs(path string) (cas []*x509.Certificate, cluster string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("certificate: %w", err)
	}
	defer f.Close()
	blocks, err := readPEMs(f, path, "CERTIFICATE", maxCAs)
	if err != nil {
		return nil, "", err
	}
	for _, der := range blocks {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", path, err)
		}
		name, err := clusterOf(cert)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", path, err)
		}
		if cluster != "" && name != cluster {
			return nil, "", fmt.Errorf("%s holds the CAs of clusters %s and %s; want one cluster's", path, cluster, name)
		}
		cas, cluster = append(cas, cert), name
	}
	return cas, cluster, nil
}

// clusterOf gives the cluster that a certificate is the CA of.
func clusterOf(cert *x509.Certificate) (string, error) {
	if !cert.IsCA || len(cert.URIs) != 1 || cert.URIs[0].Scheme != "tensorgrid" || cert.URIs[0].Path != "/ca" || !validName(cert.URIs[0].Host) {
		return "", fmt.Errorf("%w: it is no CA of a cluster", ErrIdentity)
	}
	return cert.URIs[0].Host, nil
}

// WriteCAs stores a ca.pem of several certificates, for the time in which a CA is replaced.
func WriteCAs(dir string, cas ...*x509.Certificate) error {
	var data []byte
	for _, c := range cas {
		data = append(data, certPEM(c)...)
	}
	return writeFile(filepath.Join(dir, CAFile), data, 0o644)
}

func keyPEM(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// openSecret opens a file that holds a secret, and refuses one that others can read or, unless
// anyOwner is set, that somebody else owns.
func openSecret(path string, anyOwner bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not hold us
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("%s has mode %04o, want 0600: %w", path, info.Mode().Perm(), ErrLooseMode)
	default:
		if st, ok := info.Sys().(*syscall.Stat_t); ok && !anyOwner && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			err = fmt.Errorf("%s belongs to uid %d, want %d or root: %w", path, st.Uid, os.Geteuid(), ErrLooseMode)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// LoadKey reads an Ed25519 key and refuses one that others can read or that somebody else owns.
func LoadKey(path string) (ed25519.PrivateKey, error) { return loadKey(path, false) }

func loadKey(path string, anyOwner bool) (ed25519.PrivateKey, error) {
	f, err := openSecret(path, anyOwner)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	defer f.Close()
	block, err := readPEM(f, path, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(block)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	ed, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T, want an Ed25519 key", path, key)
	}
	return ed, nil
}

// LoadCert reads one certificate.
func LoadCert(path string) (*x509.Certificate, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	defer f.Close()
	block, err := readPEM(f, path, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(block)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cert, nil
}

func readPEM(r io.Reader, path, kind string) ([]byte, error) {
	blocks, err := readPEMs(r, path, kind, 1)
	if err != nil {
		return nil, err
	}
	return blocks[0], nil
}

// readPEMs reads 1 to most blocks of one kind, and nothing else.
func readPEMs(r io.Reader, path, kind string, most int) (blocks [][]byte, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPEM+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(data) > maxPEM {
		return nil, fmt.Errorf("%s exceeds %d bytes", path, maxPEM)
	}
	for rest := data; len(blocks) == 0 || len(bytes.TrimSpace(rest)) != 0; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil || block.Type != kind || len(blocks) == most {
			if most == 1 {
				return nil, fmt.Errorf("%s: want one PEM block %q and nothing else", path, kind)
			}
			return nil, fmt.Errorf("%s: want 1 to %d PEM blocks %q and nothing else", path, most, kind)
		}
		blocks = append(blocks, block.Bytes)
	}
	return blocks, nil
}
