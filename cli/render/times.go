package render

import (
	"fmt"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Clock prints times for one reader: zone, format and now.
type Clock struct {
	Now    time.Time
	Format string // SLURM_TIME_FORMAT: "", "standard", "relative" or strftime's language
}

const standardTime = "2006-01-02T15:04:05"

// Time prints Unix milliseconds; none stands for 0.
func (c Clock) Time(ms int64, none string) string {
	if ms <= 0 {
		return none
	}
	t := time.UnixMilli(ms).In(c.Now.Location())
	switch c.Format {
	case "", "standard":
		return t.Format(standardTime)
	case "relative":
		return c.relative(t)
	}
	return Strftime(c.Format, t)
}

// relative is as short as the distance allows.
func (c Clock) relative(t time.Time) string {
	day := func(t time.Time) int {
		return int(time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC).Unix() / 86400)
	}
	switch d := day(t) - day(c.Now); {
	case d == 0:
		return t.Format("15:04:05")
	case d == 1:
		return t.Format("Tomorr 15:04")
	case d == -1:
		return t.Format("Ystday 15:04")
	case d > -7 && d < 7:
		return t.Format("Mon 15:04")
	case t.Year() == c.Now.Year():
		return t.Format("2 Jan 15:04")
	}
	return t.Format("2 Jan 2006")
}

// Strftime knows the conversions that people use for times of jobs; others stay as they are.
func Strftime(format string, t time.Time) string {
	layouts := map[byte]string{
		'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'y': "06", 'b': "Jan", 'B': "January",
		'a': "Mon", 'A': "Monday", 'I': "03", 'p': "PM", 'Z': "MST", 'z': "-0700", 'e': "_2", 'h': "Jan",
		'T': "15:04:05", 'F': "2006-01-02", 'D': "01/02/06", 'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006", 'j': "002",
		'x': "01/02/06", 'X': "15:04:05",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch c := format[i]; {
		case c == 's':
			fmt.Fprint(&b, t.Unix())
		case c == '%':
			b.WriteByte('%')
		case c == 'n':
			b.WriteByte('\n')
		case c == 't':
			b.WriteByte('\t')
		case layouts[c] != "":
			b.WriteString(t.Format(layouts[c]))
		default:
			b.WriteByte('%')
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Limit prints a time limit: UNLIMITED, NOT_SET or [D-]HH:MM:SS as squeue does (M:SS under an hour).
func Limit(ms int64) string {
	switch {
	case ms == job.Unlimited:
		return "UNLIMITED"
	case ms <= 0:
		return "NOT_SET"
	}
	return job.FormatElapsed(ms)
}
