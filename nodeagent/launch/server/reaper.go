package server

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reaper collects the exits of all children in one place: a launcher may have thousands of
// shepherds, and a waiting thread for each would be one too many.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

func newReaper() *reaper { return &reaper{waiting: map[int]chan syscall.WaitStatus{}} }

// run collects children until ctx ends. The program must have no children but the reaper's.
func (r *reaper) run(ctx context.Context) {
	chld := make(chan os.Signal, 1) // one is enough: each round collects all
	signal.Notify(chld, syscall.SIGCHLD)
	defer signal.Stop(chld)
	for {
		r.collect()
		select {
		case <-chld:
		case <-ctx.Done():
			return
		}
	}
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ch, ok := r.waiting[pid]; ok {
			ch <- status
			delete(r.waiting, pid)
		}
	}
}

// start starts a program. With wait, the channel gives its end; without, nobody is told.
func (r *reaper) start(argv []string, attr *syscall.ProcAttr, wait bool) (int, <-chan syscall.WaitStatus, error) {
	if !wait {
		pid, err := syscall.ForkExec(argv[0], argv, attr)
		return pid, nil, err
	}
	r.mu.Lock() // or the child could be collected before it is known
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = ch
	return pid, ch, nil
}

// killGroup kills the process group of a child whose end somebody waits for. A child that has been
// collected is left alone: its number may be another's.
func (r *reaper) killGroup(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ours := r.waiting[pid]; ours {
		syscall.Kill(-pid, syscall.SIGKILL)
	}
}
