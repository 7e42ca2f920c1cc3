package shepherd

import (
	"encoding/json"
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
// the order of step.files; Has says which.
type handover struct {
	Plan   *launch.Plan  `json:"plan"` // without what only the start needs
	PID    int           `json:"pid"`
	Start  int64         `json:"start_ms"`
	Boot   time.Duration `json:"boot"` // bootTime at the start
	OOMWas int64         `json:"oom,omitempty"`
	Failed *startFailure `json:"failed,omitempty"`
	Notes  []string      `json:"notes,omitempty"`
	Has    uint          `json:"has"`
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
			return answer(launch.Started{Err: err.Error(), Errno: errnoOf(err), Cause: uint8(job.CauseNode)})
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
	if err := json.Unmarshal(body, p); err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("plan: %w", err)
	}
	s, err := begin(p, fds[0], fds[1], shepherd, now)
	if err != nil {
		return nil, err
	}
	if f := s.failed; f != nil && f.blame() != job.CauseUser {
		err := fmt.Errorf("%s: %w", f.text(p), f.Errno)
		err = errors.Join(err, s.abandon())
		s.close()
		return nil, err
	}
	return s, nil
}

func hand(s *step, boot time.Duration) error {
	short := *s.plan
	short.Args, short.Env, short.Groups = nil, nil, nil
	h := handover{Plan: &short, PID: s.pid, Start: s.startMS, Boot: boot, OOMWas: s.oomWas, Failed: s.failed, Notes: s.notes}
	var fds []int
	for i, f := range s.files() {
		if *f != nil {
			h.Has |= 1 << i
			fds = append(fds, int((*f).Fd()))
		}
	}
	body, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return launch.Pass(launch.HandFD, body, fds...)
}

// receive waits for the next step.
func receive(in *launch.Receiver, now func() time.Time) (*step, error) {
	body, fds, err := in.Next()
	if err != nil {
		return nil, err
	}
	h := new(handover)
	if err := json.Unmarshal(body, h); err != nil || h.Plan == nil {
		closeAll(fds)
		return nil, fmt.Errorf("step: %w", errors.Join(err, unix.EBADMSG))
	}
	s := &step{plan: h.Plan, pid: h.PID, startMS: h.Start, oomWas: h.OOMWas, failed: h.Failed, notes: h.Notes,
		start: now().Add(h.Boot - bootTime())}
	next := 0
	for i, f := range s.files() {
		if h.Has&(1<<i) != 0 && next < len(fds) {
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

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
