package authn

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/cred"
)

// A key and its address that documents of Ethereum use as an example.
const (
	exampleKey     = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"
	exampleAddress = "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"
)

func walletOf(t *testing.T, text string) *WalletKey {
	t.Helper()
	k, err := ParseWalletKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestAddresses(t *testing.T) {
	if got := fmt.Sprintf("%x", keccak(nil)); got != "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470" {
		t.Errorf("Keccak-256 of nothing is %s", got)
	}
	for key, want := range map[string]string{
		"0x" + strings.Repeat("0", 63) + "1": "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf",
		exampleKey:                           exampleAddress,
		"fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364140": "0x80C0dbf239224071c59dD8970ab9d542E3414aB2", // the largest
	} {
		if got := walletOf(t, key).Address(); got != want {
			t.Errorf("key %s has address %s, want %s", key, got, want)
		}
	}
	// The examples of EIP-55.
	for _, a := range []string{
		"0x52908400098527886E0F7030069857D2E4169EE7", "0x8617E340B3D01FA5F11F306F4090FD50E238070D", "0xde709f2102306220921060314715629080e2fb77",
		"0x27b1fdb04752bbc536007a920d24acb045561c26", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
		"0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB", "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
	} {
		for _, form := range []string{a, strings.ToLower(a), "0x" + strings.ToUpper(a[2:])} {
			if got, err := ParseAddress(form); err != nil || got != a {
				t.Errorf("%s was read as %s, %v", form, got, err)
			}
		}
	}
	for _, bad := range []string{
		"", "0x", "5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0X5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x5AAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
		"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAe", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed0", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeg", "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed\n",
	} {
		if got, err := ParseAddress(bad); !errors.Is(err, ErrAddress) {
			t.Errorf("%q was read as %s, %v", bad, got, err)
		}
	}
}

// TestSignatureVector: the signature that other programs make with the same key over the same text.
func TestSignatureVector(t *testing.T) {
	digest := keccak([]byte("\x19Ethereum Signed Message:\n9Some data"))
	if got := hex.EncodeToString(digest[:]); got != "1da44b586eb0729ff70a73c326926f6ed5a25f5b056e7f47fbc6e58d86871655" {
		t.Fatalf("digest %s", got)
	}
	k := walletOf(t, exampleKey)
	sig := k.sign(digest)
	want := "b91467e570a6466aa9e9876cbcd013baba02900b8979d43fe208a4a4f339f5fd" + "6007e74cd82e037b800186422fc2da167c747ef045e5d18a5f5d4300f8e1a029" + "01"
	if got := hex.EncodeToString(sig[:]); got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
	a, err := recoverAddress(digest, sig)
	if err != nil || formatAddress(a) != exampleAddress {
		t.Errorf("recovered %s, %v", formatAddress(a), err)
	}
	high := highS(sig)
	if a, err := recoverAddress(digest, high); err == nil {
		t.Errorf("the other signature of the same key was taken: %x", a)
	}
	for name, bad := range map[string]func(*[65]byte){
		"recovery 2":  func(s *[65]byte) { s[64] = 2 },
		"recovery 27": func(s *[65]byte) { s[64] = 28 },
		"r of zero":   func(s *[65]byte) { clear(s[:32]) },
		"s of zero":   func(s *[65]byte) { clear(s[32:64]) },
		"r too large": func(s *[65]byte) { copy(s[:32], strings.Repeat("\xff", 32)) },
		"s too large": func(s *[65]byte) { copy(s[32:64], strings.Repeat("\xff", 32)) },
	} {
		changed := sig
		bad(&changed)
		if a, err := recoverAddress(digest, changed); err == nil {
			t.Errorf("%s: %x", name, a)
		}
	}
}

// highS gives the other signature that stands for the same: n-s and the other recovery bit.
func highS(sig [65]byte) [65]byte {
	var s secp256k1.ModNScalar
	s.SetByteSlice(sig[32:64])
	s.Negate()
	b := s.Bytes()
	copy(sig[32:64], b[:])
	sig[64] ^= 1
	return sig
}

func TestWalletKeys(t *testing.T) {
	for _, bad := range []string{"", "0x", exampleKey[1:], exampleKey + "0", strings.Repeat("0", 64), strings.Repeat("f", 64),
		"fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", strings.Repeat("g", 64)} {
		if _, err := ParseWalletKey(bad); err == nil || bad != "" && bad != "0x" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	path := filepath.Join(t.TempDir(), "wallet")
	if err := os.WriteFile(path, []byte("0x"+exampleKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := LoadWalletKey(path)
	if err != nil || k.Address() != exampleAddress {
		t.Fatalf("%v, %v", k, err)
	}
	if text := fmt.Sprintf("%v %+v %s", k, k, k); strings.Contains(text, exampleKey[:8]) {
		t.Errorf("a printed key shows itself: %s", text)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o660, 0o622} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadWalletKey(path); !errors.Is(err, ErrLooseMode) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, make([]byte, maxWalletFile+1), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadWalletKey(path); err == nil || !strings.Contains(err.Error(), "exceeds 256 bytes") {
		t.Errorf("a large file: %v", err)
	}
}

func TestParseWallets(t *testing.T) {
	m, err := ParseWallets([]string{strings.ToLower(exampleAddress) + "=ada", exampleAddress + "=ada"})
	if err != nil || len(m) != 1 || m[exampleAddress] != "ada" {
		t.Errorf("%v, %v", m, err)
	}
	_, err = ParseWallets([]string{"0x12=ada", exampleAddress, exampleAddress + "=root", exampleAddress + "=ada", exampleAddress + "=bob"})
	for _, want := range []string{"0x12", "want 0xADDRESS=user", "no wallet is root", "for ada and for bob"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// spy keeps the wallet headers that a connection sends, and may replace them.
type spy struct {
	*walletCreds
	mu      sync.Mutex
	seen    []string
	replace func(string) string
}

func (s *spy) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	m, err := s.walletCreds.GetRequestMetadata(ctx, uri...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.seen = append(s.seen, m[walletKey])
		if s.replace != nil {
			m[walletKey] = s.replace(m[walletKey])
		}
	}
	return m, err
}

func (r *remoteFixture) wallet(t *testing.T, key, cluster string) (ctldpb.ControllerClient, *spy) {
	t.Helper()
	s := &spy{walletCreds: &walletCreds{key: walletOf(t, key), cluster: cluster, now: r.now}}
	opts := WalletDialOptions(walletOf(t, key), cluster, r.now)
	opts[0] = grpc.WithPerRPCCredentials(s)
	return ctldpb.NewControllerClient(r.dial(t, opts...)), s
}

func (r *remoteFixture) mapWallet(user string) {
	p := *r.auth.Policy()
	p.Wallets = map[string]string{exampleAddress: user}
	r.auth.SetPolicy(&p)
}

func TestWalletCalls(t *testing.T) {
	r := newRemote(t)
	r.mapWallet("bob")
	client := ctldpb.NewControllerClient(r.dial(t, WalletDialOptions(walletOf(t, exampleKey), "blue", r.now)...))
	want := Caller{Role: RoleOperator, UID: 1001, GID: 1001, User: "bob", Via: ViaWallet, Wallet: exampleAddress}
	// Maps are encoded in any order: the bytes that are sent must be those that were signed.
	set := map[string]string{}
	for i := range 40 {
		set[fmt.Sprintf("key%d", i)] = strings.Repeat("v", i)
	}
	for range 20 {
		if _, err := client.UpdateJob(t.Context(), &ctldpb.UpdateJobRequest{Set: set}); err != nil {
			t.Fatal(err)
		}
	}
	if c, n := r.last(); n != 20 || c != want {
		t.Errorf("%d calls, the caller is %+v, want %+v", n, c, want)
	}
	s, err := client.JobOutput(t.Context(), &ctldpb.JobOutputRequest{JobId: "7"})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); err != nil || string(m.Data) != "7" {
		t.Errorf("stream: %v, %v", m, err)
	}
	if c, _ := r.last(); c != want || len(r.streams) != 1 {
		t.Errorf("the stream's caller is %+v", c)
	}
	if n := r.v.codec.count.Load(); n != 0 {
		t.Errorf("%d digests were left", n)
	}
	r.mapWallet("root")
	if _, err := client.Ping(t.Context(), &ctldpb.PingRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a wallet is root: %v", err)
	}
}

// TestWalletOfNobody: a wallet that stands for no user looks at what is no secret, and no more.
func TestWalletOfNobody(t *testing.T) {
	r := newRemote(t)
	client, _ := r.wallet(t, exampleKey, "blue")
	if _, err := client.Ping(t.Context(), &ctldpb.PingRequest{}); err != nil {
		t.Error(err)
	}
	if c, _ := r.last(); c != (Caller{Role: RoleWallet, UID: noID, GID: noID, Via: ViaWallet, Wallet: exampleAddress}) {
		t.Errorf("the caller is %+v", c)
	}
	if _, err := client.Submit(t.Context(), &ctldpb.SubmitRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("Submit: %v", err)
	}
	s, err := client.JobOutput(t.Context(), &ctldpb.JobOutputRequest{JobId: "7"})
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("JobOutput: %v", err)
	}
}

// TestWalletBound: a signature is worth nothing on another connection, for another request, method,
// cluster, wallet or time.
func TestWalletBound(t *testing.T) {
	r := newRemote(t)
	r.mapWallet("bob")
	one, spied := r.wallet(t, exampleKey, "blue")
	if _, err := one.Submit(t.Context(), &ctldpb.SubmitRequest{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	proof := spied.seen[0]
	refused := func(name, want string, err error) {
		t.Helper()
		if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	const unbound = "not of this wallet, cluster, method, request and connection"
	r.last()

	// The same request with the same proof, sent by somebody who has seen it, on a connection of their own.
	thief := ctldpb.NewControllerClient(r.dial(t))
	stolen := metadata.AppendToOutgoingContext(t.Context(), walletKey, proof)
	_, err := thief.Submit(stolen, &ctldpb.SubmitRequest{Key: "k"})
	refused("another connection", unbound, err)

	with := func(replace func(string) string) { spied.mu.Lock(); spied.replace = replace; spied.mu.Unlock() }
	with(func(string) string { return proof })
	_, err = one.Submit(t.Context(), &ctldpb.SubmitRequest{Key: "other"})
	refused("another request", unbound, err)
	_, err = one.Reconfigure(t.Context(), &ctldpb.ReconfigureRequest{})
	refused("another method", unbound, err)
	s, err := one.JobOutput(t.Context(), &ctldpb.JobOutputRequest{JobId: "1"})
	if err == nil {
		_, err = s.Recv()
	}
	refused("another method, a stream", unbound, err)

	change := func(do func(*cred.WalletProof)) func(string) string {
		return func(text string) string {
			p, err := cred.UnmarshalWalletProof([]byte(text))
			if err != nil {
				t.Error(err)
				return ""
			}
			do(p)
			return string(p.Marshal())
		}
	}
	for _, tt := range []struct {
		name, want string
		replace    func(string) string
	}{
		{"s in the upper half", "one form", change(func(p *cred.WalletProof) { p.Sig = highS(p.Sig) })},
		{"another wallet's name", unbound, change(func(p *cred.WalletProof) { p.Address[0] ^= 1 })},
		{"a longer life", unbound, change(func(p *cred.WalletProof) { p.Expires += 1000 })},
		{"another nonce", unbound, change(func(p *cred.WalletProof) { p.Nonce[15] ^= 1 })},
		{"no signature", "", change(func(p *cred.WalletProof) { p.Sig = [65]byte{} })},
		{"bytes appended", "malformed", func(s string) string { return s + "\x00" }},
		{"cut short", "malformed", func(s string) string { return s[:len(s)-1] }},
		{"another version", "malformed", func(s string) string { return "\x02" + s[1:] }},
		{"nothing", "malformed", func(string) string { return "" }},
	} {
		with(tt.replace)
		_, err := one.Ping(t.Context(), &ctldpb.PingRequest{})
		refused(tt.name, tt.want, err)
	}
	for i := range proof {
		with(func(s string) string { return s[:i] + string(s[i]^1) + s[i+1:] })
		if _, err := one.Ping(t.Context(), &ctldpb.PingRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("byte %d can be changed: %v", i, err)
		}
	}
	two, _ := r.wallet(t, exampleKey, "red")
	_, err = two.Ping(t.Context(), &ctldpb.PingRequest{})
	refused("another cluster", unbound, err)

	with(nil)
	spied.walletCreds.now = func() time.Time { return r.now().Add(TokenSkew + time.Second) }
	_, err = one.Ping(t.Context(), &ctldpb.PingRequest{})
	refused("from the future", "clocks differ", err)
	spied.walletCreds.now = func() time.Time { return r.now().Add(-WalletLife - TokenSkew) }
	_, err = one.Ping(t.Context(), &ctldpb.PingRequest{})
	refused("expired", "it ended 30s ago", err)
	if _, n := r.last(); n != 0 {
		t.Errorf("%d refused calls reached a handler", n)
	}
	// A server that does not see the bytes takes no wallet.
	blind := &Verifier{id: r.v.id, now: r.v.now, codec: newRawCodec()}
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(walletKey, proof))
	_, err = r.auth.RemoteUnary(blind)(ctx, &ctldpb.SubmitRequest{Key: "k"}, &grpc.UnaryServerInfo{FullMethod: ControllerService + "Submit"}, nil)
	refused("no codec", "cannot check", err)
}

func FuzzParseAddress(f *testing.F) {
	f.Add(exampleAddress)
	f.Add("0x" + strings.Repeat("A", 40))
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAddress(text)
		if err != nil {
			return
		}
		if !strings.EqualFold(a, text) {
			t.Fatalf("%q was read as %s", text, a)
		}
		if again, err := ParseAddress(a); err != nil || again != a {
			t.Fatalf("%s is read as %s, %v", a, again, err)
		}
	})
}
