package authn

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// newSuffix marks the parts of a pair that are not in place yet.
const newSuffix = ".new"

// lockFile is what LockFolder locks.
const lockFile = ".lock"

// ErrLocked says that another process changes the pairs of a folder.
var ErrLocked = errors.New("another process changes it")

// LockFolder keeps others that ask for the same from changing the pairs in dir, until the file is closed or
// the process ends. It never waits: the error wraps ErrLocked. The lock is on a file that only the folder's
// owner can open; one on the folder itself could be held by whoever may read it.
func LockFolder(dir string) (*os.File, error) {
	f, err := openLock(dir)
	if owner, ok := ownerOf(dir + "/."); errors.Is(err, fs.ErrPermission) && ok && owner == os.Geteuid() {
		// It is root's, from before the folder was given to this account.
		if err = remove(filepath.Join(dir, lockFile)); err == nil {
			f, err = openLock(dir)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err = plain(f); err == nil {
		if owner, ok := ownerOf(dir + "/."); ok && owner != 0 && os.Geteuid() == 0 {
			err = f.Chown(owner, -1) // root must not shut out the daemon whose folder it is
		}
	}
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// plain refuses what is no file of its own: the folder's owner must not get root to give another file away.
func plain(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.Mode().IsRegular() || st.Nlink != 1 || info.Size() != 0 {
		return fmt.Errorf("%s is no empty file with one name", f.Name())
	}
	return nil
}

func openLock(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
}

// Write stores a pair as NAME.pem (0644) and NAME.key (0600) in dir. Wherever a crash cuts it LoadPair finds
// a whole pair, the old or the new; a daemon that reloads meanwhile too. Of two at one time the parts can be
// mixed: whoever may not be alone holds LockFolder.
func (p *Pair) Write(dir, name string) error {
	for _, step := range p.writing(dir, name) {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// writing lists the steps of Write, after each of which it may be cut.
func (p *Pair) writing(dir, name string) []func() error {
	place, key := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	return []func() error{
		func() error { return FinishPair(dir, name) },
		func() error { return remove(key + newSuffix) }, // of a renewal that was cut before anything was in place
		func() error { return placeFile(place+newSuffix, place, certPEM(p.Cert), 0o644, os.Rename) },
		func() error { return writeKey(key, p.Key) },
		func() error { return putInPlace(place) },
	}
}

// FinishPair puts the certificate in place whose key a Write that was cut has put in place already. It does
// nothing where nothing was cut.
func FinishPair(dir, name string) error {
	place := filepath.Join(dir, name+".pem")
	cert, err := LoadCert(place + newSuffix)
	if err != nil {
		return nil // none, or one that was never whole
	}
	key, err := loadKey(filepath.Join(dir, name+".key"), os.Geteuid() == 0)
	if err != nil || !owns(key, cert) {
		return nil
	}
	return putInPlace(place)
}

func putInPlace(path string) error {
	err := os.Rename(path+newSuffix, path)
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("put %s in place: %w", path, err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// LoadPair reads what Pair.Write stored: the key must be the certificate's. Where a Write was cut behind the
// key, the certificate that waits beside its place is the key's.
func LoadPair(dir, name string) (*Pair, error) { return loadPair(dir, name, false) }

// CheckPair is for root, who looks after pairs of daemons that run under other accounts: LoadPair,
// whoever owns the key.
func CheckPair(dir, name string) error {
	_, err := loadPair(dir, name, os.Geteuid() == 0)
	return err
}

func loadPair(dir, name string, anyOwner bool) (*Pair, error) {
	certPath, keyPath := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	cert, certErr := LoadCert(certPath)
	if certErr != nil && !errors.Is(certErr, fs.ErrNotExist) {
		return nil, certErr
	}
	key, err := loadKey(keyPath, anyOwner)
	switch {
	case err != nil && certErr != nil:
		return nil, certErr
	case err != nil:
		return nil, err
	}
	if certErr != nil || !owns(key, cert) {
		next, err := LoadCert(certPath + newSuffix)
		switch {
		case err == nil && owns(key, next):
			return &Pair{Cert: next, Key: key}, nil
		case certErr != nil:
			return nil, certErr
		}
		return nil, fmt.Errorf("%s does not belong to %s", keyPath, certPath)
	}
	return &Pair{Cert: cert, Key: key}, nil
}

// owns tells whether a certificate is of a key.
func owns(key ed25519.PrivateKey, cert *x509.Certificate) bool {
	pub, ok := cert.PublicKey.(ed25519.PublicKey)
	return ok && pub.Equal(key.Public())
}

func certPEM(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

func writeKey(path string, key ed25519.PrivateKey) error {
	data, err := keyPEM(key)
	if err != nil {
		return err
	}
	return writeFile(path, data, 0o600)
}

func writeCert(path string, cert *x509.Certificate) error {
	return writeFile(path, certPEM(cert), 0o644)
}

// writeFile replaces path in one step, whatever happens meanwhile; a reader sees the old or the new
// bytes. The new file belongs to whom the old one belonged to: daemons cannot read keys of others.
func writeFile(path string, data []byte, mode os.FileMode) error {
	return placeFile(path, path, data, mode, os.Rename)
}

// placeFile writes a file beside path, brings it to the disk and puts it in place. It belongs to whom the file
// like belongs to, if there is one.
func placeFile(path, like string, data []byte, mode os.FileMode, place func(tmp, path string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600 from its first instant
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name()) // in place by rename: it is gone
	_, err = f.Write(data)
	if old, ok := ownerOf(like); ok && err == nil && old != os.Geteuid() {
		err = f.Chown(old, -1)
	}
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = place(f.Name(), path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func ownerOf(path string) (uid int, ok bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
