package gres

import (
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// Resource is what a node has of one resource, and the sockets it is near to.
type Resource struct {
	Item
	Sockets []uint32 // of "(S:0-1)"; empty = not said
}

// ParseInventory reads what a node has: name[:type][:count][(S:sockets)], joined by commas: gpu:a100:4(S:0),shard:16.
// Equal resources stay apart when their sockets differ. The error is an *Error.
func ParseInventory(s string) ([]Resource, error) {
	if s == "" || strings.EqualFold(s, "none") || s == "(null)" {
		return nil, nil
	}
	words, err := splitOutside(s)
	if err != nil {
		return nil, err
	}
	var list []Resource
	for _, word := range words {
		body, tail, hasTail := strings.Cut(word, "(")
		item, err := parseItem(body)
		if err != nil {
			return nil, err
		}
		r := Resource{Item: item}
		if hasTail {
			sockets, ok := strings.CutPrefix(strings.TrimSuffix(tail, ")"), "S:")
			if !ok {
				return nil, bad(word, "after the count only (S:sockets) is known")
			}
			if r.Sockets, err = parseNumbers(word, sockets); err != nil {
				return nil, err
			}
		}
		list = append(list, r)
	}
	return list, nil
}

// Items drops the sockets and adds up equal resources.
func Items(inventory []Resource) []Item {
	items := make([]Item, len(inventory))
	for i, r := range inventory {
		items[i] = r.Item
	}
	return Sum(items)
}

// splitOutside cuts s at the commas that stand outside parentheses.
func splitOutside(s string) ([]string, error) {
	var words []string
	start, open := 0, false
	for i := range len(s) {
		switch {
		case s[i] == '(' && !open:
			open = true
		case s[i] == ')' && open:
			open = false
			if i+1 < len(s) && s[i+1] != ',' {
				return nil, bad(s, "%q after ')'", s[i+1:])
			}
		case s[i] == '(' || s[i] == ')':
			return nil, bad(s, "parentheses do not pair up")
		case s[i] == ',' && !open:
			words = append(words, s[start:i])
			start = i + 1
		}
		if len(words) >= MaxItems {
			return nil, bad(s, "more than %d resources", MaxItems)
		}
	}
	if open {
		return nil, bad(s, "'(' is not closed")
	}
	return append(words, s[start:]), nil
}

// parseNumbers reads 0-1,3: ascending, each once, at most MaxIndex of them.
func parseNumbers(word, s string) ([]uint32, error) {
	if strings.ContainsAny(s, "[] \t\n") || s == "" {
		return nil, bad(word, "%q is not a list of numbers", s)
	}
	names, err := hostlist.ExpandMax("["+s+"]", MaxIndex)
	if err != nil {
		return nil, bad(word, "%q is not a list of at most %d numbers", s, MaxIndex)
	}
	numbers := make([]uint32, len(names))
	for i, name := range names {
		var n uint64
		for _, c := range []byte(name) {
			n = n*10 + uint64(c-'0')
		}
		if n >= MaxIndex || i > 0 && uint32(n) <= numbers[i-1] {
			return nil, bad(word, "%q is not ascending below %d", s, MaxIndex)
		}
		numbers[i] = uint32(n)
	}
	return numbers, nil
}
