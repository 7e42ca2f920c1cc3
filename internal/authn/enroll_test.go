package authn

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestSignCSR: the controller decides what the certificate says; the request proves the key and no more.
func TestSignCSR(t *testing.T) {
	p := newPKI(t, "blue", epoch)
	key := newKey(t)
	// A request that asks for everything that it must not get.
	greedy, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: "c1", Organization: []string{"system:masters"}},
		URIs:        []*url.URL{{Scheme: "tensorgrid", Host: "blue", Path: "/ctld/c1"}},
		DNSNames:    []string{"c1"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtraExtensions: []pkix.Extension{
			{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}, // is a CA
			{Id: []int{2, 5, 29, 15}, Critical: true, Value: []byte{0x03, 0x02, 0x01, 0x06}},       // may sign certificates
		},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := p.ca.SignCSR(greedy, RoleNode, "n1", 30*24*time.Hour, rand.Reader, epoch)
	if err != nil {
		t.Fatal(err)
	}
	cluster, role, name, err := IdentityOf(cert)
	if err != nil || cluster != "blue" || role != RoleNode || name != "n1" {
		t.Errorf("identity %s %s %s, %v", cluster, role, name, err)
	}
	if cert.IsCA || cert.KeyUsage != x509.KeyUsageDigitalSignature || len(cert.DNSNames)+len(cert.IPAddresses) != 0 || len(cert.Subject.Organization) != 0 || cert.Subject.CommonName != "n1" {
		t.Errorf("the request's wishes are in the certificate: %+v", cert.Subject)
	}
	if !cert.NotAfter.Equal(epoch.Add(30*24*time.Hour)) || !cert.PublicKey.(ed25519.PublicKey).Equal(key.Public()) {
		t.Errorf("life or key is wrong: %v", cert.NotAfter)
	}
	if err := cert.CheckSignatureFrom(p.ca.Cert); err != nil {
		t.Error(err)
	}
}

func TestSignCSRRefuses(t *testing.T) {
	p := newPKI(t, "blue", epoch)
	good, err := NewCSR(newKey(t), "n1")
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecdsaReq, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, ec)
	if err != nil {
		t.Fatal(err)
	}
	own, err := NewCSR(p.ca.Key, "n1")
	if err != nil {
		t.Fatal(err)
	}
	unsigned := bytes.Clone(good)
	unsigned[len(unsigned)-1] ^= 1
	// Somebody else's key in one's own request: the signature is of another key.
	req, err := x509.ParseCertificateRequest(good)
	if err != nil {
		t.Fatal(err)
	}
	swapped := bytes.Replace(good, req.PublicKey.(ed25519.PublicKey), newKey(t).Public().(ed25519.PublicKey), 1)
	for name, csr := range map[string][]byte{
		"nothing": nil, "nonsense": []byte("nonsense"), "ECDSA": ecdsaReq, "the CA's key": own, "a changed signature": unsigned,
		"another's key": swapped, "bytes appended": append(bytes.Clone(good), 0), "too large": make([]byte, maxCSR+1), "a certificate": p.ca.Cert.Raw,
	} {
		if _, err := p.ca.SignCSR(csr, RoleNode, "n1", 0, rand.Reader, epoch); !errors.Is(err, ErrCSR) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, role := range []Role{RoleUser, RoleAdmin, RoleWallet, RoleNobody, ""} {
		if _, err := p.ca.SignCSR(good, role, "n1", 0, rand.Reader, epoch); err == nil {
			t.Errorf("a certificate for role %q", role)
		}
	}
	if _, err := p.ca.SignCSR(good, RoleNode, "../n1", 0, rand.Reader, epoch); err == nil {
		t.Error("a certificate for ../n1")
	}
	if _, err := p.ca.SignCSR(good, RoleNode, "n1", 0, rand.Reader, epoch.Add(CALife)); err == nil || !strings.Contains(err.Error(), "ended at") {
		t.Errorf("a CA that has ended signs: %v", err)
	}
}

