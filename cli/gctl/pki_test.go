package gctl

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// pkiHost is a machine on which an administrator types.
type pkiHost struct {
	dir string
	now time.Time
}

func newPKIHost(t *testing.T) *pkiHost {
	return &pkiHost{dir: t.TempDir(), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
}

// run gives the exit code and what was printed, errors after output.
func (h *pkiHost) run(line string) (code int, text string) {
	var out, errs bytes.Buffer
	code = Main(&program.Env{
		Name: "gctl", Args: append([]string{"pki"}, strings.Fields(line)...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Dir: h.dir,
		Now:     func() time.Time { return h.now },
		Connect: func() (*client.Client, error) { return nil, errors.New("pki asked a controller") },
	})
	return code, out.String() + errs.String()
}

func (h *pkiHost) path(parts ...string) string {
	return filepath.Join(append([]string{h.dir}, parts...)...)
}

// step runs a line that must end with code and print want; a want that begins with "!" must not be printed.
func (h *pkiHost) step(t *testing.T, code int, line string, want ...string) {
	t.Helper()
	got, text := h.run(line)
	if got != code {
		t.Errorf("pki %s: exit code %d, want %d\n%s", line, got, code, text)
	}
	for _, w := range want {
		not, has := strings.CutPrefix(w, "!")
		if strings.Contains(text, not) == has {
			t.Errorf("pki %s: want %q in\n%s", line, w, text)
		}
	}
}

func (h *pkiHost) read(t *testing.T, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(h.path(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestPKI is the life of a small cluster's certificates.
func TestPKI(t *testing.T) {
	h := newPKIHost(t)
	h.step(t, 0, "init --dir=ca --cluster=blue", "CA of cluster blue until 2036-04-28", "ca/ca.key")
	first := h.read(t, "ca", "ca.key") + h.read(t, "ca", "ca.pem")
	h.step(t, 1, "init --dir=ca --cluster=red", "there is a CA already; nothing was changed", "CA of cluster blue in "+h.path("ca"), "made 2026-05-01")
	if h.read(t, "ca", "ca.key")+h.read(t, "ca", "ca.pem") != first {
		t.Fatal("a second init changed the CA")
	}
	h.step(t, 0, "issue --dir=ca --out=tls --role=ctld c[1-3]", "tls/c1.pem: ctld until 2026-05-31", "tls/c3.pem")
	h.step(t, 0, "issue --dir ca --out tls --role node n[01-02],n02 --days 10", "tls/n02.pem: node until 2026-05-11")
	h.step(t, 0, "issue --dir ca --out tls --role login login1")
	for name, role := range map[string]authn.Role{"c1": authn.RoleCtld, "n02": authn.RoleNode, "login1": authn.RoleLogin} {
		id, err := authn.OpenIdentity(h.path("tls"), name, func() time.Time { return h.now })
		if err != nil || id.Role() != role || id.Cluster() != "blue" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, file := range []string{"ca/ca.key", "tls/c1.key", "tls/n01.key", "tls/login1.key"} {
		if info, err := os.Stat(h.path(file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	if info, err := os.Stat(h.path("ca")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the CA's folder: %v", info.Mode())
	}
	if _, err := os.Stat(h.path("tls", "ca.key")); err == nil {
		t.Error("the CA's key is among the daemons'")
	}
	h.step(t, 0, "show --dir=ca --out=tls", "c1     ctld  2026-05-31 12:00Z   30d", "n02    node  2026-05-11 12:00Z   10d", "-      ca    2036-04-28", "!warning")

	h.now = h.now.Add(8 * 24 * time.Hour)
	h.step(t, 0, "show --dir=ca --out=tls", "n01    node  2026-05-11 12:00Z    2d", "warning: n01 ends at 2026-05-11 12:00Z: gctl pki renew n01", "!warning: c1")
	old := h.read(t, "tls", "n01.key")
	h.step(t, 0, "renew --dir=ca --out=tls --all --within=5d", "tls/n01.pem: node until 2026-06-08", "tls/c1.pem: not due, good until 2026-05-31")
	if h.read(t, "tls", "n01.key") == old {
		t.Error("a renewal kept the key")
	}
	h.now = h.now.Add(60 * 24 * time.Hour)
	h.step(t, 1, "show --dir=ca --out=tls", "error: c1 ended at 2026-05-31 12:00Z: gctl pki renew c1", " ended ")
	h.step(t, 0, "renew --dir=ca --out=tls c[1-3] n01 --days=90", "tls/c1.pem: ctld until 2026-10-06")
	if _, err := authn.OpenIdentity(h.path("tls"), "c1", func() time.Time { return h.now }); err != nil {
		t.Error(err)
	}
}

func TestPKIRefuses(t *testing.T) {
	h := newPKIHost(t)
	h.step(t, 1, "show --dir=ca", "no such file")
	h.step(t, 1, "issue --dir=ca --role=node n1", "no CA in "+h.path("ca")+": make one with gctl pki init")
	h.step(t, 0, "init --dir=ca --cluster=blue")
	h.step(t, 0, "init --dir=red --cluster=red")
	h.step(t, 0, "init --dir=next --cluster=blue")
	h.step(t, 0, "issue --dir=ca --role=node n1")
	for line, want := range map[string]string{
		"":                                     "too few arguments",
		"nonsense":                             "known are init, issue, renew, show",
		"init --dir=x":                         "--cluster=NAME is missing",
		"init --dir=x --cluster=a/b":           `cluster name "a/b"`,
		"init --dir= --cluster=blue":           "pki init: --dir= is empty: DIR was expected",
		"issue --dir=ca --role=node n2 --out=": "pki issue: --out= is empty: DIR was expected",
		"init --dir=x --cluster=" + strings.Repeat("b", 41):  "at most 40",
		"init --dir=x --cluster=blue --days=0":               "a number from 1 to 36500 was expected",
		"init --dir=x --cluster=blue more":                   "one word too many: more",
		"init --dir=x --cluster=blue --role=node":            "pki init takes no --role",
		"issue --dir=ca --role=node":                         "too few arguments",
		"issue --dir=ca n2":                                  "--role is missing",
		"issue --dir=ca --role=user n2":                      `role "user": certificates are for ctld, node and login`,
		"issue --dir=ca --role=node n[1-2]":                  "n1.pem is there already",
		"issue --dir=ca --role=node n2 ../n3":                `daemon name "../n3"`,
		"issue --dir=ca --role=node n2 ca":                   "would take the place of the CA's",
		"issue --dir=ca --role=node n[1-100000]":             "more than 65536 hosts",
		"issue --dir=ca --role=node n2 --days=3651":          "a number from 1 to 3650 was expected",
		"issue --dir=ca --role=node n2 --out=red":            "is of cluster red, the CA of cluster blue",
		"issue --dir=ca --role=node n2 --out=next":           "holds another CA of cluster blue",
		"renew --dir=ca":                                     "either names or --all was expected",
		"renew --dir=ca --all n1":                            "either names or --all was expected",
		"renew --dir=ca n2":                                  "n2 has no certificate",
		"renew --dir=ca --all --within=soon":                 "--within=soon: a time such as 30d or 12h was expected",
		"show --dir=ca --days=3":                             "pki show takes no --days",
		"issue --dir=ca --role=node n2 --out=" + h.path("f"): "not a directory",
	} {
		if err := os.WriteFile(h.path("f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		h.step(t, 1, line, want)
	}
	for _, name := range []string{"n2", "n3", "n4"} {
		if _, err := os.Stat(h.path("ca", name+".key")); err == nil {
			t.Errorf("a refused line made %s", name)
		}
	}
	// What another CA has signed is not renewed, whatever it says of itself.
	h.step(t, 0, "issue --dir=next --role=node n5")
	for _, file := range []string{"n5.pem", "n5.key"} {
		if err := os.WriteFile(h.path("ca", file), []byte(h.read(t, "next", file)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.step(t, 1, "renew --dir=ca n5", "is not signed by this cluster's CA", "nothing was changed")
	// A file under another's name.
	if err := os.WriteFile(h.path("ca", "n6.pem"), []byte(h.read(t, "ca", "n1.pem")), 0o600); err != nil {
		t.Fatal(err)
	}
	h.step(t, 1, "renew --dir=ca n6", "is of node n1 of cluster blue, not of n6")
}

// TestPKIModes: loose modes are told, and nothing is made where others can write.
func TestPKIModes(t *testing.T) {
	h := newPKIHost(t)
	h.step(t, 0, "init --dir=ca --cluster=blue")
	h.step(t, 0, "issue --dir=ca --role=node n1 n2")
	chmod := func(mode os.FileMode, parts ...string) {
		t.Helper()
		if err := os.Chmod(h.path(parts...), mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(0o640, "ca", "n1.key")
	h.step(t, 1, "show --dir=ca", "n1.key has mode 0640, want 0600", "!n2.key")
	h.step(t, 0, "renew --dir=ca n1")
	h.step(t, 0, "show --dir=ca", "!error")
	chmod(0o777, "ca")
	h.step(t, 1, "show --dir=ca", "has mode 0777")
	h.step(t, 1, "issue --dir=ca --role=node n3", "others could exchange what is in it")
	chmod(0o700, "ca")
	chmod(0o604, "ca", "ca.key")
	h.step(t, 1, "show --dir=ca", "ca.key has mode 0604, want 0600")
	h.step(t, 1, "issue --dir=ca --role=node n3", "ca.key has mode 0604, want 0600")
	chmod(0o600, "ca", "ca.key")
	if err := os.Rename(h.path("ca", "n1.key"), h.path("ca", "n2.key")); err != nil {
		t.Fatal(err)
	}
	h.step(t, 1, "show --dir=ca", "n2.key does not belong to", "n1.key: no such file")
	// A renewal that was cut short leaves a key beside another's certificate; doing it again puts it right.
	h.step(t, 0, "renew --dir=ca n1 n2")
	h.step(t, 0, "show --dir=ca", "!error")
	// An issue that was cut short when the key was in place: the certificate waits beside.
	h.step(t, 0, "issue --dir=ca --role=node n7")
	if err := os.Rename(h.path("ca", "n7.pem"), h.path("ca", "n7.pem.new")); err != nil {
		t.Fatal(err)
	}
	h.step(t, 1, "issue --dir=ca --role=node n7", "gctl pki renew n7")
	h.step(t, 0, "show --dir=ca", "n7 ", "!error")
	lock, err := authn.LockFolder(h.path("ca"))
	if err != nil {
		t.Fatal(err)
	}
	h.step(t, 1, "renew --dir=ca n7", "another process changes it")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	h.step(t, 0, "renew --dir=ca n7")
	// An init that was cut short.
	if err := os.Remove(h.path("ca", "ca.pem")); err != nil {
		t.Fatal(err)
	}
	h.step(t, 1, "init --dir=ca --cluster=blue", "there is a CA already", "cut short")
}

// TestPKIForeignFolder: an account that owns a folder gets no key of a daemon that is not its own by putting that
// one's certificate there.
func TestPKIForeignFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := newPKIHost(t)
	h.step(t, 0, "init --dir=ca --cluster=blue")
	h.step(t, 0, "issue --dir=ca --out=tls --role=ctld c1")
	h.step(t, 0, "issue --dir=ca --out=node --role=node n1")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(h.path("node", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("c1.pem", h.read(t, "tls", "c1.pem"))
	put("c1.key", h.read(t, "node", "n1.key"))
	for _, p := range []string{"", "n1.key", "c1.key"} {
		if err := os.Chown(h.path("node", p), 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	before := h.read(t, "node", "c1.key")
	h.step(t, 1, "renew --dir=ca --out=node --all", "c1.key does not belong to", "belongs to uid 65534", "nothing was changed")
	h.step(t, 0, "renew --dir=ca --out=node n1", "n1.pem: node")
	if h.read(t, "node", "c1.key") != before {
		t.Error("a key of c1 was made")
	}
}

// TestPKIChange: the CA is replaced while daemons run: they get a ca.pem of both, then new certificates.
func TestPKIChange(t *testing.T) {
	h := newPKIHost(t)
	h.step(t, 0, "init --dir=old --cluster=blue")
	h.step(t, 0, "issue --dir=old --out=tls --role=ctld c1")
	h.step(t, 0, "init --dir=new --cluster=blue")
	h.step(t, 1, "renew --dir=new --out=tls --all", "give every daemon a ca.pem with both certificates first")
	if err := os.WriteFile(h.path("tls", "ca.pem"), []byte(h.read(t, "old", "ca.pem")+h.read(t, "new", "ca.pem")), 0o644); err != nil {
		t.Fatal(err)
	}
	h.step(t, 0, "renew --dir=new --out=tls --all")
	if err := os.WriteFile(h.path("tls", "ca.pem"), []byte(h.read(t, "new", "ca.pem")), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := authn.OpenIdentity(h.path("tls"), "c1", func() time.Time { return h.now }); err != nil {
		t.Error(err)
	}
	h.step(t, 0, "show --dir=new --out=tls", "c1   ctld")
}
