package gctl

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// What certificates are made with unless options say otherwise.
const (
	pkiDir      = "/etc/tensorgrid/pki"
	certDays    = 30
	maxCertDays = 3650
	caDays      = 3650
	maxCADays   = 36500
	maxPKINames = 65536

	maxClusterName = 40 // of grid.conf

	soon       = 14 * 24 * time.Hour // before a certificate's end: show warns
	soonCA     = 90 * 24 * time.Hour
	shownPrint = 16 // bytes of a fingerprint that are shown
	certFile   = ".pem"
)

func pkiOptions() []getopt.Option {
	return []getopt.Option{
		{Long: "all", Short: 'a', Help: "renew: every certificate in the folder"},
		{Long: "cluster", Arg: getopt.RequiredArg, Value: "NAME", Help: "init: the ClusterName that the CA is for"},
		{Long: "days", Arg: getopt.RequiredArg, Value: "N", Help: "how long what is made is good (30; init: 3650)"},
		{Long: "dir", Arg: getopt.RequiredArg, Value: "DIR", Help: "where the CA is (" + pkiDir + ")"},
		{Long: "out", Arg: getopt.RequiredArg, Value: "DIR", Help: "where daemons' certificates and keys are (the CA's folder)"},
		{Long: "role", Arg: getopt.RequiredArg, Value: "ctld|node|login", Help: "issue: what the daemons are: controllers, agents or login hosts"},
		{Long: "within", Arg: getopt.RequiredArg, Value: "TIME", Help: "renew: only what ends within this time, as 30d or 12h"},
	}
}

func pkiWords() []subword {
	return []subword{
		{name: "init", options: []string{"dir", "cluster", "days"}, run: (*call).pkiInit, write: "init [--dir=DIR] --cluster=NAME [--days=N]"},
		{name: "issue", min: 1, max: -1, options: []string{"dir", "out", "role", "days"}, run: (*call).pkiIssue,
			write: "issue --role=ctld|node|login NAMES... [--days=N] [--dir=DIR] [--out=DIR]"},
		{name: "renew", max: -1, options: []string{"dir", "out", "all", "within", "days"}, run: (*call).pkiRenew,
			write: "renew NAMES...|--all [--within=TIME] [--days=N] [--dir=DIR] [--out=DIR]"},
		{name: "show", options: []string{"dir", "out"}, run: (*call).pkiShow, write: "show [--dir=DIR] [--out=DIR]"},
	}
}

// pkiWord makes and shows certificates on this machine; it asks no controller.
func (c *call) pkiWord(g []getopt.Given, args []string) int {
	return c.choose("pki", pkiWords(), g, args)
}

// folders are where the CA is and where daemons' pairs are.
func (c *call) folders(g given) (dir, out string) {
	absolute := func(path string) string {
		if path = filepath.Clean(path); !filepath.IsAbs(path) {
			path = filepath.Join(c.env.Dir, path)
		}
		return path
	}
	dir = pkiDir
	if text, has := g.value("dir"); has {
		dir = absolute(text)
	}
	out = dir
	if text, has := g.value("out"); has {
		out = absolute(text)
	}
	return dir, out
}

func daysOf(g given, usual, most int) (time.Duration, error) {
	text, has := g.value("days")
	if !has {
		return time.Duration(usual) * 24 * time.Hour, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("--days=%s: a number from 1 to %d was expected", text, most)
	}
	return time.Duration(n) * 24 * time.Hour, nil
}

// pkiFailed prints why a word could not be done.
func (c *call) pkiFailed(word string, err error) int {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		c.env.Errorf("pki %s: %s", word, line)
	}
	return 1
}

// pkiInit makes the CA of a cluster, once.
func (c *call) pkiInit(g given, _ []string) int {
	dir, _ := c.folders(g)
	cluster, has := g.value("cluster")
	if !has {
		return c.pkiFailed("init", errors.New("--cluster=NAME is missing: certificates are good for one cluster, the ClusterName of its grid.conf"))
	}
	if len(cluster) > maxClusterName { // a CA for a name that no grid.conf can have
		return c.pkiFailed("init", fmt.Errorf("--cluster: a name of %d characters; the ClusterName of a grid.conf has at most %d", len(cluster), maxClusterName))
	}
	life, err := daysOf(g, caDays, maxCADays)
	if err != nil {
		return c.pkiFailed("init", err)
	}
	ca, err := authn.NewCAFor(cluster, life, rand.Reader, c.env.Now())
	if err == nil {
		err = makePrivate(dir)
	}
	if err == nil {
		err = ca.Create(dir)
	}
	if errors.Is(err, authn.ErrCAThere) {
		return c.pkiFailed("init", fmt.Errorf("%w; nothing was changed\n%s", err, firstCA(dir)))
	}
	if err != nil {
		return c.pkiFailed("init", err)
	}
	if !c.quiet {
		fmt.Fprintf(c.env.Stdout, "CA of cluster %s until %s: %s\n", cluster, day(ca.Cert.NotAfter), filepath.Join(dir, authn.CAFile))
		fmt.Fprintf(c.env.Stdout, "its key, which makes whoever has it a controller: %s\n", filepath.Join(dir, authn.CAKeyFile))
	}
	return 0
}

