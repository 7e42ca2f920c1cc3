// Package raftbench measures durable submissions on three processes that share one disk, and
// holds the floor that others are compared with: bare raft and bolt with the replica's batching.
// Only test files import it. A test binary that wants to measure ends its TestMain with
// os.Exit(raftbench.Main(m, bodies)), because the processes are the binary itself.
package raftbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// childEnv carries a process's part; a binary that finds it is a child.
const childEnv = "TENSORGRID_RAFTBENCH_CHILD"

// Replicas is the number of processes.
const Replicas = 3

// Shape is a load: closed-loop callers that each wait for their answer before they send again.
type Shape struct {
	Callers      int           // waiting at any time
	CommandBytes int           // of one submission
	PerCall      int           // submissions in one call (1: unary)
	Warmup       time.Duration // not counted
	Duration     time.Duration // counted
	Profile      string        // folder for a CPU and an allocation profile of each process; "" = none
}

// Headline is the shape of the published figure: 2,048 waiting callers with 512-byte commands.
var Headline = Shape{Callers: 2048, CommandBytes: 512, PerCall: 1, Warmup: 2 * time.Second, Duration: 10 * time.Second}

// Figures is what was measured at the leader. CPU is the leader process's time per submission,
// Follower that of one other process over its whole life. Allocs and AllocSize (bytes) are the leader's.
type Figures struct {
	PerSecond float64
	P50, P99  time.Duration
	CPU       time.Duration
	Follower  time.Duration
	Allocs    float64
	AllocSize float64
	Total     int // those not counted for the rate included
	Count     int
	Errors    int
	LastError string
}

func (f Figures) String() string {
	return fmt.Sprintf("%.0f/s, p50 %v, p99 %v, each: leader CPU %v, follower %v, %.1f allocations of %.0f bytes together; %d counted, %d errors %s",
		f.PerSecond, f.P50.Round(time.Millisecond/10), f.P99.Round(time.Millisecond/10), f.CPU.Round(time.Microsecond/10),
		f.Follower.Round(time.Microsecond/10), f.Allocs, f.AllocSize, f.Count, f.Errors, f.LastError)
}

// Child is one process's part in a measurement.
type Child struct {
	Index    int
	Names    []string
	Addrs    []string
	Dir      string
	Shape    Shape
	Listener net.Listener `json:"-"`
}

// Body is what a process does until ctx ends. The leader runs the load and gives its figures;
// the others return nil.
type Body func(ctx context.Context, c Child) (*Figures, error)

type childSpec struct {
	Child
	Body string
}

// Tests is a *testing.M.
type Tests interface{ Run() int }

// Main is what a TestMain exits with: a child of Run does its named body, any other process runs
// the tests. The body "bare" is there always.
func Main(m Tests, bodies map[string]Body) (code int) {
	spec := os.Getenv(childEnv)
	if spec == "" {
		return m.Run()
	}
	if err := childMain(spec, bodies); err != nil {
		fmt.Fprintln(os.Stderr, "raftbench:", err)
		return 1
	}
	return 0
}

func childMain(spec string, bodies map[string]Body) error {
	var c childSpec
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return err
	}
	body := bodies[c.Body]
	if c.Body == "bare" {
		body = bare
	}
	if body == nil {
		return fmt.Errorf("no body %q", c.Body)
	}
	f := os.NewFile(3, "listener")
	ln, err := net.FileListener(f)
	if err != nil {
		return err
	}
	_ = f.Close()
	c.Listener = ln
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // the parent's end, however it comes, closes our input
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	end, err := profile(c)
	if err != nil {
		return err
	}
	figures, err := body(ctx, c.Child)
	if err := errors.Join(err, end()); err != nil {
		return err
	}
	if figures != nil {
		if err := json.NewEncoder(os.Stdout).Encode(figures); err != nil {
			return err
		}
		<-ctx.Done()
	}
	return nil
}

// Run starts the processes with their logs under dir and gives the leader's figures. All
// processes have ended when it returns.
func Run(ctx context.Context, dir, body string, shape Shape) (Figures, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	children, err := prepare(dir, shape)
	if err != nil {
		return Figures{}, err
	}
	out := make(chan answer, Replicas)
	stop := make([]func(), 0, Replicas)
	for _, c := range children {
		end, err := launch(ctx, c, body, out)
		_ = c.Listener.Close()
		if err != nil {
			cancel()
			return Figures{}, err
		}
		stop = append(stop, end)
	}
	a := <-out
	for _, end := range stop {
		end()
	}
	var used time.Duration
	for range len(stop) - 1 {
		other := <-out
		used += other.used / time.Duration(len(stop)-1)
		if a.err == nil && other.err != nil {
			a.err = other.err
		}
	}
	if a.figures.Total > 0 {
		a.figures.Follower = used / time.Duration(a.figures.Total)
	}
	return a.figures, a.err
}

type answer struct {
	figures Figures
	used    time.Duration // CPU time of a process that led nothing
	err     error
}

func prepare(dir string, shape Shape) ([]Child, error) {
	children := make([]Child, Replicas)
	var names, addrs []string
	for i := range children {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		names = append(names, fmt.Sprintf("c%d", i+1))
		addrs = append(addrs, ln.Addr().String())
		children[i] = Child{Index: i, Dir: filepath.Join(dir, names[i]), Shape: shape, Listener: ln}
	}
	for i := range children {
		children[i].Names, children[i].Addrs = names, addrs
		if err := os.MkdirAll(children[i].Dir, 0o700); err != nil {
			return nil, err
		}
	}
	return children, nil
}

// launch starts one process; its first line of output or its end is its answer. end asks it to
// stop and waits.
func launch(ctx context.Context, c Child, body string, out chan<- answer) (end func(), err error) {
	spec, err := json.Marshal(childSpec{Child: c, Body: body})
	if err != nil {
		return nil, err
	}
	ln, err := c.Listener.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var errText bytes.Buffer
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.ExtraFiles = []*os.File{ln}
	cmd.Stderr = &errText
	cmd.WaitDelay = 5 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var a answer
		line, readErr := bufio.NewReader(stdout).ReadBytes('\n')
		if readErr == nil {
			a.err = json.Unmarshal(line, &a.figures)
			out <- a
			_ = cmd.Wait()
			return
		}
		if err := cmd.Wait(); err != nil {
			a.err = errors.Join(fmt.Errorf("%s: %w", c.Names[c.Index], err), errors.New(errText.String()))
		}
		a.used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		out <- a
	}()
	return func() { _ = in.Close(); <-ended }, nil
}
