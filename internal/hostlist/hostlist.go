// Package hostlist turns Slurm's folded host names into lists and back:
// node[01-03,05] is node01, node02, node03, node05. It does no look-ups and knows no node.
package hostlist

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of one list. A pattern that goes over one of them is refused with the limit named.
const (
	MaxHosts   = 65536   // names in one list
	MaxName    = 255     // bytes of one name
	MaxPattern = 4 << 20 // bytes of a folded list
	maxDigits  = 18      // digits of a number in a range, so that it fits 64 bits with room to count on
)

// SyntaxError says which pattern is wrong and what is wrong with it.
type SyntaxError struct {
	Pattern string // the comma-separated item that is at fault, shortened when long
	Problem string
}

// Error names the pattern and the problem.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid hostlist %q: %s", e.Pattern, e.Problem)
}

func fault(pattern, format string, args ...any) error {
	const shown = 100
	if len(pattern) > shown {
		pattern = pattern[:shown] + "..."
	}
	return &SyntaxError{Pattern: pattern, Problem: fmt.Sprintf(format, args...)}
}

// Expand lists the hosts of s, in the order given, repeats included. An empty s has none.
// The error is a *SyntaxError.
func Expand(s string) ([]string, error) { return ExpandMax(s, MaxHosts) }

// ExpandMax is Expand with another limit on the number of hosts.
func ExpandMax(s string, most int) ([]string, error) {
	if len(s) > MaxPattern {
		return nil, fault(s, "%d bytes, the limit is %d", len(s), MaxPattern)
	}
	items, err := split(s)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, item := range items {
		p, err := parse(item)
		if err != nil {
			return nil, err
		}
		n := p.count(most + 1)
		if n > most-len(hosts) {
			return nil, fault(s, "more than %d hosts", most)
		}
		if p.longest() > MaxName {
			return nil, fault(item, "a name of %d bytes, the limit is %d", p.longest(), MaxName)
		}
		hosts = p.appendTo(slices.Grow(hosts, n))
	}
	return hosts, nil
}

// split cuts s at the commas and blanks that stand outside brackets and checks the brackets.
func split(s string) ([]string, error) {
	var items []string
	start, open := 0, -1
	flush := func(end int) {
		if end > start {
			items = append(items, s[start:end])
		}
		start = end + 1
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c == '[' && open >= 0:
			return nil, fault(itemAt(s, start), "'[' inside '['")
		case c == '[':
			open = i
		case c == ']' && open < 0:
			return nil, fault(itemAt(s, start), "']' before '['")
		case c == ']':
			open = -1
		case (c == ',' || c == ' ' || c == '\t' || c == '\n') && open < 0:
			flush(i)
		case c <= ' ' || c >= 0x7f:
			return nil, fault(itemAt(s, start), "character %q cannot be part of a host name", c)
		}
	}
	if open >= 0 {
		return nil, fault(s[start:], "'[' is not closed")
	}
	flush(len(s))
	return items, nil
}

// itemAt gives the item that begins at start, for an error.
func itemAt(s string, start int) string {
	if i := strings.IndexAny(s[start:], ", \t\n"); i >= 0 && !strings.Contains(s[start:start+i], "[") {
		return s[start : start+i]
	}
	return s[start:]
}
