package shepherd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// handover is what a forker tells its shepherd of a step that it has started. The descriptors come in
// the order of step.files; has says which.
type handover struct {
	plan   launch.Plan // without what only the start needs
	pid    int
	start  int64         // Unix ms
	boot   time.Duration // bootTime at the start
	oomWas int64
	failed bool
	why    startFailure
	notes  []string
	has    uint
}

func (h *handover) code(c *launch.Coder) {
	h.plan.Code(c, true)
	launch.Int(c, &h.pid)
	launch.Int(c, &h.start)
	launch.Int(c, &h.boot)
	launch.Int(c, &h.oomWas)
	c.Bool(&h.failed)
	launch.Uint(c, &h.why.stage)
	launch.Uint(c, &h.why.errno)
	launch.List(c, &h.notes, launch.Text[string])
	launch.Uint(c, &h.has)
}

// startForker makes our child that starts steps for us. It has the rights that we are about to give
// up, and takes its orders from the launcher alone. It dies with us: its children would be nobody's.
func startForker() (pid, sock int, err error) {
	runtime.LockOSThread() // its death is tied to the thread that starts it, and Go ends no thread of its own accord
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(pair[1])
	attr := &syscall.ProcAttr{Dir: "/", Env: os.Environ(), Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
		Files: []uintptr{0, 1, 2, launch.OrderFD, uintptr(pair[1])}}
	pid, err = syscall.ForkExec("/proc/self/exe", []string{os.Args[0], launch.Forker}, attr)
	runtime.UnlockOSThread()
	if err != nil {
		unix.Close(pair[0])
		return 0, 0, err
	}
	return pid, pair[0], unix.Close(launch.OrderFD)
}

// forker starts steps until the launcher hangs up.
func forker(now func() time.Time) error {
	syscall.CloseOnExec(launch.OrderFD)
	syscall.CloseOnExec(launch.HandFD)
	syscall.Umask(0o027)
	shepherd := os.Getppid()
	in := launch.NewReceiver(launch.OrderFD)
	for {
		body, fds, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if os.Getppid() != shepherd { // it died while it was idle: a child would be nobody's
			return answer(launch.Started{Err: "the shepherd is gone", Untouched: true, Cause: uint8(job.CauseNode)})
		}
		start, err := serve(body, fds, shepherd, now)
		if err != nil {
			// A child may be left that the shepherd knows nothing of. It ends when we do.
			return answer(launch.Started{Err: err.Error(), Errno: errnoOf(err), Cause: causeOf(err)})
		}
		if err := answer(launch.Started{Start: start}); err != nil {
			return nil // the launcher is gone: the shepherd has its step, we are not needed
		}
	}
}

// serve starts one step and hands it to the shepherd. Nothing of it is kept.
func serve(body []byte, fds []int, shepherd int, now func() time.Time) (startMS int64, err error) {
	boot := bootTime()
	s, err := beginOrder(body, fds, shepherd, now)
	if err != nil {
		return 0, err
	}
	defer s.close()
	if err := hand(s, boot); err != nil {
		return 0, errors.Join(fmt.Errorf("handing the step to its shepherd: %w", err), s.abandon())
	}
	return s.startMS, nil
}

// beginOrder starts the step of the launcher's message. A failure that is the user's is the step's
// end, not ours.
func beginOrder(body []byte, fds []int, shepherd int, now func() time.Time) (*step, error) {
	p := new(launch.Plan)
	if len(fds) != 2 {
		closeAll(fds)
		return nil, fmt.Errorf("plan with %d descriptors: %w", len(fds), unix.EINVAL)
	}
	c := launch.Reading(body)
	if p.Code(c, false); c.Err() != nil {
		closeAll(fds)
		return nil, fmt.Errorf("plan: %w", c.Err())
	}
	if p.LeaseOver(bootTime().Milliseconds()) {
		closeAll(fds)
		return nil, errLeaseOver
	}
	s, err := begin(p, fds[0], fds[1], shepherd, now)
	if err != nil {
		return nil, err
	}
	if f := s.failed; f != nil && f.blame() != job.CauseUser {
		err := fmt.Errorf("%s: %w", f.text(p), f.errno)
		err = errors.Join(err, s.abandon())
		s.close()
		return nil, err
	}
	return s, nil
}

func hand(s *step, boot time.Duration) error {
	h := handover{plan: *s.plan, pid: s.pid, start: s.startMS, boot: boot, oomWas: s.oomWas, notes: s.notes}
	if s.failed != nil {
		h.failed, h.why = true, *s.failed
	}
	var fds []int
	for i, f := range s.files() {
		if *f != nil {
			h.has |= 1 << i
			fds = append(fds, int((*f).Fd()))
		}
	}
	c := new(launch.Coder)
	h.code(c)
	return launch.Pass(launch.HandFD, c.Bytes(), fds...)
}

// receive waits for the next step.
func receive(in *launch.Receiver, now func() time.Time) (*step, error) {
	body, fds, err := in.Next()
	if err != nil {
		return nil, err
	}
	h, c := new(handover), launch.Reading(body)
	if h.code(c); c.Err() != nil {
		closeAll(fds)
		return nil, fmt.Errorf("step: %w", c.Err())
	}
	s := &step{plan: &h.plan, pid: h.pid, startMS: h.start, oomWas: h.oomWas, notes: h.notes,
		start: now().Add(h.boot - bootTime())}
	if h.failed {
		s.failed = &h.why
	}
	next := 0
	for i, f := range s.files() {
		if h.has&(1<<i) != 0 && next < len(fds) {
			*f = os.NewFile(uintptr(fds[next]), "handed")
			next++
		}
	}
	if next != len(fds) || s.dir == nil || s.lock == nil || s.events == nil {
		s.close()
		return nil, fmt.Errorf("step with %d descriptors: %w", len(fds), unix.EBADMSG)
	}
	return s, nil
}

// errLeaseOver: the run's lease ran out on the way to us; its job may be started elsewhere.
var errLeaseOver = errors.New("the run's lease ran out before it was started")

// causeOf is whose fault it is that a step was not started.
func causeOf(err error) uint8 {
	if errors.Is(err, errLeaseOver) {
		return uint8(job.CauseCredential)
	}
	return uint8(job.CauseNode)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
