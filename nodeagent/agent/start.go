package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// maxCredential bounds credential, signature and certificate, each.
const maxCredential = 1 << 20

// onLaunch takes one launch from the controller. It never blocks; the answer goes out with the
// launch results. A run that is known here is not started again, whatever has become of it: also not
// one that was refused, for the refusal may be on its way into the controllers' log.
func (a *Agent) onLaunch(ctx context.Context, l *nodepb.Launch) {
	k := keyFromPB(l.GetKey())
	size, err := checkLaunch(l)
	cause := nodepb.LaunchResult_NODE
	var lease int64
	if err == nil {
		if lease, err = sameRun(k, l.GetCredential()); err != nil {
			cause = nodepb.LaunchResult_CREDENTIAL
		}
	}
	a.mu.Lock()
	if res, known := a.knownLocked(k); known {
		a.mu.Unlock()
		if res != nil {
			a.out.addResult(res)
		}
		return
	}
	switch {
	case err != nil:
	case len(a.runs) >= MaxRuns:
		err = fmt.Errorf("node holds its limit of %d runs", MaxRuns)
	case a.waiting >= MaxWaiting:
		err = fmt.Errorf("%d launches wait for the launcher: that is the limit", MaxWaiting)
	case a.payload+size > MaxLaunchBytes:
		err = fmt.Errorf("launches that wait for the launcher hold the limit of %d bytes", MaxLaunchBytes)
	}
	if err != nil {
		a.refuseLocked(failure(k, err.Error(), cause))
		a.mu.Unlock()
		return
	}
	r := &run{key: k, phase: starting, lease: lease, renewed: a.renewed}
	if r.renewed == 0 {
		r.renewed = a.d.Boottime()
	}
	req := startRequest(l)
	req.Start.Renewed = r.renewed
	a.runs[k] = r
	a.waiting++
	a.payload += size
	a.mu.Unlock()
	a.goFunc(func() {
		a.start(ctx, r, req)
		a.mu.Lock()
		a.waiting--
		a.payload -= size
		a.mu.Unlock()
	})
}

// checkLaunch gives the payload's size, or says which limit it breaks.
func checkLaunch(l *nodepb.Launch) (int64, error) {
	env := 0
	for _, e := range l.GetEnv() {
		env += len(e)
	}
	args := 0
	for _, s := range l.GetArgs() {
		args += len(s)
	}
	for _, c := range []struct {
		what      string
		have, max int
	}{
		{"script", len(l.GetScript()), job.MaxScript},
		{"environment", env, job.MaxEnv},
		{"arguments", len(l.GetArgs()), job.MaxArgs},
		{"arguments' bytes", args, job.MaxEnv},
		{"credential", len(l.GetCredential()), maxCredential},
		{"signature", len(l.GetSignature()), maxCredential},
		{"certificate", len(l.GetCertificate()), maxCredential},
	} {
		if c.have > c.max {
			return 0, fmt.Errorf("launch: %s: %d is over the limit of %d", c.what, c.have, c.max)
		}
	}
	return int64(len(l.GetScript()) + env + args + len(l.GetCredential())), nil
}

// sameRun checks that the credential, which alone decides what the launcher starts, is for the run
// that we are going to account for, and gives the run's lease. Whether it is genuine is the launcher's
// to say.
func sameRun(k launch.Key, credential []byte) (lease int64, err error) {
	c, err := cred.UnmarshalLaunch(credential)
	if err != nil {
		return 0, fmt.Errorf("launch: %w", err)
	}
	if (launch.Key{Job: c.JobID, Run: c.Run, Step: c.Step}) != k {
		return 0, fmt.Errorf("launch: credential is for step %d.%d.%d, the order for %s", c.JobID, c.Run, c.Step, k)
	}
	return c.Lease, nil
}

// knownLocked answers for a run that the agent has seen before. A nil answer means that the one for
// the first request is still to come.
func (a *Agent) knownLocked(k launch.Key) (*nodepb.LaunchResult, bool) {
	r := a.runs[k]
	switch {
	case r == nil && a.done.has(k), r != nil && r.phase == leaving:
		return failure(k, "run is over and was reported", nodepb.LaunchResult_DUPLICATE), true
	case r == nil:
		res := a.denied.answers[k]
		return res, res != nil
	case r.phase == starting:
		return nil, true
	case r.phase == live:
		return success(r, nodepb.LaunchResult_NONE), true
	}
	return success(r, nodepb.LaunchResult_DUPLICATE), true
}

func success(r *run, cause nodepb.LaunchResult_Cause) *nodepb.LaunchResult {
	return &nodepb.LaunchResult{Key: keyToPB(r.key), Ok: true, StartMs: r.start, Cause: cause}
}

func failure(k launch.Key, text string, cause nodepb.LaunchResult_Cause) *nodepb.LaunchResult {
	return &nodepb.LaunchResult{Key: keyToPB(k), Error: clip(text), Cause: cause}
}

