package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// release runs the epilog and removes the groups, and then the step's folder unless the record must
// stay. Both halves may be asked for again: what is gone is not an error.
func (s *Server) release(ctx context.Context, r *launch.Release) error {
	unlock := s.jobs.lockStep(r.Key)
	defer unlock()
	p, err := s.spool.readPlan(r.Key)
	switch {
	case err == nil:
		err = s.takeDown(ctx, p)
		if errors.Is(err, unix.EBUSY) {
			return err
		}
	case errors.Is(err, fs.ErrNotExist):
		err = nil // the first half is done, or the run never was here
	}
	if err != nil || r.KeepRecord {
		return err
	}
	return s.spool.remove(r.Key, r.KeepOutput, s.jobs.empty(r.Key))
}

// takeDown ends a run on this node: epilog after the run's last step, groups, plan. It refuses with
// EBUSY while a process lives. The epilog's failure does not keep the rest from being removed.
func (s *Server) takeDown(ctx context.Context, p *storedPlan) error {
	k := p.Key
	g := s.groups.Group(cgroup.Key(k), nil)
	empty, err := s.empty(k, g)
	if err != nil {
		return err
	}
	if !empty {
		return fmt.Errorf("step %s has living processes: %w", k, unix.EBUSY)
	}
	hook := s.jobs.leave(k, func() error {
		if s.conf.Epilog == "" {
			return nil
		}
		if err := s.runHook(ctx, s.conf.Epilog, "epilog_slurmd", &p.Plan); err != nil {
			return fmt.Errorf("epilog: %w", err)
		}
		return nil
	})
	if err := g.Destroy(); err != nil {
		if errors.Is(err, cgroup.ErrBusy) {
			err = errors.Join(err, unix.EBUSY)
		}
		return errors.Join(hook, err)
	}
	return errors.Join(hook, s.spool.finish(k, p.Expires, s.now().UnixMilli()))
}
