package server

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// errNoStep is the answer for a step that has no process here.
var errNoStep = fmt.Errorf("no process of this step is here: %w", unix.ESRCH)

// maxSignal is the largest signal number of Linux.
const maxSignal = 64

// signal sends a signal to the processes of a step. Numbers of processes can be given again by the
// kernel, so each process is held by a descriptor first and looked for in the group once more after.
func (s *Server) signal(r *launch.Signal) error {
	if r.Number < 1 || r.Number > maxSignal {
		return fmt.Errorf("signal %d: %w", r.Number, unix.EINVAL)
	}
	if r.Steps && r.Step == job.BatchStep {
		return nil
	}
	g := s.groups.Group(cgroup.Key(r.Key), nil)
	held, err := s.hold(r.Key, g)
	if err != nil {
		return err
	}
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	pids, err := s.members(r.Key, g)
	if err != nil {
		return err
	}
	shell := 0
	if r.Batch {
		shell = launch.BatchShell(pids)
	}
	sent := 0
	var errs []error
	for _, pid := range pids {
		fd, ok := held[pid]
		if !ok || r.Batch && pid != shell {
			continue
		}
		switch err := unix.PidfdSendSignal(fd, unix.Signal(r.Number), nil, 0); err {
		case nil:
			sent++
		case unix.ESRCH:
		default:
			errs = append(errs, fmt.Errorf("signal %d to %d: %w", r.Number, pid, err))
		}
	}
	if sent == 0 && len(errs) == 0 && !r.Steps {
		return errNoStep
	}
	return errors.Join(errs...)
}

func (s *Server) hold(k launch.Key, g *cgroup.Group) (map[int]int, error) {
	pids, err := s.members(k, g)
	if err != nil {
		return nil, err
	}
	held := make(map[int]int, len(pids))
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH || err == unix.EINVAL { // it is gone; the latter when it goes at this moment
			continue
		}
		if err != nil {
			for _, fd := range held {
				unix.Close(fd)
			}
			return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
		}
		held[pid] = fd
	}
	return held, nil
}

// members are the processes of a step: those of its group or, without groups, the shepherd's descent.
func (s *Server) members(k launch.Key, g *cgroup.Group) ([]int, error) {
	if s.groups.Name() == cgroup.None {
		uid := -1
		if p, err := s.spool.readStored(k); err == nil {
			uid = int(p.UID)
		}
		return launch.Descent(launch.StepFolder(s.conf.Spool, k), uid)
	}
	return g.Procs()
}

// killRounds and killPause bound the killing of a step that no group holds.
const (
	killRounds = 50
	killPause  = 2 * time.Millisecond
)

// kill ends every process of a step with SIGKILL. A step with no process is no error.
func (s *Server) kill(k launch.Key) error {
	g := s.groups.Group(cgroup.Key(k), nil)
	if s.groups.Name() != cgroup.None {
		return g.Kill()
	}
	for range killRounds {
		err := s.signal(&launch.Signal{Key: k, Number: int(unix.SIGKILL)})
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return err
		}
		time.Sleep(killPause)
	}
	return fmt.Errorf("step %s: processes do not die: %w", k, unix.EBUSY)
}

// freezeRounds is how often processes are stopped that no group holds: what forks away from one round is found by
// the next. freezePause is between two: a process stops when it is its turn to run.
const (
	freezeRounds = 100
	freezePause  = 5 * time.Millisecond
)

// freeze stops every process of a step, or lets them go on.
func (s *Server) freeze(r *launch.Freeze) error {
	g := s.groups.Group(cgroup.Key(r.Key), nil)
	if s.groups.Name() != cgroup.None {
		if err := g.Freeze(r.On); !errors.Is(err, cgroup.ErrNotHere) {
			return err
		}
	}
	if !r.On {
		return s.signal(&launch.Signal{Key: r.Key, Number: int(unix.SIGCONT)})
	}
	for range freezeRounds {
		err := s.signal(&launch.Signal{Key: r.Key, Number: int(unix.SIGSTOP)})
		if errors.Is(err, unix.ESRCH) {
			return err
		}
		time.Sleep(freezePause)
		if pids, e := s.members(r.Key, g); e == nil && err == nil && launch.StandStill(pids) {
			return nil
		}
	}
	return fmt.Errorf("step %s: processes do not stand still: %w", r.Key, unix.EBUSY)
}
