package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree makes directories and files below a temporary root and gives its path.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "ROOT", root)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDetect(t *testing.T) {
	root := tree(t, map[string]string{
		"self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/\n2:name=systemd:/x\n0::/user.slice/a\n",
		"self/mountinfo": "24 1 0:1 / /proc rw - proc proc rw\n" +
			"31 23 0:30 /docker/abc /cg/memory rw,relatime shared:1 - cgroup cgroup rw,memory\n" +
			"32 23 0:31 / /cg/with\\040space rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"33 23 0:31 /other /cg/pids rw - cgroup cgroup rw,pids\n" +
			"34 23 0:32 /user.slice /cg/v2 rw - cgroup2 cgroup2 rw\n" +
			"short line\n",
	})
	m, err := detect(root)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"memory": "/cg/memory", "cpu": "/cg/with space", "cpuacct": "/cg/with space"}
	if fmt.Sprint(m.legacy) != fmt.Sprint(want) || m.unified != "/cg/v2/a" {
		t.Errorf("got %v %q, want %v /cg/v2/a", m.legacy, m.unified, want)
	}
}

func FuzzDetect(f *testing.F) {
	f.Add("4:memory:/a\n0::/\n", "31 23 0:30 / /cg/memory rw - cgroup cgroup rw,memory\n")
	f.Add(":", "- - -")
	f.Fuzz(func(t *testing.T, cgroup, mountinfo string) {
		detect(tree(t, map[string]string{"self/cgroup": cgroup, "self/mountinfo": mountinfo}))
	})
}

// v2Tree is a version 2 hierarchy of plain files. The kernel would make the files of a new group;
// here they are laid out before.
func v2Tree(t *testing.T, controllers string) (string, *Driver) {
	t.Helper()
	files := map[string]string{
		"self/cgroup":    "0::/own\n",
		"self/mountinfo": "34 23 0:32 / ROOT/cg rw - cgroup2 cgroup2 rw\n",
	}
	control := "cpu cpuset memory pids"
	for _, dir := range []string{"cg/own", "cg/own/launcher", "cg/own/tensorgrid", "cg/own/tensorgrid/c_n"} {
		for name, text := range map[string]string{"cgroup.procs": "", "cgroup.controllers": controllers, "cgroup.type": "domain", "cgroup.subtree_control": control} {
			files[dir+"/"+name] = text
		}
	}
	root := tree(t, files)
	d, err := Open(Config{Driver: V2, Subtree: "c_n", Proc: root})
	if err != nil {
		if strings.Contains(controllers, "memory") {
			t.Fatal(err)
		}
		if !errors.Is(err, ErrNotHere) {
			t.Errorf("without controllers: %v", err)
		}
		return root, nil
	}
	return root, d
}

func TestV2OnATree(t *testing.T) {
	v2Tree(t, "cpu cpuset pids")
	root, d := v2Tree(t, "cpuset cpu io memory hugetlb pids")
	if pid, _ := readTrim(root + "/cg/own/launcher/cgroup.procs"); pid != fmt.Sprint(os.Getpid()) {
		t.Errorf("this process was moved to %q, want the leaf", pid)
	}
	job := root + "/cg/own/tensorgrid/c_n/job_7.1"
	l := Limits{Shares: 2048, Quota: 150_000, CPUs: "0-1,4", Memory: 64<<20 + 5, Pids: 99}
	if err := mkdirs(job); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"cpu.weight": "79", "cpu.max": "150000 100000", "cpuset.cpus": "0-1,4", "memory.max": "67108864", "memory.swap.max": "0", "pids.max": "99"}
	for file := range want {
		if err := os.WriteFile(job+"/"+file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.writeUnified(job); err != nil {
		t.Fatal(err)
	}
	for file, value := range want {
		if got, _ := readTrim(job + "/" + file); got != value {
			t.Errorf("%s is %q, want %q", file, got, value)
		}
	}
	g := d.Group(Key{7, 1, 0}, &l)
	if g.Unified != job+"/step_0" || g.Memory != job || len(g.Joins()) != 0 || g.OOMFile() != job+"/memory.events" {
		t.Errorf("group %+v", *g)
	}
}

func TestLimitThatTheKernelChangesIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Skip(err)
	}
	if err := writeBack("/dev/null", "7"); err == nil || !strings.Contains(err.Error(), `wrote "7", reads ""`) {
		t.Errorf("got %v", err)
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("%d shares: weight %d, want %d", shares, got, want)
		}
	}
}

