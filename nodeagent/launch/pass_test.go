package launch_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}

func TestPass(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	in := launch.NewReceiver(pair[1])
	before := openFiles(t)
	for _, c := range []struct{ size, fds int }{{0, 1}, {5, 0}, {16 << 10, 2}, {1 << 20, 8}} {
		sent := make(chan error, 1)
		go func() {
			sent <- launch.Pass(pair[0], bytes.Repeat([]byte{7}, c.size), slices.Repeat([]int{0}, c.fds)...)
		}()
		body, fds, err := in.Next()
		if err != nil || len(body) != c.size || len(fds) != c.fds {
			t.Errorf("%+v: %d bytes and %d descriptors, %v", c, len(body), len(fds), err)
		}
		must(t, <-sent)
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	must(t, launch.Pass(pair[0], []byte("x"), slices.Repeat([]int{0}, 9)...))
	if _, _, err := in.Next(); err == nil || !strings.Contains(err.Error(), "more than 8 descriptors") {
		t.Errorf("9 descriptors: %v", err)
	}
	if now := openFiles(t); now > before {
		t.Errorf("%d descriptors are open, %d were", now, before) // fewer: what an earlier test left to the collector
	}
	if err := launch.Pass(pair[0], make([]byte, launch.MaxFrame+1)); err == nil || !strings.Contains(err.Error(), "over MaxFrame") {
		t.Errorf("a message over the limit: %v", err)
	}
	unix.Close(pair[0])
	if _, _, err := in.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	unix.Close(pair[1])
}

func TestPassRefusesALengthOverTheLimitAndAnEndInTheMiddle(t *testing.T) {
	for _, c := range []struct {
		raw  []byte
		want string
	}{{binary.BigEndian.AppendUint32(nil, launch.MaxFrame+1), "over MaxFrame"}, {[]byte{0, 0, 0, 9, 1}, "unexpected EOF"},
		{[]byte{0, 0, 0, 1, 1, 0, 0, 0, 1, 2}, "two messages"}} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		_, err = unix.Write(pair[0], c.raw)
		must(t, err)
		unix.Close(pair[0])
		if _, _, err := launch.NewReceiver(pair[1]).Next(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.raw, err, c.want)
		}
		unix.Close(pair[1])
	}
}
