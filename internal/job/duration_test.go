package job

import (
	"errors"
	"strings"
	"testing"
)

func TestParseTimeLimit(t *testing.T) {
	const m = minute
	for in, want := range map[string]int64{
		"5": 5 * m, "90": 90 * m, "1:30": 2 * m, "4:00": 4 * m, "0:30": m, "1:00:00": 60 * m, "0:240:0": 240 * m,
		"2-12": 60 * 60 * m, "2-12:30": (60*60 + 30) * m, "1-02:03:04": (26*60 + 4) * m, "3-0:00": 72 * 60 * m, "60:00:00": 60 * 60 * m,
		"0": Unlimited, "-1": Unlimited, "infinite": Unlimited, "UNLIMITED": Unlimited, "0:00": Unlimited, "0-0": Unlimited,
		"007": 7 * m, "0:0:1": m, "4294967293": MaxTimeLimit, "2982616-00:00:00": 2982616 * day,
	} {
		if got, err := ParseTimeLimit(in); err != nil || got != want {
			t.Errorf("ParseTimeLimit(%q) = %s, %v; want %s", in, FormatDuration(got), err, FormatDuration(want))
		}
	}
	for in, want := range map[string]string{
		"10m": `"10m" is not a number`, "1h": `"1h"`, "abc": `"abc"`, "1:2:3:4": "more than three", "": `"" is not a number`, "1:": `""`,
		"-5": "it is negative", "1-": `"" is not`, "1-2-3": `"2-3"`, "1.5": `"1.5"`, " 5": `" 5"`, "+5": `"+5"`, "--1": `""`,
		"2982617-00:00:00": "longer than", "999999999999": "longer than", "4294967294": "longer than",
		"99999999999999999999999999": "longer than", "4294967293:1": "longer than", "1-2:3:4:5": "more than three",
		"18446744073709551616": "longer than", "153722867280912931:0": "longer than",
	} {
		got, err := ParseTimeLimit(in)
		if !errors.Is(err, ErrTimeSpec) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseTimeLimit(%q) = %d, %v; want %s", in, got, err, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "1:30": 90 * second, "0:0:7": 7 * second, "INFINITE": Unlimited, "1-0:0:1": day + second} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for _, c := range []struct {
		ms            int64
		long, elapsed string
	}{
		{0, "00:00:00", "0:00"}, {999, "00:00:00", "0:00"}, {5 * second, "00:00:05", "0:05"}, {59*minute + 9*second, "00:59:09", "59:09"},
		{hour, "01:00:00", "1:00:00"}, {day - second, "23:59:59", "23:59:59"}, {day, "1-00:00:00", "1-00:00:00"},
		{400*day + 61*second, "400-00:01:01", "400-00:01:01"}, {Unlimited, "UNLIMITED", "UNLIMITED"}, {-5, "INVALID", "INVALID"},
	} {
		if got := FormatDuration(c.ms); got != c.long {
			t.Errorf("FormatDuration(%d) = %q, want %q", c.ms, got, c.long)
		}
		if got := FormatElapsed(c.ms); got != c.elapsed {
			t.Errorf("FormatElapsed(%d) = %q, want %q", c.ms, got, c.elapsed)
		}
	}
}

func FuzzParseTimeLimit(f *testing.F) {
	for _, s := range []string{"5", "1:30", "2-12", "1-02:03:04", "UNLIMITED", "-1", "2982617-00:00:00", "1:2:3:4", "10m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ms, err := ParseTimeLimit(s)
		if err != nil {
			return
		}
		if ms != Unlimited && (ms <= 0 || ms%minute != 0 || ms > MaxTimeLimit) {
			t.Fatalf("%q is %d ms", s, ms)
		}
		if back, err := ParseTimeLimit(FormatDuration(ms)); err != nil || back != ms {
			t.Fatalf("%q: %d, then %d, %v", s, ms, back, err)
		}
	})
}

func TestParseMem(t *testing.T) {
	const gib = 1024 * mib
	for in, want := range map[string]int64{
		"1024": gib, "1024K": mib, "1500K": 2 * mib, "1G": gib, "1GB": gib, "1g": gib, "1gb": gib, "1T": 1024 * gib, "0": 0,
		"1M": mib, "1mb": mib, "1K": mib, "1kB": mib, "0G": 0, "8388607T": 8388607 * 1024 * gib,
	} {
		if got, err := ParseMem(in); err != nil || got != want {
			t.Errorf("ParseMem(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "1.5G", "1GiB", "10X", "1 G", "-1", "G", "+1", "1GG", " 1", "1BB", "1B", "8388608T", "9223372036854775807", "99999999999999999999999"} {
		if got, err := ParseMem(bad); !errors.Is(err, ErrMemSpec) {
			t.Errorf("ParseMem(%q) = %d, %v", bad, got, err)
		}
	}
}

func TestFormatMem(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0", WholeNode: "0", 1: "1M", mib: "1M", mib + 1: "2M", 4000 * mib: "4000M", 1024 * mib: "1G", 16 << 30: "16G",
		1536 * mib: "1536M", 1 << 40: "1T", 1 << 50: "1P", 1 << 60: "1024P", 1<<63 - 1: "8192P",
	} {
		if got := FormatMem(bytes); got != want {
			t.Errorf("FormatMem(%d) = %q, want %q", bytes, got, want)
		}
	}
}

func FuzzParseMem(f *testing.F) {
	for _, s := range []string{"1024", "1500K", "1gb", "1GiB", "8388608T", "1 G"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseMem(s)
		if err == nil && (n < 0 || n%mib != 0) {
			t.Fatalf("%q is %d", s, n)
		}
	})
}
