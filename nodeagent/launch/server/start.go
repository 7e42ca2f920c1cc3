package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// causeError carries which side was to blame.
type causeError struct {
	cause job.Cause
	err   error
}

func (e *causeError) Error() string { return e.err.Error() }
func (e *causeError) Unwrap() error { return e.err }

func blame(cause job.Cause, err error) error {
	if err == nil {
		return nil
	}
	return &causeError{cause, err}
}

// start verifies an order and starts its step, once per run.
func (s *Server) start(ctx context.Context, order *launch.Start) *launch.Reply {
	l, err := s.verify.verify(order)
	if err != nil {
		return failure(job.CauseCredential, err)
	}
	started, err := s.startVerified(ctx, l, order)
	if err != nil {
		cause := job.CauseNode
		var blamed *causeError
		if errors.As(err, &blamed) {
			cause = blamed.cause
		}
		return failure(cause, fmt.Errorf("start %s: %w", keyOf(l), err))
	}
	return &launch.Reply{Start: started}
}

func keyOf(l *cred.Launch) launch.Key { return launch.Key{Job: l.JobID, Run: l.Run, Step: l.Step} }

// startVerified claims the run and brings it up; what was made is taken back when a part fails.
func (s *Server) startVerified(ctx context.Context, l *cred.Launch, order *launch.Start) (int64, error) {
	k := keyOf(l)
	p, err := s.plan(l, order)
	if err != nil {
		return 0, err
	}
	unlock := s.jobs.lockStep(k)
	defer unlock()
	if err := s.spool.claim(k); err != nil {
		if errors.Is(err, errDuplicate) {
			return 0, blame(job.CauseDuplicate, err)
		}
		return 0, err
	}
	started, err := s.bringUp(ctx, p, l, order)
	if err != nil {
		undo := s.takeDown(context.WithoutCancel(ctx), p)
		if undo == nil {
			undo = s.spool.remove(k, false, s.jobs.empty(k))
		}
		return 0, errors.Join(err, undo)
	}
	return started, nil
}

func (s *Server) bringUp(ctx context.Context, p *storedPlan, l *cred.Launch, order *launch.Start) (int64, error) {
	file, err := s.spool.writePlan(p)
	if err != nil {
		if errors.Is(err, fs.ErrExist) {
			err = blame(job.CauseDuplicate, errDuplicate)
		}
		return 0, err
	}
	defer file.Close()
	if err := s.jobs.enter(p.Key, func() error { return s.prolog(ctx, &p.Plan) }); err != nil {
		return 0, err
	}
	if p.Group, err = s.groups.Create(cgroup.Key(p.Key), s.limits(&l.Alloc)); err != nil {
		return 0, err
	}
	if err := s.spool.writeScript(&p.Plan, order.Script); err != nil {
		return 0, err
	}
	if !l.SharedFS {
		if err := s.spool.makeWork(&p.Plan); err != nil {
			return 0, err
		}
	}
	return s.fork(ctx, file)
}

func (s *Server) prolog(ctx context.Context, p *launch.Plan) error {
	if s.conf.Prolog == "" {
		return nil
	}
	if err := s.runHook(ctx, s.conf.Prolog, "prolog_slurmd", p); err != nil {
		return blame(job.CauseProlog, fmt.Errorf("prolog: %w", err))
	}
	return nil
}

