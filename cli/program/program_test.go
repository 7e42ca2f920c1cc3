package program

import (
	"errors"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
)

// TestErrorsHoldNoControls: errors repeat words of others, and those must not steer a terminal.
func TestErrorsHoldNoControls(t *testing.T) {
	var b strings.Builder
	e := &Env{Name: "gqueue", Stderr: &b}
	e.Errorf("job %s\nsecond line", "a\x1b[2J\r\u009b31m\x7f\tz")
	e.Warnf("%s", "\x07")
	e.BadUsage(&getopt.Error{Text: "unrecognized option '--\x1b[2J'"})
	e.BadUsage(errors.New("\x1b"))
	if i := strings.IndexFunc(b.String(), func(r rune) bool { return r < ' ' && r != '\n' || 0x7f <= r && r < 0xa0 }); i >= 0 {
		t.Errorf("control character at %d of %q", i, b.String())
	}
	if !strings.HasPrefix(b.String(), "gqueue: error: job a?[2J??31m? z\ngqueue: error: second line\n") {
		t.Errorf("got %q", b.String())
	}
}
