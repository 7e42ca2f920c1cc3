package authn

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/cred"
)

// Times of tokens.
const (
	// TokenLife is the longest life of a token.
	TokenLife = 5 * time.Minute
	// TokenSkew is how much the clocks of a login host and a controller may differ.
	TokenSkew = 30 * time.Second
)

// maxSeen bounds the tokens whose signature a controller need not check again.
const maxSeen = 4096

// Errors of tokens that callers branch on; the text around them says what is wrong.
var (
	ErrToken = errors.New("token is not accepted")
	// ErrClock is wrapped beside ErrToken when only the clocks are at fault.
	ErrClock = errors.New("clocks differ")
)

// MintToken makes a token for a user of this login host. id must be of role login, cluster its own:
// the audience. It ends with TokenLife or the certificate, whichever is first.
func MintToken(id *Identity, uid, gid uint32, user string, class Class, cluster string, now time.Time, rng io.Reader) ([]byte, time.Time, error) {
	cur := id.current()
	switch {
	case cur.role != RoleLogin:
		return nil, time.Time{}, fmt.Errorf("%s has a certificate of role %s; only role login may vouch for users", cur.name, cur.role)
	case cluster != cur.cluster:
		return nil, time.Time{}, fmt.Errorf("this host vouches for users of cluster %s, not of %q", cur.cluster, cluster)
	case uid == 0 || uid == noID:
		return nil, time.Time{}, fmt.Errorf("no token for uid %d: root is an admin on the controllers' own hosts only", uid)
	case !class.Valid():
		return nil, time.Time{}, fmt.Errorf("token class %q: want read, jobs or admin", class)
	case !now.Before(cur.pair.Leaf.NotAfter):
		return nil, time.Time{}, fmt.Errorf("the certificate of login host %s ended at %s", cur.name, cur.pair.Leaf.NotAfter.Format(time.RFC3339))
	}
	end := now.Add(TokenLife)
	if last := cur.pair.Leaf.NotAfter; end.After(last) {
		end = last
	}
	t := &cred.Token{
		Cluster: cluster, Class: string(class), UID: uid, GID: gid, User: user, Login: cur.name,
		Issued: now.UnixMilli(), Expires: end.UnixMilli(),
	}
	if _, err := io.ReadFull(rng, t.Nonce[:]); err != nil {
		return nil, time.Time{}, fmt.Errorf("make a token: %w", err)
	}
	canonical := t.Marshal()
	if _, err := cred.UnmarshalToken(canonical); err != nil {
		return nil, time.Time{}, fmt.Errorf("make a token for %q: %w", user, err)
	}
	b := &cred.Bearer{Token: canonical, Sig: cred.SignToken(cur.key, canonical), Cert: cur.pair.Certificate[0]}
	return b.Marshal(), time.UnixMilli(t.Expires), nil
}

// seenTokens remembers tokens whose signature and chain were good under one set of CAs. What may
// change meanwhile (time, login hosts, the policy) is looked at for each call.
type seenTokens struct {
	mu  sync.Mutex
	cas *loaded
	ok  map[[32]byte]*seenToken
}

type seenToken struct {
	token *cred.Token
	ends  time.Time // of the certificate
}

func (s *seenTokens) get(cur *loaded, key [32]byte) *seenToken {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cas != cur {
		s.cas, s.ok = cur, map[[32]byte]*seenToken{}
	}
	return s.ok[key]
}

func (s *seenTokens) put(cur *loaded, key [32]byte, t *seenToken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cas != cur {
		return
	}
	if len(s.ok) >= maxSeen {
		clear(s.ok) // those that are still in use are checked once more
	}
	s.ok[key] = t
}

// token checks a token's bytes and gives what they say. It does not know who may vouch.
func (v *Verifier) token(data []byte) (*cred.Token, error) {
	if len(data) > cred.MaxBearer {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrToken, len(data), cred.MaxBearer)
	}
	cur, now, key := v.id.current(), v.now(), sha256.Sum256(data)
	seen := v.seen.get(cur, key)
	if seen == nil {
		var err error
		if seen, err = checkBearer(data, cur, now); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrToken, err)
		}
		v.seen.put(cur, key, seen)
	}
	if now.After(seen.ends) {
		return nil, fmt.Errorf("%w: the certificate of login host %s ended at %s", ErrToken, seen.token.Login, seen.ends.Format(time.RFC3339))
	}
	if err := checkTimes(seen.token, now); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrToken, err)
	}
	return seen.token, nil
}

// checkBearer checks everything about a token that stays as it is.
func checkBearer(data []byte, cur *loaded, now time.Time) (*seenToken, error) {
	b, err := cred.UnmarshalBearer(data)
	if err != nil {
		return nil, err
	}
	t, err := cred.UnmarshalToken(b.Token)
	if err != nil {
		return nil, err
	}
	if t.Cluster != cur.cluster {
		return nil, fmt.Errorf("it is for cluster %q, this is %q", t.Cluster, cur.cluster)
	}
	if !Class(t.Class).Valid() {
		return nil, fmt.Errorf("it is for class %q; want read, jobs or admin", t.Class)
	}
	cert, err := x509.ParseCertificate(b.Cert)
	if err != nil {
		return nil, fmt.Errorf("its certificate: %w", err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{
		Roots: cur.roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nil, fmt.Errorf("its certificate: %w", err)
	}
	cluster, role, name, err := IdentityOf(cert)
	if err != nil {
		return nil, err
	}
	if cluster != cur.cluster || role != RoleLogin || name != t.Login {
		return nil, fmt.Errorf("%w: it says login host %s, its certificate is of %s %s of cluster %s", ErrPeer, t.Login, role, name, cluster)
	}
	pub, ok := cert.PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("its certificate holds a %s key, want Ed25519", cert.PublicKeyAlgorithm)
	}
	if err := cred.VerifyToken(pub, b.Token, b.Sig); err != nil {
		return nil, err
	}
	return &seenToken{token: t, ends: cert.NotAfter}, nil
}

func checkTimes(t *cred.Token, now time.Time) error {
	issued, expires := time.UnixMilli(t.Issued), time.UnixMilli(t.Expires)
	switch {
	case !expires.After(issued) || expires.Sub(issued) > TokenLife:
		return fmt.Errorf("it lives %v; want at most %v", expires.Sub(issued), TokenLife)
	case issued.Sub(now) > TokenSkew:
		return fmt.Errorf("it is from %v in the future, at most %v may be between clocks: %w (login host %s, this controller)",
			issued.Sub(now).Round(time.Second), TokenSkew, ErrClock, t.Login)
	case now.Sub(expires) >= TokenSkew:
		return fmt.Errorf("it ended %v ago: a program that kept it too long, or %w (login host %s, this controller)",
			now.Sub(expires).Round(time.Second), ErrClock, t.Login)
	}
	return nil
}
