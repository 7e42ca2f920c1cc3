package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
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

// Replica is one member of the cluster. It implements Log. While its folder is empty and the others are not
// known to be empty too it waits, answering Peer.Status (see firststart.go); raft is nil until it takes part.
type Replica struct {
	cfg       Config
	log       *slog.Logger
	machine   Machine
	applier   *applier
	progress  *progress
	batch     *batcher
	verified  readGroup  // reads on the leader
	asked     readGroup  // reads on a follower
	raft      *raft.Raft // for whoever knows that it runs (a term, a loop of begin); others ask running
	stores    *stores
	disk      *disk  // the stores' log and votes, watched
	hashes    hasher // of the state at marks in the log
	dogs      dogs   // what the watchdogs know
	stream    *stream
	transport *transport
	born      time.Time
	clock     Clock // of entries

	agreed    atomic.Pointer[membership] // nil until one is known
	changing  chan struct{}              // held by who changes the membership
	returning sync.Map                   // names that were voters before they came with an empty folder
	free      atomic.Int64               // bytes of the folder's file system, for Status; 0 when not known
	wasBlank  bool                       // the folder was empty when it was opened
	foreign   bool                       // firstStart has heard of a cluster that the file does not name
	unheard   string                     // firstStart had no answer from those, and why
	started   chan struct{}              // closed when firstStart is over, at once when there is none
	stopStart context.CancelFunc

	notify     chan bool            // raft's leadership changes; raft waits until each is taken
	leadership chan context.Context // one context a won term, the newest only
	leadMu     sync.Mutex
	pending    *term                // won, barrier not yet applied or applied
	lead       atomic.Pointer[term] // set while the barrier is applied and leadership not lost

	fatal    chan error
	halted   atomic.Bool     // the replica has ended, and fatal has why
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
		cfg: cfg, log: cfg.Logger, machine: m, progress: &progress{}, born: time.Now(),
		notify:     make(chan bool),
		leadership: make(chan context.Context, 1),
		fatal:      make(chan error, 1),
		opened:     make(chan struct{}),
		raftDown:   make(chan struct{}),
		changing:   make(chan struct{}, 1),
		started:    make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.applier = newApplier(m, r.progress, cfg.SnapshotBytes, r.halt)
	r.batch = newBatcher(r.submit, settle)
	r.applier.applied = r.batch.applied
	r.applier.point = cfg.point
	r.applier.decided = r.hashes.applied
	r.hashes = hasher{pin: m.Snapshot, start: r.task, stopped: r.isClosing, differs: r.halt, dir: cfg.Dir}
	r.verified = readGroup{fetch: r.verifyIndex, start: r.task, stop: r.isClosing}
	r.asked = readGroup{fetch: r.askLeader, start: r.task, stop: r.isClosing}
	r.applier.configured = func(index uint64, c raft.Configuration) { r.agreed.Store(&membership{index, c}) }
	wait, err := r.openDisk()
	if err == nil && !wait {
		err = r.openRaft(true)
	}
	if err != nil {
		r.cancel()
		return nil, errors.Join(err, r.closeDisk())
	}
	starting, stop := context.WithCancel(r.ctx)
	r.stopStart = stop
	if wait {
		go func() { defer close(r.started); r.firstStart(starting) }()
		return r, nil
	}
	close(r.started)
	r.begin()
	return r, nil
}

// openDisk opens the folder and the port, on which nobody is answered yet. wait: the others must be asked
// before this replica may take part.
func (r *Replica) openDisk() (wait bool, err error) {
	open := r.cfg.stores
	if open == nil {
		open = func() (*stores, error) {
			return openStores(r.cfg.Dir, newRaftLogger(r.cfg.Logger, r.cfg.RaftLevel))
		}
	}
	if err := r.checkSpace(); err != nil {
		return false, err
	}
	if err := checkOwner(r.cfg.Dir, r.cfg.Name); err != nil {
		return false, err
	}
	if r.stores, err = open(); err != nil {
		return false, err
	}
	if r.cfg.stores == nil {
		if err := markOwner(r.cfg.Dir, r.cfg.Name); err != nil {
			return false, err
		}
	}
	if r.disk, err = newDisk(r.stores, filepath.Join(r.cfg.Dir, logFile), r.cfg.point, r.halt); err != nil {
		return false, err
	}
	if wait, err = r.mustAsk(); err != nil {
		return false, err
	}
	self, _ := r.cfg.addr(r.cfg.Name)
	r.stream = newStream(r.cfg.Listener, self, r.cfg.Dial)
	return wait, nil
}

