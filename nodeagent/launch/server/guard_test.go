package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/cgroup"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// TestStartIsBounded: a start that does not answer is cut, by its time or by the launcher's end; its pair
// is not used again.
func TestStartIsBounded(t *testing.T) {
	driver, err := cgroup.Open(cgroup.Config{Driver: cgroup.None, Subtree: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		wait  time.Duration
		ended bool // the launcher ends

	}{{"in time", time.Hour, false}, {"answers when it is cut", 50 * time.Millisecond, false},
		{"the launcher ends", time.Hour, true}} {
		t.Run(c.name, func(t *testing.T) {
			log := &signalLog{line: make(chan struct{}, 1)}
			conf := &Conf{Spool: t.TempDir()}
			s := &Server{conf: conf, spool: &spool{conf: conf}, groups: driver, startWait: c.wait,
				log: slog.New(slog.NewTextHandler(log, nil))}
			orders, theirs, err := socketPair()
			if err != nil {
				t.Fatal(err)
			}
			defer orders.Close()
			cut := c.ended || c.wait < time.Hour
			go func() {
				defer theirs.Close()
				in := launch.NewReceiver(int(theirs.Fd()))
				if _, _, err := in.Next(); err != nil {
					return
				}
				if cut {
					<-log.line
				}
				code := new(launch.Coder)
				(&launch.Started{Start: 7}).Code(code)
				launch.Pass(int(theirs.Fd()), code.Bytes())
			}()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.ended {
				cancel()
			}
			one := &pair{orders: orders}
			answer, err := s.ask(ctx, one, launch.Key{Job: 1}, launch.Frame([]byte("plan")), nil)
			if err != nil || answer.Start != 7 {
				t.Errorf("got %+v %v", answer, err)
			}
			if (one.uses == maxUses) != cut {
				t.Errorf("used %d times, cut %v", one.uses, cut)
			}
		})
	}
}

// TestStartThatDoesNotDieIsGivenUp: not even the kill brings an answer.
func TestStartThatDoesNotDieIsGivenUp(t *testing.T) {
	orders, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer orders.Close()
	defer theirs.Close()
	one := &pair{orders: orders}
	go one.orders.SetDeadline(time.Now().Add(50 * time.Millisecond)) // what cutStart does, sooner
	if _, err := one.ask(launch.Frame([]byte("plan")), nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// signalLog says that a line was written.
type signalLog struct{ line chan struct{} }

func (l *signalLog) Write(p []byte) (int, error) {
	select {
	case l.line <- struct{}{}:
	default:
	}
	return len(p), nil
}
