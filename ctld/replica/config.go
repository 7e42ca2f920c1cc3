package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tensorgrid/tensorgrid/api/peerpb"
	"github.com/tensorgrid/tensorgrid/internal/fault"
)

// Defaults of Config.
const (
	DefaultHeartbeatTimeout = 500 * time.Millisecond
	DefaultSnapshotBytes    = 256 << 20
	// MaxVoters bounds the list of controllers: more voters make each write slower and nothing safer.
	MaxVoters = 7
)

// Settings of raft that are not a site's to choose. MaxAppendEntries counts entries, not bytes:
// with entries of 128 KiB 32 of them are 4 MiB a message, and the cache and the tail kept behind
// a snapshot are bounded by the same arithmetic (16 MiB and 64 MiB).
const (
	maxAppendEntries = 32
	logCacheEntries  = 128
	trailingLogs     = 512
	snapshotsKept    = 2
	commitTimeout    = 20 * time.Millisecond
	transportTimeout = 10 * time.Second
	transportPool    = 3
	closeGrace       = 5 * time.Second
)

// Voter is one controller of the cluster: its name (raft's server id) and the address of its
// raft port.
type Voter struct{ Name, Addr string }

// Config is what a replica needs from its surroundings. Fields without a default must be set.
type Config struct {
	// Name is this controller's; it must be among the voters.
	Name string
	// Voters are the controllers of the file. When the folders of all of them are empty they start the
	// cluster from this list, so it must be the same on all of them; the addresses are used on every start,
	// the names only on the first. Controllers that joined at run time need not be in it.
	Voters []Voter
	// Address gives the raft address of a controller that joined at run time, "" when it is not known. It is
	// asked after Voters, also before Open has returned, and must not block. It may be nil.
	Address func(name string) string
	// Join: while the folder is empty this replica never starts a cluster, it waits until it is taken in.
	Join bool
	// Bootstrap starts the cluster from Voters when the folder is empty without asking the others whether there
	// is one already. If there is, acknowledged commands can be lost: for disasters only.
	Bootstrap bool
	// Cluster is the cluster's name, for people.
	Cluster string
	// Dir is this replica's own folder; it is made with mode 0700.
	Dir string
	// Listener takes raft's connections; Close closes it.
	Listener net.Listener
	// Dial connects to a voter's raft port. It must authenticate the other side as a controller.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Peers gives the client by which a follower asks the leader for its read index.
	Peers func(name string) (peerpb.PeerClient, error)
	// Now stamps the entries.
	Now func() time.Time
	// Logger takes raft's messages from RaftLevel up, and the replica's own.
	Logger    *slog.Logger
	RaftLevel slog.Level
	// HeartbeatTimeout is how long a follower waits for the leader before it stands for election
	// (default 500 ms); losing the leader costs about twice that.
	HeartbeatTimeout time.Duration
	// SnapshotBytes of applied entries start a snapshot (default 256 MiB), or as many as the last
	// snapshot was long if that is more.
	SnapshotBytes int64
	// Reserve is the free space in bytes that must be left where Dir is; 0 = it is not looked at. With less a
	// replica does not start, hands leadership over, and ends if it does not come back.
	Reserve int64

	point func(name string) error // replaces the fault points in tests
	room  func() (int64, error)   // replaces the look at the free space
	tail  int64                   // replaces tailBytes
	// commit replaces commitTimeout: how often an idle leader repeats how far the log is agreed on.
	commit time.Duration
	// stores replaces the disk in tests.
	stores func() (*stores, error)
}

// withDefaults checks the configuration and fills in the defaults. All faults are reported at once.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	missing := func(absent bool, what string) {
		if absent {
			errs = append(errs, fmt.Errorf("replica: %s is not set", what))
		}
	}
	missing(c.Name == "", "Name")
	missing(c.Dir == "" && c.stores == nil, "Dir")
	missing(c.Listener == nil, "Listener")
	missing(c.Dial == nil, "Dial")
	missing(c.Peers == nil, "Peers")
	missing(c.Now == nil, "Now")
	missing(c.Logger == nil, "Logger")
	if len(c.Voters) > MaxVoters {
		errs = append(errs, fmt.Errorf("replica: %d voters exceed the limit of %d", len(c.Voters), MaxVoters))
	}
	if _, ok := c.addr(c.Name); !ok {
		errs = append(errs, fmt.Errorf("replica: %q is not among the voters", c.Name))
	}
	if c.Join && c.Bootstrap {
		errs = append(errs, errors.New("replica: to join a cluster and to start one exclude each other"))
	}
	if c.Join && len(c.Voters) == 1 {
		errs = append(errs, errors.New("replica: to join a cluster the file needs the ControllerName line of one of its controllers"))
	}
	if c.HeartbeatTimeout == 0 {
		c.HeartbeatTimeout = DefaultHeartbeatTimeout
	}
	if c.HeartbeatTimeout < 10*time.Millisecond {
		errs = append(errs, fmt.Errorf("replica: heartbeat timeout %v is under 10 ms", c.HeartbeatTimeout))
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = DefaultSnapshotBytes
	}
	if c.SnapshotBytes < 0 {
		errs = append(errs, fmt.Errorf("replica: snapshot size %d is negative", c.SnapshotBytes))
	}
	if c.Reserve < 0 {
		errs = append(errs, fmt.Errorf("replica: reserve of %d bytes is negative", c.Reserve))
	}
	if c.point == nil {
		c.point = fault.Point
	}
	if c.tail == 0 {
		c.tail = tailBytes
	}
	if c.room == nil && c.Dir != "" {
		c.room = func() (int64, error) { return freeSpace(c.Dir) }
	}
	return c, errors.Join(errs...)
}

// addr gives the raft address of a voter.
func (c Config) addr(name string) (string, bool) {
	for _, v := range c.Voters {
		if v.Name == name {
			return v.Addr, true
		}
	}
	return "", false
}

// raftConfig is the library's configuration. Snapshots are started by bytes (see the FSM adapter),
// so the library's own trigger by counts is put out of reach.
func (c Config) raftConfig(notify chan<- bool) *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(c.Name)
	rc.HeartbeatTimeout = c.HeartbeatTimeout
	rc.ElectionTimeout = c.HeartbeatTimeout
	rc.LeaderLeaseTimeout = c.HeartbeatTimeout * 8 / 10
	rc.CommitTimeout = min(cmp.Or(c.commit, commitTimeout), c.HeartbeatTimeout/2)
	rc.MaxAppendEntries = maxAppendEntries
	rc.BatchApplyCh = true
	rc.ShutdownOnRemove = true
	rc.TrailingLogs = trailingLogs
	rc.SnapshotThreshold = 1 << 62
	rc.SnapshotInterval = 24 * time.Hour
	rc.NoLegacyTelemetry = true
	rc.NotifyCh = notify
	rc.Logger = newRaftLogger(c.Logger, c.RaftLevel)
	return rc
}

// cluster is the voters as the first entry of an empty log.
func (c Config) cluster() raft.Configuration {
	var rc raft.Configuration
	for _, v := range c.Voters {
		rc.Servers = append(rc.Servers, raft.Server{
			Suffrage: raft.Voter,
			ID:       raft.ServerID(v.Name),
			Address:  raft.ServerAddress(v.Addr),
		})
	}
	return rc
}
