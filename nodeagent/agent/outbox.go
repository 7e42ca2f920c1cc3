package agent

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// maxAnswers bounds the launch results, and the kill results, that wait for a session. Launches and
// kills come from a session, so that many unsent answers mean that there has been none for long; the
// oldest go then, and the controller learns the same from what the agent holds.
const maxAnswers = 16384

// outbox is what waits to be sent to the controller. Whatever waits goes in one message.
type outbox struct {
	wake chan struct{} // 1 when something was added
	due  atomic.Bool   // a heartbeat is to go now

	mu       sync.Mutex
	results  []*nodepb.LaunchResult
	killed   []*nodepb.KillResult
	reports  []launch.Key
	reported map[launch.Key]bool // the keys in reports: none is there twice
	chunks   []sessionChunk
}

// sessionChunk is a piece of output for the session that asked for it. The numbers of requests begin
// anew with each session: in another one the piece would answer somebody else's question.
type sessionChunk struct {
	session uint64
	chunk   *nodepb.OutputChunk
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), reported: make(map[launch.Key]bool)}
}

// beat has a heartbeat sent at once: it has news.
func (o *outbox) beat() {
	o.due.Store(true)
	o.ring()
}

func (o *outbox) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// confirmDelay is how long the word that a run has started waits for something else to go to the
// controller: nothing there depends on it, and the end of a short run goes with it.
const confirmDelay = 5 * time.Millisecond

// addResult adds the answer to a launch. A failure goes at once.
func (o *outbox) addResult(r *nodepb.LaunchResult) {
	o.mu.Lock()
	first := len(o.results) == 0
	o.results = appendBounded(o.results, r)
	o.mu.Unlock()
	switch {
	case !r.GetOk():
		o.ring()
	case first:
		time.AfterFunc(confirmDelay, o.ring)
	}
}

func (o *outbox) addKilled(r *nodepb.KillResult) {
	o.mu.Lock()
	o.killed = appendBounded(o.killed, r)
	o.mu.Unlock()
	o.ring()
}

func appendBounded[T any](list []T, v T) []T {
	if len(list) >= maxAnswers {
		list = list[1:]
	}
	return append(list, v)
}

func (o *outbox) addReport(k launch.Key) {
	o.mu.Lock()
	if !o.reported[k] {
		o.reported[k] = true
		o.reports = append(o.reports, k)
	}
	o.mu.Unlock()
	o.ring()
}

// addChunk adds a piece of output; the readers' tokens bound how many wait.
func (o *outbox) addChunk(session uint64, c *nodepb.OutputChunk) {
	o.mu.Lock()
	o.chunks = append(o.chunks, sessionChunk{session, c})
	o.mu.Unlock()
	o.ring()
}

func (o *outbox) takeResults() []*nodepb.LaunchResult { return takeFrom(o, &o.results) }
func (o *outbox) takeKilled() []*nodepb.KillResult    { return takeFrom(o, &o.killed) }

func takeFrom[T any](o *outbox, list *[]T) []T {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(*list), MaxBatch)
	head := (*list)[:n:n]
	if *list = (*list)[n:]; len(*list) == 0 {
		*list = nil
	}
	return head
}

func (o *outbox) takeReports() []launch.Key {
	keys := takeFrom(o, &o.reports)
	o.mu.Lock()
	for _, k := range keys {
		delete(o.reported, k)
	}
	o.mu.Unlock()
	return keys
}

// takeChunk gives the next piece that the session asked for, and how many were taken off the list for
// it: those of earlier sessions are dropped.
func (o *outbox) takeChunk(session uint64) (c *nodepb.OutputChunk, taken int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c == nil && len(o.chunks) > 0 {
		if o.chunks[0].session == session {
			c = o.chunks[0].chunk
		}
		o.chunks = o.chunks[1:]
		taken++
	}
	return c, taken
}
