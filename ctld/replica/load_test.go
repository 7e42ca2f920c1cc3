package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
)

// load proposes commands at whoever leads until it is checked, and keeps what was acknowledged.
type load struct {
	c    *cluster
	wg   sync.WaitGroup
	stop chan struct{}
	once sync.Once

	mu    sync.Mutex
	acked []string
}

const loadCallers = 4

func (c *cluster) load() *load {
	l := &load{c: c, stop: make(chan struct{})}
	for w := range loadCallers {
		l.wg.Go(func() { l.call(w) })
	}
	c.atEnd = append(c.atEnd, l.end)
	return l
}

func (l *load) stopped() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// call proposes one key after the other; one whose outcome is unknown is proposed again under the same key.
func (l *load) call(w int) {
	for i := 0; !l.stopped(); i++ {
		key := fmt.Sprintf("%d/%d", w, i)
		for !l.stopped() {
			if m := l.c.net.leading(); m != nil {
				_, err := m.Propose(l.c.t.Context(), submit(key))
				if err == nil {
					l.mu.Lock()
					l.acked = append(l.acked, key)
					l.mu.Unlock()
					break
				}
				if !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrUnknown) {
					l.c.t.Errorf("propose %s: %v", key, err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// count is how many are acknowledged so far.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

func (l *load) end() {
	l.once.Do(func() { close(l.stop) })
	l.wg.Wait()
}

// check ends the load: all that was acknowledged is on each member, once, in one order.
func (l *load) check() {
	l.c.t.Helper()
	l.end()
	order := l.c.agree()
	have := make(map[string]bool, len(order))
	for _, k := range order {
		if have[k] {
			l.c.t.Errorf("%s is there twice", k)
		}
		have[k] = true
	}
	for _, k := range l.acked {
		if !have[k] {
			l.c.t.Errorf("acknowledged %s is lost", k)
		}
	}
	if len(l.acked) < loadCallers {
		l.c.t.Errorf("%d acknowledged", len(l.acked))
	}
}

// leading gives a replica that leads and serves.
func (n *network) leading() *Replica {
	n.mu.Lock()
	services := make([]*PeerService, 0, len(n.services))
	for _, s := range n.services {
		services = append(services, s)
	}
	n.mu.Unlock()
	for _, s := range services {
		if _, self := s.replica.Leader(); self {
			return s.replica
		}
	}
	return nil
}

func statusBy(name string) *peerpb.StatusRequest { return &peerpb.StatusRequest{Asker: name} }

// lines is a log that tests read.
type lines struct {
	mu   sync.Mutex
	have []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.have = append(l.have, string(b))
	return len(b), nil
}

// count is how many lines hold a text.
func (l *lines) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.have {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// ended waits until a replica has ended, and gives the reason.
func (m *member) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-m.Fatal():
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s has not ended within a minute: %+v", m.name, m.Status())
		return nil
	}
}

// without takes names out of a list.
func without(names []string, not ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(not, n) })
}
