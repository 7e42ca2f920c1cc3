package render

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

func columnsText(cols []Column) string {
	var parts []string
	for _, c := range cols {
		parts = append(parts, fmt.Sprintf("%q:%s:%d:%t:%q", c.Before, c.Key, c.Width, c.Right, c.After))
	}
	return strings.Join(parts, " ")
}

func TestParseFormat(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"%.18i %.9P", `"":i:18:true:"" " ":P:9:true:""`},
		{"%i|%T", `"":i:0:false:"" "|":T:0:false:""`},
		{"job_id=%i,state=%T", `"job_id=":i:0:false:"" ",state=":T:0:false:""`},
		{" %A,%T,%r", `" ":A:0:false:"" ",":T:0:false:"" ",":r:0:false:""`},
		{"%20Y end", `"":Y:20:false:" end"`},
		{"100%%%i", `"100%":i:0:false:""`},
		{`{"id": %A}`, `"{\"id\": ":A:0:false:"}"`},
		{"text", `"text"::0:false:""`},
		{"%all", `"":all:0:false:""`},
		{"", ""},
	} {
		cols, err := ParseFormat(c.in)
		if err != nil || columnsText(cols) != c.want {
			t.Errorf("%q: got %s, %v; want %s", c.in, columnsText(cols), err, c.want)
		}
	}
}

func TestParseLong(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"jobid", `"":jobid:20:false:""`},
		{"JobID:10,State:.8,", `"":JobID:10:false:"" "":State:8:true:""`},
		{"jobid:###turm###,name:", `"":jobid:0:false:"###turm###" "":name:0:false:""`},
		{"Account:\x1f,JobID:5|", "\"\":Account:0:false:\"\\x1f\" \"\":JobID:5:false:\"|\""},
	} {
		cols, err := ParseLong(c.in)
		if err != nil || columnsText(cols) != c.want {
			t.Errorf("%q: got %s, %v; want %s", c.in, columnsText(cols), err, c.want)
		}
	}
}

