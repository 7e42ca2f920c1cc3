package partitions

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestFeatureMatch(t *testing.T) {
	for _, tt := range []struct {
		text string
		yes  string // nodes, each by its features
		no   string
	}{
		{"a", "a ab", "b -"},
		{"a&b", "ab abc", "a b"},
		{"a,b", "ab", "a b"},
		{"a|b", "a b ab", "c -"},
		{"a|b&c", "ac bc", "a b c"},  // (a|b)&c
		{"a&b|c", "ab c", "a b"},     // (a&b)|c
		{"a&(b|c)", "ab ac", "a bc"}, //
		{"(a|b)&(c|d)", "ac bd", "ab"},
		{"((a))", "a", "b"},
		{" a & b ", "ab", "a"},
		{"a*3", "a b -", ""}, // a count keeps no node out
		{"b&a*3", "b ab", "a"},
		{"[a*2&b*4]", "a b c", ""},
		{"c&[a*2&b*4]", "c ac", "a"},
		{"[a|b]", "a b ab", "c"},
		{"c&[a|b]", "ac bc", "c ab"},
		{"[a|b]&c", "ac bc", "c ab"},
		{"[(a&b)|c]", "ab c", "a"},
		{"[a]", "a", "b"},
	} {
		f, err := ParseFeatures(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		for want, nodes := range map[bool]string{true: tt.yes, false: tt.no} {
			for _, node := range strings.Fields(nodes) {
				if got := f.Match(strings.Split(node, "")); got != want {
					t.Errorf("%s: node %s: %v", tt.text, node, got)
				}
			}
		}
	}
}

func TestFeatureParts(t *testing.T) {
	for _, tt := range []struct {
		text   string
		counts string
		masks  string // of a node with a and b: alternatives, counts
	}{
		{"a", "", "0 0"},
		{"a*3", "3 a", "0 1"},
		{"(a|b)*12", "12 (a|b)", "0 1"},
		{"[a*2&b*4]", "2 a, 4 b", "0 11"},
		{"c&[a*2,(b|c)*4]", "2 a, 4 (b|c)", "0 11"},
		{"[c*1&b*1]", "1 c, 1 b", "0 10"},
		{"[a|c|b]", "", "101 0"},
	} {
		f, err := ParseFeatures(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		var counts []string
		for _, c := range f.Counts() {
			counts = append(counts, fmt.Sprint(c.Nodes, " ", c.Text))
		}
		if got := strings.Join(counts, ", "); got != tt.counts {
			t.Errorf("%s: counts %q, want %q", tt.text, got, tt.counts)
		}
		has := []string{"a", "b"}
		if got := fmt.Sprintf("%b %b", f.Mask(has), f.CountMask(has)); got != tt.masks {
			t.Errorf("%s: masks %s, want %s", tt.text, got, tt.masks)
		}
		if f.Plain() != (tt.counts == "" && f.Choices() == 0) {
			t.Errorf("%s: plain is %v", tt.text, f.Plain())
		}
	}
}

func TestFeatureErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "at character 1: the name of a feature is missing",
		"a&":                                  "at character 3: the name of a feature is missing",
		"a&&b":                                "at character 3: the name of a feature is missing",
		"a b":                                 `at character 3: "b" is not expected here; & or | would be`,
		"a)":                                  `at character 2: ")" is not expected here`,
		"(a":                                  "at character 1: ( has no )",
		"(a&[b|c])":                           "at character 4: the name of a feature is missing",
		"(a*2&b)":                             `at character 3: "*" is not possible in parentheses`,
		"a*":                                  `at character 3: a number of nodes from 1 to 65536 is expected behind *, not ""`,
		"a*0":                                 `at character 3: a number of nodes from 1 to 65536`,
		"a*x":                                 `not "x"`,
		"a*65537":                             `not "65537"`,
		"a*2&b*3":                             "at character 5: several counts stand in one pair of brackets, as [a*2&b*4]",
		"a*2|b":                               "at character 4: counts and brackets are joined by &, not by |",
		"b|a*2":                               "at character 3: counts and brackets are joined by &, not by |",
		"a|[b|c]":                             "at character 3: counts and brackets are joined by &, not by |",
		"[a|b]|c":                             "at character 6: counts and brackets are joined by &, not by |",
		"[a|b]&[c|d]":                         "at character 7: only one pair of brackets",
		"a*2&[b|c]":                           "at character 5: only one pair of brackets",
		"[a|b]&c*2":                           "at character 7: several counts",
		"[a&b]":                               "at character 1: in brackets each part joined by & needs a count",
		"[a*2&b]":                             "at character 1: in brackets each part joined by & needs a count",
		"[a*2|b*2]":                           "at character 1: alternatives joined by | have no counts",
		"[a|b&c]":                             "at character 5: & and | are mixed in brackets",
		"[a|b":                                "at character 1: [ has no ]",
		"[]":                                  "at character 2: the name of a feature is missing",
		"[a(]":                                `at character 3: "(" is not expected here`,
		strings.Repeat("(", 40) + "a":         "more than 32 levels of parentheses",
		strings.Repeat("a&", 256) + "a":       "more than 256 features",
		"[" + strings.Repeat("a|", 64) + "a]": "more than 64 parts",
	} {
		_, err := ParseFeatures(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{strings.Repeat("a&", 255) + "a", "[" + strings.Repeat("a|", 63) + "a]",
		strings.Repeat("(", 32) + "a" + strings.Repeat(")", 32), "a*65536"} {
		if _, err := ParseFeatures(text); err != nil {
			t.Errorf("at the limit: %v", err)
		}
	}
}

// TestFeatureLeftToRight reads what was written out of a random list of names and operators.
func TestFeatureLeftToRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := rapid.StringMatching("[a-e]{0,4}").Draw(t, "node")
		var build func(depth int) (string, bool)
		build = func(depth int) (string, bool) {
			text, value := "", false
			for i := range rapid.IntRange(1, 4).Draw(t, "parts") {
				var part string
				var is bool
				if depth < 3 && rapid.IntRange(0, 3).Draw(t, "nest") == 0 {
					part, is = build(depth + 1)
					part = "(" + part + ")"
				} else {
					part = rapid.StringMatching("[a-e]").Draw(t, "name")
					is = strings.Contains(node, part)
				}
				switch op := rapid.SampledFrom([]string{"&", "|", ","}).Draw(t, "op"); {
				case i == 0:
					text, value = part, is
				case op == "|":
					text, value = text+"|"+part, value || is
				default:
					text, value = text+op+part, value && is
				}
			}
			return text, value
		}
		text, want := build(0)
		f, err := ParseFeatures(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Match(strings.Split(node, "")); got != want {
			t.Fatalf("%s on %q: %v", text, node, got)
		}
	})
}

func FuzzParseFeatures(f *testing.F) {
	for _, text := range []string{"a", "a&b|c", "[a*2&(b|c)*4]", "x&[a|b]", "a*3", "((a", "[", "*", "a,b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseFeatures(text)
		if err != nil {
			if c != nil {
				t.Error("both a result and an error")
			}
			return
		}
		has := []string{"a", "b"}
		c.Match(has)
		if c.Mask(has)>>c.Choices() > 0 && c.Choices() < 64 || c.CountMask(has)>>len(c.Counts()) > 0 && len(c.Counts()) < 64 {
			t.Error("a bit too many")
		}
		for _, k := range c.Counts() {
			if k.Nodes == 0 || k.Nodes > maxCount {
				t.Errorf("%d nodes", k.Nodes)
			}
		}
	})
}
