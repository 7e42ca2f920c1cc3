package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/fault"
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

// blamedOr is whom an error blames; nobody said: otherwise.
func blamedOr(otherwise job.Cause, err error) job.Cause {
	var blamed *causeError
	if errors.As(err, &blamed) {
		return blamed.cause
	}
	return otherwise
}

// start verifies an order and starts its step, once per run.
func (s *Server) start(ctx context.Context, order *launch.Start) *launch.Reply {
	l, payload, err := s.verify.verify(order)
	if err != nil {
		return failure(blamedOr(job.CauseCredential, err), err)
	}
	defer s.leases.begin(keyOf(l), l.Lease, order.Renewed)()
	started, err := s.startVerified(ctx, l, payload)
	if err != nil {
		return failure(blamedOr(job.CauseNode, err), fmt.Errorf("start %s: %w", keyOf(l), err))
	}
	return &launch.Reply{Start: started}
}

func keyOf(l *cred.Launch) launch.Key { return launch.Key{Job: l.JobID, Run: l.Run, Step: l.Step} }

// startVerified claims the run and brings it up; what was made is taken back when a part fails.
func (s *Server) startVerified(ctx context.Context, l *cred.Launch, order *cred.Payload) (int64, error) {
	k := keyOf(l)
	p, err := s.plan(l, order)
	if err != nil {
		return 0, err
	}
	if _, err := s.leases.check(k); err != nil {
		return 0, err
	}
	stored := s.stored(l)
	unlock := s.jobs.lockStep(k)
	defer unlock()
	if err := fault.Point("launch.before-claim"); err != nil {
		return 0, err
	}
	c, err := s.spool.claim(stored, s.now().UnixMilli())
	if err != nil {
		if errors.Is(err, errDuplicate) {
			return 0, blame(job.CauseDuplicate, err)
		}
		return 0, err
	}
	defer c.close()
	err = fault.Point("launch.after-claim")
	var started int64
	if err == nil {
		started, err = s.bringUp(ctx, p, stored, c, l, order)
	}
	if err != nil {
		return 0, errors.Join(err, s.undo(context.WithoutCancel(ctx), k))
	}
	if err := fault.Point("launch.after-start"); err != nil {
		return 0, err
	}
	return started, nil
}

func (s *Server) bringUp(ctx context.Context, p *launch.Plan, stored *storedPlan, c *claim, l *cred.Launch, order *cred.Payload) (int64, error) {
	prolog := func() error { return s.prolog(ctx, stored) }
	if err := s.jobs.enter(stored, prolog, func() (err error) {
		s.sweeper.wait(runKey{p.Key.Job, p.Key.Run})
		p.Group, err = s.groups.Create(cgroup.Key(p.Key), s.limits(&l.Alloc))
		return err
	}); err != nil {
		return 0, err
	}
	if err := s.spool.writeScript(c, p, order.Script); err != nil {
		return 0, err
	}
	if !l.SharedFS {
		if err := s.spool.makeWork(p); err != nil {
			return 0, err
		}
	}
	return s.order(ctx, p, c)
}

// stored is what is kept of an order until its step has left.
func (s *Server) stored(l *cred.Launch) *storedPlan {
	return &storedPlan{Key: keyOf(l), Cluster: l.Cluster, Node: l.Node, UID: l.UID, GID: l.GID, Expires: l.Expires,
		Vars: epilogVars{User: l.User, JobName: l.JobName, Partition: l.Partition, Account: l.Account,
			NodeList: l.NodeList, WorkDir: l.WorkDir, Devices: devices(&l.Alloc)}}
}

func (s *Server) prolog(ctx context.Context, p *storedPlan) error {
	if s.conf.Prolog == "" {
		return nil
	}
	if err := s.runHook(ctx, s.conf.Prolog, "prolog_slurmd", p, nil); err != nil {
		if ctx.Err() != nil { // not the prolog's fault
			return fmt.Errorf("the launcher was stopped: %w", err)
		}
		return blame(job.CauseProlog, fmt.Errorf("prolog: %w", err))
	}
	return nil
}

// plan turns a verified credential into what the shepherd is told.
func (s *Server) plan(l *cred.Launch, order *cred.Payload) (*launch.Plan, error) {
	k := keyOf(l)
	limits := s.limits(&l.Alloc)
	p := &launch.Plan{Key: k, Node: l.Node,
		UID: l.UID, GID: l.GID, Groups: l.Groups, Umask: l.Umask,
		Script: filepath.Join(launch.StepFolder(s.conf.Spool, k), launch.ScriptFile), Args: order.Args, Env: order.Env,
		WorkDir: l.WorkDir, StdIn: l.StdIn, StdOut: l.StdOut, StdErr: l.StdErr, Append: l.Append,
		TimeLimit: l.TimeLimit, KillWait: l.KillWait, Lease: l.Lease, Rootless: s.conf.Rootless,
		StepUID: s.conf.StepUID, StepGID: s.conf.StepGID, AgentGID: s.conf.AgentGID,
		StepDir: launch.StepFolder(s.conf.Spool, k), AgentSocket: s.conf.AgentSocket, LaunchSocket: s.conf.Socket,
		Group: s.groups.Group(cgroup.Key(k), &limits),
	}
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