// firstCA says what stands where a CA was to be made.
func firstCA(dir string) string {
	cas, cluster, err := authn.LoadCAs(filepath.Join(dir, authn.CAFile))
	if err != nil {
		return fmt.Sprintf("what is there is no whole CA (%v); an init that was cut short leaves %s alone: take it away, then do it again",
			err, filepath.Join(dir, authn.CAKeyFile))
	}
	return fmt.Sprintf("it is the CA of cluster %s in %s, made %s, good until %s; to replace it make the new one in another folder",
		cluster, dir, day(cas[0].NotBefore), day(cas[0].NotAfter))
}

// makePrivate makes a folder that only its owner can enter, or checks one that is there.
func makePrivate(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return safeFolder(dir)
}

// safeFolder refuses a folder in which others can put files in the place of ours.
func safeFolder(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder", dir)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s has mode %04o: others could exchange what is in it; say: chmod go-w %s", dir, info.Mode().Perm(), dir)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return fmt.Errorf("%s belongs to uid %d, not to you", dir, st.Uid)
	}
	return nil
}

// issuer is the CA and the folder of pairs that it works on, which no other process changes meanwhile.
type issuer struct {
	ca    *authn.CA
	out   string
	known []*x509.Certificate // CAs whose certificates are renewed: ours, and the one before it while it is in ca.pem
	lock  *os.File
}

func (i *issuer) close() { i.lock.Close() }

