package shepherd

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
)

// killAgain is the pause between two SIGKILLs of a step that has not gone; unkillable is how long
// it is tried before the step is reported as ended although processes are left (they hang in the
// kernel, and the launcher will refuse to release the run).
const (
	killAgain  = time.Second
	unkillable = 60 * time.Second
)

// outsideSignal is the number that Slurm reports for a step whose files could not be opened.
const outsideSignal = 53

// minder follows one step to its end.
type minder struct {
	*step
	now   func() time.Time
	boot  func() time.Duration // CLOCK_BOOTTIME
	notes *noter
	link  *link

	first   chan unix.WaitStatus // the first process has ended
	gone    chan struct{}        // no process is left
	rusage  unix.Rusage          // of all that was collected; read after gone
	limit   *time.Timer
	warn    *time.Timer
	again   *time.Timer // next SIGKILL
	giveUp  *time.Timer
	lease   *time.Timer   // when to look whether the lease has run out
	renewed time.Duration // CLOCK_BOOTTIME from which it counts

	limitMS int64   // as told, from the start; not positive: none
	still   bool    // the processes stand still, or are about to
	freezer freezer // does it

	why    job.Why
	ending bool // TERM or KILL was sent
	killed bool // KILL was sent
	stuck  bool // something of the step is left in this process or below it
	record Record
}

