package shepherd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ids are what a shepherd becomes. Without root they are those that it has.
type ids struct{ uid, gid, agent int }

func parseIDs(args []string) (ids, error) {
	var id ids
	if len(args) != 3 {
		return id, fmt.Errorf("%d ids: %w", len(args), unix.EINVAL)
	}
	for i, to := range []*int{&id.uid, &id.gid, &id.agent} {
		var err error
		if *to, err = strconv.Atoi(args[i]); err != nil {
			return id, err
		}
	}
	return id, nil
}

// drop makes this process the shepherds' uid for good, on all threads, before a byte of the user's
// is looked at. On an error the process must end.
func drop(id ids) error {
	if id.uid != os.Geteuid() || id.uid == 0 {
		if err := dropIDs(id); err != nil {
			return err
		}
	}
	// This flag is each thread's own.
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("no_new_privs: %w", e)
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// dropIDs gives up root's uid. Group ids are the shepherds' since the launcher started us (the
// agent's group is kept: it lets us connect to agent and launcher); they are looked at again here.
func dropIDs(id ids) error {
	uid, gid := id.uid, id.gid
	if uid <= 0 || gid <= 0 {
		return fmt.Errorf("shepherd ids %d:%d: %w", uid, gid, unix.EINVAL)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	groups, err := syscall.Getgroups()
	if err != nil || len(groups) != 1 || groups[0] != id.agent {
		return fmt.Errorf("groups are %v: %w", groups, errors.Join(err, unix.EPERM))
	}
	r, e, s := unix.Getresuid()
	if r != uid || e != uid || s != uid {
		return fmt.Errorf("uids are %d %d %d: %w", r, e, s, unix.EPERM)
	}
	if r, e, s = unix.Getresgid(); r != gid || e != gid || s != gid {
		return fmt.Errorf("gids are %d %d %d: %w", r, e, s, unix.EPERM)
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0)); e == 0 {
		return fmt.Errorf("root can be had again: %w", unix.EPERM)
	}
	return nil
}
