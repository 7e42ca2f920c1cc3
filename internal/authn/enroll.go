package authn

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Limits of enrolment.
const (
	maxCSR       = 4 << 10 // bytes
	maxTokenID   = 32      // bytes
	maxJoinToken = 160     // bytes of a token's text
)

// Errors of enrolment.
var (
	ErrCSR       = errors.New("certificate request is not acceptable")
	ErrJoinToken = errors.New("malformed join token")
)

// NewCSR makes the request for a certificate (DER of PKCS #10). It proves that the asker has the key;
// name is for whoever looks at it and decides nothing.
func NewCSR(key ed25519.PrivateKey, name string) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}, SignatureAlgorithm: x509.PureEd25519}, key)
	if err != nil {
		return nil, fmt.Errorf("certificate request for %s: %w", name, err)
	}
	return der, nil
}

// SignCSR makes a certificate for the key of a request. Role and name are the caller's decision: the
// request's subject, names and extensions are not looked at. Errors about the request wrap ErrCSR.
func (ca *CA) SignCSR(csr []byte, role Role, name string, life time.Duration, rng io.Reader, now time.Time) (*x509.Certificate, error) {
	if err := CheckIssue(role, name); err != nil {
		return nil, err
	}
	if len(csr) > maxCSR {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrCSR, len(csr), maxCSR)
	}
	req, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrCSR, err)
	}
	pub, ok := req.PublicKey.(ed25519.PublicKey)
	if !ok || req.SignatureAlgorithm != x509.PureEd25519 {
		return nil, fmt.Errorf("%w: it holds a %s key, want Ed25519", ErrCSR, req.PublicKeyAlgorithm)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: it is not signed by the key that it holds", ErrCSR)
	}
	if own, ok := ca.Cert.PublicKey.(ed25519.PublicKey); ok && own.Equal(pub) {
		return nil, fmt.Errorf("%w: the key is the CA's own", ErrCSR)
	}
	return ca.certify(pub, role, name, life, rng, now)
}

// CAFingerprint is the SHA-256 of a certificate.
func CAFingerprint(cert *x509.Certificate) [32]byte { return sha256.Sum256(cert.Raw) }

// JoinToken lets one daemon get its first certificate. Its text is a secret.
type JoinToken struct {
	ID     string   // letters, digits, '-' and '_'
	Secret [32]byte // the cluster keeps only its hash
	CAFP   [32]byte // CAFingerprint of the cluster's CA: how the daemon knows the controller
}

const joinPrefix = "tgj1"

// NewJoinToken makes one with a secret from rng.
func NewJoinToken(id string, ca *x509.Certificate, rng io.Reader) (JoinToken, error) {
	t := JoinToken{ID: id, CAFP: CAFingerprint(ca)}
	if !validTokenID(id) {
		return JoinToken{}, fmt.Errorf("join token id %q: want 1 to %d letters, digits, '-' or '_'", id, maxTokenID)
	}
	if _, err := io.ReadFull(rng, t.Secret[:]); err != nil {
		return JoinToken{}, fmt.Errorf("make a join token: %w", err)
	}
	return t, nil
}

// String is what a person carries to the joining host, the secret included.
func (t JoinToken) String() string {
	enc := base64.RawURLEncoding
	return strings.Join([]string{joinPrefix, t.ID, enc.EncodeToString(t.Secret[:]), enc.EncodeToString(t.CAFP[:])}, ".")
}

// LogValue keeps the secret out of logs.
func (t JoinToken) LogValue() slog.Value { return slog.StringValue(joinPrefix + "." + t.ID) }

// SecretHash is what the cluster keeps.
func (t JoinToken) SecretHash() [32]byte { return sha256.Sum256(t.Secret[:]) }

// Matches compares the secret with what the cluster keeps, in a time that does not tell how much of
// it is right. A hash of another length never matches.
func (t JoinToken) Matches(hash []byte) bool {
	own := t.SecretHash()
	return len(hash) == len(own) && subtle.ConstantTimeCompare(own[:], hash) == 1
}

