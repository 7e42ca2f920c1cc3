package shepherd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// Main is gstepd: it starts the step of the plan that the launcher hands it and minds it to its end.
// The result is the process's exit code.
func Main(now func() time.Time) int {
	syscall.CloseOnExec(launch.PlanFD)
	syscall.CloseOnExec(launch.StatusFD)
	status := os.NewFile(launch.StatusFD, "status")
	s, err := prepare(now)
	if err != nil {
		answer(status, launch.Started{Err: err.Error(), Errno: errnoOf(err), Cause: uint8(job.CauseNode)})
		return 1
	}
	l := newLink(s.plan.AgentSocket, Hello{Key: s.plan.Key, PID: os.Getpid(), Start: s.start.UnixMilli()})
	answer(status, launch.Started{Start: s.start.UnixMilli()})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go l.run(ctx)
	record := newMinder(s, l, now, bootTime).run(ctx)
	if err := writeRecord(s.dir, record); err != nil {
		fmt.Fprintf(os.Stderr, "step %s: record: %v\n", s.plan.Key, err)
		return 1
	}
	if l.tell(Up{Ended: record}) != nil {
		return 0 // the agent is away and will find the record
	}
	return 0
}

// prepare starts the step as root and then gives root up.
func prepare(now func() time.Time) (*step, error) {
	data, err := io.ReadAll(os.NewFile(launch.PlanFD, "plan"))
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	p := new(launch.Plan)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	s, err := begin(p, now)
	if err != nil {
		return nil, err
	}
	if f := s.failed; f != nil && f.blame() != job.CauseUser {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.text(p), f.errno), s.abandon())
	}
	if err := drop(p); err != nil {
		return nil, errors.Join(fmt.Errorf("giving up root: %w", err), s.abandon())
	}
	return s, nil
}

func answer(status *os.File, a launch.Started) {
	defer status.Close()
	data, err := json.Marshal(a)
	if err == nil {
		status.Write(append(data, '\n')) // a launcher that died meanwhile does not hear it
	}
}

func errnoOf(err error) int {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return int(errno)
	}
	return 0
}

// bootTime is the time since boot, suspended time included.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // the clock has been there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
