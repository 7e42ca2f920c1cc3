package hostlist

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestExpand(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"n1":                     "n1",
		"node[01-03,05]":         "node01 node02 node03 node05",
		"a[1-2]b[1-2]":           "a1b1 a1b2 a2b1 a2b2",
		"rack[0-1]_blade[0-1]":   "rack0_blade0 rack0_blade1 rack1_blade0 rack1_blade1",
		"n[01-3]":                "n01 n02 n03",
		"n[1-3,7,010-012],gpu01": "n1 n2 n3 n7 n010 n011 n012 gpu01",
		"ml-16-node-[001-002,004],ml-17-node-[001-003]": "ml-16-node-001 ml-16-node-002 ml-16-node-004 ml-17-node-001 ml-17-node-002 ml-17-node-003",
		"n[1-3]-ib":  "n1-ib n2-ib n3-ib",
		"n[9-11]":    "n9 n10 n11",
		"n[09-11]":   "n09 n10 n11",
		"[1-2]":      "1 2",
		"[08-10]x":   "08x 09x 10x",
		"b,a,a":      "b a a",
		"a,,b,":      "a b",
		"a b\tc\nd":  "a b c d",
		"n[1][2]":    "n12",
		"n[0]":       "n0",
		"n[000-001]": "n000 n001",
		"x[1,1]":     "x1 x1",
		"n[99-101]":  "n99 n100 n101",
	} {
		got, err := Expand(in)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("Expand(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"a]b[1-2]":                `invalid hostlist "a]b[1-2]": ']' before '['`,
		"ok,node]1-2[":            `invalid hostlist "node]1-2[": ']' before '['`,
		"node[3-1]":               `invalid hostlist "node[3-1]": range "3-1": 3 is above 1`,
		"node[1":                  `invalid hostlist "node[1": '[' is not closed`,
		"n[[1]]":                  `invalid hostlist "n[[1]]": '[' inside '['`,
		"n[]":                     `invalid hostlist "n[]": empty range '[]'`,
		"n[1,,2]":                 `invalid hostlist "n[1,,2]": empty range in '[1,,2]'`,
		"n[1-]":                   `invalid hostlist "n[1-]": range "1-": "" is not a number of at most 18 digits`,
		"n[-3]":                   `invalid hostlist "n[-3]": range "-3": "" is not a number of at most 18 digits`,
		"n[a-b]":                  `invalid hostlist "n[a-b]": range "a-b": "a" is not a number of at most 18 digits`,
		"n[1-2-3]":                `invalid hostlist "n[1-2-3]": range "1-2-3": "2-3" is not a number of at most 18 digits`,
		"node[0-2000000]":         `invalid hostlist "node[0-2000000]": more than 65536 hosts`,
		"n[0-999][0-999]":         `invalid hostlist "n[0-999][0-999]": more than 65536 hosts`,
		"n\x01":                   `invalid hostlist "n\x01": character '\x01' cannot be part of a host name`,
		"n[1 -2]":                 `invalid hostlist "n[1 -2]": character ' ' cannot be part of a host name`,
		"n[1234567890123456789]":  `invalid hostlist "n[1234567890123456789]": range "1234567890123456789": "1234567890123456789" is not a number of at most 18 digits`,
		"n[0-999999999999999999]": `invalid hostlist "n[0-999999999999999999]": more than 65536 hosts`,
	} {
		got, err := Expand(in)
		if err == nil || err.Error() != want {
			t.Errorf("Expand(%q) = %d hosts, %v; want %s", in, len(got), err, want)
		}
		if syntax := new(SyntaxError); !errors.As(err, &syntax) {
			t.Errorf("Expand(%q): %T", in, err)
		}
	}
}

