package leader

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
)

// Intervals and limits of what is done for runs on silent nodes.
const (
	fenceInterval = 500 * time.Millisecond
	// maxFenced bounds the runs of one proposal.
	maxFenced = 256
	// A fence program that failed is run again after fenceAgain, then after twice that, up to
	// maxFenceAgain.
	fenceAgain    = 5 * time.Second
	maxFenceAgain = 5 * time.Minute
	// pruneInterval is how often launches of runs that are over are forgotten.
	pruneInterval = 10 * time.Second
)

// fenceLoop looks for proof that runs on nodes that are not heard are dead: their lease is over, they
// were never sent to their node, or the node has been fenced. Each is told to the state by job and run,
// never for a whole node: a node may be back, with other runs, by the time the log has it.
func (l *Leader) fenceLoop(t *term) {
	f := &fencer{l: l, t: t, nodes: map[string]*fenceTry{}}
	tick := time.NewTicker(fenceInterval)
	defer tick.Stop()
	defer f.running.Wait()
	pruned := t.began
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		view, now := l.Log.View(), l.instant()
		f.look(view, now)
		if now.Sub(pruned) >= pruneInterval {
			pruned = now
			t.prune(view)
		}
	}
}

// fencer is fenceLoop's own.
type fencer struct {
	l       *Leader
	t       *term
	nodes   map[string]*fenceTry
	running sync.WaitGroup

	mu   sync.Mutex
	over []fenced // programs that have ended
}

// look goes over the nodes once.
func (f *fencer) look(view state.Viewer, now time.Time) {
	var cmds []*logpb.Command
	waiting := map[string]bool{}
	for n := range view.Nodes() {
		h := f.t.health(n.Name)
		// What was given up stays so when the node is back: the state has to hear of it all the same.
		quiet := silent(n) || h.struck()
		if !quiet && !h.owes() {
			continue
		}
		for _, id := range n.Jobs {
			j := view.Job(id)
			if !batchHost(j, n.Name) || len(cmds) >= maxFenced {
				continue
			}
			k := runKey{j.ID, j.Run, job.BatchStep}
			switch gone, over := h.verdict(k); {
			case over, f.l.leaseOver(f.t, n, j, now):
				f.l.Logger.Warn("lease is over", "node", n.Name, "job", j.ID, "run", j.Run)
				h.forbid(k)
				cmds = append(cmds, dead(j))
			case (quiet || gone) && f.unsent(j, n.Name):
				f.l.Logger.Warn("launch was not sent: the job goes elsewhere", "node", n.Name, "job", j.ID, "run", j.Run)
				cmds = append(cmds, launchedToLog(n.Name, &nodepb.LaunchResult{Key: k.proto(),
					Error: "its agent does not answer", Cause: nodepb.LaunchResult_CREDENTIAL}))
			case n.State == node.Down && n.Flags&node.NotResponding != 0:
				waiting[n.Name] = true
			}
		}
	}
	f.programs(waiting, now)
	if len(cmds) > 0 {
		f.l.propose(f.t.ctx, cmds...) // what was not taken is found again
	}
}

// dead is the command that says that nothing of the run can be alive.
func dead(j *state.Job) *logpb.Command {
	return &logpb.Command{Of: &logpb.Command_JobTimer{JobTimer: &logpb.JobTimer{JobId: j.ID, Run: j.Run, What: "lease_over"}}}
}

// unsent tells whether the run can never have come to its node: this term started it, and has neither
// sent its launch nor ever will. An earlier term's launches are not known.
func (f *fencer) unsent(j *state.Job, name string) bool {
	confirmed := len(j.Confirmed) > 0 && j.Confirmed[0]
	return !confirmed && j.State == job.Running && j.Start > f.t.since && f.t.health(name).giveUp(runKey{j.ID, j.Run, job.BatchStep})
}

// prune forgets launches whose runs are over.
func (t *term) prune(view state.Viewer) {
	t.mu.Lock()
	nodes := make(map[string]*health, len(t.nodes))
	for name, h := range t.nodes {
		nodes[name] = h
	}
	t.mu.Unlock()
	for name, h := range nodes {
		h.prune(func(k runKey) bool {
			j := view.Job(k.job)
			return !batchHost(j, name) || j.Run != k.run
		})
	}
}

// fenceTry is what has been done for one node.
type fenceTry struct {
	busy bool
	next time.Time // instant
	wait time.Duration
}

// fenced is how a fence program ended.
type fenced struct {
	node string
	err  error
}

// programs runs FenceProgram for the nodes of which runs wait, one at a time for each.
func (f *fencer) programs(waiting map[string]bool, now time.Time) {
	f.settle(now)
	for name := range f.nodes {
		if !waiting[name] && !f.nodes[name].busy {
			delete(f.nodes, name)
		}
	}
	c := f.l.Config()
	if f.l.Fence == nil || c.FenceProgram == "" {
		return
	}
	for name := range waiting {
		try := f.nodes[name]
		if try == nil {
			try = &fenceTry{wait: fenceAgain}
			f.nodes[name] = try
		}
		if try.busy || now.Before(try.next) {
			continue
		}
		try.busy = true
		timeout := c.FenceTimeout
		f.running.Go(func() { f.run(name, timeout) })
	}
}

// run fences one node. The runs that are dead when it has worked are those that were there before.
func (f *fencer) run(name string, timeout time.Duration) {
	var runs []runKey
	view := f.l.Log.View()
	if n := view.Node(name); n != nil {
		for _, id := range n.Jobs {
			if j := view.Job(id); batchHost(j, name) {
				runs = append(runs, runKey{j.ID, j.Run, job.BatchStep})
			}
		}
	}
	f.l.Logger.Warn("fencing a node", "node", name, "runs", len(runs))
	ctx, cancel := context.WithTimeout(f.t.ctx, timeout)
	defer cancel()
	err := f.l.Fence(ctx, name)
	if err == nil {
		f.l.Logger.Warn("node is fenced: nothing is alive there", "node", name)
		err = f.tell(name, runs)
	}
	if f.t.ctx.Err() == nil && err != nil {
		f.l.Logger.Error("node not fenced", "node", name, "error", err)
	}
	f.mu.Lock()
	f.over = append(f.over, fenced{name, err})
	f.mu.Unlock()
}

// tell puts what fencing a node has proved into the log.
func (f *fencer) tell(name string, runs []runKey) error {
	view := f.l.Log.View()
	for len(runs) > 0 {
		var cmds []*logpb.Command
		part := runs[:min(len(runs), maxFenced)]
		for _, k := range part {
			if j := view.Job(k.job); batchHost(j, name) && j.Run == k.run {
				f.t.health(name).forbid(k)
				cmds = append(cmds, dead(j))
			}
		}
		if len(cmds) > 0 {
			if _, err := f.l.propose(f.t.ctx, cmds...); err != nil {
				return fmt.Errorf("telling the state: %w", err)
			}
		}
		runs = runs[len(part):]
	}
	return nil
}

// settle takes what has become of the programs.
func (f *fencer) settle(now time.Time) {
	f.mu.Lock()
	over := f.over
	f.over = nil
	f.mu.Unlock()
	for _, o := range over {
		try := f.nodes[o.node]
		try.busy = false
		if o.err == nil {
			try.wait = fenceAgain
			continue
		}
		try.next = now.Add(try.wait)
		try.wait = min(2*try.wait, maxFenceAgain)
	}
}
