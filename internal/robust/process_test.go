package robust

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a daemon that can be started, killed, stopped and started again.
type process struct {
	name   string
	log    string // file, appended to by each life
	faults string // folder of its orders, $GRID_FAULTS
	make   func() *exec.Cmd
	extra  []string // more arguments for the next life

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{} // closed when this life is over
	broken bool          // a test has broken it, or may have: its end is no surprise
	code   int           // exit code of the last life; -1 = by a signal
}

// own are the pids that somebody waits for; others that end are orphans left to us.
var own = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{}}

// start begins a life. One that runs already is an error.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		select {
		case <-p.ended:
		default:
			return fmt.Errorf("%s runs already", p.name)
		}
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := p.make()
	cmd.Args = append(cmd.Args, p.extra...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(cmd.Env, "GRID_FAULTS="+p.faults)
	own.Lock()
	if err = cmd.Start(); err == nil {
		own.pids[cmd.Process.Pid] = true
	}
	own.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.cmd, p.ended = cmd, ended
	go func() {
		cmd.Wait()
		own.Lock()
		delete(own.pids, cmd.Process.Pid)
		own.Unlock()
		p.mu.Lock()
		p.code = cmd.ProcessState.ExitCode()
		p.mu.Unlock()
		close(ended)
	}()
	return nil
}

// alive tells whether it runs, or stands still.
func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil && p.ended != nil {
		select {
		case <-p.ended:
		default:
			p.cmd.Process.Signal(s)
		}
	}
}

// kill ends it with SIGKILL and comes back when it is gone.
func (p *process) kill() { p.end(syscall.SIGKILL, time.Minute) }

// end sends a signal and waits; who is not gone after most is killed. The exit code is -1 then.
func (p *process) end(s syscall.Signal, most time.Duration) int {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if ended == nil {
		return 0
	}
	p.signal(s)
	if s != syscall.SIGKILL {
		p.signal(syscall.SIGCONT)
	}
	select {
	case <-ended:
	case <-time.After(most):
		p.signal(syscall.SIGKILL)
		<-ended
		return -1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code
}

// waitEnd waits for a process that ends by itself and gives its exit code.
func (p *process) waitEnd(most time.Duration) (code int, err error) {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	select {
	case <-ended:
	case <-time.After(most):
		return 0, fmt.Errorf("%s still runs after %v", p.name, most)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code, nil
}

// stop lets it stand still until cont.
func (p *process) stop() { p.signal(syscall.SIGSTOP) }
func (p *process) cont() { p.signal(syscall.SIGCONT) }

// breakIt notes that its end is meant from here on, or that it is no more.
func (p *process) breakIt(meant bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = meant
}

// surprise tells whether it is gone and nobody meant that.
func (p *process) surprise() bool {
	up := p.alive()
	p.mu.Lock()
	defer p.mu.Unlock()
	return !up && !p.broken && p.ended != nil
}

// tail is the end of its log.
func (p *process) tail() string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-1500):])
}

// fault orders what happens at a point; "" takes the order back. The file is there at once or not at all.
func (p *process) fault(t testing.TB, point, order string) {
	t.Helper()
	path := filepath.Join(p.faults, point)
	var err error
	if order == "" {
		if err = os.Remove(path); os.IsNotExist(err) {
			err = nil
		}
	} else if err = os.WriteFile(path+".new", []byte(order), 0o644); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Error(err)
	}
}

// noFaults takes back every order. A boot id stays: it is what the host is by now.
func (p *process) noFaults() {
	files, _ := filepath.Glob(filepath.Join(p.faults, "*"))
	for _, f := range files {
		if filepath.Base(f) != "bootid" {
			os.Remove(f)
		}
	}
}

// children lists the direct children of a process.
func children(pid int) []int {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var pids []int
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for word := range strings.FieldsSeq(string(data)) {
			if n, err := strconv.Atoi(word); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// orphans are our children that nobody waits for: shepherds whose launcher was killed. We are the first
// process of our namespace, so they come to us.
func orphans() []int {
	own.Lock()
	defer own.Unlock()
	var out []int
	for _, pid := range children(os.Getpid()) {
		if !own.pids[pid] {
			out = append(out, pid)
		}
	}
	return out
}

// output runs a command to its end.
func output(cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	own.Lock()
	err := cmd.Start()
	if err == nil {
		own.pids[cmd.Process.Pid] = true
	}
	own.Unlock()
	if err == nil {
		err = cmd.Wait()
		own.Lock()
		delete(own.pids, cmd.Process.Pid)
		own.Unlock()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), err
}

// reap takes the exits of orphans until quit.
func reap(quit <-chan struct{}) {
	for {
		select {
		case <-quit:
			return
		case <-time.After(200 * time.Millisecond):
		}
		for _, pid := range orphans() {
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

// endOrphans kills what daemons have left to us, with all below it.
func endOrphans() {
	for range 100 {
		left := orphans()
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			for _, kid := range children(pid) {
				syscall.Kill(kid, syscall.SIGKILL)
			}
			syscall.Kill(pid, syscall.SIGKILL)
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
