package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// spool is the launcher's part of the disk.
type spool struct {
	conf *Conf
	held *os.File // the spool's folder, locked as long as this process lives

	mu     sync.Mutex
	done   doneLog
	spares []*spare

	serial atomic.Uint64 // of spare folders
}

// openSpool makes the folders and reads which runs have already been here. nowMS drops those whose
// credential can no longer be used.
func openSpool(c *Conf, nowMS int64) (*spool, error) {
	s := &spool{conf: c}
	if err := s.folder("", 0o711, -1); err != nil {
		return nil, err
	}
	if err := s.hold(); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		mode uint32
		gid  int
	}{{launch.StepsDir, 0o711, -1}, {launch.WorkDir, 0o711, -1}, {launch.OutputDir, 0o750, c.AgentGID}} {
		if err := s.folder(f.name, f.mode, f.gid); err != nil {
			return nil, errors.Join(err, s.held.Close())
		}
	}
	if err := errors.Join(s.done.load(filepath.Join(c.Spool, doneFile), nowMS), s.dropSpares()); err != nil {
		return nil, errors.Join(err, s.held.Close())
	}
	return s, nil
}

// holdWait is how long the spool of a launcher that was killed may still be held: by a child that it
// made and that has not come to its own program.
const holdWait = 2 * time.Second

// hold takes the spool for this process alone. A second launcher would remove the folders that the
// first keeps ready, know nothing of the runs that come to the first, and take its socket away.
func (s *spool) hold() error {
	f, err := os.OpenFile(s.conf.Spool, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	for end := time.Now().Add(holdWait); ; time.Sleep(20 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			s.held = f
			return nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%s is in use by another launcher", s.conf.Spool)
			if time.Now().Before(end) {
				continue
			}
		}
		return errors.Join(err, f.Close())
	}
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

// errDuplicate means that the run has been here before.
var errDuplicate = errors.New("this run was already started here")

// claim is a step's folder and its lock, open.
type claim struct {
	dir, lock int
	script    bool // a script of the same user's is there, to be written over
}

func (c *claim) close() {
	unix.Close(c.dir)
	unix.Close(c.lock)
}

// claim takes the run for this launcher, once. The folder gets its name with its lock in it, held:
// the name decides between two orders for the same run and outlives the launcher, and the lock is
// handed on with its descriptor, so that it comes free exactly when nobody starts or minds the step.
func (s *spool) claim(p *storedPlan, nowMS int64) (*claim, error) {
	if s.wasDone(p.Key) {
		return nil, errDuplicate
	}
	f, err := s.folderFor(p)
	if err != nil {
		return nil, err
	}
	defer unix.Close(f.text)
	tmp, path := s.step(f.name), launch.StepFolder(s.conf.Spool, p.Key)
	if err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); err != nil {
		f.claim.close()
		if err == unix.EEXIST {
			err = errDuplicate
		}
		return nil, errors.Join(err, s.removeTree(tmp))
	}
	if err := s.markDone(p.Key, p.Expires, nowMS); err != nil {
		f.claim.close()
		return nil, errors.Join(err, s.removeTree(path))
	}
	return f.claim, nil
}

// storedPlan is what the launcher keeps of an order, in memory and in the step's lock file, until the
// step has left.
type storedPlan struct {
	Key     launch.Key `json:"key"`
	Cluster string     `json:"cluster"`
	Node    string     `json:"node"`
	UID     uint32     `json:"uid"`
	GID     uint32     `json:"gid"`
	Expires int64      `json:"expires"`
	Vars    epilogVars `json:"vars"`

	damaged error // why the plan could not be read; then nothing but the key is known
}

// epilogVars is what prolog and epilog are told about the job.
type epilogVars struct {
	User      string `json:"user,omitempty"`
	JobName   string `json:"name,omitempty"`
	Partition string `json:"partition,omitempty"`
	Account   string `json:"account,omitempty"`
	NodeList  string `json:"nodes,omitempty"`
	WorkDir   string `json:"work_dir,omitempty"`
	Devices   string `json:"devices,omitempty"` // indexes of the GPUs, comma separated
}

// maxStored bounds a lock file in bytes.
const maxStored = 64 << 10

