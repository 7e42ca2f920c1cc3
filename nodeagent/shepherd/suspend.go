package shepherd

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// suspend lets the step's processes stand still or go on. It may be said again. One that is being ended goes on.
func (m *minder) suspend(on bool) {
	if m.record.End != 0 || m.ending || m.still == on {
		return
	}
	m.still = on
	m.setLimit(m.limitMS)
	m.freezer.set(on)
}

// freezer does what was wanted last. A wish that comes while another is being done is done after it.
type freezer struct {
	do func(on bool)

	mu         sync.Mutex
	want, busy bool
}

func (f *freezer) set(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.want = on; !f.busy {
		f.busy = true
		go f.work()
	}
}

func (f *freezer) work() {
	for {
		f.mu.Lock()
		on := f.want
		f.mu.Unlock()
		f.do(on)
		f.mu.Lock()
		if f.want == on {
			f.busy = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
	}
}

// freezeTries is how often a step is frozen that does not stand still yet; askAgain is between two.
const freezeTries = 50

// freeze stops the step's processes or lets them go on. The group is root's, so the launcher is asked, again and
// again while it is away, until ctx ends. Without root we do it ourselves, by signals: what forks away from one
// round is found by the next.
func (s *step) freeze(ctx context.Context, on bool) error {
	var err error
	for range freezeTries {
		if err = s.freezeOnce(ctx, on); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(askAgain):
		}
	}
	return err
}

func (s *step) freezeOnce(ctx context.Context, on bool) error {
	switch {
	case !s.plan.Rootless:
		return s.ask(ctx, &launch.Request{Freeze: &launch.Freeze{Key: s.plan.Key, On: on}})
	case !on:
		return s.sendSelf(unix.SIGCONT, false)
	}
	if err := s.sendSelf(unix.SIGSTOP, false); err != nil {
		return err
	}
	time.Sleep(stopPause)
	pids, err := launch.Descent(s.plan.StepDir, os.Getuid())
	if err == nil && !launch.StandStill(pids) {
		err = unix.EBUSY
	}
	return err
}

// stopPause is what processes have to stop in.
const stopPause = 5 * time.Millisecond
