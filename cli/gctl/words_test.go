package gctl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNamesOfATokenCountOnce: a name that is written twice is one use.
func TestNamesOfATokenCountOnce(t *testing.T) {
	req, err := tokenRequest(given{}, []string{"n1", "n[1-2]", "n2"})
	if err != nil || req.Names != "n[1-2]" {
		t.Errorf("names %q, %v", req.GetNames(), err)
	}
}

// TestFileThatIsThere: what is said of a file in the way has no word of an option that only backups have.
func TestFileThatIsThere(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := mayReplace(name, false)
	if !errors.Is(err, errThere) || strings.Contains(err.Error(), "--force") || strings.Contains(err.Error(), "backup") {
		t.Errorf("%v", err)
	}
	if err := mayReplace(name, true); err != nil {
		t.Errorf("with force: %v", err)
	}
}
