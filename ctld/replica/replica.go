package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Errors of a replica's end.
var (
	// ErrStopped: this replica was closed or has halted.
	ErrStopped = errors.New("this controller's replica has stopped")
	// ErrRemoved: this controller was taken out of the cluster; it exits without a fault.
	ErrRemoved = errors.New("this controller was removed from the cluster")
)

// Replica is one member of the cluster. It implements Log.
type Replica struct {
	cfg       Config
	log       *slog.Logger
	machine   Machine
	applier   *applier
	progress  *progress
	batch     *batcher
	verified  readGroup // reads on the leader
	asked     readGroup // reads on a follower
	raft      *raft.Raft
	stores    *stores
	stream    *stream
	transport *raft.NetworkTransport

	notify     chan bool            // raft's leadership changes; raft waits until each is taken
	leadership chan context.Context // one context a won term, the newest only
	leadMu     sync.Mutex
	pending    *term                // won, barrier not yet applied or applied
	lead       atomic.Pointer[term] // set while the barrier is applied and leadership not lost

	fatal    chan error
	ctx      context.Context // of everything the replica starts
	cancel   context.CancelFunc
	taskMu   sync.Mutex
	closing  bool
	tasks    sync.WaitGroup // waits for raft's answers
	loops    sync.WaitGroup // goroutines that end after raft has
	opened   chan struct{}  // closed when raft is set
	raftDown chan struct{}
	shutdown sync.Once
	once     sync.Once
	closeErr error
}

var _ Log = (*Replica)(nil)

// OpenMachine starts a replica over any machine. ctx bounds the opening only.
func OpenMachine(ctx context.Context, cfg Config, m Machine) (*Replica, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &Replica{
		cfg: cfg, log: cfg.Logger, machine: m, progress: &progress{},
		notify:     make(chan bool),
		leadership: make(chan context.Context, 1),
		fatal:      make(chan error, 1),
		opened:     make(chan struct{}),
		raftDown:   make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.applier = newApplier(m, r.progress, cfg.SnapshotBytes, r.halt)
	r.batch = newBatcher(r.submit, settle)
	r.applier.applied = r.batch.applied
	r.verified = readGroup{fetch: r.verifyIndex, start: r.task, stop: r.isClosing}
	r.asked = readGroup{fetch: r.askLeader, start: r.task, stop: r.isClosing}
	if err := r.openRaft(); err != nil {
		r.cancel()
		return nil, err
	}
	close(r.opened)
	r.applier.running.Store(true)
	r.loops.Add(3)
	go func() { defer r.loops.Done(); r.batch.run() }()
	go func() { defer r.loops.Done(); r.watchLeadership() }()
	go func() { defer r.loops.Done(); r.takeSnapshots() }()
	return r, nil
}

// openRaft opens disk and network and starts the library on them.
func (r *Replica) openRaft() (err error) {
	rc := r.cfg.raftConfig(r.notify)
	open := r.cfg.stores
	if open == nil {
		open = func() (*stores, error) { return openStores(r.cfg.Dir, rc.Logger) }
	}
	if r.stores, err = open(); err != nil {
		return err
	}
	self, _ := r.cfg.addr(r.cfg.Name)
	r.stream = newStream(r.cfg.Listener, self, r.cfg.Dial)
	r.transport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider:   r.cfg,
		Logger:                  rc.Logger,
		Stream:                  r.stream,
		MaxPool:                 transportPool,
		MaxRPCsInFlight:         1, // see the library's #612: a pipeline may never come back after a stall
		Timeout:                 transportTimeout,
		MsgpackUseNewTimeFormat: true,
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, r.transport.Close(), r.stream.Close(), r.stores.close())
		}
	}()
	logs, err := raft.NewLogCache(logCacheEntries, r.stores.log)
	if err != nil {
		return err
	}
	snaps := indexedSnapshots{r.stores.snaps}
	err = raft.BootstrapCluster(rc, logs, r.stores.stable, snaps, r.transport, r.cfg.cluster())
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("start the cluster: %w", err)
	}
	r.raft, err = startRaft(rc, r.applier, logs, r.stores.stable, snaps, r.transport)
	return err
}

// startRaft turns the library's panic over a log with a hole (the newest snapshot is damaged and
// the log does not reach back to the one before) into an error.
func startRaft(rc *raft.Config, f raft.FSM, l raft.LogStore, s raft.StableStore, sn raft.SnapshotStore, t raft.Transport) (r *raft.Raft, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("raft log and snapshots do not fit together (move the replica's folder away and it is copied from the others): %v", p)
		}
	}()
	if r, err = raft.NewRaft(rc, f, l, s, sn, t); err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	return r, nil
}

// Propose implements Log. Commands that do not fit into one entry go into several, one after the
// other; when one of them fails the later ones are not proposed, and the results are those of
// the commands before it.
func (r *Replica) Propose(ctx context.Context, cmds ...*logpb.Command) ([]fsm.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.lead.Load() == nil {
		return nil, ErrNotLeader
	}
	first, more, err := r.batch.encode(cmds)
	if err != nil || first == nil {
		return nil, err
	}
	all, err := r.batch.propose(ctx, first)
	for i := 0; i < len(more) && err == nil; i++ {
		var results []fsm.Result
		results, err = r.batch.propose(ctx, more[i])
		all = append(all, results...)
	}
	return all, err
}