func TestJoinTokenText(t *testing.T) {
	p := newPKI(t, "blue", epoch)
	tok, err := NewJoinToken("a-Z_9", p.ca.Cert, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text := tok.String()
	if got, err := ParseJoinToken(text); err != nil || got != tok {
		t.Fatalf("%v, %v", got, err)
	}
	secret := strings.Split(text, ".")[2]
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("join", "token", tok)
	if strings.Contains(b.String(), secret) {
		t.Errorf("a logged token shows its secret: %s", b.String())
	}
	part := func(i int, s string) string {
		f := strings.Split(text, ".")
		f[i] = s
		return strings.Join(f, ".")
	}
	last := secret[:42] + string(secret[42]^1)
	for name, bad := range map[string]string{
		"nothing": "", "another version": part(0, "tgj2"), "no id": part(1, ""), "a long id": part(1, strings.Repeat("a", maxTokenID+1)), "a path as id": part(1, "../x"),
		"a short secret": part(2, secret[:42]), "a long secret": part(2, secret+"AA"), "a padded secret": part(2, secret+"="), "another alphabet": part(2, strings.Repeat("+", 43)),
		"bits that say nothing": part(2, last), "a line end inside": part(2, secret[:10]+"\n"+secret[10:]), "a line end": text + "\n", "a part too many": text + ".x",
		"no fingerprint": part(3, ""), "long": text + strings.Repeat("A", maxJoinToken),
	} {
		_, err := ParseJoinToken(bad)
		if !errors.Is(err, ErrJoinToken) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), secret[:10]) {
			t.Errorf("%s: the error shows the secret: %v", name, err)
		}
	}
	hash := tok.SecretHash()
	other := tok
	other.Secret[31] ^= 1
	for name, bad := range map[string][]byte{"none": nil, "short": hash[:31], "one byte": hash[:1], "long": append(hash[:], 0), "the secret itself": tok.Secret[:]} {
		if tok.Matches(bad) {
			t.Errorf("%s matches", name)
		}
	}
	if !tok.Matches(hash[:]) || other.Matches(hash[:]) {
		t.Error("the secret does not decide")
	}
}

// TestJoinTLS: a joining daemon that knows only the fingerprint of the CA talks to a controller of
// that cluster and to nobody else.
func TestJoinTLS(t *testing.T) {
	clock := func() time.Time { return epoch }
	p, fake := newPKI(t, "blue", epoch), newPKI(t, "blue", epoch)
	for _, k := range []pkiDir{p, fake} {
		k.issue(t, RoleCtld, "c1", epoch)
		k.issue(t, RoleNode, "n1", epoch)
	}
	tok, err := NewJoinToken("id", p.ca.Cert, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c1 := p.open(t, "c1", clock)
	// An impostor sends the true CA along with a certificate that it did not sign.
	mixed := fake.open(t, "c1", clock).UserServer()
	mixed.GetConfigForClient = nil
	mixed.Certificates[0].Certificate = append(mixed.Certificates[0].Certificate, p.ca.Cert.Raw)
	bare := c1.UserServer()
	bare.GetConfigForClient = nil
	bare.Certificates[0].Certificate = bare.Certificates[0].Certificate[:1]
	late := func() time.Time { return epoch.Add(CertLife + time.Hour) }
	for _, tt := range []struct {
		name           string
		client, server *tls.Config
		ok             bool
	}{
		{"the controller", tok.ClientTLS(clock), c1.UserServer(), true},
		{"a node of the cluster", tok.ClientTLS(clock), p.open(t, "n1", clock).UserServer(), false},
		{"a controller of another CA", tok.ClientTLS(clock), fake.open(t, "c1", clock).UserServer(), false},
		{"another CA, the true one sent along", tok.ClientTLS(clock), mixed, false},
		{"no CA sent", tok.ClientTLS(clock), bare, false},
		{"an expired certificate", tok.ClientTLS(late), c1.UserServer(), false},
	} {
		clientErr := shakeUser(t, tt.client, tt.server)
		if (clientErr == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, clientErr)
		}
	}
}

// shakeUser is shake for servers that ask for no certificate.
func shakeUser(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.SetDeadline(time.Now().Add(10 * time.Second))
			c.Write([]byte("x"))
			c.Close()
		}
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	return err
}

