package sched

import (
	"strings"
	"testing"
)

func TestFeatures(t *testing.T) {
	has := []string{"a", "b"}
	for _, tt := range []struct {
		text string
		want bool
	}{
		{"a", true}, {"c", false}, {"a&b", true}, {"a,b", true}, {"a&c", false}, {"c|a", true},
		{"c&d|a", true}, {"a|c&d", false}, {"a|(c&d)", true}, {" a & ( b | c ) ", true},
	} {
		f, err := parseFeatures(tt.text)
		if err != nil || f.match(has) != tt.want {
			t.Errorf("%q: match %v, error %v", tt.text, !tt.want, err)
		}
	}
	for _, text := range []string{"", "&", "a&", "a|", "(a", "a)", "()", "a*2", "[a|b]", "a b",
		strings.Repeat("(", maxNesting+1) + "a" + strings.Repeat(")", maxNesting+1),
		strings.Repeat("a&", maxFeatures) + "a"} {
		if _, err := parseFeatures(text); err == nil {
			t.Errorf("%.40q was accepted", text)
		}
	}
	for _, text := range []string{strings.Repeat("(", maxNesting) + "a" + strings.Repeat(")", maxNesting),
		strings.Repeat("a&", maxFeatures-1) + "a"} {
		if _, err := parseFeatures(text); err != nil {
			t.Errorf("at the limit: %v", err)
		}
	}
}

func FuzzFeatures(f *testing.F) {
	for _, seed := range []string{"a", "a&b|c", "(a|b)&c", "((", "a&", "\x00", "é|a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if e, err := parseFeatures(text); err == nil {
			e.match([]string{"a"})
		}
	})
}