// start asks the launcher until it is known whether the run was started.
//
// While the launcher cannot have seen the request, giving up is safe, and is answered. Once it can,
// only the launcher itself can tell: nothing is answered until it does, or else a run could be given
// out again while it lives here.
func (a *Agent) start(ctx context.Context, r *run, req *launch.Request) {
	began := instant()
	if !take(ctx, a.calls) {
		return
	}
	defer give(a.calls)
	back := newBackoff(a.d.Jitter)
	unsure := false
	_ = fault.Point("agent.before-claim")
	if err := fault.Point("agent.before-launch"); err != nil {
		a.refused(r, failure(r.key, err.Error(), nodepb.LaunchResult_NODE))
		return
	}
	for {
		reply, err := a.launch.call(ctx, req)
		switch {
		case err == nil:
			_ = fault.Point("agent.after-launch")
			if reply.Err != "" && unsure && reply.Cause != uint8(job.CauseDuplicate) {
				if a.leftTrace(ctx, r.key) {
					reply = &launch.Reply{Cause: uint8(job.CauseDuplicate), Err: reply.Err}
				}
			}
			a.answered(ctx, r, reply)
			return
		case errors.Is(err, errNoAnswer):
			unsure = true
		case !errors.Is(err, errNotSent):
			a.refused(r, failure(r.key, err.Error(), nodepb.LaunchResult_NODE))
			return
		case !unsure && instant().Sub(began) >= launcherPatience:
			a.log.Error("launcher is away", "job", r.key.Job, "run", r.key.Run, "err", err)
			a.refused(r, failure(r.key, err.Error(), nodepb.LaunchResult_NODE))
			return
		}
		if !back.wait(ctx) {
			return
		}
	}
}

// leftTrace tells whether the launcher has a folder of the run, after an order that was refused
// only because it came twice or too late. Not being able to tell counts as a trace.
func (a *Agent) leftTrace(ctx context.Context, k launch.Key) bool {
	reply, err := a.launch.call(ctx, &launch.Request{List: true})
	return err != nil || reply.Err != "" || slices.Contains(reply.Keys, k)
}

// answered takes the launcher's answer to a start.
func (a *Agent) answered(ctx context.Context, r *run, reply *launch.Reply) {
	switch {
	case reply.Err == "" || reply.Cause == uint8(job.CauseDuplicate):
		a.began(ctx, r, reply.Start, nil)
	default:
		text := reply.Err
		a.log.Warn("launch refused", "job", r.key.Job, "run", r.key.Run, "err", text, "errno", reply.Errno)
		cause := nodepb.LaunchResult_Cause(reply.Cause)
		if cause == nodepb.LaunchResult_NONE {
			cause = nodepb.LaunchResult_NODE
		}
		// A spool that takes nothing is the node's problem, which drains it until it is over; the job goes
		// elsewhere without a drain for good.
		if cause == nodepb.LaunchResult_NODE && spoolErrno(reply.Errno) && a.problem.probeNow(ctx) {
			cause = nodepb.LaunchResult_CREDENTIAL
		}
		a.refused(r, failure(r.key, text, cause))
	}
}

// refused answers for a run that was not started and takes it off the table. Where a controller was
// told meanwhile that the run is here, it takes no such answer any more: it gets a report too, which
// stays until it is acknowledged.
func (a *Agent) refused(r *run, res *nodepb.LaunchResult) {
	a.mu.Lock()
	if r.phase != starting { // its shepherd has come: it runs
		a.mu.Unlock()
		return
	}
	told := r.told && !r.forgotten
	if told {
		now := a.d.Now().UnixMilli()
		r.phase = reporting
		r.report = &nodepb.Report{
			Key: keyToPB(r.key), Node: a.cfg.Node, Error: res.GetError(), Cause: res.GetCause(), StartMs: now, EndMs: now,
		}
	} else {
		delete(a.runs, r.key)
	}
	a.refuseLocked(res)
	a.mu.Unlock()
	if told {
		a.out.addReport(r.key)
	}
}

// began notes that the run was started: the launcher has said so, or its shepherd is here, whichever
// comes first. start may be 0.
func (a *Agent) began(ctx context.Context, r *run, start int64, conn *shepherdConn) {
	a.mu.Lock()
	first := r.phase == starting
	if start != 0 && r.start == 0 {
		r.start = start
	}
	var todo []*nodepb.Kill
	if first {
		if r.start == 0 {
			r.start = a.d.Now().UnixMilli()
		}
		r.phase = live
		r.alone = instant()
		todo, r.todo = r.todo, nil
	}
	if conn != nil {
		a.attachLocked(r, conn)
	}
	res := success(r, nodepb.LaunchResult_NONE)
	a.mu.Unlock()
	if !first {
		return
	}
	a.out.addResult(res)
	for _, k := range todo {
		a.onKill(ctx, k)
	}
}

// take waits for a token; false: ctx has ended.
func take(ctx context.Context, tokens chan struct{}) bool {
	select {
	case tokens <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func give(tokens chan struct{}) { <-tokens }
