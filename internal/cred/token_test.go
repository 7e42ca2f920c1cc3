package cred

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func fullToken() *Token {
	return &Token{Cluster: "blue", Class: "jobs", UID: 1000, GID: 1001, User: "ada", Login: "login1", Issued: 1 << 40, Expires: 1<<40 + 1, Nonce: [32]byte{1, 2}}
}

func fullProof() *WalletProof {
	return &WalletProof{Address: [20]byte{1}, Expires: 1 << 40, Nonce: [16]byte{2}, Sig: [65]byte{3, 64: 1}}
}

// changeEach calls do with each field of the struct that ptr gives changed in turn.
func changeEach[T any](t *testing.T, fresh func() *T, do func(field string, changed *T)) {
	t.Helper()
	for i := range reflect.TypeFor[T]().NumField() {
		v := fresh()
		f := reflect.ValueOf(v).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Uint32:
			f.SetUint(f.Uint() + 1)
		case reflect.Int64:
			f.SetInt(f.Int() + 1)
		case reflect.Array:
			f.Index(f.Len() - 1).SetUint(f.Index(f.Len()-1).Uint() ^ 1)
		default:
			t.Fatalf("field %d has kind %s", i, f.Kind())
		}
		do(reflect.TypeFor[T]().Field(i).Name, v)
	}
}

func TestTokenBytes(t *testing.T) {
	base := fullToken().Marshal()
	for name, tok := range map[string]*Token{"full": fullToken(), "empty": {}} {
		if got, err := UnmarshalToken(tok.Marshal()); err != nil || !reflect.DeepEqual(got, tok) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	changeEach(t, fullToken, func(field string, tok *Token) {
		if bytes.Equal(tok.Marshal(), base) {
			t.Errorf("%s is not in the canonical bytes", field)
		}
	})
	for i := range base {
		if _, err := UnmarshalToken(base[:i]); !errors.Is(err, ErrTokenFormat) {
			t.Fatalf("the first %d bytes: %v", i, err)
		}
	}
	nul := fullToken()
	nul.User = "a\x00b"
	long := fullToken()
	long.Login = strings.Repeat("x", MaxTokenName+1)
	for name, b := range map[string][]byte{
		"a byte too many": append(bytes.Clone(base), 0), "another version": append([]byte{2}, base[1:]...), "a NUL": nul.Marshal(),
		"a long name": long.Marshal(), "a launch credential": full().Marshal(), "too large": make([]byte, maxToken+1),
	} {
		if _, err := UnmarshalToken(b); !errors.Is(err, ErrTokenFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTokenSignature(t *testing.T) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	pub := key.Public().(ed25519.PublicKey)
	canonical := fullToken().Marshal()
	sig := SignToken(key, canonical)
	if err := VerifyToken(pub, canonical, sig); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"no signature":                        VerifyToken(pub, canonical, nil),
		"no key":                              VerifyToken(nil, canonical, sig),
		"bytes appended":                      VerifyToken(pub, append(bytes.Clone(canonical), 0), sig),
		"a launch's signature":                VerifyToken(pub, canonical, Sign(key, canonical)),
		"signed without words":                VerifyToken(pub, canonical, ed25519.Sign(key, canonical)),
		"a signature with a byte appended":    VerifyToken(pub, canonical, append(bytes.Clone(sig), 0)),
		"a token's signature, under a launch": Verify(pub, canonical, sig),
	} {
		if !errors.Is(err, ErrTokenSignature) && !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBearerBytes(t *testing.T) {
	b := &Bearer{Token: []byte("t"), Sig: bytes.Repeat([]byte{7}, 64), Cert: []byte("c\x00")}
	data := b.Marshal()
	if got, err := UnmarshalBearer(data); err != nil || !reflect.DeepEqual(got, b) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range data {
		if _, err := UnmarshalBearer(data[:i]); !errors.Is(err, ErrTokenFormat) {
			t.Fatalf("the first %d bytes: %v", i, err)
		}
	}
	for name, bad := range map[string][]byte{
		"a byte too many":  append(bytes.Clone(data), 0),
		"a long signature": (&Bearer{Sig: make([]byte, 65)}).Marshal(),
		"a long cert":      (&Bearer{Cert: make([]byte, maxCert+1)}).Marshal(),
		"too large":        make([]byte, MaxBearer+1),
	} {
		if _, err := UnmarshalBearer(bad); !errors.Is(err, ErrTokenFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWalletBytes(t *testing.T) {
	call := func() *WalletCall {
		return &WalletCall{Cluster: "blue", Address: [20]byte{1}, Method: "/p.S/M", Request: [32]byte{2}, Expires: 3, Nonce: [16]byte{4}, Exporter: [32]byte{5}}
	}
	base := call().Marshal()
	// The format is what wallets written by others must make.
	want := "74656e736f72677269642d77616c6c65742d763100" + "00000004" + "626c7565" + "01" + strings.Repeat("00", 19) +
		"00000006" + "2f702e532f4d" + "02" + strings.Repeat("00", 31) + "0000000000000003" + "04" + strings.Repeat("00", 15) + "05" + strings.Repeat("00", 31)
	if hex.EncodeToString(base) != want {
		t.Errorf("the bytes are %x", base)
	}
	changeEach(t, call, func(field string, c *WalletCall) {
		if bytes.Equal(c.Marshal(), base) {
			t.Errorf("%s is not in the bytes", field)
		}
	})
	data := fullProof().Marshal()
	if got, err := UnmarshalWalletProof(data); err != nil || *got != *fullProof() {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range data {
		if _, err := UnmarshalWalletProof(data[:i]); !errors.Is(err, ErrWalletFormat) {
			t.Fatalf("the first %d bytes: %v", i, err)
		}
	}
	if _, err := UnmarshalWalletProof(append(data, 0)); !errors.Is(err, ErrWalletFormat) {
		t.Errorf("a byte more: %v", err)
	}
}

func FuzzUnmarshalToken(f *testing.F) {
	f.Add(fullToken().Marshal())
	f.Add((&Bearer{Token: fullToken().Marshal(), Sig: make([]byte, 64), Cert: []byte("c")}).Marshal())
	f.Add(fullProof().Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		if tok, err := UnmarshalToken(b); err == nil && !bytes.Equal(tok.Marshal(), b) {
			t.Fatal("accepted bytes are no canonical token")
		}
		if bearer, err := UnmarshalBearer(b); err == nil && !bytes.Equal(bearer.Marshal(), b) {
			t.Fatal("accepted bytes are no canonical bearer")
		}
		if p, err := UnmarshalWalletProof(b); err == nil && !bytes.Equal(p.Marshal(), b) {
			t.Fatal("accepted bytes are no canonical proof")
		}
	})
}
