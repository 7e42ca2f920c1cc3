package gctl

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/cli/program"
)

// TestWordHelp: the help of a word shows how each of its words is written, with the options that it needs.
func TestWordHelp(t *testing.T) {
	for _, v := range verbs() {
		if v.options == nil {
			continue
		}
		var out, errs bytes.Buffer
		code := Main(&program.Env{Name: "gctl", Args: []string{v.name, "--help"}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs})
		if code != 0 || errs.Len() != 0 {
			t.Errorf("%s: exit code %d, %s", v.name, code, errs.String())
		}
		for _, w := range v.words() {
			// Long lines are wrapped.
			if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), "gctl "+v.name+" "+w.write+" ") {
				t.Errorf("%s --help does not show %q", v.name, w.write)
			}
		}
		if words := strings.Fields(v.example); len(words) < 4 || !strings.Contains(out.String(), "Example: "+v.example) {
			t.Errorf("%s --help has no example", v.name)
		}
	}
}

func TestLifetime(t *testing.T) {
	for text, want := range map[string]time.Duration{"60s": time.Minute, "1h": time.Hour, "2d": 48 * time.Hour, "30d": maxTTL, "59s": 0, "0d": 0, "31d": 0, "-1h": 0, "x": 0, "": 0} {
		if got, err := lifetime(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
