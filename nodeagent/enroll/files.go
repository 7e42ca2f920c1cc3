package enroll

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// A pair is put in place in steps that a crash may cut anywhere: the parts are written beside their places and
// brought to the disk, then renamed, the key before its certificate. Recover goes on from wherever it stopped.
const newSuffix = ".new"

// Owner is the account that keys are given to; nil: they stay ours.
type Owner struct{ UID, GID int }

// folder is a TLS folder and a daemon's name in it.
type folder struct {
	dir, name string
	owner     *Owner
}

func (f folder) path(file string) string { return filepath.Join(f.dir, file) }
func (f folder) key() string             { return f.path(f.name + ".key") }
func (f folder) cert() string            { return f.path(f.name + ".pem") }
func (f folder) ca() string              { return f.path(authn.CAFile) }

// lock keeps a second process from changing the folder; it lives with the returned file.
func (f folder) lock() (*os.File, error) { return authn.LockFolder(f.dir) }

// ours tells whether this account may change what is in a folder. Who may write there but not lock what root
// has locked there may not.
func ours(dir string) bool {
	if unix.Access(dir, unix.W_OK|unix.X_OK) != nil {
		return false
	}
	lock, err := authn.LockFolder(dir)
	if err != nil {
		return errors.Is(err, authn.ErrLocked)
	}
	lock.Close()
	return true
}

// put writes a new file at path and brings it to the disk. Its mode is right from its first instant.
func (f folder) put(path string, data []byte, mode os.FileMode) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	o, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = o.Write(data)
	if err == nil && f.owner != nil {
		err = o.Chown(f.owner.UID, f.owner.GID)
	}
	if err == nil {
		err = o.Chmod(mode) // as asked, whatever the umask
	}
	if err == nil {
		err = o.Sync()
	}
	if cerr := o.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}

func (f folder) putKey(key ed25519.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return f.put(f.key()+newSuffix, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// sync brings the folder's names to the disk.
func (f folder) sync() error {
	d, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// install renames the parts that were written: the authority, the key, then the certificate.
func (f folder) install() error {
	if err := f.sync(); err != nil {
		return err
	}
	for _, path := range []string{f.ca(), f.key(), f.cert()} {
		if err := os.Rename(path+newSuffix, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return f.sync()
}

// belongs tells whether a key file and a certificate file are of one pair.
func belongs(keyPath, certPath string) bool {
	key, err := loadKey(keyPath)
	if err != nil {
		return false
	}
	cert, err := authn.LoadCert(certPath)
	if err != nil {
		return false
	}
	pub, ok := cert.PublicKey.(ed25519.PublicKey)
	return ok && pub.Equal(key.Public())
}

// loadKey reads a key that root may have made for another account, which authn.LoadKey refuses.
func loadKey(path string) (ed25519.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s is no PEM file", path)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ed, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T, want an Ed25519 key", path, key)
	}
	return ed, nil
}

// finish completes an installation that a crash has cut, or takes away what is of no use; finished tells that a
// new pair was put in place.
func (f folder) finish() (finished bool, err error) {
	keyNew, certNew, caNew := f.key()+newSuffix, f.cert()+newSuffix, f.ca()+newSuffix
	switch {
	case exists(certNew) && belongs(keyNew, certNew):
		return true, f.install()
	case exists(certNew) && !exists(keyNew) && belongs(f.key(), certNew):
		return true, f.install()
	}
	for _, path := range []string{certNew, keyNew, caNew} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return false, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Recover finishes what a crash has cut while a pair was replaced. It is called before the pair is read. Where the
// folder cannot be changed there is nothing to finish.
func Recover(dir, name string) error {
	f := folder{dir: dir, name: name}
	if !exists(f.key()+newSuffix) && !exists(f.cert()+newSuffix) {
		return nil
	}
	lock, err := f.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = f.finish()
	return err
}

// state is what stands in a folder under a name.
type state struct {
	cluster string
	role    authn.Role
	until   time.Time
}

// errNoPair: there is none, or one that is good for nothing.
var errNoPair = errors.New("no good pair")

// look tells what pair there is; an error that wraps errNoPair says that it may be replaced.
func (f folder) look(now time.Time) (state, error) {
	if !exists(f.cert()) && !exists(f.key()) {
		return state{}, errNoPair
	}
	if !belongs(f.key(), f.cert()) {
		return state{}, fmt.Errorf("%w: %s does not belong to %s", errNoPair, f.key(), f.cert())
	}
	cert, err := authn.LoadCert(f.cert())
	if err != nil {
		return state{}, fmt.Errorf("%w: %w", errNoPair, err)
	}
	cluster, role, _, err := authn.IdentityOf(cert)
	if err != nil {
		return state{}, fmt.Errorf("%w: %w", errNoPair, err)
	}
	if !now.Before(cert.NotAfter) {
		return state{}, fmt.Errorf("%w: the certificate ended %s", errNoPair, cert.NotAfter.Format(time.RFC3339))
	}
	return state{cluster, role, cert.NotAfter}, nil
}