func TestLimits(t *testing.T) {
	if got, err := Expand("n[0-65535]"); err != nil || len(got) != MaxHosts {
		t.Errorf("at MaxHosts: %d, %v", len(got), err)
	}
	if _, err := Expand("n[0-65535],m"); err == nil || !strings.Contains(err.Error(), "65536") {
		t.Errorf("at MaxHosts+1: %v", err)
	}
	if got, err := ExpandMax("n[1-3]", 3); err != nil || len(got) != 3 {
		t.Errorf("ExpandMax at its limit: %v", err)
	}
	if _, err := ExpandMax("n[1-4]", 3); err == nil {
		t.Error("ExpandMax took one more than its limit")
	}
	if _, err := Expand(strings.Repeat("x", MaxName)); err != nil {
		t.Errorf("at MaxName: %v", err)
	}
	if _, err := Expand(strings.Repeat("x", MaxName+1)); err == nil || !strings.Contains(err.Error(), "255") {
		t.Errorf("at MaxName+1: %v", err)
	}
	if _, err := Expand(strings.Repeat("x", MaxName-2) + "[1-100]"); err == nil {
		t.Error("a range made a name of MaxName+1")
	}
	if _, err := Expand(strings.Repeat("x,", MaxPattern/2) + "x"); err == nil || !strings.Contains(err.Error(), "4194304") {
		t.Errorf("at MaxPattern+1: %v", err)
	}
}

func TestCompress(t *testing.T) {
	for in, want := range map[string]string{
		"":                            "",
		"n1":                          "n1",
		"node01,node02,node03,node05": "node[01-03,05]",
		"n1,n2,n10":                   "n[1-2,10]",
		"b,a,a":                       "b,a,a",
		"n9,n10,n11":                  "n[9-11]",
		"n09,n10,n11":                 "n[09-11]",
		"n01,n2":                      "n[01,2]",
		"n2,n1":                       "n[2,1]",
		"n1,n1":                       "n[1,1]",
		"a1,b1,a2":                    "a1,b1,a2",
		"n1-ib,n2-ib":                 "n1-ib,n2-ib",
		"1,2,3":                       "[1-3]",
		"rack0n0,rack0n1,rack1n0":     "rack0n[0-1],rack1n0",
		"n,n1,n2":                     "n,n[1-2]",
		"n99,n100":                    "n[99-100]",
		"n099,n100":                   "n[099-100]",
	} {
		var names []string
		if in != "" {
			names = strings.Split(in, ",")
		}
		got := Compress(names)
		if got != want {
			t.Errorf("Compress(%q) = %q, want %q", in, got, want)
		}
		if back, err := Expand(got); err != nil || !slices.Equal(back, names) {
			t.Errorf("Expand(Compress(%q)) = %q, %v", in, back, err)
		}
	}
}

func TestCompressSorted(t *testing.T) {
	for in, want := range map[string]string{
		"b,a,a":        "a,b",
		"n10,n2,n1,n2": "n[1-2,10]",
		"n02,n1,n3":    "n[1,02,3]",
		"z1,a2,a1,z1":  "a[1-2],z1",
		"n3,n,n1":      "n,n[1,3]",
	} {
		if got := CompressSorted(strings.Split(in, ",")); got != want {
			t.Errorf("CompressSorted(%q) = %q, want %q", in, got, want)
		}
	}
}

// Names made of a few letters and digits, so that prefixes and neighbours repeat.
func TestCompressProperty(t *testing.T) {
	name := rapid.StringMatching(`(n|node|a-)?(0|1|2|9|09|10|11|99|100|1234567890123456789012)?(b)?([0-3]{1,2})?`).Filter(func(s string) bool { return s != "" })
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOf(name).Draw(t, "names")
		folded := Compress(names)
		back, err := Expand(folded)
		if err != nil || !slices.Equal(back, names) {
			t.Fatalf("%q folds to %q, which is %q, %v", names, folded, back, err)
		}
		sorted, err := Expand(CompressSorted(names))
		if err != nil || !slices.IsSortedFunc(sorted, Compare) || len(slices.Compact(sorted)) != len(sorted) {
			t.Fatalf("CompressSorted(%q) is %q, %v", names, sorted, err)
		}
		for _, n := range names {
			if !slices.Contains(sorted, n) {
				t.Fatalf("%q is missing in %q", n, sorted)
			}
		}
	})
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"node[01-03,05]", "a[1-2]b[1-2]", "a]b[1-2]", "n[1", "n[3-1]", "n[0-2000000]", "n[1-3]-ib,x", "[1-2]", "n[]", "n[09-11],n1,n2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		names, err := ExpandMax(s, 2000)
		if err != nil {
			return
		}
		back, err := Expand(Compress(names))
		if err != nil || !slices.Equal(back, names) {
			t.Fatalf("%q: %q folds to %q: %q, %v", s, names, Compress(names), back, err)
		}
	})
}
