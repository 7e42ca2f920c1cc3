// Package server is the launcher: it takes orders from the agent, verifies each credential by
// itself, claims the run, and starts one shepherd a step. It runs as root and parses nothing of a
// user's.
package server

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Conf is the launcher's own file: "key = value" lines, '#' starts a comment. It is the one thing
// that says whose orders root follows here, so root alone may be able to write it.
type Conf struct {
	Cluster     string // cluster: the one whose credentials are taken
	Node        string // node: our name in credentials
	CA          string // ca: PEM file of the cluster's authority
	Socket      string // socket: where orders are taken
	Spool       string // spool: folder of plans, steps, work and output
	AgentUID    int    // agent_uid, agent_gid: of gnoded
	AgentGID    int
	StepUID     int // step_uid, step_gid: of gstepd
	StepGID     int
	MinUID      uint32        // min_uid (1000): jobs below it are refused
	MinGID      uint32        // min_gid (1000): a primary group below it is refused, others are dropped
	AllowGIDs   []uint32      // allow_gids (100): groups below min_gid that are fine
	RefuseUIDs  []Range       // refuse_uids: "65534,60000-60100"
	Driver      string        // cgroup_driver (auto)
	Cores       bool          // constrain_cores (no): jobs see only their processors
	PidsMax     int64         // pids_max (0 = no limit): processes and threads of a job
	Shepherd    string        // stepd: path of gstepd
	AgentSocket string        // agent_socket: where shepherds report
	Prolog      string        // prolog, epilog: programs run as root around a job
	Epilog      string        //
	HookTime    time.Duration // prolog_timeout (300): seconds that either may take
	Rootless    bool          // rootless (no): serve our own uid only, no ids are changed
}

// Range is an inclusive range of ids.
type Range struct{ Low, High uint32 }

// maxConf bounds the file in bytes.
const maxConf = 64 << 10

