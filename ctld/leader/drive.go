package leader

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// Limits of what is sent to one agent.
const (
	maxBatch       = 64      // launches, kills, limits or acknowledgements in one message
	maxBatchBytes  = 1 << 20 // of launches in one message; a larger one goes alone
	maxOutstanding = 256     // launches that wait for an answer
	killMargin     = 10 * time.Second
	killAgain      = 30 * time.Second
)

// run is what a session knows of one run on its node.
type run struct {
	sent     time.Time // launch, an instant; zero = not in this session
	answered bool      // it is there, or known not to be
	over     bool      // the agent said that it has ended or could not be started
	kills    int
	killed   time.Time // last kill, an instant
	why      nodepb.Kill_Why
	seq      uint32 // last signal sent
	signals  int    // sent and not answered
	limit    int64  // as sent
	limited  bool   // limit is set
	stopped  bool   // as sent: its processes stand still
	stated   bool   // stopped is what the agent was told
}

// desk is what one look at the state finds to send.
type desk struct {
	launches []*state.Job
	kills    []*nodepb.Kill
	limits   []*nodepb.StepLimit
	suspends []*nodepb.Suspend
	forget   []*nodepb.StepKey
	next     time.Time // instant at which to look again even if nothing changes; zero = never
}

// by makes sure that the next look is not later than t.
func (d *desk) by(t time.Time) {
	if d.next.IsZero() || t.Before(d.next) {
		d.next = t
	}
}

// drive compares what the state wants of the node with what the agent has, and sends the
// difference, until the session ends. It looks when it is woken: by concernLoop when the state has changed in
// what concerns the node, by what the agent said, or by a moment that it waits for.
func (s *session) drive() error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		view := s.l.Log.View()
		d, err := s.look(view)
		if err != nil {
			return err
		}
		if err := s.send(view, d); err != nil {
			return err
		}
		if err := s.answer(len(d.launches) > 0); err != nil {
			return err
		}
		wait := time.Hour
		if !d.next.IsZero() {
			wait = max(d.next.Sub(s.l.instant()), time.Millisecond)
		}
		timer.Reset(wait)
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-s.kick:
		case <-timer.C:
		}
	}
}

// look finds what differs between the state and the agent.
func (s *session) look(view state.Viewer) (*desk, error) {
	n := view.Node(s.node)
	if n == nil {
		return nil, errGone
	}
	now, d := s.l.instant(), &desk{}
	wanted := make(map[runKey]bool, len(n.Jobs))
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.overdue(d, now)
	cool := s.health.cooling(now)
	if !cool.IsZero() {
		d.by(cool)
	}
	for _, id := range n.Jobs {
		j := view.Job(id)
		if !batchHost(j, s.node) {
			continue
		}
		k := runKey{j.ID, j.Run, job.BatchStep}
		wanted[k] = true
		r := s.runs[k]
		if j.Kill != job.WhyNone {
			if r == nil {
				// Never sent in this session; an earlier leader may have. The agent knows.
				r = &run{answered: true}
				s.runs[k] = r
			}
			s.kill(d, view, j, k, r, now)
			continue
		}
		if r == nil || !r.answered && r.sent.IsZero() {
			if cool.IsZero() && waiting < maxOutstanding && !j.State.Ended() && s.mayLaunch(j, k) {
				waiting++
				d.launches = append(d.launches, j)
				s.runs[k] = &run{sent: now, limit: nodeLimit(view, j), limited: true, stated: true}
				d.by(now.Add(s.l.Config().LaunchTimeout))
			}
			continue
		}
		if r.answered && !r.over {
			s.steer(d, view, j, k, r)
		}
	}
	for k, r := range s.runs {
		if !wanted[k] {
			if !r.over {
				d.forget = append(d.forget, k.proto())
			}
			delete(s.runs, k)
		}
	}
	return d, nil
}

