package cred

// walletDomain keeps a wallet's signature for a call from being taken for anything else, a transaction
// of a chain included: none begins with these bytes.
const walletDomain = "tensorgrid-wallet-v1\x00"

// WalletCall is what a wallet signs for one call. Expires is Unix milliseconds UTC.
type WalletCall struct {
	Cluster  string
	Address  [20]byte // the wallet that says that it signs
	Method   string   // "/package.Service/Method"
	Request  [32]byte // SHA-256 of the request's bytes as they are sent
	Expires  int64
	Nonce    [16]byte // two equal calls have different signatures
	Exporter [32]byte // of the TLS connection: worth nothing on another one
}

// Marshal gives the bytes to be hashed and signed: the domain, then each field in this order, numbers
// big-endian, texts after their length in four bytes.
func (c *WalletCall) Marshal() []byte {
	w := &writer{b: make([]byte, 0, 256)}
	w.b = append(w.b, walletDomain...)
	w.text("cluster", &c.Cluster, 0)
	w.b = append(w.b, c.Address[:]...)
	w.text("method", &c.Method, 0)
	w.hash(&c.Request)
	w.i64(&c.Expires)
	w.b = append(w.b, c.Nonce[:]...)
	w.hash(&c.Exporter)
	return w.b
}

// WalletProof is what travels with a call that a wallet has signed; the rest of WalletCall both sides
// know. Sig is r, s and the recovery bit (0 or 1).
type WalletProof struct {
	Address [20]byte
	Expires int64
	Nonce   [16]byte
	Sig     [65]byte
}

// walletProofLen is the length of an encoded proof: a version, and the fields.
const walletProofLen = 1 + 20 + 8 + 16 + 65

// Marshal gives the bytes that travel.
func (p *WalletProof) Marshal() []byte {
	w := &writer{b: make([]byte, 0, walletProofLen)}
	w.byte(formatVersion)
	w.b = append(w.b, p.Address[:]...)
	w.i64(&p.Expires)
	w.b = append(w.b, p.Nonce[:]...)
	w.b = append(w.b, p.Sig[:]...)
	return w.b
}

// UnmarshalWalletProof is the inverse of Marshal; nothing else is taken.
func UnmarshalWalletProof(b []byte) (*WalletProof, error) {
	r, err := newReader(b, walletProofLen, ErrWalletFormat)
	if err != nil {
		return nil, err
	}
	p := &WalletProof{}
	copy(p.Address[:], r.take(len(p.Address)))
	r.i64(&p.Expires)
	copy(p.Nonce[:], r.take(len(p.Nonce)))
	copy(p.Sig[:], r.take(len(p.Sig)))
	if err := r.end(); err != nil {
		return nil, err
	}
	return p, nil
}
