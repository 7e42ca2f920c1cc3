package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is the set of directories that hold one step. It is plain data, so that the process that
// made the groups can hand it to the one that uses them.
type Group struct {
	Driver  string   `json:"driver"`
	Unified string   `json:"v2,omitempty"`      // the step's version 2 directory
	Legacy  []string `json:"v1,omitempty"`      // the job's version 1 directories that limit
	Freezer string   `json:"freezer,omitempty"` // the step's version 1 directory that tracks
	Memory  string   `json:"memory,omitempty"`  // the job's directory that counts OOM kills
}

// Joins gives the files into which a starting process writes "0", from a single thread of its own:
// for the writer itself the kernel then needs none of the locks that moving a process takes.
func (g *Group) Joins() []string {
	var files []string
	for _, dir := range g.Legacy {
		files = append(files, filepath.Join(dir, "tasks"))
	}
	if g.Freezer != "" {
		files = append(files, filepath.Join(g.Freezer, "tasks"))
	}
	return files
}

// KillFile is the file that ends everything in the group when "1" is written; "" where there is none.
func (g *Group) KillFile() string {
	if g.Unified == "" {
		return ""
	}
	return filepath.Join(g.Unified, "cgroup.kill")
}

// Procs lists the processes of the step, those in groups that they made below it included.
func (g *Group) Procs() ([]int, error) {
	root := g.track()
	if root == "" {
		return nil, nil
	}
	var pids []int
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		pids = append(pids, numbers(data)...)
		return err
	})
	return pids, err
}

func (g *Group) track() string {
	if g.Unified != "" {
		return g.Unified
	}
	return g.Freezer
}

// Empty tells whether no process lives in the step's group. A group that is gone is empty.
func (g *Group) Empty() (bool, error) {
	if g.Unified != "" {
		n, err := field(g.EventsFile(), "populated")
		if gone(err) {
			return true, nil
		}
		return n == 0, err
	}
	pids, err := g.Procs()
	return len(pids) == 0, err
}

// Freeze stops the step's processes, or lets them go on. It does not wait until they stand still.
func (g *Group) Freeze(on bool) error {
	switch {
	case g.Unified != "":
		value := "0"
		if on {
			value = "1"
		}
		return writeFile(filepath.Join(g.Unified, "cgroup.freeze"), value)
	case g.Freezer != "":
		value := "THAWED"
		if on {
			value = "FROZEN"
		}
		return writeFile(filepath.Join(g.Freezer, "freezer.state"), value)
	}
	return fmt.Errorf("freeze with driver %s: %w", g.Driver, ErrNotHere)
}

// killRounds bounds how often a version 1 group is read and killed again: a process that forks
// while the group stands frozen cannot, so more than a few rounds mean that nothing helps.
const killRounds = 100

// Kill ends every process of the step with SIGKILL. It is idempotent; a group that is gone is no
// error. Version 1 freezes first, so that nothing forks away, and thaws after: a frozen process
// there does not even die.
func (g *Group) Kill() error {
	if g.Unified != "" {
		err := writeFile(g.KillFile(), "1")
		if gone(err) {
			return nil
		}
		return err
	}
	if g.Freezer == "" {
		return nil
	}
	for range killRounds {
		if err := g.Freeze(true); gone(err) {
			return nil
		} else if err != nil {
			return err
		}
		pids, err := g.Procs()
		for _, pid := range pids {
			if e := unix.Kill(pid, unix.SIGKILL); e != nil && e != unix.ESRCH {
				err = errors.Join(err, fmt.Errorf("kill %d: %w", pid, e))
			}
		}
		if err := errors.Join(err, g.Freeze(false)); err != nil || len(pids) == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return ErrBusy
}

// OOMKills counts the processes of the job that the kernel killed for want of memory; 0 where
// nothing counts them.
func (g *Group) OOMKills() (int64, error) {
	if g.Memory == "" {
		return 0, nil
	}
	return field(g.OOMFile(), "oom_kill")
}

// OOMFile is the file whose line oom_kill counts; "" where there is none.
func (g *Group) OOMFile() string {
	switch {
	case g.Memory == "":
		return ""
	case g.Driver == V2:
		return filepath.Join(g.Memory, "memory.events")
	}
	return filepath.Join(g.Memory, "memory.oom_control")
}

// UsageFile is the file with user_usec and system_usec of the step; "" where there is none.
func (g *Group) UsageFile() string {
	if g.Unified == "" {
		return ""
	}
	return filepath.Join(g.Unified, "cpu.stat")
}

// EventsFile is the file that says whether a process lives in the step's group; "" where there is none.
func (g *Group) EventsFile() string {
	if g.Unified == "" {
		return ""
	}
	return filepath.Join(g.Unified, "cgroup.events")
}

// destroyTries and destroyPause bound the wait for the kernel to let go of processes that have
// been reaped but still hold their group.
const (
	destroyTries = 200
	destroyPause = 5 * time.Millisecond
)

// Destroy removes the step's groups, and the job's when no other step is left in it. Groups that
// the step's processes made below are removed too. It returns ErrBusy while a process lives.
func (g *Group) Destroy() error {
	if err := g.DestroyStep(); err != nil {
		return err
	}
	return g.DestroyJob()
}

// DestroyStep removes the group that tracks the step. The kernel removes no group with a process in
// it, so that success proves that nothing of the step lives; otherwise it returns ErrBusy.
func (g *Group) DestroyStep() error {
	if t := g.track(); t != "" {
		return removeTree(t)
	}
	return nil
}

// DestroyJob removes the job's groups unless a step is left in it.
func (g *Group) DestroyJob() error {
	var errs []error
	if t := g.track(); t != "" {
		err := unix.Rmdir(filepath.Dir(t))
		if err == unix.EBUSY || err == unix.ENOTEMPTY {
			return nil // another step of this run lives: the limits stay
		}
		if err != nil && err != unix.ENOENT {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Dir(t), err))
		}
	}
	for _, dir := range g.Legacy {
		if err := removeTree(dir); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a group and those below it, the lowest first.
func removeTree(dir string) error {
	var err error
	for range destroyTries {
		err = unix.Rmdir(dir)
		switch err {
		case nil, unix.ENOENT:
			return nil
		case unix.EBUSY, unix.ENOTEMPTY:
		default:
			return fmt.Errorf("%s: %w", dir, err)
		}
		if removed := removeBelow(dir); removed {
			continue
		}
		if busy, _ := readTrim(filepath.Join(dir, "cgroup.procs")); busy != "" {
			return fmt.Errorf("%s: %w", dir, ErrBusy)
		}
		time.Sleep(destroyPause)
	}
	return fmt.Errorf("%s: %w", dir, err)
}

func removeBelow(dir string) bool {
	entries, _ := os.ReadDir(dir)
	removed := false
	for _, e := range entries {
		if e.IsDir() && removeTree(filepath.Join(dir, e.Name())) == nil {
			removed = true
		}
	}
	return removed
}

// field reads the number after a name in a file of "name number" lines; 0 when the name is not there.
func field(path, name string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return Field(data, name)
}

// Field takes the number after a name from the text of a control file; 0 when the name is not there.
func Field(data []byte, name string) (int64, error) {
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok && len(rest) > 0 && rest[0] == ' ' {
			return strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
		}
	}
	return 0, nil
}

func numbers(data []byte) []int {
	var out []int
	for f := range strings.FieldsSeq(string(data)) {
		if n, err := strconv.Atoi(f); err == nil && n > 0 {
			out = append(out, n)
		}
	}
	return out
}

// gone tells whether an error says that the group was removed meanwhile.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
