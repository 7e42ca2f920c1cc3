package gctl

import (
	"fmt"
	"io"
	"strings"

	"github.com/tensorgrid/tensorgrid/cli/render"
)

// record is one thing as scontrol shows it: lines of KEY=VALUE.
type record struct{ lines [][]string }

// line adds a line; format and args come in pairs that make its words.
func (r *record) line(words ...string) { r.lines = append(r.lines, words) }

// kv is KEY=VALUE.
func kv(key string, value any) string { return key + "=" + render.Clean(fmt.Sprint(value)) }

// write prints a block with a blank line after it, or all of it as one line.
func (r *record) write(w io.Writer, oneLine bool) {
	var b strings.Builder
	for i, l := range r.lines {
		switch {
		case i == 0:
		case oneLine:
			b.WriteByte(' ')
		default:
			b.WriteString("\n   ")
		}
		b.WriteString(strings.Join(l, " "))
	}
	b.WriteByte('\n')
	if !oneLine {
		b.WriteByte('\n')
	}
	io.WriteString(w, b.String())
}
