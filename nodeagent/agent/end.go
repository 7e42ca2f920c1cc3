package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// The end of a run, in the order that loses nothing when the agent is killed between two lines:
//
//	record written (shepherd) -> epilog, groups removed (launcher, record kept) -> report
//	-> acknowledged (it is in the controllers' log) -> folder removed (launcher)
//
// A new agent finds the folder with its record and begins at the epilog again, which the launcher
// knows to be done. The epilog comes before the report because the report frees the resources. On a
// node without an epilog the report goes at once, and groups and folder are removed in one.

const (
	// maxBusy is how often a release is tried again because something of the step still lives.
	maxBusy = 10
	// releaseMargin is what a release may take beyond the epilog's own limit.
	releaseMargin = 30 * time.Second
	// maxLeave is how often the launcher may fail to remove a folder before it is left for people.
	maxLeave = 10
	// leaveDelay is how long a run that is acknowledged waits for others to be removed with it.
	leaveDelay = 25 * time.Millisecond
	// resend is after how long a report without acknowledgement goes out again in the same session.
	resend = 30 * time.Second
)

// onEnded takes a shepherd's word that the record is complete. What it says is what it has written;
// the disk is asked only where the message cannot be right.
func (a *Agent) onEnded(ctx context.Context, r *run, told *shepherd.Record) {
	err := checkRecord(told)
	if err == nil && told.Key != r.key {
		err = fmt.Errorf("%w: it is of step %s", errBadRecord, told.Key)
	}
	if err != nil {
		a.log.Error("a shepherd's word on the end", "job", r.key.Job, "run", r.key.Run, "step", r.key.Step, "err", err)
		if told, err = a.spool.record(r.key); err != nil {
			return // looked at again when it has gone
		}
	}
	a.finish(ctx, r, a.reportFrom(told))
}

// finish notes that the run is over and carries on to epilog and report. Only the first word counts.
func (a *Agent) finish(ctx context.Context, r *run, rep *nodepb.Report) {
	_ = fault.Point("agent.before-spool")
	defer func() { _ = fault.Point("agent.after-spool") }()
	a.mu.Lock()
	if r.phase != live {
		a.mu.Unlock()
		return
	}
	r.phase = ended
	if r.start == 0 {
		r.start = rep.GetStartMs()
	}
	if rep.GetStartMs() == 0 {
		rep.StartMs = r.start
	}
	// Ended through the launcher, the shepherd does not know why; we do.
	if r.term != nil && (r.byForce || r.cut) && rep.GetKilledFor() == nodepb.Kill_NONE && rep.GetSignal() != 0 {
		rep.KilledFor = nodepb.Kill_Why(r.term.Why)
	}
	r.report = rep
	// Without an epilog the report is all that is left to do here: a shepherd's word means that nothing
	// of the step lives. Where that is not so the launcher has to see to it first.
	if !a.launch.plain() || rep.GetLost() || rep.GetCause() == nodepb.LaunchResult_NODE {
		a.mu.Unlock()
		a.goFunc(func() { a.settle(ctx, r) })
		return
	}
	a.reportLocked(ctx, r)
	a.mu.Unlock()
}

// reportLocked sends the run's report on its way, or takes a forgotten run down.
func (a *Agent) reportLocked(ctx context.Context, r *run) {
	r.phase = reporting
	if r.forgotten {
		a.leaveLocked(ctx, r)
		return
	}
	a.out.addReport(r.key)
}

