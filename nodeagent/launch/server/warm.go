package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// Warm pairs. A shepherd that has given up root cannot start another step, so it has a forker beside
// it, which can. Each pair takes one step at a time.
const (
	maxUses  = 1000             // steps of one pair; then a fresh one comes
	idleTime = 5 * time.Second  // an idle pair is let go after it
	warmTime = 10 * time.Second // a pair whose step runs longer is let go: the shepherd goes on alone
	lookIdle = time.Second      // how often idle pairs are looked at
)

// maxIdle bounds the idle pairs.
func maxIdle() int { return max(8, 2*runtime.NumCPU()) }

// pair is a shepherd and what starts its steps. Closing its sockets ends the one that starts; a
// shepherd ends when its step is over.
type pair struct {
	orders *net.UnixConn
	idle   *net.UnixConn // says when a step is over; nil for a shepherd of a single step
	uses   int
	since  time.Time // idle since
}

func (p *pair) close() {
	p.orders.Close()
	if p.idle != nil {
		p.idle.Close()
	}
}

// pool keeps idle pairs, the one that was used last on top: the others grow old and go.
type pool struct {
	mu     sync.Mutex
	idle   []*pair
	closed bool
}

func (p *pool) take() *pair {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	got := p.idle[last]
	p.idle = p.idle[:last]
	return got
}

// put offers a pair for the next step, or lets it go.
func (p *pool) put(one *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || one.uses >= maxUses || len(p.idle) >= maxIdle() {
		one.close()
		return
	}
	one.since = time.Now()
	p.idle = append(p.idle, one)
}

// await follows a pair with a step. A shepherd that says nothing in time minds a long one.
func (p *pool) await(one *pair) {
	var b [1]byte
	err := one.idle.SetReadDeadline(time.Now().Add(warmTime))
	if err == nil {
		_, err = one.idle.Read(b[:])
	}
	if err != nil {
		one.close()
		return
	}
	p.put(one)
}

// run lets idle pairs go that nobody has needed, and all when ctx ends.
func (p *pool) run(ctx context.Context) {
	tick := time.NewTicker(lookIdle)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			p.mu.Lock()
			p.closed = true
			p.mu.Unlock()
			p.shrink(time.Time{})
			return
		case now := <-tick.C:
			p.shrink(now.Add(-idleTime))
		}
	}
}

// shrink lets go who is idle since before a time; all for the zero time.
func (p *pool) shrink(before time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept := p.idle[:0]
	for _, one := range p.idle {
		if before.IsZero() || one.since.Before(before) {
			one.close()
		} else {
			kept = append(kept, one)
		}
	}
	clear(p.idle[len(kept):])
	p.idle = kept
}

// shepherdEnv tunes the runtime of shepherds and forkers: one processor, no reading of control files
// to find out how many, and little memory.
var shepherdEnv = []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=12MiB", "GODEBUG=containermaxprocs=0,updatemaxprocs=0"}

// shepherdIDs: the shepherd begins with root's uid, which it needs to start the job, but has no other
// id of root's from its first instruction on.
func (s *Server) shepherdIDs() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if !s.conf.Rootless {
		attr.Credential = &syscall.Credential{Uid: 0, Gid: uint32(s.conf.StepGID), Groups: []uint32{uint32(s.conf.AgentGID)}}
	}
	return attr
}

// spawn starts a shepherd, with a forker when it is for more than one step.
func (s *Server) spawn(mode string) (*pair, error) {
	p := new(pair)
	orders, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p.orders = orders
	null := s.null.Fd()
	files := []uintptr{null, null, s.crash.Fd(), theirs.Fd()}
	if mode == launch.Warm {
		idle, theirs, err := socketPair()
		if err != nil {
			p.close()
			return nil, err
		}
		defer theirs.Close()
		p.idle = idle
		files = append(files, theirs.Fd())
	}
	c := s.conf
	argv := []string{c.Shepherd, mode, strconv.Itoa(c.StepUID), strconv.Itoa(c.StepGID), strconv.Itoa(c.AgentGID)}
	if _, _, err := s.reaper.start(argv, &syscall.ProcAttr{Dir: "/", Env: shepherdEnv, Sys: s.shepherdIDs(), Files: files}, false); err != nil {
		p.close()
		return nil, fmt.Errorf("%s: %w", c.Shepherd, err)
	}
	return p, nil
}

// socketPair gives our end, and theirs as a blocking file.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

// mode is how a step's shepherd is started: without a version 2 group only the end of all its children
// tells a shepherd that nothing is left of a step, so it cannot have a forker among them.
func (s *Server) mode(p *launch.Plan) string {
	if p.Rootless || p.Group.EventsFile() == "" {
		return launch.Single
	}
	return launch.Warm
}

// forkPatience is how long a start keeps one of the maxForks slots.
const forkPatience = time.Second

// order has a shepherd start the step, and waits for its answer.
func (s *Server) order(ctx context.Context, p *launch.Plan, c *claim) (int64, error) {
	select {
	case s.forks <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	// A child that hangs while it opens the user's files (a dead file server, a pipe that nobody reads)
	// must not keep its slot from others.
	release := sync.OnceFunc(func() { <-s.forks })
	defer time.AfterFunc(forkPatience, release).Stop()
	defer release()
	body, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	msg, rights := launch.Frame(body), unix.UnixRights(c.dir, c.lock)
	mode := s.mode(p)
	for {
		var one *pair
		if mode == launch.Warm {
			one = s.pool.take()
		}
		fresh := one == nil
		if fresh {
			if one, err = s.spawn(mode); err != nil {
				return 0, err
			}
		}
		answer, err := one.ask(msg, rights)
		if err == nil && answer.Err == "" {
			s.busy(one)
			return answer.Start, nil
		}
		one.close()
		if !fresh && (errors.Is(err, errUntouched) || err == nil && answer.Untouched) {
			continue // it died while it was idle
		}
		if err != nil {
			return 0, fmt.Errorf("the shepherd died before it answered (see shepherd.log in the spool): %w", err)
		}
		return 0, refusal(answer)
	}
}

// busy leaves a pair to its step.
func (s *Server) busy(one *pair) {
	one.uses++
	if one.idle == nil {
		one.close()
		return
	}
	go s.pool.await(one)
}

func refusal(a *launch.Started) error {
	err := errors.New(a.Err)
	if a.Errno != 0 {
		err = fmt.Errorf("%s: %w", a.Err, syscall.Errno(a.Errno))
	}
	return blame(job.Cause(a.Cause), err)
}

// errUntouched means that nobody can have acted on a plan.
var errUntouched = errors.New("nobody has read the plan")

// ask sends a plan and reads the answer. When the peer is gone before it has read all of the plan, the
// kernel says so with another error than after: nothing was started then.
func (p *pair) ask(msg, rights []byte) (*launch.Started, error) {
	n, _, err := p.orders.WriteMsgUnix(msg, rights, nil)
	if err == nil && n < len(msg) {
		_, err = p.orders.Write(msg[n:])
	}
	if err != nil {
		return nil, errors.Join(errUntouched, err)
	}
	answer := new(launch.Started)
	err = launch.ReadFrame(p.orders, answer)
	switch {
	case errors.Is(err, unix.ECONNRESET):
		return nil, errors.Join(errUntouched, err)
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	}
	return answer, err
}
