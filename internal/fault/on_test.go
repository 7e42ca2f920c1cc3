//go:build faults

package fault

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestPoint(t *testing.T) {
	dir = t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Point("p"); err != nil {
		t.Fatal(err)
	}
	write("p", "error ENOSPC 2\n")
	for i := range 3 {
		if err := Point("p"); errors.Is(err, syscall.ENOSPC) != (i < 2) {
			t.Errorf("pass %d: %v", i+1, err)
		}
	}
	write("p", "sleep 30ms")
	begin := time.Now()
	if err := Point("p"); err != nil || time.Since(begin) < 30*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
	write("clock", "+2h")
	time.Sleep(30 * time.Millisecond)
	if d := Now().Sub(time.Now().Round(0)); d < 119*time.Minute || d > 121*time.Minute {
		t.Errorf("the clock is off by %v", d)
	}
	write("bootid", "abc")
	if got := BootID("real"); got != "abc" {
		t.Error(got)
	}
}
