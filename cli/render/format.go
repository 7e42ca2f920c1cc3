// Package render lays out what commands print: columns by Slurm's two format languages, times,
// states and ids in Slurm's words, JSON in the shape of its data parser.
package render

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxWidth bounds a column's width, and MaxColumns the columns of a format.
const (
	MaxWidth   = 65535
	MaxColumns = 512
	LongWidth  = 20 // of a -O field without a width
)

// Column is one field of a format with the text around it.
type Column struct {
	Before string // literal text in front
	Key    string // letter, or name in the long language
	Width  int    // 0 = natural
	Right  bool
	Widest bool // as wide as its widest value
	After  string
}

// ParseFormat reads the short language: text, "%i", "%.18i", "%-8j", "%#P".
func ParseFormat(s string) ([]Column, error) {
	var cols []Column
	before := ""
	for {
		text, rest, found := strings.Cut(s, "%")
		before += text
		if !found {
			break
		}
		col, left, err := field(rest)
		if err != nil {
			return nil, err
		}
		if col.Key == "%" {
			before, s = before+"%", left
			continue
		}
		col.Before, before = before, ""
		cols, s = append(cols, col), left
		if len(cols) > MaxColumns {
			return nil, fmt.Errorf("more than %d fields in one format", MaxColumns)
		}
	}
	if len(cols) > 0 {
		cols[len(cols)-1].After = before
	} else if before != "" {
		cols = append(cols, Column{Before: before})
	}
	return cols, nil
}

// field reads what follows a percent sign.
func field(s string) (Column, string, error) {
	var c Column
	i := 0
flags:
	for ; i < len(s); i++ {
		switch s[i] {
		case '.':
			c.Right = true
		case '-':
			c.Right = false
		case '#':
			c.Widest = true
		default:
			break flags
		}
	}
	start := i
	for i < len(s) && '0' <= s[i] && s[i] <= '9' {
		i++
	}
	if i > start {
		n, err := strconv.Atoi(s[start:i])
		if err != nil || n > MaxWidth {
			return c, "", fmt.Errorf("width %q is over the limit of %d", s[start:i], MaxWidth)
		}
		c.Width = n
	}
	if i == len(s) {
		return c, "", fmt.Errorf("format ends after %%%s", s)
	}
	if strings.HasPrefix(s[i:], "all") {
		c.Key = "all"
		return c, s[i+3:], nil
	}
	_, size := utf8.DecodeRuneInString(s[i:])
	c.Key = s[i : i+size]
	return c, s[i+size:], nil
}

// ParseLong reads the long language: "JobID,State:10,Name:.12,NodeList:|". A non-numeric rest after
// the colon is a separator; alone, it also means no padding.
func ParseLong(s string) ([]Column, error) {
	var cols []Column
	for part := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		name, rest, has := strings.Cut(part, ":")
		c := Column{Key: strings.TrimSpace(name), Width: LongWidth}
		if has {
			if strings.HasPrefix(rest, ".") {
				c.Right, rest = true, rest[1:]
			}
			n := 0
			for n < len(rest) && '0' <= rest[n] && rest[n] <= '9' {
				n++
			}
			c.Width, c.After = 0, rest[n:]
			if n > 0 {
				w, err := strconv.Atoi(rest[:n])
				if err != nil || w > MaxWidth {
					return nil, fmt.Errorf("width %q is over the limit of %d", rest[:n], MaxWidth)
				}
				c.Width = w
			}
		}
		cols = append(cols, c)
		if len(cols) > MaxColumns {
			return nil, fmt.Errorf("more than %d fields in one format", MaxColumns)
		}
	}
	return cols, nil
}

// Table writes rows under these columns; the header is one of the rows.
func Table(w io.Writer, cols []Column, rows [][]string) error {
	width := make([]int, len(cols))
	for i, c := range cols {
		width[i] = c.Width
		if !c.Widest {
			continue
		}
		for _, r := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		b.Reset()
		for i, c := range cols {
			b.WriteString(c.Before)
			b.WriteString(Pad(Clean(r[i]), width[i], c.Right))
			b.WriteString(c.After)
		}
		b.WriteByte('\n')
		if _, err := io.WriteString(w, b.String()); err != nil {
			return err
		}
	}
	return nil
}

// Clean replaces control characters by question marks. Names and comments are other people's words: they
// must not steer a terminal, nor forge a line for a program that reads lines.
func Clean(s string) string {
	control := func(r rune) bool { return r < ' ' || 0x7f <= r && r < 0xa0 }
	if strings.IndexFunc(s, control) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if control(r) {
			return '?'
		}
		return r
	}, s)
}

// Pad fits s into width characters, cutting what is over; width 0 leaves it alone.
func Pad(s string, width int, right bool) string {
	if width == 0 {
		return s
	}
	n := utf8.RuneCountInString(s)
	if n > width {
		return string([]rune(s)[:width])
	}
	fill := strings.Repeat(" ", width-n)
	if right {
		return fill + s
	}
	return s + fill
}
