package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// devLock is the file in the folder of a development cluster that its gctld holds locked while it lives.
const devLock = "gctld.lock"

// takeFolder makes the cluster's folder and holds it until the process ends: a second cluster in a
// folder would give the first one new certificates and take its sockets, pid files and groups away.
// The kernel lets go of it, so one that was killed leaves nothing to clean up.
func (d *devLayout) takeFolder(mode os.FileMode) error {
	if d.lock != nil {
		return nil
	}
	if d.dir == "" {
		dir, err := os.MkdirTemp("", "grid-")
		if err != nil {
			return fmt.Errorf("folder: %w", err)
		}
		d.dir, d.temporary = dir, true
	}
	abs, err := filepath.Abs(d.dir)
	if err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	d.dir, d.cluster = abs, clusterOf(abs)
	if err := d.checkSockets(); err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir, mode); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	if err := checkOwnedBy(d.dir, uint32(os.Geteuid())); err != nil {
		return err
	}
	f, err := os.OpenFile(d.path(devLock), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("folder: lock %s: %w", f.Name(), err)
		}
		who, _ := os.ReadFile(f.Name())
		return fmt.Errorf("a cluster runs in %s already (process %s): stop it or choose another --dir", d.dir, strings.TrimSpace(string(who)))
	}
	d.lock = f
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	if _, err := fmt.Fprintln(f, os.Getpid()); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	return nil
}

// checkSockets refuses a folder in which the longest socket would not have room.
func (d *devLayout) checkSockets() error {
	longest := d.path("run", d.nodeName(d.nodes-1), "launcher.sock")
	if over := len(longest) - maxSocketPath; over > 0 {
		return fmt.Errorf("--dir %s is %d bytes too long: the path of a socket in it may have %d bytes, and %s has %d",
			d.dir, over, maxSocketPath, longest, len(longest))
	}
	return nil
}