func TestUserTLS(t *testing.T) {
	clock := func() time.Time { return epoch }
	p, red, fake := newPKI(t, "blue", epoch), newPKI(t, "red", epoch), newPKI(t, "blue", epoch)
	for _, k := range []pkiDir{p, red, fake} {
		k.issue(t, RoleCtld, "c1", epoch)
		k.issue(t, RoleNode, "n1", epoch)
		k.issue(t, RoleLogin, "l1", epoch)
	}
	client := func(dir, cluster string, now func() time.Time) *tls.Config {
		c, err := userClientTLS(filepath.Join(dir, CAFile), cluster, now)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ours := client(p.dir, "blue", clock)
	old := ours.Clone()
	old.MaxVersion = tls.VersionTLS12
	old.MinVersion = tls.VersionTLS12
	for _, tt := range []struct {
		name           string
		client, server *tls.Config
		ok             bool
	}{
		{"the controller", ours, p.open(t, "c1", clock).UserServer(), true},
		{"a node poses", ours, p.open(t, "n1", clock).UserServer(), false},
		{"a login host poses", ours, p.open(t, "l1", clock).UserServer(), false},
		{"another CA", ours, fake.open(t, "c1", clock).UserServer(), false},
		{"another cluster", ours, red.open(t, "c1", clock).UserServer(), false},
		{"another cluster's CA by mistake", client(red.dir, "blue", clock), red.open(t, "c1", clock).UserServer(), false},
		{"expired", client(p.dir, "blue", func() time.Time { return epoch.Add(CertLife + time.Hour) }), p.open(t, "c1", clock).UserServer(), false},
		{"TLS 1.2", old, p.open(t, "c1", clock).UserServer(), false},
	} {
		if err := shakeUser(t, tt.client, tt.server); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	// An open listener shows a renewed certificate.
	now := epoch
	moving := func() time.Time { return now }
	server := p.open(t, "c1", moving).UserServer()
	now = epoch.Add(CertLife + time.Hour)
	p.issue(t, RoleCtld, "c1", now)
	if err := shakeUser(t, client(p.dir, "blue", moving), server); err != nil {
		t.Errorf("a renewed certificate is not shown: %v", err)
	}
	p.issue(t, RoleCtld, "c1", epoch)
	// The port between daemons takes nobody without a certificate, and a login host only where it may.
	login := p.open(t, "l1", clock)
	if _, ce, se := shake(t, login.Client(), p.open(t, "c1", clock).Server()); ce == nil && se == nil {
		t.Error("a login host is taken for a node or controller")
	}
	if _, ce, se := shake(t, login.Client(), p.open(t, "c1", clock).Server(RoleCtld, RoleNode, RoleLogin)); ce != nil || se != nil {
		t.Errorf("a login host cannot renew: %v, %v", ce, se)
	}
}

// TestRotation: while the CA is replaced ca.pem holds both; listeners that are open take daemons of
// either, and the old one's no more when it has been taken out.
func TestRotation(t *testing.T) {
	now := epoch
	clock := func() time.Time { return now }
	p := newPKI(t, "blue", epoch)
	p.issue(t, RoleCtld, "c1", epoch)
	p.issue(t, RoleNode, "n1", epoch)
	next := newPKI(t, "blue", epoch)
	next.issue(t, RoleNode, "n2", epoch)
	c1 := p.open(t, "c1", clock)
	server := c1.Server()
	both := func(dir string, cas ...*x509.Certificate) {
		t.Helper()
		if err := WriteCAs(dir, cas...); err != nil {
			t.Fatal(err)
		}
	}
	both(next.dir, next.ca.Cert, p.ca.Cert)
	n1, n2 := p.open(t, "n1", clock), next.open(t, "n2", clock)
	try := func(name string, client *Identity, ok bool) {
		t.Helper()
		if _, ce, se := shake(t, client.Client(), server); (ce == nil && se == nil) != ok {
			t.Errorf("%s: %v, %v", name, ce, se)
		}
	}
	try("the new CA before it is known", n2, false)
	both(p.dir, p.ca.Cert, next.ca.Cert)
	now = now.Add(reloadEvery)
	try("the new CA while both are there", n2, true)
	try("the old CA while both are there", n1, true)
	// The controller gets a certificate of the new CA, then the old CA goes.
	next.issue(t, RoleCtld, "c1", epoch)
	for _, name := range []string{"c1.key", "c1.pem"} {
		data, err := os.ReadFile(filepath.Join(next.dir, name))
		if err == nil {
			err = writeFile(filepath.Join(p.dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(reloadEvery)
	try("a controller of the new CA", n1, true)
	both(p.dir, next.ca.Cert)
	now = now.Add(reloadEvery)
	try("the new CA alone", n2, true)
	try("the old CA after its end", n1, false)

	// ca.key decides which of two signs.
	if err := WriteCAs(next.dir, p.ca.Cert, next.ca.Cert); err != nil {
		t.Fatal(err)
	}
	if ca, err := LoadCA(next.dir); err != nil || !ca.Cert.Equal(next.ca.Cert) {
		t.Errorf("LoadCA: %v", err)
	}
	if _, err := LoadIssuer(filepath.Join(next.dir, CAFile), filepath.Join(p.dir, "c1.key")); err == nil || !strings.Contains(err.Error(), "belongs to no certificate") {
		t.Errorf("a key of no CA: %v", err)
	}
	red := newPKI(t, "red", epoch)
	for name, cas := range map[string][]*x509.Certificate{
		"two clusters": {p.ca.Cert, red.ca.Cert}, "too many": {p.ca.Cert, p.ca.Cert, p.ca.Cert, p.ca.Cert}, "none": {}, "no CA": {c1.current().pair.Leaf},
	} {
		both(red.dir, cas...)
		if _, _, err := LoadCAs(filepath.Join(red.dir, CAFile)); err == nil {
			t.Errorf("a ca.pem with %s was taken", name)
		}
	}
}

func TestAccept(t *testing.T) {
	p, fake := newPKI(t, "blue", epoch), newPKI(t, "blue", epoch)
	p.issue(t, RoleNode, "n1", epoch)
	id := p.open(t, "n1", func() time.Time { return epoch })
	tok, err := NewJoinToken("id", p.ca.Cert, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	sign := func(ca *CA, role Role, name string, key ed25519.PrivateKey) []byte {
		csr, err := NewCSR(key, name)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := ca.SignCSR(csr, role, name, 0, rand.Reader, epoch)
		if err != nil {
			t.Fatal(err)
		}
		return cert.Raw
	}
	for name, tt := range map[string]struct {
		cert, ca []byte
		ok       bool
	}{
		"good":           {sign(p.ca, RoleNode, "n1", key), p.ca.Cert.Raw, true},
		"another name":   {sign(p.ca, RoleNode, "n2", key), p.ca.Cert.Raw, false},
		"another role":   {sign(p.ca, RoleCtld, "n1", key), p.ca.Cert.Raw, false},
		"another key":    {sign(p.ca, RoleNode, "n1", newKey(t)), p.ca.Cert.Raw, false},
		"another CA":     {sign(fake.ca, RoleNode, "n1", key), fake.ca.Cert.Raw, false},
		"not of this CA": {sign(fake.ca, RoleNode, "n1", key), p.ca.Cert.Raw, false},
		"nonsense":       {[]byte("x"), p.ca.Cert.Raw, false},
		"no CA":          {sign(p.ca, RoleNode, "n1", key), nil, false},
	} {
		pair, ca, err := tok.Accept(tt.cert, tt.ca, RoleNode, "n1", key, epoch)
		if (err == nil) != tt.ok || tt.ok && (pair == nil || !ca.Equal(p.ca.Cert)) {
			t.Errorf("%s: %v", name, err)
		}
		if name != "no CA" && name != "another CA" {
			if _, err := id.AcceptRenewal(tt.cert, key); (err == nil) != tt.ok {
				t.Errorf("renewal, %s: %v", name, err)
			}
		}
	}
}

func FuzzJoinToken(f *testing.F) {
	f.Add("tgj1.id." + strings.Repeat("A", 43) + "." + strings.Repeat("A", 43))
	f.Add("tgj1...")
	f.Fuzz(func(t *testing.T, text string) {
		if tok, err := ParseJoinToken(text); err == nil && tok.String() != text {
			t.Fatalf("%q was read as %q", text, tok.String())
		}
	})
}

func FuzzSignCSR(f *testing.F) {
	ca, err := NewCA("blue", rand.Reader, epoch)
	if err != nil {
		f.Fatal(err)
	}
	csr, err := NewCSR(newKey(f), "n1")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(csr)
	f.Fuzz(func(t *testing.T, b []byte) {
		cert, err := ca.SignCSR(b, RoleNode, "n1", 0, rand.Reader, epoch)
		if err != nil {
			return
		}
		if _, role, name, err := IdentityOf(cert); err != nil || role != RoleNode || name != "n1" || cert.IsCA {
			t.Fatal(fmt.Sprint("a request has made ", role, name, err))
		}
	})
}
