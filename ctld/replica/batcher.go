package replica

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
)

// MaxQueuedBytes bounds what waits, beside MaxQueued: 65536 commands of 1 MiB would be 64 GiB.
const MaxQueuedBytes = 256 << 20

// future is an entry on its way; raft.ApplyFuture is one.
type future interface {
	Error() error
	Response() any
}

// batcher gathers what proposers bring into entries. It has no timer: as long as fewer than
// MaxInFlight entries are on their way it takes what waits, so a lone command leaves at once and
// under load an entry holds what came while the last ones were written.
type batcher struct {
	// submit starts an entry with these command fields (encoded), which are its only until it returns,
	// and never blocks for long.
	// key, if not nil, is what the entry goes by when it is applied.
	submit func(fields [][]byte, bytes int) (f future, key *byte)
	// settle maps a failed future's error to what the proposer is told.
	settle func(error) error
	spare  sync.Pool // of *proposal

	mu       sync.Mutex
	ready    sync.Cond // for the one goroutine of run
	queue    []*proposal
	fields   [][]byte // of the entry that is being put together
	head     int      // queue[:head] is taken
	gone     int      // withdrawn runs in the rest
	queued   int      // commands that wait
	bytes    int      // and their size
	inFlight map[*entry]struct{}
	keys     map[*byte]*entry // of those in flight that have one
	closed   bool
	idle     chan struct{} // closed when the batcher is closed and nothing is in flight
}

// proposal is a run of commands that go into one entry and wait for their outcome.
type proposal struct {
	fields []byte // encoded fields of an entry, in the proposal's own memory
	count  int    // of commands
	bytes  int    // of the commands, without the entry's framing
	taken  bool   // in an entry; before that it may be withdrawn
	gone   bool   // withdrawn

	done    chan struct{} // told once
	results []fsm.Result
	err     error
}

// maxSpare is the most memory of a proposal that is kept for another one.
const maxSpare = 4 << 10

// proposal gives an empty one: a cluster makes one for each submission, so they are used again.
func (b *batcher) proposal() *proposal {
	if p, ok := b.spare.Get().(*proposal); ok {
		return p
	}
	return &proposal{done: make(chan struct{}, 1)}
}

// release takes back a proposal that has been told its outcome; nothing else knows of it then.
func (b *batcher) release(p *proposal) {
	fields := p.fields[:0]
	if cap(fields) > maxSpare {
		fields = nil
	}
	*p = proposal{fields: fields, done: p.done}
	b.spare.Put(p)
}

// entry is what was taken together.
type entry struct {
	proposals []*proposal
	count     int
	key       *byte
}

func newBatcher(submit func([][]byte, int) (future, *byte), settle func(error) error) *batcher {
	b := &batcher{submit: submit, settle: settle, inFlight: map[*entry]struct{}{}, keys: map[*byte]*entry{}, idle: make(chan struct{})}
	b.ready.L = &b.mu
	return b
}

// propose queues one run and waits. When ctx ends first the run is withdrawn if it has not left
// yet (the error is ctx's: nothing was done), else the outcome is unknown.
func (b *batcher) propose(ctx context.Context, p *proposal) ([]fsm.Result, error) {
	if err := b.enqueue(p); err != nil {
		return nil, err
	}
	return b.outcome(ctx, p)
}

// outcome waits for what becomes of a run that was queued.
func (b *batcher) outcome(ctx context.Context, p *proposal) ([]fsm.Result, error) {
	select {
	case <-p.done:
		results, err := p.results, p.err
		b.release(p)
		return results, err
	case <-ctx.Done():
	}
	if b.withdraw(p) {
		return nil, ctx.Err()
	}
	select {
	case <-p.done:
		return p.results, p.err
	default:
		return nil, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	}
}

func (b *batcher) enqueue(p *proposal) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return ErrNotLeader
	case b.queued+p.count > MaxQueued:
		return ErrBusy
	case b.bytes+p.bytes > MaxQueuedBytes:
		return fmt.Errorf("%w, or more than %d MiB of them", ErrBusy, MaxQueuedBytes>>20)
	}
	b.queue = append(b.queue, p)
	b.queued += p.count
	b.bytes += p.bytes
	if len(b.inFlight) < MaxInFlight {
		b.ready.Signal()
	}
	return nil
}

// withdraw takes back a run that waits; false if it has left.
func (b *batcher) withdraw(p *proposal) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.taken {
		return false
	}
	p.gone, p.fields = true, nil // while the disk hangs the queue must not grow with what nobody waits for
	b.queued -= p.count
	b.bytes -= p.bytes
	if b.gone++; b.gone > maxGone && b.gone > (len(b.queue)-b.head)/2 {
		b.queue = append(b.queue[:0], slices.DeleteFunc(b.queue[b.head:], func(p *proposal) bool { return p.gone })...)
		clear(b.queue[len(b.queue):cap(b.queue)])
		b.head, b.gone = 0, 0
	}
	return true
}

// maxGone is how many withdrawn runs stay in the queue at least, where that is cheaper.
const maxGone = 1024

