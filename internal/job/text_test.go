package job

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestParseRef(t *testing.T) {
	for in, want := range map[string]Ref{
		"12": {12, nil}, "12_3": {12, NewSet(3)}, "12_[1-5,9]": {12, NewSet(1, 2, 3, 4, 5, 9)}, "12_*": {12, nil}, "12_[*]": {12, nil},
		"12_[1-3%2]": {12, NewSet(1, 2, 3)}, "12_0": {12, NewSet(0)}, "4294967295": {1<<32 - 1, nil}, "12_[7]": {12, NewSet(7)},
	} {
		got, err := ParseRef(in)
		if err != nil || got.ID != want.ID || (got.Tasks == nil) != (want.Tasks == nil) || !got.Tasks.Equal(want.Tasks) {
			t.Errorf("ParseRef(%q) = %s, %v", in, got, err)
		}
		if back, err := ParseRef(got.String()); err != nil || back.ID != got.ID || !back.Tasks.Equal(got.Tasks) {
			t.Errorf("%q is written %s", in, got)
		}
	}
	for _, bad := range []string{"", "0", "-1", "12_", "12_x", "12_[", "12_[]", "12_[5-1]", "12_1-3", "_3", "a", "12.0", "4294967296", "12_4000000", "12 ", "12_[4000000]"} {
		if got, err := ParseRef(bad); !errors.Is(err, ErrRef) {
			t.Errorf("ParseRef(%q) = %s, %v", bad, got, err)
		}
	}
	if s := (Ref{12, NewSet(1, 2, 9)}).String(); s != "12_[1-2,9]" {
		t.Errorf("some tasks: %s", s)
	}
	if s := TaskText(12, 3); s != "12_3" {
		t.Errorf("TaskText: %s", s)
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"12", "12_3", "12_[1-5,9]", "12_*", "12_[1-3%2]", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := ParseRef(s)
		if err != nil {
			return
		}
		back, err := ParseRef(ref.String())
		if err != nil || back.ID != ref.ID || !back.Tasks.Equal(ref.Tasks) || (back.Tasks == nil) != (ref.Tasks == nil) {
			t.Fatalf("%q: %s, then %s, %v", s, ref, back, err)
		}
	})
}

func TestSignals(t *testing.T) {
	for name, want := range map[string]int{
		"TERM": 15, "SIGTERM": 15, "sigterm": 15, "term": 15, "9": 9, "KILL": 9, "USR1": 10, "USR2": 12, "CONT": 18, "STOP": 19, "64": 64,
		"RTMIN": 34, "RTMIN+3": 37, "RTMAX-1": 63, "RTMAX": 64, "IOT": 6, "CLD": 17, "POLL": 29, "HUP": 1, "SYS": 31, "WINCH": 28,
	} {
		if got, ok := SignalNumber(name); !ok || got != want {
			t.Errorf("SignalNumber(%q) = %d, %v; want %d", name, got, ok, want)
		}
	}
	for _, bad := range []string{"", "0", "65", "-9", "SIG", "NOPE", "RTMIN+31", "RTMIN-1", "RTMAX+1", "RTMIN+", "SIG9", "99999999999999999999"} {
		if got, ok := SignalNumber(bad); ok {
			t.Errorf("SignalNumber(%q) = %d", bad, got)
		}
	}
	for n := 1; n <= MaxSignal; n++ {
		if got, ok := SignalNumber(SignalName(n)); !ok || got != n {
			t.Errorf("signal %d has the name %s", n, SignalName(n))
		}
		if SignalText(n) == "" {
			t.Errorf("signal %d has no text", n)
		}
	}
	if SignalText(9) != "Killed" || SignalText(11) != "Segmentation fault" || SignalText(99) != "Unknown signal 99" || SignalText(36) != "Real-time signal 2" {
		t.Error("the texts of signals")
	}
}

func TestParseSignalSpec(t *testing.T) {
	for in, want := range map[string]SignalSpec{
		"USR1": {Signal: 10, Before: 60 * second}, "B:USR1@60": {Signal: 10, Before: 60 * second, Batch: true},
		"R:10": {Signal: 10, Before: 60 * second, Reservation: true}, "rb:SIGINT@300": {Signal: 2, Before: 300 * second, Batch: true, Reservation: true},
		"10@0": {Signal: 10}, "TERM@65535": {Signal: 15, Before: 65535 * second},
	} {
		if got, err := ParseSignalSpec(in); err != nil || got != want {
			t.Errorf("ParseSignalSpec(%q) = %+v, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{
		"": `no signal ""`, "X:USR1": `"X"`, "BB:USR1": `"BB"`, ":USR1": "nothing before", "USR1@": `time ""`, "USR1@a": `time "a"`,
		"USR1@65536": "up to 65535", "NOPE@5": `no signal "NOPE"`, "B:": `no signal ""`,
	} {
		if got, err := ParseSignalSpec(in); !errors.Is(err, ErrSignal) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSignalSpec(%q) = %+v, %v; want %s", in, got, err, want)
		}
	}
}

func FuzzParseSignalSpec(f *testing.F) {
	for _, s := range []string{"USR1", "B:USR1@60", "RB:RTMIN+2@5", ":", "@", "B:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		spec, err := ParseSignalSpec(s)
		if err == nil && (spec.Signal < 1 || spec.Signal > MaxSignal || spec.Before < 0 || spec.Before > MaxSignalBefore) {
			t.Fatalf("%q is %+v", s, spec)
		}
	})
}

