package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How children are minded.
const (
	firstRestart = 100 * time.Millisecond
	// A leader that comes back before the others have noticed may win again: a failover that is none.
	controllerRestart = 2 * time.Second
	lastRestart       = 5 * time.Second
	stableAfter       = 30 * time.Second // a child that lived so long starts with the short wait again
	stopTimeout       = 10 * time.Second // from TERM to KILL at the end
	reapEvery         = time.Second
	// A child that ended so often in at least that time before the cluster was ready will not get it ready.
	startAttempts = 3
	startPatience = 2 * time.Second
	tailLines     = 5 // of a child's log that are shown when it keeps dying
)

// child is one program that is kept running.
type child struct {
	name  string
	first time.Duration // wait before the first restart; firstRestart when 0
	ends  bool          // it ends with exit code 0 when it is no longer wanted: then it is not started again
	make  func(ctx context.Context) *exec.Cmd
}

// minder starts children, starts them again when they die, and ends them.
type minder struct {
	log    *slog.Logger
	dir    string // of logs and pid files
	wg     sync.WaitGroup
	mu     sync.Mutex
	direct map[int]bool // pids of children that their goroutine waits for
	failed chan error   // takes the first child that keeps dying
}

func newMinder(log *slog.Logger, dir string) *minder {
	return &minder{log: log, dir: dir, direct: map[int]bool{}, failed: make(chan error, 1)}
}

// start minds a child until ctx ends. What it gives is closed when the child is gone for good.
func (m *minder) start(ctx context.Context, c child) (gone <-chan struct{}) {
	over := make(chan struct{})
	m.wg.Go(func() {
		defer close(over)
		// The kernel sends the parent-death signal when the thread that made the child ends.
		runtime.LockOSThread()
		first := max(c.first, firstRestart)
		wait, ends, since := first, 0, time.Now()
		for ctx.Err() == nil {
			began := time.Now()
			err := m.once(ctx, c)
			if ctx.Err() != nil {
				return
			}
			if err == nil && c.ends {
				m.log.Info("child ended for good", "child", c.name)
				return
			}
			if time.Since(began) > stableAfter {
				wait, ends, since = first, 0, began
			}
			m.log.Warn("child ended, starting it again", "child", c.name, "err", err, "after", wait)
			if ends++; ends >= startAttempts && time.Since(since) >= startPatience {
				m.keepsDying(c.name, ends, err)
			}
			if !rest(ctx, wait) {
				return
			}
			wait = min(2*wait, max(lastRestart, first))
		}
	})
	return over
}

// keepsDying tells whoever waits for the cluster why it will not come.
func (m *minder) keepsDying(name string, ends int, err error) {
	err = fmt.Errorf("%s ended %d times (%w); the end of its log:\n%s", name, ends, err, logTail(filepath.Join(m.dir, name+".log")))
	select {
	case m.failed <- err:
	default:
	}
}

// logTail is the end of a log, whose size does not matter.
func logTail(path string) string {
	const most = 4096
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-most), most))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// once runs a child to its end. Its pid is in NAME.pid while it lives.
func (m *minder) once(ctx context.Context, c child) error {
	out, err := os.OpenFile(filepath.Join(m.dir, c.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := c.make(ctx)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	m.mu.Lock()
	if err = cmd.Start(); err == nil {
		m.direct[cmd.Process.Pid] = true
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	pidFile := filepath.Join(m.dir, c.name+".pid")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o644); err != nil {
		m.log.Warn("pid file not written", "child", c.name, "err", err)
	}
	err = cmd.Wait()
	m.mu.Lock()
	delete(m.direct, cmd.Process.Pid)
	m.mu.Unlock()
	return errors.Join(err, os.Remove(pidFile))
}

func (m *minder) isDirect(pid int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.direct[pid]
}

// adopt makes this process the parent of what its children leave behind (shepherds whose launcher
// was started again), so that nothing of a development cluster can outlive it.
func adopt() error {
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("become the parent of orphans: %w", errno)
	}
	return nil
}

// reap takes the exit of orphans; exec.Cmd takes those of children.
func (m *minder) reap(ctx context.Context) {
	for rest(ctx, reapEvery) {
		m.reapOnce()
	}
}

func (m *minder) reapOnce() {
	for _, pid := range childrenOf(os.Getpid()) {
		if !m.isDirect(pid) {
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// childrenOf lists the direct children of a process.
func childrenOf(pid int) []int {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		n := 0
		for _, c := range data {
			if c == ' ' || c == '\n' {
				if n > 0 {
					pids = append(pids, n)
				}
				n = 0
				continue
			}
			n = n*10 + int(c-'0')
		}
	}
	return pids
}

// endSteps kills what is below the children and what was left to us: shepherds and their steps.
// It comes back when nothing is left, or after a while.
func (m *minder) endSteps() {
	for range 40 {
		m.reapOnce()
		left := m.stepsBelow(os.Getpid(), 0)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// maxDepth bounds the walk over a tree of processes that changes meanwhile.
const maxDepth = 64

func (m *minder) stepsBelow(pid, depth int) []int {
	if depth > maxDepth {
		return nil
	}
	var out []int
	for _, kid := range childrenOf(pid) {
		if !m.isDirect(kid) {
			out = append(out, kid)
		}
		out = append(out, m.stepsBelow(kid, depth+1)...)
	}
	return out
}
