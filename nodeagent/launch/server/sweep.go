package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
)

// maxSweep bounds the runs whose groups wait to be removed; beyond it the caller removes them.
const maxSweep = 1024

// sweeper removes the groups of runs after the word that they have ended is out: nothing lives in
// them, and the kernel takes its time. What a launcher leaves that is killed is removed by the next.
type sweeper struct {
	todo chan sweep
	log  *slog.Logger

	mu      sync.Mutex
	pending map[runKey]chan struct{} // closed when the run's groups are gone
}

type sweep struct {
	run    runKey
	groups *cgroup.Group
}

func newSweeper(log *slog.Logger) *sweeper {
	return &sweeper{todo: make(chan sweep, maxSweep), log: log, pending: map[runKey]chan struct{}{}}
}

// add has the groups of a run removed, now when too many wait.
func (w *sweeper) add(run runKey, g *cgroup.Group) {
	w.wait(run)
	w.mu.Lock()
	w.pending[run] = make(chan struct{})
	w.mu.Unlock()
	one := sweep{run, g}
	select {
	case w.todo <- one:
	default:
		w.remove(one)
	}
}

// wait waits for the groups of a run to be gone, so that they can be made again. Nobody may add the
// run meanwhile.
func (w *sweeper) wait(run runKey) {
	w.mu.Lock()
	gone := w.pending[run]
	w.mu.Unlock()
	if gone != nil {
		<-gone
	}
}

func (w *sweeper) remove(one sweep) {
	if err := one.groups.DestroyJob(); err != nil {
		w.log.Error("removing control groups", "job", one.run.job, "run", one.run.run, "err", err)
	}
	w.mu.Lock()
	close(w.pending[one.run])
	delete(w.pending, one.run)
	w.mu.Unlock()
}

// run works until ctx ends, and then off what is left. Nobody may add after it.
func (w *sweeper) run(ctx context.Context) {
	for {
		select {
		case one := <-w.todo:
			w.remove(one)
		case <-ctx.Done():
			for {
				select {
				case one := <-w.todo:
					w.remove(one)
				default:
					return
				}
			}
		}
	}
}

// sweepAfter is how long after its start a launcher removes groups that a killed one has left. They
// hold nothing, so there is no haste.
const sweepAfter = time.Minute

func (s *Server) sweepOnce(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(sweepAfter):
		s.groups.Sweep(func(job, run uint32) bool {
			return s.jobs.lives(job, run) || s.sweeper.has(runKey{job, run})
		})
	}
}

func (w *sweeper) has(run runKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending[run] != nil
}
