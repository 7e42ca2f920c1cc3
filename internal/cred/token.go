package cred

import (
	"crypto/ed25519"
	"errors"
)

// Limits of a token and of what carries it.
const (
	MaxTokenName = 64      // bytes of cluster, class and login host
	MaxUserName  = 256     // bytes
	MaxBearer    = 8 << 10 // bytes of token, signature and certificate together
	maxCert      = 4 << 10 // bytes
	maxToken     = 1 << 10 // bytes
)

// Errors of what travels with a call.
var (
	ErrTokenFormat    = errors.New("malformed token")
	ErrWalletFormat   = errors.New("malformed wallet signature")
	ErrTokenSignature = errors.New("token: signature does not match")
)

const tokenDomain = "tensorgrid token v1\x00"

// Token is what a login host says of one of its users to the controllers of one cluster.
// Times are Unix milliseconds UTC.
type Token struct {
	Cluster string // the one cluster that may take it
	Class   string // the class of methods that it is good for
	UID     uint32
	GID     uint32
	User    string // name of UID at the login host
	Login   string // the login host, as its certificate names it
	Issued  int64
	Expires int64
	Nonce   [32]byte
}

// fields is the format. A new field is a new version.
func (t *Token) fields(c codec) {
	c.text("cluster", &t.Cluster, MaxTokenName)
	c.text("class", &t.Class, MaxTokenName)
	c.u32(&t.UID)
	c.u32(&t.GID)
	c.text("user", &t.User, MaxUserName)
	c.text("login host", &t.Login, MaxTokenName)
	c.i64(&t.Issued)
	c.i64(&t.Expires)
	c.hash(&t.Nonce)
}

// Marshal gives the canonical bytes, as Launch.Marshal does.
func (t *Token) Marshal() []byte {
	w := &writer{b: make([]byte, 0, 256)}
	w.byte(formatVersion)
	t.fields(w)
	return w.b
}

// UnmarshalToken reads canonical bytes and refuses all others with an error that wraps ErrTokenFormat.
func UnmarshalToken(b []byte) (*Token, error) {
	r, err := newReader(b, maxToken, ErrTokenFormat)
	if err != nil {
		return nil, err
	}
	t := &Token{}
	t.fields(r)
	if err := r.end(); err != nil {
		return nil, err
	}
	return t, nil
}

// SignToken signs canonical bytes as a token.
func SignToken(key ed25519.PrivateKey, canonical []byte) []byte {
	return ed25519.Sign(key, append([]byte(tokenDomain), canonical...))
}

// VerifyToken checks a signature made by SignToken. The error is ErrTokenSignature.
func VerifyToken(pub ed25519.PublicKey, canonical, sig []byte) error {
	if len(pub) != ed25519.PublicKeySize || len(sig) != ed25519.SignatureSize ||
		!ed25519.Verify(pub, append([]byte(tokenDomain), canonical...), sig) {
		return ErrTokenSignature
	}
	return nil
}

// Bearer is what travels with a call: a token's canonical bytes, the login host's signature over them
// and the DER of the certificate that the key belongs to. The certificate is not signed over: it must
// name the login host that the token names.
type Bearer struct {
	Token []byte
	Sig   []byte
	Cert  []byte
}

func (b *Bearer) fields(c codec) {
	c.bytes("token", &b.Token, maxToken)
	c.bytes("signature", &b.Sig, ed25519.SignatureSize)
	c.bytes("certificate", &b.Cert, maxCert)
}

// Marshal gives the bytes that travel.
func (b *Bearer) Marshal() []byte {
	w := &writer{b: make([]byte, 0, 1024)}
	w.byte(formatVersion)
	b.fields(w)
	return w.b
}

// UnmarshalBearer is the inverse of Marshal; nothing else is taken.
func UnmarshalBearer(data []byte) (*Bearer, error) {
	r, err := newReader(data, MaxBearer, ErrTokenFormat)
	if err != nil {
		return nil, err
	}
	b := &Bearer{}
	b.fields(r)
	if err := r.end(); err != nil {
		return nil, err
	}
	return b, nil
}
