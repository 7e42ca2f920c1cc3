package job

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustArray(t testing.TB, spec string) *Set {
	t.Helper()
	set, _, err := ParseArray(spec, MaxArrayIndex)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// The texts are those that squeue shows for these arrays.
func TestParseArray(t *testing.T) {
	for _, c := range []struct {
		spec, text string
		limit      uint32
		len        int
	}{
		{"0-4", "0-4", 0, 5}, {"1-5:2", "1,3,5", 0, 3}, {"1-5%2", "1-5", 2, 5}, {"0,3-5", "0,3-5", 0, 4}, {"[1-3]", "1-3", 0, 3},
		{"01-03", "1-3", 0, 3}, {"1-3,2-4", "1-4", 0, 4}, {"1-10:3%2", "1,4,7,10", 2, 4}, {"3", "3", 0, 1}, {"1,,2", "1-2", 0, 2},
		{"[1-3%2]", "1-3", 2, 3}, {"[1-3]%2", "1-3", 2, 3}, {"5,4,3", "3-5", 0, 3}, {"1,1,1", "1", 0, 1}, {"1-20:2", "1-19:2", 0, 10},
		{"0-100:50", "0-100:50", 0, 3}, {"1-2:9", "1", 0, 1}, {"0-10:2,1-9:2", "0-10", 0, 11}, {"0-20:2,3-5", "0,2-6,8,10,12,14,16,18,20", 0, 13},
		{"0-999999", "0-999999", 0, 1000000}, {"1-5%0", "1-5", 0, 5}, {"2,4,6,8,10,12,14", "2-14:2", 0, 7}, {"0-3,5,7,9,11,13", "0-3,5,7,9,11,13", 0, 9},
	} {
		set, limit, err := ParseArray(c.spec, MaxArrayIndex)
		if err != nil {
			t.Errorf("ParseArray(%q): %v", c.spec, err)
			continue
		}
		if set.String() != c.text || limit != c.limit || set.Len() != c.len {
			t.Errorf("ParseArray(%q) = %s, %d, length %d; want %s, %d, %d", c.spec, set, limit, set.Len(), c.text, c.limit, c.len)
		}
		if again := mustArray(t, set.String()); !again.Equal(set) {
			t.Errorf("%s reads back as %s", set, again)
		}
	}
	if set := mustArray(t, "0-999999"); len(set.runs) != 1 {
		t.Errorf("0-999999 is %d runs", len(set.runs))
	}
}

func TestParseArrayRefuses(t *testing.T) {
	for spec, want := range map[string]string{
		"5-1": "5 is above 1", "-1": `"-1" is not a task number: it may not be negative`, "a": `"a"`, "1-": `""`, "1-2000000": "MaxArraySize is 1001", "1001": "MaxArraySize",
		"": "no task", ",": "no task", "[]": "no task", "[1-3": "not closed", "1-3]": `"3]"`, "1%": "is not a number of tasks", "1%a": `"a"`,
		"1-5:0": "step", "1:2": "no range", "1-5:": "step", "1 2": `"1 2"`, "1-3-5": `"3-5"`, "%2": "no task", "[": "not closed",
		"99999999999999999999": "too large", "1%4294967296": "not a number of tasks",
	} {
		if set, _, err := ParseArray(spec, 1001); !errors.Is(err, ErrArraySpec) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseArray(%q) = %s, %v; want %s", spec, set, err, want)
		}
	}
	if _, _, err := ParseArray("0-1000", 1001); err != nil {
		t.Errorf("MaxArraySize - 1: %v", err)
	}
	if _, _, err := ParseArray("0-3999999", 0); err != nil {
		t.Errorf("MaxArrayIndex - 1: %v", err)
	}
	if _, _, err := ParseArray("4000000", 1<<32-1); err == nil {
		t.Error("MaxArrayIndex was taken")
	}
	if _, _, err := ParseArray(strings.Repeat("1,", MaxList/2), 10); err != nil {
		t.Errorf("MaxList: %v", err)
	}
	if _, _, err := ParseArray(strings.Repeat("1,", MaxList/2)+"1", 10); err == nil || !strings.Contains(err.Error(), "MaxList") {
		t.Errorf("MaxList + 1: %v", err)
	}
	if _, _, err := ParseArray(strings.Repeat("0-3999999:2,", 5), 0); err == nil || !strings.Contains(err.Error(), "limit is 8000000") {
		t.Errorf("maxListed: %v", err)
	}
}

func TestArrayText(t *testing.T) {
	list := mustArray(t, "1,3,5,8,11,13,15,18,21,23,25,28,31,33,35,38,41,43,45,48,51,53,55,58")
	for _, c := range []struct {
		set   *Set
		limit uint32
		most  int
		want  string
	}{
		{mustArray(t, "1-5"), 2, 64, "[1-5%2]"}, {mustArray(t, "1,3,5-9"), 3, 64, "[1,3,5-9%3]"}, {mustArray(t, "3"), 0, 64, "[3]"},
		{list, 0, 0, "[" + list.String() + "]"},
		{list, 7, 64, "[" + list.String()[:60] + "...%7]"},
	} {
		if got := ArrayText(c.set, c.limit, c.most); got != c.want {
			t.Errorf("ArrayText(%s) = %q, want %q", c.set, got, c.want)
		}
	}
}

