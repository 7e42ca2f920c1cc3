package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// maxForks bounds the shepherds that are between their fork and their answer.
const maxForks = 16

// Server is the launcher.
type Server struct {
	conf    *Conf
	verify  *verifier
	spool   *spool
	groups  *cgroup.Driver
	reaper  *reaper
	jobs    jobTable
	forks   chan struct{}
	pool    pool
	sweeper *sweeper
	leases  *leases
	null    *os.File
	crash   *os.File // where a shepherd's runtime writes when it crashes
	now     func() time.Time
	log     *slog.Logger

	startWait time.Duration // how long a start may take
	intake    intake
}

// New prepares a launcher: it opens the spool, the control groups and the authority's certificate.
// The program must start no children of its own: the server collects all of them.
func New(c *Conf, now func() time.Time, log *slog.Logger) (_ *Server, err error) {
	if err := errors.Join(checkOurs(c.CA, c.Rootless), checkOurs(c.Shepherd, c.Rootless)); err != nil {
		return nil, err
	}
	v, err := newVerifier(c, now, log.Warn)
	if err != nil {
		return nil, err
	}
	sp, err := openSpool(c, now().UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sp.held.Close())
		}
	}()
	driver, err := cgroup.Open(cgroup.Config{Driver: c.Driver, Subtree: c.Cluster + "_" + c.Node})
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	crash, err := os.OpenFile(filepath.Join(c.Spool, "shepherd.log"),
		os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	s := &Server{conf: c, verify: v, spool: sp, groups: driver, reaper: newReaper(), null: null, crash: crash,
		forks: make(chan struct{}, maxForks), sweeper: newSweeper(log), leases: newLeases(boottime), now: now, log: log, startWait: startWait}
	known, err := sp.planned(now().UnixMilli())
	if err != nil {
		return nil, err
	}
	for _, p := range known {
		if p.damaged != nil { // nobody can say whose it is: it ends, the others go on
			log.Error("step with a damaged plan is killed", "job", p.Key.Job, "run", p.Key.Run, "step", p.Key.Step,
				"err", errors.Join(p.damaged, s.kill(p.Key)))
		}
		s.jobs.adopt(p)
	}
	return s, nil
}

// Listen makes the socket: the agent's group may connect, peers are checked again one by one.
func (s *Server) Listen() (*net.UnixListener, error) {
	path := s.conf.Socket
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	old := syscall.Umask(0o777) // nobody connects before the mode is set
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(old)
	if err != nil {
		return nil, err
	}
	// Shepherds hold the agent's group beside their own, or they could not connect.
	if !s.conf.Rootless {
		if err := os.Lchown(path, 0, s.conf.AgentGID); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Run serves until ctx ends. Steps that it started live on; a start that has not come to its script by
// then is taken back and answered, as is a prolog or epilog.
func (s *Server) Run(ctx context.Context, l *net.UnixListener) error {
	defer s.groups.Close() // goes as far as no step is left
	work, over := context.WithCancel(context.WithoutCancel(ctx))
	var own, conns sync.WaitGroup
	own.Go(func() { s.sweeper.run(work) })
	own.Go(func() { s.pool.run(work) })
	own.Go(func() { s.sweepOnce(ctx) })
	own.Go(func() { s.reaper.run(work) })
	defer func() { conns.Wait(); over(); own.Wait() }()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	slots := make(chan struct{}, MaxConns)
	for {
		conn, err := l.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ECONNABORTED) {
			s.log.Warn("accept", "err", err)
			time.Sleep(10 * time.Millisecond) // descriptors come back as steps end
			continue
		}
		if err != nil {
			return err
		}
		select {
		case slots <- struct{}{}:
			conns.Go(func() {
				defer func() { <-slots }()
				s.serve(ctx, conn)
			})
		default:
			s.intake.warn(s.log, "connection refused", fmt.Errorf("limit %d", MaxConns))
			conn.Close()
		}
	}
}

// peer is who is on the other end.
type peer int

const (
	stranger peer = iota
	shepherd
	agent
)

func (s *Server) peer(conn *net.UnixConn) (peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return stranger, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil || err != nil {
		return stranger, errors.Join(e, err)
	}
	switch int(cred.Uid) {
	case s.conf.AgentUID:
		return agent, nil
	case s.conf.StepUID:
		return shepherd, nil
	}
	return stranger, fmt.Errorf("uid %d is neither the agent's nor the shepherds'", cred.Uid)
}

// answer does what one request asks for.
func (s *Server) answer(ctx context.Context, who peer, req *launch.Request) *launch.Reply {
	if who != agent && req.Signal == nil && req.Kill == nil && req.Freeze == nil {
		return &launch.Reply{Err: "shepherds may ask for signals only", Errno: int(unix.EPERM)}
	}
	switch {
	case req.Start != nil:
		return s.start(ctx, req.Start)
	case req.Signal != nil:
		return failure(job.CauseNone, s.signal(req.Signal))
	case req.Kill != nil:
		return failure(job.CauseNone, s.kill(*req.Kill))
	case req.Freeze != nil:
		return failure(job.CauseNone, s.freeze(req.Freeze))
	case req.Release != nil:
		return failure(job.CauseNode, s.release(ctx, req.Release))
	case req.Renew != nil:
		s.leases.renew(req.Renew)
		return &launch.Reply{}
	case req.List:
		keys, err := s.spool.keys()
		reply := failure(job.CauseNode, err)
		reply.Keys, reply.Driver, reply.Missing, reply.NoEpilog = keys, s.groups.Name(), s.groups.Missing(), s.conf.Epilog == ""
		return reply
	}
	return &launch.Reply{Err: "request asks for nothing", Errno: int(unix.EINVAL)}
}

// failure makes a reply of an error; nil is success.
func failure(cause job.Cause, err error) *launch.Reply {
	if err == nil {
		return &launch.Reply{}
	}
	r := &launch.Reply{Err: err.Error(), Cause: uint8(cause)}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		r.Errno = int(errno)
	}
	return r
}

// Driver is the cgroup driver in use.
func (s *Server) Driver() string { return s.groups.Name() }

// Missing says for people what this node cannot enforce.
func (s *Server) Missing() []string { return s.groups.Missing() }
