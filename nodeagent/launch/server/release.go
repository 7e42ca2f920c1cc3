package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// release runs the epilog and removes the groups, and then the step's folder unless the record must
// stay. Both halves may be asked for again: what is gone is not an error.
func (s *Server) release(ctx context.Context, r *launch.Release) error {
	unlock := s.jobs.lockStep(r.Key)
	defer unlock()
	if s.jobs.has(r.Key) { // else the first half is done, or the run never was here
		if err := s.takeDown(ctx, r.Key, r.Exit); err != nil {
			return err
		}
	}
	if r.KeepRecord {
		return nil
	}
	return s.spool.remove(r.Key, r.KeepOutput, s.jobs.empty(r.Key))
}

// takeDown ends a step on this node: its group, epilog after the run's last step, the groups of the
// run. It refuses with EBUSY while a process lives. The epilog's failure does not keep the rest from
// being removed.
func (s *Server) takeDown(ctx context.Context, k launch.Key, exit *launch.Exit) error {
	g := s.groups.Group(cgroup.Key(k), nil)
	if s.groups.Name() == cgroup.None {
		if pids, err := s.members(k, g); err != nil {
			return err
		} else if len(pids) > 0 {
			return fmt.Errorf("step %s has living processes: %w", k, unix.EBUSY)
		}
	}
	if err := g.DestroyStep(); errors.Is(err, cgroup.ErrBusy) {
		return fmt.Errorf("step %s has living processes: %w", k, errors.Join(err, unix.EBUSY))
	} else if err != nil {
		return err
	}
	return s.jobs.leave(k, func(p *storedPlan) error {
		defer s.sweeper.add(runKey{k.Job, k.Run}, g)
		if s.conf.Epilog == "" {
			return nil
		}
		if p.damaged != nil { // without its user an epilog could hit anybody
			return fmt.Errorf("epilog: it has not run: %w", p.damaged)
		}
		err := s.runHook(ctx, s.conf.Epilog, "epilog_slurmd", p, exit)
		if err != nil {
			err = fmt.Errorf("epilog: %w", err)
		}
		return errors.Join(err, s.spool.epilogDone(k))
	})
}

// undoTries and undoPause bound the wait for what a failed start may have left.
const (
	undoTries = 400
	undoPause = 5 * time.Millisecond
)

// undo takes back a start that has failed. A forker that died in the middle may have made a process
// that nobody minds: it is killed first.
func (s *Server) undo(ctx context.Context, k launch.Key) error {
	err := s.kill(k)
	for range undoTries {
		if err = errors.Join(err, s.takeDown(ctx, k, nil)); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(undoPause)
		err = nil
	}
	if err != nil {
		return err
	}
	return s.spool.remove(k, false, s.jobs.empty(k))
}
