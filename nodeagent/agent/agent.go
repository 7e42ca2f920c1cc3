// Package agent is the network side of a node. It runs unprivileged: it keeps one session with the
// leading controller, hands launches to the launcher, listens to the shepherds, and carries each
// step's end to the controller, at least once, however often it is itself killed meanwhile.
package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tensorgrid/tensorgrid/internal/fault"
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// Limits of one agent.
const (
	MaxRuns        = 16384     // runs with a folder here, ended ones whose report waits included
	MaxWaiting     = 4096      // launches that wait for the launcher
	MaxLaunchBytes = 256 << 20 // payload of those
	MaxCalls       = 256       // requests at the launcher at one time, of each kind
	MaxBatch       = 256       // reports, launch results or kill results in one message
	MaxReads       = 16        // outputs that are read at one time; as many chunks wait to be sent
	MaxChunk       = 256 << 10 // bytes of output in one message
	MaxMessage     = 16 << 20  // bytes of one message from the controller
)

// Controller is one place where a leader may be found.
type Controller struct {
	Name    string
	Address string // host:port
}

// Conn is a connection to a controller.
type Conn interface {
	grpc.ClientConnInterface
	io.Closer
}

// Config says what this agent is. All fields but State are needed.
type Config struct {
	Node        string
	Cluster     string
	Version     string
	BootID      string
	BootMS      int64 // Unix ms
	Controllers []Controller
	Inventory   node.Inventory
	Spool       string // folder with steps/ and output/; the launcher makes those
	State       string // folder of the agent's own; "" = StateFolder in Spool

	StepUIDs []uint32 // who may speak as a shepherd
}

// Deps are the agent's ties to the world; tests hand in their own.
type Deps struct {
	Log *slog.Logger
	// Now is the wall clock, which may be set at any time: moments for people and the log come from it.
	// Boottime is CLOCK_BOOTTIME in ms, Jitter a number in [0, 1).
	Now      func() time.Time
	Boottime func() int64
	Jitter   func() float64
	// Dial connects to a controller. The connection is authenticated before the first call.
	Dial func(address string) (Conn, error)
	// DialLauncher connects to the launcher and has checked who listens there.
	DialLauncher func(ctx context.Context) (net.Conn, error)
	// Shepherds accepts the shepherds' connections; PeerUID says who is at the other end.
	Shepherds net.Listener
	PeerUID   func(net.Conn) (uint32, error)
	// Sample gives load and free memory for a heartbeat. Probe writes and syncs a small file on
	// the spool (WriteProbe); its error makes the node unfit for new jobs.
	Sample func() (load float64, freeMem int64)
	Probe  func() error
}

// Agent is one node's agent. Make it with New, let it work with Run.
type Agent struct {
	cfg     Config
	d       Deps
	log     *slog.Logger
	spool   *spool
	launch  *launcher
	out     *outbox
	startMS int64

	calls    chan struct{} // tokens: starts at the launcher
	urgent   chan struct{} // tokens: kills and signals at the launcher
	releases chan struct{} // tokens: epilogs and removals at the launcher
	reads    chan struct{} // tokens: outputs being read
	problem  *problem
	refusals rareLog // of shepherds

	wg      sync.WaitGroup // everything that Run has to wait for
	keeping sync.Mutex     // held while what a leader said of controllers is written

	mu          sync.Mutex
	runs        map[launch.Key]*run
	leavers     []*run // acknowledged, to be sent off together
	conns       map[*shepherdConn]bool
	stopped     bool // no shepherd is taken any more
	done        doneRing
	denied      refusals
	reading     int   // outputs asked for and not yet read
	signals     int   // plain signals on their way to the launcher
	waiting     int   // launches not yet answered by the launcher
	payload     int64 // their bytes
	settings    settings
	lastSession uint64
	endSession  context.CancelCauseFunc // of the session, nil while there is none
	renewed     int64                   // CLOCK_BOOTTIME, ms, of the newest heartbeat that a leader has answered; 0 = none
	learned     []Controller            // what the last leader said, those that the configuration names too
	driver      string                  // cgroup driver, as the launcher says
	missing     []string                // limits that this node cannot enforce
}

// settings is what the leader's Welcome sets.
type settings struct {
	heartbeat time.Duration
	killWait  time.Duration
	prolog    time.Duration // how long prolog or epilog may take
}

