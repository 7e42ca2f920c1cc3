package server

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

const (
	plansDir = "plans"
	doneFile = "done"
)

// spool is the launcher's part of the disk.
type spool struct {
	conf *Conf

	mu   sync.Mutex
	done map[launch.Key]int64 // runs that have ended, until their credential expires (Unix ms)
	log  *os.File
}

// doneRecord is job, run, step and expiry in the done file.
const doneRecord = 20

// openSpool makes the folders and reads which runs have already been here. nowMS drops those whose
// credential can no longer be used.
func openSpool(c *Conf, nowMS int64) (*spool, error) {
	s := &spool{conf: c, done: map[launch.Key]int64{}}
	if err := s.folder("", 0o711, -1); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		mode uint32
		gid  int
	}{{plansDir, 0o700, -1}, {launch.StepsDir, 0o711, -1}, {launch.WorkDir, 0o711, -1}, {launch.OutputDir, 0o750, c.AgentGID}} {
		if err := s.folder(f.name, f.mode, f.gid); err != nil {
			return nil, err
		}
	}
	return s, s.loadDone(nowMS)
}

// folder makes one of our folders, or takes the one that is there when it is a real folder of ours.
func (s *spool) folder(name string, mode uint32, gid int) error {
	path := filepath.Join(s.conf.Spool, name)
	if err := os.Mkdir(path, fs.FileMode(mode)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d, it must be uid %d's", path, st.Uid, os.Geteuid())
	}
	if gid >= 0 && !s.conf.Rootless {
		if err := unix.Fchown(fd, -1, gid); err != nil {
			return &os.PathError{Op: "chown", Path: path, Err: err}
		}
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return nil
}

func (s *spool) loadDone(nowMS int64) error {
	path := filepath.Join(s.conf.Spool, doneFile)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var keep bytes.Buffer
	for ; len(data) >= doneRecord; data = data[doneRecord:] {
		k, expires := decodeDone(data)
		if expires > nowMS {
			s.done[k] = expires
			keep.Write(data[:doneRecord])
		}
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(keep.Bytes()); err != nil {
		return errors.Join(err, f.Close())
	}
	s.log = f
	return os.Rename(tmp, path)
}

func decodeDone(b []byte) (launch.Key, int64) {
	le := binary.LittleEndian
	return launch.Key{Job: le.Uint32(b), Run: le.Uint32(b[4:]), Step: le.Uint32(b[8:])}, int64(le.Uint64(b[12:]))
}

// maxDone is how many ended runs are kept before those with an expired credential are dropped.
const maxDone = 1 << 16

// markDone remembers that a run has been here, so that its credential is of no more use.
func (s *spool) markDone(k launch.Key, expires, nowMS int64) error {
	le := binary.LittleEndian
	b := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, k.Job), k.Run), k.Step)
	b = le.AppendUint64(b, uint64(expires))
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.done) >= maxDone {
		for old, exp := range s.done {
			if exp <= nowMS {
				delete(s.done, old)
			}
		}
	}
	s.done[k] = expires
	_, err := s.log.Write(b)
	return err
}

func (s *spool) wasDone(k launch.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.done[k]
	return ok
}

// errDuplicate means that the run has been here before.
var errDuplicate = errors.New("this run was already started here")

// claim takes the run for this launcher, once: the folder's creation is what decides between two
// orders for the same run, and it outlives the launcher.
func (s *spool) claim(k launch.Key) error {
	if s.wasDone(k) {
		return errDuplicate
	}
	err := os.Mkdir(launch.StepFolder(s.conf.Spool, k), 0o711)
	if errors.Is(err, fs.ErrExist) {
		return errDuplicate
	}
	return err
}

// storedPlan is a plan on disk, with what only the launcher needs of the credential.
type storedPlan struct {
	launch.Plan
	Expires int64 `json:"expires"`
}

// writePlan stores the plan and returns the open file, at its beginning.
func (s *spool) writePlan(p *storedPlan) (*os.File, error) {
	data, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.planPath(p.Key), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *spool) planPath(k launch.Key) string {
	return filepath.Join(s.conf.Spool, plansDir, k.String())
}

