//go:build faults

package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled tells whether this is a build that can be broken.
const Enabled = true

var (
	dir = os.Getenv(Folder)

	mu     sync.Mutex
	passed = map[string]int{} // by point and text: how often it was passed under that order
	clock  struct {
		read   time.Time
		offset time.Duration
	}
)

// errnos are the errors that tests ask for by name.
var errnos = map[string]syscall.Errno{
	"ENOSPC": syscall.ENOSPC, "EROFS": syscall.EROFS, "EIO": syscall.EIO, "EACCES": syscall.EACCES, "EMFILE": syscall.EMFILE,
}

func order(name string) string {
	if dir == "" {
		return ""
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Point is a place where a test may break the program. The error is what the test put there; nil
// otherwise.
func Point(name string) error {
	text := order(name)
	if text == "" {
		return nil
	}
	mu.Lock()
	passed[name+"\x00"+text]++
	times := passed[name+"\x00"+text]
	mu.Unlock()
	words := strings.Fields(text)
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch words[0] {
	case "kill":
		if n, err := strconv.Atoi(arg(1)); err != nil || times >= n {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal comes before anything else is done
		}
	case "sleep":
		if d, err := time.ParseDuration(arg(1)); err == nil {
			time.Sleep(d)
		}
	case "error":
		if n, err := strconv.Atoi(arg(2)); err == nil && times > n {
			return nil
		}
		if e, ok := errnos[arg(1)]; ok {
			return &os.PathError{Op: "fault", Path: name, Err: e}
		}
		return fmt.Errorf("fault %s: %s", name, arg(1))
	}
	return nil
}

// Now is the wall clock, moved by what the file "clock" says. It carries no monotonic reading, as a
// clock that was set does not keep its distance to it.
func Now() time.Time {
	now := time.Now()
	if dir == "" {
		return now
	}
	mu.Lock()
	defer mu.Unlock()
	if d := now.Sub(clock.read); clock.read.IsZero() || d > 20*time.Millisecond {
		clock.read = now
		clock.offset, _ = time.ParseDuration(order("clock"))
	}
	return now.Round(0).Add(clock.offset)
}

// BootID is the host's boot id unless a test says otherwise.
func BootID(real string) string {
	if id := order("bootid"); id != "" {
		return id
	}
	return real
}
