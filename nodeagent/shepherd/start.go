package shepherd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// step is a started step, and the descriptors that were opened for it while we were root.
type step struct {
	plan    *launch.Plan
	pid     int // the first process; it is not collected before mind does
	start   time.Time
	startMS int64    // what was answered to the launcher
	stderr  *os.File // the user's standard error, for notes; nil when it could not be opened
	dir     *os.File // the step's folder
	lock    *os.File // held while we live
	kill    *os.File // cgroup.kill; nil without one
	oom     *os.File // counts OOM kills; nil without a limit
	usage   *os.File // processor time of the group; nil without one
	events  *os.File // says whether something lives in the group; nil without one
	forker  int      // our child that starts steps; 0 when there is none
	oomWas  int64
	// failed is set when the child ended before its exec; the step has ended then.
	failed *startFailure
	notes  []string // lines for standard error that came up during the start
}

// files gives every descriptor's place, in the order in which they are handed on.
func (s *step) files() []**os.File {
	return []**os.File{&s.dir, &s.lock, &s.kill, &s.oom, &s.usage, &s.events, &s.stderr}
}

func (s *step) close() {
	for _, f := range s.files() {
		if *f != nil {
			(*f).Close()
			*f = nil
		}
	}
}

// startFailure is why a child did not reach its script.
type startFailure struct {
	stage uint32
	errno syscall.Errno
}

// begin makes the step's first process: our own child or, with shepherd set, that of the shepherd
// with this number, whose child we are. It runs as root, and looks at no byte of the user's. dir and
// lock are the step's folder and its lock; they are closed on an error, as is all that was opened.
func begin(p *launch.Plan, dir, lock int, shepherd int, now func() time.Time) (*step, error) {
	s := &step{plan: p, dir: os.NewFile(uintptr(dir), p.StepDir), lock: os.NewFile(uintptr(lock), LockFile)}
	if err := s.make(shepherd, now); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *step) make(shepherd int, now func() time.Time) error {
	p := s.plan
	group := -1
	if p.Group.Unified != "" {
		fd, err := unix.Open(p.Group.Unified, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: p.Group.Unified, Err: err}
		}
		defer unix.Close(fd)
		group = fd
	}
	if err := s.openOwn(group); err != nil {
		return err
	}
	f, err := openSpooled(p)
	if err != nil {
		return err
	}
	defer f.close()
	if err := s.forkChild(f, group, shepherd, now); err != nil {
		return err
	}
	return s.handFolder()
}

// openOwn opens the control files, which only root may open. group is the step's version 2 directory.
func (s *step) openOwn(group int) error {
	g := s.plan.Group
	for _, open := range []struct {
		path string
		mode int
		to   **os.File
	}{{g.KillFile(), unix.O_WRONLY, &s.kill}, {g.UsageFile(), unix.O_RDONLY, &s.usage}, {g.EventsFile(), unix.O_RDONLY, &s.events}} {
		if open.path == "" {
			continue
		}
		name := filepath.Base(open.path)
		fd, err := unix.Openat(group, name, open.mode|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: open.path, Err: err}
		}
		*open.to = os.NewFile(uintptr(fd), name)
	}
	var err error
	if path := g.OOMFile(); path != "" {
		if s.oom, err = openPlain(path, unix.O_RDONLY); err != nil {
			return err
		}
	}
	s.oomWas, err = s.oomKills()
	return err
}

// openSpooled makes the output files of a step without a shared file system. They lie in a folder
// of root's and are new: the output of another run is never written over.
func openSpooled(p *launch.Plan) (files, error) {
	f := files{-1, -1}
	if !p.Spooled {
		return f, nil
	}
	for _, o := range []struct {
		path string
		fd   *int
	}{{p.StdOut, &f.out}, {p.StdErr, &f.err}} {
		if o.path == "" {
			continue
		}
		fd, err := unix.Open(o.path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_APPEND|unix.O_CLOEXEC, 0o640)
		if err != nil {
			f.close()
			return f, &os.PathError{Op: "create", Path: o.path, Err: err}
		}
		*o.fd = fd
		if p.Rootless {
			continue
		}
		if err := unix.Fchown(fd, p.StepUID, p.AgentGID); err != nil {
			f.close()
			return f, &os.PathError{Op: "chown", Path: o.path, Err: err}
		}
	}
	return f, nil
}