// readPlan gives back a stored plan; fs.ErrNotExist when the run is not here, or is done.
func (s *spool) readPlan(k launch.Key) (*storedPlan, error) {
	data, err := os.ReadFile(s.planPath(k))
	if err != nil {
		return nil, err
	}
	p := new(storedPlan)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("plan of %s: %w", k, err)
	}
	return p, nil
}

// writeScript stages the script. No other thread may fork while it is open for writing: a child that
// holds it open would make its execution fail with ETXTBSY.
func (s *spool) writeScript(p *launch.Plan, script []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Open(p.Script, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o500)
	if err != nil {
		return &os.PathError{Op: "create", Path: p.Script, Err: err}
	}
	f := os.NewFile(uintptr(fd), p.Script)
	defer f.Close()
	if _, err := f.Write(script); err != nil {
		return err
	}
	if !p.Rootless {
		if err := f.Chown(int(p.UID), int(p.GID)); err != nil {
			return err
		}
	}
	return f.Chmod(0o500)
}

// makeWork makes the run's work directory where no file system is shared.
func (s *spool) makeWork(p *launch.Plan) error {
	dir := p.WorkDir
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil // an earlier step of this run made it
	} else if err != nil {
		return err
	}
	if p.Rootless {
		return nil
	}
	return os.Lchown(dir, int(p.UID), int(p.GID)) // work is root's: nobody can have put a link there
}

// keys lists the runs that have a folder here.
func (s *spool) keys() ([]launch.Key, error) {
	entries, err := os.ReadDir(filepath.Join(s.conf.Spool, launch.StepsDir))
	if err != nil {
		return nil, err
	}
	keys := make([]launch.Key, 0, len(entries))
	for _, e := range entries {
		if k, err := launch.ParseKey(e.Name()); err == nil {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// planned lists the runs with a stored plan: those whose epilog has still to run.
func (s *spool) planned() ([]launch.Key, error) {
	entries, err := os.ReadDir(filepath.Join(s.conf.Spool, plansDir))
	if err != nil {
		return nil, err
	}
	var keys []launch.Key
	for _, e := range entries {
		if k, err := launch.ParseKey(e.Name()); err == nil {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// finish forgets the plan of a run whose epilog has run and whose groups are gone.
func (s *spool) finish(k launch.Key, expires, nowMS int64) error {
	if err := s.markDone(k, expires, nowMS); err != nil {
		return err
	}
	err := os.Remove(s.planPath(k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// remove takes away what the run left. The folders hold what users and shepherds made, so nothing
// here follows a link: names are removed below the spool's own folders only.
func (s *spool) remove(k launch.Key, keepOutput, lastStep bool) error {
	errs := []error{s.removeStep(k)}
	if work := launch.WorkFolder(s.conf.Spool, k); lastStep && present(work) {
		errs = append(errs, s.removeTree(work))
	}
	for _, stderr := range []bool{false, true} {
		// The output folder is root's alone to change: a name in it is a file of ours, or a link that
		// goes as a link.
		if keepOutput {
			break
		}
		if err := unix.Unlink(launch.OutputFile(s.conf.Spool, k, stderr)); err != nil && err != unix.ENOENT {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeStep takes the short way with the files that a step's folder always has.
func (s *spool) removeStep(k launch.Key) error {
	path := launch.StepFolder(s.conf.Spool, k)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err == nil {
		for _, name := range []string{launch.ScriptFile, launch.LockName, recordName} {
			unix.Unlinkat(fd, name, 0) // what stays makes the folder's removal fail, and is seen there
		}
		unix.Close(fd)
		if unix.Rmdir(path) == nil {
			return nil
		}
	}
	return s.removeTree(path)
}

// recordName is shepherd.RecordFile, which this package may not import.
const recordName = "exit.json"

// removeTree removes all below one of the spool's folders; os.Root never leaves it, whatever links
// are in there.
func (s *spool) removeTree(path string) error {
	root, err := os.OpenRoot(s.conf.Spool)
	if err != nil {
		return err
	}
	defer root.Close()
	rel, err := filepath.Rel(s.conf.Spool, path)
	if err != nil {
		return err
	}
	return root.RemoveAll(rel)
}

func present(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}