// overdue counts the launches that wait for an answer. When some have waited too long the agent is
// left alone for a while, then they are sent again under the same run; after launchStrikes such in a
// row the node is drained.
func (s *session) overdue(d *desk, now time.Time) (waiting int) {
	timeout := s.l.Config().LaunchTimeout
	var late *runKey
	for k, r := range s.runs {
		if r.answered || r.sent.IsZero() {
			continue
		}
		if due := r.sent.Add(timeout); now.Before(due) {
			waiting++
			d.by(due)
			continue
		}
		r.sent = time.Time{}
		if late == nil || k.job < late.job {
			late = &k
		}
	}
	if late != nil {
		drain := s.health.strike(now, timeout)
		s.l.Logger.Warn("launch not answered", "node", s.node, "job", late.job, "timeout", timeout)
		if drain {
			why := fmt.Sprintf("Launch of job %d not answered within %s, %d times in a row: connection timed out (ETIMEDOUT)",
				late.job, timeout, launchStrikes)
			go s.drain(why, controllerItself) // it may wait for the log
		}
	}
	return waiting
}

// kill asks for the end of a run: first with time to clean up; if no report comes, without.
func (s *session) kill(d *desk, view state.Viewer, j *state.Job, k runKey, r *run, now time.Time) {
	if r.over {
		return
	}
	wait := time.Duration(view.Config().KillWait) * time.Millisecond
	due := r.killed.Add(killAgain)
	if r.kills == 1 {
		due = r.killed.Add(wait + killMargin)
	}
	if r.kills > 0 && now.Before(due) {
		d.by(due)
		return
	}
	how := nodepb.Kill_TERMINATE
	if r.kills > 0 {
		how = nodepb.Kill_KILL
	}
	r.kills, r.killed, r.why = r.kills+1, now, nodepb.Kill_Why(j.Kill)
	d.kills = append(d.kills, &nodepb.Kill{Key: k.proto(), Signal: j.KillSignal, How: how, KillWaitMs: wait.Milliseconds(),
		Why: r.why, Note: killNote(j, s.node, s.l.Now())})
	if r.kills == 1 {
		d.by(now.Add(wait + killMargin))
	} else {
		d.by(now.Add(killAgain))
	}
}

// steer sends a living run its signals and a changed time limit.
func (s *session) steer(d *desk, view state.Viewer, j *state.Job, k runKey, r *run) {
	for _, sig := range j.Signals {
		if sig.Seq <= r.seq {
			continue
		}
		r.seq, r.signals = sig.Seq, r.signals+1
		d.kills = append(d.kills, &nodepb.Kill{Key: k.proto(), Signal: sig.Number, How: nodepb.Kill_SIGNAL,
			Why: nodepb.Kill_USER_SIGNAL, BatchOnly: sig.BatchOnly, StepsOnly: !sig.BatchOnly && !sig.Full})
	}
	if limit := nodeLimit(view, j); !r.limited || r.limit != limit {
		r.limit, r.limited = limit, true
		d.limits = append(d.limits, &nodepb.StepLimit{Key: k.proto(), TimeLimitMs: limit})
	}
	// In a new session it is said again where it may matter: the agent, or what it said to the shepherd, is new.
	stop := j.SuspendedAt > 0
	if r.stated && r.stopped != stop || !r.stated && (stop || j.Stopped > 0) {
		d.suspends = append(d.suspends, &nodepb.Suspend{Key: k.proto(), On: stop})
	}
	r.stopped, r.stated = stop, true
}

// nodeLimit is when the node ends the run, ms from its start: its limit, the grace on top, and how long it stood
// still. While it does its shepherd counts nothing.
func nodeLimit(view state.Viewer, j *state.Job) int64 {
	if j.TimeLimit <= 0 {
		return job.Unlimited
	}
	return j.TimeLimit + view.Config().OverTimeLimit + j.Stopped
}

// killNote is the line that the run's standard error ends with.
func killNote(j *state.Job, node string, now time.Time) string {
	due := map[job.Why]string{job.WhyTimeLimit: " DUE TO TIME LIMIT", job.WhyRequeue: " DUE TO JOB REQUEUE",
		job.WhyPreempt: " DUE TO PREEMPTION", job.WhyNodeFail: " DUE TO NODE FAILURE"}[j.Kill]
	return fmt.Sprintf("*** JOB %d ON %s CANCELLED AT %s%s ***", j.ID, node, now.Format("2006-01-02T15:04:05"), due)
}

