package server

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// maxClockSkew is how far a controller's clock may be ahead of ours.
const maxClockSkew = 30 * time.Second

// maxTrusted bounds the certificates whose chain has been verified and is remembered.
const maxTrusted = 64

// verifier decides whether a start order is one of our cluster's controllers'.
type verifier struct {
	conf *Conf
	now  func() time.Time

	mu      sync.Mutex
	roots   *x509.CertPool
	file    caStamp   // of the file that roots came from
	looked  time.Time // when the file was last looked at
	told    *caStamp  // of the file that could not be used, which is told once
	warn    func(msg string, args ...any)
	trusted map[string]trust // by DER; chains are verified once, the times each time
}

type trust struct {
	key         ed25519.PublicKey
	after, till time.Time
}

// caLook bounds how often the CA's file is looked at.
const caLook = time.Second

// caStamp tells two files at one path apart.
type caStamp struct {
	ino, size int64
	mod       time.Time
}

func newVerifier(c *Conf, now func() time.Time, warn func(msg string, args ...any)) (*verifier, error) {
	v := &verifier{conf: c, now: now, warn: warn, trusted: map[string]trust{}}
	var err error
	if v.file, err = stampOf(c.CA); err != nil {
		return nil, err
	}
	if v.roots, err = loadRoots(c.CA); err != nil {
		return nil, err
	}
	v.looked = now()
	return v, nil
}

func stampOf(path string) (caStamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return caStamp{}, err
	}
	s := caStamp{size: info.Size(), mod: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.ino = int64(st.Ino)
	}
	return s, nil
}

// loadRoots reads one or more certificates: old and new while the authority is changed.
func loadRoots(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	found := false
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		pool.AddCert(cert)
		found = true
	}
	if !found {
		return nil, fmt.Errorf("%s holds no certificate", path)
	}
	return pool, nil
}

// reload takes a changed file of authorities into force, so that an authority can be changed while jobs
// run. One that cannot be used, or that others could have written, leaves the old in force. The lock is held.
func (v *verifier) reload(now time.Time) {
	if d := now.Sub(v.looked); d >= 0 && d < caLook {
		return
	}
	v.looked = now
	stamp, err := stampOf(v.conf.CA)
	if err == nil && stamp == v.file {
		return
	}
	var roots *x509.CertPool
	if err == nil {
		err = checkOurs(v.conf.CA, v.conf.Rootless)
	}
	if err == nil {
		roots, err = loadRoots(v.conf.CA)
	}
	if err != nil {
		if v.told == nil || *v.told != stamp {
			v.warn("the changed file of authorities cannot be used; the old ones stay in force", "file", v.conf.CA, "err", err)
		}
		v.told = &stamp
		return
	}
	v.roots, v.file, v.told = roots, stamp, nil
	clear(v.trusted) // what an authority signed that is gone is trusted no more
}

// verify checks everything that can be known of an order before anything is done for it. The payload
// is taken apart last, when it is known to be what a controller has sent.
func (v *verifier) verify(s *launch.Start) (*cred.Launch, *cred.Payload, error) {
	l, err := v.genuine(s)
	if err != nil {
		return nil, nil, err
	}
	if err := v.identity(l); err != nil {
		return nil, nil, blame(job.CauseUser, err) // the order is genuine: another node's would be refused too
	}
	p, err := cred.ParsePayload(s.Payload)
	if err != nil {
		return nil, nil, err
	}
	return l, p, v.shape(l, p)
}

// genuine checks that an order is for us and of a controller's making.
func (v *verifier) genuine(s *launch.Start) (*cred.Launch, error) {
	now := v.now()
	key, err := v.signer(s.Certificate, now)
	if err != nil {
		return nil, fmt.Errorf("certificate of the controller: %w", err)
	}
	if err := cred.Verify(key, s.Credential, s.Signature); err != nil {
		return nil, fmt.Errorf("credential: %w", err)
	}
	l, err := cred.UnmarshalLaunch(s.Credential)
	if err != nil {
		return nil, fmt.Errorf("credential: %w", err)
	}
	switch {
	case l.Cluster != v.conf.Cluster:
		return nil, fmt.Errorf("credential is for cluster %q, this is %q", l.Cluster, v.conf.Cluster)
	case l.Node != v.conf.Node || (l.Alloc.Node != "" && l.Alloc.Node != v.conf.Node):
		return nil, fmt.Errorf("credential is for node %q, this is %q", l.Node, v.conf.Node)
	case now.Add(maxClockSkew).UnixMilli() < l.NotBefore:
		return nil, errors.New("credential is not valid yet: do the clocks agree?")
	case now.UnixMilli() >= l.Expires:
		return nil, errors.New("credential has expired")
	case cred.EncodedDigest(s.Payload) != l.Payload:
		return nil, errors.New("script, arguments or environment are not those that were signed")
	}
	return l, nil
}

