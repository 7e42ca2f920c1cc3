package replica

import (
	"bufio"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Machine is the replicated state machine as the log drives it. ApplyEntry, Snapshot and Restore
// are called one at a time; View at any time.
type Machine interface {
	// ApplyEntry applies one entry's commands, one Result each. An error means that this binary
	// cannot apply it; the replica stops for good with that error, which names the entry and its version.
	ApplyEntry(index uint64, data []byte) ([]fsm.Result, error)
	// View is the state after the last applied entry.
	View() state.Viewer
	// Snapshot pins the present state without copying it.
	Snapshot() Snapshot
	// Restore builds the state aside and takes it only when it is whole.
	Restore(r io.Reader) error
}

// Snapshot is a pinned state. Write may run while later entries are applied.
type Snapshot interface {
	// Index is that of the last entry in it.
	Index() uint64
	Write(w io.Writer) error
}

// snapshotBuffer is what is gathered before the disk is asked to write.
const snapshotBuffer = 256 << 10

// outcome is raft's response for one entry.
type outcome struct {
	results []fsm.Result
	err     error
}

// applier hands committed entries to the machine. Its methods other than Restore run on raft's
// state machine goroutine; Restore also runs once before that is started.
type applier struct {
	machine  Machine
	progress *progress
	// halt is called once, with the error after which nothing more is applied.
	halt   func(error)
	halted error
	// applied, if set, is told of each entry at once: key is where its bytes are, which are those that
	// were given to raft when this replica proposed it.
	applied func(key *byte, results []fsm.Result)
	// configured, if set, is told of each configuration of the cluster that a majority has agreed on.
	configured func(index uint64, c raft.Configuration)
	// decided, if set, is told what each entry gave, before the next one is applied.
	decided func(index uint64, results []fsm.Result)
	point   func(name string) error // where tests break it; nil for nowhere
	// running is false while the replica opens: a snapshot that fails then is raft's to skip in
	// favour of an older one.
	running atomic.Bool
	unread  error // why the last snapshot was skipped

	// unsaved are the bytes applied since the last snapshot. due is signalled when they reach
	// limit and the size of that snapshot: a state of any size is then written at most about once
	// for each byte of log, and the log to replay is no longer than the snapshot.
	unsaved int64
	limit   int64
	saved   atomic.Int64
	due     chan struct{}
}

func newApplier(m Machine, p *progress, limit int64, halt func(error)) *applier {
	return &applier{machine: m, progress: p, limit: limit, halt: halt, due: make(chan struct{}, 1)}
}

// Apply implements raft.FSM.
func (a *applier) Apply(l *raft.Log) any { return a.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch implements raft.BatchingFSM. Waiters are woken once for the whole batch.
func (a *applier) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	var seen, commands uint64
	for i, l := range logs {
		if a.halted != nil {
			out[i] = &outcome{err: a.halted}
			continue
		}
		if l.Type == raft.LogCommand {
			results, err := a.apply(l)
			if err != nil {
				a.stop(err)
				out[i] = &outcome{err: a.halted}
				continue
			}
			out[i] = &outcome{results: results}
			if a.applied != nil && len(l.Data) > 0 {
				a.applied(&l.Data[0], results)
			}
			commands = l.Index
			a.unsaved += int64(len(l.Data))
		}
		if l.Type == raft.LogConfiguration && a.configured != nil {
			a.configured(l.Index, raft.DecodeConfiguration(l.Data))
		}
		seen = l.Index
	}
	if seen != 0 {
		a.progress.advance(seen, commands)
	}
	if a.unsaved >= max(a.limit, a.saved.Load()) {
		select {
		case a.due <- struct{}{}:
		default:
		}
	}
	return out
}

// apply runs one entry between two points, and tells what it gave.
func (a *applier) apply(l *raft.Log) ([]fsm.Result, error) {
	if err := a.pass("replica.before-apply"); err != nil {
		return nil, err
	}
	results, err := a.machine.ApplyEntry(l.Index, l.Data)
	if err != nil {
		return nil, err
	}
	if a.decided != nil {
		a.decided(l.Index, results)
	}
	return results, a.pass("replica.after-apply")
}

func (a *applier) pass(point string) error {
	if a.point == nil {
		return nil
	}
	return a.point(point)
}

func (a *applier) stop(err error) {
	a.halted = err
	a.halt(err)
}

// Snapshot implements raft.FSM. A halted machine gives none: raft's indexes have gone past what
// it has applied.
func (a *applier) Snapshot() (raft.FSMSnapshot, error) {
	if a.halted != nil {
		return nil, a.halted
	}
	a.unsaved = 0
	return pinned{a.machine.Snapshot(), &a.saved}, nil
}

// Restore implements raft.FSM.
func (a *applier) Restore(rc io.ReadCloser) error {
	if a.halted != nil {
		return a.halted
	}
	counted := &countingReader{r: rc}
	err := a.pass("replica.restore")
	if err == nil {
		err = a.machine.Restore(bufio.NewReaderSize(counted, snapshotBuffer))
	}
	if err != nil {
		if a.running.Load() {
			a.stop(fmt.Errorf("snapshot from the leader: %w", err))
		} else {
			a.unread = err
		}
		return err
	}
	a.unsaved = 0
	a.saved.Store(counted.n)
	index := a.machine.View().Index()
	if from := snapshotOf(rc); from != nil && a.configured != nil {
		a.configured(from.ConfigurationIndex, from.Configuration)
	}
	a.progress.advance(max(snapshotIndex(rc), index), index)
	return nil
}

// pinned is a snapshot on its way to disk.
type pinned struct {
	root Snapshot
	size *atomic.Int64
}

// Persist implements raft.FSMSnapshot; raft cancels the sink on an error.
func (p pinned) Persist(sink raft.SnapshotSink) error {
	counted := &countingWriter{w: sink}
	w := bufio.NewWriterSize(counted, snapshotBuffer)
	if err := p.root.Write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	p.size.Store(counted.n)
	return nil
}

// Release implements raft.FSMSnapshot.
func (p pinned) Release() {}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}