// LoadConf reads the file. It refuses one that is not root's (in rootless mode: not ours) or that
// group or others may write.
func LoadConf(path string) (*Conf, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%s belongs to uid %d, it must be uid %d's", path, st.Uid, os.Geteuid())
	}
	if st.Mode&0o022 != 0 {
		return nil, fmt.Errorf("%s has mode %04o: group or others may write it", path, st.Mode&0o7777)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConf+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConf {
		return nil, fmt.Errorf("%s is over %d bytes", path, maxConf)
	}
	c, err := ParseConf(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.check(os.Geteuid()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ParseConf reads the file's text. All problems are in the error, each with its line.
func ParseConf(data []byte) (*Conf, error) {
	c := &Conf{MinUID: 1000, MinGID: 1000, AllowGIDs: []uint32{100}, Driver: "auto", HookTime: 300 * time.Second,
		AgentUID: -1, AgentGID: -1, StepUID: -1, StepGID: -1}
	set := c.setters()
	seen := map[string]bool{}
	var errs []error
	scan := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; scan.Scan(); n++ {
		line, _, _ := strings.Cut(scan.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		fn := set[key]
		var err error
		switch {
		case !ok:
			err = fmt.Errorf("%q is not key = value", line)
		case fn == nil:
			err = fmt.Errorf("unknown key %q", key)
		case seen[key]:
			err = fmt.Errorf("%s is given twice", key)
		default:
			if err = fn(value); err != nil {
				err = fmt.Errorf("%s: %w", key, err)
			}
		}
		seen[key] = true
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		}
	}
	errs = append(errs, scan.Err())
	return c, errors.Join(errs...)
}

func (c *Conf) setters() map[string]func(string) error {
	return map[string]func(string) error{
		"cluster": text(&c.Cluster), "node": text(&c.Node), "cgroup_driver": text(&c.Driver),
		"ca": file(&c.CA), "socket": file(&c.Socket), "spool": file(&c.Spool), "stepd": file(&c.Shepherd),
		"agent_socket": file(&c.AgentSocket), "prolog": file(&c.Prolog), "epilog": file(&c.Epilog),
		"agent_uid": id(&c.AgentUID), "agent_gid": id(&c.AgentGID),
		"step_uid": id(&c.StepUID), "step_gid": id(&c.StepGID),
		"min_uid": id(&c.MinUID), "min_gid": id(&c.MinGID), "pids_max": id(&c.PidsMax),
		"constrain_cores": yes(&c.Cores), "rootless": yes(&c.Rootless),
		"refuse_uids": func(v string) (err error) { c.RefuseUIDs, err = parseRanges(v); return err },
		"allow_gids": func(v string) error {
			c.AllowGIDs = nil
			ranges, err := parseRanges(v)
			for _, r := range ranges {
				if r.Low != r.High {
					return errors.New("takes single ids only")
				}
				c.AllowGIDs = append(c.AllowGIDs, r.Low)
			}
			return err
		},
		"prolog_timeout": func(v string) error {
			n, err := strconv.ParseUint(v, 10, 31)
			c.HookTime = time.Duration(n) * time.Second
			if err == nil && n == 0 {
				err = errors.New("must be at least 1 second")
			}
			return err
		},
	}
}

func text(p *string) func(string) error {
	return func(v string) error { *p = v; return nil }
}

func file(p *string) func(string) error {
	return func(v string) error {
		*p = v
		if v != "" && (!filepath.IsAbs(v) || filepath.Clean(v) != v) {
			return fmt.Errorf("%q is not a clean absolute path", v)
		}
		return nil
	}
}

func id[T int | uint32 | int64](p *T) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseUint(v, 10, 31)
		*p = T(n)
		return err
	}
}

func yes(p *bool) func(string) error {
	return func(v string) error {
		if v != "yes" && v != "no" {
			return fmt.Errorf("%q is neither yes nor no", v)
		}
		*p = v == "yes"
		return nil
	}
}

func parseRanges(v string) ([]Range, error) {
	var out []Range
	for part := range strings.SplitSeq(v, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		low, high, both := strings.Cut(part, "-")
		if !both {
			high = low
		}
		a, err := strconv.ParseUint(low, 10, 32)
		if err != nil {
			return nil, err
		}
		b, err := strconv.ParseUint(high, 10, 32)
		if err != nil {
			return nil, err
		}
		if a > b {
			return nil, fmt.Errorf("range %q runs backwards", part)
		}
		out = append(out, Range{uint32(a), uint32(b)})
	}
	return out, nil
}

// check finds what is missing or contradicts the rights of this process.
func (c *Conf) check(euid int) error {
	var errs []error
	for _, need := range []struct{ key, value string }{{"cluster", c.Cluster}, {"node", c.Node}, {"ca", c.CA},
		{"socket", c.Socket}, {"spool", c.Spool}, {"stepd", c.Shepherd}, {"agent_socket", c.AgentSocket}} {
		if need.value == "" {
			errs = append(errs, fmt.Errorf("%s is missing", need.key))
		}
	}
	for _, n := range []struct{ key, value string }{{"cluster", c.Cluster}, {"node", c.Node}} {
		if n.value != "" && !plainName(n.value) {
			errs = append(errs, fmt.Errorf("%s = %q: a name begins with a letter or digit and has letters, digits, '.', '-' and '_', at most %d",
				n.key, n.value, maxName))
		}
	}
	switch {
	case c.Rootless && euid == 0:
		errs = append(errs, errors.New("rootless = yes, but this is root"))
	case c.Rootless:
		c.AgentUID, c.StepUID, c.AgentGID, c.StepGID = euid, euid, os.Getegid(), os.Getegid()
		c.Driver = "none"
	case euid != 0:
		errs = append(errs, errors.New("not root: set rootless = yes to serve uid "+strconv.Itoa(euid)+" only"))
	case c.AgentUID <= 0 || c.AgentGID <= 0 || c.StepUID <= 0 || c.StepGID <= 0:
		errs = append(errs, errors.New("agent_uid, agent_gid, step_uid and step_gid must be given and not 0"))
	case c.AgentUID == c.StepUID || c.AgentGID == c.StepGID: // shepherds would have the agent's rights, or it theirs
		errs = append(errs, errors.New("agent_uid and step_uid must differ, and so must agent_gid and step_gid"))
	}
	if !c.Rootless && c.MinUID == 0 {
		errs = append(errs, errors.New("min_uid must be at least 1"))
	}
	return errors.Join(errs...)
}

// maxName bounds the names of cluster and node in bytes.
const maxName = 128

// plainName tells whether a name is fit to be a part of a path.
func plainName(s string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// checkOurs refuses a file that somebody else than its user could have written or put there: root, or
// in rootless mode we.
func checkOurs(path string, rootless bool) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for _, p := range []string{real, filepath.Dir(real), filepath.Dir(path)} {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return &os.PathError{Op: "stat", Path: p, Err: err}
		}
		if st.Uid != 0 && !(rootless && int(st.Uid) == os.Geteuid()) {
			return fmt.Errorf("%s belongs to uid %d, not root", p, st.Uid)
		}
		// In a sticky folder others can make files of their own, and leave ours alone.
		sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
		if st.Mode&0o022 != 0 && !sticky {
			return fmt.Errorf("%s has mode %04o: group or others may write it", p, st.Mode&0o7777)
		}
	}
	return nil
}
