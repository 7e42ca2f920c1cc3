package render

import (
	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Colour is a terminal's colour. Callers paint only on terminals.
type Colour string

// The colours in use.
const (
	Plain  Colour = ""
	Red    Colour = "31"
	Green  Colour = "32"
	Yellow Colour = "33"
)

// Paint wraps s in a colour.
func Paint(c Colour, s string) string {
	if c == Plain {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// Bold is for headers.
func Bold(s string) string { return Paint("1", s) }

// Dim is for what explains a line.
func Dim(s string) string { return Paint("2", s) }

// StateColour: green runs, yellow waits, red went wrong.
func StateColour(j *ctldpb.Job) Colour {
	switch BaseState(j) {
	case job.Running:
		return Green
	case job.Pending, job.Suspended:
		return Yellow
	case job.Completed:
		return Plain
	}
	return Red
}