// settle has the epilog run and then reports.
func (a *Agent) settle(ctx context.Context, r *run) {
	text, ok := a.epilog(ctx, r)
	if !ok {
		return // the agent stops; the next one begins here again
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if text != "" {
		r.report.EpilogError = clip(text)
		a.log.Error("epilog", "job", r.key.Job, "run", r.key.Run, "err", text)
	}
	a.reportLocked(ctx, r)
}

// epilog asks for the epilog until it has an answer; the text is what went wrong. A launcher that is
// away for good does not keep the end of a job secret: it is then reported with that as the error.
// Of a lost run, though, only the launcher can say that nothing of it lives or will: it is waited for.
func (a *Agent) epilog(ctx context.Context, r *run) (text string, ok bool) {
	if !take(ctx, a.releases) {
		return "", false
	}
	defer give(a.releases)
	a.mu.Lock()
	limit, lost := a.settings.prolog+releaseMargin, r.report.GetLost()
	var exit *launch.Exit
	if !lost {
		exit = &launch.Exit{Code: int(r.report.GetExitCode()), Signal: int(r.report.GetSignal())}
	}
	a.mu.Unlock()
	patience := ctx
	if !lost {
		var cancel context.CancelFunc
		patience, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	back := newBackoff(a.d.Jitter)
	busy := 0
	for {
		reply, err := a.launch.call(patience, &launch.Request{Release: &launch.Release{
			Key: r.key, KeepOutput: true, KeepRecord: true, Exit: exit,
		}})
		switch {
		case err == nil && reply.Errno == int(unix.EBUSY) && (lost || busy < maxBusy):
			busy++
			text = reply.Err
			a.order(ctx, &launch.Request{Kill: &r.key})
		case err == nil:
			return reply.Err, true
		case ctx.Err() != nil:
			return "", false
		default:
			text = err.Error()
		}
		if !back.wait(patience) {
			return text, ctx.Err() == nil
		}
	}
}

// reports gives up to max reports that are to go out now.
func (a *Agent) reports(keys []launch.Key) []*nodepb.Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []*nodepb.Report
	for _, k := range keys {
		if r := a.runs[k]; r != nil && r.phase == reporting {
			r.sentAt = instant()
			list = append(list, r.report)
		}
	}
	return list
}

// reportAll puts every unacknowledged report into the queue again: a new session knows nothing of
// what an earlier one carried.
func (a *Agent) reportAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, r := range a.runs {
		if r.phase == reporting {
			a.out.addReport(k)
		}
	}
}

// onAcks removes what the controllers' log now holds.
func (a *Agent) onAcks(ctx context.Context, keys []*nodepb.StepKey) {
	_ = fault.Point("agent.before-ack-drop")
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pk := range keys {
		if r := a.runs[keyFromPB(pk)]; r != nil && r.phase == reporting && !r.sentAt.IsZero() {
			a.leaveLocked(ctx, r)
		}
	}
}

// leaveLocked has the run's folder removed. Nobody waits for that: what comes within leaveDelay goes
// to the launcher together.
func (a *Agent) leaveLocked(ctx context.Context, r *run) {
	r.phase = leaving
	if r.conn != nil {
		r.conn.close()
	}
	if a.leavers = append(a.leavers, r); len(a.leavers) == 1 {
		a.goFunc(func() { a.sendOff(ctx) })
	}
}

func (a *Agent) sendOff(ctx context.Context) {
	if !sleep(ctx, leaveDelay) {
		return // the next agent finds the folders
	}
	a.mu.Lock()
	list := a.leavers
	a.leavers = nil
	a.mu.Unlock()
	for _, r := range list {
		a.goFunc(func() { a.leave(ctx, r) })
	}
}

func (a *Agent) leave(ctx context.Context, r *run) {
	if !take(ctx, a.releases) {
		return
	}
	defer give(a.releases)
	back := newBackoff(a.d.Jitter)
	for failed := 0; ; {
		reply, err := a.launch.call(ctx, &launch.Request{Release: &launch.Release{Key: r.key, KeepOutput: true}})
		switch {
		case err == nil && reply.Err == "":
			a.drop(r)
			return
		case err == nil:
			if reply.Errno == int(unix.EBUSY) {
				a.order(ctx, &launch.Request{Kill: &r.key})
			}
			if failed++; failed >= maxLeave {
				a.log.Error("step folder stays behind", "job", r.key.Job, "run", r.key.Run, "err", reply.Err)
				a.drop(r)
				return
			}
		case !errors.Is(err, errNotSent) && !errors.Is(err, errNoAnswer):
			a.log.Error("removing a step folder", "job", r.key.Job, "err", err)
			a.drop(r)
			return
		}
		if !back.wait(ctx) {
			return
		}
	}
}
