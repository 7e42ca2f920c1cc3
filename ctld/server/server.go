// Package server answers users and administrators: it authenticates by the context, validates,
// proposes through the replica's log and answers from the state. Any replica serves; a follower
// sends writes on to the leader with the caller's identity.
package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/conf"
	"github.com/tensorgrid/tensorgrid/ctld/replica"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
)

// Limits of requests and answers. A request over one of them is refused with the limit's name.
const (
	MaxMessage     = 8 << 20   // bytes of one gRPC message
	MaxBatch       = 256       // requests in one SubmitBatch
	MaxIDs         = 4096      // job ids in one request
	MaxFilterNames = 4096      // entries of one filter list
	MaxFilterWord  = 64 << 10  // bytes of one entry of a filter list
	MaxSet         = 64        // keys of one update
	MaxBlob        = 4 << 20   // bytes of one PutBlob
	BlobChunk      = 128 << 10 // bytes of a blob in one log command
	PageJobs       = 500       // jobs in one page of ListJobs
	PageBytes      = 1 << 20   // bytes of one page of ListJobs, a single larger job apart
	MaxWait        = 10 * time.Minute
	MaxForward     = 8 * time.Second // how long a write waits for a leader
	MaxTasks       = 1 << 20         // array tasks that one request names one by one
	MaxUpdateBytes = 64 << 20        // bytes of one update, once for each job
	refsPerCommand = 4096            // job references in one log command
	tasksPerRef    = 65536           // array tasks in one job reference
	outputChunk    = 256 << 10       // bytes of one JobOutputResponse
	pingTimeout    = time.Second
)

// Telemetry is what only the leader knows of a node, from its heartbeats.
type Telemetry interface {
	// NodeLoad gives load average, free memory (bytes) and when the node was last heard (Unix ms).
	NodeLoad(node string) (load float64, freeMem, lastSeen int64, ok bool)
}

// OutputReader reads what a job wrote on its node, through the agent's session with the leader.
type OutputReader interface {
	ReadOutput(ctx context.Context, node string, jobID, run uint32, stderr bool, offset, max int64) (data []byte, eof, running bool, err error)
}

// Peers reaches the other controllers.
type Peers interface {
	// Peer gives a client for a controller by name; an error when there is none of that name.
	Peer(name string) (peerpb.PeerClient, error)
}

// Deps is what a Server needs. Telemetry and Output may be nil: such answers are then empty or refused.
type Deps struct {
	Log       replica.Log
	Auth      *authn.Authenticator
	Config    *conf.Config
	Load      func(path string) (*conf.Config, error) // nil = conf.Load
	Encode    func(*conf.Config) *logpb.SetConfig     // what the state takes of a configuration
	Name      string                                  // of this controller
	Version   string
	Telemetry Telemetry
	Output    OutputReader
	Peers     Peers
	Now       func() time.Time
	Rand      io.Reader // for keys; nil = crypto/rand
	Logger    *slog.Logger
	// Members changes who the controllers are, Status is this controller's own answer to Peer.Status, and
	// Probe asks a controller that is no member yet. Each may be nil: its part is then refused or left out.
	Members Members
	Status  func(context.Context, *peerpb.StatusRequest) (*peerpb.StatusResponse, error)
	Probe   func(ctx context.Context, name, address string) (*peerpb.StatusResponse, error)
	// Backup writes the whole state; nil = there is no replica to back up.
	Backup Backup
	// Issuer gives certificates; nil = this controller has no issuer key.
	Issuer Issuer
	// Audit takes a line for each call that changes something; nil = none are kept.
	Audit *AuditLog
	// OnConfig is called after a new configuration came into force here.
	OnConfig func(*conf.Config)
}

