package authn

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"golang.org/x/crypto/sha3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/tensorgrid/tensorgrid/internal/cred"
)

const (
	// WalletLife is the longest life of a wallet's signature.
	WalletLife = time.Minute
	// exporterLabel and exporterLen name the value of a TLS connection that a signature is bound to.
	exporterLabel = "EXPORTER-tensorgrid-wallet"
	exporterLen   = 32
	// maxWalletFile bounds a key file: 64 digits, "0x" and line ends.
	maxWalletFile = 256
)

// Errors of wallets.
var (
	ErrWallet  = errors.New("wallet signature is not accepted")
	ErrAddress = errors.New("malformed wallet address")
)

// keccak is Keccak-256 as Ethereum uses it, which is not SHA3-256.
func keccak(data []byte) (sum [32]byte) {
	h := sha3.NewLegacyKeccak256()
	h.Write(data)
	h.Sum(sum[:0])
	return sum
}

// formatAddress gives an address with EIP-55's capitals.
func formatAddress(a [20]byte) string {
	text := []byte(hex.EncodeToString(a[:]))
	sum := keccak(text)
	for i, c := range text {
		if nibble := sum[i/2] >> (4 * (1 - i%2)) & 0xf; c >= 'a' && nibble >= 8 {
			text[i] = c - 'a' + 'A'
		}
	}
	return "0x" + string(text)
}

// ParseAddress reads 0x and 40 hexadecimal digits and gives them with EIP-55's capitals. Digits in
// one case only are taken; mixed ones must be right, since they are a checksum.
func ParseAddress(text string) (string, error) {
	digits, ok := strings.CutPrefix(text, "0x")
	b, err := hex.DecodeString(digits)
	if !ok || err != nil || len(b) != 20 {
		return "", fmt.Errorf("%w: %.60q: want 0x and 40 hexadecimal digits", ErrAddress, text)
	}
	want := formatAddress([20]byte(b))
	if text != want && digits != strings.ToLower(digits) && digits != strings.ToUpper(digits) {
		return "", fmt.Errorf("%w: %s: its capitals are wrong, so a digit may be; checked it is %s", ErrAddress, text, want)
	}
	return want, nil
}

// ParseWallets reads the configuration's 0xADDRESS=user items for Policy.Wallets. It gives all
// problems at once.
func ParseWallets(items []string) (map[string]string, error) {
	m := map[string]string{}
	var problems []error
	for _, item := range items {
		text, user, ok := strings.Cut(item, "=")
		address, err := ParseAddress(text)
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("in Wallets: %w", err))
		case !ok || user == "":
			problems = append(problems, fmt.Errorf("in Wallets: %s: want 0xADDRESS=user", text))
		case user == "root" || user == "0":
			problems = append(problems, fmt.Errorf("in Wallets: %s: no wallet is root", text))
		case m[address] != "" && m[address] != user:
			problems = append(problems, fmt.Errorf("in Wallets: %s stands for %s and for %s; want one user", address, m[address], user))
		default:
			m[address] = user
		}
	}
	return m, errors.Join(problems...)
}

// WalletKey is a secp256k1 key that signs calls.
type WalletKey struct {
	key     *secp256k1.PrivateKey
	address [20]byte
}

// ParseWalletKey reads 64 hexadecimal digits, with or without 0x. The error never quotes them.
func ParseWalletKey(text string) (*WalletKey, error) {
	b, err := hex.DecodeString(strings.TrimPrefix(text, "0x"))
	if err != nil || len(b) != 32 {
		return nil, errors.New("wallet key: want 64 hexadecimal digits")
	}
	var scalar secp256k1.ModNScalar
	if over := scalar.SetByteSlice(b); over || scalar.IsZero() {
		return nil, errors.New("wallet key: it is not a number between 1 and the order of secp256k1")
	}
	key := secp256k1.NewPrivateKey(&scalar)
	return &WalletKey{key: key, address: addressOf(key.PubKey())}, nil
}

