package gctl

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// pkiShow lists the CA and the daemons' certificates, and says what is wrong with them: 1 when
// something is, 0 when at most something ends soon.
func (c *call) pkiShow(g given, _ []string) int {
	dir, out := c.folders(g)
	s := &pkiView{now: c.env.Now(), t: table{head: []string{"NAME", "ROLE", "UNTIL", "LEFT", "FINGERPRINT"}, right: []int{3}}}
	cas, _, err := authn.LoadCAs(filepath.Join(dir, authn.CAFile))
	if errors.Is(err, fs.ErrNotExist) && out != dir {
		cas, _, err = authn.LoadCAs(filepath.Join(out, authn.CAFile))
	}
	if err != nil {
		return c.pkiFailed("show", err)
	}
	for _, ca := range cas {
		s.t.row("-", "ca", day(ca.NotAfter), s.left("the CA", ca.NotAfter, soonCA, "make a new one in another folder and give every daemon both"), shortPrint(ca))
	}
	s.keyFile(filepath.Join(dir, authn.CAKeyFile), true)
	s.folder(dir)
	if out != dir {
		s.folder(out)
	}
	names, err := pairNames(out)
	if err != nil {
		return c.pkiFailed("show", err)
	}
	for _, n := range names {
		s.pair(out, n)
	}
	w := bufio.NewWriter(c.env.Stdout)
	s.t.write(w)
	w.Flush()
	for _, p := range s.soon {
		c.env.Warnf("%s", p)
	}
	for _, p := range s.bad {
		c.env.Errorf("%s", p)
	}
	if len(s.bad) > 0 {
		return 1
	}
	return 0
}

// pkiView gathers rows and problems.
type pkiView struct {
	now  time.Time
	t    table
	soon []string
	bad  []string
}

func (s *pkiView) wrong(format string, args ...any) {
	s.bad = append(s.bad, fmt.Sprintf(format, args...))
}

// left is the time until an end; an end that is near is told, with what to do about it.
func (s *pkiView) left(what string, end time.Time, near time.Duration, do string) string {
	d := end.Sub(s.now)
	switch {
	case d <= 0:
		s.wrong("%s ended at %s: %s", what, day(end), do)
		return "ended"
	case d < near:
		s.soon = append(s.soon, fmt.Sprintf("%s ends at %s: %s", what, day(end), do))
	}
	if d < 48*time.Hour {
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// keyFile looks at a key's mode and owner; a CA's key may be elsewhere.
func (s *pkiView) keyFile(path string, elsewhere bool) {
	_, err := authn.LoadKey(path)
	switch {
	case err == nil, elsewhere && errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, fs.ErrPermission):
		s.soon = append(s.soon, path+": it belongs to another account and was not looked at")
	default:
		s.wrong("%v", err)
	}
}

func (s *pkiView) folder(dir string) {
	if err := safeFolder(dir); err != nil {
		s.wrong("%v", err)
	}
}

func (s *pkiView) pair(dir, name string) {
	path := filepath.Join(dir, name+certFile)
	cert, err := authn.LoadCert(path)
	if err != nil {
		s.wrong("%v", err)
		return
	}
	_, role, has, err := authn.IdentityOf(cert)
	if err != nil {
		s.wrong("%s: %v", path, err)
		return
	}
	near := min(soon, cert.NotAfter.Sub(cert.NotBefore)/3)
	s.t.row(has, string(role), day(cert.NotAfter), s.left(name, cert.NotAfter, near, "gctl pki renew "+name), shortPrint(cert))
	if has != name {
		s.wrong("%s is of %s, not of %s", path, has, name)
	}
	key := filepath.Join(dir, name+".key")
	if info, err := os.Stat(key); err == nil && info.Mode().Perm()&0o077 != 0 {
		s.wrong("%s has mode %04o, want 0600: whoever could read it is %s %s; make a new one with gctl pki renew %s", key, info.Mode().Perm(), role, has, name)
		return
	}
	if err := authn.CheckPair(dir, name); errors.Is(err, fs.ErrPermission) {
		s.soon = append(s.soon, key+": it belongs to another account and was not looked at")
	} else if err != nil {
		s.wrong("%v", err)
	}
}