// openIssuer loads the CA and makes sure that daemons that read out know it.
func openIssuer(dir, out string) (*issuer, error) {
	ca, err := authn.LoadCA(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w\nno CA in %s: make one with gctl pki init, or say where it is with --dir", err, dir)
	}
	if err == nil {
		err = safeFolder(dir)
	}
	if err == nil && out != dir {
		err = makeOut(out)
	}
	if err != nil {
		return nil, err
	}
	lock, err := authn.LockFolder(out)
	if err != nil {
		return nil, err
	}
	i := &issuer{ca: ca, out: out, lock: lock}
	if err := i.shareCA(); err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

// makeOut makes the folder of daemons' pairs, which daemons of several accounts may read.
func makeOut(out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	return safeFolder(out)
}

// shareCA puts the CA's certificate beside the pairs, or checks that the one there holds it.
func (i *issuer) shareCA() error {
	path := filepath.Join(i.out, authn.CAFile)
	cas, cluster, err := authn.LoadCAs(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		i.known = []*x509.Certificate{i.ca.Cert}
		return i.ca.WriteCert(i.out)
	case err != nil:
		return err
	case cluster != i.ca.Cluster:
		return fmt.Errorf("%s is of cluster %s, the CA of cluster %s", path, cluster, i.ca.Cluster)
	case !slices.ContainsFunc(cas, i.ca.Cert.Equal):
		return fmt.Errorf("%s holds another CA of cluster %s: daemons there would refuse what this one signs\n"+
			"to change the CA give every daemon a %s with both certificates first", path, cluster, authn.CAFile)
	}
	i.known = cas
	return nil
}

// expandNames reads hostlists; a name that stands twice counts once.
func expandNames(args []string) ([]string, error) {
	var names []string
	seen := map[string]bool{}
	for _, a := range args {
		list, err := hostlist.ExpandMax(a, maxPKINames-len(names))
		if err != nil {
			return nil, err
		}
		for _, n := range list {
			if !seen[n] {
				seen[n], names = true, append(names, n)
			}
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no names were given")
	}
	return names, nil
}

// pkiIssue makes certificates for daemons that have none.
func (c *call) pkiIssue(g given, args []string) int {
	dir, out := c.folders(g)
	role, has := g.value("role")
	if !has {
		return c.pkiFailed("issue", errors.New("--role is missing: ctld, node or login was expected"))
	}
	names, err := expandNames(args)
	if err != nil {
		return c.pkiFailed("issue", err)
	}
	life, err := daysOf(g, certDays, maxCertDays)
	if err != nil {
		return c.pkiFailed("issue", err)
	}
	i, err := openIssuer(dir, out)
	if err != nil {
		return c.pkiFailed("issue", err)
	}
	defer i.close()
	var problems []error
	var plan []order
	for _, n := range names {
		err := authn.CheckIssue(authn.Role(role), n)
		if err == nil {
			err = i.free(n)
		}
		problems = append(problems, err)
		plan = append(plan, order{authn.Role(role), n})
	}
	return c.make("issue", i, plan, problems, life)
}

// order is one certificate to be made.
type order struct {
	role authn.Role
	name string
}

// free refuses a name that has a certificate or a key.
func (i *issuer) free(name string) error {
	if err := authn.FinishPair(i.out, name); err != nil {
		return err
	}
	for _, suffix := range []string{certFile, ".key"} {
		path := filepath.Join(i.out, name+suffix)
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s is there already: a new one with a new key is made by gctl pki renew %s", path, name)
		}
	}
	return nil
}

// make writes what was planned, unless something is wrong with any of it.
func (c *call) make(word string, i *issuer, plan []order, problems []error, life time.Duration) int {
	if err := errors.Join(problems...); err != nil {
		return c.pkiFailed(word, fmt.Errorf("%w\nnothing was changed", err))
	}
	for n, o := range plan {
		pair, err := i.ca.Issue(o.role, o.name, life, rand.Reader, c.env.Now())
		if err == nil {
			err = pair.Write(i.out, o.name)
		}
		if err != nil {
			return c.pkiFailed(word, fmt.Errorf("%w\n%d of %d were made; do it again for %s and those after it", err, n, len(plan), o.name))
		}
		if !c.quiet {
			fmt.Fprintf(c.env.Stdout, "%s: %s until %s\n", filepath.Join(i.out, o.name+certFile), o.role, day(pair.Cert.NotAfter))
		}
	}
	return 0
}

// pkiRenew makes new certificates with new keys for daemons that have one of this cluster.
func (c *call) pkiRenew(g given, args []string) int {
	dir, out := c.folders(g)
	names, err := []string(nil), error(nil)
	switch all := g.has("all"); {
	case all == (len(args) > 0):
		err = errors.New("either names or --all was expected")
	case !all:
		names, err = expandNames(args)
	default:
		names, err = pairNames(out)
	}
	if err != nil {
		return c.pkiFailed("renew", err)
	}
	life, err := daysOf(g, certDays, maxCertDays)
	if err != nil {
		return c.pkiFailed("renew", err)
	}
	within, has := time.Duration(0), false
	if text, given := g.value("within"); given {
		if within, err = span(text); err != nil {
			return c.pkiFailed("renew", err)
		}
		has = true
	}
	i, err := openIssuer(dir, out)
	if err != nil {
		return c.pkiFailed("renew", err)
	}
	defer i.close()
	var problems []error
	var plan []order
	for _, n := range names {
		cert, role, err := i.current(n, c.env.Now())
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if has && cert.NotAfter.Sub(c.env.Now()) > within {
			if !c.quiet {
				fmt.Fprintf(c.env.Stdout, "%s: not due, good until %s\n", filepath.Join(out, n+certFile), day(cert.NotAfter))
			}
			continue
		}
		plan = append(plan, order{role, n})
	}
	return c.make("renew", i, plan, problems, life)
}

// span reads 30d, 12h or a number of days.
func span(text string) (time.Duration, error) {
	if n, err := strconv.ParseUint(strings.TrimSuffix(text, "d"), 10, 16); err == nil {
		return time.Duration(n) * 24 * time.Hour, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return d, nil
	}
	return 0, fmt.Errorf("--within=%s: a time such as 30d or 12h was expected", text)
}

// current gives the certificate that a name has, which may have ended, and its role.
func (i *issuer) current(name string, now time.Time) (*x509.Certificate, authn.Role, error) {
	if err := authn.FinishPair(i.out, name); err != nil { // an issue or renew that was cut
		return nil, "", err
	}
	path := filepath.Join(i.out, name+certFile)
	cert, err := authn.LoadCert(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%s has no certificate in %s: make one with gctl pki issue", name, i.out)
	}
	if err != nil {
		return nil, "", err
	}
	cluster, role, has, err := authn.IdentityOf(cert)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	if cluster != i.ca.Cluster || has != name {
		return nil, "", fmt.Errorf("%s is of %s %s of cluster %s, not of %s of cluster %s", path, role, has, cluster, name, i.ca.Cluster)
	}
	// Certificates are no secrets: an account that owns the folder may have put another's here, to get its new key.
	if st, err := os.Stat(i.out); err != nil {
		return nil, "", err
	} else if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		if err := authn.CheckPair(i.out, name); err != nil {
			return nil, "", fmt.Errorf("%w\n%s belongs to uid %d, so only pairs that are whole are renewed there", err, i.out, sys.Uid)
		}
	}
	at := now
	if at.After(cert.NotAfter) {
		at = cert.NotAfter
	}
	roots := x509.NewCertPool()
	for _, ca := range i.known {
		roots.AddCert(ca)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, "", fmt.Errorf("%s is not signed by this cluster's CA: %w", path, err)
	}
	return cert, role, nil
}

// pairNames lists the daemons that have a certificate in a folder.
func pairNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if n, ok := strings.CutSuffix(e.Name(), certFile); ok && e.Name() != authn.CAFile && !strings.HasPrefix(n, ".") {
			names = append(names, n)
		}
	}
	return names, nil
}

// day is how dates are shown.
func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04Z") }

func shortPrint(cert *x509.Certificate) string {
	fp := authn.CAFingerprint(cert)
	return hex.EncodeToString(fp[:shownPrint])
}