func TestFormatLimits(t *testing.T) {
	if _, err := ParseFormat(strings.Repeat("%i", MaxColumns)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	for name, f := range map[string]func() error{
		"columns":      func() error { _, err := ParseFormat(strings.Repeat("%i", MaxColumns+1)); return err },
		"long columns": func() error { _, err := ParseLong(strings.Repeat("a,", MaxColumns+1)); return err },
		"width":        func() error { _, err := ParseFormat(fmt.Sprintf("%%%di", MaxWidth+1)); return err },
		"long width":   func() error { _, err := ParseLong(fmt.Sprintf("a:%d", MaxWidth+1)); return err },
		"no letter":    func() error { _, err := ParseFormat("%.18"); return err },
	} {
		if f() == nil {
			t.Errorf("%s: no error over the limit", name)
		}
	}
}

func TestTable(t *testing.T) {
	cols, err := ParseFormat("%#P %.5a|%3t %N")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Table(&b, cols, [][]string{{"PARTITION", "AVAIL", "ST", "NODES"}, {"a-long-one*", "up", "idle", "n[1-4]"}}); err != nil {
		t.Fatal(err)
	}
	want := "PARTITION   AVAIL|ST  NODES\na-long-one*    up|idl n[1-4]\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{"plain é": "plain é", "a\nb": "a?b", "\x1b[31mred": "?[31mred", "\u009b1m": "?1m", "": ""} {
		if got := Clean(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestTimes(t *testing.T) {
	zone := time.FixedZone("X", 3600)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, zone)
	at := time.Date(2026, 11, 30, 9, 5, 7, 0, zone).UnixMilli()
	for _, c := range []struct{ format, want string }{
		{"", "2026-11-30T09:05:07"}, {"standard", "2026-11-30T09:05:07"}, {"relative", "09:05:07"}, {"%s", fmt.Sprint(at / 1000)},
		{"%Y/%m/%d %H:%M", "2026/11/30 09:05"}, {"%%%q", "%%q"},
	} {
		if got := (Clock{Now: now, Format: c.format}).Time(at, "N/A"); got != c.want {
			t.Errorf("%q: got %q, want %q", c.format, got, c.want)
		}
	}
	if got := (Clock{Now: now}).Time(0, "N/A"); got != "N/A" {
		t.Errorf("no time: %q", got)
	}
}

func TestStates(t *testing.T) {
	for _, c := range []struct {
		state string
		flags []string
		want  string
	}{
		{"RUNNING", nil, "RUNNING R"}, {"RUNNING", []string{"CONFIGURING"}, "CONFIGURING CF"}, {"COMPLETED", []string{"COMPLETING"}, "COMPLETING CG"},
		{"PENDING", []string{"REQUEUE_HOLD"}, "REQUEUE_HOLD RH"}, {"OUT_OF_MEMORY", nil, "OUT_OF_MEMORY OOM"}, {"FAILED", []string{"LAUNCH_FAILED"}, "FAILED F"},
	} {
		l, s := State(&ctldpb.Job{State: c.state, Flags: c.flags})
		if l+" "+s != c.want {
			t.Errorf("%s %v: got %s %s, want %s", c.state, c.flags, l, s, c.want)
		}
	}
	for _, c := range []struct {
		state string
		flags []string
		want  string
	}{
		{"IDLE", nil, "idle idle I IDLE"}, {"MIXED", nil, "mixed mix A MIXED"}, {"ALLOCATED", []string{"DRAIN"}, "draining drng A ALLOCATED+DRAIN"},
		{"IDLE", []string{"DRAIN"}, "drained drain O IDLE+DRAIN"}, {"DOWN", []string{"NOT_RESPONDING"}, "down* down* O DOWN*+NOT_RESPONDING"},
		{"UNKNOWN", nil, "unknown unk O UNKNOWN"}, {"IDLE", []string{"COMPLETING"}, "completing comp A IDLE+COMPLETING"},
	} {
		n := &ctldpb.Node{State: c.state, Flags: c.flags}
		l, s := NodeState(n)
		if got := fmt.Sprintf("%s %s %c %s", l, s, NodeClass(n), NodeStateFull(n)); got != c.want {
			t.Errorf("%s %v: got %s, want %s", c.state, c.flags, got, c.want)
		}
	}
}

func TestArrayTasksCut(t *testing.T) {
	j := &ctldpb.Job{JobId: 7, ArrayJobId: 7, ArrayTaskId: -1, ArrayPending: "[1,3,5,7,9,11,13]"}
	if got := JobID(j, 8); got != "7_[1,3,5,7,...]" {
		t.Errorf("cut: %s", got)
	}
	if got := JobID(j, 0); got != "7_[1,3,5,7,9,11,13]" {
		t.Errorf("whole: %s", got)
	}
}

// FuzzFormats: both languages never panic, keep their limits, and a table of them has one line a row.
func FuzzFormats(f *testing.F) {
	for _, s := range []string{"%.18i %.9P", "JobID:10,State:.8|,", "%", "%%", "%-8j%#P", "a:999999999999999999999", "%all", "x%é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, parse := range []func(string) ([]Column, error){ParseFormat, ParseLong} {
			cols, err := parse(s)
			if err != nil {
				continue
			}
			row := make([]string, len(cols))
			for i, c := range cols {
				if c.Width > MaxWidth {
					t.Fatalf("width %d", c.Width)
				}
				row[i] = "value"
				if n := utf8.RuneCountInString(Pad("value", c.Width, c.Right)); c.Width > 0 && n != c.Width {
					t.Fatalf("padded to %d, not %d", n, c.Width)
				}
			}
			var b strings.Builder
			if err := Table(&b, cols, [][]string{row}); err != nil || !strings.HasSuffix(b.String(), "\n") {
				t.Fatalf("table: %v", err)
			}
		}
	})
}
