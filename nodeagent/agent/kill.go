package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

const (
	// shepherdGrace is how long a shepherd may be away before the launcher is asked in its place.
	shepherdGrace = 2 * time.Second
	// stubborn is how long after KILL was due a step may still live before the launcher is asked too.
	stubborn = 15 * time.Second
	// maxKills bounds the signals that are on their way to the launcher.
	maxKills = 4096
)

// onKill takes one order to signal or end a run. It never blocks. Ending goes through the shepherd,
// which writes the note, keeps KillWait and knows why; a plain signal through the launcher.
func (a *Agent) onKill(ctx context.Context, k *nodepb.Kill) {
	key := keyFromPB(k.GetKey())
	res := &nodepb.KillResult{Key: keyToPB(key)}
	a.mu.Lock()
	r := a.runs[key]
	switch {
	case r == nil || r.phase == leaving:
	case r.phase == starting:
		res.Found = true
		if k.GetHow() != nodepb.Kill_SIGNAL {
			a.endStartLocked(r)
		}
		if len(r.todo) >= maxTodo {
			res.Error = fmt.Sprintf("%d signals wait for the run to start: that is the limit", maxTodo)
		} else {
			r.todo = append(r.todo, k)
		}
	case r.phase > live: // it is over already; the report says how
		res.Found = true
	case k.GetHow() != nodepb.Kill_SIGNAL:
		res.Found = true
		a.terminateLocked(r, terminateFrom(k, a.settings.killWait.Milliseconds()))
	case k.GetStepsOnly() && key.Step == job.BatchStep: // it is for what srun starts, the script's children are not that
		res.Found = true
	case a.signals >= maxKills:
		res.Found = true
		res.Error = fmt.Sprintf("%d signals wait for the launcher: that is the limit", maxKills)
	default:
		a.signals++
		a.mu.Unlock()
		a.goFunc(func() { a.signal(ctx, key, k) })
		return
	}
	a.mu.Unlock()
	a.out.addKilled(res)
}

// signal sends a plain signal through the launcher and answers with what came of it.
func (a *Agent) signal(ctx context.Context, key launch.Key, k *nodepb.Kill) {
	res := &nodepb.KillResult{Key: keyToPB(key), Found: true}
	if n := k.GetSignal(); n < 1 || n > 64 {
		res.Error = fmt.Sprintf("signal %d: not one of 1 to 64", n)
	} else {
		res.Error = clip(a.order(ctx, &launch.Request{Signal: &launch.Signal{
			Key: key, Number: int(k.GetSignal()), Batch: k.GetBatchOnly(), Steps: k.GetStepsOnly(),
		}}))
	}
	a.mu.Lock()
	a.signals--
	a.mu.Unlock()
	a.out.addKilled(res)
}

// order has the launcher do a thing that takes no time; what it returns is empty when it was done.
func (a *Agent) order(ctx context.Context, req *launch.Request) string {
	if !take(ctx, a.urgent) {
		return ctx.Err().Error()
	}
	defer give(a.urgent)
	ctx, cancel := context.WithTimeout(ctx, launcherPatience)
	defer cancel()
	reply, err := a.launch.call(ctx, req)
	if err != nil {
		return err.Error()
	}
	return reply.Err
}

// terminateLocked tells the shepherd to end its step, now or when it comes back. A request to kill
// at once is never softened by a later one.
func (a *Agent) terminateLocked(r *run, t *shepherd.Terminate) {
	if r.term != nil && r.term.Now && !t.Now {
		return
	}
	r.term, r.termAt, r.byForce = t, instant(), false
	if r.conn != nil {
		r.conn.terminate(t)
	}
}

// onLimits passes new time limits on.
func (a *Agent) onLimits(limits []*nodepb.StepLimit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range limits {
		r := a.runs[keyFromPB(l.GetKey())]
		if r == nil || r.phase > live {
			continue
		}
		ms := l.GetTimeLimitMs()
		r.limit = &ms
		if r.conn != nil {
			r.conn.setLimit(ms)
		}
	}
}

// onSuspends passes on whose processes are to stand still and whose are to go on. A shepherd that is away hears it
// when it comes back.
func (a *Agent) onSuspends(list []*nodepb.Suspend) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range list {
		r := a.runs[keyFromPB(x.GetKey())]
		if r == nil || r.phase > live {
			continue
		}
		on := x.GetOn()
		r.still = &on
		if r.conn != nil {
			r.conn.suspend(on)
		}
	}
}

