package leader

import (
	"context"
	"errors"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
)

// Limits of reading output from nodes.
const (
	maxReads   = 64      // of one node at a time
	maxReadLen = 1 << 20 // bytes of one read
)

// Errors of ReadOutput that callers branch on.
var (
	// ErrNoAgent: the node has no session with this controller.
	ErrNoAgent = errors.New("the node's agent is not connected to this controller")
	// ErrManyReads: too many reads of the node's files are under way.
	ErrManyReads = errors.New("too many reads of output on that node (limit 64)")
)

// Chunk is a piece of a job's output. EOF: the file ends there for now; Running: more may come.
type Chunk struct {
	Data    []byte
	EOF     bool
	Running bool
}

// output is one read under way.
type output struct{ done chan *nodepb.OutputChunk }

// ReadOutput reads at most max bytes (0 or more than 1 MiB: 1 MiB) of a run's output or error file
// from offset on, over the node's session. The agent's own words come back as an error.
func (l *Leader) ReadOutput(ctx context.Context, node string, jobID, run uint32, stderr bool, offset, max int64) (Chunk, error) {
	l.mu.Lock()
	s := l.sessions[node]
	l.mu.Unlock()
	if s == nil {
		return Chunk{}, ErrNoAgent
	}
	if max <= 0 || max > maxReadLen {
		max = maxReadLen
	}
	id, wait, err := s.read(&nodepb.ReadOutput{JobId: jobID, Run: run, Stderr: stderr, Offset: offset, Max: max})
	if err != nil {
		return Chunk{}, err
	}
	select {
	case c := <-wait.done:
		if c == nil {
			return Chunk{}, ErrNoAgent
		}
		if c.GetError() != "" {
			return Chunk{}, errors.New(clip(c.GetError()))
		}
		return Chunk{Data: c.GetData(), EOF: c.GetEof(), Running: c.GetRunning()}, nil
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.waits, id)
		s.mu.Unlock()
		return Chunk{}, ctx.Err()
	}
}

// read queues a read.
func (s *session) read(r *nodepb.ReadOutput) (uint64, *output, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil || s.waits == nil:
		return 0, nil, ErrNoAgent
	case len(s.waits) >= maxReads:
		return 0, nil, ErrManyReads
	}
	s.lastRead++
	r.Id = s.lastRead
	wait := &output{done: make(chan *nodepb.OutputChunk, 1)}
	s.waits[r.Id] = wait
	s.reads = append(s.reads, r)
	s.wake()
	return r.Id, wait, nil
}

// chunk hands an answer to who waits for it.
func (s *session) chunk(c *nodepb.OutputChunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if wait := s.waits[c.GetId()]; wait != nil {
		delete(s.waits, c.GetId())
		wait.done <- c
	}
}

// failReads tells those who wait that the session has ended.
func (s *session) failReads() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, wait := range s.waits {
		close(wait.done)
	}
	s.waits = nil
}
