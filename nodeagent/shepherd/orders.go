package shepherd

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// askAgain is the pause between two tries to reach a launcher that is away; askWithin bounds one.
const (
	askAgain  = 200 * time.Millisecond
	askWithin = 5 * time.Second
)

// send delivers a signal to the step's processes. They run under another uid, so the launcher is
// asked, again and again while it is away, until ctx ends. Without root we do it ourselves.
func (s *step) send(ctx context.Context, number int, batch bool) error {
	k := s.plan.Key
	if s.plan.Rootless {
		return s.sendSelf(unix.Signal(number), batch)
	}
	return s.ask(ctx, &launch.Request{Signal: &launch.Signal{Key: k, Number: number, Batch: batch}})
}

func (s *step) sendSelf(sig unix.Signal, batch bool) error {
	pids := []int{s.pid}
	if !batch {
		var err error
		if pids, err = launch.Descent(s.plan.StepDir, os.Getuid()); err != nil {
			return err
		}
	}
	var errs []error
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && err != unix.ESRCH {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ask puts one request to the launcher until it answers.
func (s *step) ask(ctx context.Context, req *launch.Request) error {
	for {
		err := s.askOnce(req)
		if err == nil || errors.Is(err, errRefused) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(askAgain):
		}
	}
}

// errRefused means that the launcher has answered, and will not do it.
var errRefused = errors.New("the launcher refused")

func (s *step) askOnce(req *launch.Request) error {
	conn, err := dialUnix(s.plan.LaunchSocket, askWithin, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := launch.WriteRequest(conn, req); err != nil {
		return err
	}
	var reply launch.Reply
	if err := launch.ReadFrame(conn, &reply); err != nil {
		return err
	}
	if reply.Err != "" {
		return errors.Join(errRefused, errors.New(reply.Err))
	}
	return nil
}

// killAll ends everything in the step's group. The group's own switch needs nobody's help.
func (s *step) killAll(ctx context.Context) error {
	switch {
	case s.kill != nil:
		_, err := s.kill.WriteAt([]byte("1"), 0)
		return err
	case s.plan.Rootless:
		return s.sendSelf(unix.SIGKILL, false)
	}
	k := s.plan.Key
	return s.ask(ctx, &launch.Request{Kill: &k})
}

// stepName is how messages call the step: "7.batch", "7.0".
func stepName(k launch.Key) string {
	return strconv.FormatUint(uint64(k.Job), 10) + "." + stepWord(k.Step)
}
