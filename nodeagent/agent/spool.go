package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// maxRecord bounds an exit record.
const maxRecord = 64 << 10

var errNoRecord = errors.New("no exit record")

// spool reads the node's spool. Nothing that a job can write is followed: names are made of numbers
// only, and the kernel refuses links and whatever leads out. The folder itself is only passed
// through: it is the launcher's, and lists nothing to us.
type spool struct {
	dir  *os.File
	path string
}

func openSpool(path string) (*spool, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("spool %s: %w", path, err)
	}
	return &spool{os.NewFile(uintptr(fd), path), path}, nil
}

func (s *spool) close() { s.dir.Close() }

// steps lists the runs that have a folder. fs.ErrPermission: only the launcher can tell. More than
// limit is an error: none may be overlooked.
func (s *spool) steps(limit int) ([]launch.Key, error) {
	dir, err := s.openat(launch.StepsDir, unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the launcher has not been here yet
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var keys []launch.Key
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if k, err := launch.ParseKey(name); err == nil {
				keys = append(keys, k)
			}
		}
		if len(keys) > limit {
			return nil, fmt.Errorf("spool: more than %d step folders in %s", limit, filepath.Join(s.path, launch.StepsDir))
		}
		if errors.Is(err, io.EOF) {
			return keys, nil
		}
		if err != nil {
			return nil, fmt.Errorf("spool: %w", err)
		}
	}
}

// exists tells whether the run has a folder.
func (s *spool) exists(k launch.Key) (bool, error) {
	dir, err := s.openat(launch.StepFolder("", k), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, dir.Close()
}

// lock opens the run's lock file.
func (s *spool) lock(k launch.Key) (*os.File, error) {
	return s.open(filepath.Join(launch.StepFolder("", k), shepherd.LockFile))
}

// record reads the run's exit record. errNoRecord: there is none. errBadRecord: what is there is
// no record of this run, and will not become one.
func (s *spool) record(k launch.Key) (*shepherd.Record, error) {
	data, err := s.readFile(filepath.Join(launch.StepFolder("", k), shepherd.RecordFile), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoRecord
	}
	if err != nil {
		return nil, err
	}
	rec, err := decodeRecord(data)
	if err != nil {
		return nil, err
	}
	if rec.Key != k {
		return nil, fmt.Errorf("%w: it is of step %s", errBadRecord, rec.Key)
	}
	return rec, nil
}

var errBadRecord = errors.New("exit record is damaged")

// decodeRecord is strict: an unknown field or trailing bytes make a record damaged.
func decodeRecord(data []byte) (*shepherd.Record, error) {
	if len(data) > maxRecord {
		return nil, fmt.Errorf("%w: over the limit of %d bytes", errBadRecord, maxRecord)
	}
	rec := &shepherd.Record{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(rec); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadRecord, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more after the record", errBadRecord)
	}
	if err := checkRecord(rec); err != nil {
		return nil, err
	}
	return rec, nil
}

// checkRecord refuses what no step's end can look like.
func checkRecord(rec *shepherd.Record) error {
	if rec.ExitCode < 0 || rec.ExitCode > 255 || rec.Signal < 0 || rec.Signal > 127 {
		return fmt.Errorf("%w: exit %d:%d", errBadRecord, rec.ExitCode, rec.Signal)
	}
	return nil
}

// readFile reads a small regular file; max+1 bytes is an error.
func (s *spool) readFile(name string, max int64) ([]byte, error) {
	f, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if int64(len(data)) > max {
		return nil, fmt.Errorf("%w: %s is over the limit of %d bytes", errBadRecord, name, max)
	}
	return data, nil
}

// openat opens below the spool. No link is followed on the way, and a FIFO does not block.
func (s *spool) openat(name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	if flags&unix.O_PATH != 0 {
		how.Flags &^= unix.O_NONBLOCK
	}
	for {
		fd, err := unix.Openat2(int(s.dir.Fd()), name, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), filepath.Join(s.path, name)), nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return nil, &os.PathError{Op: "open", Path: filepath.Join(s.path, name), Err: err}
		}
	}
}

// open opens a regular file and nothing else.
func (s *spool) open(name string) (*os.File, error) {
	f, err := s.openat(name, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", f.Name())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lockHeld tells whether somebody holds the flock of f. The lock is taken shared and given back with
// f, so that two who look do not see each other.
func lockHeld(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return true, nil
		default:
			return false, err
		}
	}
}
