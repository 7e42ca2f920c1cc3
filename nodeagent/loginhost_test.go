package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// TestUserWithoutName: whoever asks with a uid that has no account gets an error and ends nothing.
func TestUserWithoutName(t *testing.T) {
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	for path, text := range map[string]string{passwd: "ada:x:1000:1000::/home/ada:/bin/sh\n", group: "ada:x:1000:\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	users := userName(authn.NewAccounts(passwd, group, time.Now))
	if name, err := users(1000); err != nil || name != "ada" {
		t.Errorf("uid 1000: %q, %v", name, err)
	}
	if name, err := users(424242); !errors.Is(err, authn.ErrNoAccount) || name != "" {
		t.Errorf("a uid without an account: %q, %v", name, err)
	}
}
