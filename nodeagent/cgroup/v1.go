package cgroup

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// memswLimit limits memory and swap together; absent where the kernel does not account swap.
const memswLimit = "memory.memsw.limit_in_bytes"

// createLegacy makes the job's group in each version 1 hierarchy that some limit asks for.
// Hierarchies without a limit are left out: each one costs at launch and at the end.
func (l Limits) createLegacy(g *Group, bases map[string]string) error {
	for _, dir := range g.Legacy {
		if err := unix.Mkdir(dir, 0o755); err == unix.EEXIST {
			continue // an earlier step of this run made it, with these limits
		} else if err != nil {
			return &os.PathError{Op: "mkdir", Path: dir, Err: err}
		}
		base := filepath.Dir(dir)
		for _, c := range limitControllers {
			if bases[c] != base {
				continue
			}
			if err := l.writeLegacy(c, base, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l Limits) wants(controller string) bool {
	switch controller {
	case "cpu":
		return l.Shares != 0 || l.Quota != 0
	case "cpuset":
		return l.CPUs != ""
	case "memory":
		return l.Memory != 0
	case "pids":
		return l.Pids != 0
	}
	return false
}

func (l Limits) writeLegacy(controller, base, dir string) error {
	set := func(file, value string) error { return writeBack(filepath.Join(dir, file), value) }
	switch controller {
	case "cpu":
		if l.Shares != 0 {
			if err := set("cpu.shares", strconv.FormatUint(max(l.Shares, 2), 10)); err != nil {
				return err
			}
		}
		if l.Quota != 0 {
			if err := set("cpu.cfs_period_us", strconv.Itoa(quotaPeriod)); err != nil {
				return err
			}
			return set("cpu.cfs_quota_us", strconv.FormatUint(l.Quota, 10))
		}
	case "cpuset":
		if err := inheritCPUSet(base, dir); err != nil {
			return err
		}
		return set("cpuset.cpus", l.CPUs)
	case "memory":
		bytes := pageFloor(l.Memory)
		if err := set("memory.limit_in_bytes", bytes); err != nil {
			return err
		}
		if exists(filepath.Join(dir, memswLimit)) {
			return set(memswLimit, bytes)
		}
	case "pids":
		return set("pids.max", strconv.FormatInt(l.Pids, 10))
	}
	return nil
}
