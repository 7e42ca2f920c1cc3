package job

import (
	"strconv"
	"strings"
)

// PatternVars is what the patterns of a file name stand for.
type PatternVars struct {
	JobID     uint32
	ArrayJob  uint32 // base id; the job's own when it is no array task
	Task      int64
	StepID    string // "batch", "0"
	User      string
	Name      string
	Host      string
	NodeIndex uint32
	Rank      uint32
	Restarts  uint32
	IsArray   bool
}

const (
	maxPad      = 10       // widest zero padding, as Slurm's
	maxFileName = 16 << 10 // bytes; no path that long can be opened, so what is beyond is dropped
	noValTask   = "4294967294"
)

// ExpandPattern fills in a file name pattern: %A %a %b %J %j %N %n %r %s %t %u %x %%. A width, %5j, pads
// numbers with zeros. A backslash anywhere turns all of it off and is dropped. What is not known stays as it is.
func ExpandPattern(p string, v PatternVars) string {
	if strings.IndexByte(p, '\\') >= 0 {
		return strings.ReplaceAll(p, `\`, "")
	}
	var b strings.Builder
	for i := 0; i < len(p) && b.Len() < maxFileName; {
		if p[i] != '%' {
			b.WriteByte(p[i])
			i++
			continue
		}
		end := i + 1
		for end < len(p) && '0' <= p[end] && p[end] <= '9' {
			end++
		}
		if end == len(p) {
			b.WriteString(p[i:])
			break
		}
		value, numeric, known := v.value(p[end])
		switch {
		case !known:
			b.WriteString(p[i : end+1])
		case numeric:
			width, _ := digitsIn(p[i+1 : end])
			for n := int64(len(value)); n < min(width, maxPad); n++ {
				b.WriteByte('0')
			}
			b.WriteString(value)
		default:
			b.WriteString(value)
		}
		i = end + 1
	}
	return b.String()
}

// value is what one letter stands for, and whether it is a number that can be padded.
func (v *PatternVars) value(letter byte) (text string, numeric, known bool) {
	u := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	switch letter {
	case '%':
		return "%", false, true
	case 'A':
		if v.IsArray {
			return u(v.ArrayJob), true, true
		}
		return u(v.JobID), true, true
	case 'a':
		if !v.IsArray {
			return noValTask, true, true // what Slurm prints
		}
		return strconv.FormatInt(v.Task, 10), true, true
	case 'b':
		if !v.IsArray {
			return noValTask[len(noValTask)-1:], true, true
		}
		return strconv.FormatInt(v.Task%10, 10), true, true
	case 'j':
		return u(v.JobID), true, true
	case 'J':
		if v.StepID == "" {
			return u(v.JobID), true, true
		}
		return u(v.JobID) + "." + v.StepID, false, true
	case 'N':
		host, _, _ := strings.Cut(v.Host, ".")
		return host, false, true
	case 'n':
		return u(v.NodeIndex), true, true
	case 'r':
		return u(v.Restarts), true, true
	case 's':
		_, isNumber := digitsIn(v.StepID)
		return v.StepID, isNumber, true
	case 't':
		return u(v.Rank), true, true
	case 'u':
		return v.User, false, true
	case 'x':
		return v.Name, false, true
	}
	return "", false, false
}
