package leader

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The environment is that of one map, sorted, whatever is covered.
func TestUserEnvIsOneMap(t *testing.T) {
	name := rapid.StringMatching(`[A-C_1]{1,3}`)
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOf(rapid.Custom(func(t *rapid.T) string {
			return name.Draw(t, "name") + "=" + rapid.StringMatching(`[=a-b]{0,2}`).Draw(t, "value")
		})).Draw(t, "user's")
		ours := variables(rapid.MapOf(name, rapid.StringMatching(`[a-b]{0,2}`)).Draw(t, "ours"))
		want := map[string]string{}
		for _, e := range entries {
			k, v, _ := strings.Cut(e, "=")
			want[k] = v
		}
		for k, v := range ours {
			want[k] = v
		}
		got := newUserEnv([]byte(strings.Join(append(entries, "=x", "novalue", "HOSTNAME=other"), "\x00"))).with(ours)
		if w := sortedEnv(want); !slices.EqualFunc(got, w, bytes.Equal) {
			t.Fatalf("got %q, want %q", got, w)
		}
	})
}

func TestUserEnvsAreBounded(t *testing.T) {
	var c userEnvs
	first := c.get([]byte("0"), []byte("A=1"))
	if c.get([]byte("0"), nil) != first {
		t.Error("taken apart twice")
	}
	for i := range maxUserEnvs {
		c.get(fmt.Append(nil, i), nil)
	}
	if len(c.byHash) != maxUserEnvs {
		t.Errorf("%d kept", len(c.byHash))
	}
	if c.get([]byte("more"), []byte("A=2")).values["A"] != "2" || len(c.byHash) > maxUserEnvs {
		t.Errorf("%d kept at limit + 1", len(c.byHash))
	}
}