// openLock opens a step's lock file, if it is what we wrote: the folder is the shepherds' to change.
func (s *spool) openLock(k launch.Key, mode int) (*os.File, error) {
	path := filepath.Join(launch.StepFolder(s.conf.Spool, k), launch.LockName)
	fd, err := unix.Open(path, mode|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxStored {
		f.Close()
		return nil, errors.Join(fmt.Errorf("%s is not our file", path), err)
	}
	return f, nil
}

// readStored gives what is kept of a step; fs.ErrNotExist when it has left.
func (s *spool) readStored(k launch.Key) (*storedPlan, error) {
	f, err := s.openLock(k, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxStored))
	if err != nil {
		return nil, err
	}
	if len(data) == launch.LockPIDs {
		return nil, fs.ErrNotExist
	}
	if len(data) < launch.LockPIDs {
		return nil, fmt.Errorf("%s has %d bytes only (%w)", f.Name(), len(data), fs.ErrInvalid)
	}
	p := new(storedPlan)
	if err := json.Unmarshal(data[launch.LockPIDs:], p); err != nil || p.Key != k {
		return nil, fmt.Errorf("%s holds no plan of this step (%w)", f.Name(), errors.Join(err, fs.ErrInvalid))
	}
	return p, nil
}

// epilogDone forgets a step on the disk whose epilog has run, so that it does not run again.
func (s *spool) epilogDone(k launch.Key) error {
	f, err := s.openLock(k, unix.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(launch.LockPIDs)
}

// writeScript stages the script. The folder is root's alone until the script has been executed. No
// other thread may fork while it is open for writing: a child that holds it open would make its
// execution fail with ETXTBSY.
func (s *spool) writeScript(c *claim, p *launch.Plan, script []byte) error {
	if err := s.stage(c, p, script); err != nil {
		return &os.PathError{Op: "stage", Path: p.Script, Err: err}
	}
	return nil
}

func (s *spool) stage(c *claim, p *launch.Plan, script []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	flags := unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if !c.script {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	fd, err := unix.Openat(c.dir, launch.ScriptFile, flags, 0o500)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := overwrite(fd, script); err != nil {
		return err
	}
	if !p.Rootless {
		if err := unix.Fchown(fd, int(p.UID), int(p.GID)); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, 0o500)
}

// overwrite makes data the whole of a file, in place.
func overwrite(fd int, data []byte) error {
	for at := 0; at < len(data); {
		n, err := unix.Pwrite(fd, data[at:], int64(at))
		if err != nil && err != unix.EINTR {
			return err
		}
		at += max(n, 0)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size == int64(len(data)) {
		return err
	}
	return unix.Ftruncate(fd, int64(len(data)))
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

// planned gives the steps that have not left: those whose epilog has still to run. A run whose mark
// was not written, since the launcher died right after its claim, is marked now. A step whose plan
// cannot be read is among them, with why.
func (s *spool) planned(nowMS int64) ([]*storedPlan, error) {
	keys, err := s.keys()
	if err != nil {
		return nil, err
	}
	var all []*storedPlan
	for _, k := range keys {
		p, err := s.readStored(k)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			p = &storedPlan{Key: k, Expires: nowMS + damagedLife.Milliseconds(), damaged: err}
		}
		if !s.wasDone(k) {
			if err := s.markDone(k, p.Expires, nowMS); err != nil {
				return nil, err
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// damagedLife is how long the credential of a run may be good whose plan cannot be read.
const damagedLife = 24 * time.Hour

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

// removeStep takes a step's folder away, and keeps it for another if it can.
func (s *spool) removeStep(k launch.Key) error {
	name := spareName + strconv.FormatUint(s.serial.Add(1), 10)
	err := unix.Renameat2(unix.AT_FDCWD, launch.StepFolder(s.conf.Spool, k), unix.AT_FDCWD, s.step(name), unix.RENAME_NOREPLACE)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "rename", Path: launch.StepFolder(s.conf.Spool, k), Err: err}
	}
	if f := s.clean(name); f != nil && s.keepSpare(f) {
		return nil
	}
	return s.removeTree(s.step(name))
}

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
