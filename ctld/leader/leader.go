// Package leader holds the loops that only the leading controller runs: planning, driving the
// agents, timers and liveness. Effects follow from the replicated state, never from the applying of
// an entry, so that a new leader simply goes on.
package leader

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
)

// Deps is what a Leader works with. Fields whose comment says what nil means may be left out;
// all others must be set.
type Deps struct {
	Log    replica.Log
	Name   string              // of this controller
	Config func() *conf.Config // the file as last loaded
	Logger *slog.Logger
	// Signer gives the key that signs launch credentials and its certificate in DER. Without a key nothing is
	// signed, and no launcher starts anything: for measurements.
	Signer func() (ed25519.PrivateKey, []byte)
	// Address gives host:port at which agents reach a controller; "" when it is not known.
	Address func(controller string) string
	// Now is the wall clock; nil = time.Now. It may jump: only moments that the state or people read
	// come from it.
	Now func() time.Time
	// Elapsed is a clock that never jumps and never runs back, whatever is done to the wall clock; only
	// differences of it mean something. Leases, silence and waits go by it. nil = the monotonic clock.
	Elapsed func() time.Duration
	// Fence cuts a node off, so that nothing can be alive there: it runs FenceProgram of the
	// configuration, which is not empty when this is called; ctx ends after FenceTimeout. nil = there is
	// no way to do that. It must be safe to call for several nodes at one time, and again for one node.
	Fence func(ctx context.Context, node string) error
	// Peers tells what the other controllers know; nil = the feature level is never raised.
	Peers Peers
	// Hashes gives hashes of this replica's state; nil = replicas do not compare theirs.
	Hashes Hashes
	// Controllers lists where agents reach every member, those that joined at run time included; nil =
	// agents know those of their own file only. The list and what it holds are not changed afterwards.
	Controllers func() []*nodepb.ControllerAddress
}

// Peers tells what the members of the cluster know.
type Peers interface {
	// FeatureMax gives the newest feature level that each member's program knows, by name: voters and
	// learners, this controller included. 0 = it has not answered. An error: the members are not known.
	FeatureMax(ctx context.Context) (map[string]uint32, error)
}

// Hashes gives hashes of this replica's state.
type Hashes interface {
	// LastHash is the newest mark in the log for which the hash is ready: the index of the entry that
	// holds the mark and the hash of the state right after it. ok is false as long as there is none.
	LastHash() (index uint64, sum [32]byte, ok bool)
}

// Leader drives the cluster while its controller leads, and answers agents that it does not lead
// while it does not.
type Leader struct {
	nodepb.UnimplementedNodeServer
	Deps

	envs userEnvs

	mu       sync.Mutex
	term     *term         // nil while this controller does not lead
	news     chan struct{} // closed when term changes
	sessions map[string]*session
	turns    map[string]*turn // by node; they outlive terms
}

// term is one time of leading.
type term struct {
	ctx    context.Context
	number uint64
	began  time.Time // instant
	since  int64     // the state's time before anything of this term was in it, Unix ms; ours when it had none

	prove  chan struct{} // a heartbeat waits for proveLoop
	leased atomic.Bool   // runs had leases when timerLoop last looked
	intake *intake       // what agents said, for planLoop

	mu    sync.Mutex
	nodes map[string]*health
	awake time.Time // instant since which this process has not stood still
}

// New makes a Leader; Run sets it to work.
func New(d Deps) *Leader {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Elapsed == nil {
		start := time.Now()
		d.Elapsed = func() time.Duration { return time.Since(start) }
	}
	return &Leader{Deps: d, news: make(chan struct{}), sessions: map[string]*session{}, turns: map[string]*turn{}}
}

// instant is the present in elapsed time. Instants are compared with each other only: they have no date.
func (l *Leader) instant() time.Time { return time.Unix(0, 0).Add(l.Elapsed()) }

// Run leads whenever the replica does, until ctx ends.
func (l *Leader) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case won := <-l.Log.Leadership():
			l.lead(ctx, won)
		}
	}
}

// lead runs the loops of one term and comes back when it is over and all of them have stopped.
func (l *Leader) lead(ctx, won context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(won, cancel)()
	t := &term{ctx: ctx, number: l.Log.Status().Term, began: l.instant(), since: cmp.Or(l.Log.View().Time(), l.Now().UnixMilli()), prove: make(chan struct{}, 1),
		intake: newIntake(), nodes: map[string]*health{}}
	l.Logger.Info("leading", "term", t.number)
	if !l.configure(ctx) {
		return
	}
	t.leased.Store(leased(l.Log.View()))
	l.setTerm(t)
	var loops sync.WaitGroup
	for _, loop := range []func(*term){l.planLoop, l.concernLoop, l.livenessLoop, l.timerLoop, l.dueLoop, l.proveLoop, l.fenceLoop, l.featureLoop, l.hashLoop} {
		loops.Go(func() { loop(t) })
	}
	loops.Wait()
	open := l.setTerm(nil)
	for _, s := range open {
		s.end(errNotLeading)
	}
	l.Logger.Info("leading no more", "term", t.number)
}

// setTerm changes the term and tells those who wait for that. It gives the sessions of the one before.
func (l *Leader) setTerm(t *term) (open map[string]*session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = t
	close(l.news)
	l.news = make(chan struct{})
	open, l.sessions = l.sessions, map[string]*session{}
	return open
}

// errNotLeading ends the sessions of a term that is over.
var errNotLeading = errors.New("this controller leads no more")

// configure puts the configuration file into a state that has none yet. What the cluster runs under
// changes by reconfigure alone: an old file on a controller that comes to lead must not undo it. It
// is false when the term is over.
func (l *Leader) configure(ctx context.Context) bool {
	for {
		if old := l.Log.View().Config(); old != nil && old.Digest != "" {
			return true
		}
		cmd := SetConfig(l.Config())
		results, err := l.propose(ctx, &logpb.Command{Of: &logpb.Command_SetConfig{SetConfig: cmd}})
		if err == nil {
			if r := results[0].Refused; r != nil {
				l.Logger.Error("the configuration was refused", "code", r.Code, "text", r.Text, "why", r.Why)
			}
			return true
		}
		if ctx.Err() == nil && !passes(err) {
			l.Logger.Error("the configuration cannot go into the log; the cluster has none until reconfigure brings one", "file", l.Config().Source, "error", err)
			return true
		}
		if !l.pause(ctx, retryDelay) {
			return false
		}
	}
}

// passes tells whether a proposal that failed so may be taken when it is made again.
func passes(err error) bool {
	return errors.Is(err, replica.ErrBusy) || errors.Is(err, replica.ErrUnknown) || errors.Is(err, replica.ErrNotLeader) ||
		errors.Is(err, replica.ErrNoLeader)
}

// retryDelay is how long a loop waits after a proposal that was not taken.
const retryDelay = 100 * time.Millisecond

// propose proposes and logs what could not be proposed while leading.
func (l *Leader) propose(ctx context.Context, cmds ...*logpb.Command) ([]fsm.Result, error) {
	results, err := l.Log.Propose(ctx, cmds...)
	if err != nil && ctx.Err() == nil && !errors.Is(err, replica.ErrNotLeader) && !errors.Is(err, replica.ErrUnknown) {
		l.Logger.Warn("proposal not taken", "error", err, "commands", len(cmds))
	}
	return results, err
}

// pause waits; it is false when ctx ended first.
func (l *Leader) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// current gives the term, nil while this controller does not lead.
func (l *Leader) current() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}
