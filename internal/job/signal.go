package job

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrSignal is wrapped by errors about a signal that cannot be read.
var ErrSignal = errors.New("invalid signal")

// MaxSignal is the greatest signal number of Linux.
const MaxSignal = 64

// Numbers of the real-time signals as the C library gives them out.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// signals are Linux's, on all processors that we build for, with the words of strsignal.
var signals = [...]struct{ name, text string }{
	1: {"HUP", "Hangup"}, 2: {"INT", "Interrupt"}, 3: {"QUIT", "Quit"}, 4: {"ILL", "Illegal instruction"},
	5: {"TRAP", "Trace/breakpoint trap"}, 6: {"ABRT", "Aborted"}, 7: {"BUS", "Bus error"},
	8: {"FPE", "Floating point exception"}, 9: {"KILL", "Killed"}, 10: {"USR1", "User defined signal 1"},
	11: {"SEGV", "Segmentation fault"}, 12: {"USR2", "User defined signal 2"}, 13: {"PIPE", "Broken pipe"},
	14: {"ALRM", "Alarm clock"}, 15: {"TERM", "Terminated"}, 16: {"STKFLT", "Stack fault"},
	17: {"CHLD", "Child exited"}, 18: {"CONT", "Continued"}, 19: {"STOP", "Stopped (signal)"},
	20: {"TSTP", "Stopped"}, 21: {"TTIN", "Stopped (tty input)"}, 22: {"TTOU", "Stopped (tty output)"},
	23: {"URG", "Urgent I/O condition"}, 24: {"XCPU", "CPU time limit exceeded"},
	25: {"XFSZ", "File size limit exceeded"}, 26: {"VTALRM", "Virtual timer expired"},
	27: {"PROF", "Profiling timer expired"}, 28: {"WINCH", "Window changed"}, 29: {"IO", "I/O possible"},
	30: {"PWR", "Power failure"}, 31: {"SYS", "Bad system call"},
}

var signalAliases = map[string]int{"IOT": 6, "CLD": 17, "POLL": 29, "UNUSED": 31}

// SignalNumber reads a signal's name, with or without SIG, in any case, or its number, 1 to MaxSignal.
func SignalNumber(name string) (int, bool) {
	if n, ok := digitsIn(name); ok {
		return int(n), 1 <= n && n <= MaxSignal
	}
	name = strings.TrimPrefix(strings.ToUpper(name), "SIG")
	for n, s := range signals {
		if n > 0 && s.name == name {
			return n, true
		}
	}
	if n, ok := signalAliases[name]; ok {
		return n, true
	}
	for _, end := range []struct {
		name string
		base int
		sign int
	}{{"RTMIN", sigRTMin, 1}, {"RTMAX", sigRTMax, -1}} {
		offset, ok := strings.CutPrefix(name, end.name)
		if !ok {
			continue
		}
		if offset == "" {
			return end.base, true
		}
		n, ok := digitsIn(offset[1:])
		if ok && n <= sigRTMax-sigRTMin && offset[0] == "+-"[(1-end.sign)/2] {
			return end.base + end.sign*int(n), true
		}
	}
	return 0, false
}

// SignalName is the name without SIG, "KILL"; "RTMIN+2" for a real-time one, and the number for what has no name.
func SignalName(n int) string {
	switch {
	case 0 < n && n < len(signals):
		return signals[n].name
	case n == sigRTMin:
		return "RTMIN"
	case n == sigRTMax:
		return "RTMAX"
	case sigRTMin < n && n < sigRTMax:
		return "RTMIN+" + strconv.Itoa(n-sigRTMin)
	}
	return strconv.Itoa(n)
}

// SignalText is what the C library calls the signal: "Killed".
func SignalText(n int) string {
	switch {
	case 0 < n && n < len(signals):
		return signals[n].text
	case sigRTMin <= n && n <= sigRTMax:
		return "Real-time signal " + strconv.Itoa(n-sigRTMin)
	}
	return "Unknown signal " + strconv.Itoa(n)
}

// SignalSpec is the signal a job asks for before its time limit.
type SignalSpec struct {
	Signal      int
	Before      int64 // ms before the limit
	Batch       bool  // to the batch shell only
	Reservation bool  // also when a reservation that overlaps begins
}

// Bounds of a SignalSpec, in ms.
const (
	DefaultSignalBefore = 60 * second
	MaxSignalBefore     = 65535 * second
)

// ParseSignalSpec reads [R|B|RB:]SIG[@seconds]; 60 s when no time is given.
func ParseSignalSpec(s string) (SignalSpec, error) {
	spec := SignalSpec{Before: DefaultSignalBefore}
	rest := s
	if flags, after, ok := strings.Cut(s, ":"); ok {
		rest = after
		for _, c := range strings.ToUpper(flags) {
			switch {
			case c == 'B' && !spec.Batch:
				spec.Batch = true
			case c == 'R' && !spec.Reservation:
				spec.Reservation = true
			default:
				return SignalSpec{}, fmt.Errorf("%w specification %q: %q before the colon, use B, R or both", ErrSignal, s, flags)
			}
		}
		if flags == "" {
			return SignalSpec{}, fmt.Errorf("%w specification %q: nothing before the colon, use B, R or both", ErrSignal, s)
		}
	}
	name, at, hasTime := strings.Cut(rest, "@")
	var ok bool
	if spec.Signal, ok = SignalNumber(name); !ok {
		return SignalSpec{}, fmt.Errorf("%w specification %q: no signal %q", ErrSignal, s, name)
	}
	if hasTime {
		n, ok := digitsIn(at)
		if !ok || n > MaxSignalBefore/second {
			return SignalSpec{}, fmt.Errorf("%w specification %q: time %q is not a number of seconds up to %d", ErrSignal, s, at, MaxSignalBefore/second)
		}
		spec.Before = n * second
	}
	return spec, nil
}
