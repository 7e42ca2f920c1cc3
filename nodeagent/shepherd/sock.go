package shepherd

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// dialUnix connects to a unix stream socket. Connecting and each write take at most the given time,
// and so does each read when readToo is set. Plain descriptors are enough for one connection: the net
// package would cost a tenth of a short step's whole time.
func dialUnix(path string, within time.Duration, readToo bool) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	limit := unix.NsecToTimeval(within.Nanoseconds())
	opts := []int{unix.SO_SNDTIMEO}
	if readToo {
		opts = append(opts, unix.SO_RCVTIMEO)
	}
	for _, opt := range opts {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, &limit); err != nil {
			unix.Close(fd)
			return nil, os.NewSyscallError("setsockopt", err)
		}
	}
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "connect", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// hangUp ends both directions, so that a reader that waits comes back.
func hangUp(f *os.File) {
	unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR)
	f.Close()
}

// openPlain opens a file without registering it with the runtime's poller.
func openPlain(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openPlainAt is openPlain below a folder, for a name that must not be a link.
func openPlainAt(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