func TestSubtreeIsOneElement(t *testing.T) {
	for _, bad := range []string{"", "a/b", "..", ".x", "a\x00"} {
		if _, err := Open(Config{Driver: Auto, Subtree: bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := Open(Config{Driver: "v3", Subtree: "x"}); err == nil {
		t.Error("driver v3 was taken")
	}
}

// real opens a driver on this machine's hierarchies.
func real(t *testing.T, name string) *Driver {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes control groups")
	}
	d, err := Open(Config{Driver: name, Subtree: fmt.Sprintf("test_%s_%d", name, os.Getpid())})
	if errors.Is(err, ErrNotHere) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func create(t *testing.T, d *Driver, k Key, l Limits) *Group {
	t.Helper()
	g, err := d.Create(k, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := g.Kill()
		for range 1000 { // what was killed has still to die
			if e := g.Destroy(); !errors.Is(e, ErrBusy) {
				err = errors.Join(err, e)
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if err != nil {
			t.Error(err)
		}
		for _, dir := range append(g.Legacy, g.track(), g.Memory) {
			if dir != "" && exists(dir) {
				t.Errorf("%s is left", dir)
			}
		}
	})
	return g
}

// run starts a shell in the group: it joins the version 1 groups itself, and is born into version 2's.
func run(t *testing.T, g *Group, script string) *exec.Cmd {
	t.Helper()
	var join strings.Builder
	for _, f := range g.Joins() {
		fmt.Fprintf(&join, "echo 0 >%s; ", f)
	}
	cmd := exec.Command("/bin/bash", "-c", join.String()+script)
	if g.Unified != "" {
		fd, err := unix.Open(g.Unified, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s never came", what)
}

func TestMemoryLimitIsEnforcedAndCounted(t *testing.T) {
	for _, name := range []string{Hybrid, V1, V2} {
		t.Run(name, func(t *testing.T) {
			d := real(t, name)
			g := create(t, d, Key{1, 0, 0}, Limits{Memory: 40 << 20})
			cmd := run(t, g, "exec python3 -c 'x=bytearray(200<<20)'")
			cmd.Wait()
			if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
				t.Errorf("ended with %v", cmd.ProcessState)
			}
			if n, err := g.OOMKills(); n != 1 || err != nil {
				t.Errorf("%d OOM kills, %v", n, err)
			}
		})
	}
}

func TestPidsLimit(t *testing.T) {
	for _, name := range []string{Hybrid, V1, V2} {
		t.Run(name, func(t *testing.T) {
			d := real(t, name)
			g := create(t, d, Key{2, 0, 0}, Limits{Pids: 5})
			cmd := run(t, g, "for i in 1 2 3 4 5 6 7 8; do sleep 5 & done 2>/dev/null; true")
			until(t, "a full group", func() bool { p, _ := g.Procs(); return len(p) >= 4 })
			if p, _ := g.Procs(); len(p) > 5 {
				t.Errorf("%d processes in a group of 5", len(p))
			}
			if err := g.Kill(); err != nil {
				t.Error(err)
			}
			cmd.Wait()
		})
	}
}

func TestKillEndsAllAndFrozenOnesToo(t *testing.T) {
	for _, name := range []string{Hybrid, Track, V1, V2} {
		for _, frozen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/frozen=%v", name, frozen), func(t *testing.T) {
				d := real(t, name)
				g := create(t, d, Key{3, 1, 4294967291}, Limits{Shares: 1024})
				cmd := run(t, g, "trap '' TERM; setsid sleep 100 & sleep 100 & wait")
				until(t, "three processes", func() bool { p, _ := g.Procs(); return len(p) == 3 })
				if err := g.Destroy(); !errors.Is(err, ErrBusy) {
					t.Errorf("destroy of a living group: %v", err)
				}
				if empty, err := g.Empty(); empty || err != nil {
					t.Errorf("empty %v %v", empty, err)
				}
				if frozen {
					if err := g.Freeze(true); err != nil {
						t.Fatal(err)
					}
				}
				if err := g.Kill(); err != nil {
					t.Fatal(err)
				}
				cmd.Wait()
				until(t, "an empty group", func() bool { empty, _ := g.Empty(); return empty })
			})
		}
	}
}

func TestOnlyWhatIsAskedForIsConstrained(t *testing.T) {
	d := real(t, Hybrid)
	g := create(t, d, Key{4, 0, 0}, Limits{})
	if len(g.Legacy) != 0 || g.Memory != "" {
		t.Errorf("groups %v for no limits", g.Legacy)
	}
	all := d.Group(Key{4, 0, 0}, nil)
	if len(all.Legacy) < 3 {
		t.Errorf("all groups are %v", all.Legacy)
	}
	g = create(t, d, Key{5, 0, 0}, Limits{Shares: 512, Quota: 50_000, CPUs: "0"})
	for _, want := range []struct{ file, value string }{{"cpu.shares", "512"}, {"cpu.cfs_quota_us", "50000"}, {"cpuset.cpus", "0"}} {
		got := ""
		for _, dir := range g.Legacy {
			if v, err := readTrim(filepath.Join(dir, want.file)); err == nil {
				got = v
			}
		}
		if got != want.value {
			t.Errorf("%s is %q, want %q", want.file, got, want.value)
		}
	}
}

func TestStepsShareTheirJobsGroups(t *testing.T) {
	d := real(t, Hybrid)
	a, err := d.Create(Key{6, 0, 0}, Limits{Memory: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	b := create(t, d, Key{6, 0, 1}, Limits{Memory: 64 << 20})
	if err := os.Mkdir(a.Unified+"/users-own", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := a.Destroy(); err != nil {
		t.Fatal(err)
	}
	if exists(a.Unified) || !exists(b.Unified) || !exists(b.Memory) {
		t.Error("the second step lost its groups, or the first kept its own")
	}
	if keys, err := d.List(); err != nil || len(keys) != 1 || keys[0] != (Key{6, 0, 1}) {
		t.Errorf("listed %v %v", keys, err)
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	d := real(t, Hybrid)
	k := Key{8, 0, 0}
	if _, err := d.Create(k, Limits{Memory: 64 << 20, CPUs: "4000"}); err == nil {
		t.Error("processor 4000 was given")
	}
	for _, dir := range append(d.Group(k, nil).Legacy, d.Group(k, nil).Unified) {
		if exists(dir) {
			t.Errorf("%s is left", dir)
		}
	}
}

func TestNone(t *testing.T) {
	d, err := Open(Config{Driver: None, Subtree: "x"})
	if err != nil {
		t.Fatal(err)
	}
	g, err := d.Create(Key{1, 0, 0}, Limits{Memory: 1})
	if err != nil || len(g.Joins()) != 0 || g.KillFile() != "" || len(d.Missing()) == 0 {
		t.Errorf("%+v %v", g, err)
	}
	if err := errors.Join(g.Kill(), g.Destroy()); err != nil {
		t.Error(err)
	}
}

// TestSweep leaves a group without a run, one with, and one in which a process lives.
func TestSweep(t *testing.T) {
	for _, name := range []string{Hybrid, V1} {
		t.Run(name, func(t *testing.T) {
			d := real(t, name)
			left := create(t, d, Key{7, 0, 1}, Limits{Memory: 1 << 30})
			known := create(t, d, Key{8, 0, 1}, Limits{})
			busy := create(t, d, Key{9, 0, 1}, Limits{})
			run(t, busy, "sleep 100")
			until(t, "a process", func() bool { p, _ := busy.Procs(); return len(p) > 0 })
			d.Sweep(func(job, _ uint32) bool { return job == 8 })
			for _, dir := range append(left.Legacy, left.track()) {
				if exists(dir) {
					t.Errorf("%s is left", dir)
				}
			}
			if !exists(known.track()) || !exists(busy.track()) {
				t.Error("a group that is needed is gone")
			}
		})
	}
}

// TestLostSubtree: a subtree that somebody removed while no job ran is made again.
func TestLostSubtree(t *testing.T) {
	for _, name := range []string{Hybrid, V2, V1, Track} {
		t.Run(name, func(t *testing.T) {
			d := real(t, name)
			d.Close()
			g := create(t, d, Key{7, 0, 1}, Limits{Memory: 1 << 30, CPUs: "0"})
			if !exists(g.track()) {
				t.Errorf("%s is not there", g.track())
			}
		})
	}
}
