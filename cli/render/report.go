package render

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ReportColumn is one column of a report; Width counts characters, negative = to the left.
type ReportColumn struct {
	Name  string
	Width int
}

// Report lays rows out as Slurm's accounting commands do: padded under dashes, or with a delimiter for programs.
type Report struct {
	Columns   []ReportColumn
	NoHeader  bool
	Parsable  bool // -p and -P
	Trailing  bool // -p: a delimiter after the last cell too
	Delimiter string
}

// Header writes the names and, for people, the dashes.
func (r *Report) Header(w io.Writer) error {
	if r.NoHeader {
		return nil
	}
	names, dashes := make([]string, len(r.Columns)), make([]string, len(r.Columns))
	for i, c := range r.Columns {
		n := max(c.Width, -c.Width)
		if names[i] = c.Name; !r.Parsable {
			names[i] = Pad(c.Name, n, c.Width > 0) // a name that is cut has no plus sign
		}
		dashes[i] = strings.Repeat("-", n)
	}
	if err := r.Row(w, names); err != nil || r.Parsable {
		return err
	}
	return r.Row(w, dashes)
}

// Row writes one row. What is cut ends in a plus sign; control characters do not go out.
func (r *Report) Row(w io.Writer, cells []string) error {
	var b strings.Builder
	for i, cell := range cells {
		cell = Clean(cell)
		switch {
		case !r.Parsable:
			b.WriteString(PadPlus(cell, r.Columns[i].Width))
			b.WriteByte(' ')
		case i+1 < len(cells) || r.Trailing:
			b.WriteString(cell)
			b.WriteString(Or(r.Delimiter, "|"))
		default:
			b.WriteString(cell)
		}
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// PadPlus fits s into a column, negative = to the left; what is cut ends in a plus sign.
func PadPlus(s string, width int) string {
	n := max(width, -width)
	if count := utf8.RuneCountInString(s); count > n && n > 0 {
		return string([]rune(s)[:n-1]) + "+"
	}
	return Pad(s, n, width > 0)
}

// FieldWidth splits "name%-20" into its parts; width is def when none is given.
func FieldWidth(word string, def int) (name string, width int, err error) {
	name, text, given := strings.Cut(strings.TrimSpace(word), "%")
	if !given {
		return name, def, nil
	}
	width, err = strconv.Atoi(text)
	if err != nil || width == 0 || max(width, -width) > MaxWidth {
		return "", 0, fmt.Errorf("Invalid width in %q\na number from 1 to %d was expected after the percent sign, negative = to the left", word, MaxWidth)
	}
	return name, width, nil
}
