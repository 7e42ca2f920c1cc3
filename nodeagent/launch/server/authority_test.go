package server

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority is a CA of cluster "c" with one controller's certificate.
type authority struct{ ca, leaf []byte }

func newAuthority(t *testing.T, now time.Time) authority {
	t.Helper()
	key := func() (ed25519.PublicKey, ed25519.PrivateKey) {
		pub, priv, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return pub, priv
	}
	caPub, caKey := key()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caPub, caKey)
	if err != nil {
		t.Fatal(err)
	}
	pub, _ := key()
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		URIs: []*url.URL{{Scheme: "tensorgrid", Host: "c", Path: "/ctld/c1"}}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, pub, caKey)
	if err != nil {
		t.Fatal(err)
	}
	return authority{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), der}
}

// TestAuthorityChanges: the file of authorities is replaced while the launcher runs, first by both, then by
// the new one alone; a file that cannot be used, or that others could write, changes nothing and is told once.
func TestAuthorityChanges(t *testing.T) {
	now := time.Now()
	before, after := newAuthority(t, now), newAuthority(t, now)
	path := filepath.Join(t.TempDir(), "ca.pem")
	put := func(data []byte, mode os.FileMode) {
		t.Helper()
		next := path + ".new"
		if err := os.WriteFile(next, data, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(next, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
	}
	put(before.ca, 0o644)
	told := 0
	v, err := newVerifier(&Conf{Cluster: "c", Node: "n1", CA: path, Rootless: os.Geteuid() != 0}, func() time.Time { return now },
		func(string, ...any) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	believes := func(what string, wantBefore, wantAfter bool) {
		t.Helper()
		now = now.Add(2 * caLook)
		for range 2 { // the second time the chain is remembered
			_, errBefore := v.signer(before.leaf, now)
			_, errAfter := v.signer(after.leaf, now)
			if (errBefore == nil) != wantBefore || (errAfter == nil) != wantAfter {
				t.Errorf("%s: old authority %v, new %v", what, errBefore, errAfter)
			}
		}
	}
	believes("at first", true, false)
	put([]byte("no certificate"), 0o644)
	believes("with a broken file", true, false)
	believes("with a broken file, again", true, false)
	if told != 1 {
		t.Errorf("a broken file was told %d times, want once", told)
	}
	put(after.ca, 0o666)
	believes("with a file that others may write", true, false)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	believes("without a file", true, false)
	believes("without a file, again", true, false)
	if told != 3 {
		t.Errorf("three broken files were told %d times", told)
	}
	put(bytes.Join([][]byte{before.ca, after.ca}, nil), 0o644)
	believes("with both", true, true)
	put(after.ca, 0o644)
	believes("with the new one", false, true)
}