// signer gives the key of a certificate of role ctld that our authority signed and that is valid now.
func (v *verifier) signer(der []byte, now time.Time) (ed25519.PublicKey, error) {
	v.mu.Lock()
	v.reload(now)
	known, ok := v.trusted[string(der)]
	roots := v.roots
	v.mu.Unlock()
	if ok {
		if now.Before(known.after) || now.After(known.till) {
			return nil, errors.New("outside its time")
		}
		return known.key, nil
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, err
	}
	key, isEd := cert.PublicKey.(ed25519.PublicKey)
	if !isEd {
		return nil, fmt.Errorf("key is %s, want Ed25519", cert.PublicKeyAlgorithm)
	}
	if !v.isController(cert) {
		return nil, fmt.Errorf("no name tensorgrid://%s/ctld/NAME", v.conf.Cluster)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.roots != roots {
		return key, nil // they changed meanwhile: the next order is judged by the new ones
	}
	if len(v.trusted) >= maxTrusted {
		clear(v.trusted)
	}
	v.trusted[string(der)] = trust{key: key, after: cert.NotBefore, till: cert.NotAfter}
	return key, nil
}

func (v *verifier) isController(cert *x509.Certificate) bool {
	return slices.ContainsFunc(cert.URIs, func(u *url.URL) bool {
		name, found := strings.CutPrefix(u.Path, "/ctld/")
		return u.Scheme == "tensorgrid" && u.Host == v.conf.Cluster && found && name != "" && !strings.Contains(name, "/")
	})
}

// identity refuses ids that no job may have, and drops the groups of the system from the list.
func (v *verifier) identity(l *cred.Launch) error {
	c := v.conf
	if c.Rootless {
		if int(l.UID) != os.Geteuid() {
			return fmt.Errorf("uid %d: this launcher is not root and serves uid %d only", l.UID, os.Geteuid())
		}
		return nil
	}
	if l.UID == 0 || l.UID < c.MinUID || l.UID > maxID {
		return fmt.Errorf("uid %d is not a user's (min_uid %d)", l.UID, c.MinUID)
	}
	if int(l.UID) == c.AgentUID || int(l.UID) == c.StepUID {
		return fmt.Errorf("uid %d is the node's own", l.UID)
	}
	for _, r := range c.RefuseUIDs {
		if l.UID >= r.Low && l.UID <= r.High {
			return fmt.Errorf("uid %d is refused here (refuse_uids)", l.UID)
		}
	}
	if !c.allowsGID(l.GID) {
		return fmt.Errorf("gid %d is not a user's (min_gid %d)", l.GID, c.MinGID)
	}
	if slices.Contains(l.Groups, 0) {
		return errors.New("group 0 is not given to jobs")
	}
	if len(l.Groups) > maxGroups {
		return fmt.Errorf("%d groups, limit %d", len(l.Groups), maxGroups)
	}
	kept := make([]uint32, 0, len(l.Groups))
	for _, g := range l.Groups {
		if c.allowsGID(g) {
			kept = append(kept, g)
		}
	}
	slices.Sort(kept)
	l.Groups = slices.Compact(kept)
	return nil
}

// maxID is the largest id that is one: 2^32-1 and 2^31.. are read as "unchanged" or negative somewhere.
const (
	maxID     = 1<<31 - 2
	maxGroups = 65536 // NGROUPS_MAX
)

func (c *Conf) allowsGID(g uint32) bool {
	if g == 0 || g > maxID || int(g) == c.AgentGID || int(g) == c.StepGID {
		return false
	}
	return g >= c.MinGID || slices.Contains(c.AllowGIDs, g)
}

// shape refuses what no kernel call could take.
func (v *verifier) shape(l *cred.Launch, s *cred.Payload) error {
	if l.SharedFS && !filepath.IsAbs(l.WorkDir) {
		return fmt.Errorf("work directory %q is not absolute", l.WorkDir)
	}
	for _, str := range append([]string{l.WorkDir, l.StdIn, l.StdOut, l.StdErr}, s.Args...) {
		if strings.Contains(str, "\x00") {
			return fmt.Errorf("%q holds a zero byte", str)
		}
	}
	for _, e := range s.Env {
		if slices.Contains(e, 0) {
			return fmt.Errorf("environment entry %q holds a zero byte", e)
		}
	}
	if l.Umask > 0o777 {
		return fmt.Errorf("umask %o is over 777", l.Umask)
	}
	if len(s.Script) == 0 {
		return errors.New("no script")
	}
	return nil
}
