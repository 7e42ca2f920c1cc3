package shepherd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// Main is gstepd. The launcher starts it as a shepherd for one step or for many; the latter starts
// itself again as its forker. The result is the process's exit code.
func Main(args []string, now func() time.Time) int {
	var err error
	switch {
	case len(args) == 4 && args[0] == launch.Single:
		err = single(args[1:], now)
	case len(args) == 4 && args[0] == launch.Warm:
		err = warm(args[1:], now)
	case len(args) == 1 && args[0] == launch.Forker:
		err = forker(now)
	default:
		err = errors.New("the launcher starts this program; it is of no use by hand")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gstepd %v: %v\n", args, err)
		return 1
	}
	return 0
}

// single starts one step as root, gives root up, and minds the step.
func single(args []string, now func() time.Time) error {
	syscall.CloseOnExec(launch.OrderFD)
	id, err := parseIDs(args)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	if err != nil {
		return err
	}
	syscall.Umask(0o027)
	body, fds, err := launch.NewReceiver(launch.OrderFD).Next()
	if err != nil {
		return err
	}
	s, err := beginOrder(body, fds, 0, now)
	if err == nil {
		if e := drop(id); e != nil {
			err = errors.Join(fmt.Errorf("giving up root: %w", e), s.abandon())
		}
	}
	if err != nil {
		return answer(launch.Started{Err: err.Error(), Errno: errnoOf(err), Cause: causeOf(err)})
	}
	// A launcher that died meanwhile does not hear it; the step goes on.
	answer(launch.Started{Start: s.startMS})
	unix.Close(launch.OrderFD)
	var k keeper
	_, err = mind(s, now, &k)
	k.wait()
	return err
}

// warm minds one step after the other that its forker starts for it.
func warm(args []string, now func() time.Time) error {
	id, err := parseIDs(args)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	if err != nil {
		return err
	}
	syscall.Umask(0o027)
	syscall.CloseOnExec(launch.IdleFD)
	pid, sock, err := startForker()
	if err != nil {
		return fmt.Errorf("forker: %w", err)
	}
	if err := drop(id); err != nil {
		return fmt.Errorf("giving up root: %w", err)
	}
	k := &keeper{after: keepAfter}
	defer k.wait()
	in := launch.NewReceiver(sock)
	for {
		s, err := receive(in, now)
		if errors.Is(err, io.EOF) {
			return nil // the forker is gone, as the launcher wanted or not
		}
		if err != nil {
			return err
		}
		s.forker = pid
		clean, err := mind(s, now, k)
		if err != nil || !clean {
			return err
		}
		if unix.Send(launch.IdleFD, []byte{1}, unix.MSG_NOSIGNAL) != nil {
			return nil // the launcher has let us go
		}
	}
}

// mind follows a step to its end, leaves its record and tells the agent. clean says that nothing of
// the step is left here.
func mind(s *step, now func() time.Time, k *keeper) (clean bool, err error) {
	defer s.close()
	l := newLink(s.plan.AgentSocket, Hello{Key: s.plan.Key, PID: os.Getpid(), Start: s.startMS})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); l.run(ctx) }()
	m := newMinder(s, l, now, bootTime)
	record := m.run(ctx)
	if !s.leave(l, record) {
		cancel()
		l.hangUp()
		return false, nil
	}
	s.close() // with the record there, nobody asks for the lock any more
	k.add(s.plan.StepDir)
	_ = fault.Point("shepherd.after-record")
	told := l.tell(Up{Ended: record}) // an agent that is away will find the record
	_ = fault.Point("shepherd.after-tell")
	cancel()
	l.hangUp()
	if told == nil {
		<-ran
	}
	return !m.stuck && told == nil, nil
}

func answer(a launch.Started) error {
	c := new(launch.Coder)
	a.Code(c)
	return launch.Pass(launch.OrderFD, c.Bytes())
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
