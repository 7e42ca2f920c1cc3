package replica

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
)

// TestOwnEndIsNoError: connections that this side closed are nothing to report when a controller ends.
func TestOwnEndIsNoError(t *testing.T) {
	var out bytes.Buffer
	log := newRaftLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), slog.LevelWarn)
	log.Error("failed to decode incoming command", "error", &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed})
	log.Error("failed to accept connection", "error", net.ErrClosed)
	if out.Len() > 0 {
		t.Errorf("said: %s", out.String())
	}
	log.Error("failed to decode incoming command", "error", errors.Join(io.ErrUnexpectedEOF))
	if !strings.Contains(out.String(), "level=ERROR") {
		t.Errorf("another error is kept back: %q", out.String())
	}
}