// ParseJoinToken reads a token's text; only what String gives is taken. The error never quotes it.
func ParseJoinToken(text string) (JoinToken, error) {
	parts := strings.Split(text, ".")
	if len(text) > maxJoinToken || len(parts) != 4 || parts[0] != joinPrefix {
		return JoinToken{}, fmt.Errorf("%w: want %s.ID.SECRET.FINGERPRINT as gctl node token prints it", ErrJoinToken, joinPrefix)
	}
	if !validTokenID(parts[1]) {
		return JoinToken{}, fmt.Errorf("%w: its id is not 1 to %d letters, digits, '-' or '_'", ErrJoinToken, maxTokenID)
	}
	t := JoinToken{ID: parts[1]}
	for i, field := range []*[32]byte{&t.Secret, &t.CAFP} {
		b, err := base64.RawURLEncoding.Strict().DecodeString(parts[2+i])
		if err != nil || len(b) != len(field) {
			return JoinToken{}, fmt.Errorf("%w: its %s is not 43 characters of base64url", ErrJoinToken, []string{"secret", "fingerprint"}[i])
		}
		copy(field[:], b)
	}
	if t.String() != text { // the decoder passes over line ends
		return JoinToken{}, fmt.Errorf("%w: it holds a line end", ErrJoinToken)
	}
	return t, nil
}

func validTokenID(s string) bool {
	return s != "" && len(s) <= maxTokenID && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

// ClientTLS is for the joining daemon: the server must be a controller whose certificate is signed by
// the CA of the token's fingerprint. No certificate of ours is shown.
func (t JoinToken) ClientTLS(now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		Time:       now,
		// Replaced, not dropped: VerifyConnection checks the chain up to the pinned CA, and the role.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			i := slices.IndexFunc(cs.PeerCertificates, t.pins)
			if i < 0 {
				return fmt.Errorf("%w: the server does not belong to the cluster of this token", ErrPeer)
			}
			ca := cs.PeerCertificates[i]
			cluster, err := clusterOf(ca)
			if err != nil {
				return err
			}
			if err := verifyChain(cs, pool([]*x509.Certificate{ca}), now()); err != nil {
				return err
			}
			return checkPeer(cs, cluster, []Role{RoleCtld})
		},
	}
}

func (t JoinToken) pins(cert *x509.Certificate) bool {
	fp := CAFingerprint(cert)
	return subtle.ConstantTimeCompare(fp[:], t.CAFP[:]) == 1
}

// Accept checks what a controller answered to a request for role and name with key (DER of the
// certificate and of the CA) before anything of it is written.
func (t JoinToken) Accept(certDER, caDER []byte, role Role, name string, key ed25519.PrivateKey, now time.Time) (*Pair, *x509.Certificate, error) {
	ca, err := x509.ParseCertificate(caDER)
	if err != nil {
		return nil, nil, fmt.Errorf("the answer's CA: %w", err)
	}
	if !t.pins(ca) {
		return nil, nil, fmt.Errorf("%w: the answer's CA is not the one that the token names", ErrPeer)
	}
	pair, err := acceptCert(certDER, []*x509.Certificate{ca}, role, name, key, now)
	if err != nil {
		return nil, nil, err
	}
	return pair, ca, nil
}

// AcceptRenewal checks the answer to a renewal: the identity's own role and name, the key that was
// asked for, signed by a CA that is already trusted here.
func (id *Identity) AcceptRenewal(certDER []byte, key ed25519.PrivateKey) (*Pair, error) {
	cur := id.current()
	return acceptCert(certDER, cur.cas, cur.role, cur.name, key, id.now())
}

func acceptCert(der []byte, cas []*x509.Certificate, role Role, name string, key ed25519.PrivateKey, now time.Time) (*Pair, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("the answer's certificate: %w", err)
	}
	want, err := clusterOf(cas[0])
	if err != nil {
		return nil, err
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool(cas), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, fmt.Errorf("the answer's certificate: %w", err)
	}
	cluster, haveRole, haveName, err := IdentityOf(cert)
	if err != nil {
		return nil, err
	}
	if cluster != want || haveRole != role || haveName != name {
		return nil, fmt.Errorf("%w: the answer is a certificate of %s %s of cluster %s, asked was for %s %s of %s", ErrPeer, haveRole, haveName, cluster, role, name, want)
	}
	if pub, ok := cert.PublicKey.(ed25519.PublicKey); !ok || !pub.Equal(key.Public()) {
		return nil, fmt.Errorf("%w: the answer's certificate is of another key", ErrPeer)
	}
	return &Pair{Cert: cert, Key: key}, nil
}
