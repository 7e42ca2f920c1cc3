package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// maxReadsWaiting bounds the reads that wait for a turn.
const maxReadsWaiting = 256

// onReadOutput reads a piece of a job's output that lives in the spool (SharedFS=no). It never
// blocks. A token is held until the piece is being sent, so that a slow controller is not read for.
func (a *Agent) onReadOutput(ctx context.Context, session uint64, q *nodepb.ReadOutput) {
	a.mu.Lock()
	full := a.reading >= maxReadsWaiting
	if !full {
		a.reading++
	}
	a.mu.Unlock()
	if full {
		a.log.Warn("output is asked for faster than it can be read", "limit", maxReadsWaiting)
		return
	}
	a.goFunc(func() {
		defer func() {
			a.mu.Lock()
			a.reading--
			a.mu.Unlock()
		}()
		if take(ctx, a.reads) {
			a.out.addChunk(session, a.readOutput(q))
		}
	})
}

// readOutput makes the answer. Data and EOF are of one instant; Running says that more may come.
func (a *Agent) readOutput(q *nodepb.ReadOutput) *nodepb.OutputChunk {
	c := &nodepb.OutputChunk{Id: q.GetId()}
	k := launch.Key{Job: q.GetJobId(), Run: q.GetRun(), Step: job.BatchStep}
	a.mu.Lock()
	r := a.runs[k]
	// Asked before the read: a step that ends meanwhile is still called running, and the reader asks again.
	c.Running = r != nil && r.phase <= live
	a.mu.Unlock()
	data, eof, err := a.spool.output(k, q.GetStderr(), q.GetOffset(), q.GetMax())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Eof = true
		if !c.Running {
			c.Error = fmt.Sprintf("no output of job %d, run %d on this node", k.Job, k.Run)
		}
	case err != nil:
		c.Error = clip(err.Error())
	default:
		c.Data, c.Eof = data, eof
	}
	return c
}

// output reads up to max bytes (MaxChunk when 0 or over) from offset on. The path is made from
// numbers only.
func (s *spool) output(k launch.Key, stderr bool, offset, max int64) (data []byte, eof bool, err error) {
	if offset < 0 {
		return nil, false, fmt.Errorf("offset %d is negative", offset)
	}
	if max <= 0 || max > MaxChunk {
		max = MaxChunk
	}
	f, err := s.open(launch.OutputFile("", k, stderr))
	if stderr && errors.Is(err, fs.ErrNotExist) {
		f, err = s.open(launch.OutputFile("", k, false)) // one file takes both streams unless the job asked for two
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	buf := make([]byte, max)
	n, err := f.ReadAt(buf, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, fmt.Errorf("output: %w", err)
	}
	return buf[:n], err != nil, nil
}