// plan turns a verified credential into what the shepherd is told.
func (s *Server) plan(l *cred.Launch, order *launch.Start) (*storedPlan, error) {
	k := keyOf(l)
	limits := s.limits(&l.Alloc)
	p := &storedPlan{Expires: l.Expires, Plan: launch.Plan{Key: k, Cluster: l.Cluster, Node: l.Node,
		UID: l.UID, GID: l.GID, Groups: l.Groups, Umask: l.Umask,
		Script: filepath.Join(launch.StepFolder(s.conf.Spool, k), launch.ScriptFile), Args: order.Args, Env: order.Env,
		WorkDir: l.WorkDir, StdIn: l.StdIn, StdOut: l.StdOut, StdErr: l.StdErr, Append: l.Append,
		TimeLimit: l.TimeLimit, KillWait: l.KillWait, Lease: l.Lease, Rootless: s.conf.Rootless,
		StepUID: s.conf.StepUID, StepGID: s.conf.StepGID, AgentGID: s.conf.AgentGID,
		StepDir: launch.StepFolder(s.conf.Spool, k), AgentSocket: s.conf.AgentSocket, LaunchSocket: s.conf.Socket,
		Group: s.groups.Group(cgroup.Key(k), &limits),
		Epilog: launch.EpilogVars{User: l.User, JobName: l.JobName, Partition: l.Partition, Account: l.Account,
			NodeList: l.NodeList, Devices: devices(&l.Alloc)},
	}}
	if l.Signal != "" {
		sig, err := job.ParseSignalSpec(l.Signal)
		if err != nil {
			return nil, blame(job.CauseUser, err)
		}
		p.WarnSignal, p.WarnBefore, p.WarnBatch = sig.Signal, sig.Before, sig.Batch
	}
	if !l.SharedFS {
		p.Spooled = true
		p.WorkDir = launch.WorkFolder(s.conf.Spool, k)
		p.StdOut = launch.OutputFile(s.conf.Spool, k, false)
		p.StdIn = ""
		if l.StdErr != "" && l.StdErr != l.StdOut {
			p.StdErr = launch.OutputFile(s.conf.Spool, k, true)
		} else {
			p.StdErr = ""
		}
	}
	return p, nil
}

func (s *Server) limits(a *job.NodeAlloc) cgroup.Limits {
	l := cgroup.Limits{Shares: 1024 * uint64(a.CPUs), Pids: s.conf.PidsMax}
	if a.Mem > 0 { // job.WholeNode: nothing to hold back from others
		l.Memory = a.Mem
	}
	if s.conf.Cores {
		l.CPUs = joinIDs(a.CPUIDs)
	}
	return l
}

func joinIDs(ids []uint32) string {
	var b strings.Builder
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(ids[i]), 10))
		if j > i {
			b.WriteString("-" + strconv.FormatUint(uint64(ids[j]), 10))
		}
		i = j + 1
	}
	return b.String()
}

// devices lists the indexes of the GPUs of an allocation.
func devices(a *job.NodeAlloc) string {
	var out []string
	for _, g := range a.Gres {
		if g.Name != "gpu" {
			continue
		}
		for _, i := range g.Index {
			out = append(out, strconv.FormatUint(uint64(i), 10))
		}
	}
	return strings.Join(out, ",")
}

// shepherdEnv tunes the shepherd's runtime for a short life: one processor, and no reading of
// control files to find out how many.
var shepherdEnv = []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=24MiB", "GODEBUG=containermaxprocs=0,updatemaxprocs=0"}

// shepherdIDs: the shepherd begins with root's uid, which it needs to start the job, but has no other
// id of root's from its first instruction on.
func (s *Server) shepherdIDs() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if !s.conf.Rootless {
		attr.Credential = &syscall.Credential{Uid: 0, Gid: uint32(s.conf.StepGID), Groups: []uint32{uint32(s.conf.AgentGID)}}
	}
	return attr
}

// forkPatience is how long a start keeps one of the maxForks slots.
const forkPatience = time.Second

// maxStarted bounds a shepherd's answer in bytes.
const maxStarted = 64 << 10

// fork starts the shepherd with the plan, and waits for its answer.
func (s *Server) fork(ctx context.Context, plan *os.File) (int64, error) {
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
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	null := s.null.Fd()
	attr := &syscall.ProcAttr{Dir: "/", Env: shepherdEnv, Sys: s.shepherdIDs(),
		Files: []uintptr{null, null, s.crash.Fd(), plan.Fd(), w.Fd()}}
	_, _, err = s.reaper.start([]string{s.conf.Shepherd}, attr, false)
	w.Close()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.conf.Shepherd, err)
	}
	line, err := bufio.NewReaderSize(r, maxStarted).ReadSlice('\n')
	if err != nil {
		return 0, fmt.Errorf("the shepherd died before it answered (see shepherd.log in the spool): %w", err)
	}
	var answer launch.Started
	if err := json.Unmarshal(line, &answer); err != nil {
		return 0, fmt.Errorf("answer of the shepherd: %w", err)
	}
	if answer.Err != "" {
		err := errors.New(answer.Err)
		if answer.Errno != 0 {
			err = fmt.Errorf("%s: %w", answer.Err, syscall.Errno(answer.Errno))
		}
		return 0, blame(job.Cause(answer.Cause), err)
	}
	return answer.Start, nil
}
