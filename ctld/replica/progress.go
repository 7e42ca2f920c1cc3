package replica

import (
	"context"
	"sync"
)

// progress tells how far the state machine has come and wakes those who wait for more. One
// channel serves all waiters; it is made when the first one asks.
//
// seen counts entries that raft hands over (commands and configurations), which is what a read
// index is compared with. commands is the index of the last entry that changed the state, equal
// to the view's.
type progress struct {
	mu       sync.Mutex
	seen     uint64
	commands uint64
	wake     chan struct{}
	stopped  error
}

var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// advance records that the machine has taken all entries up to seen, the last command at index
// commands (0: none among them).
func (p *progress) advance(seen, commands uint64) {
	p.mu.Lock()
	p.seen = max(p.seen, seen)
	p.commands = max(p.commands, commands)
	p.wakeLocked()
	p.mu.Unlock()
}

// stop wakes everyone; waits end with err from now on.
func (p *progress) stop(err error) {
	p.mu.Lock()
	if p.stopped == nil {
		p.stopped = err
	}
	p.wakeLocked()
	p.mu.Unlock()
}

func (p *progress) wakeLocked() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

func (p *progress) waitLocked() <-chan struct{} {
	if p.wake == nil {
		p.wake = make(chan struct{})
	}
	return p.wake
}

// after gives a channel that is closed once a command later than index is applied. It may be
// closed early (another kind of entry, the end of the replica): the reader looks again.
func (p *progress) after(index uint64) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.commands > index {
		return closedChan
	}
	return p.waitLocked()
}

// wait returns when all entries up to index are applied, with an error when ctx ends before or
// the replica stops.
func (p *progress) wait(ctx context.Context, index uint64) error {
	for {
		p.mu.Lock()
		if p.seen >= index {
			p.mu.Unlock()
			return nil
		}
		if p.stopped != nil {
			p.mu.Unlock()
			return p.stopped
		}
		ch := p.waitLocked()
		p.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// applied gives both counts.
func (p *progress) applied() (seen, commands uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen, p.commands
}
