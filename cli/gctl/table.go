package gctl

import (
	"io"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/cli/render"
)

// table is rows under a head, each column as wide as its widest cell.
type table struct {
	head  []string
	right []int // columns that end at the same place
	rows  [][]string
}

func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = render.Clean(cells[i])
	}
	t.rows = append(t.rows, cells)
}

func (t *table) write(w io.Writer) {
	width := make([]int, len(t.head))
	all := append([][]string{t.head}, t.rows...)
	for _, row := range all {
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
	}
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-len(cell))
			if i > 0 {
				line.WriteByte(' ')
			}
			if slices.Contains(t.right, i) {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	io.WriteString(w, b.String())
}
