package replica

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
)

// ErrDiverged: the state of this replica is not the leader's. It is wrapped by the error that Fatal delivers.
var ErrDiverged = errors.New("the replicas' states differ")

// marksKept is how many marks a replica remembers; a check that comes later than that is not made.
const marksKept = 4

// hasher hashes the state at the marks in the log and compares with what the leader says. The state is
// pinned when the mark is applied and hashed in the background, so that nobody waits for it.
type hasher struct {
	pin     func() Snapshot
	start   func(func()) bool // runs work as a goroutine; false when the replica is closing
	stopped func() bool
	differs func(error) // told once
	dir     string

	mu      sync.Mutex
	marks   []*mark // oldest first
	working bool
}

// mark is one state to be hashed. Once done is set it does not change.
type mark struct {
	index  uint64
	pinned Snapshot // nil once it is hashed
	done   bool
	err    error
	sum    [sha256.Size]byte
	checks []fsm.HashCheck // that came before the hash was ready
}

// applied looks at the results of one entry.
func (h *hasher) applied(index uint64, results []fsm.Result) {
	for i := range results {
		if results[i].Mark {
			h.mark(index)
			break
		}
	}
	for i := range results {
		if c := results[i].Check; c != nil {
			h.check(*c)
		}
	}
}

// mark pins the state, which is that after the entry of index.
func (h *hasher) mark(index uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.marks = append(h.marks, &mark{index: index, pinned: h.pin()})
	if len(h.marks) > marksKept {
		h.marks = append(h.marks[:0], h.marks[1:]...)
	}
	if !h.working {
		h.working = h.start(h.work)
	}
}

// work hashes one mark after the other until none waits.
func (h *hasher) work() {
	for {
		m := h.next()
		if m == nil {
			return
		}
		w := &hashWriter{stopped: h.stopped, sum: sha256.New()}
		err := m.pinned.Write(w)
		h.mu.Lock()
		w.sum.Sum(m.sum[:0])
		m.err, m.done, m.pinned = err, true, nil
		checks := m.checks
		m.checks = nil
		h.mu.Unlock()
		for _, c := range checks {
			h.compare(m, c)
		}
	}
}

// next is the oldest mark that waits; nil ends the work.
func (h *hasher) next() *mark {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.marks {
		if !m.done && !h.stopped() {
			return m
		}
	}
	h.working = false
	return nil
}

// check compares now, or as soon as the hash is ready. A replica that was restored from a snapshot
// behind the mark has nothing to compare.
func (h *hasher) check(c fsm.HashCheck) {
	h.mu.Lock()
	for _, m := range h.marks {
		if m.index != c.Index {
			continue
		}
		if !m.done {
			m.checks = append(m.checks, c)
			break
		}
		h.mu.Unlock()
		h.compare(m, c)
		return
	}
	h.mu.Unlock()
}

func (h *hasher) compare(m *mark, c fsm.HashCheck) {
	if m.err != nil || bytes.Equal(m.sum[:], c.SHA256[:]) {
		return
	}
	h.differs(fmt.Errorf("%w: after log entry %d the state here has SHA-256 %x, that of the leader %s has %x; move %s away and it is copied from the others",
		ErrDiverged, m.index, m.sum, c.Leader, c.SHA256, h.dir))
}

// LastHash is the newest mark of the log whose hash is ready: the index of its entry and the SHA-256 of the
// state right after it. ok is false as long as there is none.
func (r *Replica) LastHash() (index uint64, sum [sha256.Size]byte, ok bool) {
	h := &r.hashes
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.marks) - 1; i >= 0; i-- {
		if m := h.marks[i]; m.done && m.err == nil {
			return m.index, m.sum, true
		}
	}
	return 0, sum, false
}
