package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockName is the lock file in a step's folder. Its first line is what LockLine writes, which is all
// that finds a step's processes where there are no groups.
const LockName = "lock"

// lockLine is the first line of a lock file. Numbers of processes are given again, so each comes with
// when its process started, in ticks since the boot; session is 0 while no first process is known.
type lockLine struct {
	shepherd      int
	shepherdStart uint64
	session       int
	sessionStart  uint64
	boot          string
}

// LockLine makes the first line of a lock file for a living shepherd and the step's first process,
// which is not collected yet, or 0.
func LockLine(shepherd, session int) ([]byte, error) {
	l := lockLine{shepherd: shepherd, session: session}
	for _, p := range []struct {
		pid   int
		start *uint64
	}{{shepherd, &l.shepherdStart}, {session, &l.sessionStart}} {
		if p.pid == 0 {
			continue
		}
		st, err := readStat(p.pid)
		if err != nil {
			return nil, err
		}
		*p.start = st.start
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%d %d %d %d %s", l.shepherd, l.shepherdStart, l.session, l.sessionStart, boot)
	if len(text) >= LockPIDs {
		return nil, fmt.Errorf("lock line of %d bytes", len(text))
	}
	return fmt.Appendf(nil, "%-*s\n", LockPIDs-1, text), nil
}

// readLock gives the line, and whether somebody holds the lock. ok: there is a line, of this boot.
func readLock(stepDir string) (l lockLine, held, ok bool, err error) {
	path := filepath.Join(stepDir, LockName)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return l, false, false, nil
	}
	if err != nil {
		return l, false, false, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return l, false, false, errors.Join(fmt.Errorf("%s is not our file", path), err)
	}
	var text [LockPIDs]byte
	n, _ := f.ReadAt(text[:], 0)
	if c, _ := fmt.Sscan(string(text[:n]), &l.shepherd, &l.shepherdStart, &l.session, &l.sessionStart, &l.boot); c < 5 {
		return l, false, false, nil // it has started nothing yet
	}
	boot, err := bootID()
	if err != nil {
		return l, false, false, err
	}
	held = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) == unix.EWOULDBLOCK
	return l, held, l.boot == boot, nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

// Descent finds the living processes of a step without groups. While the shepherd lives (it holds
// its lock) they are below it, wherever they went, since orphans are its to take; when it is dead,
// those of the step's user that stayed in the first process's session can still be found. A negative
// uid means that the user is not known.
func Descent(stepDir string, uid int) ([]int, error) {
	l, held, ok, err := readLock(stepDir)
	if err != nil || !ok {
		return nil, err
	}
	all, err := processes()
	if err != nil {
		return nil, err
	}
	if st, lives := all[l.shepherd]; held && lives && st.start == l.shepherdStart {
		return below(all, l.shepherd), nil
	}
	if leader, lives := all[l.session]; l.session <= 1 || uid < 0 || lives && leader.start != l.sessionStart {
		return nil, nil // the number is another's by now
	}
	var pids []int
	for pid, st := range all {
		if st.session == l.session && st.state != 'Z' && st.start >= l.sessionStart && runsAs(pid, uid) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// StandStill tells whether processes are stopped; those that are gone count as such.
func StandStill(pids []int) bool {
	return !slices.ContainsFunc(pids, func(pid int) bool {
		st, err := readStat(pid)
		return err == nil && !strings.ContainsRune("TtZX", rune(st.state))
	})
}

// runsAs tells whether a process's real uid is this one.
func runsAs(pid, uid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(data), "\nUid:")
	var real int
	n, _ := fmt.Sscan(after, &real)
	return n == 1 && real == uid
}

// BatchShell finds the first process of the step: the oldest that leads a session and whose parent
// is not in the group. 0 when it is gone.
func BatchShell(pids []int) int {
	shell, oldest := 0, uint64(0)
	for _, pid := range pids {
		st, err := readStat(pid)
		if err != nil || st.session != pid || slices.Contains(pids, st.parent) {
			continue
		}
		if shell == 0 || st.start < oldest {
			shell, oldest = pid, st.start
		}
	}
	return shell
}

func below(all map[int]procStat, root int) []int {
	children := map[int][]int{}
	for pid, st := range all {
		children[st.parent] = append(children[st.parent], pid)
	}
	var pids []int
	queue := slices.Clone(children[root])
	for len(queue) > 0 {
		pid := queue[0]
		queue = append(queue[1:], children[pid]...)
		if all[pid].state != 'Z' {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

func processes() (map[int]procStat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	all := map[int]procStat{}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if st, err := readStat(pid); err == nil {
				all[pid] = st
			}
		}
	}
	return all, nil
}

// procStat is a part of /proc/PID/stat. start is in clock ticks since boot.
type procStat struct {
	state           byte
	parent, session int
	start           uint64
}

func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	return parseStat(data)
}

// parseStat reads the fields after the command, which may itself hold spaces and brackets.
func parseStat(data []byte) (procStat, error) {
	end := bytes.LastIndexByte(data, ')')
	f := strings.Fields(string(data[end+1:]))
	if end < 0 || len(f) < 20 {
		return procStat{}, fmt.Errorf("stat %q is short", data)
	}
	st := procStat{state: f[0][0]}
	var err1, err2, err3 error
	st.parent, err1 = strconv.Atoi(f[1])
	st.session, err2 = strconv.Atoi(f[3])
	st.start, err3 = strconv.ParseUint(f[19], 10, 64)
	return st, errors.Join(err1, err2, err3)
}
