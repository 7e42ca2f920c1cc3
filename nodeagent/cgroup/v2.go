package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// quotaPeriod is the period of processor quotas in microseconds.
const quotaPeriod = 100_000

// selfLeaf is the group that this process moves into when controllers are handed down: version 2
// allows no processes in a group that hands controllers to its children.
const selfLeaf = "launcher"

// useUnified makes the subtree in version 2. With limits, the controllers are handed down from our
// own group to it; those that cannot be had are an error.
func (d *Driver) useUnified(m *mounts, c Config, limits bool) error {
	if m.unified == "" {
		return fmt.Errorf("version 2: %w", ErrNotHere)
	}
	if !exists(filepath.Join(m.unified, "cgroup.procs")) {
		return fmt.Errorf("version 2 at %s: %w", m.unified, ErrNotHere)
	}
	base := filepath.Join(m.unified, folder)
	dir := filepath.Join(base, c.Subtree)
	if limits {
		if err := handDown(m.unified); err != nil {
			return err
		}
	}
	if err := mkdirs(base, dir); err != nil {
		return err
	}
	if limits {
		for _, g := range []string{base, dir} {
			if err := enable(g); err != nil {
				return err
			}
		}
	}
	d.unified = dir
	return nil
}

var unifiedControllers = []string{"cpu", "cpuset", "memory", "pids"}

// handDown enables the controllers below our own group, leaving it for a leaf first when it is not
// the root of the hierarchy.
func handDown(own string) error {
	have, err := readTrim(filepath.Join(own, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range unifiedControllers {
		if !contains(have, c) {
			return fmt.Errorf("version 2 controller %s: %w", c, ErrNotHere)
		}
	}
	if exists(filepath.Join(own, "cgroup.type")) { // the root has none, and is exempt from the rule
		leaf := filepath.Join(own, selfLeaf)
		if err := mkdirs(leaf); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(leaf, "cgroup.procs"), strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
	}
	return enable(own)
}

// enable hands the controllers to the children of dir and checks that the kernel took them.
func enable(dir string) error {
	path := filepath.Join(dir, "cgroup.subtree_control")
	now, err := readTrim(path)
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range unifiedControllers {
		if !contains(now, c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := writeFile(path, strings.Join(missing, " ")); err != nil {
		return err
	}
	now, err = readTrim(path)
	if err != nil {
		return err
	}
	for _, c := range unifiedControllers {
		if !contains(now, c) {
			return fmt.Errorf("%s: controller %s was not taken", path, c)
		}
	}
	return nil
}

func contains(list, word string) bool {
	for w := range strings.FieldsSeq(list) {
		if w == word {
			return true
		}
	}
	return false
}

// createV2 makes the job's group with its limits, and the step's group that tracks.
func (g *Group) createV2(l Limits) error {
	job := filepath.Dir(g.Unified)
	if !exists(job) {
		if err := mkdirs(job); err != nil {
			return err
		}
		if err := l.writeUnified(job); err != nil {
			return err
		}
	}
	return mkdirs(g.Unified)
}

func (l Limits) writeUnified(dir string) error {
	type setting struct{ file, value string }
	var all []setting
	if l.Shares != 0 {
		all = append(all, setting{"cpu.weight", strconv.FormatUint(weight(l.Shares), 10)})
	}
	if l.Quota != 0 {
		all = append(all, setting{"cpu.max", fmt.Sprintf("%d %d", l.Quota, quotaPeriod)})
	}
	if l.CPUs != "" {
		all = append(all, setting{"cpuset.cpus", l.CPUs})
	}
	if l.Memory != 0 {
		all = append(all, setting{"memory.max", pageFloor(l.Memory)})
		if exists(filepath.Join(dir, "memory.swap.max")) {
			all = append(all, setting{"memory.swap.max", "0"})
		}
	}
	if l.Pids != 0 {
		all = append(all, setting{"pids.max", strconv.FormatInt(l.Pids, 10)})
	}
	for _, s := range all {
		if err := writeBack(filepath.Join(dir, s.file), s.value); err != nil {
			return err
		}
	}
	return nil
}

// weight turns version 1's shares (2-262144) into version 2's weight (1-10000), as the kernel's
// documentation proposes: 1024 shares are weight 39, and the ratio of two jobs stays.
func weight(shares uint64) uint64 {
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}
