package authn

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"
)

// When certificates are complained about, and how often.
const (
	warnCert  = 14 * 24 * time.Hour // before a certificate's end, or a quarter of its life if that is less
	warnCA    = 90 * 24 * time.Hour
	warnEvery = 24 * time.Hour
	lookEvery = 10 * time.Second // whoever put a file there by hand still looks at the log
)

// Expiry is how long an identity is good.
type Expiry struct {
	Name      string
	NotBefore time.Time
	NotAfter  time.Time
	CA        time.Time // end of the CA that lives longest
	Problem   error     // why files that have changed are not used; nil = they are
}

// Expiry tells how long the identity in force is good, the files being read again if they changed.
func (id *Identity) Expiry() Expiry {
	cur := id.current()
	id.mu.Lock()
	problem := id.problem
	id.mu.Unlock()
	leaf := cur.pair.Leaf
	e := Expiry{Name: cur.name, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, Problem: problem}
	for _, ca := range cur.cas {
		if ca.NotAfter.After(e.CA) {
			e.CA = ca.NotAfter
		}
	}
	return e
}

// Life is how long a certificate was good when it was made; it begins a little before that, so that clocks
// may differ.
func Life(cert *x509.Certificate) time.Duration { return lifeOf(cert.NotBefore, cert.NotAfter) }

func lifeOf(begin, end time.Time) time.Duration {
	if life := end.Sub(begin); life > clockSkew {
		return life - clockSkew
	}
	return end.Sub(begin)
}

// RenewAt is when two thirds of the life are over: the time to renew.
func (e Expiry) RenewAt() time.Time { return e.NotAfter.Add(-lifeOf(e.NotBefore, e.NotAfter) / 3) }

// Due tells whether it is time to renew. A certificate whose time has not begun was made by a clock that was
// ahead: nobody takes it.
func (e Expiry) Due(now time.Time) bool { return now.Before(e.NotBefore) || !now.Before(e.RenewAt()) }

// Warning says what will soon go wrong, or has; "" when nothing.
func (e Expiry) Warning(now time.Time) string {
	left, caLeft := e.NotAfter.Sub(now), e.CA.Sub(now)
	switch {
	case e.Problem != nil:
		return fmt.Sprintf("the certificate files have changed and are not used: %v", e.Problem)
	case left <= 0:
		return fmt.Sprintf("the certificate of %s ended at %s: nobody accepts new connections of it; renew it (gctl pki renew %s)", e.Name, e.NotAfter.UTC().Format(time.RFC3339), e.Name)
	case now.Before(e.NotBefore):
		return fmt.Sprintf("the certificate of %s begins at %s and nobody takes it before: was the clock ahead when it was made? renew it (gctl pki renew %s)", e.Name, e.NotBefore.UTC().Format(time.RFC3339), e.Name)
	case left < min(warnCert, lifeOf(e.NotBefore, e.NotAfter)/4):
		return fmt.Sprintf("the certificate of %s ends in %s, at %s; renew it (gctl pki renew %s)", e.Name, days(left), e.NotAfter.UTC().Format(time.RFC3339), e.Name)
	case caLeft <= 0:
		return fmt.Sprintf("the cluster's CA ended at %s: every certificate is void", e.CA.UTC().Format(time.RFC3339))
	case caLeft < warnCA:
		return fmt.Sprintf("the cluster's CA ends in %s, at %s; make a new one and put both into %s", days(caLeft), e.CA.UTC().Format(time.RFC3339), CAFile)
	}
	return ""
}

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// WatchExpiry calls warn with a text at most once a day, and whenever the text's subject changes,
// while something is wrong or soon will be. Files that have changed and cannot be used are told of at the second
// look: between the copies of a certificate and of its key they do not belong together. It ends with ctx.
func (id *Identity) WatchExpiry(ctx context.Context, warn func(text string)) {
	var told time.Time
	var state [2]bool // what was told of: a problem, an end that has come
	seen := false     // there was a problem at the last look
	for {
		now, e := id.now(), id.Expiry()
		first := e.Problem != nil && !seen
		if seen = e.Problem != nil; first {
			e.Problem = nil
		}
		if text := e.Warning(now); text != "" {
			is := [2]bool{e.Problem != nil, !now.Before(e.NotAfter)}
			if since := now.Sub(told); told.IsZero() || since >= warnEvery || since < 0 || is != state {
				warn(text)
				told, state = now, is
			}
		} else {
			told = time.Time{}
		}
		t := time.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}