// closeDisk undoes openDisk.
func (r *Replica) closeDisk() (err error) {
	if r.stream != nil {
		err = r.stream.Close()
	}
	if r.stores != nil {
		err = errors.Join(err, r.stores.close())
	}
	return err
}

// openRaft starts the library on disk and network. bootstrap makes a cluster of the file's voters if the folder
// is empty.
func (r *Replica) openRaft(bootstrap bool) (err error) {
	rc := r.cfg.raftConfig(r.notify)
	r.transport = newTransport(&raft.NetworkTransportConfig{
		ServerAddressProvider:   r,
		Logger:                  rc.Logger,
		Stream:                  r.stream,
		MaxPool:                 transportPool,
		MaxRPCsInFlight:         1, // see the library's #612: a pipeline may never come back after a stall
		Timeout:                 transportTimeout,
		MsgpackUseNewTimeFormat: true,
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, r.transport.Close())
		}
	}()
	logs, err := raft.NewLogCache(logCacheEntries, r.disk)
	if err != nil {
		return err
	}
	snaps, err := r.openSnapshots()
	if err != nil {
		return err
	}
	if bootstrap && r.wasBlank { // a return that a crash has cut may have left it; a new cluster has no such entry
		if err := r.stores.stable.SetUint64(keySilent, 0); err != nil {
			return fmt.Errorf("start the cluster: %w", err)
		}
	}
	if bootstrap {
		err = raft.BootstrapCluster(rc, logs, r.disk, snaps, r.transport, r.cfg.cluster())
		if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
			return fmt.Errorf("start the cluster: %w", err)
		}
	}
	r.disk.live.Store(true) // snapshots are still the opener's: see applier.running
	if r.raft, err = startRaft(rc, r.applier, logs, r.disk, snaps, r.silence(r.transport)); err != nil {
		return cmp.Or(r.disk.err(), snaps.why(err, r.applier.unread))
	}
	r.applier.running.Store(true) // before anybody can send a snapshot
	close(r.opened)
	r.stream.open()
	return nil
}

// begin starts the loops beside a raft that runs.
func (r *Replica) begin() {
	r.loops.Add(5)
	go func() { defer r.loops.Done(); r.batch.run() }()
	go func() { defer r.loops.Done(); r.watchLeadership() }()
	go func() { defer r.loops.Done(); r.takeSnapshots() }()
	go func() { defer r.loops.Done(); r.watchMembership() }()
	go func() { defer r.loops.Done(); r.watch() }()
}

// running gives raft, nil while this replica does not take part yet.
func (r *Replica) running() *raft.Raft {
	select {
	case <-r.opened:
		return r.raft
	default:
		return nil
	}
}

// startRaft turns the library's panic over a log with a hole (the newest snapshot is damaged and
// the log does not reach back to the one before) into an error.
//
// A goroutine of its own, because the disk ends the one that meets its failure.
func startRaft(rc *raft.Config, f raft.FSM, l raft.LogStore, s raft.StableStore, sn raft.SnapshotStore, t raft.Transport) (r *raft.Raft, err error) {
	done := make(chan struct{})
	err = errors.New("start raft: its disk failed")
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("raft log and snapshots do not fit together (move the replica's folder away and it is copied from the others): %v", p)
			}
		}()
		if r, err = raft.NewRaft(rc, f, l, s, sn, t); err != nil {
			r, err = nil, fmt.Errorf("start raft: %w", err)
		}
	}()
	<-done
	return r, err
}

