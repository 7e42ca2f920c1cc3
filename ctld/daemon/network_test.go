package daemon

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// failingListener fails some times, then waits until it is closed.
type failingListener struct {
	net.Listener
	fail   int
	calls  int
	closed chan struct{}
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.calls++; l.calls <= l.fail {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *failingListener) Close() error { close(l.closed); return nil }

// TestAcceptGoesOn: a listener that was out of files for a while goes on, and keeps all its slots.
func TestAcceptGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &failingListener{fail: 2 * maxHandshakes, closed: make(chan struct{})}
		l := newTLSListener(inner, &tls.Config{}).(*tlsListener)
		time.Sleep(3 * maxHandshakes * lastAcceptWait)
		synctest.Wait()
		if inner.calls != inner.fail+1 || len(l.slots) != 1 {
			t.Errorf("%d calls, %d slots taken", inner.calls, len(l.slots))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	})
}

// TestConnectionsOfOneUser: one over the limit is closed, and a place that is given back is used again.
func TestConnectionsOfOneUser(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := newUserListener(inner, 2)
	defer l.Close()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	// The kernel's word cannot be changed here: the test's own user stands for one with a limit.
	uid := uint32(os.Getuid())
	dial()
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if who, err := authn.PeerOf(first); err != nil || who.UID != uid {
		t.Errorf("%+v %v", who, err)
	}
	if l.open[uid] != 1 {
		t.Errorf("%v", l.open)
	}
	for i, want := range []bool{true, true, false} {
		if got := l.take(4711); got != want {
			t.Errorf("place %d is given: %v, want %v", i, got, want)
		}
	}
	l.give(4711)
	if !l.take(4711) {
		t.Error("a place that was given back is not used")
	}
	if uid != 0 {
		dial()
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
		over := dial()
		go l.Accept()
		if n, err := over.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Error("a third connection is open")
		}
	}
	first.Close()
	first.Close()
	if uid == 0 && len(l.open) != 1 {
		t.Errorf("after the end: %v", l.open)
	}
}
