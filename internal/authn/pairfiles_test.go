package authn

import (
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestWriteIsCut: wherever a crash cuts the writing of a pair there is a whole one, and the next writing goes on.
func TestWriteIsCut(t *testing.T) {
	p := newPKI(t, "blue", epoch)
	made := func() *Pair {
		pair, err := p.ca.Issue(RoleCtld, "c1", 0, rand.Reader, epoch)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	have := made()
	if err := have.Write(p.dir, "c1"); err != nil {
		t.Fatal(err)
	}
	clock := func() time.Time { return epoch }
	steps := len(made().writing(p.dir, "c1"))
	if steps < 3 {
		t.Fatalf("%d steps", steps)
	}
	// Twice over, so that each cut is followed by each other.
	for cut := range steps * steps {
		for _, n := range []int{cut / steps, cut % steps} {
			next := made()
			for _, step := range next.writing(p.dir, "c1")[:n+1] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			got, err := LoadPair(p.dir, "c1")
			switch {
			case err != nil:
				t.Fatalf("cut after step %d of the second, %d of the first: %v", cut%steps, cut/steps, err)
			case got.Cert.Equal(next.Cert):
				have = next
			case !got.Cert.Equal(have.Cert):
				t.Fatalf("cut after step %d: another pair than the old and the new", n)
			}
			p.open(t, "c1", clock)
		}
	}
	last := made()
	if err := last.Write(p.dir, "c1"); err != nil {
		t.Fatal(err)
	}
	if cert, err := LoadCert(filepath.Join(p.dir, "c1.pem")); err != nil || !cert.Equal(last.Cert) {
		t.Errorf("a whole writing after it: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(p.dir, "*.new")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// TestFirstWriteIsCut: a name that had nothing before is finished, too.
func TestFirstWriteIsCut(t *testing.T) {
	p := newPKI(t, "blue", epoch)
	pair, err := p.ca.Issue(RoleNode, "n1", 0, rand.Reader, epoch)
	if err != nil {
		t.Fatal(err)
	}
	steps := pair.writing(p.dir, "n1")
	for _, step := range steps[:len(steps)-1] {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := LoadPair(p.dir, "n1"); err != nil || !got.Cert.Equal(pair.Cert) {
		t.Errorf("before it is finished: %v", err)
	}
	if err := FinishPair(p.dir, "n1"); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenIdentity(p.dir, "n1", func() time.Time { return epoch }); err != nil {
		t.Error(err)
	}
	if _, err := LoadPair(p.dir, "n2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a name that has nothing: %v", err)
	}
}

// TestLockFolder: one at a time, and nobody who may only read the folder.
func TestLockFolder(t *testing.T) {
	dir := t.TempDir()
	first, err := LockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockFolder(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second one: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// A reader of the folder locks what it can open: the folder.
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	again, err := LockFolder(dir)
	if err != nil {
		t.Fatalf("a reader holds it up: %v", err)
	}
	defer again.Close()
	if info, err := again.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file that is locked: %v, %v", info.Mode(), err)
	}
}

// TestLockFolderIsNoTrap: what stands in the lock's place gives nothing away.
func TestLockFolderIsNoTrap(t *testing.T) {
	for name, make := range map[string]func(target, lock string) error{
		"another name of a file": os.Link, "a link": os.Symlink, "a folder": func(_, lock string) error { return os.Mkdir(lock, 0o700) },
		"a pipe": func(_, lock string) error { return syscall.Mkfifo(lock, 0o600) },
		"a file": func(_, lock string) error { return os.WriteFile(lock, []byte("x"), 0o600) },
	} {
		dir := t.TempDir()
		target := filepath.Join(t.TempDir(), "secret")
		if err := errors.Join(os.WriteFile(target, nil, 0o600), make(target, filepath.Join(dir, lockFile))); err != nil {
			t.Fatal(err)
		}
		if lock, err := LockFolder(dir); err == nil {
			lock.Close()
			t.Errorf("%s is locked", name)
		}
	}
}

// TestLockOfAFolderThatWasGivenAway: root has locked it once, then gave it to a daemon's account by name.
func TestLockOfAFolderThatWasGivenAway(t *testing.T) {
	if os.Getenv("LOCK_FOLDER") != "" { // the daemon
		lock, err := LockFolder(os.Getenv("LOCK_FOLDER"))
		if err != nil {
			t.Fatal(err)
		}
		lock.Close()
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "given")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self) // the test's own folder is root's alone
	program := filepath.Join(dir, "test")
	if err == nil {
		err = errors.Join(os.WriteFile(program, data, 0o755), os.Chmod(dir, 0o755))
	}
	lock, lerr := LockFolder(dir)
	if err = errors.Join(err, lerr); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	as := func() ([]byte, error) {
		cmd := exec.Command(program, "-test.run=^TestLockOfAFolderThatWasGivenAway$")
		cmd.Dir, cmd.Env = "/", []string{"LOCK_FOLDER=" + dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.CombinedOutput()
	}
	if out, err := as(); err == nil {
		t.Errorf("another account locks root's folder: %s", out)
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if out, err := as(); err != nil {
		t.Errorf("the new owner: %v\n%s", err, out)
	}
	if lock, err = LockFolder(dir); err != nil {
		t.Errorf("root again: %v", err)
	} else {
		lock.Close()
	}
	if out, err := as(); err != nil {
		t.Errorf("the new owner after root: %v\n%s", err, out)
	}
}
