package replica

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	hclog "github.com/hashicorp/go-hclog"
)

func TestRaftLogger(t *testing.T) {
	var out bytes.Buffer
	to := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug - 8}))
	for _, tc := range []struct {
		name string
		emit func(hclog.Logger)
		want []string // nothing: the message is dropped
	}{
		{"info", func(l hclog.Logger) { l.Info("won", "term", 3) }, []string{"level=INFO", "msg=won", "part=raft", "term=3"}},
		{"debug is under the level", func(l hclog.Logger) { l.Debug("x") }, nil},
		{"trace is under the level", func(l hclog.Logger) { l.Trace("x") }, nil},
		{"off", func(l hclog.Logger) { l.Log(hclog.Off, "x") }, nil},
		{"error value", func(l hclog.Logger) { l.Error("x", "error", errors.New("disk full")) }, []string{"level=ERROR", `error="disk full"`}},
		{"deferred format", func(l hclog.Logger) { l.Warn("x", "servers", hclog.Fmt("%d of %s", 2, "all")) }, []string{"level=WARN", `servers="2 of all"`}},
		{"stringer", func(l hclog.Logger) { l.Info("x", "time", time.Second) }, []string{"time=1s"}},
		{"a key without a value", func(l hclog.Logger) { l.Info("x", "a", 1, "b") }, []string{"a=1", "extra=b"}},
		{"a key that is no string", func(l hclog.Logger) { l.Info("x", 7, 1) }, []string{"7=1"}},
		{"with", func(l hclog.Logger) { l.With("id", "s1").Named("sub").Info("x") }, []string{"id=s1"}},
		{"standard", func(l hclog.Logger) { l.StandardLogger(nil).Print("plain") }, []string{"msg=plain"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out.Reset()
			tc.emit(newRaftLogger(to, slog.LevelInfo))
			got := out.String()
			if (got == "") != (tc.want == nil) {
				t.Errorf("printed %q", got)
			}
			for _, w := range tc.want {
				if !strings.Contains(got, w) {
					t.Errorf("%q lacks %q", got, w)
				}
			}
		})
	}
	l := newRaftLogger(to, slog.LevelWarn)
	if l.IsInfo() || !l.IsWarn() || !l.IsError() || l.IsDebug() || l.IsTrace() || l.GetLevel() != hclog.Warn {
		t.Error("a logger at warn says otherwise")
	}
	if sub := l.With("a", 1); len(sub.ImpliedArgs()) != 2 || sub.Named("x").Name() != "raft.x" {
		t.Error("sub-logger")
	}
}
