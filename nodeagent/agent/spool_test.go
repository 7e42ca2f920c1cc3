package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

func newSpool(t *testing.T) *spool {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{launch.StepsDir, launch.OutputDir} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, err := openSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func TestStepsLimit(t *testing.T) {
	s := newSpool(t)
	const limit = 5
	for n := range uint32(limit) {
		if err := os.Mkdir(launch.StepFolder(s.path, batch(n)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if keys, err := s.steps(limit); err != nil || len(keys) != limit {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	if err := os.Mkdir(launch.StepFolder(s.path, batch(limit)), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.steps(limit); err == nil || !strings.Contains(err.Error(), "more than 5") {
		t.Errorf("limit + 1: %v", err)
	}
}

func TestStepsWithoutLauncher(t *testing.T) {
	s := newSpool(t)
	if err := os.Remove(filepath.Join(s.path, launch.StepsDir)); err != nil {
		t.Fatal(err)
	}
	if keys, err := s.steps(MaxRuns); err != nil || len(keys) != 0 {
		t.Errorf("%v %v", keys, err)
	}
	if _, err := openSpool(filepath.Join(s.path, "nothing")); err == nil {
		t.Error("a spool that is not there was opened")
	}
}

func TestOutput(t *testing.T) {
	s := newSpool(t)
	k := batch(7)
	text := strings.Repeat("0123456789", MaxChunk/10+100)
	if err := os.WriteFile(filepath.Join(s.path, launch.OutputFile("", k, false)), []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name        string
		offset, max int64
		want        string
		eof         bool
	}{
		{"from the start", 0, 10, text[:10], false},
		{"in the middle", 5, 3, "567", false},
		{"to the end", int64(len(text)) - 4, 100, text[len(text)-4:], true},
		{"exactly to the end", int64(len(text)) - 4, 4, text[len(text)-4:], false},
		{"at the end", int64(len(text)), 10, "", true},
		{"beyond the end", 1 << 40, 10, "", true},
		{"no size given", 0, 0, text[:MaxChunk], false},
		{"limit + 1", 0, MaxChunk + 1, text[:MaxChunk], false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data, eof, err := s.output(k, false, tc.offset, tc.max)
			if err != nil || string(data) != tc.want || eof != tc.eof {
				t.Errorf("%d bytes, eof %v, %v; want %d, %v", len(data), eof, err, len(tc.want), tc.eof)
			}
		})
	}
	if data, _, err := s.output(k, true, 0, 4); err != nil || string(data) != "0123" {
		t.Errorf("standard error without a file of its own: %q %v", data, err)
	}
	if err := os.WriteFile(filepath.Join(s.path, launch.OutputFile("", k, true)), []byte("err"), 0o640); err != nil {
		t.Fatal(err)
	}
	if data, _, err := s.output(k, true, 0, 4); err != nil || string(data) != "err" {
		t.Errorf("standard error: %q %v", data, err)
	}
	if _, _, err := s.output(k, false, -1, 4); err == nil {
		t.Error("a negative offset was taken")
	}
	if _, _, err := s.output(batch(8), false, 0, 4); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("output that is not there: %v", err)
	}
}

// TestPathTricks: what stands in the place of an output or a record may be anything its owner made.
func TestPathTricks(t *testing.T) {
	s := newSpool(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := batch(7)
	out := filepath.Join(s.path, launch.OutputDir, k.String()+".out")
	dir := launch.StepFolder(s.path, k)
	if err := os.WriteFile(filepath.Join(s.path, "inside"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, place := range map[string]func(path string) error{
		"absolute link": func(p string) error { return os.Symlink(secret, p) },
		"link inside":   func(p string) error { return os.Symlink("../inside", p) },
		"link upwards":  func(p string) error { return os.Symlink("../../../../../../etc/passwd", p) },
		"fifo":          func(p string) error { return unix.Mkfifo(p, 0o644) },
		"folder":        func(p string) error { return os.Mkdir(p, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := place(out); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(out)
			if data, _, err := s.output(k, false, 0, 100); err == nil {
				t.Errorf("output was read: %q", data)
			}
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			if err := place(filepath.Join(dir, shepherd.RecordFile)); err != nil {
				t.Fatal(err)
			}
			if rec, err := s.record(k); err == nil || errors.Is(err, errNoRecord) {
				t.Errorf("record %v, %v", rec, err)
			}
		})
	}
	t.Run("folder is a link", func(t *testing.T) {
		if err := os.Symlink(filepath.Dir(secret), dir); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(dir)
		if there, err := s.exists(k); there || err == nil {
			t.Errorf("exists %v, %v", there, err)
		}
	})
}

func TestRecord(t *testing.T) {
	s := newSpool(t)
	k := batch(7)
	if _, err := s.record(k); !errors.Is(err, errNoRecord) {
		t.Errorf("no folder: %v", err)
	}
	dir := launch.StepFolder(s.path, k)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	want := shepherd.Record{Key: k, ExitCode: 255, Start: 1, End: 2}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, shepherd.RecordFile), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.record(k); err != nil || *rec != want {
		t.Errorf("%+v %v", rec, err)
	}
}

func TestRecordLimit(t *testing.T) {
	fits := `{"err":"` + strings.Repeat("x", maxRecord-10) + `"}`
	if len(fits) != maxRecord {
		t.Fatalf("%d bytes", len(fits))
	}
	if _, err := decodeRecord([]byte(fits)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, err := decodeRecord([]byte(fits + " ")); !errors.Is(err, errBadRecord) || !strings.Contains(err.Error(), "65536") {
		t.Errorf("limit + 1: %v", err)
	}
}

func TestWriteProbe(t *testing.T) {
	dir := t.TempDir()
	if err := WriteProbe(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if err := WriteProbe(filepath.Join(dir, "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "probe")); err != nil {
		t.Fatal(err)
	}
	if err := WriteProbe(dir); err == nil {
		t.Error("a link was followed")
	}
}

func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		`{"key":{"job":7,"run":0,"step":4294967291},"code":0,"signal":0,"oom":false,"start_ms":1,"end_ms":2,"why":0,"user_us":0,"sys_us":0,"max_rss":0}`,
		`{"code":256}`, `{"signal":-1}`, `{"unknown":1}`, `{} {}`, `null`, ``, `{"key":{"job":-1}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := decodeRecord(data)
		if err != nil {
			if !errors.Is(err, errBadRecord) {
				t.Errorf("error of another kind: %v", err)
			}
			return
		}
		if rec.ExitCode < 0 || rec.ExitCode > 255 || rec.Signal < 0 || rec.Signal > 127 {
			t.Errorf("record %+v", rec)
		}
		again, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > maxRecord {
			return // escapes may make it longer
		}
		if back, err := decodeRecord(again); err != nil || *back != *rec {
			t.Errorf("%+v came back as %+v, %v", rec, back, err)
		}
	})
}

func TestReadOutputOverTheSession(t *testing.T) {
	inBubble(t, func(h *host, c *controller) {
		k := batch(7)
		if err := os.WriteFile(filepath.Join(h.spool, launch.OutputDir, k.String()+".out"), []byte("hello"), 0o640); err != nil {
			t.Fatal(err)
		}
		defer h.agent()()
		s, st := running(h, c, k)
		ask := func(q *nodepb.ReadOutput) *nodepb.OutputChunk {
			s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_ReadOutput{ReadOutput: q}})
			return wait(h, s.msgs, "output").GetOutput()
		}
		if o := ask(&nodepb.ReadOutput{Id: 3, JobId: 7}); o.Id != 3 || string(o.Data) != "hello" || !o.Eof || !o.Running || o.Error != "" {
			t.Errorf("while it runs: %v", o)
		}
		st.end(shepherd.Record{})
		s.report()
		if o := ask(&nodepb.ReadOutput{Id: 4, JobId: 7, Offset: 5}); o.Id != 4 || len(o.Data) != 0 || !o.Eof || o.Running {
			t.Errorf("at its end: %v", o)
		}
		if o := ask(&nodepb.ReadOutput{Id: 5, JobId: 8}); o.Error == "" || o.Running {
			t.Errorf("unknown job: %v", o)
		}
		// More than may be read at one time: every one is answered.
		for n := range 3 * MaxReads {
			s.send(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_ReadOutput{ReadOutput: &nodepb.ReadOutput{Id: uint64(100 + n), JobId: 7}}})
		}
		for range 3 * MaxReads {
			if o := wait(h, s.msgs, "output").GetOutput(); string(o.GetData()) != "hello" {
				t.Fatalf("answer %v", o)
			}
		}
	})
}

// TestOutputOfAnEarlierSession: the numbers of requests begin anew with each session, so that a piece
// that was read for an earlier one must never be sent in the next.
func TestOutputOfAnEarlierSession(t *testing.T) {
	o := newOutbox()
	for n := range uint64(3) {
		o.addChunk(1, &nodepb.OutputChunk{Id: n, Data: []byte("another user's")})
	}
	o.addChunk(2, &nodepb.OutputChunk{Id: 1, Data: []byte("mine")})
	c, taken := o.takeChunk(2)
	if string(c.GetData()) != "mine" || taken != 4 {
		t.Errorf("got %v, %d taken", c, taken)
	}
	if c, taken := o.takeChunk(2); c != nil || taken != 0 {
		t.Errorf("got %v, %d taken", c, taken)
	}
}
