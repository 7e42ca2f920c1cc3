package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/conf"
)

// Bounds of a fence program.
const (
	fenceOutput = 4 << 10 // bytes of what it prints that are shown when it fails
	fenceEnd    = 5 * time.Second
)

// fence runs FenceProgram for one node: in a fixed environment, without input, as a group of processes that
// is killed as a whole when ctx ends. Exit code 0 means that nothing can be alive on the node.
func fence(cfg func() *conf.Config) func(ctx context.Context, node string) error {
	return func(ctx context.Context, node string) error {
		c := cfg()
		cmd := exec.CommandContext(ctx, c.FenceProgram, node)
		cmd.Dir = "/"
		cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"GRID_CLUSTER=" + c.ClusterName, "GRID_NODE=" + node}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = fenceEnd
		out := &tail{most: fenceOutput}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("it was ended: %w", ctx.Err())
			}
			return fmt.Errorf("%s %s: %w%s", c.FenceProgram, node, err, out)
		}
		return nil
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	most int
	buf  []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - t.most; over > 0 {
		t.buf = t.buf[over:]
	}
	return len(b), nil
}

// String is what was kept, for the end of an error's text.
func (t *tail) String() string {
	text := strings.ToValidUTF8(string(bytes.TrimSpace(t.buf)), "?")
	if text == "" {
		return ""
	}
	return ": " + text
}
