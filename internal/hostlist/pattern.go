package hostlist

import "strings"

// pattern is one item: literal text with groups of ranges between; len(text) == len(groups)+1.
type pattern struct {
	text   []string
	groups [][]span
}

// span is low-high, written with at least width digits.
type span struct {
	low, high uint64
	width     int
}

// parse reads one item whose brackets are known to pair up.
func parse(item string) (*pattern, error) {
	p := &pattern{}
	rest := item
	for {
		open := strings.IndexByte(rest, '[')
		if open < 0 {
			p.text = append(p.text, rest)
			return p, nil
		}
		end := open + strings.IndexByte(rest[open:], ']')
		group, err := parseGroup(item, rest[open+1:end])
		if err != nil {
			return nil, err
		}
		p.text = append(p.text, rest[:open])
		p.groups = append(p.groups, group)
		rest = rest[end+1:]
	}
}

func parseGroup(item, body string) ([]span, error) {
	if body == "" {
		return nil, fault(item, "empty range '[]'")
	}
	words := strings.Split(body, ",")
	group := make([]span, 0, len(words))
	for _, word := range words {
		if word == "" {
			return nil, fault(item, "empty range in '[%s]'", body)
		}
		low, high, isRange := strings.Cut(word, "-")
		s := span{width: len(low)}
		var ok bool
		if s.low, ok = number(low); !ok {
			return nil, fault(item, "range %q: %q is not a number of at most %d digits", word, low, maxDigits)
		}
		s.high = s.low
		if isRange {
			if s.high, ok = number(high); !ok {
				return nil, fault(item, "range %q: %q is not a number of at most %d digits", word, high, maxDigits)
			}
		}
		if s.low > s.high {
			return nil, fault(item, "range %q: %s is above %s", word, low, high)
		}
		group = append(group, s)
	}
	return group, nil
}

// number reads plain digits only: no sign, no blank.
func number(s string) (uint64, bool) {
	if s == "" || len(s) > maxDigits {
		return 0, false
	}
	var n uint64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + uint64(s[i]-'0')
	}
	return n, true
}

// count is the number of hosts, or most when there are at least that many.
func (p *pattern) count(most int) int {
	total := uint64(1)
	for _, g := range p.groups {
		var n uint64
		for _, s := range g {
			n += s.high - s.low + 1
			if n >= uint64(most) {
				return most
			}
		}
		if total *= n; total >= uint64(most) {
			return most
		}
	}
	return int(total)
}

// longest is the length in bytes of the longest name.
func (p *pattern) longest() int {
	n := 0
	for _, t := range p.text {
		n += len(t)
	}
	for _, g := range p.groups {
		widest := 0
		for _, s := range g {
			widest = max(widest, s.width, digits(s.high))
		}
		n += widest
	}
	return n
}

func digits(n uint64) int {
	d := 1
	for ; n >= 10; n /= 10 {
		d++
	}
	return d
}

// appendTo adds the hosts, the last group turning fastest.
func (p *pattern) appendTo(hosts []string) []string {
	return p.walk(hosts, make([]byte, 0, p.longest()), 0)
}

func (p *pattern) walk(hosts []string, name []byte, at int) []string {
	name = append(name, p.text[at]...)
	if at == len(p.groups) {
		return append(hosts, string(name))
	}
	for _, s := range p.groups[at] {
		for n := s.low; n <= s.high; n++ {
			hosts = p.walk(hosts, appendPadded(name, n, s.width), at+1)
		}
	}
	return hosts
}

// appendPadded writes n with leading zeros up to width.
func appendPadded(b []byte, n uint64, width int) []byte {
	for d := digits(n); d < width; d++ {
		b = append(b, '0')
	}
	at := len(b) + digits(n)
	for range digits(n) {
		b = append(b, 0)
	}
	for {
		at--
		b[at] = byte('0' + n%10)
		if n /= 10; n == 0 {
			return b
		}
	}
}