// New makes an agent. It reads nothing and starts nothing.
func New(cfg Config, d Deps) (*Agent, error) {
	if cfg.Node == "" || cfg.Cluster == "" || cfg.BootID == "" {
		return nil, errors.New("agent: node, cluster and boot id must be set")
	}
	if len(cfg.Controllers) == 0 {
		return nil, errors.New("agent: the configuration names no controller")
	}
	cfg.BootID = fault.BootID(cfg.BootID)
	if cfg.State == "" {
		cfg.State = filepath.Join(cfg.Spool, StateFolder)
	}
	a := &Agent{
		cfg: cfg, d: d, log: d.Log.With("node", cfg.Node), startMS: d.Now().UnixMilli(),
		launch: newLauncher(d.DialLauncher), out: newOutbox(),
		calls: make(chan struct{}, MaxCalls), urgent: make(chan struct{}, MaxCalls), reads: make(chan struct{}, MaxReads),
		releases: make(chan struct{}, MaxCalls), problem: newProblem(),
		runs: make(map[launch.Key]*run), conns: make(map[*shepherdConn]bool),
		settings: settings{heartbeat: time.Second, killWait: 30 * time.Second, prolog: 5 * time.Minute},
	}
	return a, nil
}

// Run works until ctx ends; steps go on without the agent. An error says that the agent could not
// begin: it must not register before it knows what lives here.
func (a *Agent) Run(ctx context.Context) error {
	sp, err := openSpool(a.cfg.Spool)
	if err != nil {
		return err
	}
	a.spool = sp
	a.recall()
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		a.d.Shepherds.Close()
		a.launch.close()
		a.closeShepherds()
		a.wg.Wait()
		sp.close()
	}()
	if err := a.scan(ctx); err != nil {
		return err
	}
	a.goFunc(func() { a.accept(ctx) })
	a.goFunc(func() { a.watch(ctx) })
	a.goFunc(func() { a.retain(ctx) })
	a.problem.changed = a.out.beat
	a.goFunc(func() { a.problem.watch(ctx, a.d.Probe, a.log) })
	a.goFunc(func() { a.watchLauncher(ctx) })
	select { // the first heartbeat already says whether jobs can be taken
	case <-a.problem.known:
	case <-ctx.Done():
	}
	learned := make(chan struct{})
	a.goFunc(func() { a.learnDriver(ctx, learned) })
	select { // a launcher that is away holds nothing up
	case <-learned:
	case <-time.After(driverWait):
	case <-ctx.Done():
	}
	a.sessions(ctx)
	return nil
}

// goFunc starts f; Run waits for it.
func (a *Agent) goFunc(f func()) { a.wg.Go(f) }

// driverWait is how long the first hello waits for the launcher to say what it can enforce.
const driverWait = 3 * time.Second

// learnDriver asks the launcher what this node can enforce, until it has said so. A session that was
// opened before that is opened again.
func (a *Agent) learnDriver(ctx context.Context, learned chan<- struct{}) {
	back := newBackoff(a.d.Jitter)
	for {
		reply, err := a.launch.call(ctx, &launch.Request{List: true})
		if err == nil && reply.Err == "" {
			a.mu.Lock()
			a.driver, a.missing = reply.Driver, reply.Missing
			if a.endSession != nil {
				a.endSession(errNews)
			}
			a.mu.Unlock()
			close(learned)
			return
		}
		if !back.wait(ctx) {
			return
		}
	}
}

// instant is for what elapses: unlike Deps.Now it keeps its distance when the wall clock is set.
func instant() time.Time { return time.Now() }

// backoff waits longer each time, up to a bound (maxBackoff unless it is set), each wait shortened at random by up to half so
// that many agents do not come at once.
type backoff struct {
	jitter func() float64
	next   time.Duration
	most   time.Duration
}

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

func newBackoff(jitter func() float64) *backoff { return &backoff{jitter, minBackoff, maxBackoff} }

func (b *backoff) reset() { b.next = minBackoff }

// wait tells whether ctx is still alive after the wait.
func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(b.next, b.most)
	d := b.next/2 + time.Duration(b.jitter()*float64(b.next/2))
	b.next = min(b.next*2, b.most)
	return sleep(ctx, d)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