// Propose implements Log. Commands that do not fit into one entry go into several, one after the
// other; when one of them fails the later ones are not proposed, and the results are those of
// the commands before it.
func (r *Replica) Propose(ctx context.Context, cmds ...*logpb.Command) ([]fsm.Result, error) {
	first, more, err := r.encode(ctx, cmds)
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

// encode looks whether commands may be proposed and cuts them into proposals.
func (r *Replica) encode(ctx context.Context, cmds []*logpb.Command) (first *proposal, more []*proposal, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if r.lead.Load() == nil {
		return nil, nil, ErrNotLeader
	}
	if err := r.known(cmds); err != nil {
		return nil, nil, err
	}
	return r.batch.encode(cmds)
}

// Begin puts commands into the queue, behind all that this caller has begun before, and gives what waits for
// their outcome, as Propose does; it must be called once. What does not fit into one entry goes into several
// that follow each other without waiting for the one before: so a later one may be taken although an earlier
// one was not, when leadership is lost and won again between them.
func (r *Replica) Begin(ctx context.Context, cmds ...*logpb.Command) (wait func() ([]fsm.Result, error)) {
	failed := func(err error) func() ([]fsm.Result, error) {
		return func() ([]fsm.Result, error) { return nil, err }
	}
	first, more, err := r.encode(ctx, cmds)
	if err != nil || first == nil {
		return failed(err)
	}
	begun := append([]*proposal{first}, more...)
	for i, p := range begun {
		if err = r.batch.enqueue(p); err != nil {
			begun = begun[:i]
			break
		}
	}
	return func() (all []fsm.Result, last error) {
		for _, p := range begun {
			results, err := r.batch.outcome(ctx, p)
			if last == nil {
				all, last = append(all, results...), err
			}
		}
		if last == nil {
			last = err
		}
		return all, last
	}
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
	level, last := r.stamp()
	ms := r.clock.At(r.cfg.Now().UnixMilli(), last, time.Since(r.born))
	data := appendHeader(make([]byte, 0, entryHeader+size), level, ms)
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
	ra := r.running()
	if ra == nil {
		return "", false
	}
	_, id := ra.LeaderWithID()
	return string(id), string(id) == r.cfg.Name && r.lead.Load() != nil
}

// Status implements Log.
func (r *Replica) Status() Status {
	ra := r.running()
	if ra == nil {
		return Status{Name: r.cfg.Name, Role: RoleWaiting}
	}
	name, _ := r.Leader()
	seen, _ := r.progress.applied()
	s := Status{
		Name:      r.cfg.Name,
		Role:      ra.State().String(),
		Leader:    name,
		Term:      ra.CurrentTerm(),
		Applied:   seen,
		LastIndex: ra.LastIndex(),
	}
	if s.Role != raft.Leader.String() {
		// Elapsed time, not the wall clock's: that may be set while nothing else happens.
		since := time.Since(ra.LastContact())
		if ra.LastContact().IsZero() { // nobody since it started: what it has is as old as its last entry
			since = r.cfg.Now().Sub(time.UnixMilli(r.machine.View().Time()))
		}
		s.ContactMS = max(0, since.Milliseconds())
	}
	return s
}

// Fatal delivers at most one error: why this replica can go on no longer. The process exits
// with it, or cleanly for ErrRemoved.
func (r *Replica) Fatal() <-chan error { return r.fatal }

// halt ends the replica because of err; the process is expected to follow. It is called from
// raft's goroutines, so raft is shut down by another.
func (r *Replica) halt(err error) {
	if !r.halted.CompareAndSwap(false, true) {
		return // one reason is told, the first
	}
	r.fatal <- err
	r.progress.stop(fmt.Errorf("%w: %w", ErrStopped, err))
	r.endTerm()
	go func() {
		select {
		case <-r.opened: // an entry may come before the opening has returned
			r.shutdownRaft()
		case <-r.ctx.Done(): // it has failed
		}
	}()
}

// shutdownRaft ends raft and its connections, once; raftDown is closed when they have ended.
// Connections go first: a call to a silent peer would hold raft up.
func (r *Replica) shutdownRaft() {
	r.shutdown.Do(func() {
		go func() {
			defer close(r.raftDown)
			down := r.raft.Shutdown()
			_ = r.stream.Close()
			_ = down.Error()
			_ = r.transport.Close()
		}()
	})
	<-r.raftDown
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
	ra := r.running()
	if ra == nil || ra.State() != raft.Leader || len(voters(r.latest())) < 2 {
		return nil
	}
	return r.handOver(ctx, ra.LeadershipTransfer)
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
	r.stopStart()
	<-r.started
	if r.running() == nil { // it never took part
		r.batch.close()
		r.progress.stop(ErrStopped)
		r.cancel()
		return r.closeDisk()
	}
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
