package state

import (
	"github.com/tensorgrid/tensorgrid/ctld/sched"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Launched is a node's answer to the launch of one run.
type Launched struct {
	JobID uint32
	Run   uint32
	Node  string
	OK    bool
	Start int64 // Unix ms
	Error string
	Cause job.Cause
}

// Reported is what a node says of a step that is over. It comes at least once.
type Reported struct {
	JobID       uint32
	Run         uint32
	Step        uint32
	Node        string
	Exit        job.Exit
	OOM         bool
	Start       int64
	End         int64
	KilledFor   job.Why
	Error       string
	Cause       job.Cause
	UserUS      int64
	SysUS       int64
	MaxRSS      int64
	StdoutError string
	EpilogError string
	Lost        bool
}

// onNode finds the run's record if it holds the node, and the node's place in its allocation.
func (t *Tx) onNode(id, run uint32, name string) (*Job, int) {
	j := t.Job(id)
	if j == nil || j.Run != run {
		return nil, 0
	}
	for i := range j.Allocs {
		if j.Allocs[i].Node == name && holds(j, i) {
			return j, i
		}
	}
	return nil, 0
}

// Launched takes a node's answer. Answers about other runs, or that came before, change nothing.
func (t *Tx) Launched(l *Launched) {
	old, i := t.onNode(l.JobID, l.Run, l.Node)
	if old == nil || old.Confirmed[i] {
		return
	}
	// A launcher that has this run in its table already did start it: an earlier answer was lost.
	if l.OK || l.Cause == job.CauseDuplicate {
		t.confirm(old, i)
		return
	}
	t.launchFailed(old, i, l.Cause, l.Error)
}

func (t *Tx) confirm(old *Job, i int) {
	j := edit(old)
	j.Confirmed = withTrue(old.Confirmed, i)
	j.Launched++
	if i == 0 {
		j.happen(job.EventLaunched)
	}
	t.put(old, j)
}

// happen moves the record's state and flags by the table of a job's life; false when the event
// cannot happen now.
func (j *Job) happen(e job.Event) (ok bool) {
	j.State, j.Flags, ok = job.Next(j.State, j.Flags, e)
	return ok
}

func withTrue(list []bool, i int) []bool {
	c := append([]bool(nil), list...)
	c[i] = true
	return c
}

// launchFailed: node i could not start the run, so nothing of it is alive there.
func (t *Tx) launchFailed(old *Job, i int, cause job.Cause, text string) {
	name := old.Allocs[i].Node
	switch cause {
	case job.CauseProlog:
		t.drain(name, "Prolog error")
	case job.CauseNode:
		t.drain(name, cut("launch failed: "+text))
	case job.CauseNone:
		cause = job.CauseCredential // unknown fault: elsewhere, without blaming the node for good
	}
	j := edit(old)
	if isRunning(old) {
		state, reason, exit := job.Outcome(old.Kill, job.Exit{}, false, cause)
		t.conclude(j, ending{state: state, reason: reason, exit: exit, cause: cause, node: name, text: text})
	}
	t.nodeDead(old, j, i)
}

// nodeDead stores j, with nothing of the run alive on node i. Only the batch host has processes of
// its own: once it is done the other nodes are, and while it is not the run must be ended there.
func (t *Tx) nodeDead(old, j *Job, i int) {
	if isComponent(old) {
		t.componentLost(old, i)
		return
	}
	if i == 0 {
		j.Done = allTrue(len(j.Allocs))
	} else {
		j.Done = withTrue(old.Done, i)
		if j.Kill == job.WhyNone && !j.Done[0] {
			j.Kill, j.KillAt = job.WhyNodeFail, t.now
		}
	}
	t.settle(old, j)
}

func allTrue(n int) []bool {
	list := make([]bool, n)
	for i := range list {
		list[i] = true
	}
	return list
}

// settle stores j; when no node holds anything of its run any more the run is over.
func (t *Tx) settle(old, j *Job) {
	if j.Flags&job.Completing != 0 && !holdsAny(j) {
		j.happen(job.EventNodesDone)
		j.Signals = nil
	}
	if j.State == job.Pending && j.Flags&job.Completing == 0 && (len(j.Allocs) > 0 || j.End != 0) {
		t.nextRun(j)
	}
	t.put(old, j)
}

// ending is how a run ends, and whose fault it was.
type ending struct {
	state  job.State
	reason job.Reason
	exit   job.Exit
	cause  job.Cause
	node   string
	text   string
}

// conclude gives a running record the state it ends in, or takes it back to the queue. j is not
// stored yet and keeps its nodes until they are done.
func (t *Tx) conclude(j *Job, e ending) {
	j.Detail = cut(e.text)
	if e.state == job.NodeFail || e.cause == job.CauseProlog || e.cause == job.CauseNode {
		j.FailedNode = e.node
	}
	if e.state == job.NodeFail && j.Kill == job.WhyNone {
		j.Kill, j.KillAt = job.WhyNodeFail, t.now // what is left of it on other nodes must go
	}
	again := e.state == job.NodeFail || e.state == job.Preempted && j.PreemptHow != sched.EvictCancel || e.state == job.Pending
	if again && t.mayRequeue(j) {
		t.conclusionQueued(j, e)
		return
	}
	event := job.EventFor(e.state, e.cause)
	if e.state == job.Pending { // it was to run again and may not
		event, e.exit = job.EventLaunchFailedUser, job.Exit{Code: 1}
	}
	if j.happen(event) {
		j.Reason, j.Exit, j.End = noneIsEmpty(e.reason), e.exit, t.now
	}
}

// conclusionQueued takes a record back to the queue for what happened to its run.
func (t *Tx) conclusionQueued(j *Job, e ending) {
	back := comeback{automatic: e.state != job.Preempted || t.feature < FeatureSched}
	event := job.EventRequeue
	if e.state == job.Pending {
		event = job.EventFor(e.state, e.cause)
	}
	switch event {
	case job.EventLaunchFailedHold:
		back = comeback{hold: HoldAdmin, detail: "launch failed requeued held"}
	case job.EventLaunchFailedNode:
		back.avoid = e.node
	}
	t.comeBack(j, event, back)
}

// comeback says how a record goes back to the queue.
type comeback struct {
	delay     int64 // ms until it is eligible
	hold      Hold
	detail    string
	automatic bool   // counts against MaxBatchRequeue
	avoid     string // node that failed it
}

// comeBack takes a record back to the queue; while its nodes are not done it is PENDING and
// COMPLETING, and its next run begins with nextRun. It is false when the event cannot happen.
func (t *Tx) comeBack(j *Job, event job.Event, back comeback) bool {
	if !j.happen(event) {
		return false
	}
	j.Restarts++
	j.HeldBy, j.Reason, j.Detail = max(j.HeldBy, back.hold), "", back.detail // it may have been held while it ran
	if back.automatic && t.cfg.MaxBatchRequeue > 0 && j.Restarts > t.cfg.MaxBatchRequeue {
		j.HeldBy, j.Reason = HoldAdmin, job.ReasonMaxRequeue
		j.happen(job.EventRequeueHold)
	}
	if back.avoid != "" {
		avoid := append(append([]string(nil), j.Avoid...), back.avoid)
		j.Avoid = avoid[max(0, len(avoid)-MaxAvoid):]
	}
	j.Begin = 0
	if back.delay > 0 {
		j.Begin = t.now + back.delay
	}
	j.Priority, j.Eligible = j.queuePriority(), j.eligibleAt(t.now)
	if j.Kill == job.WhyNone {
		j.Kill, j.KillAt = job.WhyRequeue, t.now
	}
	return true
}

// nextRun clears what belonged to the run before.
func (t *Tx) nextRun(j *Job) {
	j.Run++
	j.Start, j.End = 0, 0
	j.TimeLimit = t.effectiveLimit(j.Spec.TimeLimit, j.Spec.Partition)
	j.Partition = j.Spec.Partition
	j.Allocs, j.Done, j.Confirmed, j.Launched, j.Alone = nil, nil, nil, 0, false
	j.Exit, j.Derived, j.OOM = job.Exit{}, job.Exit{}, false
	j.Kill, j.KillAt, j.KillSignal, j.Signals, j.SignalSeq = job.WhyNone, 0, 0, nil, 0
	j.Cancelled, j.CancelUID, j.Lease = false, 0, 0
	j.Reservation, j.Charged = "", 0
	j.UserUS, j.SysUS, j.MaxRSS = 0, 0, 0
	j.SuspendedAt, j.Stopped, j.SuspendedByPlan, j.Checkpoint = 0, 0, false, 0
	j.forgetPreemption()
}

// mayRequeue tells whether the job may be queued again.
func (t *tables) mayRequeue(j *Job) bool {
	return j.Spec.Requeue > 0 || j.Spec.Requeue == 0 && t.cfg.JobRequeue
}

// Reported takes the end of a step. Only the batch step on the first node decides the job; a
// report of another run, or of one that is over, changes nothing.
func (t *Tx) Reported(r *Reported) {
	old, i := t.onNode(r.JobID, r.Run, r.Node)
	if old == nil {
		return
	}
	if r.Step != job.BatchStep {
		t.derive(old, r.Exit)
		return
	}
	if r.EpilogError != "" {
		t.drain(r.Node, "Epilog error")
	}
	if i != 0 {
		return
	}
	if r.Error != "" && (r.Cause == job.CauseProlog || r.Cause == job.CauseNode || r.Cause == job.CauseCredential) {
		t.launchFailed(old, 0, r.Cause, r.Error)
		return
	}
	j := edit(old)
	j.UserUS, j.SysUS, j.MaxRSS, j.OOM = max(0, r.UserUS), max(0, r.SysUS), max(0, r.MaxRSS), r.OOM
	e := ending{exit: r.Exit, node: r.Node, text: r.Error}
	why := old.Kill
	if why == job.WhyNone {
		why = r.KilledFor
	}
	if r.Lost && why == job.WhyNone {
		why = job.WhyNodeFail
	}
	if why == job.WhyNone && madeRoom(old, r.Exit) {
		why = job.WhyPreempt
	}
	if r.Cause == job.CauseUser {
		e.cause = r.Cause
	}
	if r.StdoutError != "" {
		e.exit, e.cause, e.text = job.ExitOutputFile, job.CauseUser, r.StdoutError
	}
	if isRunning(old) {
		e.state, e.reason, e.exit = job.Outcome(why, e.exit, r.OOM, e.cause)
		e.cause = job.CauseNone // it was launched: how it ended is the job's own
		t.conclude(j, e)
	} else {
		j.Exit = e.exit
	}
	j.End = t.now
	if r.End > 0 {
		j.End = min(max(r.End, j.Start), t.now) // a node's clock may be off
	}
	t.nodeDead(old, j, 0)
}

// derive keeps the highest exit of the steps.
func (t *Tx) derive(old *Job, e job.Exit) {
	if e.Code > old.Derived.Code || e.Code == old.Derived.Code && e.Signal > old.Derived.Signal {
		j := edit(old)
		j.Derived = e
		t.put(old, j)
	}
}

// nodeFailed: nothing of the run is alive on node i, because the node lost it.
func (t *Tx) nodeFailed(old *Job, i int) {
	if isComponent(old) {
		t.componentLost(old, i)
		return
	}
	j := edit(old)
	if isRunning(old) {
		t.conclude(j, ending{state: job.NodeFail, reason: job.ReasonNodeDown, exit: old.Exit, node: old.Allocs[i].Node})
	}
	t.nodeDead(old, j, i)
}

// JobTimer is a moment of a run's life that the leader saw come.
type JobTimer struct {
	JobID uint32
	Run   uint32
	What  string // time_limit, lease_over, signals_sent, deadline, grace_over
	Seq   uint32 // signals_sent: the last signal that the agents know of
}

// JobTimer takes a moment; one of another run, or that cannot come now, changes nothing.
func (t *Tx) JobTimer(m *JobTimer) {
	old := t.Job(m.JobID)
	if old == nil || old.Run != m.Run {
		return
	}
	if m.What == timerDeadline {
		t.deadlineTimer(old)
		return
	}
	if !holdsAny(old) {
		return
	}
	j := edit(old)
	switch m.What {
	case timerGrace:
		t.graceTimer(old)
	case "time_limit":
		// That of a suspended run stands still, and a component has none of its own.
		if t.feature >= FeatureSched && (isComponent(old) || old.SuspendedAt > 0) {
			return
		}
		if j.happen(job.EventTimeLimit) {
			j.Reason, j.End, j.Kill, j.KillAt = job.ReasonTimeLimit, t.now, job.WhyTimeLimit, t.now
			t.put(old, j)
		}
	case "lease_over":
		t.fenced(old)
	case "signals_sent":
		j.Signals = nil
		for _, s := range old.Signals {
			if s.Seq > m.Seq {
				j.Signals = append(j.Signals, s)
			}
		}
		t.put(old, j)
	}
}

// fenced: nothing of the run can be alive anywhere, whatever its nodes say.
func (t *Tx) fenced(old *Job) {
	if isComponent(old) {
		return // no process of its own is anywhere
	}
	j := edit(old)
	if isRunning(old) {
		name := old.FailedNode
		if name == "" {
			name = old.Allocs[0].Node
		}
		t.conclude(j, ending{state: job.NodeFail, reason: job.ReasonNodeDown, exit: old.Exit, node: name})
	}
	t.nodeDead(old, j, 0)
}

// addSignal puts one signal on its way; false when MaxSignals wait already.
func (j *Job) addSignal(s Signal) bool {
	if len(j.Signals) >= MaxSignals {
		return false
	}
	j.SignalSeq++
	s.Seq = j.SignalSeq
	j.Signals = append(append([]Signal(nil), j.Signals...), s)
	return true
}
