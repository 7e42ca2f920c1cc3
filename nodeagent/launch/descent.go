package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockName is the lock file in a step's folder. Its text is the shepherd's process number and the
// session of the first process, which are all that finds a step's processes where there are no groups.
const LockName = "lock"

// Descent finds the living processes of a step without groups. While the shepherd lives (it holds
// its lock) they are below it, wherever they went, since orphans are its to take; when it is dead,
// those that stayed in the first process's session can still be found.
func Descent(stepDir string) ([]int, error) {
	f, err := os.OpenFile(filepath.Join(stepDir, LockName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text [LockPIDs]byte
	n, _ := f.ReadAt(text[:], 0)
	var shepherd, session int
	if c, _ := fmt.Sscan(string(text[:n]), &shepherd, &session); c < 1 {
		return nil, nil // it has started nothing yet
	}
	alive := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == unix.EWOULDBLOCK
	all, err := processes()
	if err != nil {
		return nil, err
	}
	if alive {
		return below(all, shepherd), nil
	}
	var pids []int
	for pid, st := range all {
		if session > 1 && st.session == session && st.state != 'Z' {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
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
