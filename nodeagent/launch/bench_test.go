package launch_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
)

// BenchmarkLaunch measures no-op steps from the order to the release, several at a time, beside a
// bare loop that makes the same groups, forks and executes the same script in them, and waits.
//
//	go test -run - -bench Launch -benchtime 2000x ./nodeagent/launch
func BenchmarkLaunch(b *testing.B) {
	for _, driver := range []string{cgroup.Track, cgroup.Hybrid} {
		var floor float64
		b.Run("bare/"+driver, func(b *testing.B) {
			used := meter(b)
			floor = perSecond(b, func(n int) { bareLoop(b, driver, n) })
			b.ReportMetric(float64(used().Microseconds())/float64(b.N), "cpu-us/step")
		})
		b.Run("path/"+driver, func(b *testing.B) {
			used, self := meter(b), ownTime()
			n := newNode(b, "cgroup_driver = "+driver)
			b.ResetTimer()
			rate := perSecond(b, func(count int) { n.pathLoop(count) })
			b.StopTimer()
			n.stop()
			// This process plays agent and controller.
			b.ReportMetric(float64((used()-(ownTime()-self)).Microseconds())/float64(b.N), "cpu-us/step")
			b.ReportMetric(rate/floor, "of-bare")
		})
	}
}

// meter puts this process into a version 2 group of its own, in which all comes to lie that it starts,
// the groups of jobs included, and gives the processor time of all that since. On a machine that others
// use too it says more than the time on the wall.
func meter(b *testing.B) func() time.Duration {
	needRoot(b)
	data, err := os.ReadFile("/proc/self/cgroup")
	must(b, err)
	_, own, _ := strings.Cut(string(data), "0::")
	own = strings.TrimSpace(own)
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/unified"); err == nil {
		root += "/unified"
	}
	parent := filepath.Join(root, own)
	group := fmt.Sprintf("%s/bench_%d_%d", parent, os.Getpid(), nextJob.Add(1))
	must(b, os.Mkdir(group, 0o755))
	must(b, os.WriteFile(group+"/cgroup.procs", []byte("0"), 0))
	b.Cleanup(func() {
		must(b, os.WriteFile(parent+"/cgroup.procs", []byte("0"), 0))
		for range 1000 {
			if err = os.Remove(group); err == nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		b.Error(err)
	})
	read := func() time.Duration {
		data, err := os.ReadFile(group + "/cpu.stat")
		must(b, err)
		us, err := cgroup.Field(data, "usage_usec")
		must(b, err)
		return time.Duration(us) * time.Microsecond
	}
	start := read()
	return func() time.Duration { return read() - start }
}

// ownTime is the processor time of this process alone.
func ownTime() time.Duration {
	var use unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

func perSecond(b *testing.B, loop func(n int)) float64 {
	start := time.Now()
	loop(b.N)
	rate := float64(b.N) / time.Since(start).Seconds()
	b.ReportMetric(rate, "steps/s")
	return rate
}

// benchWorkers is how many steps are under way at once: two processors' worth of slots, twice over,
// so that one step's waiting is another's time.
const benchWorkers = 8

// benchScript is the least that a batch script can be.
const benchScript = "#!/bin/sh\n/bin/true\n"

func benchLimits(driver string) cgroup.Limits {
	if driver == cgroup.Track {
		return cgroup.Limits{}
	}
	return cgroup.Limits{Shares: 1024, Memory: 64 << 20}
}

func inParallel(count int, work func()) {
	var wg sync.WaitGroup
	todo := make(chan struct{}, count)
	for range count {
		todo <- struct{}{}
	}
	close(todo)
	for range benchWorkers {
		wg.Go(func() {
			for range todo {
				work()
			}
		})
	}
	wg.Wait()
}

// pathLoop runs no-op steps through launcher and shepherd.
func (n *node) pathLoop(count int) {
	inParallel(count, func() {
		o := n.order(benchScript, func(l *cred.Launch) { l.Alloc.Mem = 64 << 20; l.StdOut = "/dev/null" })
		k := n.start(o)
		n.wait(k)
		n.release(k)
	})
}

// bareLoop is the floor: what the machine needs when nobody checks, records or reports anything.
// A shell that joins its own groups is what a plain script would use; here the loop itself is the
// parent, so only fork, exec, groups and wait are counted.
func bareLoop(b *testing.B, driver string, count int) {
	needRoot(b)
	d, err := cgroup.Open(cgroup.Config{Driver: driver, Subtree: fmt.Sprintf("bare_%d", os.Getpid())})
	must(b, err)
	defer d.Close()
	dir, err := os.MkdirTemp("", "tg-bare-")
	must(b, err)
	defer os.RemoveAll(dir)
	must(b, os.Chmod(dir, 0o755))
	script := filepath.Join(dir, "script")
	must(b, os.WriteFile(script, []byte(benchScript), 0o755))
	inParallel(count, func() {
		k := cgroup.Key{Job: nextJob.Add(1)}
		g, err := d.Create(k, benchLimits(driver))
		if err != nil {
			b.Error(err)
			return
		}
		fd, err := unix.Open(g.Unified, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			b.Error(err)
			return
		}
		defer unix.Close(fd)
		cmd := exec.Command(script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: fd,
			Credential: &syscall.Credential{Uid: userID, Gid: userID}}
		if err := runInGroups(cmd, g); err != nil {
			b.Error(err)
		}
		if err := g.Destroy(); err != nil {
			b.Error(err)
		}
	})
}

// runInGroups starts the command from a thread that has joined the version 1 groups, and waits.
func runInGroups(cmd *exec.Cmd, g *cgroup.Group) error {
	joins := g.Joins()
	if len(joins) == 0 {
		return cmd.Run()
	}
	started := make(chan error)
	go func() {
		started <- startFromJoined(cmd, joins)
	}()
	if err := <-started; err != nil {
		return err
	}
	return cmd.Wait()
}

// startFromJoined starts the command from its own thread, moved into the groups before and out of
// them again after.
func startFromJoined(cmd *exec.Cmd, joins []string) error {
	runtime.LockOSThread() // not unlocked: the thread is thrown away with its groups
	for _, file := range joins {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for _, file := range joins { // up again: the thread may live on for a moment
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), "../../tasks"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}