func TestExpandPattern(t *testing.T) {
	single := PatternVars{JobID: 123, StepID: "batch", User: "ada", Name: "my job", Host: "n1.example.org", NodeIndex: 2, Rank: 5, Restarts: 1}
	array := single
	array.IsArray, array.ArrayJob, array.Task = true, 120, 17
	for _, c := range []struct {
		pattern string
		vars    PatternVars
		want    string
	}{
		{"slurm-%j.out", single, "slurm-123.out"}, {"slurm-%A_%a.out", array, "slurm-120_17.out"}, {"%x-%j.out", single, "my job-123.out"},
		{"%5j", single, "00123"}, {"%05j", single, "00123"}, {"%2j", single, "123"}, {"%99j", single, "0000000123"}, {"%J", single, "123.batch"},
		{"%N_%n_%t_%u_%r_%s", single, "n1_2_5_ada_1_batch"}, {"%b", array, "7"}, {"%3b", array, "007"}, {"100%%_%j", single, "100%_123"},
		{`%j\`, single, "%j"}, {`a\%j`, single, "a%j"}, {"%q%", single, "%q%"}, {"%5x", single, "my job"}, {"%A_%a", single, "123_4294967294"},
		{"", single, ""}, {"%7", single, "%7"}, {DefaultOutput(false), single, "slurm-123.out"}, {DefaultOutput(true), array, "slurm-120_17.out"},
	} {
		if got := ExpandPattern(c.pattern, c.vars); got != c.want {
			t.Errorf("ExpandPattern(%q) = %q, want %q", c.pattern, got, c.want)
		}
	}
	long := single
	long.Name = strings.Repeat("x", MaxName)
	if n := len(ExpandPattern(strings.Repeat("%x", 1000), long)); n > maxFileName+MaxName {
		t.Errorf("a pattern grew to %d bytes", n)
	}
}

func FuzzExpandPattern(f *testing.F) {
	for _, s := range []string{"slurm-%j.out", "%5A_%a", `\%j`, "%", "%99999999999999999999j"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := ExpandPattern(s, PatternVars{JobID: 1, Name: "n"}); len(got) > len(s)*20+20 {
			t.Fatalf("%q grew to %d bytes", s, len(got))
		}
	})
}

func TestParseDependency(t *testing.T) {
	for in, want := range map[string]Dependency{
		"":           {},
		"afterok:12": {Terms: []DepTerm{{DepAfterOK, []DepJob{{ID: 12, Task: NoTask}}}}},
		"afterok:12:13,afterany:14_3": {Terms: []DepTerm{
			{DepAfterOK, []DepJob{{ID: 12, Task: NoTask}, {ID: 13, Task: NoTask}}}, {DepAfterAny, []DepJob{{ID: 14, Task: 3}}}}},
		"after:5+10?singleton": {Any: true, Terms: []DepTerm{{DepAfter, []DepJob{{ID: 5, Task: NoTask, Delay: 10 * minute}}}, {Type: DepSingleton}}},
		"aftercorr:7_*":        {Terms: []DepTerm{{DepAfterCorr, []DepJob{{ID: 7, Task: NoTask, All: true}}}}},
	} {
		got, err := ParseDependency(in)
		if err != nil || !reflect.DeepEqual(got, want) || got.String() != in {
			t.Errorf("ParseDependency(%q) = %+v (%s), %v", in, got, got, err)
		}
	}
	for in, want := range map[string]string{"12:13": "afterany:12:13", "AFTEROK:1": "afterok:1"} {
		if got, err := ParseDependency(in); err != nil || got.String() != want {
			t.Errorf("ParseDependency(%q) = %s, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{
		"afterok": "needs a job id", "afterok:": "needs a job id", "afterok:x": `"x" is not a job id`, "afterok:0": `"0"`, "bogus:1": `"bogus"`,
		"afterok:1,after:2?singleton": "both", "afterok:1+5": "only after", "after:1+x": "minutes", "singleton:1": "takes no", ",": `""`,
		"afterok:1_x": "task number", "afterok:1::2": `"" is not`, "after:1+4294967294": "minutes", "afterok:4294967296": "job id",
	} {
		if got, err := ParseDependency(in); !errors.Is(err, ErrDependency) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseDependency(%q) = %s, %v; want %s", in, got, err, want)
		}
	}
	if _, err := ParseDependency("afterok" + strings.Repeat(":1", MaxDependencies)); err != nil {
		t.Errorf("MaxDependencies: %v", err)
	}
	if _, err := ParseDependency("afterok" + strings.Repeat(":1", MaxDependencies+1)); err == nil || !strings.Contains(err.Error(), "MaxDependencies") {
		t.Errorf("MaxDependencies + 1: %v", err)
	}
	if _, err := ParseDependency("afterok:" + strings.Repeat("1", MaxList)); err == nil || !strings.Contains(err.Error(), "MaxList") {
		t.Errorf("MaxList + 1: %v", err)
	}
}

func FuzzParseDependency(f *testing.F) {
	for _, s := range []string{"afterok:12:13,afterany:14_3", "after:5+10?singleton", "12", "afterok:", "a:1,b:2?c:3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDependency(s)
		if err != nil {
			return
		}
		back, err := ParseDependency(d.String())
		if err != nil || back.String() != d.String() {
			t.Fatalf("%q: %s, then %s, %v", s, d, back, err)
		}
	})
}
