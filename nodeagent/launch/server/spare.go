package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// Folders of steps are used again, with the files in them: new inodes are dear where many have just
// been deleted (ext4 looks at each of those first), and a step needs four. What makes it sound:
//
//   - a folder is always root's, and sticky while a shepherd may write there: it can change its record
//     only;
//   - between two steps a folder has a name that is no step's, and nobody else may write there;
//   - it is then looked through, and thrown away when there is anything in it that is not ours;
//   - the lock file is root's, and others hold it open for reading only; a folder whose lock somebody
//     still holds is thrown away;
//   - a script's file is used again for the same user only, who may hold it open for writing;
//   - the record's file is the shepherds' uid's before as after.
const (
	recordName = "exit.json" // shepherd.RecordFile, which this package may not import
	spareName  = ".spare-"
	maxSpares  = 64
	recordNew  = recordName + ".new" // where a shepherd writes its record
)

// spare is a folder without a name of a step's.
type spare struct {
	*claim
	name string
	text int    // the lock file, to be written
	uid  uint32 // whose script is there, if one is
}

func (s *spool) step(name string) string {
	return filepath.Join(s.conf.Spool, launch.StepsDir, name)
}

// keepSpare takes a folder for a later step, unless there are enough.
func (s *spool) keepSpare(f *spare) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spares) >= maxSpares {
		f.close()
		return false
	}
	s.spares = append(s.spares, f)
	return true
}

// takeSpare prefers a folder with a script of the user's.
func (s *spool) takeSpare(uid uint32) *spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := len(s.spares) - 1
	if at < 0 {
		return nil
	}
	for i := at; i >= 0; i-- {
		if s.spares[i].script && s.spares[i].uid == uid {
			at = i
			break
		}
	}
	f := s.spares[at]
	s.spares = append(s.spares[:at], s.spares[at+1:]...)
	return f
}

func (f *spare) close() {
	unix.Close(f.dir)
	unix.Close(f.text)
}

// folderFor gives a folder with the lock in it held, and what is kept of the order written there.
func (s *spool) folderFor(p *storedPlan) (*spare, error) {
	text, err := lockText(p)
	if err != nil {
		return nil, err
	}
	if f := s.takeSpare(p.UID); f != nil {
		err := s.ready(f, p.UID, text)
		if err == nil {
			return f, nil
		}
		f.close()
		if err := s.removeTree(s.step(f.name)); err != nil {
			return nil, err
		}
	}
	f, err := s.newFolder()
	if err != nil {
		return nil, err
	}
	if err := s.ready(f, p.UID, text); err != nil {
		f.close()
		return nil, errors.Join(err, s.removeTree(s.step(f.name)))
	}
	return f, nil
}

// ready takes the folder's lock and writes its text. The lock goes to the shepherd for reading only.
func (s *spool) ready(f *spare, uid uint32, text []byte) error {
	if f.script && (f.uid != uid || s.conf.Rootless) { // its mode lets nobody but root write it
		if err := unix.Unlinkat(f.dir, launch.ScriptFile, 0); err != nil {
			return err
		}
		f.script = false
	}
	lock, err := unix.Openat(f.dir, launch.LockName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = overwrite(f.text, text)
	}
	if err != nil {
		unix.Close(lock)
		return fmt.Errorf("lock: %w", err)
	}
	f.lock = lock
	return nil
}

// lockLength is what most lock files fit in: they are written over without a change of length.
const lockLength = 1024

// lockText is a line with room for process numbers, and what the launcher keeps.
func lockText(p *storedPlan) ([]byte, error) {
	kept, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	text := make([]byte, max(lockLength, launch.LockPIDs+len(kept)+1))
	for i := range text {
		text[i] = ' '
	}
	copy(text[launch.LockPIDs:], kept)
	text[launch.LockPIDs-1], text[len(text)-1] = '\n', '\n'
	return text, nil
}