// renew passes a lease's renewal on to every shepherd; it counts from when it was asked for. Of a run
// that is being started the launcher is told: its shepherd is not there yet.
func (a *Agent) renew(ctx context.Context, asked int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.d.Boottime()
	a.renewed = max(a.renewed, asked)
	for _, r := range a.runs {
		switch {
		case r.phase == live && r.conn != nil:
			r.conn.renewLease(asked)
		case r.phase == starting && r.lease > 0 && !r.leaseOver:
			if r.leaseOver = now-r.renewed > r.lease; r.leaseOver {
				continue // the leader may have given it out again: it must not begin any more
			}
			r.renewed = max(r.renewed, asked)
			req := &launch.Request{Renew: &launch.Renew{Key: r.key, Boottime: asked}}
			a.goFunc(func() { a.order(ctx, req) }) // one that is lost lets the start fail, no more
		}
	}
}

// onForget ends and drops runs that the controller does not know. Nothing is reported for them.
func (a *Agent) onForget(ctx context.Context, keys []*nodepb.StepKey) {
	for _, pk := range keys {
		key := keyFromPB(pk)
		a.mu.Lock()
		r := a.runs[key]
		if r == nil || r.phase == leaving {
			a.mu.Unlock()
			continue
		}
		level := slog.LevelInfo // one that has ended was acknowledged just before an earlier agent died
		if r.phase <= live {
			level = slog.LevelWarn
		}
		a.log.Log(ctx, level, "controller does not know this run", "job", key.Job, "run", key.Run, "step", key.Step)
		r.forgotten = true
		switch r.phase {
		case starting:
			r.todo = []*nodepb.Kill{{Key: pk, How: nodepb.Kill_KILL, Why: nodepb.Kill_STALE}}
			a.endStartLocked(r)
		case live:
			a.terminateLocked(r, staleTerminate())
		case reporting:
			a.leaveLocked(ctx, r)
		}
		a.mu.Unlock()
	}
}

// endStartLocked has a run ended whose start is not known, unless that becomes known within the grace.
func (a *Agent) endStartLocked(r *run) {
	if r.endAt.IsZero() {
		r.endAt = instant().Add(shepherdGrace)
	}
}

// endStartsLocked asks the launcher to end a run that does not come to its script, again and again: as
// long as its groups are not there, there is nothing to kill.
func (a *Agent) endStartsLocked(ctx context.Context, r *run, now time.Time) {
	if r.endAt.IsZero() || now.Before(r.endAt) {
		return
	}
	r.endAt = now.Add(launcherPatience) // one at a time
	a.goFunc(func() {
		text := a.order(ctx, &launch.Request{Kill: &r.key})
		if text != "" {
			a.log.Error("launcher did not end a start", "job", r.key.Job, "run", r.key.Run, "err", text)
		}
		a.mu.Lock()
		r.cut = r.cut || text == ""
		r.endAt = instant().Add(shepherdGrace)
		a.mu.Unlock()
	})
}

// force ends a run through the launcher: its shepherd is away, or has not managed to. TERM first
// where the order leaves time for it.
func (a *Agent) force(ctx context.Context, r *run, t *shepherd.Terminate, gentle bool) {
	a.log.Warn("ending a step through the launcher", "job", r.key.Job, "run", r.key.Run, "step", r.key.Step)
	a.mu.Lock()
	still := r.still != nil && *r.still
	a.mu.Unlock()
	if still { // frozen it would not hear of it
		if text := a.order(ctx, &launch.Request{Freeze: &launch.Freeze{Key: r.key}}); text != "" {
			a.log.Warn("launcher did not let the step go on", "job", r.key.Job, "err", text)
		}
	}
	if gentle && !t.Now {
		text := a.order(ctx, &launch.Request{Signal: &launch.Signal{Key: r.key, Number: int(unix.SIGTERM)}})
		if text != "" {
			a.log.Warn("launcher did not send TERM", "job", r.key.Job, "err", text)
		}
		if !sleep(ctx, time.Duration(t.KillWait)*time.Millisecond) {
			return
		}
		a.mu.Lock()
		over := r.phase > live
		a.mu.Unlock()
		if over {
			return
		}
	}
	if text := a.order(ctx, &launch.Request{Kill: &r.key}); text != "" {
		a.log.Error("launcher did not kill the step", "job", r.key.Job, "run", r.key.Run, "err", text)
		a.mu.Lock()
		r.byForce, r.termAt = false, instant() // the next look tries again
		a.mu.Unlock()
	}
}