// LoadWalletKey reads a key file, and refuses one that others can read.
func LoadWalletKey(path string) (*WalletKey, error) {
	f, err := openSecret(path, false)
	if err != nil {
		return nil, fmt.Errorf("wallet key: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxWalletFile+1))
	if err != nil {
		return nil, fmt.Errorf("wallet key: %w", err)
	}
	if len(data) > maxWalletFile {
		return nil, fmt.Errorf("wallet key: %s exceeds %d bytes", path, maxWalletFile)
	}
	k, err := ParseWalletKey(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// Address is the wallet's address with EIP-55's capitals.
func (k *WalletKey) Address() string { return formatAddress(k.address) }

// String keeps the key out of texts.
func (k *WalletKey) String() string { return k.Address() }

func addressOf(pub *secp256k1.PublicKey) (a [20]byte) {
	sum := keccak(pub.SerializeUncompressed()[1:])
	copy(a[:], sum[12:])
	return a
}

// sign gives r, s and the recovery bit over a digest; s is in the lower half.
func (k *WalletKey) sign(digest [32]byte) (sig [65]byte) {
	compact := ecdsa.SignCompact(k.key, digest[:], false) // 27 + recovery, r, s
	copy(sig[:], compact[1:])
	sig[64] = compact[0] - 27
	return sig
}

// recover gives the address whose key made a signature. Of the two signatures that a key can make of
// one, only that with s in the lower half is taken.
func recoverAddress(digest [32]byte, sig [65]byte) (a [20]byte, err error) {
	var s secp256k1.ModNScalar
	if sig[64] > 1 || s.SetByteSlice(sig[32:64]) || s.IsOverHalfOrder() {
		return a, errors.New("it is not in the one form that is taken (s in the lower half, recovery 0 or 1)")
	}
	compact := append([]byte{27 + sig[64]}, sig[:64]...)
	pub, _, err := ecdsa.RecoverCompact(compact, digest[:])
	if err != nil {
		return a, err
	}
	return addressOf(pub), nil
}

// proof signs one call.
func (k *WalletKey) proof(call cred.WalletCall) *cred.WalletProof {
	call.Address = k.address
	return &cred.WalletProof{Address: k.address, Expires: call.Expires, Nonce: call.Nonce, Sig: k.sign(keccak(call.Marshal()))}
}

// wallet says whose signature a call carries.
func (a *Authenticator) wallet(ctx context.Context, v *Verifier, method string, data []byte, request [32]byte) (Caller, error) {
	exporter, err := exporterOf(ctx)
	if err != nil {
		return Caller{}, fmt.Errorf("%w: %w", ErrWallet, err)
	}
	address, err := checkProof(data, cred.WalletCall{Cluster: v.id.Cluster(), Method: method, Request: request, Exporter: exporter}, v.now())
	if err != nil {
		return Caller{}, fmt.Errorf("%w: %w", ErrWallet, err)
	}
	return a.byWallet(formatAddress(address))
}

// checkProof checks a proof for a call of which the server knows cluster, method, request and
// connection.
func checkProof(data []byte, call cred.WalletCall, now time.Time) (address [20]byte, err error) {
	p, err := cred.UnmarshalWalletProof(data)
	if err != nil {
		return address, err
	}
	switch left := time.UnixMilli(p.Expires).Sub(now); {
	case left > WalletLife+TokenSkew:
		return address, fmt.Errorf("it ends in %v; want at most %v, or %w", left.Round(time.Second), WalletLife, ErrClock)
	case left <= -TokenSkew:
		return address, fmt.Errorf("it ended %v ago, or %w", (-left).Round(time.Second), ErrClock)
	}
	call.Address, call.Expires, call.Nonce = p.Address, p.Expires, p.Nonce
	signer, err := recoverAddress(keccak(call.Marshal()), p.Sig)
	if err != nil {
		return address, err
	}
	if signer != p.Address {
		return address, errors.New("it is not of this wallet, cluster, method, request and connection")
	}
	return signer, nil
}

// exporterOf gives the value of the connection that both ends know and nobody else.
func exporterOf(ctx context.Context) (value [exporterLen]byte, err error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return value, ErrNobody
	}
	return exportFrom(p.AuthInfo)
}

func exportFrom(info credentials.AuthInfo) (value [exporterLen]byte, err error) {
	t, ok := info.(credentials.TLSInfo)
	if !ok || t.State.Version < tls.VersionTLS13 {
		return value, errors.New("wallets need TLS 1.3")
	}
	b, err := t.State.ExportKeyingMaterial(exporterLabel, nil, exporterLen)
	if err != nil {
		return value, fmt.Errorf("TLS exporter: %w", err)
	}
	return [exporterLen]byte(b), nil
}