// answer sends what the agent waits for: heartbeat and report acknowledgements, reads of output.
// Report acknowledgements wait for company.
func (s *session) answer(company bool) error {
	s.mu.Lock()
	beat, proven, acks, reads := s.beat, s.proven, s.acks, s.reads
	if company || s.acksDue || beat != nil || len(acks) >= maxBatch {
		s.acks, s.acksDue = nil, false
	} else {
		acks = nil
	}
	s.beat, s.reads = nil, nil
	s.mu.Unlock()
	if beat != nil {
		if err := s.put(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_HeartbeatAck{HeartbeatAck: beat}}); err != nil {
			return err
		}
		s.acknowledged(proven)
	}
	for _, part := range parts(acks) {
		if err := fault.Point("leader.before-report-ack"); err != nil {
			return err
		}
		if err := s.put(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Acks{Acks: &nodepb.ReportAcks{Keys: part}}}); err != nil {
			return err
		}
	}
	for _, r := range reads {
		if err := s.put(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_ReadOutput{ReadOutput: r}}); err != nil {
			return err
		}
	}
	return nil
}

// send sends what a look has found. Kills come after launches: a run is never launched after its end was asked.
func (s *session) send(view state.Viewer, d *desk) error {
	if err := s.sendLaunches(view, d.launches); err != nil {
		return err
	}
	for _, part := range parts(d.kills) {
		if err := s.put(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Kill{Kill: &nodepb.KillBatch{Kills: part}}}); err != nil {
			return err
		}
	}
	for _, part := range parts(d.limits) {
		if err := s.put(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Limits{Limits: &nodepb.Limits{Limits: part}}}); err != nil {
			return err
		}
	}
	for _, part := range parts(d.suspends) { // behind the limits: a run that goes on has its new one then
		if err := s.put(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Suspend{Suspend: &nodepb.Suspends{Suspends: part}}}); err != nil {
			return err
		}
	}
	for _, part := range parts(d.forget) {
		if err := s.put(&nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Forget{Forget: &nodepb.Forget{Keys: part}}}); err != nil {
			return err
		}
	}
	return nil
}

// sendLaunches sends launches in batches. One that cannot be built is answered in the agent's place.
func (s *session) sendLaunches(view state.Viewer, jobs []*state.Job) error {
	batch, size := &nodepb.LaunchBatch{}, 0
	flush := func() error {
		if len(batch.Launches) == 0 {
			return nil
		}
		m := &nodepb.ControllerMessage{Of: &nodepb.ControllerMessage_Launch{Launch: batch}}
		batch, size = &nodepb.LaunchBatch{}, 0
		if err := fault.Point("leader.before-launch"); err != nil {
			return err
		}
		return s.put(m)
	}
	for _, j := range jobs {
		launch, err := s.l.buildLaunch(view, j, s.node)
		if err != nil {
			s.l.Logger.Error("launch not built", "job", j.ID, "run", j.Run, "error", err)
			go s.launched(&nodepb.LaunchResult{Key: runKey{j.ID, j.Run, job.BatchStep}.proto(), Error: err.Error(), Cause: nodepb.LaunchResult_USER})
			continue
		}
		n := proto.Size(launch)
		if len(batch.Launches) == maxBatch || size > 0 && size+n > maxBatchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		batch.Launches, size = append(batch.Launches, launch), size+n
	}
	return flush()
}

// put sends one message. It is noted since when one is on its way: an agent that does not read holds it up.
func (s *session) put(m *nodepb.ControllerMessage) error {
	s.sending(s.l.instant())
	defer s.sending(time.Time{})
	return s.stream.Send(m)
}

func (s *session) sending(since time.Time) {
	s.mu.Lock()
	s.sendingSince = since
	s.mu.Unlock()
}

// parts cuts a list into pieces of at most maxBatch.
func parts[T any](list []T) [][]T {
	var out [][]T
	for len(list) > maxBatch {
		out, list = append(out, list[:maxBatch]), list[maxBatch:]
	}
	if len(list) > 0 {
		out = append(out, list)
	}
	return out
}