// submit makes an entry of what the batcher took and hands it to raft. It does not block: raft's
// queue holds more than MaxInFlight entries.
func (r *Replica) submit(fields [][]byte, size int) (future, *byte) {
	if r.lead.Load() == nil {
		return refused{}, nil
	}
	data := r.entry(fields, size)
	return r.raft.Apply(data, 0), &data[0]
}

func (r *Replica) entry(fields [][]byte, size int) []byte {
	data := appendHeader(make([]byte, 0, entryHeader+size), r.cfg.Feature, r.cfg.Now().UnixMilli())
	for _, f := range fields {
		data = append(data, f...)
	}
	return data
}

// refused is the future of an entry that was not given to raft.
type refused struct{}

func (refused) Error() error  { return raft.ErrNotLeader }
func (refused) Response() any { return nil }

// settle tells a proposer what raft's error means for the command: certainly not done, or unknown.
func settle(err error) error {
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		return ErrNotLeader
	}
	if errors.Is(err, raft.ErrLeadershipLost) {
		return ErrUnknown
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// View implements Log.
func (r *Replica) View() state.Viewer { return r.machine.View() }

// Changed implements Log. The channel may be closed early; look at the view again.
func (r *Replica) Changed(index uint64) <-chan struct{} { return r.progress.after(index) }

// Leader implements Log.
func (r *Replica) Leader() (name string, self bool) {
	_, id := r.raft.LeaderWithID()
	return string(id), string(id) == r.cfg.Name && r.lead.Load() != nil
}

// Status implements Log.
func (r *Replica) Status() Status {
	name, _ := r.Leader()
	seen, _ := r.progress.applied()
	s := Status{
		Name:      r.cfg.Name,
		Role:      r.raft.State().String(),
		Leader:    name,
		Term:      r.raft.CurrentTerm(),
		Applied:   seen,
		LastIndex: r.raft.LastIndex(),
	}
	if s.Role != raft.Leader.String() {
		last := r.raft.LastContact()
		if last.IsZero() { // nobody since it started: what it has is as old as its last entry
			last = time.UnixMilli(r.machine.View().Time())
		}
		s.ContactMS = max(0, r.cfg.Now().Sub(last).Milliseconds())
	}
	return s
}

// Fatal delivers at most one error: why this replica can go on no longer. The process exits
// with it, or cleanly for ErrRemoved.
func (r *Replica) Fatal() <-chan error { return r.fatal }

// halt ends the replica because of err; the process is expected to follow. It is called from
// raft's goroutines, so raft is shut down by another.
func (r *Replica) halt(err error) {
	select {
	case r.fatal <- err:
	default:
	}
	r.progress.stop(fmt.Errorf("%w: %w", ErrStopped, err))
	r.endTerm()
	go func() {
		<-r.opened // an entry may come before the opening has returned
		r.shutdownRaft()
	}()
}

// shutdownRaft ends raft and its connections, once; raftDown is closed when they have ended.
// Connections go first: a call to a silent peer would hold raft up.
func (r *Replica) shutdownRaft() {
	r.shutdown.Do(func() {
		down := r.raft.Shutdown()
		_ = r.stream.Close()
		_ = down.Error()
		_ = r.transport.Close()
		close(r.raftDown)
	})
}

func (r *Replica) isClosing() bool {
	r.taskMu.Lock()
	defer r.taskMu.Unlock()
	return r.closing
}

// task runs f, which waits for an answer of raft, as a goroutine that Close waits for; false when
// the replica is closing. Raft answers all it has taken while it runs but drops it when it shuts down.
func (r *Replica) task(f func()) bool {
	r.taskMu.Lock()
	defer r.taskMu.Unlock()
	if r.closing {
		return false
	}
	r.tasks.Add(1)
	go func() { defer r.tasks.Done(); f() }()
	return true
}

// takeSnapshots saves the state when enough was applied since the last time. A failure is not
// the end: the log goes on and the next snapshot is due after as much again.
func (r *Replica) takeSnapshots() {
	for {
		select {
		case <-r.applier.due:
		case <-r.ctx.Done():
			return
		}
		err := r.raft.Snapshot().Error()
		if err != nil && !errors.Is(err, raft.ErrRaftShutdown) && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			r.log.Error("snapshot failed", "error", err)
		}
	}
}

// Transfer hands leadership to the most advanced follower, for a shutdown that nobody notices.
// It returns when it has happened or failed; on a follower it does nothing.
func (r *Replica) Transfer(ctx context.Context) error {
	if r.raft.State() != raft.Leader || len(r.cfg.Voters) == 1 {
		return nil
	}
	done := make(chan error, 1)
	if !r.task(func() { done <- r.raft.LeadershipTransfer().Error() }) {
		return ErrStopped
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("hand over leadership: %w", err)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close stops the replica: what waits is refused, what is under way is awaited for a short time
// (5 s) and then reported as unknown, and network and disk are closed. A second call waits for the first.
func (r *Replica) Close() error {
	r.once.Do(func() { r.closeErr = r.close() })
	return r.closeErr
}

func (r *Replica) close() error {
	r.taskMu.Lock()
	r.closing = true
	r.taskMu.Unlock()
	r.endTerm()
	r.batch.close()
	within(closeGrace, func() { r.tasks.Wait(); <-r.batch.idle })
	stopped := within(closeGrace, r.shutdownRaft)
	r.batch.abandon()
	r.progress.stop(ErrStopped)
	r.cancel()
	if !stopped {
		// Raft hangs in a write; closing the file under it would hang as well.
		return errors.New("raft did not stop: its disk does not answer")
	}
	r.loops.Wait()
	return r.stores.close()
}

// within runs f and tells whether it returned in time.
func within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
