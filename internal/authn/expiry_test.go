package authn

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestExpiryTexts(t *testing.T) {
	e := Expiry{Name: "c1", NotBefore: epoch, NotAfter: epoch.Add(30 * 24 * time.Hour), CA: epoch.Add(CALife)}
	for _, tt := range []struct {
		after time.Duration
		want  string
	}{
		{0, ""},
		{22 * 24 * time.Hour, ""},
		{23 * 24 * time.Hour, "ends in 7 days, at 2026-02-01T03:04:05Z; renew it (gctl pki renew c1)"},
		{29*24*time.Hour + time.Hour, "ends in 23 h"},
		{30 * 24 * time.Hour, "ended at 2026-02-01T03:04:05Z"},
	} {
		if got := e.Warning(epoch.Add(tt.after)); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("after %v: %q, want %q", tt.after, got, tt.want)
		}
	}
	if got := e.Warning(epoch.Add(-time.Hour)); !strings.Contains(got, "nobody takes it before") {
		t.Errorf("before its time: %q", got)
	}
	e.NotAfter = epoch.Add(2 * CALife)
	if got := e.Warning(epoch.Add(CALife - 10*24*time.Hour)); !strings.Contains(got, "CA ends in 10 days") {
		t.Errorf("CA: %q", got)
	}
}

// TestDue: two thirds of the life that was given must be over, however short it is beside what it is dated back.
func TestDue(t *testing.T) {
	for _, life := range []time.Duration{time.Minute, 10 * time.Minute, 30 * 24 * time.Hour} {
		p := newPKI(t, "blue", epoch)
		pair, err := p.ca.Issue(RoleCtld, "c1", life, rand.Reader, epoch)
		if err == nil {
			err = pair.Write(p.dir, "c1")
		}
		if err != nil {
			t.Fatal(err)
		}
		e := p.open(t, "c1", func() time.Time { return epoch }).Expiry()
		for at, want := range map[time.Duration]bool{0: false, life / 2: false, life*2/3 - time.Second: false, life*2/3 + time.Second: true, life: true, -clockSkew - time.Second: true} {
			if e.Due(epoch.Add(at)) != want {
				t.Errorf("a life of %v, after %v: due is %v", life, at, !want)
			}
		}
		if got := e.Warning(epoch.Add(life / 2)); got != "" {
			t.Errorf("a life of %v: %q in the middle", life, got)
		}
	}
}

// TestWatchExpiry: silence, then one warning a day, one at the end, and silence again after a renewal.
func TestWatchExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := newPKI(t, "blue", start)
		write := func(at time.Time) {
			pair, err := p.ca.Issue(RoleCtld, "c1", 30*24*time.Hour, rand.Reader, at)
			if err == nil {
				err = pair.Write(p.dir, "c1")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		write(start)
		id := p.open(t, "c1", time.Now)
		var mu sync.Mutex
		var told []string
		forget := func() (was []string) {
			mu.Lock()
			defer mu.Unlock()
			was, told = told, nil
			return was
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			id.WatchExpiry(ctx, func(text string) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, text)
			})
			close(done)
		}()
		sleep := func(d time.Duration) []string {
			forget()
			time.Sleep(d)
			synctest.Wait()
			return forget()
		}
		if got := sleep(22 * 24 * time.Hour); len(got) != 0 {
			t.Errorf("in the first 22 days: %v", got)
		}
		if got := sleep(7 * 24 * time.Hour); len(got) < 6 || len(got) > 7 {
			t.Errorf("in a week before the end %d warnings, want one a day: %v", len(got), got)
		}
		if got := sleep(2 * 24 * time.Hour); len(got) < 2 || !strings.Contains(got[len(got)-1], "ended") {
			t.Errorf("at the end: %v", got)
		}
		write(time.Now())
		sleep(time.Hour)
		if got := sleep(2 * 24 * time.Hour); len(got) != 0 {
			t.Errorf("after the renewal: %v", got)
		}
		// A renewal that went wrong is told at once, although the old pair is still good.
		if err := os.WriteFile(filepath.Join(p.dir, "c1.pem"), []byte("nonsense"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := sleep(time.Minute); len(got) != 1 || !strings.Contains(got[0], "not used") {
			t.Errorf("with a broken file: %v", got)
		}
		if got := sleep(time.Hour); len(got) != 0 {
			t.Errorf("with a broken file, again: %v", got)
		}
		// A pair that is whole when it is looked at again is none that went wrong.
		write(time.Now())
		sleep(time.Hour)
		whole, err := os.ReadFile(filepath.Join(p.dir, "c1.key"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.dir, "c1.key"), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := sleep(lookEvery)
		if err := os.WriteFile(filepath.Join(p.dir, "c1.key"), whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if got = append(got, sleep(time.Hour)...); len(got) != 0 {
			t.Errorf("with files that were being copied: %v", got)
		}
		// One whose time is over says what to do.
		write(time.Now().Add(-60 * 24 * time.Hour))
		if _, err := OpenIdentity(p.dir, "c1", time.Now); err == nil || !strings.Contains(err.Error(), "gctl pki renew c1") {
			t.Errorf("an old certificate: %v", err)
		}
		cancel()
		<-done
	})
}
