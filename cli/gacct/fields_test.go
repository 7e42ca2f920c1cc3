package gacct

import (
	"strings"
	"testing"
)

func TestParseFields(t *testing.T) {
	cols, err := parseFields("jobid,JOBNAME%30,State%-20,,elapsed")
	if err != nil || len(cols) != 4 {
		t.Fatalf("%d columns, %v", len(cols), err)
	}
	if cols[0].width != -12 || cols[1].width != 30 || cols[2].width != -20 || cols[1].name != "JobName" {
		t.Errorf("%+v", cols)
	}
	for _, bad := range []string{"nosuch", "State%x", "State%0", "State%99999999", strings.Repeat("state,", len(fields)*4+1)} {
		if _, err := parseFields(bad); err == nil {
			t.Errorf("%.20s: no error", bad)
		}
	}
}

func TestPad(t *testing.T) {
	for _, c := range []struct {
		s     string
		width int
		want  string
	}{{"abc", 5, "  abc"}, {"abc", -5, "abc  "}, {"abcdef", 5, "abcd+"}, {"abcdef", -5, "abcd+"}, {"äöüäöü", 4, "äöü+"}, {"ab", 1, "+"}} {
		if got := pad(c.s, c.width); got != c.want {
			t.Errorf("%s in %d: %q", c.s, c.width, got)
		}
	}
}

func TestCPUTime(t *testing.T) {
	for us, want := range map[int64]string{0: "00:00.000", 61234000: "01:01.234", 3599999000: "59:59.999", 3600000000: "01:00:00", 90000e6: "1-01:00:00"} {
		if got := cpuTime(us); got != want {
			t.Errorf("%d: %s, want %s", us, got, want)
		}
	}
}

// FuzzParseFields: what is taken is a field, with a width within the limit.
func FuzzParseFields(f *testing.F) {
	for _, s := range []string{"JobID,State%20", "a%-3,", "%", "jobid%", ",,,", "TRESUsageInMaxNode%9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cols, err := parseFields(s)
		if err != nil {
			return
		}
		for _, c := range cols {
			if c.field == nil || c.width == 0 || c.width > maxWidth || c.width < -maxWidth {
				t.Fatalf("%+v", c)
			}
		}
	})
}
