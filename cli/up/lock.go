package up

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockLimit is how long one that starts or stops waits for another one that does.
const lockLimit = startLimit + stopLimit

// lock makes this the only one that starts or stops the cluster until unlock. With create the folder is made,
// without it a folder or lock that is not there is os.ErrNotExist. The folder goes when the cluster is stopped:
// a lock that was got then on a file that is gone is no lock.
func (c *cluster) lock(create bool) (unlock func(), err error) {
	for end := time.Now().Add(lockLimit); ; time.Sleep(lookPause) {
		if create {
			if err := c.makeFolder(); err != nil {
				return nil, err
			}
		}
		f, err := c.openLock(create)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, errTaken) && (!create || !errors.Is(err, os.ErrNotExist)) {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("another grid up or down works on %s since %s", c.dir, lockLimit)
		}
	}
}

var errTaken = errors.New("the lock is taken")

// openLock opens and locks the file, and looks whether it is still the one that others would open.
func (c *cluster) openLock(create bool) (*os.File, error) {
	flags := os.O_RDWR | syscall.O_NOFOLLOW
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(c.file(lockFile), flags, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errTaken
	}
	if err == nil {
		var mine, there os.FileInfo
		if mine, err = f.Stat(); err == nil {
			there, err = os.Lstat(c.file(lockFile))
		}
		if err == nil && !os.SameFile(mine, there) {
			err = errTaken
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// makeFolder makes the folder and notes that it did; what others left in one that was there is not touched.
func (c *cluster) makeFolder() error {
	if err := os.MkdirAll(filepath.Dir(c.dir), 0o700); err != nil {
		return err
	}
	err := os.Mkdir(c.dir, 0o700)
	if errors.Is(err, os.ErrExist) {
		return c.mine()
	}
	if err != nil {
		return err
	}
	return os.WriteFile(c.file(madeFile), nil, 0o600)
}