// Server implements ctldpb.ControllerServer and the forwarding half of peerpb.PeerServer.
type Server struct {
	ctldpb.UnimplementedControllerServer
	Deps

	cfg     atomic.Pointer[conf.Config]
	started time.Time
	admit   admitCache
	reload  sync.Mutex // one Reconfigure at a time

	updating chan struct{} // holds one while an UpdateJob is judged and applied
	changing chan struct{} // holds one while the controllers are changed
	joining  chan struct{} // holds one for each Join under way
	saving   chan struct{} // holds one for each backup that is made here
	thinking chan struct{} // holds one for each answer under way that takes a round of planning
	audit    auditor
	renewals allowances
}

// New makes a server. It does not listen; register it on grpc servers.
func New(d Deps) *Server {
	if d.Rand == nil {
		d.Rand = rand.Reader
	}
	if d.Load == nil {
		d.Load = conf.Load
	}
	s := &Server{Deps: d, started: d.Now(), updating: make(chan struct{}, 1), changing: make(chan struct{}, 1),
		joining: make(chan struct{}, joinTries), saving: make(chan struct{}, backupsMost), thinking: make(chan struct{}, thinkers), audit: auditor{log: d.Audit}}
	s.setConfig(d.Config)
	d.Auth.Deny = s.denied
	return s
}

// Config is the configuration in force on this controller.
func (s *Server) Config() *conf.Config { return s.cfg.Load() }

func (s *Server) setConfig(c *conf.Config) {
	s.cfg.Store(c)
	s.Auth.SetPolicy(s.policyOf(c))
	s.admit.drop()
	if s.OnConfig != nil {
		s.OnConfig(c)
	}
}

// policyOf is what a configuration says about people. Load has checked it; a wallet that is wrong
// nevertheless stands for nobody.
func (s *Server) policyOf(c *conf.Config) *authn.Policy {
	wallets, err := authn.ParseWallets(c.Wallets)
	if err != nil {
		s.Logger.Error("no wallet stands for a user until the configuration is put right", "key", "Wallets", "err", err)
	}
	return &authn.Policy{Operators: c.Operators, Admins: c.Admins, PrivateData: c.PrivateData, LoginNodes: c.LoginNodes, Wallets: wallets}
}

// caller gives who is calling; every handler starts with it.
func caller(ctx context.Context) (authn.Caller, error) {
	c, ok := authn.FromContext(ctx)
	if !ok || !c.IsPerson() {
		return c, refuse("ESLURM_ACCESS_DENIED", "")
	}
	return c, nil
}

// visitor gives who is calling where wallets that stand for no user may call too.
func visitor(ctx context.Context) (authn.Caller, error) {
	c, ok := authn.FromContext(ctx)
	if ok && c.Role == authn.RoleWallet {
		return c, nil
	}
	return caller(ctx)
}

// read gives the view that the options ask for, and what to say of its age.
func (s *Server) read(ctx context.Context, opt *ctldpb.ReadOptions) (state.Viewer, *ctldpb.ReadInfo, error) {
	leader, _ := s.Log.Leader()
	info := &ctldpb.ReadInfo{Controller: s.Name, Leader: leader, NowMs: s.Now().UnixMilli()}
	if opt.GetStale() {
		v := s.Log.View()
		info.AgeMs = s.Log.Status().ContactMS
		info.Index = v.Index()
		return v, info, nil
	}
	v, err := s.readRetry(ctx)
	if err != nil {
		return nil, nil, logError(err)
	}
	info.Index = v.Index()
	return v, info, nil
}

// readRetry repeats a linearizable read while a leader is being elected.
func (s *Server) readRetry(ctx context.Context) (state.Viewer, error) {
	ctx, cancel := context.WithTimeout(ctx, MaxForward)
	defer cancel()
	for wait := firstWait; ; wait = nextWait(wait) {
		v, err := s.Log.Read(ctx)
		if err == nil || !electing(err) || sleep(ctx, wait) != nil {
			return v, err
		}
	}
}

// newKey makes an idempotency key for a request that came without one, so that the server's own
// retries cannot submit it twice.
func (s *Server) newKey() (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(s.Rand, b[:]); err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	return "auto-" + hex.EncodeToString(b[:]), nil
}
