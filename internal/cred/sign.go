package cred

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// ErrSignature says that a signature was not made over these bytes by this key.
var ErrSignature = errors.New("launch credential: signature does not match")

// The domains keep what is signed or hashed here from being taken for anything else.
const (
	launchDomain  = "tensorgrid launch v1\x00"
	payloadDomain = "tensorgrid payload v1\x00"
)

// Sign signs canonical bytes as a launch credential.
func Sign(key ed25519.PrivateKey, canonical []byte) []byte {
	return ed25519.Sign(key, message(canonical))
}

// Verify checks a signature made by Sign. The error is ErrSignature.
func Verify(pub ed25519.PublicKey, canonical, sig []byte) error {
	if len(pub) != ed25519.PublicKeySize || len(sig) != ed25519.SignatureSize || !ed25519.Verify(pub, message(canonical), sig) {
		return ErrSignature
	}
	return nil
}

func message(canonical []byte) []byte {
	return append([]byte(launchDomain), canonical...)
}

// PayloadDigest is the SHA-256 over script, arguments and environment. Each part and each list comes after its length,
// so that no bytes can move from one to another unseen.
func PayloadDigest(script []byte, args []string, env [][]byte) [32]byte {
	h := sha256.New()
	h.Write([]byte(payloadDomain))
	length := func(n int) {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
	length(len(script))
	h.Write(script)
	length(len(args))
	for _, a := range args {
		length(len(a))
		h.Write([]byte(a))
	}
	length(len(env))
	for _, e := range env {
		length(len(e))
		h.Write(e)
	}
	return [32]byte(h.Sum(nil))
}
