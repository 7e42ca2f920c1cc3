package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity is the account that root becomes.
type identity struct {
	name     string
	uid, gid int
}

// whoToBe says which account to become; nil: stay who we are. Root does not stay root by accident.
func whoToBe(allowRoot bool, agentUser string) (*identity, error) {
	if os.Geteuid() != 0 || allowRoot {
		return nil, nil
	}
	u, err := user.Lookup(agentUser)
	if err != nil {
		return nil, fmt.Errorf("gnoded does not run as root, and AgentUser cannot take over: %w "+
			"(make the account, set AgentUser, or say --allow-root)", err)
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("account %s: %w", agentUser, err)
	}
	if uid == 0 || gid == 0 {
		return nil, fmt.Errorf("AgentUser=%s is root, or of root's group: choose an account of its own", agentUser)
	}
	return &identity{u.Username, uid, gid}, nil
}

// become gives up root for good: groups, group, user, each checked, then read again and compared.
func (id *identity) become() error {
	if err := syscall.Setgroups([]int{id.gid}); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(id.gid, id.gid, id.gid); err != nil {
		return fmt.Errorf("setresgid %d: %w", id.gid, err)
	}
	if err := syscall.Setresuid(id.uid, id.uid, id.uid); err != nil {
		return fmt.Errorf("setresuid %d: %w", id.uid, err)
	}
	r, e, s := unix.Getresuid()
	gr, ge, gs := unix.Getresgid()
	groups, err := syscall.Getgroups()
	if err != nil {
		return fmt.Errorf("getgroups: %w", err)
	}
	if r != id.uid || e != id.uid || s != id.uid || gr != id.gid || ge != id.gid || gs != id.gid ||
		len(groups) != 1 || groups[0] != id.gid {
		return fmt.Errorf("ids are %d/%d/%d, %d/%d/%d, %v after the drop to %s", r, e, s, gr, ge, gs, groups, id.name)
	}
	if syscall.Setuid(0) == nil {
		return errors.New("root could be had back after the drop")
	}
	return nil
}

// claim makes the agent's folders and takes the lock that keeps a second agent off this spool. The
// lock lives with the returned file.
func claim(p paths, to *identity) (*os.File, error) {
	run := filepath.Dir(p.socket)
	for _, dir := range []string{run, p.spool} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(p.state, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%w (make this folder and give it to the agent's account, or start gnoded as root, which does)", err)
	}
	fd, err := unix.Open(p.state, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.state, err)
	}
	f := os.NewFile(uintptr(fd), p.state)
	if to != nil {
		if err := f.Chown(to.uid, to.gid); err != nil {
			f.Close()
			return nil, err
		}
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: another agent holds it: %w", p.state, err)
	}
	return f, nil
}

// listen makes a socket: the shepherds'. Shepherds hold the agent's group, and nobody else may connect;
// only where the agent stays root its group is not known, and peers are told apart by their uid alone.
// A login host's socket is for everyone.
// The caller holds the lock of this node, so that a socket that is there is a dead agent's.
func listen(path string, to *identity, everyone bool) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// The folder may be root's: the name then cannot be taken away after the drop, and need not be.
	l.SetUnlinkOnClose(to == nil)
	mode := os.FileMode(0o660)
	if to != nil {
		err = os.Lchown(path, to.uid, to.gid)
	}
	if everyone || to == nil && os.Geteuid() == 0 {
		mode = 0o666
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
