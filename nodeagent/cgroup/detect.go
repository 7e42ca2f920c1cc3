package cgroup

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// limitControllers are the version 1 hierarchies that limits use; trackController is the one that
// follows processes where there is no version 2.
var limitControllers = []string{"cpu", "cpuset", "memory", "pids"}

const (
	trackController = "freezer"
	folder          = "tensorgrid"
)

// mounts is where this process's own groups are: directory by version 1 controller, and version 2's.
type mounts struct {
	legacy  map[string]string
	unified string
}

// detect joins /proc/self/mountinfo with /proc/self/cgroup. A hierarchy of which only another part
// is mounted here (a container's view) is left out.
func detect(proc string) (*mounts, error) {
	own, err := ownGroups(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, err
	}
	m := &mounts{legacy: map[string]string{}}
	scan := bufio.NewScanner(bytes.NewReader(data))
	for scan.Scan() {
		root, point, fstype, opts, ok := mountLine(scan.Text())
		if !ok {
			continue
		}
		switch fstype {
		case "cgroup2":
			if dir, ok := under(point, root, own[""]); ok && m.unified == "" {
				m.unified = dir
			}
		case "cgroup":
			for opt := range strings.SplitSeq(opts, ",") {
				path, mine := own[opt]
				if dir, ok := under(point, root, path); mine && ok && m.legacy[opt] == "" {
					m.legacy[opt] = dir
				}
			}
		}
	}
	return m, scan.Err()
}

// ownGroups reads "id:controllers:path" lines; version 2's line is kept under "".
func ownGroups(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			return nil, fmt.Errorf("%s: line %q", path, line)
		}
		for c := range strings.SplitSeq(parts[1], ",") {
			own[c] = parts[2]
		}
	}
	return own, nil
}

// mountLine takes the fields that matter from a line of mountinfo.
func mountLine(line string) (root, point, fstype, opts string, ok bool) {
	f := strings.Fields(line)
	sep := slices.Index(f, "-")
	if sep < 6 || len(f) < sep+4 {
		return "", "", "", "", false
	}
	return unescape(f[3]), unescape(f[4]), f[sep+1], f[sep+3], true
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// under gives the directory of a group, seen through a mount of the part below root.
func under(point, root, group string) (string, bool) {
	if group == "" {
		return "", false
	}
	rel, err := filepath.Rel(root, group)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", false
	}
	return filepath.Join(point, rel), true
}

// useLegacy makes the subtree in each version 1 hierarchy that is here; at least one must be.
func (d *Driver) useLegacy(m *mounts, c Config, controllers []string) error {
	var last error
	for _, name := range controllers {
		own := m.legacy[name]
		if own == "" {
			continue
		}
		dir := filepath.Join(own, folder, c.Subtree)
		if err := mkdirs(filepath.Dir(dir), dir); err != nil {
			last = err
			continue
		}
		if name == "cpuset" {
			if err := inheritCPUSet(own, filepath.Dir(dir), dir); err != nil {
				last = err
				continue
			}
		}
		d.legacy[name] = dir
	}
	for _, name := range limitControllers {
		if d.legacy[name] != "" {
			return nil
		}
	}
	if last != nil {
		return fmt.Errorf("version 1 hierarchies: %w", last)
	}
	return fmt.Errorf("version 1 hierarchies with %s: %w", strings.Join(limitControllers, ", "), ErrNotHere)
}

// inheritCPUSet copies the processors and memory nodes downwards: a new cpuset of version 1 is empty
// and takes no process.
func inheritCPUSet(from string, dirs ...string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := readTrim(filepath.Join(from, file))
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if now, err := readTrim(filepath.Join(dir, file)); err == nil && now != "" {
				continue
			}
			if err := writeFile(filepath.Join(dir, file), value); err != nil {
				return err
			}
		}
	}
	return nil
}
