package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

const swf = "; MaxProcs: 4\n1 0 -1 100 2 -1 -1 2 100 -1 1 1 -1 -1 -1 -1 -1 -1\n2 1 -1 50 4 -1 -1 4 50 -1 1 1 -1 -1 -1 -1 -1 -1\n"

func call(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	var out, errs bytes.Buffer
	rc := Main(args, &out, &errs)
	return rc, out.String(), errs.String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReplay(t *testing.T) {
	file, pol := write(t, "small.swf", swf), write(t, "mine.policy", "order=sjf\n")
	rc, out, errs := call(t, "replay", file)
	if rc != 0 || !strings.Contains(out, "2 jobs, 0 dropped") || !strings.Contains(out, "longest wait") {
		t.Fatal(rc, out, errs)
	}
	rc, out, errs = call(t, "replay", "--json", "--policy", pol, file)
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); rc != 0 || err != nil || got["longest_wait_s"] != 99.0 || got["policy"] != "mine" {
		t.Fatal(rc, out, errs, err)
	}
	pics := filepath.Join(t.TempDir(), "pics")
	rc, out, errs = call(t, "compare", file, "--policy", pol, "--policy", pol, "--plot", pics)
	if _, err := os.Stat(filepath.Join(pics, "wait.png")); rc != 0 || err != nil || strings.Count(out, "mine") != 2 {
		t.Fatal(rc, out, errs, err)
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		rc   int
		want string
	}{
		{nil, 2, "replay, compare or whatif"},
		{[]string{"play"}, 2, `"play" is none of`},
		{[]string{"replay"}, 2, "one TRACE is wanted"},
		{[]string{"replay", "a", "--fast"}, 2, "fast"},
		{[]string{"compare", "a", "--policy", "b"}, 2, "two --policy"},
		{[]string{"replay", "a", "--down", "n1"}, 2, "whatif's"},
		{[]string{"whatif", "a", "--plot", "x"}, 2, "of replays"},
		{[]string{"replay", "a.csv"}, 2, "go together"},
		{[]string{"replay", "/nowhere/a.swf"}, 1, "no such file"},
		{[]string{"whatif", "/nowhere/a"}, 1, "no such file"},
	} {
		if rc, _, errs := call(t, c.args...); rc != c.rc || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, %q; want %d, %q", c.args, rc, errs, c.rc, c.want)
		}
	}
	if rc, out, _ := call(t, "--help"); rc != 0 || !strings.Contains(out, "Examples:") {
		t.Error(rc, out)
	}
	for line := range strings.Lines(help) {
		if len(line) > 81 {
			t.Errorf("help is wider than a terminal: %q", line)
		}
	}
	if rc, out, _ := call(t, "replay", "--help"); rc != 0 || out != help {
		t.Error("replay --help")
	}
}

func TestWhatIf(t *testing.T) {
	var snap bytes.Buffer
	if err := fsm.New(state.New()).Snapshot().Write(&snap); err != nil {
		t.Fatal(err)
	}
	file := write(t, "empty.snap", snap.String())
	if rc, out, errs := call(t, "whatif", file); rc != 0 || !strings.Contains(out, "0 jobs") {
		t.Fatal(rc, out, errs)
	}
	for _, c := range []struct{ args, want string }{
		{"--down n1", "no node n1"}, {"--add x", "COUNT=NODE"}, {"--add 0=n", "COUNT=NODE"}, {"--add 3=n9", "no node n9"},
	} {
		if rc, _, errs := call(t, append([]string{"whatif", file}, strings.Fields(c.args)...)...); rc != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: %d %q", c.args, rc, errs)
		}
	}
	if rc, _, errs := call(t, "whatif", write(t, "bad", "nonsense")); rc != 1 || !strings.Contains(errs, "no snapshot") {
		t.Error(rc, errs)
	}
}

func TestSpan(t *testing.T) {
	for s, want := range map[int64]string{0: "00:00:00", 3661: "01:01:01", 90061: "1-01:01:01"} {
		if got := span(s); got != want {
			t.Errorf("span(%d) = %s, want %s", s, got, want)
		}
	}
}