func TestSetBasics(t *testing.T) {
	var none *Set
	if none.Len() != 0 || none.Contains(0) || none.Min() != 0 || none.Max() != 0 || none.String() != "" || none.Without(3).Len() != 0 {
		t.Error("nil is not the empty set")
	}
	s := mustArray(t, "1-9:2")
	if s.Min() != 1 || s.Max() != 9 || s.Step() != 2 || s.Len() != 5 || s.Contains(2) || !s.Contains(9) || s.Contains(10) {
		t.Errorf("1-9:2: %v", s.runs)
	}
	if mustArray(t, "1,5").Step() != 4 || mustArray(t, "1,2,5").Step() != 1 || mustArray(t, "7").Step() != 1 {
		t.Error("step of a list")
	}
	before := s.String()
	s.Without(5)
	if s.String() != before {
		t.Error("Without changed the set")
	}
	n := 0
	for range s.All() {
		if n++; n == 2 {
			break
		}
	}
	top := NewSet(1<<32-1, 1<<32-2, 0)
	if top.Len() != 3 || top.Without(1<<32-1).Len() != 2 || top.WithoutSet(top).Len() != 0 || !top.Intersect(top).Equal(top) {
		t.Errorf("the greatest numbers: %s", top)
	}
}

// Starting the tasks of a large array one after the other must not walk the array each time.
func TestWithoutKeepsRuns(t *testing.T) {
	s := mustArray(t, "0-3999999")
	for n := range uint32(1000) {
		s = s.Without(n)
	}
	if len(s.runs) != 1 || s.Len() != 3999000 {
		t.Errorf("%d runs, %d tasks", len(s.runs), s.Len())
	}
}

func anySet(t *rapid.T, label string) (*Set, map[uint32]bool) {
	words := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
		return rapid.StringMatching(`[0-9]{1,2}|[0-4]?[0-9]-[5-9][0-9](:[1-9])?`).Draw(t, "range")
	}), 0, 6).Draw(t, label)
	member := map[uint32]bool{}
	if len(words) == 0 {
		return &Set{}, member
	}
	set, _, err := ParseArray(strings.Join(words, ","), 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		run, err := parseRun(w, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for n := run.first; n <= run.last; n += run.step {
			member[n] = true
		}
	}
	return set, member
}

func sorted(member map[uint32]bool) []uint32 {
	numbers := make([]uint32, 0, len(member))
	for n := range member {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return numbers
}

// checkSet compares a set with a plain list, and its runs with their invariant.
func checkSet(t *rapid.T, what string, s *Set, want []uint32) {
	if got := slices.Collect(s.All()); !slices.Equal(got, want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	if s.Len() != len(want) || len(want) > 0 && (s.Min() != want[0] || s.Max() != want[len(want)-1]) {
		t.Fatalf("%s: length %d, %d to %d", what, s.Len(), s.Min(), s.Max())
	}
	for i, r := range s.runs {
		if r.first > r.last || r.step == 0 || (r.last-r.first)%r.step != 0 || r.first == r.last && r.step != 1 || i > 0 && s.runs[i-1].last >= r.first {
			t.Fatalf("%s: runs %v", what, s.runs)
		}
	}
	b, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	back, err := UnmarshalSet(b)
	if err != nil || !slices.Equal(back.runs, s.runs) {
		t.Fatalf("%s: %v reads back as %v, %v", what, s.runs, back, err)
	}
}

func TestSetProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, inA := anySet(t, "a")
		b, inB := anySet(t, "b")
		checkSet(t, "a", a, sorted(inA))
		checkSet(t, "new", NewSet(sorted(inA)...), sorted(inA))
		minus, both := map[uint32]bool{}, map[uint32]bool{}
		for n := range inA {
			if inB[n] {
				both[n] = true
			} else {
				minus[n] = true
			}
		}
		checkSet(t, a.String()+" without "+b.String(), a.WithoutSet(b), sorted(minus))
		checkSet(t, a.String()+" and "+b.String(), a.Intersect(b), sorted(both))
		n := rapid.Uint32Range(0, 110).Draw(t, "n")
		if a.Contains(n) != inA[n] {
			t.Fatalf("%s contains %d: %v", a, n, !inA[n])
		}
		delete(inA, n)
		checkSet(t, "without one", a.Without(n), sorted(inA))
		if a.Equal(b) != slices.Equal(slices.Collect(a.All()), slices.Collect(b.All())) {
			t.Fatalf("%s equals %s: %v", a, b, a.Equal(b))
		}
	})
}

func FuzzParseArray(f *testing.F) {
	for _, s := range []string{"0-4", "1-9:2%3", "[1-3%2]", "1,,2", "0-20:2,3-5", "5-1", "1-", "["} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, limit, err := ParseArray(s, 5000)
		if err != nil {
			return
		}
		text := strings.Trim(ArrayText(set, limit, 0), "[]")
		back, again, err := ParseArray(text, 5000)
		if err != nil || again != limit || !back.Equal(set) {
			t.Fatalf("%q is %q, which is %s, %v", s, text, back, err)
		}
	})
}

func FuzzUnmarshalSet(f *testing.F) {
	for _, s := range []string{"0-4", "1-20:2", "1,5,6,900"} {
		b, _ := mustArray(f, s).MarshalBinary()
		f.Add(b)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := UnmarshalSet(b)
		if err != nil {
			return
		}
		if again, _ := s.MarshalBinary(); !bytes.Equal(again, b) {
			t.Fatalf("%x is %v, written %x", b, s.runs, again)
		}
	})
}
