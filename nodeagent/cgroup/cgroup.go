// Package cgroup makes and ends the control groups of job steps. One driver is chosen at start by
// what this machine has mounted; paths are read from the kernel and never assumed.
//
// Limits sit on the group of the job, which all its steps share; the group of a step tracks its
// processes so that they can be killed, frozen and counted together.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The drivers. Auto picks hybrid, v2, v1, track or none, the first that this machine allows.
const (
	Auto   = "auto"
	Hybrid = "hybrid" // limits by version 1 hierarchies, kill and track by a version 2 group
	V2     = "v2"     // all by version 2
	V1     = "v1"     // all by version 1
	Track  = "track"  // a version 2 group that kills and counts, no limits
	None   = "none"   // no groups: processes are found by descent
)

// ErrNotHere is returned when the machine cannot give what the driver needs.
var ErrNotHere = errors.New("not available on this machine")

// ErrBusy is returned by Destroy while a process lives in the group.
var ErrBusy = errors.New("control group has living processes")

// Limits of a job on this node. A zero field is not constrained.
type Limits struct {
	Shares uint64 // relative weight, 1024 for each processor
	Quota  uint64 // processor time in microseconds for each 100 ms
	CPUs   string // list of kernel processor numbers: "0-3,8"
	Memory int64  // bytes; swap is not given beyond it where the kernel can count it
	Pids   int64  // tasks of all processes together
}

// Key names one step of one run.
type Key struct{ Job, Run, Step uint32 }

func (k Key) jobDir() string  { return fmt.Sprintf("job_%d.%d", k.Job, k.Run) }
func (k Key) stepDir() string { return "step_" + strconv.FormatUint(uint64(k.Step), 10) }

// Driver makes groups under one subtree of this machine's hierarchies.
type Driver struct {
	name    string
	unified string            // version 2 directory of the subtree; "" when none
	legacy  map[string]string // version 1 controller -> directory of the subtree
	procDir string
	remake  func() error // makes the subtree again where it is gone
}

// Config says which driver is wanted and where the groups go.
type Config struct {
	Driver  string // one of the constants above
	Subtree string // "CLUSTER_NODE": one path element
	Proc    string // "/proc"; tests give a tree of their own
}

// Open finds the hierarchies, makes the subtree in each that the driver uses and returns the
// driver. Under Auto a hierarchy that cannot be used is left out; a named driver that cannot be
// had is an error that wraps ErrNotHere.
func Open(c Config) (*Driver, error) {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Subtree == "" || strings.ContainsAny(c.Subtree, "/\x00") || strings.HasPrefix(c.Subtree, ".") {
		return nil, fmt.Errorf("cgroup subtree %q is not one path element", c.Subtree)
	}
	if c.Driver == None {
		return &Driver{name: None, procDir: c.Proc}, nil
	}
	m, err := detect(c.Proc)
	if err != nil {
		return nil, err
	}
	order := []string{c.Driver}
	if c.Driver == Auto || c.Driver == "" {
		order = []string{Hybrid, V2, V1, Track}
	}
	var errs []error
	for _, name := range order {
		d, err := openNamed(name, c, m)
		if err == nil {
			return d, nil
		}
		errs = append(errs, fmt.Errorf("cgroup driver %s: %w", name, err))
	}
	if len(order) > 1 {
		return &Driver{name: None, procDir: c.Proc}, nil
	}
	return nil, errors.Join(errs...)
}

func openNamed(name string, c Config, m *mounts) (*Driver, error) {
	d := &Driver{name: name, legacy: map[string]string{}, procDir: c.Proc}
	var err error
	switch name {
	case Hybrid:
		if err = d.useUnified(m, c, false); err == nil {
			err = d.useLegacy(m, c, limitControllers)
		}
	case V2:
		err = d.useUnified(m, c, true)
	case Track:
		err = d.useUnified(m, c, false)
	case V1:
		err = d.useLegacy(m, c, append([]string{trackController}, limitControllers...))
		if err == nil && d.legacy[trackController] == "" {
			err = fmt.Errorf("hierarchy %s: %w", trackController, ErrNotHere)
		}
	default:
		err = fmt.Errorf("unknown driver %q", name)
	}
	if err != nil {
		return nil, err
	}
	d.remake = func() error {
		_, err := openNamed(name, c, m)
		return err
	}
	return d, nil
}

// Name is the driver in use.
func (d *Driver) Name() string { return d.name }

