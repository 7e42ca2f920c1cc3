package main

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

func testToken(t *testing.T) string {
	t.Helper()
	ca, err := authn.NewCA("lab", rand.Reader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := authn.NewJoinToken("t1", ca.Cert, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return tok.String()
}

// TestJoinArguments: each mistake is named, and no output holds the token.
func TestJoinArguments(t *testing.T) {
	token := testToken(t)
	dir := t.TempDir()
	loose, good, long := filepath.Join(dir, "loose"), filepath.Join(dir, "good"), filepath.Join(dir, "long")
	for path, text := range map[string]string{loose: token, good: token + "\n", long: strings.Repeat("x", 5000)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(loose, 0o644); err != nil {
		t.Fatal(err)
	}
	at := "--controller=127.0.0.1:1 --tls-dir=" + filepath.Join(dir, "tls") + " --allow-root --user=x --name=n1 "
	for _, tc := range []struct {
		args, stdin string
		code        int
		want        string
	}{
		{"--help", "", 0, "Usage: gnoded join"},
		{"", "", 2, "--token-file is missing"},
		{"--token-file=-", "", 2, "--controller is missing"},
		{"--token-file=- --controller=c1", "", 2, "write HOST:PORT"},
		{"--token-file=- --controller=c1:0", "", 2, "a port from 1 to 65535"},
		{"--token-file=- --controller=:6819", "", 2, "write HOST:PORT"},
		{"--token-file=- --what", "", 2, "what"},
		{"--token-file=- --controller=c1:6819 n1", "", 2, `"n1" is not an option`},
		{"--controller=c1:6819 " + token, "", 2, "does not go on the command line"},
		{at + "--token-file=" + filepath.Join(dir, "none"), "", 1, "no such file"},
		{at + "--token-file=" + loose, "", 1, "can be read by others (mode 0644)"},
		{at + "--token-file=" + long, "", 1, "longer than a token"},
		{at + "--token-file=-", "tgj1.x.y", 1, "malformed join token"},
		{at + "--token-file=-", "", 1, "malformed join token"},
		{at + "--token-file=" + good, "", 1, "does not answer"},
		{at + "--token-file=-", token + "\n", 1, "does not answer"},
		{"--controller=127.0.0.1:1 --allow-root --token-file=- --conf=" + filepath.Join(dir, "no.conf"), token, 1, "--tls-dir"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var out bytes.Buffer
			code := runJoin(strings.Fields(tc.args), strings.NewReader(tc.stdin), &out, &out)
			if code != tc.code || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit %d, want %d\n%s", code, tc.code, out.String())
			}
			if strings.Contains(out.String(), token) {
				t.Error("the token is printed")
			}
		})
	}
}
