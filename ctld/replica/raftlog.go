package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"slices"

	hclog "github.com/hashicorp/go-hclog"
)

// raftLogger is raft's logger on top of slog: messages under level are dropped, key-value pairs
// become attributes.
type raftLogger struct {
	to      *slog.Logger
	level   slog.Level
	name    string
	implied []any
}

func newRaftLogger(to *slog.Logger, level slog.Level) hclog.Logger {
	return &raftLogger{to: to.With("part", "raft"), level: level, name: "raft"}
}

// slogLevel maps hclog's levels; trace has no name in slog and lies one step under debug.
func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Trace:
		return slog.LevelDebug - 4
	case hclog.Debug:
		return slog.LevelDebug
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	at := slogLevel(level)
	if at > slog.LevelDebug && closedByUs(args) {
		at = slog.LevelDebug
	}
	if !l.enabled(at) || level == hclog.Off {
		return
	}
	l.to.LogAttrs(context.Background(), at, msg, attrs(args)...)
}

// closedByUs: what a connection or the listener gives when this side closes it, as at each end of a controller.
// Raft calls that an error.
func closedByUs(args []any) bool {
	return slices.ContainsFunc(args, func(a any) bool {
		err, ok := a.(error)
		return ok && errors.Is(err, net.ErrClosed)
	})
}

func (l *raftLogger) enabled(at slog.Level) bool {
	return at >= l.level && l.to.Enabled(context.Background(), at)
}

// attrs pairs keys with values; hclog's deferred formats are written out here, as slog would
// print their parts.
func attrs(args []any) []slog.Attr {
	out := make([]slog.Attr, 0, (len(args)+1)/2)
	for i := 0; i < len(args); i += 2 {
		if i+1 == len(args) {
			return append(out, slog.Any("extra", args[i]))
		}
		key, ok := args[i].(string)
		if !ok {
			key = fmt.Sprint(args[i])
		}
		switch v := args[i+1].(type) {
		case hclog.Format:
			format, _ := v[0].(string)
			out = append(out, slog.String(key, fmt.Sprintf(format, v[1:]...)))
		case fmt.Stringer:
			out = append(out, slog.String(key, v.String()))
		default:
			out = append(out, slog.Any(key, v))
		}
	}
	return out
}

func (l *raftLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *raftLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *raftLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *raftLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *raftLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *raftLogger) IsTrace() bool { return l.enabled(slogLevel(hclog.Trace)) }
func (l *raftLogger) IsDebug() bool { return l.enabled(slog.LevelDebug) }
func (l *raftLogger) IsInfo() bool  { return l.enabled(slog.LevelInfo) }
func (l *raftLogger) IsWarn() bool  { return l.enabled(slog.LevelWarn) }
func (l *raftLogger) IsError() bool { return l.enabled(slog.LevelError) }

func (l *raftLogger) ImpliedArgs() []any { return l.implied }
func (l *raftLogger) Name() string       { return l.name }

func (l *raftLogger) With(args ...any) hclog.Logger {
	sub := *l
	sub.implied = append(append([]any(nil), l.implied...), args...)
	more := attrs(args)
	pairs := make([]any, len(more))
	for i, a := range more {
		pairs[i] = a
	}
	sub.to = l.to.With(pairs...)
	return &sub
}

func (l *raftLogger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

func (l *raftLogger) ResetNamed(name string) hclog.Logger {
	sub := *l
	sub.name = name
	return &sub
}

// SetLevel does nothing: the level is the configuration's.
func (l *raftLogger) SetLevel(hclog.Level) {}

func (l *raftLogger) GetLevel() hclog.Level {
	switch {
	case l.level < slog.LevelDebug:
		return hclog.Trace
	case l.level < slog.LevelInfo:
		return hclog.Debug
	case l.level < slog.LevelWarn:
		return hclog.Info
	case l.level < slog.LevelError:
		return hclog.Warn
	default:
		return hclog.Error
	}
}

func (l *raftLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.to.Handler(), slog.LevelInfo)
}

func (l *raftLogger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(opts).Writer()
}
