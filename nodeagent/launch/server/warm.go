package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/fault"
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

// stepEnv is the environment of shepherds and forkers.
func stepEnv() []string {
	if dir := os.Getenv(fault.Folder); fault.Enabled && dir != "" {
		return append(slices.Clone(shepherdEnv), fault.Folder+"="+dir)
	}
	return shepherdEnv
}

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
	if _, _, err := s.reaper.start(argv, &syscall.ProcAttr{Dir: "/", Env: stepEnv(), Sys: s.shepherdIDs(), Files: files}, false); err != nil {
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
	// A child that hangs while it opens the user's files (a dead file server) must not keep its slot from
	// others.
	release := sync.OnceFunc(func() { <-s.forks })
	defer time.AfterFunc(forkPatience, release).Stop()
	defer release()
	var err error
	if p.Renewed, err = s.leases.check(p.Key); err != nil {
		return 0, err
	}
	code := new(launch.Coder)
	p.Code(code, false)
	if len(code.Bytes()) > launch.MaxFrame {
		return 0, fmt.Errorf("plan of %d bytes is over MaxFrame %d", len(code.Bytes()), launch.MaxFrame)
	}
	msg, rights := launch.Frame(code.Bytes()), unix.UnixRights(c.dir, c.lock)
	mode := s.mode(p)
	for {
		var one *pair
		if mode == launch.Warm {
			one = s.pool.take()
		}
		fresh := one == nil
		if fresh {
			var err error
			if one, err = s.spawn(mode); err != nil {
				return 0, err
			}
		}
		answer, err := s.ask(ctx, one, p.Key, msg, rights)
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

// Bounds of a start, from its plan to its answer. A child may stand still before it has executed its
// script: on a dead file server, or since its user stopped it. It is killed then, which the pair survives.
const (
	startWait = 30 * time.Second
	stopWait  = 2 * time.Second  // when the launcher ends
	killWait  = 10 * time.Second // for the answer after the kill
)

// ask has a pair start a step, and ends the step when that takes too long.
func (s *Server) ask(ctx context.Context, one *pair, k launch.Key, msg, rights []byte) (*launch.Started, error) {
	guard := time.AfterFunc(s.startWait, func() { s.cutStart(one, k, s.startWait) })
	defer guard.Stop()
	stop := context.AfterFunc(ctx, func() { guard.Reset(min(stopWait, s.startWait)) })
	defer stop()
	answer, err := one.ask(msg, rights)
	if !guard.Stop() {
		one.uses = maxUses // what is under way for this start must not meet the next
	}
	return answer, err
}

// cutStart kills what a start has made so far.
func (s *Server) cutStart(one *pair, k launch.Key, after time.Duration) {
	s.log.Warn("a step is killed that does not come to its script", "job", k.Job, "run", k.Run, "step", k.Step, "after", after)
	if err := errors.Join(s.kill(k), one.orders.SetDeadline(time.Now().Add(killWait))); err != nil {
		s.log.Error("ending a start", "job", k.Job, "run", k.Run, "err", err)
	}
}

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
	body, err := launch.ReadMessage(p.orders)
	switch {
	case errors.Is(err, unix.ECONNRESET):
		return nil, errors.Join(errUntouched, err)
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	answer, code := new(launch.Started), launch.Reading(body)
	answer.Code(code)
	return answer, code.Err()
}
