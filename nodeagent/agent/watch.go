package agent

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

const (
	watchEvery = time.Second
	// lostGrace is how long a shepherd may be away before its lock is tried: one that starts, or that
	// dials again, must not be taken for dead.
	lostGrace = 5 * time.Second
	// noLockGrace is the same for a folder without a lock file, beyond the time of a prolog: a launcher
	// that does not hold the lock from its claim on may still be making it.
	noLockGrace = time.Minute
)

// scan puts every run that an earlier agent left on the table: ended ones go on to their report,
// others wait for their shepherd.
func (a *Agent) scan(ctx context.Context) error {
	keys, err := a.spool.steps(MaxRuns)
	if errors.Is(err, fs.ErrPermission) {
		keys, err = a.listed(ctx)
	}
	if err != nil {
		return err
	}
	for _, k := range keys {
		r, err := a.enter(k)
		if err != nil {
			return err
		}
		a.look(ctx, r, false)
	}
	if len(keys) > 0 {
		a.log.Info("runs found in the spool", "count", len(keys))
	}
	return nil
}

// listed asks the launcher which runs have a folder, until it answers: without knowing that, the node
// must not register.
func (a *Agent) listed(ctx context.Context) ([]launch.Key, error) {
	back := newBackoff(a.d.Jitter)
	for {
		reply, err := a.launch.call(ctx, &launch.Request{List: true})
		if err == nil && reply.Err == "" {
			return reply.Keys, nil
		}
		if err == nil {
			err = errors.New(reply.Err)
		}
		a.log.Warn("asking the launcher what lives here", "err", err)
		if !back.wait(ctx) {
			return nil, ctx.Err()
		}
	}
}

// watch looks after runs whose shepherd is not connected, after steps that do not end when told to,
// and after reports that nobody acknowledges.
func (a *Agent) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, r := range a.due(ctx) {
			a.goFunc(func() {
				a.look(ctx, r, true)
				a.mu.Lock()
				r.looking = false
				a.mu.Unlock()
			})
		}
	}
}

// due lists the runs to look at, and sees to those that have to be ended by force.
func (a *Agent) due(ctx context.Context) []*run {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := instant()
	var list []*run
	for k, r := range a.runs {
		switch {
		case r.phase == reporting && !r.sentAt.IsZero() && now.Sub(r.sentAt) >= resend:
			a.out.addReport(k)
		case r.phase == starting:
			a.endStartsLocked(ctx, r, now)
		case r.phase != live:
		default:
			a.forceLocked(ctx, r, now)
			if r.conn == nil && !r.looking && now.Sub(r.alone) >= lostGrace {
				r.looking = true
				list = append(list, r)
			}
		}
	}
	return list
}

// forceLocked turns to the launcher when the shepherd cannot be told, or has been told in vain.
func (a *Agent) forceLocked(ctx context.Context, r *run, now time.Time) {
	if r.term == nil || r.byForce {
		return
	}
	t, since := r.term, now.Sub(r.termAt)
	away := r.conn == nil && since >= shepherdGrace && now.Sub(r.alone) >= shepherdGrace
	vain := since >= time.Duration(t.KillWait)*time.Millisecond+stubborn
	if away || vain {
		r.byForce = true
		a.goFunc(func() { a.force(ctx, r, t, !vain) })
	}
}

// look finds out what became of a run whose shepherd is away: a record ends it; a lock that is held
// means that the shepherd lives and will come; otherwise, when judge is set, it is lost. A lost run
// is first killed: what is reported as over must not be alive.
func (a *Agent) look(ctx context.Context, r *run, judge bool) {
	if a.fromRecord(ctx, r, judge) || !judge {
		return
	}
	held, err := a.shepherdLives(r.key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		a.mu.Lock()
		young := instant().Sub(r.alone) < noLockGrace+a.settings.prolog
		a.mu.Unlock()
		if young {
			return
		}
	case err != nil:
		a.log.Error("trying a step's lock", "job", r.key.Job, "run", r.key.Run, "err", err)
		return
	case held:
		return
	}
	if text := a.order(ctx, &launch.Request{Kill: &r.key}); text != "" {
		a.log.Error("launcher did not kill a step without shepherd", "job", r.key.Job, "run", r.key.Run, "err", text)
		return // the next look tries again
	}
	// The shepherd may have written its record in its last moment, or have come back.
	a.mu.Lock()
	back := r.conn != nil
	start := r.start
	a.mu.Unlock()
	if back || a.fromRecord(ctx, r, true) {
		return
	}
	a.log.Error("shepherd is gone without a record", "job", r.key.Job, "run", r.key.Run, "step", r.key.Step)
	a.finish(ctx, r, a.lostReport(r.key, start, "step shepherd vanished without a record"))
}

// shepherdLives tells whether the run's lock is held.
func (a *Agent) shepherdLives(k launch.Key) (bool, error) {
	f, err := a.spool.lock(k)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return lockHeld(f)
}

// fromRecord ends the run when it has a record. A damaged one will not get better: judged, such a run
// is lost. False: there is no record.
func (a *Agent) fromRecord(ctx context.Context, r *run, judge bool) bool {
	rec, err := a.spool.record(r.key)
	var rep *nodepb.Report
	switch {
	case err == nil:
		rep = a.reportFrom(rec)
	case errors.Is(err, errBadRecord):
		if !judge {
			return true
		}
		if text := a.order(ctx, &launch.Request{Kill: &r.key}); text != "" {
			return true // not over for sure: the next look tries again
		}
		a.mu.Lock()
		start := r.start
		a.mu.Unlock()
		rep = a.lostReport(r.key, start, err.Error())
	case errors.Is(err, errNoRecord):
		return false
	default:
		a.log.Error("reading an exit record", "job", r.key.Job, "run", r.key.Run, "err", err)
		return true // unreadable is not absent: nothing is concluded from it
	}
	a.finish(ctx, r, rep)
	return true
}
