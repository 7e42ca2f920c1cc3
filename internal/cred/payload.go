package cred

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// Payload is what a launch carries beside its credential.
type Payload struct {
	Script []byte
	Args   []string
	Env    [][]byte
}

// errPayload means that bytes are no encoded payload.
var errPayload = errors.New("cred: payload is damaged")

// AppendPayload appends the encoded payload, which is what PayloadDigest is over: each part and each
// list after its length.
func AppendPayload(b, script []byte, args []string, env [][]byte) []byte {
	be := binary.BigEndian
	b = append(be.AppendUint64(b, uint64(len(script))), script...)
	b = be.AppendUint64(b, uint64(len(args)))
	for _, a := range args {
		b = append(be.AppendUint64(b, uint64(len(a))), a...)
	}
	b = be.AppendUint64(b, uint64(len(env)))
	for _, e := range env {
		b = append(be.AppendUint64(b, uint64(len(e))), e...)
	}
	return b
}

// EncodedDigest is the PayloadDigest of an encoded payload, which need not be decoded for it.
func EncodedDigest(payload []byte) [32]byte {
	h := sha256.New()
	h.Write([]byte(payloadDomain))
	h.Write(payload)
	return [32]byte(h.Sum(nil))
}

// ParsePayload decodes a payload. Script and environment are parts of what is given. Lists cost many
// times their encoded length: compare the digest first.
func ParsePayload(b []byte) (*Payload, error) {
	p, ok := new(Payload), true
	number := func(least uint64) uint64 {
		if len(b) < 8 {
			ok = false
			return 0
		}
		n := binary.BigEndian.Uint64(b)
		b = b[8:]
		if n > uint64(len(b))/least {
			ok = false
			return 0
		}
		return n
	}
	part := func() []byte {
		n := number(1)
		v := b[:n:n]
		b = b[n:]
		return v
	}
	p.Script = part()
	if n := number(8); n > 0 {
		p.Args = make([]string, n)
		for i := range p.Args {
			p.Args[i] = string(part())
		}
	}
	if n := number(8); n > 0 {
		p.Env = make([][]byte, n)
		for i := range p.Env {
			p.Env[i] = part()
		}
	}
	if !ok || len(b) > 0 {
		return nil, errPayload
	}
	return p, nil
}