// newFolder makes a folder with a lock file.
func (s *spool) newFolder() (*spare, error) {
	name := spareName + strconv.FormatUint(s.serial.Add(1), 10)
	path := s.step(name)
	if err := unix.Mkdir(path, 0o711); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	text, err := unix.Openat(dir, launch.LockName, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o640)
	if err != nil {
		unix.Close(dir)
		return nil, errors.Join(fmt.Errorf("lock: %w", err), s.removeTree(path))
	}
	f := &spare{claim: &claim{dir: dir, lock: -1}, name: name, text: text}
	if !s.conf.Rootless {
		err = unix.Fchown(text, 0, s.conf.AgentGID)
	}
	if err == nil {
		err = s.reserve(f)
	}
	if err != nil {
		f.close()
		return nil, errors.Join(err, s.removeTree(path))
	}
	return f, nil
}

// reserve makes the record's file, the shepherds' own, with its bytes taken from the disk: what a job
// writes cannot leave its end without room.
func (s *spool) reserve(f *spare) error {
	fd, err := unix.Openat(f.dir, recordNew, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	defer unix.Close(fd)
	if err := overwrite(fd, bytes.Repeat([]byte{' '}, launch.RecordRoom)); err != nil || s.conf.Rootless {
		return err
	}
	return unix.Fchown(fd, s.conf.StepUID, s.conf.AgentGID)
}

// clean makes a folder root's alone again and looks through it. nil: it is of no more use.
func (s *spool) clean(name string) *spare {
	dir, err := unix.Open(s.step(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := &spare{claim: &claim{dir: dir, lock: -1}, name: name, text: -1}
	if s.reset(f) != nil {
		unix.Close(dir)
		if f.text >= 0 {
			unix.Close(f.text)
		}
		return nil
	}
	return f
}

func (s *spool) reset(f *spare) error {
	if !s.conf.Rootless {
		if err := errors.Join(unix.Fchown(f.dir, 0, 0), unix.Fchmod(f.dir, 0o711)); err != nil {
			return err
		}
	}
	if err := unix.Renameat(f.dir, recordName, f.dir, recordNew); err != nil && err != unix.ENOENT {
		return err
	}
	names, err := list(f.dir)
	if err != nil {
		return err
	}
	reserved := false
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(f.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
			return fmt.Errorf("%s is not ours", name)
		}
		owner := map[string]int{launch.LockName: os.Geteuid(), recordNew: s.conf.StepUID, launch.ScriptFile: int(st.Uid)}
		if want, ours := owner[name]; !ours || want != int(st.Uid) {
			return fmt.Errorf("%s is not ours", name)
		}
		switch name {
		case launch.ScriptFile:
			f.script, f.uid = true, st.Uid
		case recordNew:
			if reserved = st.Size >= launch.RecordRoom; !reserved {
				return fmt.Errorf("%s is too short", name)
			}
		}
	}
	if !reserved { // its step left no record
		if err := s.reserve(f); err != nil {
			return err
		}
	}
	f.text, err = unix.Openat(f.dir, launch.LockName, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	return err
}

// list gives the names in an open folder, few as they must be.
func list(dir int) ([]string, error) {
	buf := make([]byte, 1024)
	n, err := unix.Getdents(dir, buf)
	if err != nil {
		return nil, err
	}
	_, _, names := unix.ParseDirent(buf[:n], -1, nil)
	if more, err := unix.Getdents(dir, buf); err != nil || more != 0 {
		return nil, errors.Join(err, errors.New("too much is in it"))
	}
	return names, nil
}

// dropSpares removes the folders of an earlier launcher that are no step's.
func (s *spool) dropSpares() error {
	entries, err := os.ReadDir(filepath.Join(s.conf.Spool, launch.StepsDir))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), spareName) {
			err = errors.Join(err, s.removeTree(s.step(e.Name())))
		}
	}
	return err
}