func (f files) close() {
	for _, fd := range []int{f.out, f.err} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// forkChild makes the child and follows it until it has executed the script, or has failed.
func (s *step) forkChild(f files, group, shepherd int, now func() time.Time) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(pair[0])
	prog := compose(s.plan, f, pair[1])
	if err := s.sign(); err != nil { // the child is found below us before it has reached its script
		unix.Close(pair[1])
		return err
	}
	s.start = now()
	s.startMS = s.start.UnixMilli()
	syscall.ForkLock.Lock()
	pid, errno := fork(prog.ops, pair[1], group, shepherd != 0)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(prog)
	unix.Close(pair[1])
	if errno != 0 {
		return fmt.Errorf("fork: %w", errno)
	}
	s.pid = pid
	if err := s.sign(); err != nil {
		return errors.Join(err, s.abandon())
	}
	if err := s.follow(pair[0], prog.ops); err != nil {
		return errors.Join(err, s.abandon())
	}
	return nil
}

// sign writes into the lock file who minds the step and which session is its, where no group tells.
// The lock itself is open for reading only: what else is in the file is the launcher's.
func (s *step) sign() error {
	if s.plan.Group.Unified != "" {
		return nil
	}
	f, err := openPlainAt(s.dir, LockFile, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	line, err := launch.LockLine(os.Getpid(), s.pid)
	if err == nil {
		_, err = f.WriteAt(line, 0)
	}
	return errors.Join(err, f.Close())
}

// handFolder lets the shepherds' group into the step's folder, where the record will be written. The
// folder stays root's and is sticky: the record's file is theirs, and so they can rename it, but not
// the script, which is the user's, nor the lock.
func (s *step) handFolder() error {
	if s.plan.Rootless {
		return nil
	}
	dir := int(s.dir.Fd())
	err := unix.Fchown(dir, 0, s.plan.StepGID)
	if err == nil {
		err = unix.Fchmod(dir, unix.S_ISVTX|0o771)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("step's folder: %w", err), s.abandon())
	}
	return nil
}

// follow reads what the child says until it closes its end.
func (s *step) follow(sock int, ops []op) error {
	var buf [unsafe.Sizeof(message{})]byte
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(sock, buf[:], oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("child: %w", err)
		}
		if n == 0 {
			return nil
		}
		m := (*message)(unsafe.Pointer(&buf))
		switch {
		case m.op == handed:
			if err := s.takeStderr(oob[:oobn]); err != nil {
				return err
			}
		case ops[m.op].kind == soft:
			s.notes = append(s.notes, fmt.Sprintf("couldn't chdir to `%s': %s: going to %s instead",
				s.plan.WorkDir, errnoText(syscall.Errno(m.errno)), fallbackDir))
		default:
			s.failed = &startFailure{ops[m.op].note, syscall.Errno(m.errno)}
		}
	}
}

func (s *step) takeStderr(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return fmt.Errorf("standard error of the child: %w", errors.Join(err, unix.EBADMSG))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	s.stderr = os.NewFile(uintptr(fds[0]), "stderr")
	return nil
}

// abandon ends a child whose start cannot be finished, and everything that it may have started. We
// end after it: whoever takes our children collects it.
func (s *step) abandon() error {
	if s.kill != nil {
		if _, err := s.kill.WriteString("1"); err != nil {
			return err
		}
	}
	if err := unix.Kill(s.pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
		return err
	}
	return nil
}

// errnoText is the system's sentence for an error number.
func errnoText(e syscall.Errno) string {
	s := e.Error()
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		s = string(s[0]-'a'+'A') + s[1:]
	}
	return s
}

// text says for people what failed.
func (f *startFailure) text(p *launch.Plan) string {
	name := map[uint32]string{
		stageGroup:  "joining the control groups",
		stageIDs:    "giving up root",
		stageDir:    "work directory " + fallbackDir,
		stageStdin:  "could not open stdin file " + p.StdIn,
		stageStdout: "could not open stdout file " + p.StdOut,
		stageStderr: "could not open stderr file " + p.StdErr,
		stageExec:   "execve(): " + p.Script,
	}[f.stage]
	if name == "" {
		name = "start of stage " + strconv.Itoa(int(f.stage))
	}
	return name + ": " + errnoText(f.errno)
}

// blame is whose fault it was.
func (f *startFailure) blame() job.Cause {
	switch f.stage {
	case stageStdin, stageStdout, stageStderr, stageExec:
		return job.CauseUser
	}
	return job.CauseNode
}