func newMinder(s *step, l *link, now func() time.Time, boot func() time.Duration) *minder {
	m := &minder{step: s, link: l, now: now, boot: boot, notes: newNoter(s.stderr),
		first: make(chan unix.WaitStatus, 1), gone: make(chan struct{}),
		limit: stopped(), warn: stopped(), again: stopped(), giveUp: stopped(), lease: stopped()}
	m.record = Record{Key: s.plan.Key, Start: s.startMS}
	for _, n := range s.notes {
		m.notes.add(n)
	}
	return m
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// run follows the step until no process of it is left and returns how it ended.
func (m *minder) run(ctx context.Context) *Record {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.freezer.do = func(on bool) { _ = m.freeze(ctx, on) } // until the launcher has answered: then nothing else would help
	m.setLimit(m.plan.TimeLimit)
	if m.plan.Lease > 0 {
		if m.renewed = ms(m.plan.Renewed); m.renewed <= 0 {
			m.renewed = m.boot()
		}
		m.keepLease(ctx)
	}
	go m.collect()
	for {
		select {
		case status := <-m.first:
			m.firstEnded(ctx, status)
		case <-m.gone:
			return m.finish()
		case <-m.limit.C:
			m.terminate(ctx, Terminate{Why: uint8(job.WhyTimeLimit)})
		case <-m.warn.C:
			go m.send(ctx, m.plan.WarnSignal, true)
		case <-m.again.C:
			m.killNow(ctx)
		case <-m.giveUp.C:
			m.record.Err = "processes are left that do not die"
			m.record.Cause = uint8(job.CauseNode)
			r := m.finish()
			m.stuck = true
			return r
		case <-m.lease.C:
			m.keepLease(ctx)
		case d := <-m.link.downs:
			m.order(ctx, d)
		}
	}
}

// lookAtLease is how often a lease is looked at at least. Our timers stand still while the host sleeps,
// the lease does not: so late it may be noticed then.
const lookAtLease = time.Second

// keepLease ends the step when its lease has run out, else looks again when it may have.
func (m *minder) keepLease(ctx context.Context) {
	left := m.renewed + ms(m.plan.Lease) - m.boot()
	if left < 0 {
		m.terminate(ctx, Terminate{Why: uint8(job.WhyStale), Now: true})
		return
	}
	m.lease.Reset(min(left+time.Millisecond, lookAtLease))
}

// renew takes a renewal. A lease that has run out stays so: the job may have been started elsewhere.
func (m *minder) renew(ctx context.Context, at time.Duration) {
	if m.plan.Lease > 0 && m.boot()-m.renewed > ms(m.plan.Lease) {
		m.keepLease(ctx)
		return
	}
	m.renewed = max(m.renewed, min(at, m.boot()))
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// collect waits for children: the step's first process and every orphan, since they are all ours.
// Without a forker nobody is left when there is no child. The forker is a child too: then the group
// tells.
func (m *minder) collect() {
	defer close(m.gone)
	for {
		pid, status, use, err := m.wait(0)
		if err != nil { // ECHILD: nobody is left
			return
		}
		m.count(pid, use)
		if pid != m.pid {
			continue
		}
		m.first <- status
		if m.forker != 0 {
			m.collectRest()
			return
		}
	}
}

// lookAgain bounds the wait for the kernel's word that a group has changed.
const lookAgain = 50 * time.Millisecond

// collectRest collects who is left after the first process until the group is empty. The kernel may
// give us a dead process a moment before it takes it out of the group.
func (m *minder) collectRest() {
	for !m.deserted() {
		fds := []unix.PollFd{{Fd: int32(m.events.Fd()), Events: unix.POLLPRI}}
		unix.Poll(fds, int(lookAgain.Milliseconds()))
		m.drain()
	}
	m.drain()
}

// wait collects one child.
func (m *minder) wait(flags int) (pid int, status unix.WaitStatus, use unix.Rusage, err error) {
	for {
		pid, err = unix.Wait4(-1, &status, flags, &use)
		if err != unix.EINTR {
			return pid, status, use, err
		}
	}
}

func (m *minder) count(pid int, use unix.Rusage) {
	if pid == m.forker {
		return
	}
	m.rusage.Utime = addTime(m.rusage.Utime, use.Utime)
	m.rusage.Stime = addTime(m.rusage.Stime, use.Stime)
	m.rusage.Maxrss = max(m.rusage.Maxrss, use.Maxrss)
}

// deserted tells whether no process lives in the group.
func (m *minder) deserted() bool {
	data, err := readControl(m.events)
	if err != nil {
		return errors.Is(err, unix.ENODEV) // the group is gone
	}
	n, err := cgroup.Field(data, "populated")
	return err == nil && n == 0
}

// drain collects who has died.
func (m *minder) drain() {
	for {
		pid, _, use, err := m.wait(unix.WNOHANG)
		if err != nil || pid == 0 {
			return
		}
		m.count(pid, use)
	}
}

func addTime(a, b unix.Timeval) unix.Timeval {
	return unix.NsecToTimeval(a.Nano() + b.Nano())
}

// firstEnded takes the exit of the first process. Its step is over with it: what it left behind
// is killed.
func (m *minder) firstEnded(ctx context.Context, status unix.WaitStatus) {
	m.setExit(status)
	select {
	case <-m.gone: // nothing was left, the usual case
		return
	case <-time.After(reapGrace):
	}
	m.killNow(ctx)
}

func (m *minder) setExit(status unix.WaitStatus) {
	m.record.End = m.now().UnixMilli()
	if status.Signaled() {
		m.record.Signal = int(status.Signal())
	} else {
		m.record.ExitCode = status.ExitStatus()
	}
}

// reapGrace is how long the collector may need to see that nobody is left.
const reapGrace = 2 * time.Millisecond

// setLimit sets the time limit, counted from the start; none when it is not positive. It does not run while the
// step stands still: what that adds to it the controller says before the step goes on.
func (m *minder) setLimit(limit int64) {
	m.limitMS = limit
	m.limit.Stop()
	m.warn.Stop()
	if limit <= 0 || m.ending || m.still {
		return
	}
	left := ms(limit) - m.now().Sub(m.start)
	m.limit.Reset(max(left, 0))
	// Without B: the signal is for the steps that srun starts, whose shepherds send it themselves.
	if w := m.plan; w.WarnSignal != 0 && (w.WarnBatch || w.Key.Step != job.BatchStep) {
		m.warn.Reset(max(left-ms(w.WarnBefore), 0))
	}
}

func (m *minder) order(ctx context.Context, d Down) {
	switch {
	case d.Limit != nil:
		m.setLimit(*d.Limit)
	case d.Terminate != nil:
		m.terminate(ctx, *d.Terminate)
	case d.Suspend != nil:
		m.suspend(*d.Suspend)
	case d.Renew != nil:
		m.renew(ctx, ms(*d.Renew))
	}
}

// terminate ends the step: a note, CONT and TERM, KillWait, KILL. Asked again it only gets harder.
func (m *minder) terminate(ctx context.Context, t Terminate) {
	if m.record.End != 0 {
		return // it has ended by itself
	}
	if !m.ending {
		m.why = job.Why(t.Why)
		note := t.Note
		if note == "" {
			note = cancelNote(m.plan.Key, m.plan.Node, m.now(), m.why)
		}
		m.notes.add(note)
	}
	m.limit.Stop()
	m.warn.Stop()
	if m.still { // frozen it would not even hear of it
		m.still = false
		m.freezer.set(false)
	}
	switch {
	case t.Now:
		m.killNow(ctx)
	case !m.ending:
		wait := ms(t.KillWait)
		if wait <= 0 {
			wait = ms(m.plan.KillWait)
		}
		m.again.Reset(wait)
		go m.term(ctx, wait)
	}
	m.ending = true
}

// term asks for CONT and TERM until KillWait is over.
func (m *minder) term(ctx context.Context, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for _, sig := range []unix.Signal{unix.SIGCONT, unix.SIGTERM} {
		if m.send(ctx, int(sig), false) != nil {
			return // KILL follows, whatever the reason was
		}
	}
}

// killNow sends SIGKILL to all, and sees to it that it is sent again while somebody is left.
func (m *minder) killNow(ctx context.Context) {
	m.ending = true
	if !m.killed {
		m.killed = true
		m.giveUp.Reset(unkillable)
	}
	m.again.Reset(killAgain)
	if m.kill != nil {
		m.killAll(ctx) // fails only when the group is gone, and with it its processes
		return
	}
	go m.killAll(ctx)
}

// finish fills in the record: usage, memory, blame.
func (m *minder) finish() *Record {
	r := &m.record
	select {
	case status := <-m.first: // both came at once
		m.setExit(status)
	default:
	}
	if r.End == 0 {
		r.End = m.now().UnixMilli()
	}
	r.Why = uint8(m.why)
	if f := m.failed; f != nil {
		r.Err, r.Cause = f.text(m.plan), uint8(f.blame())
		switch f.stage {
		case stageStdin, stageStdout, stageStderr:
			r.ExitCode, r.Signal, r.StdoutError = 0, outsideSignal, r.Err
		}
		m.notes.add(r.Err)
	}
	if n, err := m.oomKills(); err == nil && n > m.oomWas {
		r.OOM = true
		m.notes.add(oomNote(m.plan.Key, n-m.oomWas))
	}
	m.measure(r)
	m.stuck = !m.notes.close()
	return r
}

// measure takes the group's processor time where it is counted, else that of collected children.
func (m *minder) measure(r *Record) {
	r.UserUS, r.SysUS = m.rusage.Utime.Nano()/1000, m.rusage.Stime.Nano()/1000
	r.MaxRSS = m.rusage.Maxrss * 1024
	if m.usage == nil {
		return
	}
	data, err := readControl(m.usage)
	if err != nil {
		return
	}
	user, err1 := cgroup.Field(data, "user_usec")
	sys, err2 := cgroup.Field(data, "system_usec")
	if errors.Join(err1, err2) == nil && user+sys > 0 {
		r.UserUS, r.SysUS = user, sys
	}
}

func (s *step) oomKills() (int64, error) {
	if s.oom == nil {
		return 0, nil
	}
	data, err := readControl(s.oom)
	if err != nil {
		return 0, err
	}
	return cgroup.Field(data, "oom_kill")
}

// maxControl is what is read of a control file: the lines that we look for are far within it.
const maxControl = 2048

// readControl reads an open control file from its beginning.
func readControl(f *os.File) ([]byte, error) {
	buf := make([]byte, maxControl)
	n, err := f.ReadAt(buf, 0)
	if err == io.EOF {
		err = nil
	}
	return buf[:n], err
}