// run is the batcher's goroutine; it returns after close.
func (b *batcher) run() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for !b.closed && (b.queued == 0 || len(b.inFlight) >= MaxInFlight) {
			b.ready.Wait()
		}
		if b.closed {
			return
		}
		b.gather()
		e, fields, bytes := b.take()
		if e == nil {
			continue
		}
		b.inFlight[e] = struct{}{}
		b.mu.Unlock()
		f, key := b.submit(fields, bytes)
		clear(fields)
		go b.await(e, f)
		b.mu.Lock()
		if _, open := b.inFlight[e]; open && key != nil {
			e.key, b.keys[key] = key, e
		}
	}
}

// gather lets proposers that can run come first, as long as that brings more: the answers to one
// entry wake up to 256 callers, and an entry made when the first of them returns would hold one
// command. It is a yield, not a wait; with nobody else to run it costs nothing.
func (b *batcher) gather() {
	const rounds = 4
	for range rounds {
		before := b.queued
		if before >= MaxEntryCommands || b.bytes >= MaxEntryBytes {
			return
		}
		b.mu.Unlock()
		runtime.Gosched()
		b.mu.Lock()
		if b.queued <= before {
			return
		}
	}
}

// take cuts the next entry off the queue, nil when all that waited was withdrawn.
func (b *batcher) take() (e *entry, fields [][]byte, bytes int) {
	e = &entry{proposals: make([]*proposal, 0, min(len(b.queue)-b.head, MaxEntryCommands))}
	fields = b.fields[:0]
	size := 0
	for b.head < len(b.queue) {
		p := b.queue[b.head]
		if !p.gone {
			if e.count > 0 && (e.count+p.count > MaxEntryCommands || size+p.bytes > MaxEntryBytes) {
				break
			}
			p.taken = true
			b.queued -= p.count
			b.bytes -= p.bytes
			e.proposals = append(e.proposals, p)
			e.count += p.count
			size += p.bytes
			fields = append(fields, p.fields)
			bytes += len(p.fields)
		} else {
			b.gone--
		}
		b.queue[b.head] = nil
		b.head++
	}
	b.fields = fields
	b.compact()
	if e.count == 0 {
		return nil, nil, 0
	}
	return e, fields, bytes
}

// compact frees the taken part of the queue when it is the larger one.
func (b *batcher) compact() {
	if b.head == len(b.queue) {
		b.queue, b.head = b.queue[:0], 0
		if cap(b.queue) > 4*MaxEntryCommands*MaxInFlight {
			b.queue = nil
		}
		return
	}
	if b.head > 1024 && b.head > len(b.queue)/2 {
		n := copy(b.queue, b.queue[b.head:])
		clear(b.queue[n:])
		b.queue, b.head = b.queue[:n], 0
	}
}

// await is one goroutine an entry, at most MaxInFlight of them.
func (b *batcher) await(e *entry, f future) {
	var results []fsm.Result
	err := f.Error()
	if err != nil {
		err = b.settle(err)
	} else if o, ok := f.Response().(*outcome); !ok || o == nil {
		err = fmt.Errorf("%w: no response", ErrUnknown)
	} else if o.err != nil {
		err = fmt.Errorf("%w: %w", ErrUnknown, o.err)
	} else if results = o.results; len(results) != e.count {
		err = fmt.Errorf("%w: %d results for %d commands", ErrUnknown, len(results), e.count)
	}
	b.finish(e, results, err)
}

// applied answers an entry's proposers as soon as it is applied. Raft tells of several entries only
// when all of them are, and until then those who wait for the first would do nothing.
func (b *batcher) applied(key *byte, results []fsm.Result) {
	b.mu.Lock()
	e := b.keys[key]
	b.mu.Unlock()
	if e != nil && len(results) == e.count {
		go b.finish(e, results, nil)
	}
}

// finish answers an entry's proposers, once.
func (b *batcher) finish(e *entry, results []fsm.Result, err error) {
	b.mu.Lock()
	if _, ok := b.inFlight[e]; !ok {
		b.mu.Unlock()
		return
	}
	delete(b.inFlight, e)
	delete(b.keys, e.key)
	if b.closed && len(b.inFlight) == 0 {
		close(b.idle)
	}
	if b.queued > 0 {
		b.ready.Signal()
	}
	b.mu.Unlock()
	at := 0
	for _, p := range e.proposals {
		if p.err = err; err == nil {
			p.results = results[at : at+p.count : at+p.count]
			at += p.count
		}
		p.done <- struct{}{} // p is its proposer's from here on
	}
}

// close refuses new runs and those that wait. What is in flight goes on; idle tells when it is over.
func (b *batcher) close() {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	b.closed = true
	waiting := b.queue[b.head:]
	b.queue, b.head, b.gone, b.queued, b.bytes = nil, 0, 0, 0, 0
	if len(b.inFlight) == 0 {
		close(b.idle)
	}
	b.ready.Signal()
	for _, p := range waiting {
		p.taken = true
	}
	b.mu.Unlock()
	for _, p := range waiting {
		if !p.gone {
			p.err = ErrNotLeader
			p.done <- struct{}{}
		}
	}
}

// abandon answers all that is still in flight after close: the outcome is not known.
func (b *batcher) abandon() {
	b.mu.Lock()
	left := make([]*entry, 0, len(b.inFlight))
	for e := range b.inFlight {
		left = append(left, e)
	}
	b.mu.Unlock()
	for _, e := range left {
		b.finish(e, nil, ErrUnknown)
	}
}
