// Package gres holds generic resources (GPUs, shards, licences of a node): what is asked for, what a node has,
// and which devices a request gets. It is pure and knows no driver.
package gres

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limits of one specification.
const (
	MaxItems = 64      // resources in one list
	MaxWord  = 64      // bytes of a name or type
	MaxCount = 1 << 53 // of one resource, so that sums cannot overflow
	MaxIndex = 4096    // devices of one resource on one node
)

// Item is a number of one resource. Type may be empty: any type will do.
type Item struct {
	Name  string // "gpu"
	Type  string // "a100"
	Count uint64
}

// Invalid is Slurm's line for a specification that cannot be read or met.
const Invalid = "Invalid generic resource (gres) specification"

// Error says which word of a specification is wrong and why.
type Error struct{ Word, Problem string }

// Error begins with Slurm's line.
func (e *Error) Error() string { return fmt.Sprintf("%s: %q: %s", Invalid, e.Word, e.Problem) }

func bad(word, format string, args ...any) error {
	if len(word) > MaxWord {
		word = word[:MaxWord] + "..."
	}
	return &Error{Word: word, Problem: fmt.Sprintf(format, args...)}
}

// Parse reads a request, name[:type][:count] joined by commas: gpu:a100:2,shard:4. A count may end in k, m, g or
// t (1024-based) and is 1 when not given; "none" and "" ask for nothing. Equal resources are added up.
// The order is kept. The error is an *Error.
func Parse(s string) ([]Item, error) {
	if s == "" || strings.EqualFold(s, "none") {
		return nil, nil
	}
	if strings.Count(s, ",") >= MaxItems {
		return nil, bad(s, "more than %d resources", MaxItems)
	}
	var items []Item
	for _, word := range strings.Split(s, ",") {
		item, err := parseItem(word)
		if err != nil {
			return nil, err
		}
		if items, err = add(items, item); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func parseItem(word string) (Item, error) {
	parts := strings.Split(strings.TrimPrefix(word, "gres/"), ":")
	item := Item{Name: parts[0], Count: 1}
	if !isName(item.Name) {
		return item, bad(word, "%q is not a resource name", item.Name)
	}
	if strings.EqualFold(item.Name, "none") {
		return item, bad(word, "none stands alone")
	}
	rest := parts[1:]
	if n := len(rest); n > 0 {
		count, ok, err := parseCount(rest[n-1])
		if err != nil {
			return item, bad(word, "%v", err)
		}
		if ok {
			item.Count, rest = count, rest[:n-1]
		} else if n > 1 {
			return item, bad(word, "%q is not a count", rest[n-1])
		}
	}
	switch {
	case len(rest) > 1:
		return item, bad(word, "more than name:type:count")
	case len(rest) == 1:
		if item.Type = rest[0]; !isType(item.Type) {
			return item, bad(word, "%q is neither a type nor a count", item.Type)
		}
	}
	return item, nil
}

// parseCount reads digits with an optional unit; ok is false when s is another kind of word.
func parseCount(s string) (n uint64, ok bool, err error) {
	digits := strings.TrimRight(s, "kKmMgGtT")
	if digits == "" || len(s)-len(digits) > 1 || strings.Trim(digits, "0123456789") != "" {
		return 0, false, nil
	}
	n, err = strconv.ParseUint(digits, 10, 64)
	shift := 0
	if len(digits) < len(s) {
		shift = 10 * (1 + strings.IndexByte("kmgt", s[len(digits)]|0x20))
	}
	if err != nil || n > MaxCount>>shift {
		return 0, true, fmt.Errorf("count %s is above the limit of %d", s, int64(MaxCount))
	}
	return n << shift, true, nil
}

func isName(s string) bool { return isWord(s) && isLetter(s[0]) }

func isType(s string) bool { return isWord(s) && (isLetter(s[0]) || '0' <= s[0] && s[0] <= '9') }

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isWord(s string) bool {
	if s == "" || len(s) > MaxWord {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case isLetter(c), '0' <= c && c <= '9':
		case c == '_' || c == '-' || c == '.' || c == '+':
		default:
			return false
		}
	}
	return true
}

// add puts item to items, into an equal resource when there is one.
func add(items []Item, item Item) ([]Item, error) {
	i := slices.IndexFunc(items, func(o Item) bool { return o.Name == item.Name && o.Type == item.Type })
	if i < 0 {
		return append(items, item), nil
	}
	if items[i].Count > MaxCount-item.Count {
		return nil, bad(item.String(), "the sum is above the limit of %d", int64(MaxCount))
	}
	items[i].Count += item.Count
	return items, nil
}

// Sum adds up lists: equal resources once, in the order in which they come. Sums stop at the largest uint64.
func Sum(lists ...[]Item) []Item {
	var sum []Item
	for _, list := range lists {
		for _, item := range list {
			i := slices.IndexFunc(sum, func(o Item) bool { return o.Name == item.Name && o.Type == item.Type })
			switch {
			case i < 0:
				sum = append(sum, item)
			case sum[i].Count > math.MaxUint64-item.Count:
				sum[i].Count = math.MaxUint64
			default:
				sum[i].Count += item.Count
			}
		}
	}
	return sum
}

// Total is how many of a resource the items hold, of all types.
func Total(items []Item, name string) uint64 {
	var n uint64
	for _, item := range items {
		if item.Name == name {
			if n > math.MaxUint64-item.Count {
				return math.MaxUint64
			}
			n += item.Count
		}
	}
	return n
}

// Times is the items, n times. It stops at the largest uint64.
func Times(items []Item, n uint64) []Item {
	out := slices.Clone(items)
	for i := range out {
		if n > 0 && out[i].Count > math.MaxUint64/n {
			out[i].Count = math.MaxUint64
		} else {
			out[i].Count *= n
		}
	}
	return out
}

// String writes name:type:count or name:count.
func (i Item) String() string {
	count := strconv.FormatUint(i.Count, 10)
	if i.Type == "" {
		return i.Name + ":" + count
	}
	return i.Name + ":" + i.Type + ":" + count
}

// Format writes items as Parse reads them.
func Format(items []Item) string {
	var b strings.Builder
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(item.String())
	}
	return b.String()
}