// Missing says for people what this driver cannot enforce here.
func (d *Driver) Missing() []string {
	var out []string
	switch d.name {
	case None:
		return []string{"control groups: none; memory, processors and process counts are not limited"}
	case Track:
		return []string{"limits: driver track only follows processes"}
	case V2:
		return nil
	}
	for _, c := range limitControllers {
		if d.legacy[c] == "" {
			out = append(out, c+": no version 1 hierarchy")
		}
	}
	if dir := d.legacy["memory"]; dir != "" && !exists(filepath.Join(dir, memswLimit)) {
		out = append(out, "swap: the kernel does not count it")
	}
	return out
}

// Create makes the groups of a step, and those of its job when this is the first step. Every limit
// is read back after it was written. What was made is removed again when anything fails. A subtree
// that somebody has removed while nothing ran in it is made again: it would fail every job otherwise.
func (d *Driver) Create(k Key, l Limits) (*Group, error) {
	g := d.Group(k, &l)
	if d.name == None {
		return g, nil
	}
	err := d.build(g, l)
	if errors.Is(err, fs.ErrNotExist) {
		if err = errors.Join(g.Destroy(), d.remake()); err == nil {
			err = d.build(g, l)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control group of job %d: %w", k.Job, err), g.Destroy())
	}
	return g, nil
}

// build makes the groups that g describes.
func (d *Driver) build(g *Group, l Limits) error {
	if d.name == V2 {
		return g.createV2(l)
	}
	if d.name != Track {
		if err := l.createLegacy(g, d.legacy); err != nil {
			return err
		}
	}
	if d.name == V1 {
		return mkdirs(filepath.Dir(g.Freezer), g.Freezer)
	}
	return mkdirs(filepath.Dir(g.Unified), g.Unified)
}

// Group describes the groups of a step without making them. Without limits it names every group
// that the step may have, which is what Destroy needs when the limits are no longer known.
func (d *Driver) Group(k Key, l *Limits) *Group {
	g := &Group{Driver: d.name}
	if d.unified != "" {
		g.Unified = filepath.Join(d.unified, k.jobDir(), k.stepDir())
		if d.name == V2 {
			g.Memory = filepath.Dir(g.Unified)
		}
	}
	for _, c := range limitControllers {
		if dir := d.legacy[c]; dir != "" && (l == nil || l.wants(c)) {
			g.Legacy = append(g.Legacy, filepath.Join(dir, k.jobDir()))
			if c == "memory" {
				g.Memory = filepath.Join(dir, k.jobDir())
			}
		}
	}
	if dir := d.legacy[trackController]; dir != "" {
		g.Freezer = filepath.Join(dir, k.jobDir(), k.stepDir())
	}
	return g
}

// List gives every step that has a group in the subtree.
func (d *Driver) List() ([]Key, error) {
	root := d.unified
	if root == "" {
		root = d.legacy[trackController]
	}
	if root == "" {
		return nil, nil
	}
	dirs, err := filepath.Glob(filepath.Join(root, "job_*", "step_*"))
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, dir := range dirs {
		var k Key
		rel := strings.TrimPrefix(dir, root+"/")
		if n, _ := fmt.Sscanf(rel, "job_%d.%d/step_%d", &k.Job, &k.Run, &k.Step); n == 3 {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// Close removes the subtree where no group is left in it.
func (d *Driver) Close() {
	for _, dir := range d.legacy {
		removeUp(dir)
	}
	if d.unified != "" {
		removeUp(d.unified)
	}
}

// removeUp removes the subtree's directory and the one above it while they are empty.
func removeUp(dir string) {
	if unix.Rmdir(dir) == nil {
		unix.Rmdir(filepath.Dir(dir)) // another node's subtree may keep it
	}
}

func mkdirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	return unix.Access(path, unix.F_OK) == nil
}

// Sweep removes the groups of runs that lives does not know and in which nothing lives: what a
// launcher left that was killed before it could remove them.
func (d *Driver) Sweep(lives func(job, run uint32) bool) {
	roots := map[string]bool{}
	if d.unified != "" {
		roots[d.unified] = true
	}
	for _, dir := range d.legacy {
		roots[dir] = true
	}
	for root := range roots {
		entries, err := os.ReadDir(root)
		if err != nil {
			continue
		}
		for _, e := range entries {
			var k Key
			if n, _ := fmt.Sscanf(e.Name(), "job_%d.%d", &k.Job, &k.Run); n != 2 || e.Name() != k.jobDir() || lives(k.Job, k.Run) {
				continue
			}
			dir := filepath.Join(root, k.jobDir())
			removeBelow(dir)
			unix.Rmdir(dir) // fails while something lives there, which nobody of ours minds
		}
	}
}
